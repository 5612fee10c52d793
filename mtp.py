"""Multi-token prediction (MTP): predict the next character, and the ones behind it one by one.

Objective
    L   = L_main + mtp_weight / D * sum over k = 1..D of L_k,    L_main the loss of clm.py
    L_k = -(1/N_k) * sum over i of log p_k(idx[i + k + 1] | idx[<= i + k]),    N_k its targets
    h_k[i] = block_k(M_k [norm(h_(k-1)[i]); norm(emb(idx[i + k]))]),    p_k = softmax(head(h_k))
    h_0 is what the main model puts into its head; emb and head are those of the main model. The
    paper divides L_k by the length of the window, not by its targets: (T - k) / T as much.

Expect (nats per character, tiny_shakespeare; the entropies are properties of the text)
    4.174   ln 65: step 0, a uniform guess, main and depth alike
    2.453   bigram entropy: also knows the previous character
    1.592   depth 1 at the end of the default run, 1.580 the main model; seed 0
    Both estimate one entropy, since depth k reads every character up to i + k. train and val are
    means over all targets; val_main is what compares with clm.py. That comes to 1.576 with this
    seed, in three quarters of the time: the main model gains nothing here. What is gained is the
    draft: 0.91 of them are right in greedy text, which runs in circles; on true text depth 1 and
    the main model find the same character the likeliest at 0.83 of the positions.

Source
    DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", arXiv 2412.19437, section 2.2, eq. 21 to 25.
    Released weights stack [emb; h]; this is equation 21, [h; emb].

Run
    python mtp.py                          # train a few minutes, then write, drafting ahead
    python mtp.py --show                   # one example, the mask, what is scored; no training
    python mtp.py --pitfall offset         # broken on purpose: what does the loss do?
    python mtp.py --load runs/mtp/ckpt.pt --prompt "ROMEO:"
"""
# -------------------------------------------------------- 1 imports and constants
import math
import time
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F

import common

IGNORE = -100               # the target of a position that is not scored
SPECIALS = ()               # tokens that are not characters; their ids come after the characters
KINDS = ("main", "depth1", "depth2", "depth3")      # losses are reported by kind, as far as used
CODE_LENGTH = "val_loss_main"   # the loss that spells a whole text: it has a perplexity and bits


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
    depth: int = 1              # modules behind the main model, D: characters predicted ahead
    mtp_weight: float = 0.3     # of their mean loss beside the main loss

    def __post_init__(self):
        if not 1 <= self.depth < len(KINDS) or self.depth >= self.seq_len > 0:
            raise common.Refusal(f"--depth {self.depth} --seq-len {self.seq_len}: the depth must "
                                 f"be 1 to {len(KINDS) - 1}, and below the length to have targets")
        if not self.mtp_weight >= 0:
            raise common.Refusal(f"--mtp-weight {self.mtp_weight}: must be 0 or above")


# -------------------------------------------------------- 3 transform: what is corrupted?
class Batch(NamedTuple):
    """One training batch; N = T + (T - 1) + ... + (T - D)."""
    idx: torch.Tensor       # (B, T) long  what the model reads
    targets: torch.Tensor   # (B, N) long  what it must predict: main (T), then depth k (T - k) each
    kind: torch.Tensor      # (B, N) long  index into KINDS: 0 main, k depth k
    mask: torch.Tensor      # (T, T) bool  who may attend to whom, True = may


def raw_len(cfg):
    """Characters per window before the transform: the last one is a target only."""
    return cfg.seq_len + 1


def make_batch(windows, cfg, special, rng):
    """Hide nothing: the targets of clm.py, and once more for each depth, without the first k.

    (B, T + 1) -> Batch
    """
    idx, targets = windows[:, :-1], windows[:, 1:]      # the shift: here and nowhere else
    # position i of depth k reads character i + k and predicts the one behind it: the last k
    # positions of the window have none, and nothing wraps
    parts = [targets[:, k:] for k in range(1 + cfg.depth)]
    kind = [torch.full_like(part, k) for k, part in enumerate(parts)]
    return Batch(idx, torch.cat(parts, 1), torch.cat(kind, 1), attention_mask(idx.shape[1]))


# -------------------------------------------------------- 4 mask: who may attend to whom?
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
    """Score the main model and every depth.  -> loss to minimise, nll (B, N) to report"""
    logits = model.depths(batch.idx, batch.mask)        # (B, T, V), then (B, T - k, V) each
    targets = batch.targets.split([part.shape[1] for part in logits], 1)
    nll = [token_nll(*pair) for pair in zip(logits, targets)]
    loss, *ahead = (mean_nll(*pair) for pair in zip(nll, targets))
    if cfg.mtp_weight:          # at 0 the modules get no gradient at all, and this is clm.py
        loss = loss + cfg.mtp_weight * sum(ahead) / len(ahead)
    return loss, torch.cat(nll, 1)


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


class MTPModule(nn.Module):
    """One depth: position i and the character k ahead of it, (B, n, D) each -> (B, n, D)."""

    def __init__(self, cfg):
        super().__init__()
        self.merge = nn.Linear(2 * cfg.d_model, cfg.d_model, bias=False)    # M_k
        self.block = Block(cfg.d_model, cfg.n_head)

    def forward(self, h, ahead, attn_mask):
        x = self.merge(torch.cat([norm(h), norm(ahead)], -1))
        return norm(self.block(x, attn_mask))


class MTP(LM):
    """An LM, with modules behind it that share its embedding and its head."""

    def __init__(self, cfg, vocab_size):
        super().__init__(cfg, vocab_size)       # first, so that the seed gives clm.py's weights
        # not "ahead": make_optimizers takes what has "head" in its name from Muon
        self.mtp = nn.ModuleList(MTPModule(cfg) for _ in range(cfg.depth))

    def depths(self, idx, attn_mask):
        """idx (B, T), attn_mask (T, T) -> logits of main (B, T, V), of each depth (B, T - k, V)"""
        h = self.hidden(idx, attn_mask)         # no detach: all depths teach the main model
        logits = [self.head(h)]
        for k, module in enumerate(self.mtp, 1):
            h = module(h[:, :-1], self.emb(idx[:, k:]), attn_mask[:-k, :-k])
            logits.append(self.head(h))
        return logits


def build_model(cfg, vocab_size):
    """The network of this objective."""
    return MTP(cfg, vocab_size)


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
    """The text to continue: the prompt, or validation text.  -> (n,) long. Raises Refusal."""
    # not a line end, as in clm.py: the likeliest character behind it is another, and so on
    text = common.unify_newlines(cfg.prompt)
    return tokenizer.encode(text) if text else val_text[: cfg.seq_len // 2]


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


def draft(model, h, ids, n):
    """Guess the n characters behind ids, one per depth.

    h (1, t - 1, D): main model, all of ids (t,) but the last.  -> (n,); n up to the depth
    """
    t, mask = len(ids), attention_mask(len(ids) - 1).to(ids.device)
    for k in range(1, n + 1):
        h = model.mtp[k - 1](h, model.emb(ids[None, k:]), mask)     # reads the drafts before it
        ids = torch.cat([ids, model.head(h[:, -1]).argmax(-1)])
    return ids[t:]


@torch.no_grad()
def speculate(model, ids, n):
    """Continue ids by the n likeliest characters: modules draft, the main model judges.

    (t,) -> (t + n,), drafts judged, drafts accepted, forwards of the main model

    What sample writes at temperature 0, up to ties that rounding decides, for t + n up to seq_len:
    beyond it sample drops the first characters one by one; a forward that judges several cannot.
    """
    end, judged, accepted, forwards = len(ids) + n, 0, 0, 0
    drafts = ids[:0]
    while len(ids) < end:
        idx = torch.cat([ids, drafts])[None]
        h = model.hidden(idx, attention_mask(idx.shape[1]).to(idx.device))
        likeliest = model.head(h[0, len(ids) - 1:]).argmax(-1)      # (drafts + 1,)
        right = int((likeliest[:-1] == drafts).long().cumprod(0).sum())
        judged, accepted, forwards = judged + len(drafts), accepted + right, forwards + 1
        # the first wrong draft costs nothing: the right character is known in its place
        ids = torch.cat([ids, likeliest[: right + 1]])
        drafts = draft(model, h[:, : len(ids) - 1], ids, min(len(model.mtp), end - len(ids) - 1))
    return ids, judged, accepted, forwards


def show_off(model, tokenizer, prompt, val_text, cfg):
    """Fill the window behind 19 validation texts and the prompt, greedily, with and without drafts.

    -> accept_rate of the drafts, tokens_per_forward, speedup: seconds without / with; no cache
    """
    half, device = cfg.seq_len // 2, next(model.parameters()).device
    if len(prompt) > half:
        common.say(f"the prompt has {len(prompt)} characters, its last {half} are read: they and "
                   f"what is written must fit into {cfg.seq_len}")
    starts = torch.linspace(0, len(val_text) - half, 20).long().tolist()[1:]
    tally = torch.zeros(7, dtype=torch.float64)
    for ids in (*(val_text[i : i + half] for i in starts), prompt[-half:]):
        ids, n, begun = ids.to(device), cfg.seq_len - len(ids), time.perf_counter()
        plain = sample(model, ids, n, cfg.seq_len, 0, None)
        between = time.perf_counter()
        text, *counts = speculate(model, ids, n)
        tally += torch.tensor([n, *counts, between - begun, time.perf_counter() - between,
                               torch.equal(plain, text)])
    common.say(f"{tokenizer.decode(ids)}[{tokenizer.decode(text[len(ids):])}]")
    written, judged, accepted, forwards, without, drafting, same = tally.tolist()
    common.say(f"20 texts, {same:.0f} of them letter for letter those of plain greedy decoding")
    return {"accept_rate": accepted / max(judged, 1), "tokens_per_forward": written / forwards,
            "speedup": without / drafting}


# -------------------------------------------------------- 9 pitfalls: broken on purpose
def offset(windows, cfg, special, rng):
    """A depth's target is the character it reads. Its training loss -> 0, its drafts are echoes."""
    batch = make_batch(windows, cfg, special, rng)
    return batch._replace(targets=torch.cat(
        [windows[:, 1:], *(windows[:, k:-1] for k in range(1, 1 + cfg.depth))], 1))


PITFALLS = {"offset": {"batch_fn": offset}}


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
