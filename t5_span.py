"""Span corruption (T5): cut spans out of a text, write them down again in order.

Objective
    L = -(1/N) * sum over t of log p(targets[t] | inputs, idx[<= t]),    idx = BOS + targets[:-1]

Expect (nats per target, tiny_shakespeare; targets are cut characters, sentinels and EOS)
    4.595   ln 99: step 0, a uniform guess among 65 characters, 32 sentinels, BOS and EOS
    1.95    default run, whole validation split: 2.44 content, 0.77 sentinel, 0.0002 EOS; 3 seeds
    A cut character costs more than in clm.py, where it has only its spelling to guess: each one
    here also says that its gap goes on. The decoder learns late to look up in the inputs what a
    gap should say: 480 steps at clm.py's rate, with two projections in the cross-attention, ended
    at 2.33; 800 at a rate of 0.02, with one, at 2.04, and at 0.01 at 1.88 (one seed each).

Source
    Raffel et al. 2019, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
    Transformer", sections 3.1.4, 3.3.4; counts and draws as in their t5/data/preprocessors.py.

Run
    python t5_span.py                           # train a few minutes, then fill gaps
    python t5_span.py --show                    # one example, the masks; no training
    python t5_span.py --pitfall causal-off      # broken on purpose: what does the loss do?
    python t5_span.py --load runs/t5_span/ckpt.pt --prompt "the k___ is d___"
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
SENTINELS = tuple(f"S{i}" for i in range(32))   # Si stands for the i-th gap of a text
SPECIALS = ("BOS", "EOS", *SENTINELS)   # not characters; their ids come after the characters
KINDS = ("content", "sentinel", "eos")  # what a scored target can be: losses by kind
CODE_LENGTH = None          # no loss here spells a whole text: no perplexity, no bits


# -------------------------------------------------------- 2 config
@dataclass
class Config:
    steps: int = 740            # optimizer steps; differs from clm.py: shorter ones, fewer targets
    batch_size: int = 24        # rows per step
    seq_len: int = 128          # positions per row
    d_model: int = 128          # width
    n_layer: int = 4            # blocks
    n_head: int = 2             # attention heads per block
    lr: float = 0.01            # peak rate of Muon; AdamW: a fifth; differs from clm.py: steadier
    eval_every: int = 100       # steps between evaluations; differs from clm.py: more steps
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
    noise_density: float = 0.15     # share of the characters that is cut out
    mean_span: float = 3.0          # characters per gap, on average
    one_sentinel: bool = False      # the same sentinel for every gap: a simplified form

    def __post_init__(self):
        if not (0 < self.noise_density <= 0.9 and self.mean_span >= 1):
            raise common.Refusal(f"--noise-density {self.noise_density} --mean-span "
                                 f"{self.mean_span}: must be above 0 to 0.9, and at least 1")
        if self.seq_len < 3 or self.n_layer < 2:
            raise common.Refusal(f"--seq-len {self.seq_len} --n-layer {self.n_layer}: must be at "
                                 "least 3 (text, gap, EOS) and 2 (encoder, decoder)")
        if self.seq_len > 10**5:                # raw_len would count for minutes
            raise common.Refusal(f"--seq-len {self.seq_len}: must be at most {10**5}")
        _, k = count_noise(raw_len(self), self.noise_density, self.mean_span)
        if k > len(SENTINELS) and not self.one_sentinel:
            raise common.Refusal(f"{k} gaps in {raw_len(self)} characters, but {len(SENTINELS)} "
                                 "sentinels: lower --seq-len or --noise-density, raise --mean-span")


# -------------------------------------------------------- 3 transform: what is corrupted?
class Batch(NamedTuple):
    """One training batch. No row is padded or cut: counts, and so lengths, are always the same."""
    inputs: torch.Tensor    # (B, S) long  what the encoder reads: text with gaps
    idx: torch.Tensor       # (B, T) long  what the decoder reads
    targets: torch.Tensor   # (B, T) long  what it must predict
    kind: torch.Tensor      # (B, T) long  index into KINDS, for the report only
    mask: torch.Tensor      # (T, T) bool  who may attend to whom in the decoder, True = may


def count_noise(length, density, mean_span):
    """Characters to cut out of a text, and gaps they form.  -> N, k"""
    N = min(max(round(length * density), 1), length - 1)        # round: half to even
    # a gap has at least one character, and so has each piece of text before a gap
    return N, min(max(round(N / mean_span), 1), N, length - N)


def raw_len(cfg):
    """Characters per window: as many as fit seq_len positions once gaps and EOS take theirs."""
    def positions(length):
        N, k = count_noise(length, cfg.noise_density, cfg.mean_span)
        return length - N + k + 1

    length = cfg.seq_len - 1
    while positions(length + 1) <= cfg.seq_len:
        length += 1
    N, k = count_noise(length, cfg.noise_density, cfg.mean_span)
    # as T5 does: at one half, targets may not be longer than inputs
    return length - (cfg.noise_density == 0.5 and N + k + 1 > cfg.seq_len)


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


def restore_spans(inputs, targets, sentinels, eos):
    """Undo corrupt_spans; targets that a model wrote may lack pieces or have too many.  -> (n,)"""
    def pieces(ids):
        ids = ids[(ids == eos).cumsum(0) == 0]          # up to the first EOS
        cuts = torch.isin(ids, sentinels).nonzero()[:, 0].tolist()
        return [ids[a + 1: b] for a, b in zip([-1, *cuts], [*cuts, len(ids)])]

    text, cut = pieces(inputs), pieces(targets)
    # targets of a text that begins with text begin with its sentinel: their first piece is empty
    cut = cut[1:] if len(cut[0]) == 0 else cut
    cut = [*cut, *[inputs[:0]] * len(text)][: len(text) - 1]
    return torch.cat([text[0], *(part for pair in zip(cut, text[1:]) for part in pair)])


def sentinel_ids(cfg, special):
    """The sentinels in order of use.  -> (k,) long"""
    if cfg.one_sentinel:
        return torch.full((raw_len(cfg),), special["S0"])
    return torch.tensor([special[name] for name in SENTINELS])


def make_batch(windows, cfg, special, rng):
    """Cut spans out of each window; the decoder reads the targets one place late.

    (B, raw_len) -> Batch
    """
    sentinels, eos = sentinel_ids(cfg, special), special["EOS"]
    noise = torch.stack([draw_noise(len(ids), cfg.noise_density, cfg.mean_span, rng)
                         for ids in windows])
    inputs, targets = corrupt_spans(windows, noise, sentinels, eos)     # (B, S), (B, T)
    idx = F.pad(targets, (1, 0), value=special["BOS"])[:, :-1]          # the shift: only here
    kind = (targets > eos).long() + 2 * (targets == eos)
    return Batch(inputs, idx, targets, kind, attention_mask(idx.shape[1]))


# -------------------------------------------------------- 4 mask: who may attend to whom?
# The encoder sees all of its inputs, and the decoder sees all of the encoder: with nothing padded
# that takes no mask. The decoder's view of itself does.

def attention_mask(T):
    """Position i sees positions 0..i.  -> (T, T) bool, rows are queries."""
    return torch.ones(T, T, dtype=torch.bool).tril()


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
    """Score every target, sentinels and EOS too.  -> loss to minimise, nll (B, T) to report"""
    nll = token_nll(model(batch.inputs, batch.idx, batch.mask), batch.targets)
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
        # one projection for queries and keys, where T5 has two: from the first step on, a sentinel
        # in the targets looks at the same sentinel in the inputs
        self.qk = nn.Linear(d_model, d_model, bias=False)
        self.v = nn.Linear(d_model, d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)
        nn.init.eye_(self.out.weight)       # not zero: the encoder learns only through it

    def forward(self, x, memory):
        # no rotary: places in targets and in inputs do not compare, sentinels say what belongs
        q, k, v = self.qk(x), self.qk(memory), self.v(memory)
        q, k, v = (y.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(norm(q), norm(k), v)                 # (B, H, T, K)
        return self.out(y.transpose(1, 2).flatten(2))


class CrossBlock(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        self.attn = SelfAttention(d_model, n_head)
        self.cross = CrossAttention(d_model, n_head)
        self.mlp = MLP(d_model)

    def forward(self, x, memory, attn_mask):
        x = x + self.attn(norm(x), attn_mask)
        x = x + self.cross(norm(x), memory)
        return x + self.mlp(norm(x))


class EncoderDecoder(nn.Module):
    """inputs (B, S), idx (B, T), attn_mask (T, T) of the decoder -> logits (B, T, V)"""

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

    def forward(self, inputs, idx, attn_mask):
        memory = norm(self.emb(inputs))             # (B, S, D)
        for block in self.encoder:
            memory = block(memory, None)            # no mask: everyone sees everyone
        x, memory = norm(self.emb(idx)), norm(memory)
        for block in self.decoder:
            x = block(x, memory, attn_mask)
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
    """The text to fill: the prompt with a gap for each run of _, or cut validation text.

    -> inputs, targets (n,) long; no targets where the answer is unknown.  Raises Refusal.
    """
    text, special = common.unify_newlines(cfg.prompt), tokenizer.special
    sentinels, eos = sentinel_ids(cfg, special), special["EOS"]
    if not text:
        ids, rng = val_text[: raw_len(cfg)], torch.Generator().manual_seed(cfg.seed)
        noise = draw_noise(len(ids), cfg.noise_density, cfg.mean_span, rng)
        return corrupt_spans(ids, noise, sentinels, eos)
    if "_" in tokenizer.ids:
        raise common.Refusal("--prompt: _ would mark a gap, but it is a character of this text")
    if "_" not in text:
        raise common.Refusal(f"--prompt {text!r}: nothing to fill, write ___ for each gap")
    gaps = torch.tensor([char == "_" for char in text])
    ids = tokenizer.encode(text.replace("_", tokenizer.shown[0]))
    try:
        return replace_runs(ids, gaps, sentinels, eos), ids[:0]
    except ValueError as error:
        raise common.Refusal(f"--prompt: {error}") from None


@torch.no_grad()
def write_targets(model, inputs, n, special):
    """Write the likeliest targets, one id at a time, until EOS or n ids.  (B, S) -> (B, <= n)"""
    idx = torch.full_like(inputs[:, :1], special["BOS"])
    while idx.shape[1] <= n and not (idx == special["EOS"]).any(1).all():
        logits = model(inputs, idx, attention_mask(idx.shape[1]).to(idx.device))
        idx = torch.cat([idx, logits[:, -1:].argmax(-1)], 1)
    return idx[:, 1:]


def show_off(model, tokenizer, prompt, val_text, cfg):
    """Fill the gaps of the prompt.  -> metrics to add: none"""
    (inputs, targets), special = prompt, tokenizer.special
    if len(inputs) > cfg.seq_len:
        common.say(f"the prompt takes {len(inputs)} positions, the model has learnt on "
                   f"{cfg.seq_len}: all are read, but expect less")
    device, sentinels = next(model.parameters()).device, sentinel_ids(cfg, special)
    written = write_targets(model, inputs[None].to(device), cfg.seq_len, special)[0].cpu()
    restored = restore_spans(inputs, written, sentinels, special["EOS"])
    lines = {"inputs": inputs, "written": written, "targets": targets, "restored": restored}
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


PITFALLS = {"unshifted-decoder": {"batch_fn": unshifted_decoder},
            "causal-off": {"batch_fn": causal_off}}


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
