"""Masked language modelling (MLM): hide some characters, predict them from both sides.

Objective
    L = -(1/N) * sum over the N selected t of log p(targets[t] | idx),    targets[t] = ids[t]

Expect (nats per selected character, tiny_shakespeare; the entropies are properties of the text)
    4.205   ln 67: step 0, a uniform guess among 65 characters, MASK and CLS
    3.313   unigram entropy: knows how frequent each character is
    1.908   entropy given the two characters to the left
    1.477   entropy given one character on each side: why both sides
    1.35    default run, whole validation split: 1.42 mask, 1.85 random, 0.28 keep

Source
    Devlin et al. 2018, "BERT: Pre-training of Deep Bidirectional Transformers", section 3.1.

Run
    python mlm.py                               # train a few minutes, then fill gaps
    python mlm.py --show                        # one example, what is scored; no training
    python mlm.py --pitfall score-all           # broken on purpose: what does the loss do?
    python mlm.py --load runs/mlm/ckpt.pt --prompt "the k_ng is d_ad"
"""
# -------------------------------------------------------- 1 imports and constants
import math
import sys
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F

import common

IGNORE = -100               # the target of a position that is not scored
SPECIALS = ("MASK", "CLS")  # tokens that are not characters; their ids come after the characters
KINDS = ("mask", "random", "keep")  # what a scored target can be: losses are reported by kind
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
    # of this objective
    mask_rate: float = 0.15     # chance of a character to be selected

    def __post_init__(self):
        if not 0 < self.mask_rate <= 1:
            raise common.Refusal(f"--mask-rate {self.mask_rate}: must be above 0 and at most 1")
        if self.seq_len == 1:
            raise common.Refusal("--seq-len 1: CLS takes the one position, no character is left")


# -------------------------------------------------------- 3 transform: what is corrupted?
class Batch(NamedTuple):
    """One training batch."""
    idx: torch.Tensor       # (B, T) long  what the model reads
    targets: torch.Tensor   # (B, T) long  what it must predict; IGNORE where nothing is scored
    kind: torch.Tensor      # (B, T) long  index into KINDS, for the report only
    mask: torch.Tensor      # (T, T) or (B, 1, T, T) bool  who may attend to whom, True = may


def raw_len(cfg):
    """Characters per window before the transform: CLS takes one of the positions."""
    return cfg.seq_len - 1


def draw_fates(shape, mask_rate, rng):
    """Select with chance mask_rate: 0 plain, 1 mask (80 %), 2 random (10 %), 3 keep.  -> shape

    At least one position is selected: a mean over none would be nan.
    """
    # ONE number per position, cut into slices: draws of its own for each fate overlap, and what
    # is applied last takes from what came before (81 / 10 / 9)
    u = torch.rand(shape, generator=rng)
    slices = torch.bucketize(u, mask_rate * torch.tensor([0.8, 0.9, 1.0]), right=True)
    fates = (slices + 1) % 4                            # the slice beyond mask_rate is plain
    if not fates.any():
        fates.view(-1)[u.argmin()] = 1
    return fates


def mask_tokens(ids, fates, random_ids, mask_id):
    """Corrupt ids as the fates say. No shift: a target stands where its question is.

    (B, T) three times -> idx, targets (B, T)
    """
    idx = ids.where(fates != 1, mask_id).where(fates != 2, random_ids)
    # random and keep are scored too: any character in sight may be wrong, so that the model has to
    # judge each of them; with MASK alone it would attend to a token that no later task contains
    targets = ids.where(fates != 0, IGNORE)             # from the original, not from idx
    return idx, targets


def make_batch(windows, cfg, special, rng):
    """Corrupt some characters of each window, put CLS in front.  (B, T - 1) -> Batch"""
    fates = draw_fates(windows.shape, cfg.mask_rate, rng)
    # characters only: the specials have the ids from MASK on
    random_ids = torch.randint(special["MASK"], windows.shape, generator=rng)
    idx, targets = mask_tokens(windows, fates, random_ids, special["MASK"])
    # CLS joins after the draw: never selected, never a target. Later tasks can read a window there
    idx = F.pad(idx, (1, 0), value=special["CLS"])      # (B, T)
    targets, fates = F.pad(targets, (1, 0), value=IGNORE), F.pad(fates, (1, 0))
    return Batch(idx, targets, (fates - 1).clamp(min=0), attention_mask(idx.shape[1]))


# -------------------------------------------------------- 4 mask: who may attend to whom?
def attention_mask(T):
    """Every position sees every other, left and right.  -> (T, T) bool, rows are queries."""
    return torch.ones(T, T, dtype=torch.bool)


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


def loss_fn(model, batch, cfg):
    """Score the selected positions.  -> loss to minimise, nll (B, T) to report"""
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
    """The line to fill: the prompt with a MASK for each _, or validation text, some of it hidden.

    -> idx, targets (n,) long, IGNORE where shown or unknown.  Raises Refusal.
    """
    mask_id, text = tokenizer.special["MASK"], common.unify_newlines(cfg.prompt)
    if not text:
        ids = val_text[: min(72, raw_len(cfg))]
        fates = draw_fates(ids.shape, cfg.mask_rate, torch.Generator().manual_seed(cfg.seed))
        return mask_tokens(ids, fates.clamp(max=1), ids, mask_id)
    if "_" in tokenizer.ids:
        raise common.Refusal("--prompt: _ would mark a gap, but it is a character of this text")
    if "_" not in text:
        raise common.Refusal(f"--prompt {text!r}: nothing to fill, write _ for each gap")
    gaps = torch.tensor([char == "_" for char in text])
    idx = tokenizer.encode(text.replace("_", tokenizer.shown[0])).where(~gaps, mask_id)
    return idx, torch.full_like(idx, IGNORE)


@torch.no_grad()
def fill(model, idx, rounds):
    """Replace every MASK: mask-predict (Ghazvininejad et al. 2019, section 3).  (T,) -> (T,)

    The first round answers all gaps at once, each blind to the answers of the others. Every further
    one asks again about the least certain, fewer each time. It takes the likeliest character.
    """
    n_chars = mask_id = model.head.out_features - len(SPECIALS)
    idx, attn_mask = idx.clone(), attention_mask(len(idx)).to(idx.device)
    gaps = (idx == mask_id).nonzero()[:, 0]             # (n,)
    sure = torch.zeros(len(gaps), device=idx.device)    # (n,) probability of each answer
    for i in range(rounds):
        doubtful = sure.topk(len(gaps) * (rounds - i) // rounds, largest=False).indices
        idx[gaps[doubtful]] = mask_id
        p = model(idx[None], attn_mask)[0, gaps[doubtful], :n_chars].softmax(-1)
        sure[doubtful], idx[gaps[doubtful]] = p.max(-1)
    return idx


def show_off(model, tokenizer, prompt, val_text, cfg):
    """Fill the gaps of the prompt, then write from nothing but MASK.  -> metrics to add: none"""
    (idx, targets), size, mask_id = prompt, raw_len(cfg), tokenizer.special["MASK"]

    def filled(ids, rounds):
        row = F.pad(ids, (1, 0), value=tokenizer.special["CLS"])
        return fill(model, row.to(next(model.parameters()).device), rounds)[1:].cpu()

    if len(idx) > size:
        common.say(f"the prompt has {len(idx)} characters, the model sees {size}: filled in pieces")
    ids = torch.cat([filled(piece, 1) for piece in idx.split(size)])
    text = tokenizer.decode(ids).replace("\n", "¶")
    common.say("hidden  " + "".join("_" if i == mask_id else c for i, c in zip(idx, text)))
    marks = "".join(" " if t == IGNORE else "x+"[t == i] for t, i in zip(targets, ids))
    paint = {" ": "{}", "+": "\033[32m{}\033[0m", "x": "\033[31m{}\033[0m"}     # green, red
    if sys.stdout and sys.stdout.isatty():      # None: closed by the shell
        text = "".join(paint[mark].format(c) for mark, c in zip(marks, text))
    common.say(f"filled  {text}\n        {marks}".rstrip())
    common.say(f"written from {size} MASK, one character settled per round:")
    common.say(tokenizer.decode(filled(torch.full((size,), mask_id), size)))
    return {}


# -------------------------------------------------------- 9 pitfalls: broken on purpose
def causal(windows, cfg, special, rng):
    """Causal attention, same masks. Worse, not zero: x[t] is not in its own past, to be copied."""
    batch = make_batch(windows, cfg, special, rng)
    return batch._replace(mask=batch.mask.tril())


def score_all(windows, cfg, special, rng):
    """Loss on every character. Looks several times better: most of them are there to be copied."""
    batch = make_batch(windows, cfg, special, rng)
    return batch._replace(targets=F.pad(windows, (1, 0), value=IGNORE))


def labels_after_masking(windows, cfg, special, rng):
    """Targets read from the corrupted text. Loss -> 0: the answer stands in the input."""
    batch = make_batch(windows, cfg, special, rng)
    return batch._replace(targets=batch.idx.where(batch.targets != IGNORE, IGNORE))


PITFALLS = {"causal": {"batch_fn": causal}, "score-all": {"batch_fn": score_all},
            "labels-after-masking": {"batch_fn": labels_after_masking}}


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
