"""Encoder-decoder or decoder alone? The same span corruption by t5_span.py and by ul2.py.

Both cut the same number of characters and gaps, 21 in 7, out of 141, as long as the encoder of
t5_span.py has room for; ul2.py reads inputs and targets as one row of 157 positions. Blocks, width,
steps and rows are equal, so are parameters but for the cross-attention. content: nats per cut
character; gain: what another row's text costs more; step: seconds of one, both in turns.
"""

import torch

import common
import t5_span
import ul2
from tests.experiments.default_time import in_turns
from tests.experiments.ul2_modes import content, trained

FLAGS = "--steps 500 --batch-size 24 --eval-every 100"
SEQ_LEN = 157


@torch.no_grad()
def other_inputs(result, folder):
    """What a cut character costs t5_span.py behind the inputs of another row."""
    cfg = t5_span.Config(**result["config"])
    tokenizer, _, val_text, _ = common.load_data(cfg.data, t5_span.SPECIALS, t5_span.raw_len(cfg))
    model = t5_span.build_model(cfg, tokenizer.vocab_size)
    common.load(f"{folder}/ckpt.pt", model, tokenizer, cfg)
    clean = t5_span.make_batch

    def swapped(*args):
        batch = clean(*args)
        return batch._replace(inputs=batch.inputs.roll(1, 0))

    t5_span.make_batch = swapped  # evaluate looks it up there
    try:
        return t5_span.evaluate(model, val_text, cfg, tokenizer.special)["val_loss_content"]
    finally:
        t5_span.make_batch = clean


def measure(seed, out):
    """-> {label: metrics}"""
    sizes = {"t5_span": {}, "ul2": dict(mix="R3-15", seq_len=SEQ_LEN, batch_size=24)}
    times = in_turns(sizes, seed)
    pair = t5_span.main([*FLAGS.split(), "--seed", str(seed), "--out", f"{out}/t5_span"])
    flags = f"{FLAGS} --mix R3-15 --seq-len {SEQ_LEN}"
    alone, model, val_text, cfg, special = trained(flags, seed, f"{out}/ul2")
    assert ul2.raw_len(cfg) == t5_span.raw_len(t5_span.Config(**pair["config"]))
    own, other = (content(model, val_text, SEQ_LEN, special, way) for way in ("own", "other"))
    cost = pair["val_loss_content"]
    gain = other_inputs(pair, f"{out}/t5_span") - cost
    return {
        "encoder-decoder": pair | {"content": cost, "gain": gain, "step": min(times["t5_span"])},
        "decoder": alone | {"content": own, "gain": other - own, "step": min(times["ul2"])},
    }
