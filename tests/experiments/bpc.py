"""Perplexity or bits per character? One text, read as characters and as pairs of characters.

Both models see the same stretches of text: 128 characters, or the 64 pairs that they make. A pair
is one id; those that occur anywhere in the text are the vocabulary, as with characters.
"""

import math

import torch

import clm
import common

SETTINGS = dict(steps=200, batch_size=8, eval_every=100)


def pair_up(ids):
    """Read consecutive characters as one id.  (n,) -> (n // 2,), numbers as they come"""
    return ids[: len(ids) // 2 * 2].view(-1, 2) @ torch.tensor([1000, 1])


def measure(seed, out):
    """-> {label: metrics}"""
    tokenizer, *splits = common.load_data("tiny_shakespeare", (), 129)[:3]
    vocabulary, numbered = torch.cat([pair_up(ids) for ids in splits]).unique(return_inverse=True)
    pairs = common.CharTokenizer(map(chr, range(len(vocabulary))))
    half = len(splits[0]) // 2
    runs = {
        "characters": (tokenizer, splits, clm.Config.seq_len, 1),
        "pairs": (pairs, (numbered[:half], numbered[half:]), clm.Config.seq_len // 2, 2),
    }
    results = {}
    for label, (tokenizer, (train_text, val_text), seq_len, characters) in runs.items():
        cfg = clm.Config(seed=seed, out=out, seq_len=seq_len, **SETTINGS)
        torch.manual_seed(seed)
        model = clm.build_model(cfg, tokenizer.vocab_size)
        log = common.Log(cfg, model, tokenizer, {"corpus": label, "corpus_sha256": ""})
        clm.train(model, train_text, val_text, cfg, {}, log)
        metrics = clm.evaluate(model, val_text, cfg, {})
        # its own val_bpc takes an id for a character
        metrics["val_bpc"] = metrics["val_loss"] / characters / math.log(2)
        results[label] = log.finish(metrics)
    return results
