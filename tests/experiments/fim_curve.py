"""When does the model begin to read the suffix? The gain of the right over a wrong one, by step."""

import dataclasses

import torch

import common
import fim

STEPS, EVERY = 1500, 150


class CurveLog(common.Log):
    """Scores the gaps at every evaluation."""

    def row(self, step, metrics):
        super().row(step, metrics)
        _, _, val_text, _ = common.load_data(self.cfg.data, fim.SPECIALS, 129)
        gaps = fim.draw_gaps(val_text, self.cfg)
        scores = fim.score_gaps(self.model, gaps, self.tokenizer.special)
        gain = scores["val_middle_wrong_suffix"] - scores["val_middle_fim"]
        plain = dataclasses.replace(self.cfg, fim_rate=0.0)
        special = self.tokenizer.special
        scores |= fim.evaluate(self.model, val_text, plain, special, max_rows=200)
        self.curve = getattr(self, "curve", {}) | {f"step {step}": scores | {"gain": gain}}
        common.say(f"step {step}: the right suffix gains {gain:.4f} nats per character")


def measure(seed, out, steps=STEPS, **settings):
    """-> {"step n": metrics}"""
    cfg = fim.Config(seed=seed, out=out, steps=steps, eval_every=EVERY, **settings)
    tokenizer, train_text, val_text, corpus = common.load_data(cfg.data, fim.SPECIALS, 129)
    torch.manual_seed(seed)
    model = fim.build_model(cfg, tokenizer.vocab_size)
    log = CurveLog(cfg, model, tokenizer, corpus)
    fim.train(model, train_text, val_text, cfg, tokenizer.special, log)
    prompt = fim.read_prompt(tokenizer, val_text, cfg)
    end = log.finish(fim.show_off(model, tokenizer, prompt, val_text, cfg))
    return log.curve | {f"step {steps}": log.curve[f"step {steps}"] | end}
