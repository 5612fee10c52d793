"""Re-warming: what does the first rate of a second training do to the loss?

One base goes on for 100 steps, with the full rate from the first step on, and with warm-ups of 2 %
and 10 %: on the domain, and on its own text, where nothing but the rate is new. Both losses are
read after every step: peak is the highest general loss of the first 20 steps, over that before.
"""

import copy
from dataclasses import replace

import torch

import common
import continued_pretrain as cpt

SETTINGS = dict(steps=100, batch_size=8, eval_every=100)


def prepare(seed, out):
    """Train a base.  -> Config, tokenizer of both texts, Texts, grown model, about the domain"""
    cfg = cpt.Config(seed=seed, out=out, **SETTINGS)
    length = cpt.raw_len(cfg)
    base_ids, *general, corpus = common.load_data(cfg.data, cpt.SPECIALS, length)
    own, *domain, about = common.load_data(cfg.domain, cpt.SPECIALS, length)
    tokenizer, texts = cpt.join_texts(base_ids, general, own, domain, cfg.domain)
    torch.manual_seed(seed)
    model = cpt.build_model(cfg, base_ids.vocab_size)
    longer = replace(cfg, steps=3 * cfg.steps)
    cpt.run("base", model, texts.general, texts[1:2], longer, base_ids, corpus)
    rarest = torch.bincount(texts.general, minlength=base_ids.vocab_size).argmin()
    return cfg, tokenizer, texts, cpt.grow(model, cfg, tokenizer.vocab_size, rarest), about


def measure(seed, out):
    """-> {label: metrics}"""
    cfg, tokenizer, texts, grown, about = prepare(seed, out)
    cfg, clean, results = replace(cfg, eval_every=1), cpt.lr_factor, {}
    val_texts = (texts.general_val, texts.domain_val)
    for share, text in ((0, "domain"), (1, "own text")):
        for warmup in (0, 0.02, 0.1):
            long = max(1, int(warmup * cfg.steps))  # of one step: the full rate at once

            def schedule(step, steps):
                return min((step + 1) / long, (steps - step) / steps)

            cpt.lr_factor = schedule  # train looks it up there
            model, rows = copy.deepcopy(grown), cpt.join_rows(val_texts, cfg, 20)
            log = common.Log(cfg, model, tokenizer, about)
            try:
                draw = cpt.mix(texts.general, share, cpt.draw_windows)
                cpt.train(model, texts.domain, rows, cfg, {}, log, draw=draw)
            finally:
                cpt.lr_factor = clean
            general = [row["val_loss_general"] for row in log.rows]
            peak = max(general[:21])
            metrics = cpt.evaluate(model, cpt.join_rows(val_texts, cfg), cfg, {})
            metrics |= {"peak": peak - general[0], "peak_step": general.index(peak)}
            metrics["first_step"] = general[1] - general[0]
            results[f"{text}, {warmup:.0%}"] = log.finish(metrics)
    return results
