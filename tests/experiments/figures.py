"""The README's pictures, drawn from what the experiments left in runs/experiments: pip install
matplotlib, then python -m tests.experiments figures. A picture whose runs are missing is left out.
"""

import csv
import json
import math

import torch

import common

FOLDER = common.HERE / "runs" / "experiments"
LADDER = {"ln V": math.log(65), "unigram": 3.313, "bigram": 2.453}
INK, GRID = "#333333", "#dddddd"


def axes(plt, title, x, y, size=(6.4, 3.6)):
    """An empty picture.  -> figure, axes"""
    figure, ax = plt.subplots(figsize=size, layout="constrained")
    ax.set(title=title, xlabel=x, ylabel=y)
    ax.grid(color=GRID, linewidth=0.6)
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return figure, ax


def curve(folder, column):
    """-> steps, values of a run's log.csv"""
    with open(folder / "log.csv", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row[column]]
    return [int(row["step"]) for row in rows], [float(row[column]) for row in rows]


def pitfalls(plt):
    """What a broken run reports (training) beside the clean one, seed 0."""
    figure, ax = axes(
        plt, "clm.py, 200 steps: what a broken run reports", "step", "training loss, nats"
    )
    for name, value in LADDER.items():
        ax.axhline(value, color=INK, linewidth=0.8, linestyle=":")
        ax.text(201, value, name, va="center", fontsize=8, color=INK)
    names = ("uniform-text", "shuffled-labels", "double-shift", "clean", "no-mask", "no-shift")
    for name, color in zip(names, plt.get_cmap("tab10").colors):
        steps, values = curve(FOLDER / "clm-pitfalls" / f"{name}-0", "train_loss")
        wide = 2.4 if name == "clean" else 1.4
        ax.plot(steps, values, label=name, color=color, linewidth=wide)
    ax.set_ylim(0, 4.5)
    ax.legend(fontsize=8, frameon=False, ncols=2, loc=(0.45, 0.08))
    return figure


def suffix(plt):
    """When does fim.py begin to read the suffix?"""
    points = json.loads((FOLDER / "fim-curve.json").read_text(encoding="utf-8"))
    steps = [int(label.split()[1]) for label in points]
    figure, ax = axes(plt, "fim.py: what the suffix is worth", "step", "nats per middle character")
    for other, label in (("wrong_suffix", "wrong suffix - right one"), ("ltr", "from the left")):
        gain = [p[0][f"val_middle_{other}"] - p[0]["val_middle_fim"] for p in points.values()]
        ax.plot(steps, gain, marker="o", markersize=3, label=label.replace("left", "left - prompt"))
    ax.axhline(0, color=INK, linewidth=0.8)
    ax.legend(fontsize=8, frameon=False)
    return figure


def forgetting(plt):
    """The old text's loss against the new one's, of every run of continued_pretrain.py."""
    runs = json.loads((FOLDER / "continued.json").read_text(encoding="utf-8"))["continued"]
    figure, ax = axes(
        plt, "110 steps on Python code", "loss on the code, nats", "loss on Shakespeare, nats"
    )
    for name, color in zip(("0", "0.1", "0.3"), plt.get_cmap("tab10").colors):
        x = [run[f"domain_replay_{name}"] for run in runs]
        y = [run[f"general_replay_{name}"] for run in runs]
        ax.scatter(x, y, s=22, color=color, label=f"replay {name}")
    x, y = ([run[f"{text}_scratch"] for run in runs] for text in ("domain", "general"))
    ax.scatter(x, y, s=22, color=INK, marker="x", label="from scratch")
    ax.axhline(runs[0]["base_loss"], color=INK, linewidth=0.8, linestyle=":")
    ax.text(min(x), runs[0]["base_loss"], "the base", fontsize=8, color=INK, va="bottom")
    ax.legend(fontsize=8, frameon=False)
    return figure


def masks(plt):
    """Who may attend to whom: rows look at columns."""
    import clm
    import mlm
    import prefix_lm

    T = 12
    causal, prefix = clm.attention_mask(T), prefix_lm.prefix_mask(torch.tensor([5]), T)[0, 0]
    shown = {
        "clm, fim, mtp, continued": causal,
        "mlm, T5's encoder": mlm.attention_mask(T),
        "prefix_lm, ul2": prefix,
        "T5's decoder": torch.cat([torch.ones(T, T).bool(), causal], 1),
    }
    figure, parts = plt.subplots(
        1,
        4,
        figsize=(9.6, 2.5),
        layout="constrained",
        width_ratios=[mask.shape[1] for mask in shown.values()],
    )
    for ax, (name, mask) in zip(parts, shown.items()):
        ax.imshow(mask, cmap="Blues", vmin=0, vmax=1.4, aspect="equal")
        ax.set_title(name, fontsize=9)
        ax.set(xticks=[], yticks=[])
    parts[0].set_ylabel("position that looks", fontsize=8)
    parts[1].set_xlabel("position looked at", fontsize=8)
    parts[2].set_xlabel("a prefix of 5", fontsize=8)
    parts[3].set_xlabel("left: the encoder's inputs; right: its own past", fontsize=8)
    return figure


def draw():
    """Write the pictures that can be drawn.  -> exit code"""
    import matplotlib.pyplot as plt

    (common.HERE / "pictures").mkdir(exist_ok=True)
    for function in (pitfalls, suffix, forgetting, masks):
        path = common.HERE / "pictures" / f"{function.__name__}.png"
        try:
            function(plt).savefig(path, dpi=110, facecolor="white")
            common.say(f"wrote {path}")
        except FileNotFoundError as error:
            common.say(f"left out {path.name}: {error.filename} is missing")
    return 0
