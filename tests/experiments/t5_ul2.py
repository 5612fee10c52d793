"""Encoder-decoder or decoder alone? The same span corruption by t5_span.py and by ul2.py.

Both cut the same number of characters and gaps, 21 in 7, out of 141, as long as the encoder of
t5_span.py has room for; ul2.py reads inputs and targets as one row of 157 positions. Blocks, width,
steps and rows are equal, so are parameters but for the cross-attention. content: nats per cut
character.
"""

import t5_span
import ul2
from tests.experiments.ul2_modes import content, trained

FLAGS = "--steps 300 --batch-size 8 --eval-every 100"
SEQ_LEN = 157


def measure(seed, out):
    """-> {label: metrics}"""
    pair = t5_span.main([*FLAGS.split(), "--seed", str(seed), "--out", out])
    flags = f"{FLAGS} --mix R3-15 --seq-len {SEQ_LEN}"
    alone, model, val_text, cfg, special = trained(flags, seed, out)
    assert ul2.raw_len(cfg) == t5_span.raw_len(t5_span.Config(**pair["config"]))
    return {
        "encoder-decoder": pair | {"content": pair["val_loss_content"]},
        "decoder": alone | {"content": content(model, val_text, SEQ_LEN, special)},
    }
