"""MTP at the steps of clm.py's default run, and at as many as fit into its training time.

A step costs more by the extra block: how much is measured here, steps of both in turns, the least
time of each. The row of clm.py itself is the experiment clm, with the same seeds.

Greedy text runs in circles, which are easy to draft: agreement is the share of positions of true
validation text at which depth 1 and the main model find the same character the likeliest.
"""

import torch

import clm
import common
import mtp
from tests.experiments.default_time import in_turns


@torch.no_grad()
def agreement(result, folder, rows=200):
    """-> {"agreement": share} of the checkpoint that a run of mtp.py wrote"""
    cfg = mtp.Config(**result["config"])
    tokenizer, _, val_text, _ = common.load_data(cfg.data, mtp.SPECIALS, mtp.raw_len(cfg))
    model = mtp.build_model(cfg, tokenizer.vocab_size)
    common.load(f"{folder}/ckpt.pt", model, tokenizer, cfg)
    idx = val_text[: rows * cfg.seq_len].view(-1, cfg.seq_len)
    main, depth1, *_ = model.depths(idx, mtp.attention_mask(cfg.seq_len))
    return {"agreement": (main[:, 1:].argmax(-1) == depth1.argmax(-1)).double().mean().item()}


def measure(seed, out, steps=clm.Config.steps):
    """-> {label: metrics}"""
    times = in_turns({"clm": {}, "mtp": {}}, seed)
    share, results = min(times["clm"]) / min(times["mtp"]), {}
    for label, n in (("equal steps", steps), ("equal time", max(1, round(share * steps)))):
        folder = f"{out}/{label.replace(' ', '-')}"
        flags = ["--steps", str(n), "--eval-every", str(max(1, n // 8)), "--seed", str(seed)]
        result = mtp.main([*flags, "--out", folder])
        results[label] = result | agreement(result, folder) | {"step_ratio": 1 / share}
    return results
