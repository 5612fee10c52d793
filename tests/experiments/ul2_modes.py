"""Modes: what does a denoiser cost when asked for by a wrong mode token? And is the text read?

One model per seed. Each label names the token that stands in front of every row. Beside it, the
characters that R3-15 cuts, without sentinels and EOS: with the text they were cut from, and with
that of another row. Where the two are equal, nothing of the text is used.
"""

import torch

import common
import ul2
from ul2 import IGNORE, MODES

FLAGS = "--steps 300 --batch-size 8 --eval-every 100"
clean = ul2.make_batch


def asked(model, val_text, cfg, special, mode):
    """Validation loss by denoiser with this mode token in front of every row."""

    def wrong(*args):
        batch = clean(*args)
        idx = batch.idx.clone()
        idx[:, 0] = special[mode]
        return batch._replace(idx=idx)

    ul2.make_batch = wrong  # evaluate looks it up there
    try:
        return ul2.evaluate(model, val_text, cfg, special)
    finally:
        ul2.make_batch = clean


@torch.no_grad()
def content(model, val_text, seq_len, special, inputs="own", name="R3-15"):
    """Nats per cut character of a span denoiser, sentinels and EOS left out.

    inputs: own, or other: those of the row before; all rows have gaps of equal number
    """
    cfg = ul2.Config(seq_len=seq_len, mix=name)
    length = ul2.raw_len(cfg)
    windows = val_text[: len(val_text) // length * length].view(-1, length)
    nats = count = 0
    rng = torch.Generator().manual_seed(1)
    for rows in windows.split(64):
        batch = clean(rows, cfg, special, rng)
        P = int((batch.targets[0] != IGNORE).float().argmax()) + 1
        idx = batch.idx.clone()
        if inputs == "other":
            idx[:, :P] = idx[:, :P].roll(1, 0)
        nll = ul2.token_nll(model(idx, batch.mask), batch.targets)
        cut = (batch.targets >= 0) & (batch.targets < min(special.values()))
        nats, count = nats + nll[cut].double().sum().item(), count + int(cut.sum())
    return nats / count


def trained(flags, seed, out):
    """-> result, model, validation text, settings, specials"""
    result = ul2.main([*flags.split(), "--seed", str(seed), "--out", out])
    cfg = ul2.Config(**result["config"])
    tokenizer, _, val_text, _ = common.load_data(cfg.data, ul2.SPECIALS, ul2.raw_len(cfg))
    model = ul2.build_model(cfg, tokenizer.vocab_size)
    common.load(f"{out}/ckpt.pt", model, tokenizer, cfg)
    return result, model, val_text, cfg, tokenizer.special


def measure(seed, out):
    """-> {label: metrics}"""
    result, model, val_text, cfg, special = trained(FLAGS, seed, out)
    results = {mode: result | asked(model, val_text, cfg, special, mode) for mode in MODES}
    for inputs in ("own", "other"):
        loss = content(model, val_text, cfg.seq_len, special, inputs)
        results[f"R3-15, {inputs} inputs"] = {"content": loss}
    return results
