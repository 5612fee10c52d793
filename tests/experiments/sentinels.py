"""Sentinels: one for every gap against one for all. How many gaps does the model restore exactly?

The answers are written greedily for validation windows. The i-th gap counts as restored if the
text between the i-th sentinel of the answer and the next is that of the true targets.
"""

import torch

import common
import t5_span

FLAGS = "--steps 500 --eval-every 100"
WINDOWS = 200


def gaps(ids, tokenizer):
    """The texts behind each sentinel, up to EOS."""
    texts = []
    for i in ids.tolist():
        if i == tokenizer.special["EOS"]:
            break
        if i >= tokenizer.special["S0"]:
            texts.append([])
        elif texts:
            texts[-1].append(i)
    return texts


def restored(model, tokenizer, val_text, cfg):
    """-> restored: share of gaps written exactly; well_formed: of answers with all gaps"""
    windows = val_text[: WINDOWS * t5_span.raw_len(cfg)].view(WINDOWS, -1)
    rng = torch.Generator().manual_seed(1)
    batch = t5_span.make_batch(windows, cfg, tokenizer.special, rng)
    n = 2 * batch.targets.shape[1]
    written = t5_span.write_targets(model, batch.inputs, n, tokenizer.special)
    right = total = formed = 0
    for answer, targets in zip(written, batch.targets):
        mine, true = gaps(answer, tokenizer), gaps(targets, tokenizer)
        right += sum(a == b for a, b in zip(mine, true))
        total, formed = total + len(true), formed + (len(mine) == len(true))
    return {"restored": right / total, "well_formed": formed / WINDOWS}


def measure(seed, out):
    """-> {label: metrics}"""
    results = {}
    for label, more in {"one each": (), "one for all": ("--one-sentinel",)}.items():
        flags = [*FLAGS.split(), *more]
        result = t5_span.main([*flags, "--seed", str(seed), "--out", out])
        cfg = t5_span.Config(**result["config"])
        tokenizer, _, val_text, _ = common.load_data(
            cfg.data, t5_span.SPECIALS, t5_span.raw_len(cfg)
        )
        model = t5_span.build_model(cfg, tokenizer.vocab_size)
        common.load(f"{out}/ckpt.pt", model, tokenizer, cfg)
        results[label] = result | restored(model, tokenizer, val_text, cfg)
    return results
