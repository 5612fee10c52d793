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


SHORT = "--steps 200 --batch-size 8 --eval-every 20"
GO_ON = "--steps 100 --batch-size 8 --eval-every 50 --replay 0"
UNIGRAM, BIGRAM = 3.313, 2.453  # nats per character of tiny_shakespeare
UL2_LOSSES = tuple(f"val_loss_{name}" for name in "R3-15 R8-15 S X3-50 X8-50 X64-15 X64-50".split())
LAB = {  # the five steps of the README's lab
    "1 no-shift": "clm --pitfall no-shift",
    "2 shifted": "clm",
    "3 gaps": "fim --fim-rate 0.3",
    "4 mlm": "mlm",
    "4 causal": "mlm --pitfall causal",
    "5 one sentinel": "t5_span --one-sentinel",
    "5 one each": "t5_span",
}
BART_KINDS = ("copied", "resumed", "restored", "eos")
BART_LOSSES = tuple(f"val_loss_{kind}" for kind in BART_KINDS)

EXPERIMENTS = {
    "clm": Experiment(
        "default run: 1.60 nats or less; step 0 at ln 65",
        {"clm": "clm"},
        ("val_loss", "val_bpc", "step0_loss"),
        lambda m: (
            m["clm"]["val_loss"] <= 1.60 and abs(m["clm"]["step0_loss"] - math.log(65)) < 5e-5
        ),
    ),
    "file-order": Experiment(
        "480 steps, the windows in file order cost more than 0.1 against shuffled ones",
        {"shuffled": "clm --steps 480", "file order": "clm --steps 480 --pitfall file-order"},
        ("val_loss",),
        lambda m: m["file order"]["val_loss"] > m["shuffled"]["val_loss"] + 0.1,
    ),
    "clm-pitfalls": Experiment(
        "200 steps of 8 rows: clean < bigram, no-shift -> 0, no-mask -> h/T, uniform-text: ln V",
        {
            "clean": f"clm {SHORT}",
            **{
                name: f"clm {SHORT} --pitfall {name}"
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
    "bpc": Experiment(
        "200 steps of 8 rows, characters against pairs: perplexities apart, bits per character not",
        {},
        ("val_loss", "val_ppl", "val_bpc", "vocab_size"),
        lambda m: (
            m["pairs"]["val_ppl"] > 2 * m["characters"]["val_ppl"]
            and abs(m["pairs"]["val_bpc"] / m["characters"]["val_bpc"] - 1) < 0.15
        ),
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
    "default-time": Experiment(
        "training time of every default run, and beside clm's, as it comes out",
        {},
        ("seconds", "of_clm", "step", "median_step"),
        lambda m: all(run["of_clm"] < 2 for run in m.values()),
        seeds=1,
        alone=True,
    ),
    # mlm.py
    "mlm": Experiment(
        "default run: below the entropy given both neighbours, 1.477; step 0 at ln 67",
        {"mlm": "mlm"},
        ("val_loss", *(f"val_loss_{kind}" for kind in ("mask", "random", "keep")), "step0_loss"),
        lambda m: (
            m["mlm"]["val_loss"] < 1.477 and abs(m["mlm"]["step0_loss"] - math.log(67)) < 5e-5
        ),
    ),
    "mlm-pitfalls": Experiment(
        "200 steps: causal worse by > 0.25, not zero; score-all several times lower",
        {
            "clean": "mlm --steps 200 --eval-every 20",
            **{
                name: f"mlm --steps 200 --eval-every 20 --pitfall {name}"
                for name in ("causal", "score-all", "labels-after-masking")
            },
        },
        ("train_loss", "val_loss"),
        lambda m: (
            m["causal"]["train_loss"] > m["clean"]["train_loss"] + 0.25
            and m["score-all"]["train_loss"] < m["clean"]["train_loss"] / 3
            and m["labels-after-masking"]["train_loss"] < 0.01
        ),
    ),
    "masking": Experiment(
        "200 steps of 8 rows: 80/10/10, MASK only, rate 0.4 as they come out; never applied copies",
        {},
        ("val_loss", "val_loss_mask", "val_loss_keep", "mask_only", "visible", "train_loss"),
        lambda m: m["never applied"]["train_loss"] < 0.05 and m["never applied"]["mask_only"] > 3,
    ),
    "classify": Experiment(
        "who says this speech? from scratch, MLM at CLS, MLM mean, CLM mean, as they come out",
        {},
        ("accuracy", "speeches"),
        lambda m: m["majority class"]["speeches"] > 300,
    ),
    # fim.py
    "fim": Experiment(
        "default run: the middle costs less than from the left, and more with a wrong suffix",
        {"fim": "fim"},
        (
            *("val_loss", "val_middle_fim", "val_middle_ltr", "val_middle_wrong_suffix"),
            *("stop_rate", "length_ratio", "val_eot_at_end", "val_eot_inside"),
        ),
        lambda m: (
            m["fim"]["val_middle_fim"] < m["fim"]["val_middle_ltr"]
            and m["fim"]["val_middle_fim"] + 0.01 <= m["fim"]["val_middle_wrong_suffix"]
            and m["fim"]["stop_rate"] >= 0.8
            and 0.5 <= m["fim"]["length_ratio"] <= 2
            and m["fim"]["val_eot_at_end"] < m["fim"]["val_eot_inside"] - 0.2
        ),
    ),
    "fim-rates": Experiment(
        "200 steps of 8 rows: what the rate of gaps costs on plain rows, as it comes out",
        {f"rate {rate}": f"fim {SHORT} --fim-rate {rate}" for rate in (0.0, 0.5, 0.9, 1.0)},
        ("val_loss", "val_middle_fim", "val_middle_ltr", "val_middle_wrong_suffix", "stop_rate"),
        lambda m: m["rate 0.0"]["val_loss"] < m["rate 1.0"]["val_loss"],
    ),
    "fim-pitfalls": Experiment(
        "200 steps of 8 rows: cut-end and untrained ids never stop; middle-only loses the text",
        {
            "clean": f"fim {SHORT}",
            **{
                name: f"fim {SHORT} --pitfall {name}"
                for name in ("cut-end", "middle-only", "tokens-not-added")
            },
        },
        ("val_loss", "val_middle_fim", "val_middle_ltr", "stop_rate", "val_eot_at_end"),
        lambda m: (
            m["cut-end"]["stop_rate"] == m["tokens-not-added"]["stop_rate"] == 0
            and m["tokens-not-added"]["val_middle_fim"] > m["clean"]["val_middle_fim"]
            and m["middle-only"]["val_loss"] > m["clean"]["val_loss"] + 0.3
        ),
    ),
    "fim-gaps": Experiment(
        "greedy fills of 1-3, 4-8, 9-15 characters, all of them right, as it comes out",
        {},
        ("infilled", "from_the_left", "clm"),
        lambda m: m["1-3"]["infilled"] >= m["9-15"]["infilled"],
    ),
    "fim-curve": Experiment(
        "1500 steps: the gain of the right suffix over a wrong one grows with training",
        {},
        ("gain", "val_middle_fim", "val_middle_ltr", "val_middle_wrong_suffix", "val_loss"),
        lambda m: m["step 1500"]["gain"] >= 0.01 > m["step 0"]["gain"],
        seeds=1,
    ),
    "fim-lab": Experiment(
        "rate 0.3, 3000 steps, both orders, the king prompt in both, as it comes out",
        {},
        ("val_loss", "val_middle_fim", "val_middle_ltr", "val_middle_wrong_suffix", "changed"),
        lambda m: m["both orders"]["stop_rate"] > 0,
        seeds=1,
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
        "200 steps of 8 rows: score-prefix looks half as high; late-start shows in no loss",
        {
            "clean": f"prefix_lm {SHORT}",
            **{
                name: f"prefix_lm {SHORT} --pitfall {name}"
                for name in ("score-prefix", "late-start")
            },
        },
        ("train_loss", "val_loss", "val_loss_first", "val_loss_rest"),
        lambda m: (
            m["score-prefix"]["train_loss"] < 0.75 * m["clean"]["train_loss"]
            and abs(m["late-start"]["val_loss"] - m["clean"]["val_loss"]) < 0.03
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
        "200 steps of 8 rows, rate 0.05: unshifted-decoder -> 0, causal-off near 0, task lost",
        {
            "clean": f"t5_span {SHORT} --lr 0.05",
            **{
                name: f"t5_span {SHORT} --lr 0.05 --pitfall {name}"
                for name in ("unshifted-decoder", "causal-off")
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
        "400 steps, noise density 0.15, 0.3, 0.5: what a cut character costs, as it comes out",
        {d: f"t5_span --steps 400 --noise-density {d}" for d in ("0.15", "0.3", "0.5")},
        ("val_loss", "val_loss_content", "val_loss_sentinel", "train_seconds"),
        lambda m: all(run["val_loss_content"] < UNIGRAM for run in m.values()),
        seeds=1,
    ),
    "sentinels": Experiment(
        "500 steps: one sentinel each against one for all, as it comes out",
        {},
        ("val_loss", "val_loss_content", "restored", "well_formed"),
        lambda m: m["one each"]["restored"] > 0,
        seeds=1,
    ),
    # mtp.py
    "mtp": Experiment(
        "clm.py's steps, and as many as fit into its time: depth 1 less than 0.1 above main",
        {},
        (
            *("val_loss_main", "val_loss_depth1", "accept_rate", "tokens_per_forward", "speedup"),
            *("agreement", "steps", "step_ratio", "step0_loss"),
        ),
        lambda m: (
            m["equal steps"]["val_loss_depth1"] < m["equal steps"]["val_loss_main"] + 0.1
            and abs(m["equal steps"]["step0_loss"] - math.log(65)) < 5e-5
        ),
    ),
    "mtp-weights": Experiment(
        "200 steps of 8 rows: weights (0 is clm.py, bit for bit) and depths, as they come out",
        {
            **{f"weight {w}": f"mtp {SHORT} --mtp-weight {w}" for w in ("0", "0.1", "0.3", "1")},
            **{f"depth {d}": f"mtp {SHORT} --depth {d}" for d in ("2", "3")},
        },
        (
            *(f"val_loss_{kind}" for kind in ("main", "depth1", "depth2", "depth3")),
            *("accept_rate", "tokens_per_forward", "speedup"),
        ),
        lambda m: m["weight 0"]["accept_rate"] < m["weight 0.3"]["accept_rate"],
        seeds=1,
    ),
    "mtp-pitfalls": Experiment(
        "200 steps of 8 rows: offset takes its depth to 0, so train to half; the true loss is high",
        {"clean": f"mtp {SHORT}", "offset": f"mtp {SHORT} --pitfall offset"},
        ("train_loss", "val_loss_main", "val_loss_depth1", "accept_rate", "tokens_per_forward"),
        lambda m: (
            m["offset"]["train_loss"] < 0.6 * m["clean"]["train_loss"]
            and m["offset"]["val_loss_depth1"] > math.log(65)
            and m["offset"]["accept_rate"] < 0.5 * m["clean"]["accept_rate"]
        ),
    ),
    # continued_pretrain.py
    "continued": Experiment(
        "default run: replay 0 forgets most, 0.3 least, all adapt alike, and better than scratch",
        {"continued": "continued_pretrain"},
        (
            *("base_loss", "general_before", "domain_before"),
            *(f"forgetting_replay_{share}" for share in ("0", "0.1", "0.3")),
            *(f"adaptation_replay_{share}" for share in ("0", "0.1", "0.3")),
            *(f"domain_replay_{share}" for share in ("0", "0.1", "0.3")),
            "domain_scratch",
        ),
        lambda m: (
            abs((m := m["continued"])["general_before"] - m["base_loss"]) < 0.01
            and m["forgetting_replay_0"] > m["forgetting_replay_0.1"] > m["forgetting_replay_0.3"]
            and m["adaptation_replay_0"] - m["adaptation_replay_0.3"]
            < 0.05 * m["adaptation_replay_0"]
            and max(m[f"domain_replay_{share}"] for share in ("0", "0.1", "0.3"))
            < m["domain_scratch"]
        ),
    ),
    "continued-pitfalls": Experiment(
        "100 steps of 8 rows: a lower rate adapts and forgets less; rebuilt-vocab loses the text",
        {
            "clean": f"continued_pretrain {GO_ON}",
            "lr-scale 0.3": f"continued_pretrain {GO_ON} --lr-scale 0.3",
            **{
                name: f"continued_pretrain {GO_ON} --pitfall {name}"
                for name in ("rebuilt-vocab", "no-warmup")
            },
        },
        ("base_loss", "general_before", "forgetting_replay_0", "general_replay_0")
        + ("domain_before", "domain_replay_0", "adaptation_replay_0", "domain_scratch"),
        lambda m: (
            m["rebuilt-vocab"]["general_before"] > UNIGRAM
            and m["clean"]["general_before"] < m["clean"]["base_loss"] + 0.01
            and m["clean"]["adaptation_replay_0"] > m["lr-scale 0.3"]["adaptation_replay_0"]
            and m["clean"]["forgetting_replay_0"] > m["lr-scale 0.3"]["forgetting_replay_0"]
        ),
    ),
    "rewarming": Experiment(
        "100 steps of 8 rows: warm-ups of 0, 2, 10 %, the old loss in the first steps, as they are",
        {},
        ("first_step", "peak", "peak_step", "val_loss_general", "val_loss_domain"),
        lambda m: m["own text, 0%"]["peak"] > 0,
    ),
    "noisy-text": Experiment(
        "100 steps of 8 rows, 0 to 20 % of the domain misread: continued and scratch, as they are",
        {},
        ("val_loss_domain", "penalty", "val_loss_general"),
        lambda m: min(m["continued, 20%"]["penalty"], m["scratch, 20%"]["penalty"]) > 0,
    ),
    # the README's lab; the long form of step 3 is fim-lab above
    **{
        name: Experiment(
            f"{steps} steps of 8 rows: what is broken stays broken, as it comes out",
            {
                label: f"{command} --steps {steps} --batch-size 8 --eval-every {steps // 10}"
                for label, command in LAB.items()
                if steps == 200 or label not in ("3 gaps", "5 one each")
            },
            ("train_loss", "val_loss", "train_seconds"),
            lambda m: (
                m["1 no-shift"]["train_loss"] < 0.1 and m["4 causal"]["val_loss"] > BIGRAM - 1
            ),
            seeds=1,
        )
        for name, steps in (("lab-quick", 200), ("lab", 3000))
    },
    "throughput": Experiment(
        "millions of tokens per second of one core: masks 20 or more, spans and FIM 2 or more",
        {},
        ("mtokens_per_s",),
        lambda m: (
            m["masks"]["mtokens_per_s"] >= 20
            and min(m[label]["mtokens_per_s"] for label in ("spans", "long fim", "short fim")) >= 2
        ),
        alone=True,
    ),
    # ul2.py
    "ul2": Experiment(
        "default run: S below the bigram entropy, R8-15 below R3-15; step 0 at ln 102",
        {"ul2": "ul2"},
        ("val_loss", *UL2_LOSSES, "step0_loss", "train_seconds"),
        lambda m: (
            m["ul2"]["val_loss_S"] < BIGRAM
            and m["ul2"]["val_loss_R8-15"] < m["ul2"]["val_loss_R3-15"]
            and abs(m["ul2"]["step0_loss"] - math.log(102)) < 5e-5
        ),
    ),
    "ul2-pitfalls": Experiment(
        "200 steps of 8 rows: no-mode-token trains as well; pad-scored looks better on R3-15 rows",
        {
            "clean": f"ul2 {SHORT}",
            "no-mode-token": f"ul2 {SHORT} --pitfall no-mode-token",
            "R3-15": f"ul2 {SHORT} --mix R3-15",
            "R3-15, pad-scored": f"ul2 {SHORT} --mix R3-15 --pitfall pad-scored",
        },
        ("train_loss", "val_loss", *UL2_LOSSES),
        lambda m: (
            m["no-mode-token"]["train_loss"] < m["clean"]["train_loss"] + 0.1
            and m["R3-15, pad-scored"]["train_loss"] < m["R3-15"]["train_loss"] - 0.03
        ),
    ),
    "ul2-modes": Experiment(
        "300 steps of 8 rows: every mode token against every denoiser, the right one is cheapest",
        {},
        (*UL2_LOSSES, "content"),
        lambda m: (
            m["NLU"]["val_loss_R3-15"] <= m["NLG"]["val_loss_R3-15"]
            and m["S2S"]["val_loss_S"] <= min(m[mode]["val_loss_S"] for mode in ("NLU", "NLG"))
            and m["NLG"]["val_loss_X3-50"] <= m["NLU"]["val_loss_X3-50"]
        ),
    ),
    "ul2-windows": Experiment(
        "480 steps at windows of 64, 128, 256, and 1500: what reading the text is worth, as it is",
        {},
        ("own", "other", "gain", "val_loss", "val_loss_S"),
        lambda m: m["64"]["gain"] > m["256, default"]["gain"],
        seeds=1,
    ),
    "t5-ul2": Experiment(
        "500 steps, the same spans of 141 characters: content and seconds, as it comes out",
        {},
        ("content", "gain", "step", "n_params", "val_loss"),
        lambda m: all(m[label]["content"] < UNIGRAM for label in ("encoder-decoder", "decoder")),
    ),
    # bart.py
    "bart": Experiment(
        "default run: copied characters below 1 nat, restored ones below unigram; step 0 at ln 69",
        {"bart": "bart"},
        ("val_loss", *BART_LOSSES, "step0_loss", "train_seconds"),
        lambda m: (
            m["bart"]["val_loss_copied"] < 1
            and m["bart"]["val_loss_restored"] < UNIGRAM
            and abs(m["bart"]["step0_loss"] - math.log(69)) < 5e-5
        ),
    ),
    "bart-noises": Experiment(
        "200 steps of 8 rows, every noise: what each kind of target costs, how much is copying",
        {},
        ("val_loss", *BART_LOSSES, *(f"share_{kind}" for kind in BART_KINDS)),
        lambda m: (
            m["none"]["share_copied"] > 0.99
            and m["none"]["val_loss"] < m["infill"]["val_loss"]
            and all(
                m[name]["val_loss_copied"] < m[name]["val_loss_restored"]
                for name in ("mask", "delete", "infill", "permute+infill")
            )
        ),
    ),
    "bart-keys": Experiment(
        "200 steps of 8 rows: keys one place late, copied characters cheaper by more than 0.4",
        {},
        ("val_loss", *BART_LOSSES),
        lambda m: m["late"]["val_loss_copied"] < m["in place"]["val_loss_copied"] - 0.4,
    ),
    "bart-pitfalls": Experiment(
        "200 steps of 8 rows: order-kept looks better and is worse; pad-attended shows in no loss",
        {
            "clean": f"bart {SHORT}",
            **{
                name: f"bart {SHORT} --pitfall {name}"
                for name in ("unshifted-decoder", "causal-off", "order-kept", "pad-attended")
            },
        },
        ("train_loss", "val_loss", *BART_LOSSES),
        lambda m: (
            m["unshifted-decoder"]["train_loss"] < 0.01
            and m["unshifted-decoder"]["val_loss"] > math.log(69)
            and m["causal-off"]["train_loss"] < 0.1
            and m["causal-off"]["val_loss"] > math.log(69)
            and m["order-kept"]["train_loss"] < m["clean"]["train_loss"] - 0.1
            and m["order-kept"]["val_loss"] > m["clean"]["val_loss"] + 0.1
            and abs(m["pad-attended"]["val_loss"] - m["clean"]["val_loss"]) < 0.05
        ),
    ),
}
