"""The king prompt after 3000 steps at a rate of 0.3: both orders, and other suffixes beside ".".

The same seed fills every gap: a fill that stays when the suffix changes did not look at it.
"""

import torch

import common
import fim

FLAGS = "--fim-rate 0.3 --spm-rate 0.5 --steps 3000 --eval-every 300".split()
LEFT, RIGHTS = "the king is ", (".", " of France.", "\n\nKING")


def measure(seed, out):
    """-> {label: metrics}; changed: share of the other suffixes that change the greedy fill"""
    where = ["--seed", str(seed), "--out", out]
    result = fim.main([*FLAGS, *where, "--prompt", f"<PRE>{LEFT}<SUF>."])
    cfg = fim.Config(temperature=0.0)
    tokenizer, _, val_text, _ = common.load_data(cfg.data, fim.SPECIALS, 129)
    model = fim.build_model(cfg, tokenizer.vocab_size)
    common.load(f"{out}/ckpt.pt", model, tokenizer, cfg)
    fills = {}
    for order in ("PSM", "SPM"):
        for right in RIGHTS:
            sides = (tokenizer.encode(side) for side in (LEFT, right))
            prompt = fim.fim_prompt(*sides, tokenizer.special, order)
            middle, ended = fim.infill(model, prompt, tokenizer.special, cfg, torch.Generator())
            fills[order, right] = tokenizer.decode(middle)
            common.say(f"{order} {LEFT}[{fills[order, right]}]{right!r} ended: {ended}")
    changed = [fills[order, right] != fills[order, "."] for order, right in fills if right != "."]
    return {"both orders": result | {"changed": sum(changed) / len(changed)}}
