"""Keys of the cross-attention one place late, as in bart.py, against keys in their own place.

Late, a character that was written finds what follows it in the inputs from the first step on; in
place it finds itself, and the encoder must learn to tell it what follows.
"""

import torch.nn.functional as F

import bart
from tests.experiments.table import SHORT


def in_place(x, pad, *args, **more):
    """F.pad, but for the shift of the keys."""
    return x if pad == (0, 0, 1, -1) else F.pad(x, pad, *args, **more)


class Functional:
    """torch.nn.functional with another pad, so that nothing outside bart.py changes."""

    pad = staticmethod(in_place)

    def __getattr__(self, name):
        return getattr(F, name)


def measure(seed, out, flags=SHORT):
    """-> {label: metrics}"""
    results = {}
    for label, functional in {"late": F, "in place": Functional()}.items():
        bart.F = functional
        try:
            results[label] = bart.main(
                [*flags.split(), "--seed", str(seed), "--out", f"{out}/{label.replace(' ', '-')}"]
            )
        finally:
            bart.F = F
    return results
