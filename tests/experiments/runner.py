"""Run an entry of the table over its seeds, several runs at a time."""

import contextlib
import importlib
import json
import math
import multiprocessing
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import torch

import common
from tests.experiments.table import EXPERIMENTS

FOLDER = common.HERE / "runs" / "experiments"


def one(name, label, command, seed):
    """One run.  -> {label: {metric: value}}; what it prints goes to a file"""
    out = FOLDER / name / f"{label.replace(' ', '-')}-{seed}"
    out.mkdir(parents=True, exist_ok=True)
    terminal = open(out / "terminal.txt", "w", encoding="utf-8")
    with terminal, contextlib.redirect_stdout(terminal):
        if not command:  # an experiment of its own file, which runs all that it compares
            module = importlib.import_module(f"tests.experiments.{name.replace('-', '_')}")
            return module.measure(seed, str(out))
        script, *flags = command.split()
        main = importlib.import_module(script).main
        return {label: main([*flags, "--seed", str(seed), "--out", str(out)])}


def run(name):
    """Run one experiment and print its table.  -> whether the claim was seen"""
    experiment = EXPERIMENTS[name]
    begun, workers = time.time(), 1 if experiment.alone else os.cpu_count()
    jobs = [
        (name, label, command, seed)
        for seed in range(experiment.seeds)
        for label, command in (experiment.runs or {"all": ""}).items()
    ]
    print(f"\n{name}: {experiment.claim} ({len(jobs)} runs, {workers} at a time)", flush=True)
    results = {}  # label -> list of results, one per seed
    with ProcessPoolExecutor(
        workers,
        multiprocessing.get_context("spawn"),
        torch.set_num_threads,
        (max(1, os.cpu_count() // workers),),
    ) as pool:
        for answer in pool.map(one, *zip(*jobs)):
            for label, metrics in answer.items():
                results.setdefault(label, []).append(metrics)
    means = {}
    print(f"| run | {' | '.join(experiment.shown)} |\n|{'---|' * (1 + len(experiment.shown))}")
    for label, seeds in results.items():
        values = {metric: [m.get(metric, math.nan) for m in seeds] for metric in experiment.shown}
        means[label] = {metric: statistics.fmean(v) for metric, v in values.items()}
        cells = [f"{statistics.fmean(v):.4f} [{min(v):.4f}, {max(v):.4f}]" for v in values.values()]
        print(f"| {label} | {' | '.join(cells)} |")
    seen = bool(experiment.seen(means))
    print(
        f"{'seen' if seen else 'NOT SEEN'}; mean [range], {experiment.seeds} seeds, "
        f"{time.time() - begun:.0f} s",
        flush=True,
    )
    (FOLDER / f"{name}.json").write_text(json.dumps(results), encoding="utf-8")
    return seen


def main(names):
    """-> exit code"""
    if names == ["figures"]:
        return importlib.import_module("tests.experiments.figures").draw()
    if unknown := [name for name in names if name not in EXPERIMENTS]:
        print(f"unknown experiment {unknown[0]}: one of {', '.join(EXPERIMENTS)}", file=sys.stderr)
        return 2
    if not names:
        for name, experiment in EXPERIMENTS.items():
            print(f"{name:18} {experiment.claim}")
        print(f"{'figures':18} the README's pictures, from the runs that are there (matplotlib)")
    return 0 if all([run(name) for name in names]) else 1
