"""Speed: time to a loss against nanoGPT's recipe for a CPU, and the share of the machine in use.

The recipe, from nanoGPT's README: 4 layers, 4 heads, width 128, 2000 steps of 12 x 64 characters,
AdamW at 1e-3 with 100 steps of warm-up and cosine decay to 1e-4, weight decay 0.1, clipping at 1,
no dropout. It is rebuilt here: LayerNorm, GELU, learned positions, tied embedding; as many
parameters as clm.py.
"""

import math
import resource
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

import clm
import common


class BaselineBlock(nn.Module):
    """Pre-norm, GELU, attention of 4 heads."""

    def __init__(self, D):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(D, bias=False), nn.LayerNorm(D, bias=False)
        self.qkv, self.out = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.up, self.down = nn.Linear(D, 4 * D, bias=False), nn.Linear(4 * D, D, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Baseline(nn.Module):
    """idx (B, T) -> logits (B, T, V); embedding and head are tied."""

    def __init__(self, vocab_size, T=64, D=128):
        super().__init__()
        self.emb, self.pos = nn.Embedding(vocab_size, D), nn.Embedding(T, D)
        self.blocks, self.norm = (
            nn.Sequential(*(BaselineBlock(D) for _ in range(4))),
            nn.LayerNorm(D, bias=False),
        )
        for name, p in self.named_parameters():
            if p.ndim == 2:
                nn.init.normal_(
                    p, std=0.02 / math.sqrt(8) if "out" in name or "down" in name else 0.02
                )

    def forward(self, idx, attn_mask):
        x = self.emb(idx) + self.pos.weight[: idx.shape[1]]
        return self.norm(self.blocks(x)) @ self.emb.weight.T


def train_baseline(tokenizer, train_text, val_text, steps=2000):
    """-> metrics of the recipe"""
    torch.manual_seed(0)
    model, rng, cfg = (
        Baseline(tokenizer.vocab_size),
        torch.Generator().manual_seed(0),
        clm.Config(seq_len=64),
    )
    matrices = [p for p in model.parameters() if p.ndim == 2]
    optimizer = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": 0.1},
            {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=1e-3,
        betas=(0.9, 0.99),
    )
    begun = time.perf_counter()
    for step in range(steps):
        decay = 0.5 * (1 + math.cos(math.pi * max(0, step - 100) / (steps - 100)))
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (step + 1) / 101 if step < 100 else 1e-4 + decay * 9e-4
        batch = clm.make_batch(clm.draw_windows(train_text, 12, 65, rng), cfg, {}, rng)
        clm.loss_fn(model, batch, cfg)[0].backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    seconds = time.perf_counter() - begun
    return {
        "val_loss": clm.evaluate(model.eval(), val_text, cfg, {})["val_loss"],
        "seconds": seconds,
        "speedup": 1.0,
    }


def product_rate(n=1024, repeats=20):
    """The machine's fp32 matrix products, FLOP/s."""
    a, b = torch.randn(2, n, n)
    a @ b
    begun = time.perf_counter()
    for _ in range(repeats):
        a @ b
    return repeats * 2 * n**3 / (time.perf_counter() - begun)


def measure(seed, out):
    """-> {label: metrics}"""
    tokenizer, train_text, val_text, _ = common.load_data("tiny_shakespeare", (), 129)
    results = {"nanoGPT's recipe": train_baseline(tokenizer, train_text, val_text)}
    for label, flags in (("clm, short", SHORT), ("clm, default", "")):
        r = clm.main([*flags.split(), "--out", out])
        rate = product_rate()
        cfg = clm.Config(**r["config"])
        inner = 12 * cfg.n_layer * cfg.d_model**2  # parameters without embedding and head
        per_token = (
            6 * (inner + cfg.d_model * r["vocab_size"])
            + 12 * cfg.n_layer * cfg.seq_len * cfg.d_model
        )
        results[label] = {
            "val_loss": r["val_loss"],
            "seconds": r["train_seconds"],
            "speedup": results["nanoGPT's recipe"]["seconds"] / r["train_seconds"],
        }
        rng, begun = torch.Generator(), time.perf_counter()
        for _ in range(100):
            clm.make_batch(
                clm.draw_windows(train_text, cfg.batch_size, clm.raw_len(cfg), rng), cfg, {}, rng
            )
        batch_share = (time.perf_counter() - begun) / 100 / (r["train_seconds"] / r["steps"])
        results[label] |= {
            "flop_share": per_token * r["tokens_per_s"] / rate,
            "gflops": rate / 1e9,
            "batch_share": batch_share,
            "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        }
    return results


SHORT = "--seq-len 64 --d-model 96 --n-layer 3 --steps 240 --eval-every 240"
