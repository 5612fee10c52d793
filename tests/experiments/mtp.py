"""MTP beside clm.py: at equal steps, and at the steps that fit into clm.py's training time.

Alone on the machine, since seconds are compared. clm.py's val_loss is called val_loss_main here.

Greedy text runs in circles, which are easy to draft: agreement is the share of positions of true
validation text at which depth 1 and the main model find the same character the likeliest.
"""

import torch

import clm
import common
import mtp


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


def measure(seed, out, steps=clm.Config.steps, flags=()):
    """-> {label: metrics}"""

    def run(script, label, steps):
        folder, every = f"{out}/{label}", str(max(1, steps // 8))
        numbers = ["--steps", str(steps), "--eval-every", every, "--seed", str(seed)]
        result = script.main([*flags, *numbers, "--out", folder])
        more = agreement(result, folder) if script is mtp else {}
        return {"val_loss_main": result["val_loss"], **result, **more}

    theirs = run(clm, "clm", steps)
    equal = run(mtp, "equal-steps", steps)
    share = theirs["train_seconds"] / equal["train_seconds"]
    fewer = run(mtp, "equal-time", max(1, round(share * steps)))
    return {"clm": theirs, "mtp, equal steps": equal, "mtp, equal time": fewer}
