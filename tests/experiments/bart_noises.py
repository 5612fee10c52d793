"""Every noise of bart.py: what restoring costs, and how much of the target is plain copying.

share_<kind>: of all targets of the validation split, by kind. copied: in the inputs, right behind
the character before it; resumed: in the inputs, elsewhere; restored: not in the inputs.
"""

import torch

import bart
import common
from tests.experiments.table import SHORT

NOISES = (*bart.NOISES, "permute+infill")


def shares(val_text, cfg, special):
    """-> {share_<kind>: share}"""
    windows = val_text[: len(val_text) // bart.raw_len(cfg) * bart.raw_len(cfg)]
    windows = windows.view(-1, bart.raw_len(cfg))
    kind = bart.make_batch(windows, cfg, special, torch.Generator().manual_seed(1)).kind
    counts = torch.bincount(kind.flatten(), minlength=len(bart.KINDS)) / kind.numel()
    return {f"share_{name}": share for name, share in zip(bart.KINDS, counts.tolist())}


def measure(seed, out, flags=SHORT):
    """-> {noise: metrics}"""
    results = {}
    for noise in NOISES:
        result = bart.main(
            [*flags.split(), "--noise", noise, "--seed", str(seed), "--out", f"{out}/{noise}"]
        )
        cfg = bart.Config(**result["config"])
        tokenizer, _, val_text, _ = common.load_data(cfg.data, bart.SPECIALS, bart.raw_len(cfg))
        results[noise] = result | shares(val_text, cfg, tokenizer.special)
    return results
