"""The table of experiments can be run, and its verdicts are computed from the means."""

import importlib
import json

import pytest

import common
from tests.experiments import runner
from tests.experiments.table import EXPERIMENTS, Experiment

TINY = "--steps 2 --eval-every 1 --batch-size 2 --seq-len 16 --d-model 16 --n-layer 1 --n-head 1"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_entry_names_flags_or_a_file_that_exists(name):
    for command in EXPERIMENTS[name].runs.values():
        script, *flags = command.split()
        module = importlib.import_module(script)
        common.cli(module.Config, module.__doc__, flags, module.PITFALLS)
    if not EXPERIMENTS[name].runs:
        module = importlib.import_module(f"tests.experiments.{name.replace('-', '_')}")
        assert callable(module.measure) and module.__doc__


def test_an_experiment_prints_mean_and_range_and_its_verdict(monkeypatch, tmp_path, capsys):
    class InProcess:
        def __init__(self, *args):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *args):
            pass

        map = staticmethod(map)

    monkeypatch.setattr(runner, "ProcessPoolExecutor", InProcess)
    monkeypatch.setattr(runner, "FOLDER", tmp_path)
    (tmp_path / "text.txt").write_text("to be or not to be\n" * 40, encoding="utf-8")
    for verdict in (True, False):
        entry = Experiment(
            "a claim",
            {"tiny": f"clm --data {tmp_path}/text.txt {TINY}"},
            ("val_loss",),
            lambda m: verdict,
            seeds=2,
        )
        monkeypatch.setitem(EXPERIMENTS, "tiny", entry)
        assert runner.main(["tiny"]) == (0 if verdict else 1)
        shown = capsys.readouterr().out
        assert "a claim (2 runs" in shown and ("\nseen" in shown) == verdict
    seeds = json.loads((tmp_path / "tiny.json").read_text(encoding="utf-8"))["tiny"]
    assert [result["config"]["seed"] for result in seeds] == [0, 1]
    mean = sum(result["val_loss"] for result in seeds) / 2
    assert f"{mean:.4f} [" in shown


def test_an_unknown_experiment_is_refused(capsys):
    assert runner.main(["nothing"]) == 2 and "unknown experiment nothing" in capsys.readouterr().err
