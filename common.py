"""What every script needs and none of them teaches: text, characters, flags, device, files, log.

The objective, the model and the training loop stand in the scripts. Nothing here knows them.
"""
import argparse
import contextlib
import csv
import dataclasses
import difflib
import hashlib
import http.client
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
import warnings
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode

HERE = Path(__file__).resolve().parent
URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


class Refusal(ValueError):
    """A user's mistake, in one line. Exit code 2: a wrong setting; 1: missing or bad data."""

    def __init__(self, message, code=2):
        super().__init__(message.replace("\n", "\\n"))      # what was given may hold line ends
        self.code = code


def say(*words):
    """Print at once. A closed terminal ends the printing, never the training."""
    try:
        print(*words, flush=True)
    except (OSError, ValueError):
        sys.stdout = open(os.devnull, "w", encoding="utf-8")


# -------------------------------------------------------- text
def unify_newlines(text):
    """CRLF and CR become LF."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def resolve_corpus(name):
    """The corpus to read: a missing tiny_shakespeare is downloaded once, else pydoc stands in."""
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
        return name
    except (OSError, http.client.HTTPException, Refusal) as error:
        say(f"tiny_shakespeare is not here and cannot be had from {URL} ({error})")
        say(f"to use it, put that file at {path}")
        say("going on with pydoc, a text within Python: the numbers of the README do not apply")
        return "pydoc"


def load_text(name_or_path="tiny_shakespeare"):
    """The text of a corpus, line ends as LF.

    tiny_shakespeare   data/tiny_shakespeare.txt beside the scripts, see resolve_corpus
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
        return "\n\n".join(source for source in sources if source.isascii())[:1_000_000]
    path = HERE / "data" / "tiny_shakespeare.txt" if name == "tiny_shakespeare" else Path(name)
    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8")      # not utf-8-sig: its errors count from behind the BOM
    except UnicodeDecodeError as error:
        at = error.start
        raise Refusal(f"{path} is not UTF-8: byte {at} is 0x{raw[at]:02x}", 1) from None
    except OSError as error:
        raise Refusal(f"{path} cannot be read: {error.strerror}", 1) from None
    if not text.removeprefix("\ufeff"):
        raise Refusal(f"{path} is empty", 1)
    return unify_newlines(text.removeprefix("\ufeff"))


class CharTokenizer:
    """Characters as ids: those of a text, sorted, get 0, 1, …; specials and later ones follow.

    special: dict name -> id.  No id ever moves.
    """

    def __init__(self, text, specials=()):
        self.shown, self.ids, self.special = [], {}, {}     # id -> str, char -> id, name -> id
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
        for name in (name for name in names if name not in self.special):
            self.special[name] = self.vocab_size
            self.shown.append(f"<{name}>")

    def encode(self, text):
        """str -> (n,) long.  Never yields a special: "<EOT>" is five ordinary characters.

        Raises Refusal that names the unknown characters.
        """
        if unknown := sorted(set(text) - set(self.ids)):
            names = " ".join(map(repr, unknown))
            raise Refusal(f"not among the {len(self.ids)} characters of this text: {names}")
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
    for split, length in (("training", n), ("validation", len(ids) - n)):
        if length < window:
            raise Refusal(f"{name}: its {split} split has {length:,} characters and one window "
                          f"needs {window:,}", 1)
    if len(tokenizer.ids) == 1:
        raise Refusal(f"{name} repeats one character: nothing to predict", 1)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return tokenizer, ids[:n], ids[n:], {"corpus": name, "corpus_sha256": digest}


# -------------------------------------------------------- flags
def cli(Config, doc, argv=None, pitfalls=()):
    """Turn the fields of Config into flags, their trailing comments into help.  -> Config

    Raises Refusal for an unknown flag, a wrong type or a value out of its range.
    """
    def refuse(message):
        raise Refusal(message)

    parser = argparse.ArgumentParser(description=doc, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = refuse
    comments = dict(re.findall(r"^    (\w+):.*?# (.*)$", inspect.getsource(Config), re.MULTILINE))
    for field in dataclasses.fields(Config):
        how = {"type": field.type, "metavar": field.type.__name__}
        if field.type is bool:
            how = {"action": argparse.BooleanOptionalAction}
        note = f"{comments[field.name]} (default: {field.default!r})".replace("%", "%%")
        flag = "--" + field.name.replace("_", "-")
        parser.add_argument(flag, default=field.default, help=note, **how)
    values, unknown = parser.parse_known_args(argv)
    if unknown:
        flags = [flag for action in parser._actions for flag in action.option_strings]
        near = difflib.get_close_matches(unknown[0].split("=")[0], flags, 1)
        hint = f"did you mean {near[0]}?" if near else "--help lists them"
        raise Refusal(f"unknown flag {unknown[0]}; {hint}")
    cfg = Config(**vars(values))
    check(cfg)
    if cfg.pitfall and cfg.pitfall not in pitfalls:
        raise Refusal(f"--pitfall {cfg.pitfall}: not one of {', '.join(pitfalls)}")
    return cfg


def check(cfg):
    """Raise Refusal for a field out of its range."""
    for name, value in dataclasses.asdict(cfg).items():
        flag = f"--{name.replace('_', '-')} {value}"
        if isinstance(value, float) and not math.isfinite(value):
            raise Refusal(f"{flag}: must be a finite number")
        if name in "steps batch_size seq_len d_model n_layer n_head lr eval_every".split():
            if value <= 0:
                raise Refusal(f"{flag}: must be above 0")
        if name in ("seed", "temperature") and value < 0:
            raise Refusal(f"{flag}: must be 0 or above")
        if isinstance(value, (int, float)) and value >= 2**63:
            raise Refusal(f"{flag}: must be below 2**63, torch takes no more")
        if name == "temperature" and 0 < value < 1e-6:
            raise Refusal(f"{flag}: must be 0, for the likeliest character, or at least 1e-6")
        # smoothing: with two characters, more than half would make the wrong one the target
        top = 0.5 if name.endswith("_smoothing") else 1
        if name.endswith(("_rate", "_density", "_smoothing")) and not 0 <= value <= top:
            raise Refusal(f"{flag}: must be between 0 and {top}")
    if cfg.d_model % (2 * cfg.n_head):
        raise Refusal(f"--d-model {cfg.d_model} --n-head {cfg.n_head}: the width must be a "
                      "multiple of twice the heads, since rotary positions turn pairs of features")


# -------------------------------------------------------- device
def pick_device(name="auto"):
    """The one place that chooses: cuda, then mps, then cpu.  Raises Refusal if name is absent."""
    found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    found = [device for device, here in found.items() if here] + ["cpu"]
    name = found[0] if name == "auto" else name
    if name not in found:
        raise Refusal(f"--device {name}: this machine and this torch have {', '.join(found)}")
    if name == "cuda":
        torch.set_float32_matmul_precision("high")      # tf32
    return torch.device(name)


class Float32Muon(TorchFunctionMode):
    """Within it, torch.optim.Muon orthogonalises in float32 instead of bfloat16.

    A processor without bfloat16 units, as in most laptops, is some 20 times slower at bfloat16.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.bfloat16:
            return args[0].clone()      # a copy, as the cast would be: Muon changes it in place
        return func(*args, **(kwargs or {}))


# -------------------------------------------------------- files
def write(path, save):
    """Write a file whole or not at all: save(temporary path), then rename.  Raises Refusal."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        save(part)
        part.replace(path)
    except (OSError, RuntimeError) as error:            # torch reports a full disk as RuntimeError
        why = str(error).splitlines()[0]                # torch adds where in its C++ it was
        raise Refusal(f"{path} cannot be written: {why}", 1) from None
    finally:
        part.unlink(missing_ok=True)


def script(cfg):
    """Name of the script whose Config this is."""
    return Path(inspect.getfile(type(cfg))).stem


def save(path, model, tokenizer, cfg):
    """Write a checkpoint of tensors and plain types: weights_only=True opens it on any device."""
    content = {"script": script(cfg), "config": dataclasses.asdict(cfg),
               "vocabulary": vars(tokenizer),
               "model": {name: tensor.cpu() for name, tensor in model.state_dict().items()}}
    write(path, lambda part: torch.save(content, part))


def load(path, model, tokenizer, cfg, makers=()):
    """Put the weights of a checkpoint into model.  -> the settings it was made with

    makers: scripts whose checkpoints will do, beside this one's
    Raises Refusal if they are of other making.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")     # torch warns of what is refused below
            content = torch.load(path, map_location="cpu", weights_only=True)
        maker, made, vocabulary, weights = (content[part] for part in
                                            ("script", "config", "vocabulary", "model"))
        source = made["data"]
        other = [f"--{name.replace('_', '-')} {made.get(name)}" for name in
                 ("d_model", "n_layer", "n_head", "depth")
                 if made.get(name) != getattr(cfg, name, None)]
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise Refusal(f"--load {path}: {error.strerror}", 1) from None
    except Exception as error:      # cut short, not ours, or code in a pickle: none of it was run
        raise Refusal(f"--load {path}: not a checkpoint ({type(error).__name__})", 1) from None
    if maker not in (script(cfg), *makers):
        raise Refusal(f"--load {path}: written by {maker}.py, this is {script(cfg)}.py", 1)
    if other:
        raise Refusal(f"--load {path}: its sizes are not these settings, add {' '.join(other)}")
    if vocabulary != vars(tokenizer):
        raise Refusal(f"--load {path}: its characters are those of --data {source}, "
                      f"not of --data {cfg.data}")
    try:
        model.load_state_dict(weights)
    except (RuntimeError, TypeError):       # names or shapes that this network has not
        raise Refusal(f"--load {path}: its weights are of another network", 1) from None
    if not all(p.isfinite().all() for p in model.parameters()):
        raise Refusal(f"--load {path}: its weights are not finite, its training diverged", 1)
    return made


# -------------------------------------------------------- log
def cell(value):
    """A value of the log, short."""
    if isinstance(value, float):
        return f"{value:.4f}" if value < 100 else f"{value:,.0f}"
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else value


class Log:
    """Terminal lines, log.csv, ckpt.pt and result.json of one run; with --load none of the files.

    losses: training loss of every step, nats
    """

    def __init__(self, cfg, model, tokenizer, corpus):
        self.cfg, self.model, self.tokenizer = cfg, model, tokenizer
        self.out = Path(cfg.out) if cfg.out != "runs/<script>" else HERE / "runs" / script(cfg)
        self.losses, self.norms, self.rows, self.lr = [], [], [], 0.0
        self.skipped = self.not_finite = self.tokens = 0
        self.train_seconds, self.interrupted = 0.0, False
        self.about = {"script": script(cfg), **corpus, "vocab_size": tokenizer.vocab_size,
                      "n_params": sum(p.numel() for p in model.parameters()),
                      "device": next(model.parameters()).device.type,
                      "threads": torch.get_num_threads(), "torch": torch.__version__}
        say("{script}.py on {corpus} (sha256 {corpus_sha256:.8}), {vocab_size} ids, {n_params:,} "
            "parameters; {device}, {threads} threads, torch {torch}".format(**self.about))
        if not cfg.load:
            try:
                self.out.mkdir(parents=True, exist_ok=True)
                self.csv = open(self.out / "log.csv", "w", newline="", encoding="utf-8")
            except OSError as error:
                raise Refusal(f"--out {self.out} cannot be written: {error.strerror}") from None
            say(f"{cfg.steps:,} steps of {cfg.batch_size} x {cfg.seq_len} positions, seed "
                f"{cfg.seed}; log and weights go to {self.out}")
        self.begun = self.mark = time.perf_counter()

    def usable(self, loss, grad_norm):
        """Whether the optimizers should take this gradient: finite, and not far from the usual.

        Raises Refusal when the loss is not finite three times running.
        """
        self.not_finite = 0 if math.isfinite(loss) else self.not_finite + 1
        if self.not_finite == 3:
            raise Refusal(f"loss {loss} three times running, at step {len(self.losses)}, "
                          f"learning rate {self.lr:.2g}; the checkpoint is older", 1)
        usual = statistics.median(self.norms[-100:]) if len(self.norms) >= 20 else math.inf
        self.norms.append(grad_norm if math.isfinite(grad_norm) else math.inf)
        usable = math.isfinite(grad_norm) and grad_norm <= 10 * usual
        self.skipped += not usable
        return usable

    def step(self, loss, lr, tokens):
        """Count a training step: its loss in nats, its rate, the positions it read."""
        now = time.perf_counter()
        self.train_seconds, self.mark = self.train_seconds + now - self.mark, now
        self.tokens, self.lr = self.tokens + tokens, lr
        self.losses.append(loss)

    def row(self, step, metrics):
        """Print and write an evaluation (dict name -> float), and save the weights.

        Raises Refusal, before it saves, when the loss is not finite or the file cannot be written.
        """
        if not math.isfinite(metrics["val_loss"]):
            raise Refusal(f"validation loss {metrics['val_loss']} at step {step}, learning rate "
                          f"{self.lr:.2g}; the checkpoint is older", 1)
        recent = self.losses[self.rows[-1]["step"] if self.rows else 0:]
        row = {"step": step, "train_loss": statistics.fmean(recent) if recent else None, **metrics,
               "grad_norm": self.norms[-1] if step else None, "lr": self.lr,
               "train_seconds": self.train_seconds, "skipped": self.skipped,
               "tokens_per_s": round(self.tokens / self.train_seconds) if step else None}
        self.rows.append(row)
        table = csv.DictWriter(self.csv, row)
        try:
            if len(self.rows) == 1:
                table.writeheader()
            table.writerow(row)
            self.csv.flush()
        except OSError as error:
            with contextlib.suppress(OSError):
                self.csv.close()                # left open, Python 3.13 tells of it once more
            raise Refusal(f"{self.csv.name} cannot be written: {error.strerror}", 1) from None
        self.save()
        left = (time.perf_counter() - self.begun) / max(step, 1) * (self.cfg.steps - step)
        cells = {name.replace("_loss", "").replace("_per_", "/"): value
                 for name, value in row.items() if name not in ("lr", "train_seconds")}
        cells["left"] = f"{int(left) // 60}:{int(left) % 60:02}" if step else None
        if len(self.rows) == 1:
            say(" ".join(f"{name:>{max(7, len(name))}}" for name in cells))
        say(" ".join(f"{cell(value):>{max(7, len(name))}}" for name, value in cells.items()))
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
        say("  ".join(f"{name} {value:.4f}" for name, value in metrics.items()))
        result = {**self.about, **metrics, "config": dataclasses.asdict(self.cfg)}
        if self.rows:
            best = min(self.rows, key=lambda row: row["val_loss"])["step"]
            speed = self.tokens / max(self.train_seconds, 1e-9)
            result |= {"steps": len(self.losses), "seconds": time.perf_counter() - self.begun,
                       "train_seconds": self.train_seconds, "tokens_per_s": speed,
                       "train_loss": self.rows[-1]["train_loss"], "best_step": best,
                       "step0_loss": self.rows[0]["val_loss"], "skipped": self.skipped,
                       "interrupted": self.interrupted}
            say(f"{self.train_seconds:.0f} s of training at {speed:,.0f} positions/s; the "
                f"validation loss was lowest at step {best:,}")
            text = json.dumps(result, indent=1)
            write(self.out / "result.json", lambda part: part.write_text(text, encoding="utf-8"))
        return result


# -------------------------------------------------------- start
def show(windows, batch, tokenizer, corner=16):
    """Print the first row of a batch and a corner of its mask; ¶ is a line end, · not scored."""
    def line(ids):
        shown = ("·" if i < 0 else tokenizer.shown[i] for i in ids.tolist())
        return "".join(shown).replace("\n", "¶")

    say(f"{'text':8}  {line(windows[0])}")
    for name, part in batch._asdict().items():
        if part.dtype == torch.bool:
            say(f"{name:8}  of the first {corner} positions: a row per query, # where it may look")
            for row in part.reshape(-1, *part.shape[-2:])[0, :corner, :corner].tolist():
                say(" " * 10 + "".join("#" if may else "." for may in row))
        elif name != "kind":
            say(f"{name:8}  {line(part[0])}")
    say(f"{'scored':8}  {int((batch.targets[0] >= 0).sum())} of {batch.targets.shape[1]} positions")


def run(main):
    """Call main; a user's mistake becomes one line and an exit code, Ctrl-C becomes 130."""
    for stream in filter(None, (sys.stdout, sys.stderr)):   # None: closed by the shell, as in >&-
        stream.reconfigure(errors="replace")            # a console without a letter shows ?
    try:
        code = 130 if main().get("interrupted") else 0
    except Refusal as refusal:
        print(f"{Path(sys.argv[0]).name}: {refusal}", file=sys.stderr)
        code = refusal.code
    except (MemoryError, RuntimeError) as error:        # torch has several for a lack of memory
        if not re.search("MemoryError|allocate memory|out of memory|size calculation overflowed",
                         repr(error)):
            raise
        print(f"{Path(sys.argv[0]).name}: not enough memory; lower --batch-size, --seq-len or "
              "--d-model", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
