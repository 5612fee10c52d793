"""Claims about common.py, and what clm.py does with bad input."""

import csv
import http.client
import io
import json
import math
import os
import urllib.error

import pytest
import torch
from helpers import scramble
from torch.utils._python_dispatch import TorchDispatchMode

import clm
import common
from common import CharTokenizer, Refusal

SMALL = "--steps 3 --eval-every 2 --batch-size 2 --seq-len 16".split()
SMALL += "--d-model 16 --n-layer 1 --n-head 1".split()
TEXT = "the king is dead, long live the king\n" * 40


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


@pytest.fixture
def run(tmp_path, text_file):
    """main() of clm.py in a few milliseconds; further flags win."""
    return lambda *flags: clm.main(
        [*SMALL, "--data", text_file, "--out", str(tmp_path / "out"), *flags]
    )


# -------------------------------------------------------- text
def test_pydoc_and_stdlib_come_with_every_interpreter():
    pydoc, stdlib = common.load_text("pydoc"), common.load_text("stdlib")
    assert 400_000 < len(pydoc) < 600_000 and len(stdlib) == 1_000_000
    assert stdlib.isascii() and "import " in stdlib and "\r" not in pydoc + stdlib


def test_tiny_shakespeare_is_the_text_and_the_split_that_everyone_uses(corpus):
    if corpus != "tiny_shakespeare":
        pytest.skip("data/tiny_shakespeare.txt is not here")
    tokenizer, train_text, val_text, about = common.load_data(corpus, (), 129)
    assert (tokenizer.vocab_size, len(train_text), len(val_text)) == (65, 1_003_854, 111_540)
    assert about == {"corpus": "tiny_shakespeare", "corpus_sha256": common.SHA256}


@pytest.mark.parametrize(
    "raw",
    [
        "à la\nmode\n".encode(),
        "à la\r\nmode\r\n".encode(),
        "à la\rmode\r".encode(),
        "\ufeffà la\r\nmode\n".encode(),
    ],
)
def test_line_ends_and_bom_make_no_difference(tmp_path, raw):
    path = tmp_path / "text.txt"
    path.write_bytes(raw)
    assert common.load_text(str(path)) == "à la\nmode\n"


@pytest.mark.parametrize(
    "raw, said",
    [
        (None, "cannot be read"),
        (b"", "is empty"),
        (b"abc\xffdef", "byte 3 is 0xff"),
        (b"\xef\xbb\xbfab\xff", "byte 5 is 0xff"),
        ("text".encode("utf-16"), "byte 0 is 0xff"),
        (b"short" * 9, "its training split has 40 characters and one window needs 129"),
        (
            b"long enough to train on. " * 10,
            "its validation split has 25 characters and one window needs 129",
        ),
        (b"a" * 3000, "repeats one character"),
    ],
)
def test_a_bad_file_is_named_in_one_line(tmp_path, raw, said):
    path = tmp_path / "text.txt"
    if raw is not None:
        path.write_bytes(raw)
    with pytest.raises(Refusal) as refusal:
        common.load_data(str(path), (), 129)
    assert (
        said in str(refusal.value) and str(path) in str(refusal.value) and refusal.value.code == 1
    )
    assert "\n" not in str(refusal.value)


def test_a_folder_is_no_text(tmp_path):
    with pytest.raises(Refusal, match="cannot be read"):
        common.load_text(str(tmp_path))


def pretend_download(monkeypatch, tmp_path, answer):
    """An empty project folder, and a network that gives this answer."""
    monkeypatch.setattr(common, "HERE", tmp_path)

    def urlopen(url, timeout):
        assert url == common.URL and timeout <= 10
        if isinstance(answer, Exception):
            raise answer
        return io.BytesIO(answer)

    monkeypatch.setattr(common.urllib.request, "urlopen", urlopen)


@pytest.mark.parametrize(
    "answer",
    [
        urllib.error.URLError("no route"),
        TimeoutError("timed out"),
        http.client.IncompleteRead(b"not"),
        http.client.BadStatusLine("a page to log in"),
        b"not the text",
    ],
)
def test_without_a_network_it_says_so_in_three_lines_and_goes_on_with_pydoc(
    monkeypatch, tmp_path, capsys, answer
):
    pretend_download(monkeypatch, tmp_path, answer)
    about = common.load_data("tiny_shakespeare", (), 129)[3]
    lines = capsys.readouterr().out.splitlines()[1:]
    assert about["corpus"] == "pydoc" and len(lines) == 3
    assert (
        common.URL in lines[0]
        and str(tmp_path / "data" / "tiny_shakespeare.txt") in lines[1]
        and "README" in lines[2]
    )
    assert not list(tmp_path.glob("data/*"))


def test_the_download_is_checked_then_kept(monkeypatch, tmp_path, capsys):
    pretend_download(monkeypatch, tmp_path, b"the text")
    monkeypatch.setattr(common, "SHA256", common.hashlib.sha256(b"the text").hexdigest())
    assert common.load_text() == "the text"
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["tiny_shakespeare.txt"]
    pretend_download(monkeypatch, tmp_path, AssertionError("asked twice"))
    assert common.load_text() == "the text"


# -------------------------------------------------------- characters
def test_tokenizer_ids_are_sorted_and_never_move():
    tokenizer = CharTokenizer("banana", ("MASK", "CLS"))
    assert tokenizer.ids == {"a": 0, "b": 1, "n": 2} and tokenizer.special == {"MASK": 3, "CLS": 4}
    tokenizer.extend("cab")
    tokenizer.add_specials(("CLS", "EOT"))
    assert (
        tokenizer.encode("nabc").tolist() == [2, 0, 1, 5]
        and tokenizer.special["EOT"] == 6 == tokenizer.vocab_size - 1
    )
    assert (
        tokenizer.decode([1, 0, 3, 6])
        == "ba<MASK><EOT>"
        == tokenizer.decode(torch.tensor([1, 0, 3, 6]))
    )


def test_text_that_spells_a_special_is_ordinary_text():
    tokenizer = CharTokenizer("<MASK>", ("MASK",))
    ids = tokenizer.encode("<MASK>")
    assert (
        len(ids) == 6
        and tokenizer.special["MASK"] not in ids.tolist()
        and tokenizer.decode(ids) == "<MASK>"
    )


def test_unknown_characters_are_named():
    with pytest.raises(Refusal, match="'é' '€'"):
        CharTokenizer("cafe").encode("café €fa€")


# -------------------------------------------------------- flags
@pytest.mark.parametrize(
    "flags, said",
    [
        ("--step 5", "unknown flag --step; did you mean --steps?"),
        ("--stpes=5", "did you mean --steps?"),
        ("5", "unknown flag 5"),
        ("--steps many", "invalid int value: 'many'"),
        ("--steps 0", "--steps 0: must be above 0"),
        ("--steps -3", "must be above 0"),
        ("--batch-size 0", "must be above 0"),
        ("--seq-len -1", "must be above 0"),
        ("--lr 0", "--lr 0.0: must be above 0"),
        ("--lr nan", "--lr nan: must be a finite number"),
        ("--lr inf", "finite number"),
        ("--temperature -1", "must be 0 or above"),
        ("--seed -1", "must be 0 or above"),
        ("--eval-every 0", "must be above 0"),
        ("--label-smoothing 0.51", "must be between 0 and 0.5"),
        ("--d-model 30 --n-head 4", "multiple of twice"),
        ("--d-model 6 --n-head 2", "multiple of twice"),
        ("--pitfall none", "not one of no-shift, double-shift"),
        ("--device tpu", "--device tpu: this machine and this torch have"),
        ("--steps", "expected one argument"),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_code_2(run, flags, said):
    with pytest.raises(Refusal) as refusal:
        run(*flags.split())
    assert said in str(refusal.value) and refusal.value.code == 2 and "\n" not in str(refusal.value)


def test_help_is_the_lesson_then_every_flag_with_its_default(capsys):
    with pytest.raises(SystemExit) as end:
        clm.main(["--help"])
    shown = capsys.readouterr().out
    assert end.value.code == 0 and "Objective\n    L = -(1/N)" in shown
    for field in common.dataclasses.fields(clm.Config):
        assert f"--{field.name.replace('_', '-')} " in shown or f"--{field.name}, --no-" in shown
    assert "peak rate of Muon" in shown and f"(default: {clm.Config.lr!r})" in shown


def test_a_bool_is_a_switch(run, capsys):
    assert run("--show") == {} and "text" in capsys.readouterr().out
    assert run("--no-show")["steps"] == 3


def test_prompt_with_unknown_characters_is_refused_before_training(run, monkeypatch):
    monkeypatch.setattr(clm, "train", lambda *args: pytest.fail("trained first"))
    with pytest.raises(Refusal, match="'Z'"):
        run("--prompt", "Z")


def test_prompts_empty_long_and_with_crlf(run, text_file, tmp_path, capsys):
    def read(text, prompt):
        tokenizer = CharTokenizer(text)
        return tokenizer.decode(
            clm.read_prompt(tokenizer, tokenizer.encode(text), clm.Config(prompt=prompt))
        )

    assert (
        read("one\ntwo", "") == "\n"
        and read("no line end", "") == "n"
        and read("one\ntwo", "o\r\nt") == "o\nt"
    )
    run("--prompt", TEXT[:48])
    assert "the prompt has 48 characters, the model sees 16" in capsys.readouterr().out


# -------------------------------------------------------- device
def test_muon_multiplies_in_float32_and_still_orthogonalises():
    seen = set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            seen.add(getattr(out, "dtype", None))
            return out

    weight = torch.nn.Parameter(torch.zeros(24, 16))
    weight.grad = torch.randn(24, 16, generator=torch.Generator().manual_seed(0))
    given = weight.grad.clone()
    with common.Float32Muon(), Watch():
        torch.optim.Muon([weight], lr=1.0, weight_decay=0.0).step()
    assert torch.bfloat16 not in seen and torch.equal(weight.grad, given)
    singular = torch.linalg.svdvals(weight.detach()) / math.sqrt(
        24 / 16
    )  # Muon's own factor for tall matrices
    assert 0.6 < singular.min() and singular.max() < 1.3


# -------------------------------------------------------- log and files
def test_a_run_leaves_log_checkpoint_and_result(run, tmp_path, capsys):
    result = run()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "ckpt.pt",
        "log.csv",
        "result.json",
    ]
    assert json.loads((tmp_path / "out" / "result.json").read_text(encoding="utf-8")) == result
    assert {
        "steps",
        "seconds",
        "train_seconds",
        "tokens_per_s",
        "step0_loss",
        "val_loss",
        "vocab_size",
        "n_params",
        "corpus",
        "corpus_sha256",
        "val_ppl",
        "val_bpc",
    } <= set(result)
    assert result["val_ppl"] == pytest.approx(math.exp(result["val_loss"]))
    assert result["val_bpc"] == pytest.approx(result["val_loss"] / math.log(2))
    assert result["step0_loss"] == pytest.approx(math.log(result["vocab_size"]), abs=5e-5)
    rows = list(csv.DictReader(open(tmp_path / "out" / "log.csv", encoding="utf-8")))
    assert [row["step"] for row in rows] == ["0", "2", "3"]
    assert list(rows[0])[:3] == ["step", "train_loss", "val_loss"]
    shown = capsys.readouterr().out
    assert max(map(len, shown.split("log and weights")[1].splitlines()[1:5])) <= 80
    assert result["corpus_sha256"][:8] in shown.splitlines()[0] and " left\n" in shown


def test_load_gives_the_same_numbers_and_writes_nothing(run, tmp_path):
    trained = run()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    loaded = run("--load", str(tmp_path / "out" / "ckpt.pt"), "--out", str(tmp_path / "other"))
    assert loaded["val_loss"] == trained["val_loss"] and not (tmp_path / "other").exists()
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before


def test_a_checkpoint_holds_plain_types_and_carries_its_vocabulary(run, tmp_path):
    run()
    content = torch.load(tmp_path / "out" / "ckpt.pt", weights_only=True)
    assert content["script"] == "clm" and content["config"]["d_model"] == 16
    assert "".join(content["vocabulary"]["shown"]) == "".join(sorted(set(TEXT)))


class Hostile:
    def __reduce__(self):
        return os.mkdir, ("hostile_was_here",)


def test_a_checkpoint_that_does_not_fit_is_refused(run, tmp_path, text_file, monkeypatch):
    run()
    good = tmp_path / "out" / "ckpt.pt"
    bad = tmp_path / "bad.pt"
    other = tmp_path / "other.txt"
    other.write_text(TEXT + "Z" * 40, encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    def refused(said, *flags):
        with pytest.raises(Refusal, match=said):
            run("--load", *flags)

    refused("No such file", str(tmp_path / "none.pt"))
    bad.write_bytes(good.read_bytes()[:1000])
    refused("not a checkpoint", str(bad))
    torch.save({"script": "clm", "config": Hostile()}, bad)
    refused("not a checkpoint", str(bad))
    assert not (tmp_path / "hostile_was_here").exists()
    content = torch.load(good, weights_only=True)
    torch.save(content | {"script": "mlm"}, bad)
    refused("written by mlm.py, this is clm.py", str(bad))
    refused("add --d-model 16 --n-layer 1", str(good), "--d-model", "32", "--n-layer", "2")
    refused("its characters are those of --data .*text.txt", str(good), "--data", str(other))


def test_a_full_disk_loses_nothing_that_was_saved(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def full(part):
        part.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(Refusal, match="No space left"):
        common.write(path, full)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_out_that_cannot_be_written_is_refused_before_training(run, text_file, monkeypatch):
    monkeypatch.setattr(clm, "train", lambda *args: pytest.fail("trained first"))
    with pytest.raises(Refusal, match="cannot be written"):
        run("--out", text_file + "/below_a_file")


@pytest.fixture
def log(run, tmp_path, text_file):
    tokenizer = CharTokenizer("ab")
    cfg = clm.Config(out=str(tmp_path / "log"), d_model=16, n_layer=1, n_head=1)
    return common.Log(
        cfg,
        scramble(clm.build_model(cfg, 2)),
        tokenizer,
        {"corpus": "test", "corpus_sha256": "0" * 64},
    )


def test_gradients_far_from_the_usual_are_left_out_and_counted(log):
    assert all(
        log.usable(1.0, norm) for norm in [1.0] * 10 + [50.0] + [1.0] * 9
    )  # not before step 20
    assert not log.usable(1.0, 10.1) and log.usable(1.0, 9.9) and not log.usable(1.0, math.nan)
    assert not log.usable(1.0, math.inf) and log.skipped == 3
    # skipped ones shift the median: a lasting rise is followed in the end
    assert [log.usable(1.0, 100.0) for _ in range(100)].index(True) < 60


def test_a_loss_not_finite_three_times_running_stops(log):
    for loss in (math.nan, math.inf, 1.0, math.nan, math.nan):
        log.usable(loss, 1.0)
    log.lr = 0.5
    with pytest.raises(Refusal, match="loss nan three times running, at step 0, learning rate 0.5"):
        log.usable(math.nan, 1.0)


def test_divergence_keeps_the_last_good_weights(run, tmp_path, monkeypatch):
    clean = clm.loss_fn

    def explode(model, batch, cfg):
        loss, nll = clean(model, batch, cfg)
        return (loss * math.nan if loss.requires_grad else loss), nll

    run()
    before = (tmp_path / "out" / "ckpt.pt").stat().st_mtime_ns
    monkeypatch.setattr(clm, "loss_fn", explode)
    with pytest.raises(Refusal, match="three times running"):
        run("--steps", "10", "--eval-every", "50")
    content = torch.load(tmp_path / "out" / "ckpt.pt", weights_only=True)
    assert all(p.isfinite().all() for p in content["model"].values()) and before


def test_interrupted_training_is_saved_evaluated_and_marked(run, monkeypatch, tmp_path):
    clean, calls = clm.make_batch, []

    def interrupt(*args):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return clean(*args)

    monkeypatch.setitem(clm.PITFALLS, "interrupt", {"batch_fn": interrupt})
    interrupt.__doc__ = "Ctrl-C at the fifth batch."
    result = run("--steps", "100", "--pitfall", "interrupt")
    assert result["interrupted"] and result["steps"] == 4 and "val_loss" in result
    assert (tmp_path / "out" / "ckpt.pt").exists()
