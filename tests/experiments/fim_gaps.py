"""Greedy fills of validation gaps: how often is every character right?

Texts of 20 characters, as long as the longest that fim.py was trained on. Beside them what the same
model writes from the left, and what clm.py's does: both are told the length of the middle, fim.py
must find it.
"""

from pathlib import Path

import torch

import clm
import common
import fim

LENGTHS = {"1-3": (1, 3), "4-8": (4, 8), "9-15": (9, 15)}


def trained(script, out, seed, special):
    """The default run, from the entry of its name if that was run.  -> model, cfg, ids, text"""
    name = script.__name__
    folder = common.HERE / "runs" / "experiments" / name / f"{name}-{seed}"
    if not (folder / "ckpt.pt").exists():
        folder = Path(out) / name
        script.main(["--seed", str(seed), "--out", str(folder)])
    cfg = script.Config(temperature=0.0)
    tokenizer, _, val_text, _ = common.load_data(cfg.data, special, 129)
    model = script.build_model(cfg, tokenizer.vocab_size)
    common.load(str(folder / "ckpt.pt"), model, tokenizer, cfg)
    return model, cfg, tokenizer, val_text


@torch.no_grad()
def from_the_left(model, gaps):
    """What the middles that fim.score_gaps scores cost clm.py, nats per character."""
    rows = torch.stack([window for window, *_ in gaps])
    middle = torch.zeros_like(rows, dtype=torch.bool)
    for row, (_, _, (_, i, j, _)) in zip(middle, gaps):
        row[i:j] = True
    nll = [
        clm.token_nll(model(some[:, :-1], clm.attention_mask(some.shape[1] - 1)), some[:, 1:])
        for some in rows.split(100)
    ]
    return torch.cat(nll)[middle[:, 1:]].double().mean().item()


def measure(seed, out):
    """-> {length of the gap: share of exact fills} over 100 gaps each, and the loss of middles"""
    model, cfg, tokenizer, val_text = trained(fim, out, seed, fim.SPECIALS)
    plain, *_ = trained(clm, out, seed, ())
    rng, results = torch.Generator().manual_seed(3), {}
    for label, (low, high) in LENGTHS.items():
        right = dict.fromkeys(("infilled", "from_the_left", "clm"), 0)
        for window in val_text[: 100 * 129].view(-1, 129):
            n, m = 20, int(torch.randint(low, high + 1, (), generator=rng))
            i = int(torch.randint(1, n - m + 1, (), generator=rng))
            prefix, middle, suffix = window[:i], window[i : i + m], window[i + m : n]
            prompt = fim.fim_prompt(prefix, suffix, tokenizer.special, "SPM")
            fill, ended = fim.infill(model, prompt, tokenizer.special, cfg, None)
            right["infilled"] += ended and torch.equal(fill, middle)
            for name, network in (("from_the_left", model), ("clm", plain)):
                guess = fim.sample(network, prefix, m, cfg.seq_len, 0, None)[i:]
                right[name] += torch.equal(guess, middle)
        results[label] = {name: count / 100 for name, count in right.items()}
    gaps = fim.draw_gaps(val_text, cfg)
    scores = fim.score_gaps(model, gaps, tokenizer.special)
    results["nats per character"] = {
        "infilled": scores["val_middle_fim"],
        "from_the_left": scores["val_middle_ltr"],
        "clm": from_the_left(plain, gaps),
    }
    return results
