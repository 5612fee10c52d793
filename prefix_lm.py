"""Prefix language modelling: read a beginning both ways, write the rest from left to right.

Objective
    L = -(1/N) * sum over t >= P - 1 of log p(targets[t] | idx[<= t], idx[< P]),
    targets[t] = idx[t + 1], P the length of the prefix, drawn per row

Expect (nats per suffix character, tiny_shakespeare; the entropies are properties of the text)
    4.174   ln 65: step 0, a uniform guess
    3.313   unigram entropy: knows how frequent each character is
    2.453   bigram entropy: also knows the previous character
    1.65    default run, on the whole validation split; 1.70 the first character; 3 seeds
    Behind clm.py, 1.59, which scores twice as many positions per step. To what follows, the prefix
    is worth as much read from left to right: the causal mask costs the trained model nothing.

Source
    Raffel et al. 2019, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
    Transformer", section 3.2.1 for the mask, 3.2.3 for the random split.

Run
    python prefix_lm.py                             # train a few minutes, then continue a prefix
    python prefix_lm.py --show                      # one example, the mask, what is scored
    python prefix_lm.py --pitfall score-prefix      # broken on purpose: what does the loss do?
    python prefix_lm.py --load runs/prefix_lm/ckpt.pt --prompt "ROMEO:"
"""
# -------------------------------------------------------- 1 imports and constants
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F

import common

IGNORE = -100               # the target of a position that is not scored
SPECIALS = ()               # tokens that are not characters; their ids come after the characters
KINDS = ("first", "rest")   # of the suffix; what a scored target can be: losses by kind
CODE_LENGTH = None          # no loss here spells a whole text: no perplexity, no bits


# -------------------------------------------------------- 2 config
@dataclass
class Config:
    steps: int = 560            # optimizer steps
    batch_size: int = 24        # rows per step
    seq_len: int = 128          # positions per row
    d_model: int = 128          # width
    n_layer: int = 4            # blocks
    n_head: int = 2             # attention heads per block
    lr: float = 0.05            # peak rate of Muon; AdamW runs at a fifth of it
    eval_every: int = 70        # steps between evaluations
    seed: int = 0               # of the weights, the windows and the corruption
    device: str = "auto"        # auto, cuda, mps or cpu
    data: str = "tiny_shakespeare"  # or pydoc, stdlib, the path of a text file
    out: str = "runs/<script>"  # folder for log.csv, result.json and ckpt.pt
    load: str = ""              # a checkpoint: no training, only evaluation and read-out
    prompt: str = ""            # start of the read-out
    temperature: float = 0.8    # of sampling; 0: always the likeliest character
    show: bool = False          # print one example and its mask, then stop
    pitfall: str = ""           # a deliberate mistake of section 9


# -------------------------------------------------------- 3 transform: what is corrupted?
class Batch(NamedTuple):
    """One training batch."""
    idx: torch.Tensor       # (B, T) long  what the model reads
    targets: torch.Tensor   # (B, T) long  what it must predict; IGNORE where nothing is scored
    kind: torch.Tensor      # (B, T) long  index into KINDS, for the report only
    mask: torch.Tensor      # (T, T) or (B, 1, T, T) bool  who may attend to whom, True = may


def raw_len(cfg):
    """Characters per window before the transform: the last one is a target only."""
    return cfg.seq_len + 1


def draw_prefix_len(n_rows, T, rng):
    """Draw the length of each row's prefix, uniform in 1..T.  -> (n_rows,) long"""
    return torch.randint(1, T + 1, (n_rows,), generator=rng)


def make_batch(windows, cfg, special, rng):
    """Hide nothing: the same shift as in a causal model, and a prefix length for each row.

    (B, T + 1) -> Batch
    """
    idx, targets = windows[:, :-1], windows[:, 1:]      # the shift: here and nowhere else
    prefix_len = draw_prefix_len(*idx.shape, rng)       # (B,)
    # the first suffix character is predicted by a position of the prefix: reported apart
    rest = torch.arange(idx.shape[1]) >= prefix_len[:, None]            # (B, T)
    return Batch(idx, score_suffix(targets, prefix_len), rest.long(),
                 prefix_mask(prefix_len, idx.shape[1]))


# -------------------------------------------------------- 4 mask: who may attend to whom?
def prefix_mask(prefix_len, T):
    """Position i sees positions 0..i, and the prefix as a whole.

    (B,) -> (B, 1, T, T) bool, rows are queries; (B, T, T) would be read per head where B == H

    Lengths 0 and 1 give the causal mask, T lets everyone see everyone.
    Raises ValueError for a length below 0 or above T.
    """
    if (prefix_len < 0).any() or (prefix_len > T).any():
        raise ValueError(f"prefix lengths {prefix_len.tolist()}: must be within 0..{T}")
    j = torch.arange(T, device=prefix_len.device)
    causal = j <= j[:, None]                            # (T, T)
    in_prefix = j < prefix_len[:, None, None, None]     # (B, 1, 1, T) keys
    return causal | in_prefix


# -------------------------------------------------------- 5 loss: which positions are scored?
def token_nll(logits, targets):
    """Negative log-likelihood of each target in nats, 0 where it is IGNORE.

    (B, T, V), (B, T) -> (B, T)
    """
    nll = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none",
                          ignore_index=IGNORE)
    return nll.view(targets.shape)


def mean_nll(nll, targets):
    """Total nats over total targets: rows and batches weigh by what they score."""
    return nll.sum() / (targets != IGNORE).sum().clamp(min=1)


def score_suffix(targets, prefix_len):
    """Drop the targets that lie within the prefix: they can be read, not only predicted.

    (B, T), (B,) -> (B, T), T - max(P, 1) + 1 of them scored in a row of prefix length P
    """
    # - 1: the last position of the prefix is the one that predicts the first suffix character
    suffix = torch.arange(targets.shape[1], device=targets.device) >= prefix_len[:, None] - 1
    return targets.where(suffix, IGNORE)


def loss_fn(model, batch, cfg):
    """Score the suffix.  -> loss to minimise, nll (B, T) to report"""
    nll = token_nll(model(batch.idx, batch.mask), batch.targets)
    return mean_nll(nll, batch.targets), nll


# -------------------------------------------------------- 6 model
def norm(x):
    """RMSNorm without parameters."""
    return F.rms_norm(x, (x.shape[-1],))


def rotate(x):
    """Rotary positions (Su et al. 2021, section 3.4.2): turn feature pairs by position.

    (B, H, T, K) -> same
    """
    T, K = x.shape[-2:]
    freq = 10000 ** (-torch.arange(0, K, 2, device=x.device) / K)       # (K/2,)
    angle = torch.arange(T, device=x.device)[:, None] * freq            # (T, K/2)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class SelfAttention(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        self.n_head = n_head
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)
        nn.init.zeros_(self.out.weight)     # every block starts as the identity

    def forward(self, x, attn_mask):
        B, T, D = x.shape
        qkv = self.qkv(x).view(B, T, 3, self.n_head, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)    # (B, H, T, K) each
        # queries and keys of one length keep the attention logits bounded at any learning rate
        q, k = rotate(norm(q)), rotate(norm(k))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        return self.out(y.transpose(1, 2).reshape(B, T, D))


class MLP(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.up = nn.Linear(d_model, 4 * d_model, bias=False)
        self.down = nn.Linear(4 * d_model, d_model, bias=False)
        nn.init.zeros_(self.down.weight)

    def forward(self, x):
        return self.down(F.relu(self.up(x)).square())


class Block(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        self.attn = SelfAttention(d_model, n_head)
        self.mlp = MLP(d_model)

    def forward(self, x, attn_mask):
        x = x + self.attn(norm(x), attn_mask)
        return x + self.mlp(norm(x))


class LM(nn.Module):
    """idx (B, T), attn_mask (T, T) or (B, 1, T, T) -> logits (B, T, V)"""

    def __init__(self, cfg, vocab_size):
        super().__init__()
        self.emb = nn.Embedding(vocab_size, cfg.d_model)
        self.blocks = nn.ModuleList(Block(cfg.d_model, cfg.n_head) for _ in range(cfg.n_layer))
        self.head = nn.Linear(cfg.d_model, vocab_size, bias=False)
        # not tied to the embedding, and zero: all logits are 0, so that step 0 costs ln V exactly
        nn.init.zeros_(self.head.weight)

    def hidden(self, idx, attn_mask):
        x = norm(self.emb(idx))                 # (B, T, D)
        for block in self.blocks:
            x = block(x, attn_mask)
        return norm(x)

    def forward(self, idx, attn_mask):
        return self.head(self.hidden(idx, attn_mask))


def build_model(cfg, vocab_size):
    """The network of this objective."""
    return LM(cfg, vocab_size)


# -------------------------------------------------------- 7 train
def draw_windows(text, batch_size, length, rng):
    """Draw rows of consecutive ids, each from anywhere in the text.

    (n,) -> (batch_size, length)
    """
    # + 1: randint excludes its bound, and the last window that fits starts at n - length
    start = torch.randint(len(text) - length + 1, (batch_size, 1), generator=rng)
    return text[start + torch.arange(length)]


def make_optimizers(model, cfg):
    """Muon (Jordan et al. 2024) for the matrices in the blocks, AdamW for embedding and head."""
    named = list(model.named_parameters())
    rest = [p for name, p in named if "emb" in name or "head" in name]
    matrices = [p for name, p in named if "emb" not in name and "head" not in name]
    return [torch.optim.Muon(matrices, lr=cfg.lr, weight_decay=0.0),
            torch.optim.AdamW(rest, lr=cfg.lr / 5, betas=(0.9, 0.95), weight_decay=0.0)]


def lr_factor(step, steps):
    """Linear warm-up over 2 % of the run, linear decay to zero; a run of one step still learns."""
    warmup = max(1, steps // 50)
    return min((step + 1) / warmup, (steps - step) / steps)


@torch.no_grad()
def evaluate(model, text, cfg, special, max_rows=None):
    """Mean loss over the targets, all and by kind; the same windows and corruption every time.

    max_rows: only so many windows, spread over the text
    """
    device = next(model.parameters()).device
    rng = torch.Generator().manual_seed(1)      # its own: evaluating must not change the training
    rows = text[: len(text) // raw_len(cfg) * raw_len(cfg)].view(-1, raw_len(cfg))
    rows = rows[:: max(1, len(rows) // (max_rows or len(rows)))][:max_rows]
    # float64: single precision loses the fourth decimal over so many terms
    nats, count = torch.zeros(2, len(KINDS), dtype=torch.float64)
    for windows in rows.split(64):
        batch = Batch(*(part.to(device) for part in make_batch(windows, cfg, special, rng)))
        _, nll = loss_fn(model, batch, cfg)
        nll, kind = (part[batch.targets != IGNORE].cpu() for part in (nll, batch.kind))
        nats += torch.bincount(kind, nll.double(), len(KINDS))
        count += torch.bincount(kind, minlength=len(KINDS))
    metrics = {"val_loss": (nats.sum() / count.sum()).item()}
    if len(KINDS) > 1:
        means = (nats / count).tolist()
        metrics |= {f"val_loss_{k}": mean for k, mean in zip(KINDS, means) if mean == mean}
    if CODE_LENGTH in metrics:
        loss = metrics[CODE_LENGTH]
        # 700: beyond it exp leaves the range of a float
        metrics |= {"val_ppl": math.exp(min(loss, 700)), "val_bpc": loss / math.log(2)}
    return metrics


def train(model, train_text, val_text, cfg, special, log, draw=draw_windows, batch_fn=make_batch):
    """Train for cfg.steps, evaluate every cfg.eval_every.

    draw, batch_fn: as here, or a pitfall in their place
    """
    device = next(model.parameters()).device
    rng, noise = (torch.Generator().manual_seed(cfg.seed + stream) for stream in (0, 10**6))
    optimizers = make_optimizers(model, cfg)
    peaks = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    for step in range(cfg.steps + 1):
        if step % cfg.eval_every == 0 or step == cfg.steps:
            log.row(step, evaluate(model, val_text, cfg, special, max_rows=100))
        if step == cfg.steps:
            break
        rates = [peak * lr_factor(step, cfg.steps) for peak in peaks]
        for optimizer, rate in zip(optimizers, rates):
            optimizer.param_groups[0]["lr"] = rate
        windows = draw(train_text, cfg.batch_size, raw_len(cfg), rng)
        batch = Batch(*(part.to(device) for part in batch_fn(windows, cfg, special, noise)))
        loss, nll = loss_fn(model, batch, cfg)
        loss.backward()
        grad_norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if log.usable(loss.item(), grad_norm.item()):
            with common.Float32Muon():
                for optimizer in optimizers:
                    optimizer.step()
        model.zero_grad(set_to_none=True)
        log.step(mean_nll(nll, batch.targets).item(), rates[0], batch.idx.numel())


# -------------------------------------------------------- 8 sample: what is it good for?
def read_prompt(tokenizer, val_text, cfg):
    """The prefix to continue: the prompt, or validation text.  -> (n,) long. Raises Refusal."""
    text = common.unify_newlines(cfg.prompt)
    return tokenizer.encode(text) if text else val_text[: (cfg.seq_len + 1) // 2]


@torch.no_grad()
def sample(model, ids, n, seq_len, temperature, rng, top_k=0):
    """Continue ids by n characters, one at a time, seeing the last seq_len.  (t,) -> (t + n,)

    ids as given are the prefix, read both ways; what is written sees it and what came before.
    temperature: 0 takes the likeliest.  top_k: draw from that many likeliest; 0 or above V: all.
    Raises ValueError if either is negative.
    """
    if temperature < 0 or top_k < 0:
        raise ValueError(f"temperature {temperature}, top_k {top_k}: neither may be negative")
    end = len(ids)                              # of the prefix
    for _ in range(n):
        idx = ids[None, -seq_len:]              # positions are relative: a crop is harmless
        # differs from clm.py: the prefix mask, for what the crop leaves of the prefix
        left = torch.tensor([max(0, end - (len(ids) - idx.shape[1]))], device=idx.device)
        logits = model(idx, prefix_mask(left, idx.shape[1]))[0, -1].cpu()       # (V,)
        if 0 < top_k < len(logits):
            logits[logits < logits.topk(top_k).values[-1]] = -math.inf
        if temperature == 0:
            new = logits.argmax(keepdim=True)
        else:
            new = (logits / temperature).softmax(-1).multinomial(1, generator=rng)
        ids = torch.cat([ids, new.to(ids.device)])
    return ids


def show_off(model, tokenizer, prompt, val_text, cfg):
    """Continue the prefix by 300 characters.  -> metrics to add: none"""
    if len(prompt) > cfg.seq_len:
        common.say(f"the prompt has {len(prompt)} characters, the model sees {cfg.seq_len}")
    ids = prompt.to(next(model.parameters()).device)
    rng = torch.Generator().manual_seed(cfg.seed)
    text = tokenizer.decode(sample(model, ids, 300, cfg.seq_len, cfg.temperature, rng))
    common.say(f"the prefix:\n{text[: len(ids)]}\n\ncontinued:\n{text[len(ids) :]}")
    return {}


# -------------------------------------------------------- 9 pitfalls: broken on purpose
def score_prefix(windows, cfg, special, rng):
    """Prefix scored too. Looks half as high: of T targets, P - 1 can be copied."""
    batch = make_batch(windows, cfg, special, rng)
    return batch._replace(targets=windows[:, 1:])


def late_start(windows, cfg, special, rng):
    """Scored from P, not P - 1. No loss tells: other rows teach what this one leaves out."""
    batch = make_batch(windows, cfg, special, rng)
    return batch._replace(targets=batch.targets.where(batch.kind == KINDS.index("rest"), IGNORE))


PITFALLS = {"score-prefix": {"batch_fn": score_prefix}, "late-start": {"batch_fn": late_start}}


# -------------------------------------------------------- 10 main
def main(argv=None):
    """Read the flags, then show, load or train.  -> the content of result.json"""
    cfg = common.cli(Config, __doc__, argv, PITFALLS)
    torch.manual_seed(cfg.seed)
    device = common.pick_device(cfg.device)
    tokenizer, train_text, val_text, corpus = common.load_data(cfg.data, SPECIALS, raw_len(cfg))
    prompt = read_prompt(tokenizer, val_text, cfg)      # refused now, not after the training
    broken = PITFALLS.get(cfg.pitfall, {})
    for function in broken.values():
        common.say(f"pitfall {cfg.pitfall}: {function.__doc__}")
    if cfg.show:
        windows, batch_fn = val_text[None, : raw_len(cfg)], broken.get("batch_fn", make_batch)
        batch = batch_fn(windows, cfg, tokenizer.special, torch.Generator().manual_seed(cfg.seed))
        common.show(windows, batch, tokenizer)
        return {}
    model = build_model(cfg, tokenizer.vocab_size).to(device)
    log = common.Log(cfg, model, tokenizer, corpus)
    if cfg.load:
        common.load(cfg.load, model, tokenizer, cfg)
    else:
        with log.training():
            train(model, train_text, val_text, cfg, tokenizer.special, log, **broken)
    metrics = evaluate(model, val_text, cfg, tokenizer.special)
    metrics |= show_off(model, tokenizer, prompt, val_text, cfg)
    return log.finish(metrics)


if __name__ == "__main__":
    common.run(main)
