"""Label smoothing: what it does to the loss and to the calibration of a character model.

Calibration error (Guo et al. 2017, section 2): predictions fall into 15 bins by confidence; the
mean of |accuracy - confidence| over the bins, weighted by their size. Neither figure is smoothed.
"""

import torch

import clm
import common


@torch.no_grad()
def calibration(model, text, cfg, bins=15):
    """-> calibration_error, confidence, accuracy over all windows of a text"""
    rows = text[: len(text) // clm.raw_len(cfg) * clm.raw_len(cfg)].view(-1, clm.raw_len(cfg))
    confidence, right = [], []
    for windows in rows.split(64):
        batch = clm.make_batch(windows, cfg, {}, None)
        p, guess = model(batch.idx, batch.mask).softmax(-1).max(-1)
        confidence.append(p.flatten().double())
        right.append((guess == batch.targets).flatten().double())
    confidence, right = torch.cat(confidence), torch.cat(right)
    which = (confidence * bins).long().clamp(max=bins - 1)
    gap = torch.zeros(bins, dtype=torch.float64).index_add_(0, which, right - confidence)
    return {
        "calibration_error": (gap.abs().sum() / len(right)).item(),
        "confidence": confidence.mean().item(),
        "accuracy": right.mean().item(),
    }


def measure(seed, out):
    """-> {label: metrics} with and without smoothing."""
    results = {}
    tokenizer, _, val_text, _ = common.load_data("tiny_shakespeare", (), 129)
    for epsilon in ("0", "0.1"):
        flags = [
            "--steps",
            "200",
            "--batch-size",
            "8",
            "--seed",
            str(seed),
            "--out",
            out,
            "--label-smoothing",
            epsilon,
        ]
        result = clm.main(flags)
        cfg = clm.Config()
        model = clm.build_model(cfg, tokenizer.vocab_size)
        common.load(f"{out}/ckpt.pt", model, tokenizer, cfg)
        results[epsilon] = result | calibration(model, val_text, cfg)
    return results
