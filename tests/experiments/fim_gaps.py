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


def measure(seed, out):
    """-> {length of the gap: share of exact fills} over 100 gaps each"""
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
    return results
