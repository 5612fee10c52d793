"""Masking: 80/10/10 against MASK only, rate 0.15 against 0.4, and masks that are never applied.

Every model is trained for as many steps on as many positions, and judged on the same corruption,
rate 0.15: 80/10/10 (val_loss), MASK only (mask_only), and the characters left visible by 80/10/10
(visible), of which a model trained with MASK only was never asked.
"""

import dataclasses

import torch
import torch.nn.functional as F

import common
import mlm

SETTINGS = dict(steps=200, batch_size=8, eval_every=100)
clean = mlm.make_batch


def mask_only(windows, cfg, special, rng):
    """100 % of the selected become MASK."""
    batch = clean(windows, cfg, special, rng)
    return batch._replace(idx=batch.idx.where(batch.targets == mlm.IGNORE, special["MASK"]))


def rate_040(windows, cfg, special, rng):
    """80/10/10 of 40 %."""
    return clean(windows, dataclasses.replace(cfg, mask_rate=0.4), special, rng)


def never_applied(windows, cfg, special, rng):
    """The selected are scored, but shown as they are."""
    batch = clean(windows, cfg, special, rng)
    return batch._replace(idx=F.pad(windows, (1, 0), value=special["CLS"]))


def visible(windows, cfg, special, rng):
    """Scored are the characters that were not selected."""
    batch = clean(windows, cfg, special, rng)
    text = F.pad(windows, (1, 0), value=mlm.IGNORE)
    return batch._replace(targets=text.where(batch.targets == mlm.IGNORE, mlm.IGNORE))


def loss_on(model, val_text, cfg, special, batch_fn):
    """Loss on the whole validation split under another corruption."""
    mlm.make_batch = batch_fn  # evaluate looks it up there
    try:
        return mlm.evaluate(model, val_text, cfg, special)["val_loss"]
    finally:
        mlm.make_batch = clean


def measure(seed, out):
    """-> {label: metrics}"""
    tokenizer, train_text, val_text, corpus = common.load_data(
        "tiny_shakespeare", mlm.SPECIALS, 128
    )
    results, special = {}, tokenizer.special
    for label, batch_fn in {
        "80/10/10": clean,
        "MASK only": mask_only,
        "rate 0.4": rate_040,
        "never applied": never_applied,
    }.items():
        cfg = mlm.Config(seed=seed, out=out, **SETTINGS)
        torch.manual_seed(seed)
        model = mlm.build_model(cfg, tokenizer.vocab_size)
        log = common.Log(cfg, model, tokenizer, corpus)
        mlm.train(model, train_text, val_text, cfg, special, log, batch_fn=batch_fn)
        metrics = mlm.evaluate(model, val_text, cfg, special)
        for name, judge in (("mask_only", mask_only), ("visible", visible)):
            metrics[name] = loss_on(model, val_text, cfg, special, judge)
        results[label] = log.finish(metrics)
    return results
