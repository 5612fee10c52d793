"""How long a default run takes: steps of all scripts in turn, on all cores, times their number.

Turn by turn, since the speed of a machine changes while it measures: the ratio to clm.py is what
holds elsewhere. The least of the times of a step counts. Evaluation and read-out come on top.
"""

import importlib
import statistics
import time

import torch
import torch.nn as nn

import common
from tests import copies

TURNS = 12


def prepare(script, seed, settings):
    """-> a function that takes one training step of the default run"""
    module = importlib.import_module(script)
    cfg = module.Config(seed=seed, **settings)
    tokenizer, text, _, _ = common.load_data(cfg.data, module.SPECIALS, module.raw_len(cfg))
    torch.manual_seed(seed)
    model, rng = module.build_model(cfg, tokenizer.vocab_size), torch.Generator().manual_seed(seed)
    optimizers = module.make_optimizers(model, cfg)

    def step():
        windows = module.draw_windows(text, cfg.batch_size, module.raw_len(cfg), rng)
        loss, _ = module.loss_fn(
            model, module.make_batch(windows, cfg, tokenizer.special, rng), cfg
        )
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with common.Float32Muon():
            for optimizer in optimizers:
                optimizer.step()
        model.zero_grad(set_to_none=True)

    return step


def steps_of(script):
    """Training steps of the default run."""
    steps = importlib.import_module(script).Config.steps
    # continued_pretrain.py: the base has three times the steps, and four runs go on from it
    return steps * (7 if script == "continued_pretrain" else 1)


def in_turns(settings, seed):
    """Train scripts, one step each at a time.  {script: settings} -> {script: seconds of steps}"""
    steps = {script: prepare(script, seed, some) for script, some in settings.items()}
    times = {script: [] for script in settings}
    for _ in range(TURNS):
        for script, step in steps.items():
            begun = time.perf_counter()
            step()
            times[script].append(time.perf_counter() - begun)
    return {script: seconds[2:] for script, seconds in times.items()}


def measure(seed, out):
    """-> {script: metrics}"""
    times = in_turns(dict.fromkeys(copies.read(common.HERE), {}), seed)
    whole = {script: min(seconds) * steps_of(script) for script, seconds in times.items()}
    return {
        script: {
            "seconds": whole[script],
            "of_clm": whole[script] / whole["clm"],
            "step": min(seconds),
            "median_step": statistics.median(seconds),
        }
        for script, seconds in times.items()
    }
