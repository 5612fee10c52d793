"""Denoising (BART): corrupt a text in any way, write down the whole text again.

Objective
    L = -(1/N) * sum over t of log p(targets[t] | inputs, idx[<= t]),    idx = BOS + targets[:-1]

Expect (nats per target, tiny_shakespeare; targets are all characters of the text, and EOS)
    4.234   ln 69: step 0, a uniform guess among 65 characters, BOS, EOS, PAD and MASK
    0.81    default run, whole validation split: 0.16 copied, 1.23 resumed, 1.91 restored, 0.11
            EOS; one seed
    58 % of the targets are copied, 11 % resumed, 30 % restored: the mean is mostly copying. What
    is restored costs more than in clm.py, since each character also says that its gap goes on.
    The cross-attention needs its shortcut: 200 steps of 8 rows bring copied characters to 1.19;
    with the keys of t5_span.py, 240 steps to 1.91 (one seed each). All texts of the training have
    127 characters: to a shorter prompt, too, the model writes about as many.

Source
    Lewis et al. 2019, "BART: Denoising Sequence-to-Sequence Pre-training for Natural Language
    Generation, Translation, and Comprehension", arXiv 1910.13461, section 2.2. Draws as in
    fairseq's fairseq/data/denoising_dataset.py, which counts words where this file counts
    characters: 30 % of the words, rounded up, are masked there, in spans of Poisson(3) words, each
    with all of its subwords. A sentence is a line here.

Run
    python bart.py                              # train a few minutes, then restore a text
    python bart.py --show                       # one example, the masks; no training
    python bart.py --noise delete               # mask, delete, infill, permute, rotate, none
    python bart.py --noise mask+rotate          # one after the other; default: permute+infill
    python bart.py --pitfall order-kept         # broken on purpose: what does the loss do?
    python bart.py --load runs/bart/ckpt.pt --prompt "the k___ is d___"
"""
# -------------------------------------------------------- 1 imports and constants
import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F

import common

IGNORE = -100               # the target of a position that is not scored
SPECIALS = ("BOS", "EOS", "PAD", "MASK")    # not characters; their ids come after the characters
NEWLINE = 0                 # its id: the first of the sorted characters, or a text is refused
GAP = -2                    # the place in the text of a MASK; -1 is the one before the first
NOISES = ("mask", "delete", "infill", "permute", "rotate", "none")
# what a scored target can be: losses by kind. A character is copied if it stands in the inputs
# right behind the one before it, resumed if it stands elsewhere in them, restored if nowhere
KINDS = ("copied", "resumed", "restored", "eos")
CODE_LENGTH = None          # no loss here spells a whole text: no perplexity, no bits


# -------------------------------------------------------- 2 config
@dataclass
class Config:
    steps: int = 880            # optimizer steps; differs from clm.py: shorter ones
    batch_size: int = 12        # rows per step; differs from clm.py: two texts per row
    seq_len: int = 128          # positions per row
    d_model: int = 128          # width
    n_layer: int = 4            # blocks
    n_head: int = 2             # attention heads per block
    lr: float = 0.02            # peak rate of Muon; AdamW: a fifth; differs from clm.py: steadier
    eval_every: int = 110       # steps between evaluations; differs from clm.py: more steps
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
    noise: str = "permute+infill"   # one after the other: mask, delete, infill, permute, rotate
    noise_density: float = 0.3      # share of the characters that mask, delete and infill take
    mean_span: float = 3.0          # characters per gap of infill, on average

    def __post_init__(self):
        if not (0 < self.noise_density <= 0.9 and self.mean_span >= 1):
            raise common.Refusal(f"--noise-density {self.noise_density} --mean-span "
                                 f"{self.mean_span}: must be above 0 to 0.9, and at least 1")
        if self.seq_len < 3 or self.n_layer < 2:
            raise common.Refusal(f"--seq-len {self.seq_len} --n-layer {self.n_layer}: must be at "
                                 "least 3 (text, gap, EOS) and 2 (encoder, decoder)")
        for name in self.noise.split("+"):
            if name not in NOISES:
                raise common.Refusal(f"--noise {self.noise}: {name!r} is not one of "
                                     f"{', '.join(NOISES)}")


# -------------------------------------------------------- 3 transform: what is corrupted?
class Batch(NamedTuple):
    """One training batch. Targets are all of one length, inputs are not: PAD follows their EOS."""
    inputs: torch.Tensor    # (B, S) long  what the encoder reads: the corrupted text
    idx: torch.Tensor       # (B, T) long  what the decoder reads
    targets: torch.Tensor   # (B, T) long  what it must predict: the text
    kind: torch.Tensor      # (B, T) long  index into KINDS, for the report only
    mask: torch.Tensor      # (T, T) bool  who may attend to whom in the decoder, True = may
    seen: torch.Tensor      # (B, 1, 1, S) bool  inputs that anyone may attend to, True = may


def raw_len(cfg):
    """Characters per window: EOS takes the last of seq_len positions."""
    return cfg.seq_len - 1


def draw_chars(length, density, rng):
    """Choose a share of the characters, rounded up.  -> (length,) bool"""
    chosen = torch.zeros(length, dtype=torch.bool)
    chosen[torch.randperm(length, generator=rng)[: math.ceil(length * density)]] = True
    return chosen


def draw_spans(length, density, mean_span, rng):
    """Choose spans of together a share of the characters, rounded up.  -> starts, lengths (k,) long

    Lengths are Poisson, 0 too; the one that reaches the share is cut to it. All ways to place them
    between the other characters are equally likely.
    """
    N, lengths = math.ceil(length * density), torch.zeros(0)
    while lengths.sum() < N:
        more = torch.poisson(torch.full((N,), mean_span), generator=rng)
        lengths = torch.cat([lengths, more])
    ends = lengths.cumsum(0).clamp(max=N).long()
    k = int((ends < N).sum()) + (N > 0)
    lengths = ends[:k].diff(prepend=ends.new_zeros(1))
    lengths = lengths[torch.randperm(k, generator=rng)]     # else the last one were the shortest
    slots = torch.randperm(length - N + k, generator=rng)[:k].sort().values
    return slots - torch.arange(k) + lengths.cumsum(0) - lengths, lengths


def draw_lines(newline, rng):
    """Draw an order of the lines, all equally likely.  (n,) bool -> ends, order (k,) long

    A line ends with its first newline, as a sentence does in fairseq: a blank line begins the
    next one. The last line ends where the text does.
    """
    last = newline & ~F.pad(newline, (1, 0))[:-1]
    last[-1:] = True
    ends = last.nonzero()[:, 0] + 1
    return ends, torch.randperm(len(ends), generator=rng)


def draw_start(length, rng):
    """Draw where the text shall begin, anywhere alike.  -> int"""
    return int(torch.randint(max(length, 1), (), generator=rng))


def mask_chars(ids, chosen, mask):
    """Put mask in place of each chosen character.  (n,), (n,) bool -> (n,)"""
    return ids.where(~chosen, mask)


def delete_chars(ids, chosen):
    """Leave out the chosen characters; nothing says where.  (n,), (n,) bool -> (n - N,)"""
    return ids[~chosen]


def infill_spans(ids, starts, lengths, mask):
    """Put one mask in place of each span: its length is hidden, a span of 0 adds a mask.

    (n,), (k,), (k,) -> (n - N + k,); spans in order, none within another
    """
    parts, at = [], 0
    for start, length in zip(starts.tolist(), lengths.tolist()):
        parts += [ids[at:start], ids.new_tensor([mask])]
        at = start + length
    return torch.cat([*parts, ids[at:]])


def permute_lines(ids, ends, order):
    """Put the lines of a text, which end before `ends`, in this order.  (n,), (k,), (k,) -> (n,)"""
    lines = ids.tensor_split(ends[:-1])
    return torch.cat([ids[:0], *(lines[i] for i in order)])     # [:0]: for a text without any


def rotate_text(ids, start):
    """Begin a text at start, what stood before follows its end.  (n,) -> (n,)"""
    return torch.cat([ids[start:], ids[:start]])


def draw_places(ids, cfg, rng):
    """Draw and apply the noises.  (n,) -> (S,) long, the place in ids of each input, or GAP"""
    places = torch.arange(len(ids))     # what rearranges characters rearranges their places as well
    for name in cfg.noise.split("+"):
        n = len(places)
        if name == "mask":
            places = mask_chars(places, draw_chars(n, cfg.noise_density, rng), GAP)
        if name == "delete":
            places = delete_chars(places, draw_chars(n, cfg.noise_density, rng))
        if name == "infill":
            spans = draw_spans(n, cfg.noise_density, cfg.mean_span, rng)
            places = infill_spans(places, *spans, GAP)
        if name == "permute":
            newline = (ids[places] == NEWLINE) & (places != GAP)
            places = permute_lines(places, *draw_lines(newline, rng))
        if name == "rotate":
            places = rotate_text(places, draw_start(n, rng))
    return places


def kinds_of(places, n):
    """What is asked of each target of a text.  (S,) -> (n + 1,) long, indices into KINDS"""
    kind = torch.full((n + 1,), KINDS.index("restored"))
    kind[n] = KINDS.index("eos")
    behind = places == F.pad(places, (1, 0), value=-1)[:-1] + 1     # the character before it
    found = places != GAP
    kind[places[found]] = torch.where(behind[found], KINDS.index("copied"), KINDS.index("resumed"))
    return kind


def make_batch(windows, cfg, special, rng):
    """Corrupt each window; the decoder reads the whole text one place late.

    (B, raw_len) -> Batch
    """
    places = [draw_places(ids, cfg, rng) for ids in windows]
    rows = [F.pad(mask_chars(ids[at], at == GAP, special["MASK"]), (0, 1), value=special["EOS"])
            for ids, at in zip(windows, places)]
    inputs = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=special["PAD"])
    targets = F.pad(windows, (0, 1), value=special["EOS"])              # the text as it was
    idx = F.pad(targets, (1, 0), value=special["BOS"])[:, :-1]          # the shift: only here
    kind = torch.stack([kinds_of(at, len(ids)) for ids, at in zip(windows, places)])
    return Batch(inputs, idx, targets, kind, attention_mask(idx.shape[1]),
                 padding_mask(inputs, special["PAD"]))


# -------------------------------------------------------- 4 mask: who may attend to whom?
# The encoder sees all of its inputs but PAD, and so does the decoder: one mask for both. The
# decoder's view of itself takes another.

def attention_mask(T):
    """Position i sees positions 0..i.  -> (T, T) bool, rows are queries."""
    return torch.ones(T, T, dtype=torch.bool).tril()


def padding_mask(inputs, pad):
    """Everyone sees every input but PAD.  (B, S) -> (B, 1, 1, S) bool, for all heads and queries"""
    return (inputs != pad)[:, None, None]


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
    """Score the whole text, and EOS.  -> loss to minimise, nll (B, T) to report"""
    nll = token_nll(model(batch.inputs, batch.idx, batch.mask, batch.seen), batch.targets)
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


class CrossAttention(nn.Module):
    """x (B, T, D) looks at memory (B, S, D)."""

    def __init__(self, d_model, n_head):
        super().__init__()
        self.n_head = n_head
        # one projection for queries and keys, where BART has two, and keys one place late: from
        # the first step on, a character that was written looks for what follows it in the inputs
        self.qk = nn.Linear(d_model, d_model, bias=False)
        self.v = nn.Linear(d_model, d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)
        nn.init.eye_(self.out.weight)       # not zero: the encoder learns only through it

    def forward(self, x, memory, seen):
        # no rotary: places in text and inputs do not compare once something is cut or moved
        q, k, v = self.qk(x), self.qk(F.pad(memory, (0, 0, 1, -1))), self.v(memory)
        q, k, v = (y.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(norm(q), norm(k), v, attn_mask=seen) # (B, H, T, K)
        return self.out(y.transpose(1, 2).flatten(2))


class CrossBlock(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        self.attn = SelfAttention(d_model, n_head)
        self.cross = CrossAttention(d_model, n_head)
        self.mlp = MLP(d_model)

    def forward(self, x, memory, attn_mask, seen):
        x = x + self.attn(norm(x), attn_mask)
        x = x + self.cross(norm(x), memory, seen)
        return x + self.mlp(norm(x))


class EncoderDecoder(nn.Module):
    """inputs (B, S), idx (B, T), attn_mask (T, T) of the decoder, seen -> logits (B, T, V)"""

    def __init__(self, cfg, vocab_size):
        super().__init__()
        D, H = cfg.d_model, cfg.n_head
        self.emb = nn.Embedding(vocab_size, D)      # one for both sides: the alphabet is the same
        half = cfg.n_layer // 2
        self.encoder = nn.ModuleList(Block(D, H) for _ in range(half))
        self.decoder = nn.ModuleList(CrossBlock(D, H) for _ in range(cfg.n_layer - half))
        self.head = nn.Linear(D, vocab_size, bias=False)
        # not tied to the embedding, and zero: all logits are 0, so that step 0 costs ln V exactly
        nn.init.zeros_(self.head.weight)

    def forward(self, inputs, idx, attn_mask, seen):
        memory = norm(self.emb(inputs))             # (B, S, D)
        for block in self.encoder:
            memory = block(memory, seen)            # everyone sees everyone but PAD
        x, memory = norm(self.emb(idx)), norm(memory)
        for block in self.decoder:
            x = block(x, memory, attn_mask, seen)
        return self.head(norm(x))


def build_model(cfg, vocab_size):
    """The network of this objective."""
    return EncoderDecoder(cfg, vocab_size)


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
    """The text to restore: the prompt, where _ is a gap, or corrupted validation text.

    -> inputs, targets (n,) long; no targets where the answer is unknown.  Raises Refusal.
    """
    text, special = common.unify_newlines(cfg.prompt), tokenizer.special
    names = cfg.noise.split("+")
    if "permute" in names and tokenizer.ids.get("\n") != NEWLINE:
        raise common.Refusal(f"--noise {cfg.noise}: permute needs line ends in the text, and no "
                             "character before them in order, such as a tab")
    if not text:
        windows, rng = val_text[None, : raw_len(cfg)], torch.Generator().manual_seed(cfg.seed)
        batch = make_batch(windows, cfg, special, rng)
        return batch.inputs[0], batch.targets[0]
    if "_" in text and "_" in tokenizer.ids:
        raise common.Refusal("--prompt: _ would mark a gap, but it is a character of this text")
    if "_" in text and not {"mask", "infill"} & set(names):
        raise common.Refusal(f"--prompt {text!r}: --noise {cfg.noise} has no gaps")
    gaps = torch.tensor([char == "_" for char in text])
    ids = mask_chars(tokenizer.encode(text.replace("_", tokenizer.shown[0])), gaps, special["MASK"])
    if "infill" in names:
        ids = delete_chars(ids, gaps & F.pad(gaps, (1, 0))[:-1])     # one MASK per gap
    return F.pad(ids, (0, 1), value=special["EOS"]), ids[:0]


@torch.no_grad()
def write_targets(model, inputs, n, special):
    """Write the likeliest targets, one id at a time, until EOS or n ids.  (B, S) -> (B, <= n)"""
    seen = padding_mask(inputs, special["PAD"])
    idx = torch.full_like(inputs[:, :1], special["BOS"])
    while idx.shape[1] <= n and not (idx == special["EOS"]).any(1).all():
        logits = model(inputs, idx, attention_mask(idx.shape[1]).to(idx.device), seen)
        idx = torch.cat([idx, logits[:, -1:].argmax(-1)], 1)
    return idx[:, 1:]


def show_off(model, tokenizer, prompt, val_text, cfg):
    """Restore the text of the prompt.  -> metrics to add: none"""
    (inputs, targets), special = prompt, tokenizer.special
    if len(inputs) > cfg.seq_len:
        common.say(f"the prompt takes {len(inputs)} positions, the model has learnt on "
                   f"{cfg.seq_len}: all are read, but expect less")
    device, n = next(model.parameters()).device, cfg.seq_len + len(inputs)
    written = write_targets(model, inputs[None].to(device), n, special)[0].cpu()
    lines = {"inputs": inputs, "written": written, "targets": targets}
    for name, ids in lines.items():
        if len(ids):
            common.say(f"{name:8}  " + tokenizer.decode(ids).replace("\n", "¶"))
    return {}


# -------------------------------------------------------- 9 pitfalls: broken on purpose
def unshifted_decoder(windows, cfg, special, rng):
    """The decoder reads its targets unshifted. Training loss -> 0: it copies what it reads."""
    batch = make_batch(windows, cfg, special, rng)
    return batch._replace(idx=batch.targets)


def causal_off(windows, cfg, special, rng):
    """The decoder sees its future. Training loss -> 0: the next target stands in what it reads."""
    batch = make_batch(windows, cfg, special, rng)
    return batch._replace(mask=torch.ones_like(batch.mask))


def order_kept(windows, cfg, special, rng):
    """Lines stay, as where no line end is found. Training looks better, the task does not."""
    kept = replace(cfg, noise=cfg.noise.replace("permute", "none"))
    return make_batch(windows, kept, special, rng)


def pad_attended(windows, cfg, special, rng):
    """PAD is attended to. No loss shows it, but an answer depends on the rest of its batch."""
    batch = make_batch(windows, cfg, special, rng)
    return batch._replace(seen=torch.ones_like(batch.seen))


PITFALLS = {"unshifted-decoder": {"batch_fn": unshifted_decoder},
            "causal-off": {"batch_fn": causal_off}, "order-kept": {"batch_fn": order_kept},
            "pad-attended": {"batch_fn": pad_attended}}


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
