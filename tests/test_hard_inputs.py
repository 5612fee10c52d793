"""Whatever a user gives, the answer is one line and an exit code, and nothing saved is lost."""

import importlib
import json
import math
import os
import pickle
import sys

import copies
import pytest
import torch

import clm
import common
from common import Refusal

SHOW_OFF = clm.show_off
SCRIPTS = list(copies.read(copies.HERE))
SMALL = "--steps 3 --eval-every 2 --batch-size 2 --seq-len 16".split()
SMALL += "--d-model 16 --n-layer 2 --n-head 1".split()
TEXT = "the king is dead, long live the king\n" * 40
FILES = {  # what may stand behind --data, and does not do
    "empty.txt": b"",
    "bom.txt": b"\xef\xbb\xbf",
    "binary.bin": bytes(range(256)) * 20,
    "utf16.txt": TEXT.encode("utf-16"),
    "fifty.txt": TEXT[:50].encode(),
    "one.txt": b"a" * 5000,
}
CASES = [  # flags, exit code, what the line must name
    ("--step 5", 2, "did you mean --steps?"),
    ("--seqlen=5", 2, "did you mean --seq-len?"),
    ("surplus", 2, "unknown flag surplus"),
    ("--steps 2.5", 2, "'2.5'"),
    ("--steps nan", 2, "'nan'"),
    ("--steps many", 2, "'many'"),
    ("--steps", 2, "expected one argument"),
    ("--steps 0", 2, "--steps 0"),
    ("--steps -1", 2, "--steps -1"),
    ("--batch-size 0", 2, "--batch-size 0"),
    ("--batch-size -1", 2, "--batch-size -1"),
    ("--batch-size 99999999999999999999", 2, "below 2**63"),
    ("--seq-len 0", 2, "--seq-len 0"),
    ("--seq-len -5", 2, "--seq-len -5"),
    ("--seq-len 100000", None, ""),  # t5_span.py has no sentinels for so many gaps
    ("--seq-len 99999999999999999999", None, ""),  # nor the time to count them
    ("--d-model 0", 2, "--d-model 0"),
    ("--n-layer 0", 2, "--n-layer 0"),
    ("--n-head 0", 2, "--n-head 0"),
    ("--n-head -1", 2, "--n-head -1"),
    ("--d-model 30 --n-head 4", 2, "multiple of twice"),
    ("--d-model 6 --n-head 2", 2, "multiple of twice"),
    ("--lr 0", 2, "--lr 0"),
    ("--lr -1", 2, "--lr -1"),
    ("--lr nan", 2, "--lr nan"),
    ("--lr inf", 2, "--lr inf"),
    ("--lr 1e300", 2, "below 2**63"),
    ("--lr fast", 2, "'fast'"),
    ("--eval-every 0", 2, "--eval-every 0"),
    ("--eval-every -1", 2, "--eval-every -1"),
    ("--label-smoothing -0.1", 2, "between 0 and 0.5"),
    ("--label-smoothing 0.6", 2, "between 0 and 0.5"),
    ("--label-smoothing nan", 2, "--label-smoothing nan"),
    ("--label-smoothing all", 2, "'all'"),
    ("--temperature -1", 2, "--temperature -1"),
    ("--temperature nan", 2, "--temperature nan"),
    ("--temperature inf", 2, "--temperature inf"),
    ("--temperature 1e-40", 2, "must be 0, for the likeliest character, or at least 1e-6"),
    ("--seed -1", 2, "--seed -1"),
    ("--seed 1.5", 2, "'1.5'"),
    ("--seed 9223372036854775808", 2, "--seed 9223372036854775808"),
    ("--device tpu", 2, "--device tpu"),
    ("--pitfall none", 2, "--pitfall none"),
    ("--show=1", 2, "--show"),
    ("--out empty.txt/below", 2, "empty.txt"),
    ("--data nothing.txt", 1, "nothing.txt"),
    ("--data .", 1, "cannot be read"),
    *((f"--data {name}", 1, name) for name in FILES),
    ("--load nothing.pt", 1, "nothing.pt"),
    ("--load .", 1, "--load ."),
    ("--load empty.txt", 1, "not a checkpoint"),
    ("--load good.txt", 1, "not a checkpoint"),
    ("--load short.pt", 1, "not a checkpoint"),
    ("--load list.pt", 1, "not a checkpoint"),
    ("--load hostile.pt", 1, "not a checkpoint"),
    ("--load hostile.pkl", 1, "not a checkpoint"),
    ("--load good.txt/below", 1, "not a checkpoint"),
    ("--load good.pt --d-model 32", 2, "add --d-model 16"),
    ("--load good.pt --data domain.txt", 2, "its characters are those of --data good.txt"),
    ("--load other.pt", 1, "written by other.py"),
]
OWN = [  # script, its own flags, what the line must name; exit code 2
    ("mlm", "--mask-rate inf", "--mask-rate inf"),
    ("mlm", "--mask-rate most", "'most'"),
    ("mlm", "--mask-rate", "expected one argument"),
    ("prefix_lm", "--mask-rate 0.1", "unknown flag --mask-rate"),
    ("t5_span", "--noise-density -0.1", "--noise-density -0.1"),
    ("t5_span", "--noise-density inf", "--noise-density inf"),
    ("t5_span", "--noise-density half", "'half'"),
    ("t5_span", "--mean-span 0", "--mean-span 0"),
    ("t5_span", "--mean-span 1e300", "below 2**63"),
    ("t5_span", "--mean-span long", "'long'"),
    ("t5_span", "--one-sentinel=1", "--one-sentinel"),
    ("t5_span", "--one-sentinel --seq-len 1000000000", "must be at most 100000"),
    ("t5_span", "--seq-len 128 --noise-density 0.5 --mean-span 1", "gaps in"),
    ("ul2", "--mix", "expected one argument"),
    ("ul2", "--mix=", "not one of uniform"),
    ("ul2", "--mix ul2r,S", "--mix ul2r,S: not one of"),
    ("ul2", "--mode nlu", "--mode nlu: not one of"),
    ("ul2", "--mix S --seq-len 1000000000", "must be at most 100000"),
    ("fim", "--fim-rate -0.1", "between 0 and 1"),
    ("fim", "--fim-rate nan", "--fim-rate nan"),
    ("fim", "--fim-rate often", "'often'"),
    ("fim", "--spm-rate 1.5", "between 0 and 1"),
    ("fim", "--spm-rate nan", "--spm-rate nan"),
    ("fim", "--max-middle -1", "--max-middle -1"),
    ("fim", "--max-middle 2.5", "'2.5'"),
    ("fim", "--max-middle nan", "'nan'"),
    ("fim", "--max-middle 99999999999999999999", "below 2**63"),
    ("mtp", "--depth -1", "--depth -1"),
    ("mtp", "--depth 1.5", "'1.5'"),
    ("mtp", "--depth nan", "'nan'"),
    ("mtp", "--depth 99999999999999999999", "the depth must be 1 to 3"),
    ("mtp", "--depth 3 --seq-len 3", "below the length"),
    ("mtp", "--mtp-weight 1e300", "below 2**63"),
    ("mtp", "--mtp-weight much", "'much'"),
    ("continued_pretrain", "--replay ,", "must be shares"),
    ("continued_pretrain", "--replay=", "must be shares"),
    ("continued_pretrain", "--replay 0.1;0.3", "must be shares"),
    ("continued_pretrain", "--replay inf", "must be shares"),
    ("continued_pretrain", "--lr-scale 1e300", "below 2**63"),
    ("continued_pretrain", "--lr-scale more", "'more'"),
    ("continued_pretrain", "--domain good.txt", "the same text as --data"),
]
EDGES = [  # script, settings at the edge of what is allowed: they train, and every number is one
    ("mlm", "--mask-rate 1e-30 --seq-len 2"),
    ("mlm", "--mask-rate 1 --data two.txt"),
    ("prefix_lm", "--seq-len 1 --data two.txt --temperature 1e-6"),
    ("t5_span", "--noise-density 0.9 --mean-span 1 --seq-len 3"),
    ("t5_span", "--one-sentinel --noise-density 1e-30 --mean-span 1e18"),
    ("ul2", "--mix S --seq-len 6 --data two.txt"),
    ("ul2", "--mix X64-50 --seq-len 6 --mode NLG --temperature 1e18"),
    ("fim", "--max-middle 1 --seq-len 8 --data tiny.txt"),  # two gaps to score, no middle in them
    ("fim", "--fim-rate 1 --spm-rate 0 --max-middle 9223372036854775807 --data two.txt"),
    ("mtp", "--depth 3 --seq-len 4 --mtp-weight 0 --data two.txt"),
    ("continued_pretrain", "--replay 1e-300,1 --lr-scale 1e-30 --domain two.txt --steps 1"),
]
SAMPLE = {  # asked of every script; the others of clm.py, since cli and load are one text for all
    *("--step 5", "--steps 0", "--seq-len 0", "--seq-len 100000", "--n-layer 0", "--lr nan"),
    *("--batch-size 0", "--steps 2.5", "--seq-len 99999999999999999999", "--temperature 1e-40"),
    *("--d-model 30 --n-head 4", "--pitfall none", "--out empty.txt/below"),
    *("--data nothing.txt", "--data fifty.txt", "--data utf16.txt", "--data one.txt"),
    *("--load nothing.pt", "--load short.pt", "--load hostile.pt", "--load other.pt"),
}


class Hostile:
    """Makes a folder when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("hostile_was_here",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Texts and checkpoints of every kind."""
    folder = tmp_path_factory.mktemp("inputs")
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    (folder / "good.txt").write_text(TEXT, encoding="utf-8")
    (folder / "two.txt").write_text("ab" * 400, encoding="utf-8")
    (folder / "tiny.txt").write_text(TEXT[:200], encoding="utf-8")
    (folder / "domain.txt").write_text("import this # and that\n" * 60, encoding="utf-8")
    cfg = clm.Config(d_model=16, n_layer=2, n_head=1, data="good.txt")
    tokenizer = common.CharTokenizer(TEXT)
    good = folder / "good.pt"
    common.save(good, clm.build_model(cfg, tokenizer.vocab_size), tokenizer, cfg)
    content = torch.load(good, weights_only=True)
    torch.save(content | {"script": "other"}, folder / "other.pt")
    torch.save([1, 2], folder / "list.pt")
    torch.save(content | {"config": Hostile()}, folder / "hostile.pt")
    (folder / "hostile.pkl").write_bytes(pickle.dumps(Hostile()))
    (folder / "short.pt").write_bytes(good.read_bytes()[:1000])
    return folder


@pytest.fixture
def start(folder, tmp_path, monkeypatch):
    """main() of a script by its name, over a small text; further flags win."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(clm, "show_off", lambda *args: {})  # 300 characters take most of the time

    def start(name, *flags):
        own = ["--domain", "domain.txt"] if name == "continued_pretrain" else []
        out = ["--data", "good.txt", "--out", str(tmp_path / "out")]
        return importlib.import_module(name).main([*SMALL, *out, *own, *flags])

    return start


def test_the_sample_is_of_the_cases():
    assert SAMPLE <= {flags for flags, _, _ in CASES}


def refused(start, name, *flags):
    """The Refusal of a run, in one line."""
    with pytest.raises(Refusal) as refusal:
        start(name, *flags)
    assert str(refusal.value) and "\n" not in str(refusal.value)
    return refusal.value


# -------------------------------------------------------- any script
@pytest.mark.parametrize("flags, code, said", CASES, ids=[case[0] for case in CASES])
def test_a_mistake_is_one_line_with_its_exit_code_before_any_training(
    start, monkeypatch, tmp_path, folder, recwarn, flags, code, said
):
    for name in SCRIPTS if flags in SAMPLE else ["clm"]:
        script = importlib.import_module(name)
        monkeypatch.setattr(script, "train", lambda *args, **kwargs: pytest.fail("trained first"))
        refusal = refused(start, name, *flags.split())
        assert said in str(refusal), f"{name}.py {flags}: {refusal}"
        assert refusal.code == code or code is None and refusal.code in (1, 2), name
    assert not list(tmp_path.rglob("*.pt")) and not list(tmp_path.rglob("*.part"))
    assert not (folder / "hostile_was_here").exists()
    assert not [warning for warning in recwarn if warning.category is not ResourceWarning]


@pytest.mark.parametrize("name, flags, said", OWN, ids=[f"{case[0]} {case[1]}" for case in OWN])
def test_a_mistake_in_a_flag_of_its_own_is_one_line(start, monkeypatch, name, flags, said):
    script = importlib.import_module(name)
    monkeypatch.setattr(script, "train", lambda *args, **kwargs: pytest.fail("trained first"))
    refusal = refused(start, name, *flags.split())
    assert said in str(refusal) and refusal.code == 2


@pytest.mark.parametrize("file", FILES)
def test_a_bad_domain_is_named_as_a_bad_text_is(start, monkeypatch, file):
    script = importlib.import_module("continued_pretrain")
    monkeypatch.setattr(script, "train", lambda *args, **kwargs: pytest.fail("trained first"))
    refusal = refused(start, "continued_pretrain", "--domain", file)
    assert file in str(refusal) and refusal.code == 1


@pytest.mark.parametrize("name, flags", EDGES, ids=[f"{case[0]} {case[1]}" for case in EDGES])
def test_settings_at_the_edge_of_what_is_allowed_give_numbers(start, tmp_path, name, flags):
    start(name, *flags.split())
    text = (tmp_path / "out" / "result.json").read_text(encoding="utf-8")
    json.loads(text, parse_constant=lambda number: pytest.fail(f"{number} in result.json"))


def test_what_was_given_may_hold_line_ends_and_is_quoted_in_one_line(start):
    for flags, said in [
        (("--data", "a\nb"), "a\\nb cannot be read"),
        (("--pitfall", "a\nb"), "--pitfall a\\nb"),
        (("--st\neps",), "unknown flag --st\\neps"),
        (("",), "unknown flag ; --help lists them"),
    ]:
        assert said in str(refused(start, "clm", *flags))


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_prompt_with_unknown_characters_is_refused_before_any_training(start, monkeypatch, name):
    script = importlib.import_module(name)
    monkeypatch.setattr(script, "train", lambda *args, **kwargs: pytest.fail("trained first"))
    prompt = "<PRE>th€<SUF>king" if name == "fim" else "th€ k_ng"
    assert "'€'" in str(refused(start, name, "--prompt", prompt))


@pytest.mark.parametrize(
    "name", [name for name in SCRIPTS if name not in ("clm", "continued_pretrain")]
)
def test_a_checkpoint_of_clm_is_refused_by_all_but_continued_pretrain(start, name):
    refusal = refused(start, name, "--load", "good.pt")
    assert "written by clm.py" in str(refusal) and refusal.code == 1


def test_a_text_that_may_not_be_read_is_named(start, monkeypatch):
    def denied(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(common.Path, "read_bytes", denied)
    for name in SCRIPTS:
        refusal = refused(start, name)
        assert str(refusal) == "good.txt cannot be read: Permission denied" and refusal.code == 1


def test_all_mistakes_at_once_are_still_one_line(start):
    refused(start, "clm", "--steps", "-1", "--lr", "nan", "--data", "nothing.txt", "--load", "x")


# -------------------------------------------------------- checkpoints
def test_a_checkpoint_that_opens_and_does_not_fit_is_refused(start, tmp_path):
    good = torch.load("good.pt", weights_only=True)
    weights, path = good["model"], str(tmp_path / "bad.pt")
    nan = {name: tensor * math.nan for name, tensor in weights.items()}
    for change, said in [
        ({"config": {}}, "not a checkpoint"),
        ({"vocabulary": {}}, "its characters are those of --data good.txt"),
        ({"model": {}}, "its weights are of another network"),
        ({"model": [1]}, "its weights are of another network"),
        ({"model": {name: w[:3] for name, w in weights.items()}}, "of another network"),
        ({"model": nan}, "its weights are not finite"),
    ]:
        torch.save(good | change, path)
        assert said in str(refused(start, "clm", "--load", path)), change
    for part in good:
        torch.save({name: good[name] for name in good if name != part}, path)
        assert "not a checkpoint" in str(refused(start, "clm", "--load", path)), part
    whole = open("good.pt", "rb").read()
    for length in (0, 1, 100, len(whole) // 2, len(whole) - 200, len(whole) - 1):
        with open(path, "wb") as file:
            file.write(whole[:length])
        assert "not a checkpoint" in str(refused(start, "clm", "--load", path)), length
    with open(path, "wb") as file:
        pickle.dump(good, file, protocol=2)
    assert "not a checkpoint" in str(refused(start, "clm", "--load", path))
    assert "val_loss" in start("clm", "--load", "good.pt")


# -------------------------------------------------------- what fails on the way
def at_save(monkeypatch, number, happens):
    """Let the so-manieth torch.save write half of a file, and then fail."""
    clean, calls = torch.save, []

    def save(content, part):
        calls.append(1)
        if len(calls) == number:
            part.write_bytes(b"half")
            raise happens
        clean(content, part)

    monkeypatch.setattr(torch, "save", save)


FULL = [
    OSError(28, "No space left on device"),
    RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos\nframe #0: ..."),
]


@pytest.mark.parametrize("happens", FULL, ids=["OSError", "RuntimeError"])
def test_a_disk_that_fills_while_saving_keeps_what_was_saved(start, monkeypatch, tmp_path, happens):
    at_save(monkeypatch, 2, happens)
    refusal = refused(start, "clm")
    assert "ckpt.pt cannot be written" in str(refusal) and refusal.code == 1
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["ckpt.pt", "log.csv"]
    assert torch.load(tmp_path / "out" / "ckpt.pt", weights_only=True)["script"] == "clm"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_disk_that_is_full_for_the_log_is_named(start, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "log.csv").symlink_to("/dev/full")
    refusal = refused(start, "clm")
    assert "log.csv cannot be written: No space left" in str(refusal) and refusal.code == 1


@pytest.mark.parametrize("name, code", [("log.csv", 2), ("ckpt.pt", 1), ("result.json", 1)])
def test_a_folder_in_the_place_of_a_file_is_refused(start, tmp_path, name, code):
    (tmp_path / "out" / name).mkdir(parents=True)
    assert refused(start, "clm").code == code
    assert (tmp_path / "out" / name).is_dir() and not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_ctrl_c_while_saving_leaves_a_whole_checkpoint_and_a_result(
    start, monkeypatch, tmp_path, number
):
    at_save(monkeypatch, number, KeyboardInterrupt())
    result = start("clm", "--eval-every", "1")
    assert result["interrupted"] and result["steps"] == number - 1
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["ckpt.pt", "log.csv", "result.json"]
    assert start("clm", "--load", str(tmp_path / "out" / "ckpt.pt"))["val_loss"] == pytest.approx(
        json.loads((tmp_path / "out" / "result.json").read_text())["val_loss"]
    )


def test_weights_that_are_not_finite_are_not_saved_nor_sampled_from(start, monkeypatch, tmp_path):
    clean = clm.evaluate
    calls = []

    def diverged(model, *args, **kwargs):
        calls.append(1)
        if len(calls) > 1:
            model.head.weight.data.fill_(math.nan)
        return clean(model, *args, **kwargs)

    monkeypatch.setattr(clm, "evaluate", diverged)
    refusal = refused(start, "clm")
    assert "validation loss nan at step 2" in str(refusal) and refusal.code == 1
    content = torch.load(tmp_path / "out" / "ckpt.pt", weights_only=True)
    assert all(tensor.isfinite().all() for tensor in content["model"].values())


def test_a_rate_that_explodes_survives(start, monkeypatch):
    monkeypatch.setattr(clm, "show_off", SHOW_OFF)
    start("clm", "--lr", "1e18", "--temperature", "1e-6")


@pytest.mark.parametrize(
    "flags",
    [
        "--seed 9223372036854775807 --lr 1e-30 --temperature 1e-6 --seq-len 1 --batch-size 1",
        "--steps 1 --eval-every 1000 --temperature 1e18 --label-smoothing 0.5 --n-layer 1",
    ],
)
def test_extreme_but_right_settings_train_and_read_out(start, monkeypatch, flags):
    monkeypatch.setattr(clm, "show_off", SHOW_OFF)
    assert math.isfinite(start("clm", *flags.split())["val_loss"])


# -------------------------------------------------------- the end of a program
def ends(main, monkeypatch, capsys):
    """Exit code and standard error of common.run(main)."""
    monkeypatch.setattr(sys, "argv", ["some/where/clm.py"])
    with pytest.raises(SystemExit) as end:
        common.run(main)
    return end.value.code, capsys.readouterr().err


def failing(error):
    def main():
        raise error

    return main


@pytest.mark.parametrize(
    "main, code, said",
    [
        (dict, 0, ""),
        (lambda: {"interrupted": True}, 130, ""),
        (failing(KeyboardInterrupt()), 130, ""),
        (failing(Refusal("no")), 2, "clm.py: no\n"),
        (failing(Refusal("no", 1)), 1, "clm.py: no\n"),
        (failing(MemoryError()), 1, "clm.py: not enough memory; lower"),
        (failing(torch.OutOfMemoryError("CUDA out of memory.")), 1, "clm.py: not enough memory"),
        (failing(RuntimeError("DefaultCPUAllocator: can't allocate memory")), 1, "clm.py: not en"),
        (failing(RuntimeError("Storage size calculation overflowed")), 1, "clm.py: not enough"),
    ],
)
def test_every_end_has_its_code_and_at_most_one_line(monkeypatch, capsys, main, code, said):
    got, err = ends(main, monkeypatch, capsys)
    assert got == code and err.startswith(said) and err.count("\n") == bool(said)


@pytest.mark.parametrize(
    "flags",
    [
        "--batch-size 1000000000000000",
        "--batch-size 4611686018427387904",
        "--d-model 1099511627776",
        "--d-model 4611686018427387904",
    ],
)
def test_sizes_beyond_all_memory_are_one_line(start, monkeypatch, capsys, flags):
    code, err = ends(lambda: start("clm", *flags.split()), monkeypatch, capsys)
    assert code == 1 and err.startswith("clm.py: not enough memory") and err.count("\n") == 1


def test_a_mistake_of_the_program_is_not_hidden(monkeypatch):
    for error in (RuntimeError("shapes in this memory format do not match"), KeyError("x")):
        with pytest.raises(type(error)):
            common.run(failing(error))


@pytest.mark.parametrize("name", SCRIPTS)
def test_without_a_standard_output_it_trains_all_the_same(start, monkeypatch, tmp_path, name):
    monkeypatch.setattr(sys, "stdout", None)  # as Python has it where a shell closed it
    short = ["--steps", "1", "--replay", "0.1"] if name == "continued_pretrain" else []
    with pytest.raises(SystemExit) as end:
        common.run(lambda: start(name, *short))
    assert end.value.code == 0 and (tmp_path / "out" / "result.json").exists()
