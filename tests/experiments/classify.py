"""Classify: which of five speakers says this speech? What is pre-training worth, and which one?

Speeches and speakers are those of the validation split, which no pre-training saw; the five
speakers with most speeches, their names removed; 200 speeches to train on, the rest to test. A
linear layer on top, all weights are trained. Pre-trained weights are those of the default runs
(python clm.py, python mlm.py); where one is missing, it is trained first.
"""

from collections import Counter
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

import clm
import common
import mlm

EPOCHS, ROWS, LENGTH, LABELLED = 8, 16, 127, 200
LR, LR_TOP = 1e-3, 1e-2


def speeches(text, n_speakers=5, shortest=32):
    """-> speeches (str), speakers (0 is the most frequent)"""
    blocks = (block.partition(":\n")[::2] for block in text.split("\n\n"))
    found = [(who, said[:LENGTH]) for who, said in blocks if len(said) >= shortest]
    top = [who for who, _ in Counter(who for who, _ in found).most_common(n_speakers)]
    found = [(said, top.index(who)) for who, said in found if who in top]
    return [said for said, _ in found], torch.tensor([who for _, who in found])


class Classifier(nn.Module):
    """idx, real (B, T) -> logits (B, 5), from the output at CLS or the mean over characters"""

    def __init__(self, body, attn_mask, cls, at_cls):
        super().__init__()
        self.body, self.attn_mask, self.cls, self.at_cls = body, attn_mask, cls, at_cls
        self.top = nn.Linear(body.head.in_features, 5)
        nn.init.zeros_(self.top.weight)

    def forward(self, idx, real):
        if self.cls is not None:
            idx, real = F.pad(idx, (1, 0), value=self.cls), F.pad(real, (1, 0), value=True)
        # nobody looks at the padding, which stands behind the speech
        x = self.body.hidden(idx, self.attn_mask(idx.shape[1]) & real[:, None, None, :])
        if self.at_cls:
            return self.top(x[:, 0])
        real = real if self.cls is None else real & (idx != self.cls)
        return self.top((x * real[..., None]).sum(1) / real.sum(1, keepdim=True))


def pad(rows):
    """Rows of ids -> idx, real (B, T)"""
    real = nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], True).bool()
    return nn.utils.rnn.pad_sequence(rows, True), real


def pretrained(script, tokenizer, seed, out):
    """The network of a script's default run."""
    path = common.HERE / "runs" / script.__name__ / "ckpt.pt"
    if not path.exists():
        path = Path(out) / script.__name__ / "ckpt.pt"
        script.main(["--seed", str(seed), "--out", str(path.parent)])
    model = script.build_model(script.Config(), tokenizer.vocab_size)
    common.load(str(path), model, tokenizer, script.Config())
    return model


def accuracy(model, rows, speakers, train, test, rng):
    """Fine-tune on the rows of train.  -> share of test that is right"""
    steps = EPOCHS * -(-len(train) // ROWS)
    groups = [{"params": model.body.parameters()}, {"params": model.top.parameters(), "lr": LR_TOP}]
    optimizer = torch.optim.AdamW(groups, lr=LR, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: clm.lr_factor(i, steps))
    for _ in range(EPOCHS):
        for some in train[torch.randperm(len(train), generator=rng)].split(ROWS):
            loss = F.cross_entropy(model(*pad([rows[i] for i in some])), speakers[some])
            loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    with torch.no_grad():
        guess = model(*pad([rows[i] for i in test])).argmax(-1)
    return (guess == speakers[test]).float().mean().item()


def measure(seed, out):
    """-> {label: {"accuracy": share}}; the seed is that of the split and of the fine-tuning."""
    results = {}
    for script, label, trained, at_cls in (
        (mlm, "from scratch, mean", False, False),
        (mlm, "MLM, at CLS", True, True),
        (mlm, "MLM, mean", True, False),
        (clm, "CLM, mean", True, False),
    ):
        tokenizer, _, val_text, _ = common.load_data("tiny_shakespeare", script.SPECIALS, 129)
        said, speakers = speeches(tokenizer.decode(val_text))
        rows, rng = [tokenizer.encode(speech) for speech in said], torch.Generator()
        train, test = torch.randperm(len(rows), generator=rng.manual_seed(seed)).split(
            [LABELLED, len(rows) - LABELLED]
        )
        torch.manual_seed(seed)
        body = script.build_model(script.Config(), tokenizer.vocab_size)
        body = pretrained(script, tokenizer, seed, out) if trained else body
        model = Classifier(body, script.attention_mask, tokenizer.special.get("CLS"), at_cls)
        share = {"accuracy": accuracy(model, rows, speakers, train, test, rng)}
        results |= {label: share | {"speeches": len(rows)}}
    majority = (speakers[test] == speakers[train].mode().values).float().mean().item()
    return {"majority class": {"accuracy": majority, "speeches": len(rows)}} | results
