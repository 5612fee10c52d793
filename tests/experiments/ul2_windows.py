"""When does ul2.py look up in the text what a gap should say? By window and by steps.

Nats per character that R3-15 cuts, sentinels and EOS left out, with the text that the characters
were cut from and with that of another row: the difference is what reading the text is worth. A step
reads 3072 positions everywhere. A shorter window has fewer gaps: three at 64, six at 128,
eleven at 256.
"""

from tests.experiments.ul2_modes import content, trained

RUNS = {  # label -> flags
    "64": "--seq-len 64 --batch-size 48",
    "128": "--seq-len 128 --batch-size 24",
    "256, default": "",
    "256, 1500 steps": "--steps 1500 --eval-every 150",
}


def measure(seed, out):
    """-> {label: metrics}"""
    results = {}
    for label, flags in RUNS.items():
        result, model, val_text, cfg, special = trained(flags, seed, f"{out}/{label}")
        own, other = (
            content(model, val_text, cfg.seq_len, special, inputs) for inputs in ("own", "other")
        )
        results[label] = result | {"own": own, "other": other, "gain": other - own}
    return results
