"""Continued pre-training: take a trained model to another domain, and measure what it forgets.

Objective
    L = -(1/N) * sum over t of log p(targets[t] | idx[<= t]) on rows of the domain's text, but for
    the share `replay` of them, which come from the general text that the base was trained on.
    forgetting = L_general(after) - L_general(before)
    adaptation = L_domain(before) - L_domain(after)

Expect (nats per character on both validation splits, tiny_shakespeare and Python 3.11's library)
                 general  domain
    base         1.65        -      after 330 steps
    before       1.65     5.00      the same, with rows for 31 new characters
    replay 0     2.78     1.53      after 110 steps on the domain
    replay 0.1   2.12     1.53
    replay 0.3   1.90     1.57
    scratch      2.94     1.65      a new model, after 110 steps on the domain

Source
    Ibrahim et al. 2024, "Simple and Scalable Strategies to Continually Pre-train Large Language
    Models", arXiv 2403.08763: re-warm and re-decay the rate, replay, fresh optimizer state (5.2).

Run
    python continued_pretrain.py                        # base, three shares of replay, a control
    python continued_pretrain.py --show                 # a row of each text, what is scored
    python continued_pretrain.py --load runs/clm/ckpt.pt --domain notes.txt --replay 0.05
    python continued_pretrain.py --pitfall rebuilt-vocab    # broken on purpose
"""
# -------------------------------------------------------- 1 imports and constants
import copy
import itertools
import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import torch
import torch.nn as nn
import torch.nn.functional as F

import common

IGNORE = -100               # the target of a position that is not scored
SPECIALS = ()               # tokens that are not characters; their ids come after the characters
KINDS = ("general", "domain")   # the text a scored target is of: losses are reported by kind
CODE_LENGTH = None          # two losses spell a text each: perplexity and bits of neither


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
    # the first three again, since they mean something else here
    steps: int = 110            # of each run on the domain; the base takes three times as many
    eval_every: int = 55        # steps between evaluations
    load: str = ""              # a base that clm.py or this script wrote, instead of training one
    domain: str = "stdlib"      # text to go on with: stdlib, pydoc, the path of a text file
    replay: str = "0,0.1,0.3"   # shares of rows from the general text, a run for each
    lr_scale: float = 1.0       # peak rate of these runs, as a multiple of the base's

    def __post_init__(self):
        try:
            self.shares = [float(share) for share in self.replay.split(",")]
        except ValueError:
            self.shares = [math.nan]
        if not all(0 <= share <= 1 for share in self.shares):
            raise common.Refusal(f"--replay {self.replay}: must be shares between 0 and 1, as in "
                                 f"{Config.replay}")
        if not self.lr_scale > 0:
            raise common.Refusal(f"--lr-scale {self.lr_scale}: must be above 0")


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


class Texts(NamedTuple):
    """Two corpora in the ids of one vocabulary, split into training and validation.

    A character of the domain is written ~id, that is -1 - id: the sign tells which text it is of,
    in every window and without a second array.
    """
    general: torch.Tensor       # (n,) long, >= 0  what the base was trained on
    general_val: torch.Tensor   # (m,) long, >= 0
    domain: torch.Tensor        # (n',) long, < 0  what it goes on with
    domain_val: torch.Tensor    # (m',) long, < 0


def make_batch(windows, cfg, special, rng):
    """Hide nothing: read a window, predict the same window one character later.

    (B, T + 1), rows of the domain as ~id -> Batch
    """
    ids = windows.where(windows >= 0, ~windows)
    idx, targets = ids[:, :-1], ids[:, 1:]              # the shift: here and nowhere else
    return Batch(idx, targets, (windows[:, 1:] < 0).long(), attention_mask(idx.shape[1]))


def count_replay(step, batch_size, share):
    """Rows of general text in the batch of a step: fractions are carried, the sum is exact."""
    # rounded: 45 * 8 * 0.7 comes out a little less than 252, and would lose a row
    due = [math.floor(round(n * batch_size * share, 6)) for n in (step, step + 1)]
    return due[1] - due[0]


def mix(general, share, draw_windows):
    """A draw for train: so many rows of the general text, the rest of the text that train gives.

    Compute-equivalent: replay takes the place of rows of the domain, it does not add any.
    """
    steps = itertools.count()

    def draw(text, batch_size, length, rng):
        n = count_replay(next(steps), batch_size, share)
        return torch.cat([draw_windows(general, n, length, rng),
                          draw_windows(text, batch_size - n, length, rng)])
    return draw


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
    """Score every position, as the base did.  -> loss to minimise, nll (B, T) to report"""
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


@torch.no_grad()
def grow(model, cfg, vocab_size, rarest):
    """The same weights in a model of more ids: old rows stay, those of new ids stand behind them.

    rarest: an old id. New rows of the head copy its row, since the base must not expect characters
    that it never saw. Left at zero, their logits would be 0, likelier than many an old character.
    """
    grown = build_model(cfg, vocab_size)
    for new, old in zip(grown.parameters(), model.parameters()):
        new[: len(old)] = old
    grown.head.weight[len(model.head.weight):] = model.head.weight[rarest]
    return grown.to(model.head.weight.device)


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
def no_warmup(step, steps):
    """Full rate at once. The old loss rises sooner, not higher: 2 % of the steps make no spike."""
    return (steps - step) / steps


def rebuilt_vocab(tokenizer, text):
    """Ids counted anew, over both texts. At step 0 the base reads and writes other characters."""
    return common.CharTokenizer("".join(tokenizer.ids) + text)


# each function takes the place of the one so named, once the base is trained
PITFALLS = {"no-warmup": {"lr_factor": no_warmup}, "rebuilt-vocab": {"widen": rebuilt_vocab}}


# -------------------------------------------------------- 10 main
def widen(tokenizer, text):
    """A tokenizer that knows the characters of text too: new ids follow, no old one moves."""
    wider = copy.deepcopy(tokenizer)
    wider.extend(text)
    return wider


def join_texts(base, general, own, domain, name):
    """Write two corpora in the ids of one tokenizer.  -> tokenizer, Texts

    base, own: tokenizers.  general, domain: training and validation ids.  name: of the domain
    Raises Refusal if a text holds the other: validation would be of what was trained on.
    """
    parts = [ids.decode(part) for ids, pair in ((base, general), (own, domain)) for part in pair]
    first, second = parts[0] + parts[1], parts[2] + parts[3]
    if first in second or second in first:
        raise common.Refusal(f"--domain {name}: the same text as --data, or a part of it")
    tokenizer = widen(base, second)
    ids = [tokenizer.encode(part) for part in parts]
    return tokenizer, Texts(ids[0], ids[1], ~ids[2], ~ids[3])


def join_rows(texts, cfg, n=None):
    """Whole windows of each text, one behind the other, for evaluate.  -> (m,)

    n: only so many of each, spread over it
    """
    rows = [text[: len(text) // raw_len(cfg) * raw_len(cfg)].view(-1, raw_len(cfg))
            for text in texts]
    return torch.cat([r[:: max(1, len(r) // (n or len(r)))][:n] for r in rows]).flatten()


def run(name, model, text, val_texts, cfg, tokenizer, corpus, draw=draw_windows):
    """Train and evaluate, with log and weights in a folder of its own.  -> its result.json"""
    common.say(f"\n{name}")
    cfg = replace(cfg, out=str(Path(cfg.out) / name), load="")
    log = common.Log(cfg, model, tokenizer, corpus)
    with log.training():
        train(model, text, join_rows(val_texts, cfg, 100 // len(val_texts)), cfg,
              tokenizer.special, log, draw=draw)
    return log.finish(evaluate(model, join_rows(val_texts, cfg), cfg, tokenizer.special))


def go_on(base, rarest, texts, cfg, tokenizer, corpus):
    """Train on the domain, from the base with each share of replay, then once from scratch.

    rarest: see grow.  -> {name: metrics}, of which "before" is the base with its new rows
    """
    val_texts = (texts.general_val, texts.domain_val)
    prompt = read_prompt(tokenizer, texts.general_val, cfg)
    torch.manual_seed(cfg.seed)
    grown = grow(base, cfg, tokenizer.vocab_size, rarest)
    fresh = build_model(cfg, tokenizer.vocab_size).to(grown.head.weight.device)
    runs = {"before": evaluate(grown, join_rows(val_texts, cfg), cfg, tokenizer.special)}
    scaled = replace(cfg, lr=cfg.lr * cfg.lr_scale)
    plan = {f"replay_{share:g}": (copy.deepcopy(grown), scaled,
                                  mix(texts.general, share, draw_windows))
            for share in cfg.shares}
    for name, (model, how, draw) in {**plan, "scratch": (fresh, cfg, draw_windows)}.items():
        runs[name] = run(name, model, texts.domain, val_texts, how, tokenizer, corpus, draw)
        show_off(model, tokenizer, prompt, texts.general_val, cfg)
        if runs[name]["interrupted"]:
            break
    return runs


def finish(runs, cfg, about):
    """Print the runs side by side, write result.json.  -> its content, with four metrics per run

    forgetting: above the base's loss, so that the row "before" shows what growing costs, and
    "scratch", which never knew the general text, how much there is to forget
    """
    result = {**about, "base_loss": runs["base"]["val_loss"], "config": asdict(cfg),
              "interrupted": any(run.get("interrupted") for run in runs.values()), "runs": runs}
    compared = {name: after for name, after in runs.items() if name != "base"}
    if compared:                                # not if Ctrl-C ended the base's training
        common.say(f"\n{'':12} general  domain forgetting adaptation")
        old, new = runs["base"]["val_loss"], runs["before"]["val_loss_domain"]
    for name, after in compared.items():
        general, domain = (after[f"val_loss_{kind}"] for kind in KINDS)
        row = {"general": general, "domain": domain, "forgetting": general - old,
               "adaptation": new - domain}
        common.say(f"{name:12}", *(f"{v:>{max(7, len(k))}.4f}" for k, v in row.items()))
        result |= {f"{measure}_{name}": value for measure, value in row.items()}
    text = json.dumps(result, indent=1)
    common.write(Path(cfg.out) / "result.json", lambda part: part.write_text(text, "utf-8"))
    return result


def main(argv=None):
    """Read the flags, train or load the base, then go on.  -> the content of result.json"""
    cfg = common.cli(Config, __doc__, argv, PITFALLS)
    if cfg.out == Config.out:
        cfg.out = str(common.HERE / "runs" / common.script(cfg))
    torch.manual_seed(cfg.seed)
    device = common.pick_device(cfg.device)
    base_ids, *general, corpus = common.load_data(cfg.data, SPECIALS, raw_len(cfg))
    own_ids, *domain, new_corpus = common.load_data(cfg.domain, SPECIALS, raw_len(cfg))
    prompt = read_prompt(base_ids, general[1], cfg)     # refused now, not after the training
    broken = PITFALLS.get(cfg.pitfall, {})
    for function in broken.values():
        common.say(f"pitfall {cfg.pitfall}: {function.__doc__}")
    with patch.dict(globals(), broken):
        tokenizer, texts = join_texts(base_ids, general, own_ids, domain, cfg.domain)
    if cfg.show:
        for text in (texts.general_val, texts.domain_val):
            batch = make_batch(text[None, : raw_len(cfg)], cfg, tokenizer.special, None)
            common.show(batch.idx, batch, tokenizer)
        return {}
    model = build_model(cfg, base_ids.vocab_size).to(device)
    if cfg.load:
        made = common.load(cfg.load, model, base_ids, cfg, makers=("clm",))
        if made.get("lr") != cfg.lr:                    # --lr-scale is a share of it
            raise common.Refusal(f"--load {cfg.load}: its peak rate is another, "
                                 f"add --lr {made.get('lr')}")
        runs = {"base": evaluate(model, general[1], cfg, base_ids.special)}
        common.say(f"base: {cfg.load}, val_loss {runs['base']['val_loss']:.4f}")
    else:
        longer = replace(cfg, steps=3 * cfg.steps)
        runs = {"base": run("base", model, general[0], general[1:], longer, base_ids, corpus)}
    show_off(model, base_ids, prompt, general[1], cfg)
    if not runs["base"].get("interrupted"):
        rarest = torch.bincount(general[0], minlength=base_ids.vocab_size).argmin()
        with patch.dict(globals(), broken):
            runs |= go_on(model, rarest, texts, cfg, tokenizer, new_corpus)
    return finish(runs, cfg, {"script": common.script(cfg), **corpus, "domain": new_corpus})


if __name__ == "__main__":
    common.run(main)
