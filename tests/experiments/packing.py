"""Packing: speeches one behind the other in a window. Does it matter that they see each other?

The text is split at blank lines, the speeches are shuffled and closed by <EOT>. With the causal
mask a speech may look at the strangers before it in the window; with document_mask it may not. The
first character of a speech is predicted at the EOT before it, which belongs to the speech it ends.
"""

import torch

import clm
import common

SETTINGS = dict(steps=200, batch_size=8, eval_every=100)


def pack(tokenizer, ids, rng):
    """Shuffle the speeches of a text and join them.  (n,) -> (m,)"""
    speeches = tokenizer.decode(ids).split("\n\n")
    eot = torch.tensor([tokenizer.special["EOT"]])
    order = torch.randperm(len(speeches), generator=rng).tolist()
    return torch.cat([part for i in order for part in (tokenizer.encode(speeches[i]), eot)])


def measure(seed, out):
    """-> {label: metrics} of both masks on the same texts."""
    tokenizer, *splits = common.load_data("tiny_shakespeare", ("EOT",), 129)[:3]
    train_text, val_text = (
        pack(tokenizer, ids, torch.Generator().manual_seed(seed)) for ids in splits
    )
    clean, results = clm.make_batch, {}

    def isolated(windows, cfg, special, rng):
        batch = clean(windows, cfg, special, rng)
        return batch._replace(mask=clm.document_mask(batch.idx, special["EOT"]))

    for label, batch_fn in (("causal mask", clean), ("document mask", isolated)):
        clm.make_batch = batch_fn  # evaluate looks it up there
        cfg = clm.Config(seed=seed, out=out, **SETTINGS)
        torch.manual_seed(seed)
        model = clm.build_model(cfg, tokenizer.vocab_size)
        log = common.Log(cfg, model, tokenizer, {"corpus": "speeches", "corpus_sha256": ""})
        clm.train(model, train_text, val_text, cfg, tokenizer.special, log, batch_fn=batch_fn)
        results[label] = log.finish(clm.evaluate(model, val_text, cfg, tokenizer.special))
    clm.make_batch = clean
    return results
