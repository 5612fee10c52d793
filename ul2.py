"""Mixture of denoisers (UL2): many ways to cut a text, one model that is told which.

Objective
    L = -(1/N) * sum over t >= P - 1 of log p(targets[t] | idx[<= t], idx[< P]),
    idx = mode, inputs, targets in one row, P the length of mode and inputs, a denoiser per row

Expect (nats per target, tiny_shakespeare; targets are cut characters, sentinels and EOS)
    4.625   ln 102: step 0, a uniform guess among 65 characters and 37 specials
    2.225   480 steps, whole validation split: 2.405 R3-15, 2.216 R8-15, 1.997 S, 2.459 X3-50,
            2.316 X8-50, 1.889 X64-15, 2.019 X64-50. They do not compare: more gaps are more
            sentinels, and more characters with nothing but a sentinel before them.
    So short a run learns the format, the modes and the spelling of a gap, but not yet to look up
    in the text what the gap should say: another text costs 0.01 more per character of R3-15.
    Where only one gap is cut, it is the end of the text, as in S: X64-15 and X32-15 at seq_len
    256, X64-50 as well at 128.

Source
    Tay et al. 2022, "UL2: Unifying Language Learning Paradigms", arXiv 2205.05131, section 3.1 and
    table 1. Tay et al. 2022, "Transcending Scaling Laws with 0.1% Extra Compute", arXiv 2210.11399,
    section 3.3, for --mix ul2r. Counts and draws as in T5's t5/data/preprocessors.py.

Run
    python ul2.py                               # train a few minutes, then fill gaps in each mode
    python ul2.py --show                        # one example, the mask; no training
    python ul2.py --mix ul2r                    # half S, a quarter X, a quarter R; or one denoiser
    python ul2.py --pitfall no-mode-token       # broken on purpose: what does the loss do?
    python ul2.py --load runs/ul2/ckpt.pt --prompt "the k___ is d___" --mode NLU
"""
# -------------------------------------------------------- 1 imports and constants
import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F

import common

IGNORE = -100               # the target of a position that is not scored
SENTINELS = tuple(f"S{i}" for i in range(32))   # Si stands for the i-th gap of a text
MODES = ("NLU", "S2S", "NLG")   # R regular, S sequential, X extreme; the names of the checkpoints
SPECIALS = (*MODES, "PAD", "EOS", *SENTINELS)   # not characters; ids come after the characters
DENOISERS = {   # name -> mode, mean span, share that is cut; the last one is of UL2R only
    "R3-15": ("NLU", 3, 0.15), "R8-15": ("NLU", 8, 0.15), "S": ("S2S", None, 0.25),
    "X3-50": ("NLG", 3, 0.5), "X8-50": ("NLG", 8, 0.5), "X64-15": ("NLG", 64, 0.15),
    "X64-50": ("NLG", 64, 0.5), "X32-15": ("NLG", 32, 0.15)}
MIXES = {       # name -> denoiser -> weight; a denoiser alone is a mix as well
    "uniform": dict.fromkeys(list(DENOISERS)[:7], 1),
    "ul2r": {"R3-15": 2, "S": 4, "X3-50": 1, "X32-15": 1},
    **{name: {name: 1} for name in DENOISERS}}
KINDS = tuple(DENOISERS)    # what a scored target can be: losses by kind
CODE_LENGTH = None          # no loss here spells a whole text: no perplexity, no bits


# -------------------------------------------------------- 2 config
@dataclass
class Config:
    steps: int = 480            # optimizer steps; differs from clm.py: longer ones
    batch_size: int = 12        # rows per step; differs from clm.py: longer ones
    seq_len: int = 256          # positions per row; differs from clm.py: gaps of 64 need them
    d_model: int = 128          # width
    n_layer: int = 4            # blocks
    n_head: int = 2             # attention heads per block
    lr: float = 0.02            # peak rate of Muon; AdamW: a fifth; differs from clm.py: steadier
    eval_every: int = 60        # steps between evaluations; differs from clm.py: fewer steps
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
    mix: str = "uniform"        # of denoisers: uniform, ul2r, or the name of one
    mode: str = "all"           # of the read-out: NLU, S2S or NLG; all: one after the other

    def __post_init__(self):
        for flag, value, known in (("mix", self.mix, MIXES), ("mode", self.mode, ("all", *MODES))):
            if value not in known:
                raise common.Refusal(f"--{flag} {value}: not one of {', '.join(known)}")
        if self.seq_len < 6:
            raise common.Refusal(f"--seq-len {self.seq_len}: must be at least 6 (mode, a character "
                                 "left, sentinel, EOS, sentinel, a character cut)")
        if self.seq_len > 10**5:                # plan_rows would count for minutes
            raise common.Refusal(f"--seq-len {self.seq_len}: must be at most {10**5}")
        name, (length, k) = max(plan_rows(self.seq_len, self.mix).items(), key=lambda x: x[1][1])
        if k > len(SENTINELS):
            raise common.Refusal(f"--seq-len {self.seq_len}: {name} makes {k} gaps in {length} "
                                 f"characters, but there are {len(SENTINELS)} sentinels: lower it")


# -------------------------------------------------------- 3 transform: what is corrupted?
class Batch(NamedTuple):
    """One training batch."""
    idx: torch.Tensor       # (B, T) long  what the model reads: mode, text with gaps, what was cut
    targets: torch.Tensor   # (B, T) long  what it must predict; IGNORE where nothing is scored
    kind: torch.Tensor      # (B, T) long  index into KINDS, for the report only
    mask: torch.Tensor      # (B, 1, T, T) bool  who may attend to whom, True = may


def count_noise(length, density, mean_span):
    """Characters to cut out of a text, and gaps they form.  -> N, k"""
    N = min(max(round(length * density), 1), length - 1)        # round: half to even
    # a gap has at least one character, and so has each piece of text before a gap
    return N, min(max(round(N / mean_span), 1), N, length - N)


@functools.cache
def plan_rows(seq_len, mix):
    """How much text fits a row, and its gaps: worked out once, so that nothing is cut off later.

    -> {name of a denoiser: (characters, gaps)}

    A character more takes one position or three: up to two may be left over, for PAD.
    """
    def count_gaps(length, name):
        _, mean_span, density = DENOISERS[name]
        return count_noise(length, density, mean_span)[1] if mean_span else 0

    plan = {}
    for name in MIXES[mix]:
        # mode, text, a sentinel and its copy for each gap, EOS; the second EOS is a target only
        length = max(length for length in range(2, seq_len - 1)
                     if 1 + length + 2 * count_gaps(length, name) + 1 <= seq_len)
        plan[name] = length, count_gaps(length, name)
    return plan


def raw_len(cfg):
    """Characters per window: what the longest row takes; others leave the end of it alone."""
    return max(length for length, _ in plan_rows(cfg.seq_len, cfg.mix).values())


def draw_lengths(total, k, rng):
    """Split total into k parts of at least 1, all ways equally likely.  -> (k,) long"""
    cuts = torch.randperm(total - 1, generator=rng)[: k - 1].sort().values + 1
    return torch.cat([cuts, torch.tensor([total])]).diff(prepend=torch.tensor([0]))


def draw_noise(length, density, mean_span, rng):
    """Choose what to cut: exactly N characters in exactly k gaps.  -> (length,) bool

    Text and gaps take turns: the first character is never cut, the last one always. Where there
    is one gap, as for up to 30 characters at 0.15 and 3, it is always the end of the text.
    """
    N, k = count_noise(max(length, 2), density, mean_span)
    runs = [draw_lengths(total, k, rng) for total in (max(length, 2) - N, N)]
    alternating = torch.tensor([False, True]).repeat(k)
    return alternating.repeat_interleave(torch.stack(runs, 1).flatten())[:length]


def draw_tail(length, density, rng):
    """Choose an end to cut, density of the text on average.  -> (length,) bool

    All lengths of what is left are equally likely, up to all but one character.
    """
    least = max(1, round((1 - 2 * density) * (length - 1)))
    return torch.arange(length) >= torch.randint(least, length, (1,), generator=rng)


def draw_denoisers(n_rows, mix, rng):
    """Draw the denoiser of each row.  -> (n_rows,) long, indices into KINDS"""
    weights = torch.tensor([float(MIXES[mix].get(name, 0)) for name in KINDS])
    return weights.multinomial(n_rows, replacement=True, generator=rng)


def replace_runs(ids, chosen, sentinels, eos):
    """Put the i-th sentinel in place of the i-th run of chosen ids, EOS at the end.

    (n,) -> (m,), or (B, n) -> (B, m) where rows have equal counts

    Raises ValueError if there are more runs than sentinels.
    """
    first = chosen & ~F.pad(chosen, (1, 0))[..., :-1]   # where a run begins
    number = first.cumsum(-1)                           # of the run, from 1
    if number.max() > len(sentinels):
        raise ValueError(f"{number.max()} gaps, but {len(sentinels)} sentinels")
    ids = ids.where(~first, sentinels[(number - 1).clamp(min=0)])
    return F.pad(ids[first | ~chosen].view(*ids.shape[:-1], -1), (0, 1), value=eos)


def corrupt_spans(ids, noise, sentinels, eos):
    """Split a text into what is left, with sentinels for gaps, and what was cut, the other way.

    (n,), (n,) bool, (k,) -> inputs (n - N + k + 1,), targets (N + k' + 1,); rows of a batch alike

    In the targets a sentinel stands for each piece of text left: k' is their number. A text that
    ends with a gap has k' = k; one that does not, as in the figure of the paper, closes its
    targets with one sentinel more.
    """
    return replace_runs(ids, noise, sentinels, eos), replace_runs(ids, ~noise, sentinels, eos)


def corrupt_tail(ids, noise, eos):
    """Split a text whose end is cut: nothing follows, so that no sentinel need say where.

    (n,), (n,) bool -> inputs (n - N + 1,), targets (N + 1,)
    """
    return F.pad(ids[~noise], (0, 1), value=eos), F.pad(ids[noise], (0, 1), value=eos)


def corrupt(ids, name, special, rng):
    """Cut a text as the named denoiser does.  (n,) -> inputs (P,) with the mode, targets"""
    mode, mean_span, density = DENOISERS[name]
    if mode == "S2S":
        noise = draw_tail(len(ids), density, rng)
        inputs, targets = corrupt_tail(ids, noise, special["EOS"])
    else:
        noise = draw_noise(len(ids), density, mean_span, rng)
        sentinels = torch.tensor([special[name] for name in SENTINELS])
        inputs, targets = corrupt_spans(ids, noise, sentinels, special["EOS"])
    return F.pad(inputs, (1, 0), value=special[mode]), targets


def make_batch(windows, cfg, special, rng):
    """Draw a denoiser for each row and put what it leaves and what it cuts behind each other.

    (B, raw_len) -> Batch
    """
    plan, kind = plan_rows(cfg.seq_len, cfg.mix), draw_denoisers(len(windows), cfg.mix, rng)
    rows = torch.full((len(windows), cfg.seq_len + 1), special["PAD"])
    prefix_len = torch.zeros_like(kind)                 # (B,) mode and inputs, read both ways
    for i, name in enumerate(KINDS[k] for k in kind):
        inputs, targets = corrupt(windows[i, : plan[name][0]], name, special, rng)
        rows[i, : len(inputs) + len(targets)] = torch.cat([inputs, targets])
        prefix_len[i] = len(inputs)
    idx, targets = rows[:, :-1], rows[:, 1:]            # the shift: here and nowhere else
    targets = score_suffix(targets.where(targets != special["PAD"], IGNORE), prefix_len)
    return Batch(idx, targets, kind[:, None].expand_as(idx), prefix_mask(prefix_len, cfg.seq_len))


# -------------------------------------------------------- 4 mask: who may attend to whom?
# PAD stands behind everything else: the mask hides it from all but PAD, and leaves it keys enough.

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
    """Score what was cut, sentinels and EOS too.  -> loss to minimise, nll (B, T) to report"""
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
    """The text to read: the prompt with a gap for each run of _, or cut validation text.

    -> inputs without a mode, targets (n,) long; no targets where the answer is unknown.
    Raises Refusal.
    """
    text, special = common.unify_newlines(cfg.prompt), tokenizer.special
    if not text:
        rng = torch.Generator().manual_seed(cfg.seed)
        inputs, targets = corrupt(val_text[: cfg.seq_len // 2], "R3-15", special, rng)
        return inputs[1:], targets
    if "_" in tokenizer.ids and "_" in text:
        raise common.Refusal("--prompt: _ would mark a gap, but it is a character of this text")
    gaps = torch.tensor([char == "_" for char in text])
    ids = tokenizer.encode(text.replace("_", tokenizer.shown[0]))
    sentinels = torch.tensor([special[name] for name in SENTINELS])
    try:
        return replace_runs(ids, gaps, sentinels, special["EOS"]), ids[:0]
    except ValueError as error:
        raise common.Refusal(f"--prompt: {error}") from None


@torch.no_grad()
def write_answer(model, inputs, n, eos, temperature, rng):
    """Write behind the inputs, one id at a time, until EOS or n ids.  (P,) -> (<= n,)"""
    ids, P = inputs, len(inputs)
    while len(ids) < P + n and not (ids[P:] == eos).any():
        mask = prefix_mask(torch.tensor([P], device=ids.device), len(ids))
        logits = model(ids[None], mask)[0, -1].cpu()    # (V,)
        if temperature == 0:
            new = logits.argmax(keepdim=True)
        else:
            new = (logits / temperature).softmax(-1).multinomial(1, generator=rng)
        ids = torch.cat([ids, new.to(ids.device)])
    return ids[P:]


def show_off(model, tokenizer, prompt, val_text, cfg):
    """Answer one text in each mode.  -> metrics to add: none"""
    (inputs, targets), special = prompt, tokenizer.special
    if len(inputs) >= cfg.seq_len:
        common.say(f"the prompt takes {len(inputs) + 1} positions, the model has learnt on "
                   f"{cfg.seq_len}: all are read, but expect less")
    device, rng = next(model.parameters()).device, torch.Generator().manual_seed(cfg.seed)
    lines = {"inputs": inputs}
    for mode in MODES if cfg.mode == "all" else [cfg.mode]:
        asked = F.pad(inputs, (1, 0), value=special[mode]).to(device)
        lines[mode] = write_answer(model, asked, cfg.seq_len // 2, special["EOS"],
                                   cfg.temperature, rng).cpu()
    lines["targets"] = targets
    for name, ids in lines.items():
        if len(ids):
            common.say(f"{name:8}  " + tokenizer.decode(ids).replace("\n", "¶"))
    return {}


# -------------------------------------------------------- 9 pitfalls: broken on purpose
def no_mode_token(windows, cfg, special, rng):
    """PAD in place of mode tokens. It trains, but no token is learnt that would ask for a mode."""
    batch = make_batch(windows, cfg, special, rng)
    return batch._replace(idx=F.pad(batch.idx[:, 1:], (1, 0), value=special["PAD"]))


def pad_scored(windows, cfg, special, rng):
    """PAD scored. Looks lower by the share of PAD, 2 of 48 targets in R3-15: it costs nothing."""
    batch = make_batch(windows, cfg, special, rng)
    following = F.pad(batch.idx[:, 1:], (0, 1), value=special["PAD"])
    padded = (following == special["PAD"]) & (batch.targets == IGNORE)
    return batch._replace(targets=batch.targets.where(~padded, special["PAD"]))


PITFALLS = {"no-mode-token": {"batch_fn": no_mode_token}, "pad-scored": {"batch_fn": pad_scored}}


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
