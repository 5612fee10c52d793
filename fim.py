"""Fill in the middle (FIM): move a piece of text to the end, predict every character as before.

Objective
    L = -(1/N) * sum over t of log p(targets[t] | idx[<= t]),    targets[t] = idx[t + 1]
    The loss of clm.py, on rearranged rows: SPM  PRE SUF suffix MID prefix middle EOT
                                            PSM  PRE prefix SUF suffix MID middle EOT
    The middle now stands behind both of its neighbours. All parts are scored, EOT always: it says
    that the middle has met its suffix.

Expect (nats per character of the same middles behind the same prefix; tiny_shakespeare)
    steps   from the left   with its prompt   another text's suffix   plain rows
    0       4.174           4.174             4.174                   4.234 = ln 69
    560     1.820           1.760             1.776                   1.641, clm.py has 1.591
    1500    1.768           1.691             1.744                   1.539
    560: 3 seeds, 1500: one. The price: plain rows pay 0.05 for the text that the gaps take from
    them. Few rows begin with plain text, so that "from the left" is no fair rival: clm.py has 1.771
    on the same middles. Documents with a gap are short, for many gaps per row; the first one
    without a gap takes the rest of the row, for long plain text; gaps are laid out as SPM, which
    has the prefix in place, where PSM asks the model to jump back to it.

Source
    Bavarian et al. 2022, "Efficient Training of Language Models to Fill in the Middle",
    arXiv 2207.14255, section 3 and appendix D (SPM, second variant).

Run
    python fim.py                           # train a few minutes, score and fill gaps
    python fim.py --show                    # one rearranged row; no training
    python fim.py --pitfall cut-end         # broken on purpose: nothing tells the middle to stop
    python fim.py --load runs/fim/ckpt.pt --prompt "<PRE>the king is <SUF>."
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
SPECIALS = ("PRE", "SUF", "MID", "EOT")     # ids after the characters: no text can spell them
KINDS = ("prefix", "suffix", "middle", "special")   # plain text is a prefix that nothing follows
CODE_LENGTH = ""            # none: a row spells its cuts, too


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
    fim_rate: float = 0.8       # chance of a document to get a gap
    spm_rate: float = 1.0       # share of the gaps laid out as SPM; the others are PSM
    max_middle: int = 8         # longest middle; seq_len: long documents, the paper's cuts

    def __post_init__(self):
        if self.max_middle < 1:
            raise common.Refusal(f"--max-middle {self.max_middle}: must be above 0")
        if 0 < self.seq_len < 8:
            raise common.Refusal(f"--seq-len {self.seq_len}: a row with a gap needs at least 8")


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


def fim_prompt(prefix, suffix, special, order):
    """All that stands before the middle.  (p,), (s,) -> (p + s + 3,)

    SPM is the paper's second variant: the prefix stands last, so that the middle goes on from it.
    """
    PRE, SUF, MID = (prefix.new_tensor([special[name]]) for name in ("PRE", "SUF", "MID"))
    if order == "PSM":
        return torch.cat([PRE, prefix, SUF, suffix, MID])
    return torch.cat([PRE, SUF, suffix, MID, prefix])


def fim_permute(ids, i, j, special, order):
    """Move the middle ids[i:j] to the end and close it.  (n,) -> (n + 4,)"""
    prompt = fim_prompt(ids[:i], ids[j:], special, order)
    return torch.cat([prompt, ids[i:j], ids.new_tensor([special["EOT"]])])


def fim_restore(row, special, order):
    """Undo fim_permute.  (n + 4,) -> ids (n,), i, j

    i is None for SPM: nothing stands between its prefix and its middle.
    """
    suf, mid = ((row == special[name]).nonzero().item() for name in ("SUF", "MID"))
    head, suffix, tail = row[1:suf], row[suf + 1 : mid], row[mid + 1 : -1]
    j = len(head) + len(tail)
    return torch.cat([head, tail, suffix]), len(head) if order == "PSM" else None, j


def draw_cut(n, rng, max_middle):
    """Two independent cuts of n characters, drawn again while the middle is too long.  -> i <= j"""
    while True:
        # + 1: a cut may stand behind the last character, so that any of the parts can be empty
        i, j = sorted(torch.randint(n + 1, (2,), generator=rng).tolist())
        if j - i <= max_middle:
            return i, j


def longest_document(cfg):
    """Characters. Short middles, short documents: many gaps per row, the suffix near its middle."""
    return min(cfg.max_middle * 5 // 2, cfg.seq_len - 3)    # a row with a gap: four more places


def draw_document(cfg, rng):
    """Length of a document that gets a gap, its cuts and their order.  -> n, i, j, order"""
    # lengths vary: where documents have one length, the model counts its way to EOT
    longest = longest_document(cfg)
    n = int(torch.randint(-(-longest // 4), longest + 1, (), generator=rng))
    order = "SPM" if torch.rand((), generator=rng) < cfg.spm_rate else "PSM"
    return n, *draw_cut(n, rng, cfg.max_middle), order


def fim_row(window, documents, special):
    """Permute documents of a window, one behind the other.  (m,) -> row (m,), kind (m,)

    documents: list of (n, i, j, order); the text behind the last one stays as it is. A gap takes
    four places: the end of the window is left out to make room for them, since to cut a permuted
    row would cut its middle.
    """
    rows, kinds, at = [], [], 0
    for n, i, j, order in documents:
        kind = torch.zeros(n, dtype=torch.long)
        kind[i:j], kind[j:] = KINDS.index("middle"), KINDS.index("suffix")
        named = dict.fromkeys(special, KINDS.index("special"))
        rows.append(fim_permute(window[at : at + n], i, j, special, order))
        kinds.append(fim_permute(kind, i, j, named, order))
        at += n
    rest = window[at : len(window) - 4 * len(documents)]
    return torch.cat([*rows, rest]), torch.cat([*kinds, torch.zeros_like(rest)])


def draw_row(window, cfg, special, rng):
    """Open gaps in short documents, one behind the other.  (m,) -> row (m,), kind (m,)

    The first document without a gap is not short: it takes the rest of the row, so that plain
    text is learnt from long pieces.
    """
    documents, room = [], len(window)
    while torch.rand((), generator=rng) < cfg.fim_rate:
        n, i, j, order = draw_document(cfg, rng)
        room -= n + 4
        if room < 0:
            break
        documents.append((n, i, j, order))
    return fim_row(window, documents, special)


def make_batch(windows, cfg, special, rng):
    """Rearrange, then shift as in clm.py: read a row, predict the same row one id later.

    (B, T + 1) -> Batch
    """
    rows = [draw_row(window, cfg, special, rng) for window in windows]
    rows, kind = (torch.stack(part) for part in zip(*rows))
    idx, targets = rows[:, :-1], rows[:, 1:]            # the shift: here and nowhere else
    return Batch(idx, targets, kind[:, 1:], attention_mask(idx.shape[1]))


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
    """Score every position.  -> loss to minimise, nll (B, T) to report"""
    logits = model(batch.idx, batch.mask)               # (B, T, V)
    nll = token_nll(logits, batch.targets)
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
    """The two sides of a gap: <PRE>left<SUF>right, or some of the validation text.

    -> prefix, suffix, long.  Raises Refusal.
    """
    room = longest_document(cfg)
    prefix, suffix = val_text[: room // 3], val_text[room // 3 * 2 : room]
    if cfg.prompt:
        left, found, right = common.unify_newlines(cfg.prompt).partition("<SUF>")
        if not (left.startswith("<PRE>") and found):
            raise common.Refusal(f"--prompt {cfg.prompt!a}: must read <PRE>left<SUF>right")
        prefix, suffix = tokenizer.encode(left.removeprefix("<PRE>")), tokenizer.encode(right)
    if (over := len(prefix) + len(suffix) - room) > 0:
        common.say(f"no document of the training has more than {room} characters: {over} of the "
                   "prompt, those far from the gap, are dropped")
        suffix = suffix[: max(room // 2, room - len(prefix))]
        prefix = prefix[max(0, len(prefix) + len(suffix) - room) :]
    return prefix, suffix


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


def infill(model, prompt, special, cfg, rng):
    """Sample a middle until EOT.  (t,) -> middle (m,), whether it ended by itself"""
    ids = prompt.to(next(model.parameters()).device)
    for _ in range(longest_document(cfg)):
        ids = sample(model, ids, 1, cfg.seq_len, cfg.temperature, rng)
        if ids[-1] == special["EOT"]:
            return ids[len(prompt) : -1], True
    return ids[len(prompt) :], False


def draw_gaps(text, cfg, max_rows=1000):
    """A gap at the start of each window, the same every time.

    -> list of (window, the next window, (n, i, j, order))
    """
    rng = torch.Generator().manual_seed(2)
    rows = text[: len(text) // raw_len(cfg) * raw_len(cfg)].view(-1, raw_len(cfg))[:max_rows]
    drawn = ((*pair, draw_document(cfg, rng)) for pair in zip(rows, rows.roll(-1, 0)))
    # from the left, nothing predicts the first character of a row: it belongs to no middle
    return [(window, other, (n, max(i, 1), max(j, 1), order))
            for window, other, (n, i, j, order) in drawn]


@torch.no_grad()
def score_gaps(model, gaps, special):
    """The same middles scored three ways, over the characters only; EOT by itself.  -> metrics

    ltr: in the plain window, behind the same prefix.  wrong_suffix: with text from elsewhere.
    """
    device, n_chars = next(model.parameters()).device, min(special.values())
    rows = {"ltr": [], "wrong_suffix": [], "fim": []}
    for window, other, (n, i, j, order) in gaps:
        plain = F.pad(torch.full((j - i,), KINDS.index("middle")), (i, len(window) - j))
        swapped = torch.cat([window[:j], other[j:]])
        rows["ltr"].append((window, plain))
        rows["wrong_suffix"].append(fim_row(swapped, [(n, i, j, order)], special))
        rows["fim"].append(fim_row(window, [(n, i, j, order)], special))
    metrics = {}
    for way, pairs in rows.items():
        found = []
        for at in range(0, len(pairs), 64):
            row, kind = (torch.stack(part).to(device) for part in zip(*pairs[at : at + 64]))
            logits = model(row[:, :-1], attention_mask(row.shape[1] - 1).to(device))
            targets, middle = row[:, 1:], kind[:, 1:] == KINDS.index("middle")
            # a model that may stop anywhere pays for that at each character: score EOT by itself
            nll = token_nll(logits[..., :n_chars], targets.where(middle, IGNORE))
            eot = -logits.log_softmax(-1)[..., special["EOT"]]
            found.append((nll[middle], eot[targets == special["EOT"]], eot[middle]))
        nll, end, inside = (torch.cat(part).double().mean().item() for part in zip(*found))
        metrics[f"val_middle_{way}"] = nll
    metrics |= {"val_eot_at_end": end, "val_eot_inside": inside}
    return {name: mean for name, mean in metrics.items() if mean == mean}     # some text, no middle


def fill_gaps(model, gaps, cfg, special):
    """Fill gaps by sampling.  -> share that ends by itself, mean length over the true one"""
    rng, filled, true, stops = torch.Generator().manual_seed(cfg.seed), 0, 0, 0
    for window, _, (n, i, j, order) in gaps:
        prompt = fim_prompt(window[:i], window[j:n], special, order)
        middle, ended = infill(model, prompt, special, cfg, rng)
        filled, true, stops = filled + len(middle), true + j - i, stops + ended
    return {"stop_rate": stops / len(gaps), "length_ratio": filled / max(true, 1)}


def show_off(model, tokenizer, prompt, val_text, cfg):
    """Score gaps, fill a hundred and the prompt.  -> metrics; val_loss is that of plain rows"""
    special, (prefix, suffix), plain = tokenizer.special, prompt, replace(cfg, fim_rate=0.0)
    metrics = {"val_loss": evaluate(model, val_text, plain, special)["val_loss"]}
    gaps = draw_gaps(val_text, cfg)
    metrics |= score_gaps(model, gaps, special) | fill_gaps(model, gaps[:100], cfg, special)
    for order in ("PSM", "SPM"):
        rng, ids = torch.Generator().manual_seed(cfg.seed), fim_prompt(*prompt, special, order)
        middle, ended = infill(model, ids, special, cfg, rng)
        head, fill, tail = (tokenizer.decode(part) for part in (prefix, middle, suffix))
        how = "ended by itself" if ended else "did not end"
        common.say(f"{order}, {how}: {head}[{fill}]{tail}")
    return metrics


# -------------------------------------------------------- 9 pitfalls: broken on purpose
def cut_end(windows, cfg, special, rng):
    """Permuted first, trimmed after. Each middle loses its end, EOT too: no fill ever stops."""
    batch, rows = make_batch(windows, replace(cfg, fim_rate=0.0), special, rng), windows.clone()
    for b, window in enumerate(windows):
        if torch.rand((), generator=rng) < cfg.fim_rate:
            cuts = draw_cut(len(window), rng, cfg.max_middle)
            rows[b] = fim_permute(window, *cuts, special, "SPM")[: len(window)]
    return batch._replace(idx=rows[:, :-1], targets=rows[:, 1:])


def middle_only(windows, cfg, special, rng):
    """Only the middle and EOT are scored. Left to right it can write no more."""
    batch = make_batch(windows, cfg, special, rng)
    middle = (batch.kind == KINDS.index("middle")) | (batch.targets == special["EOT"])
    return batch._replace(targets=batch.targets.where(middle, IGNORE))


def tokens_not_added(windows, cfg, special, rng):
    """The ids exist, no row ever held one. To the model the prompt is noise."""
    return make_batch(windows, replace(cfg, fim_rate=0.0), special, rng)


PITFALLS = {"cut-end": {"batch_fn": cut_end}, "middle-only": {"batch_fn": middle_only},
            "tokens-not-added": {"batch_fn": tokens_not_added}}


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
