"""What every script needs and none of them teaches: text, characters, flags, device, files, log.

The objective, the model and the training loop stand in the scripts. Nothing here knows them.
"""
import argparse
import contextlib
import csv
import dataclasses
import difflib
import hashlib
import inspect
import json
import math
import os
import re
import statistics
import sys
import sysconfig
import time
import urllib.request
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode

HERE = Path(__file__).resolve().parent
URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


class Refusal(ValueError):
    """A user's mistake in one line; the exit code is 2 for a wrong setting, 1 for missing or bad data."""

    def __init__(self, message, code=2):
        super().__init__(message)
        self.code = code


def say(*words):
    """Print at once. A closed terminal ends the printing, never the training."""
    try:
        print(*words, flush=True)
    except (OSError, ValueError):
        sys.stdout = open(os.devnull, "w", encoding="utf-8")


# ---------------------------------------------------------------- text
def unify_newlines(text):
    """CRLF and CR become LF."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def resolve_corpus(name):
    """The corpus that will really be read: a missing tiny_shakespeare is downloaded, else pydoc stands in."""
    path = HERE / "data" / "tiny_shakespeare.txt"
    if name != "tiny_shakespeare" or path.exists():
        return name
    say(f"downloading tiny_shakespeare (1.1 MB) to {path}")
    try:
        with urllib.request.urlopen(URL, timeout=10) as answer:
            raw = answer.read()
        if hashlib.sha256(raw).hexdigest() != SHA256:
            raise OSError("what came is not the expected text")
        path.parent.mkdir(exist_ok=True)
        write(path, lambda part: part.write_bytes(raw))
    except (OSError, Refusal) as error:
        say(f"tiny_shakespeare is not here and cannot be had from {URL} ({error})")
        say(f"to use it, put that file at {path}")
        say("going on with pydoc, a text that comes with Python: the numbers of the README do not apply")
        return "pydoc"
    return name


def load_text(name_or_path="tiny_shakespeare"):
    """The text of a corpus, line ends as LF.

    tiny_shakespeare   data/tiny_shakespeare.txt beside the scripts: see resolve_corpus
    pydoc              the English of Python's language reference, as this interpreter carries it
    stdlib             a million characters of Python source from this interpreter's library
    anything else      path of a UTF-8 file

    Raises Refusal if the file is missing, unreadable, empty or not UTF-8.
    """
    name = resolve_corpus(name_or_path)
    if name == "pydoc":
        from pydoc_data.topics import topics
        return unify_newlines("\n\n".join(topics[key] for key in sorted(topics)))
    if name == "stdlib":
        modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        sources = (module.read_text(encoding="utf-8", errors="replace") for module in modules)
        # one module with foreign letters would add hundreds of characters that occur once
        return unify_newlines("\n\n".join(source for source in sources if source.isascii())[:1_000_000])
    path = HERE / "data" / "tiny_shakespeare.txt" if name == "tiny_shakespeare" else Path(name)
    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        at = error.start + 3 * raw.startswith(b"\xef\xbb\xbf")      # the decoder counts from behind the BOM
        raise Refusal(f"{path} is not UTF-8: byte {at} is 0x{raw[at]:02x}", 1) from None
    except OSError as error:
        raise Refusal(f"{path} cannot be read: {error.strerror}", 1) from None
    if not text:
        raise Refusal(f"{path} is empty", 1)
    return unify_newlines(text)


class CharTokenizer:
    """Characters as ids: the sorted characters of a text get 0, 1, …; specials and later characters follow.

    special: dict name -> id.  No id ever moves.
    """

    def __init__(self, text, specials=()):
        self.shown, self.ids, self.special = [], {}, {}     # id -> str, character -> id, special -> id
        self.extend(text)
        self.add_specials(specials)

    @property
    def vocab_size(self):
        return len(self.shown)

    def extend(self, text):
        """Append the characters that are new, sorted."""
        for char in sorted(set(text) - set(self.ids)):
            self.ids[char] = self.vocab_size
            self.shown.append(char)

    def add_specials(self, names):
        """Append the specials that are new, in the order given."""
        for name in names:
            if name not in self.special:
                self.special[name] = self.vocab_size
                self.shown.append(f"<{name}>")

    def encode(self, text):
        """str -> (n,) long. Never yields a special: "<EOT>" is five ordinary characters.

        Raises Refusal that names the unknown characters.
        """
        if unknown := sorted(set(text) - set(self.ids)):
            raise Refusal(f"not among the {len(self.ids)} characters of the text: {' '.join(map(ascii, unknown))}")
        return torch.tensor([self.ids[char] for char in text], dtype=torch.long)

    def decode(self, ids):
        """(n,) long or list -> str; specials are shown as <NAME>."""
        return "".join(self.shown[i] for i in torch.as_tensor(ids).tolist())


def load_data(name, specials, window):
    """Read a corpus and split it 90 / 10; the validation text is its end.

    -> tokenizer, training ids (n,), validation ids (m,), {"corpus": name, "corpus_sha256": hex}

    window: characters that each split must have.  Raises Refusal.
    """
    name = resolve_corpus(name)
    text = load_text(name)
    tokenizer = CharTokenizer(text, specials)
    ids = tokenizer.encode(text)
    n = int(0.9 * len(ids))
    for split, part in (("training", ids[:n]), ("validation", ids[n:])):
        if len(part) < window:
            raise Refusal(f"{name}: its {split} split has {len(part):,} characters and one window needs {window:,}", 1)
    if len(tokenizer.ids) == 1:
        raise Refusal(f"{name} repeats one character: nothing to predict", 1)
    return tokenizer, ids[:n], ids[n:], {"corpus": name, "corpus_sha256": hashlib.sha256(text.encode()).hexdigest()}


# ---------------------------------------------------------------- flags
class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Refusal(message)


def number(word):
    """A float that is finite: nan and inf pass every comparison or none."""
    value = float(word)
    if not math.isfinite(value):
        raise ValueError(word)
    return value


def cli(Config, doc, argv=None, pitfalls=()):
    """Turn the fields of the dataclass Config into flags, their trailing comments into help.  -> Config

    Raises Refusal for an unknown flag, a wrong type or a value out of its range.
    """
    parser = Parser(description=doc, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)
    comments = dict(re.findall(r"^    (\w+):.*?# (.*)$", inspect.getsource(Config), re.MULTILINE))
    for field in dataclasses.fields(Config):
        note = f"{comments[field.name]} (default: {field.default!r})".replace("%", "%%")
        how = {"action": argparse.BooleanOptionalAction} if field.type is bool else {
            "type": number if field.type is float else field.type, "metavar": field.type.__name__}
        parser.add_argument("--" + field.name.replace("_", "-"), default=field.default, help=note, **how)
    values, unknown = parser.parse_known_args(argv)
    if unknown:
        flags = [flag for action in parser._actions for flag in action.option_strings]
        near = difflib.get_close_matches(unknown[0].split("=")[0], flags, 1)
        raise Refusal(f"unknown flag {unknown[0]}; " + (f"did you mean {near[0]}?" if near else "--help lists them"))
    cfg = Config(**vars(values))
    check(cfg)
    if cfg.pitfall and cfg.pitfall not in pitfalls:
        raise Refusal(f"--pitfall {cfg.pitfall}: not one of {', '.join(pitfalls)}")
    return cfg


def check(cfg):
    """Raise Refusal for a field out of its range."""
    for name, value in dataclasses.asdict(cfg).items():
        flag = f"--{name.replace('_', '-')} {value}"
        if name in "steps batch_size seq_len d_model n_layer n_head lr eval_every".split() and not value > 0:
            raise Refusal(f"{flag}: must be above 0")
        if name in ("seed", "temperature") and not value >= 0:
            raise Refusal(f"{flag}: must be 0 or above")
        if name.endswith(("_rate", "_density", "_smoothing")) and not 0 <= value <= 1:
            raise Refusal(f"{flag}: must be between 0 and 1")
    if cfg.d_model % (2 * cfg.n_head):
        raise Refusal(f"--d-model {cfg.d_model} --n-head {cfg.n_head}: the width must be a multiple of twice "
                      "the heads, because rotary positions turn pairs of features")


# ---------------------------------------------------------------- device
def pick_device(name="auto"):
    """The one place that chooses: cuda, then mps, then cpu.  Raises Refusal if the named one is absent."""
    found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(device for device in found if found[device])
    if not found.get(name):
        here = ", ".join(device for device in found if found[device])
        raise Refusal(f"--device {name}: this machine and this torch have {here}")
    if name == "cuda":
        torch.set_float32_matmul_precision("high")      # tf32
    return torch.device(name)


class Float32Muon(TorchFunctionMode):
    """Within it, torch.optim.Muon orthogonalises in float32 instead of bfloat16.

    A processor without bfloat16 units, as in most laptops, is 20 times slower there: 843 ms a step, not 40.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        # a copy, as the cast would be: Muon goes on to change it in place
        return args[0].clone() if func is torch.Tensor.bfloat16 else func(*args, **(kwargs or {}))


# ---------------------------------------------------------------- files
def write(path, save):
    """Write a file whole or not at all: save(a temporary path), then rename.  Raises Refusal."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        save(part)
        part.replace(path)
    except (OSError, RuntimeError) as error:            # torch reports a full disk as RuntimeError
        raise Refusal(f"{path} cannot be written: {error}", 1) from None
    finally:
        part.unlink(missing_ok=True)


def script(cfg):
    """Name of the script whose Config this is."""
    return Path(inspect.getfile(type(cfg))).stem


def save(path, model, tokenizer, cfg):
    """Write a checkpoint: tensors and plain Python types only, so that weights_only=True opens it anywhere."""
    content = {"script": script(cfg), "config": dataclasses.asdict(cfg), "vocabulary": vars(tokenizer),
               "model": {name: tensor.cpu() for name, tensor in model.state_dict().items()}}
    write(path, lambda part: torch.save(content, part))


def load(path, model, tokenizer, cfg):
    """Put the weights of a checkpoint into model.  Raises Refusal if they are of other making."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        maker, made = content["script"], content["config"]
        other = " ".join(f"--{name.replace('_', '-')} {made[name]}" for name in ("d_model", "n_layer", "n_head")
                         if made[name] != getattr(cfg, name))
    except OSError as error:
        raise Refusal(f"--load {path}: {error.strerror}", 1) from None
    except Exception as error:      # cut short, something else, or code in a pickle: none of it was run
        raise Refusal(f"--load {path}: not a checkpoint of these scripts ({type(error).__name__})", 1) from None
    if maker != script(cfg):
        raise Refusal(f"--load {path}: written by {maker}.py, this is {script(cfg)}.py", 1)
    if other:
        raise Refusal(f"--load {path}: its sizes differ from these settings, add {other}")
    if content["vocabulary"] != vars(tokenizer):
        raise Refusal(f"--load {path}: its vocabulary is that of --data {made['data']}, not of --data {cfg.data}")
    model.load_state_dict(content["model"])


# ---------------------------------------------------------------- log
class Log:
    """Terminal lines, log.csv, ckpt.pt and result.json of one run; with --load none of the files.

    losses: training loss of every step, nats
    """

    def __init__(self, cfg, model, tokenizer, corpus):
        self.cfg, self.model, self.tokenizer = cfg, model, tokenizer
        self.out = HERE / "runs" / script(cfg) if cfg.out == "runs/<script>" else Path(cfg.out)
        self.losses, self.norms, self.rows, self.lr = [], [], [], 0.0
        self.skipped = self.not_finite = self.tokens = 0
        self.train_seconds, self.interrupted = 0.0, False
        device, threads = next(model.parameters()).device.type, torch.get_num_threads()
        self.about = {"script": script(cfg), **corpus, "vocab_size": tokenizer.vocab_size,
                      "n_params": sum(p.numel() for p in model.parameters()), "device": device,
                      "threads": threads, "torch": torch.__version__, "config": dataclasses.asdict(cfg)}
        say("{script}.py on {corpus} (sha256 {corpus_sha256:.8}), {vocab_size} ids, {n_params:,} parameters; "
            "{device}, {threads} threads, torch {torch}".format(**self.about))
        if not cfg.load:
            try:
                self.out.mkdir(parents=True, exist_ok=True)
                self.csv = open(self.out / "log.csv", "w", newline="", encoding="utf-8")
            except OSError as error:
                raise Refusal(f"--out {self.out} cannot be written: {error.strerror}") from None
            say(f"{cfg.steps:,} steps of {cfg.batch_size} x {cfg.seq_len} positions, seed {cfg.seed}, into {self.out}")
        self.begun = self.mark = time.perf_counter()

    def usable(self, loss, grad_norm):
        """Whether the optimizers should take this gradient: it is finite and not far from the usual.

        Raises Refusal when the loss is not finite three times running.
        """
        self.not_finite = 0 if math.isfinite(loss) else self.not_finite + 1
        if self.not_finite == 3:
            raise Refusal(f"loss {loss} three times running, at step {len(self.losses)}, learning rate {self.lr:.2g}", 1)
        usual = statistics.median(self.norms[-100:]) if len(self.norms) >= 20 else math.inf
        self.norms.append(grad_norm if math.isfinite(grad_norm) else math.inf)
        usable = math.isfinite(grad_norm) and grad_norm <= 10 * usual
        self.skipped += not usable
        return usable

    def step(self, loss, lr, tokens):
        """Count a training step: its loss in nats, its learning rate, the positions it read."""
        now = time.perf_counter()
        self.train_seconds, self.mark = self.train_seconds + now - self.mark, now
        self.tokens, self.lr = self.tokens + tokens, lr
        self.losses.append(loss)

    def row(self, step, metrics):
        """Print and write an evaluation (dict name -> float), and save the weights."""
        recent = self.losses[self.rows[-1]["step"] if self.rows else 0:]
        row = {"step": step, "train_loss": sum(recent) / len(recent) if recent else None, **metrics,
               "grad_norm": self.norms[-1] if step else None, "lr": self.lr, "skipped": self.skipped,
               "tokens_per_s": self.tokens / self.train_seconds if step else None, "train_seconds": self.train_seconds}
        self.rows.append(row)
        table = csv.DictWriter(self.csv, row)
        if len(self.rows) == 1:
            table.writeheader()
        table.writerow(row)
        self.csv.flush()
        self.save()
        seconds = (time.perf_counter() - self.begun) / step * (self.cfg.steps - step) if step else 0
        cells = {name.removeprefix("val_loss_"): value for name, value in row.items() if name not in ("lr", "train_seconds")}
        if len(self.rows) == 1:
            say("".join(f"{name:>13}" for name in cells) + "  time left")
        say("".join(f"{'-':>13}" if value is None else f"{value:13,.4f}" if abs(value) < 1000 and isinstance(value, float)
                    else f"{value:13,.0f}" for value in cells.values())
            + (f"{seconds // 60:8.0f}:{seconds % 60:02.0f}" if step else f"{'-':>11}"))
        self.mark = time.perf_counter()

    def save(self):
        """Write ckpt.pt."""
        save(self.out / "ckpt.pt", self.model, self.tokenizer, self.cfg)

    @contextlib.contextmanager
    def training(self):
        """Within it, Ctrl-C ends the training and not the program; what was learned is saved."""
        try:
            yield
        except KeyboardInterrupt:
            if not self.rows:
                raise
            self.interrupted = True
            say(f"stopped at step {len(self.losses):,} of {self.cfg.steps:,}")
        self.save()

    def finish(self, metrics):
        """Print the last evaluation, write result.json.  -> its content"""
        result = {**self.about, "steps": len(self.losses), "seconds": time.perf_counter() - self.begun, **metrics}
        say("  ".join(f"{name} {value:.4f}" for name, value in metrics.items()))
        if self.rows:
            best = min(self.rows, key=lambda row: row["val_loss"])
            result |= {"train_seconds": self.train_seconds, "tokens_per_s": self.tokens / max(self.train_seconds, 1e-9),
                       "step0_loss": self.rows[0]["val_loss"], "best_step": best["step"], "skipped": self.skipped,
                       "interrupted": self.interrupted}
            say(f"{self.train_seconds:.1f} s of training, {result['tokens_per_s']:,.0f} positions/s; "
                f"validation was best at step {best['step']:,}")
            write(self.out / "result.json", lambda part: part.write_text(json.dumps(result, indent=1), encoding="utf-8"))
        return result


# ---------------------------------------------------------------- start
def show(windows, batch, tokenizer, corner=16):
    """Print the first row of a batch, ¶ for a line end and · where nothing is scored, and a corner of its mask."""
    readable = lambda ids: "".join("·" if i < 0 else tokenizer.shown[i].replace("\n", "¶") for i in ids.tolist())
    say(f"{'text':8}  {readable(windows[0])}")
    for name, part in batch._asdict().items():
        if part.dtype == torch.bool:
            grid = part.flatten(0, -3)[0] if part.ndim > 2 else part
            say(f"{name:8}  the first {corner} positions: a row per query, # where it may attend")
            for line in grid[:corner, :corner].tolist():
                say(" " * 10 + "".join("#" if may else "." for may in line))
        elif name != "kind":
            say(f"{name:8}  {readable(part[0])}")
    scored = batch.targets >= 0
    say(f"{'scored':8}  {int(scored[0].sum())} of {scored.shape[1]} positions")


def run(main):
    """Call main and turn what a user can do wrong into one line and an exit code; 130 after Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")            # a console without these letters shows ? instead
    try:
        code = 130 if main().get("interrupted") else 0
    except Refusal as refusal:
        print(f"{Path(sys.argv[0]).name}: {refusal}", file=sys.stderr)
        code = refusal.code
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
