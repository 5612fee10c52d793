"""The comparisons: which runs, which numbers, and what must be seen in their means."""

import math
from collections.abc import Callable
from typing import NamedTuple


class Experiment(NamedTuple):
    """runs: label -> script and flags; empty: the file of this name has measure(seed, folder)."""

    claim: str  # what must be seen
    runs: dict
    shown: tuple  # metrics of result.json
    seen: Callable  # {label: {metric: mean}} -> bool
    seeds: int = 3
    alone: bool = False  # nothing else may run beside it


SHORT = "clm --steps 200 --batch-size 8 --eval-every 20"
SHORT_PREFIX = "prefix_lm --steps 200 --batch-size 8 --eval-every 20"
SHORT_T5 = "t5_span --steps 200 --batch-size 8 --eval-every 20"
UNIGRAM, BIGRAM = 3.313, 2.453  # nats per character of tiny_shakespeare

EXPERIMENTS = {
    "clm": Experiment(
        "default run: 1.60 nats or less; windows in file order beside it, as it comes out",
        {"shuffled": "clm", "file order": "clm --pitfall file-order"},
        ("val_loss", "val_bpc", "step0_loss"),
        lambda m: (
            m["shuffled"]["val_loss"] <= 1.60
            and abs(m["shuffled"]["step0_loss"] - math.log(65)) < 5e-5
        ),
    ),
    "clm-pitfalls": Experiment(
        "200 steps of 8 rows: clean < bigram, no-shift -> 0, no-mask -> h/T, uniform-text: ln V",
        {
            "clean": SHORT,
            **{
                name: f"{SHORT} --pitfall {name}"
                for name in (
                    "no-shift",
                    "double-shift",
                    "no-mask",
                    "shuffled-labels",
                    "uniform-text",
                )
            },
        },
        ("train_loss", "val_loss"),
        lambda m: (
            m["clean"]["val_loss"] < BIGRAM
            and m["no-shift"]["train_loss"] < 0.0133
            and m["no-shift"]["val_loss"] > math.log(65)
            and m["clean"]["train_loss"] + 0.1 < m["double-shift"]["train_loss"] < UNIGRAM
            and m["no-mask"]["train_loss"] < 0.06
            and m["no-mask"]["val_loss"] > 3
            and abs(m["shuffled-labels"]["train_loss"] - UNIGRAM) < 0.03
            and 0 <= m["uniform-text"]["train_loss"] - math.log(65) < 0.02
        ),
    ),
    "packing": Experiment(
        "200 steps of 8 rows of packed speeches, with and without document_mask, as it comes out",
        {},
        ("val_loss",),
        lambda m: abs(m["document mask"]["val_loss"] - m["causal mask"]["val_loss"]) < 0.2,
    ),
    "smoothing": Experiment(
        "200 steps of 8 rows, label smoothing 0.1 against 0: unsmoothed loss and calibration",
        {},
        ("val_loss", "calibration_error", "confidence", "accuracy"),
        lambda m: m["0"]["val_loss"] > 0,
    ),
    "speed": Experiment(
        "1.886 nats at least 7 times sooner than nanoGPT's recipe; in its time 1.59 or less",
        {},
        ("val_loss", "seconds", "speedup", "flop_share", "gflops", "batch_share", "peak_gib"),
        lambda m: (
            m["clm, short"]["val_loss"] <= 1.886
            and m["clm, short"]["speedup"] >= 7
            and m["clm, default"]["val_loss"] <= 1.59
            and m["clm, default"]["speedup"] >= 1
        ),
        seeds=1,
        alone=True,
    ),
    # prefix_lm.py
    "prefix-lm": Experiment(
        "default run: the suffix costs less than the bigram entropy; step 0 at ln 65",
        {"prefix_lm": "prefix_lm"},
        ("val_loss", "val_loss_first", "val_loss_rest", "step0_loss"),
        lambda m: (
            m["prefix_lm"]["val_loss"] < BIGRAM
            and abs(m["prefix_lm"]["step0_loss"] - math.log(65)) < 5e-5
        ),
    ),
    "prefix-lm-pitfalls": Experiment(
        "200 steps of 8 rows: score-prefix looks lower; late-start harms the first character only",
        {
            "clean": SHORT_PREFIX,
            **{name: f"{SHORT_PREFIX} --pitfall {name}" for name in ("score-prefix", "late-start")},
        },
        ("train_loss", "val_loss", "val_loss_first", "val_loss_rest"),
        lambda m: (
            m["score-prefix"]["train_loss"] < 0.75 * m["clean"]["train_loss"]
            and m["late-start"]["val_loss_first"] - m["clean"]["val_loss_first"]
            > m["late-start"]["val_loss_rest"] - m["clean"]["val_loss_rest"] + 0.03
        ),
    ),
    "mixed-masks": Experiment(
        "200 steps of 8 rows: beside clm; all-true mask collapses; mixed masks, as they come out",
        {},
        ("train_loss", "prefix", "causal_suffix", "causal"),
        lambda m: (
            m["everyone sees all"]["train_loss"] < 0.3 and m["everyone sees all"]["prefix"] > 3
        ),
    ),
    # t5_span.py
    "t5": Experiment(
        "default run: content below the unigram entropy; step 0 at ln 99",
        {"t5_span": "t5_span"},
        (
            "val_loss",
            *(f"val_loss_{kind}" for kind in ("content", "sentinel", "eos")),
            "step0_loss",
        ),
        lambda m: (
            m["t5_span"]["val_loss_content"] < UNIGRAM
            and abs(m["t5_span"]["step0_loss"] - math.log(99)) < 5e-5
        ),
    ),
    "t5-pitfalls": Experiment(
        "200 steps of 8 rows: unshifted-decoder -> 0, causal-off -> near 0, the task lost in both",
        {
            "clean": SHORT_T5,
            **{
                name: f"{SHORT_T5} --pitfall {name}" for name in ("unshifted-decoder", "causal-off")
            },
        },
        ("train_loss", "val_loss", "val_loss_content"),
        lambda m: (
            m["unshifted-decoder"]["train_loss"] < 0.01
            and m["causal-off"]["train_loss"] < 0.1
            and m["unshifted-decoder"]["val_loss"] > math.log(99)
            and m["causal-off"]["val_loss"] > m["clean"]["val_loss"] + 1
        ),
    ),
    "t5-density": Experiment(
        "200 steps of 8 rows, noise density 0.15, 0.3, 0.5: a cut character costs more each time",
        {d: f"{SHORT_T5} --noise-density {d}" for d in ("0.15", "0.3", "0.5")},
        ("val_loss", "val_loss_content", "val_loss_sentinel", "train_seconds"),
        lambda m: (
            m["0.15"]["val_loss_content"]
            < m["0.3"]["val_loss_content"]
            < m["0.5"]["val_loss_content"]
        ),
    ),
    "sentinels": Experiment(
        "300 steps of 8 rows: one sentinel each against one for all, as it comes out",
        {},
        ("val_loss", "val_loss_content", "restored", "well_formed"),
        lambda m: m["one each"]["restored"] > 0,
    ),
}
