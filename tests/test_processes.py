"""The scripts as programs: exit codes, Ctrl-C, closed and full outputs, consoles, other folders."""

import csv
import json
import os
import signal
import subprocess
import sys
import threading

import pytest
import torch

import clm
import common

SMALL = "--steps 3 --eval-every 1 --batch-size 2 --seq-len 16".split()
SMALL += "--d-model 16 --n-layer 1 --n-head 1".split()
SECONDS = 120  # a process that takes longer is killed: it hangs
TEXT = "the king is dead, long live the king\n" * 40
GREEK = "μῆνιν ἄειδε θεὰ\n" * 200
FILES = ["ckpt.pt", "log.csv", "result.json"]
BLOCKED = """
import torch
clean, calls = torch.save, []
def save(content, part):
    calls.append(1)
    if len(calls) in {numbers}:
        part.write_bytes(b"half of a checkpoint")
        print("saving", flush=True)
        while True:     # no sleep, no pause: a signal just before it would be lost
            pass
    clean(content, part)
torch.save = save
"""

posix = pytest.mark.skipif(os.name == "nt", reason="needs the signals and descriptors of POSIX")


def accept_ctrl_c():
    """A shell's background jobs ignore Ctrl-C, and their children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def start(tmp_path):
    """Start a script on a small text in a folder of its own; later flags win.  -> the process"""
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    (tmp_path / "greek.txt").write_text(GREEK, encoding="utf-8")
    running = []

    def start(*flags, script="clm.py", at=common.HERE, before=lambda: None, env=(), **streams):
        def first():
            accept_ctrl_c()
            before()

        process = subprocess.Popen(
            [sys.executable, os.path.join(at, script), *SMALL, "--data", "text.txt"]
            + ["--out", "out", *flags],
            cwd=tmp_path,
            text=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, "OMP_NUM_THREADS": "1", **dict(env)},
            preexec_fn=None if os.name == "nt" else first,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams},
        )
        limit = threading.Timer(SECONDS, process.kill)
        limit.start()
        running.append((process, limit))
        return process

    yield start
    for process, limit in running:
        limit.cancel()
        process.kill()
        process.communicate()


def ends(process):
    """Wait for the end.  -> exit code, what is left of standard output, standard error"""
    out = process.stdout.read() if process.stdout and not process.stdout.closed else ""
    err = process.stderr.read()
    return process.wait(), out, err


def wait_for(process, word):
    """Read the output up to the line that begins with this word."""
    for line in process.stdout:
        if line.split()[:1] == [word]:
            return
    pytest.fail(f"no line {word}: {process.stderr.read()}")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def rows(folder):
    """The rows of log.csv, each of which must be whole."""
    with open(folder / "log.csv", newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert all(len(row) == len(header) for row in rows)
    return [dict(zip(header, row)) for row in rows]


@pytest.fixture
def evaluated(tmp_path, monkeypatch):
    """val_loss of the checkpoint in a folder, as --load gives it."""
    monkeypatch.setattr(clm, "show_off", lambda *args: {})

    def evaluated(folder, text="text.txt"):
        flags = [*SMALL, "--data", str(tmp_path / text), "--load", str(folder / "ckpt.pt")]
        return pytest.approx(clm.main(flags)["val_loss"], abs=1e-6)

    return evaluated


# -------------------------------------------------------- exit codes
def test_mistakes_are_one_line_on_standard_error_and_nothing_is_written(start, tmp_path):
    ascii = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    runs = [
        (2, "clm.py: not among the ", start("--prompt", "th€ king", env=ascii)),
        (1, "clm.py: no.txt cannot be read: No such file", start("--data", "no.txt")),
    ]
    for code, said, process in runs:
        got, out, err = ends(process)
        assert got == code and err.startswith(said) and err.count("\n") == 1 and out == ""
    assert names(tmp_path) == ["greek.txt", "text.txt"]


# -------------------------------------------------------- consoles and folders
def test_from_another_folder_by_a_relative_path_in_a_locale_of_ascii(start, tmp_path, evaluated):
    at = os.path.relpath(common.HERE, tmp_path)
    env = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    code, out, err = ends(start("--data", "greek.txt", "--out", "hier/ä", at=at, env=env))
    assert code == 0 and err == "" and out.startswith("clm.py on greek.txt") and "?" in out
    (folder,) = (tmp_path / "hier").iterdir()  # how its name is spelt depends on the system
    assert names(folder) == FILES
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert result["val_loss"] == evaluated(folder, "greek.txt")
    # the text, not what a console can show of it
    shown = torch.load(folder / "ckpt.pt", weights_only=True)["vocabulary"]["shown"]
    assert "".join(shown) == "".join(sorted(set(GREEK)))


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_a_console_without_a_letter_shows_a_question_mark(start, tmp_path, encoding):
    flags = ["--show"] if encoding == "cp1252" else ["--prompt", "μῆνιν"]
    process = start("--data", "greek.txt", *flags, env={"PYTHONIOENCODING": encoding})
    code, out, err = ends(process)
    assert code == 0 and err == "" and "?" in out and "μ" not in out
    assert names(tmp_path / "out") == FILES if encoding == "ascii" else "scored" in out


# -------------------------------------------------------- Ctrl-C
@posix
def test_ctrl_c_at_step_3_saves_evaluates_and_exits_130(start, tmp_path, evaluated):
    process = start("--steps", "100000")
    wait_for(process, "3")
    process.send_signal(signal.SIGINT)
    code, out, err = ends(process)
    assert code == 130 and err == "" and "stopped at step " in out and "val_loss " in out
    assert names(tmp_path / "out") == FILES
    result = json.loads((tmp_path / "out" / "result.json").read_text(encoding="utf-8"))
    steps = [int(row["step"]) for row in rows(tmp_path / "out")]
    assert steps == list(range(len(steps))) and 3 <= steps[-1] <= result["steps"] <= steps[-1] + 1
    assert result["interrupted"] and result["val_loss"] == evaluated(tmp_path / "out")


def blocked(tmp_path, *numbers):
    """Environment in which the saves of these numbers write half a file, say "saving", and stay."""
    (tmp_path / "site").mkdir()
    text = BLOCKED.format(numbers=numbers)
    (tmp_path / "site" / "sitecustomize.py").write_text(text, encoding="utf-8")
    return {"PYTHONPATH": str(tmp_path / "site")}


@posix
def test_ctrl_c_while_saving_keeps_all_that_was_learned(start, tmp_path, evaluated):
    process = start(env=blocked(tmp_path, 2))
    wait_for(process, "saving")
    process.send_signal(signal.SIGINT)
    code, out, err = ends(process)
    assert code == 130 and err == "" and "stopped at step 1 of 3" in out
    assert names(tmp_path / "out") == FILES
    result = json.loads((tmp_path / "out" / "result.json").read_text(encoding="utf-8"))
    assert result["interrupted"] and result["steps"] == 1
    assert [row["step"] for row in rows(tmp_path / "out")] == ["0", "1"]
    assert result["val_loss"] == evaluated(tmp_path / "out")


@posix
def test_a_second_ctrl_c_while_saving_ends_it_and_keeps_the_older_weights(
    start, tmp_path, evaluated
):
    process = start(env=blocked(tmp_path, 2, 3))
    for _ in range(2):
        wait_for(process, "saving")
        process.send_signal(signal.SIGINT)
    assert ends(process) == (130, "", "")
    assert names(tmp_path / "out") == ["ckpt.pt", "log.csv"]
    first, second = rows(tmp_path / "out")
    assert float(first["val_loss"]) == evaluated(tmp_path / "out")
    assert float(second["val_loss"]) != evaluated(tmp_path / "out")


@posix
def test_two_ctrl_c_at_once_leave_no_traceback_and_no_half_file(start, tmp_path, evaluated):
    process = start("--steps", "100000")
    wait_for(process, "1")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    code, _, err = ends(process)
    assert code == 130 and err == "" and rows(tmp_path / "out")
    assert names(tmp_path / "out") in (FILES, FILES[:2])
    assert evaluated(tmp_path / "out").expected > 0


# -------------------------------------------------------- closed and full outputs
def test_a_reader_that_leaves_after_a_line_does_not_end_the_training(start, tmp_path):
    process = start()  # python clm.py | head -1
    assert process.stdout.readline().startswith("clm.py on text.txt")
    process.stdout.close()
    assert ends(process) == (0, "", "")
    assert names(tmp_path / "out") == FILES


@posix
def test_without_a_standard_output_it_trains_all_the_same(start, tmp_path):
    flags = ["--n-layer", "2"]
    process = start(*flags, script="mlm.py", before=lambda: os.close(1), stdout=None)
    assert ends(process) == (0, "", "")
    assert names(tmp_path / "out") == FILES


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_named_once_though_standard_output_is_on_it_too(start, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "log.csv").symlink_to("/dev/full")
    # as from Python 3.13 on: what cannot be written when a file is collected is told of, too
    told = {"PYTHONDEVMODE": "1", "PYTHONWARNINGS": "ignore"}
    with open("/dev/full", "w") as full:
        code, _, err = ends(start("--out", "full", stdout=full, env=told))
    log = os.path.join("full", "log.csv")
    assert (code, err) == (1, f"clm.py: {log} cannot be written: No space left on device\n")
    assert names(tmp_path / "full") == ["log.csv"]


@posix
def test_room_for_half_a_checkpoint_only_keeps_the_older_one(start, tmp_path):
    import resource

    out = tmp_path / "out"
    out.mkdir()
    (out / "ckpt.pt").write_bytes(b"old")

    def before():
        os.close(1)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))

    code, _, err = ends(start("--n-layer", "2", before=before, stdout=None))
    assert code == 1 and err.count("\n") == 1, err
    assert err.startswith(f"clm.py: {os.path.join('out', 'ckpt.pt')} cannot be written: ")
    assert (out / "ckpt.pt").read_bytes() == b"old" and not list(tmp_path.rglob("*.part"))


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_named_before_any_training(start, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    code, out, err = ends(start("--out", "locked/below"))
    assert code == 2 and "steps" not in out and err.count("\n") == 1
    assert err.startswith("clm.py: --out locked/below cannot be written: Permission denied")
