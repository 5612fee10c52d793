"""Causal language modelling (CLM): predict every character from the characters before it.

Objective
    L = -(1/N) * sum over t of log p(targets[t] | idx[<= t]),    targets[t] = idx[t + 1]

Expect (nats per character, tiny_shakespeare; ln V and the entropies are properties of the text)
    4.174   ln 65: step 0, a uniform guess
    3.313   unigram entropy: knows how frequent each character is
    2.453   bigram entropy: also knows the previous character
    1.59    end of the default run, on the whole validation split

Source
    Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training", section 3.1.

Run
    python clm.py                          # train two to three minutes, then write
    python clm.py --show                   # one example, the mask, what is scored; no training
    python clm.py --pitfall no-shift       # broken on purpose: what does the loss do?
    python clm.py --load runs/clm/ckpt.pt --prompt "ROMEO:"
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
KINDS = ("text",)           # what a scored target can be: losses are reported by kind
CODE_LENGTH = "val_loss"    # the loss that spells a whole text: it has a perplexity and bits


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
    # of this objective
    label_smoothing: float = 0.0    # share of the target given to the wrong characters


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


def make_batch(windows, cfg, special, rng):
    """Hide nothing: read a window, predict the same window one character later.

    (B, T + 1) -> Batch
    """
    idx, targets = windows[:, :-1], windows[:, 1:]      # the shift: here and nowhere else
    return Batch(idx, targets, torch.zeros_like(idx), attention_mask(idx.shape[1]))


# -------------------------------------------------------- 4 mask: who may attend to whom?
def attention_mask(T):
    """Position i sees positions 0..i.  -> (T, T) bool, rows are queries."""
    return torch.ones(T, T, dtype=torch.bool).tril()


def document_mask(idx, eot):
    """Causal, and only within a document: for windows of several, each closed by the id eot.

    (B, T) -> (B, 1, T, T) bool

    Rotary positions need no restart at a border: attention depends on i - j alone, and that is
    the same wherever a document stands. Restarting them without this mask isolates nothing.
    """
    is_eot = (idx == eot).long()
    doc = is_eot.cumsum(1) - is_eot                     # (B, T) an EOT belongs to the text it ends
    same = doc[:, :, None] == doc[:, None, :]           # (B, T, T)
    causal = attention_mask(idx.shape[1]).to(idx.device)
    return (same & causal).unsqueeze(1)     # (B, T, T) would be read per head where B == H


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


def smooth_nll(logits, targets, smoothing):
    """token_nll of a soft target: 1 - smoothing for its class, smoothing / (V - 1) for each other.

    (B, T, V), (B, T) -> (B, T)
    """
    V = logits.shape[-1]
    # torch spreads its share over all V classes, the right one included: it takes more of it
    nll = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none",
                          ignore_index=IGNORE, label_smoothing=smoothing * V / (V - 1))
    return nll.view(targets.shape)


def loss_fn(model, batch, cfg):
    """Score every position.  -> loss to minimise, nll (B, T) to report (never smoothed)"""
    logits = model(batch.idx, batch.mask)               # (B, T, V)
    nll = token_nll(logits, batch.targets)
    if not cfg.label_smoothing:
        return mean_nll(nll, batch.targets), nll
    return mean_nll(smooth_nll(logits, batch.targets, cfg.label_smoothing), batch.targets), nll


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
    """The start of the read-out: the prompt, or a line end.  -> (n,) long. Raises Refusal."""
    default = "\n" if "\n" in tokenizer.ids else tokenizer.decode(val_text[:1])
    return tokenizer.encode(common.unify_newlines(cfg.prompt) or default)


@torch.no_grad()
def sample(model, ids, n, seq_len, temperature, rng, top_k=0):
    """Continue ids by n characters, one at a time, seeing the last seq_len.  (t,) -> (t + n,)

    temperature: 0 takes the likeliest.  top_k: draw from that many likeliest; 0 or above V: all.
    Raises ValueError if either is negative.
    """
    if temperature < 0 or top_k < 0:
        raise ValueError(f"temperature {temperature}, top_k {top_k}: neither may be negative")
    for _ in range(n):
        idx = ids[None, -seq_len:]              # positions are relative: a crop is harmless
        logits = model(idx, attention_mask(idx.shape[1]).to(idx.device))[0, -1].cpu()       # (V,)
        if 0 < top_k < len(logits):
            logits[logits < logits.topk(top_k).values[-1]] = -math.inf
        if temperature == 0:
            new = logits.argmax(keepdim=True)
        else:
            new = (logits / temperature).softmax(-1).multinomial(1, generator=rng)
        ids = torch.cat([ids, new.to(ids.device)])
    return ids


def show_off(model, tokenizer, prompt, val_text, cfg):
    """Continue the prompt by 300 characters.  -> metrics to add: none"""
    if len(prompt) > cfg.seq_len:
        common.say(f"the prompt has {len(prompt)} characters, the model sees {cfg.seq_len}")
    ids = prompt.to(next(model.parameters()).device)
    rng = torch.Generator().manual_seed(cfg.seed)
    common.say(tokenizer.decode(sample(model, ids, 300, cfg.seq_len, cfg.temperature, rng)))
    return {}


# -------------------------------------------------------- 9 pitfalls: broken on purpose
def no_shift(windows, cfg, special, rng):
    """Targets are not shifted. Training loss -> 0, not ln V: the model copies what it reads."""
    batch = make_batch(windows, cfg, special, rng)
    return batch._replace(targets=batch.idx)


def double_shift(windows, cfg, special, rng):
    """Shifted twice. It learns all the same, to a higher loss: only the number gives it away."""
    batch = make_batch(windows, cfg, special, rng)
    return batch._replace(targets=F.pad(batch.targets[:, 1:], (0, 1), value=IGNORE))


def no_mask(windows, cfg, special, rng):
    """Everyone sees everyone. Training loss -> h/T: all but the last target stand in the input."""
    batch = make_batch(windows, cfg, special, rng)
    return batch._replace(mask=torch.ones_like(batch.mask))


def shuffled_labels(windows, cfg, special, rng):
    """Targets of other positions. Plateau at the unigram entropy, not at ln V."""
    batch = make_batch(windows, cfg, special, rng)
    order = torch.randperm(batch.targets.numel(), generator=rng)
    return batch._replace(targets=batch.targets.flatten()[order].view_as(batch.targets))


def uniform_text(text, batch_size, length, rng):
    """All characters equally likely. This is what plateaus at ln V."""
    return torch.randint(int(text.max()) + 1, (batch_size, length), generator=rng)


def file_order(text, batch_size, length, rng):
    """Windows in the order of the file, never shuffled: neighbours share a batch."""
    row = rng.initial_seed()                # nothing is drawn: the generator's seed keeps the place
    rng.manual_seed(row + batch_size)
    start = (row + torch.arange(batch_size)[:, None]) * length
    return text[(start + torch.arange(length)) % len(text)]


PITFALLS = {"no-shift": {"batch_fn": no_shift}, "double-shift": {"batch_fn": double_shift},
            "no-mask": {"batch_fn": no_mask}, "shuffled-labels": {"batch_fn": shuffled_labels},
            "uniform-text": {"draw": uniform_text}, "file-order": {"draw": file_order}}


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
