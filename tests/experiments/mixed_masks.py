"""Masks of a prefix LM: beside clm on the same characters, collapsed, and mixed in one model.

Every model is trained for as many steps on as many windows and judged three times on the same
windows and prefix lengths: prefix (read both ways, the suffix scored), causal_suffix (the causal
mask, the same characters scored) and causal (the causal mask, all scored: the loss of clm.py).
In a mixed run every other row is causal. The mode token stands in front of a row and names its
mask; it is never scored.
"""

import torch
import torch.nn.functional as F

import common
import prefix_lm
from prefix_lm import IGNORE, Batch, draw_prefix_len, prefix_mask, score_suffix

SETTINGS = dict(steps=200, batch_size=8, eval_every=100)
MODES = ("CAUSAL", "PREFIX")
clean = prefix_lm.make_batch


def rows(windows, scored, seen, mode=None):
    """Score the suffix behind scored, read both ways what is before seen.  -> Batch"""
    idx, targets = windows[:, :-1], score_suffix(windows[:, 1:], scored)
    if mode is not None:
        idx, seen = torch.cat([mode[:, None], idx], 1), seen + 1
        targets = F.pad(targets, (1, 0), value=IGNORE)
    return Batch(idx, targets, torch.zeros_like(idx), prefix_mask(seen, idx.shape[1]))


def mixed(windows, cfg, special, rng, with_mode=False):
    """Every other row causal, the others with a prefix."""
    seen = draw_prefix_len(len(windows), cfg.seq_len, rng)
    seen[::2] = 1
    mode = torch.full_like(seen, special["PREFIX"])
    mode[::2] = special["CAUSAL"]
    return rows(windows, seen, seen, mode if with_mode else None)


def mixed_with_mode(windows, cfg, special, rng):
    """The same, and told which."""
    return mixed(windows, cfg, special, rng, with_mode=True)


def causal_only(windows, cfg, special, rng):
    """The batches of clm.py."""
    one = torch.ones(len(windows), dtype=torch.long)
    return rows(windows, one, one)


def everyone(windows, cfg, special, rng):
    """The suffix is scored, but read both ways too."""
    batch = clean(windows, cfg, special, rng)
    return batch._replace(mask=torch.ones_like(batch.mask))


def judge(model, val_text, cfg, special, name, with_mode):
    """Loss on validation windows under one of the three questions."""

    def asked(windows, cfg, special, rng):
        drawn = draw_prefix_len(len(windows), cfg.seq_len, rng)
        one = torch.ones_like(drawn)
        mode = one * special["PREFIX" if name == "prefix" else "CAUSAL"]
        return rows(
            windows,
            one if name == "causal" else drawn,
            drawn if name == "prefix" else one,
            mode if with_mode else None,
        )

    prefix_lm.make_batch = asked  # evaluate looks it up there
    try:
        return prefix_lm.evaluate(model, val_text, cfg, special, max_rows=400)["val_loss"]
    finally:
        prefix_lm.make_batch = clean


def measure(seed, out):
    """-> {label: metrics}"""
    tokenizer, train_text, val_text, corpus = common.load_data("tiny_shakespeare", MODES, 129)
    results, special = {}, tokenizer.special
    for label, batch_fn in {
        "causal only": causal_only,
        "prefix only": clean,
        "everyone sees all": everyone,
        "mixed": mixed,
        "mixed, mode token": mixed_with_mode,
    }.items():
        cfg = prefix_lm.Config(seed=seed, out=out, **SETTINGS)
        torch.manual_seed(seed)
        model = prefix_lm.build_model(cfg, tokenizer.vocab_size)
        log = common.Log(cfg, model, tokenizer, corpus)
        prefix_lm.train(model, train_text, val_text, cfg, special, log, batch_fn=batch_fn)
        metrics = {
            name: judge(model, val_text, cfg, special, name, batch_fn is mixed_with_mode)
            for name in ("prefix", "causal_suffix", "causal")
        }
        results[label] = log.finish(metrics)
    return results
