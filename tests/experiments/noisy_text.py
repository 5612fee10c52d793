"""Noise in the text: does it weigh more when a model goes on than when it starts anew?

1 %, 5 % and 20 % of the domain's training characters become others at random, each of the domain's
characters equally likely, as bad OCR would have it. The validation text stays clean. penalty is the
loss on it, less that of the same training on the clean text.
"""

import copy

import torch

import continued_pretrain as cpt
from tests.experiments.rewarming import prepare


def misread(ids, rate, rng):
    """Replace that share of the characters.  (n,) -> (n,)"""
    characters = ids.unique()
    other = characters[torch.randint(len(characters), ids.shape, generator=rng)]
    return other.where(torch.rand(ids.shape, generator=rng) < rate, ids)


def measure(seed, out):
    """-> {label: metrics}"""
    cfg, tokenizer, texts, grown, about = prepare(seed, out)
    val_texts, results, clean = (texts.general_val, texts.domain_val), {}, {}
    for rate in (0, 0.01, 0.05, 0.2):
        noisy = misread(texts.domain, rate, torch.Generator().manual_seed(seed))
        for kind in ("continued", "scratch"):
            torch.manual_seed(seed)
            model = cpt.build_model(cfg, tokenizer.vocab_size)
            model = copy.deepcopy(grown) if kind == "continued" else model
            name = f"{kind}, {rate:.0%}"
            result = cpt.run(name, model, noisy, val_texts, cfg, tokenizer, about)
            loss = result["val_loss_domain"]
            results[name] = result | {"penalty": loss - clean.setdefault(kind, loss)}
    return results
