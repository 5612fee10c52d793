"""The README's numbers, from the default runs: python -m pytest -m slow (minutes per script)."""

import importlib
import os

import pytest
import torch

DEFAULTS = {
    "clm": (1.591, 0.02),
    "mlm": (1.350, 0.03),
    "prefix_lm": (1.651, 0.02),
    "fim": (1.641, 0.02),
    "t5_span": (1.953, 0.08),
}  # script -> validation loss and its tolerance over seeds


@pytest.mark.slow
@pytest.mark.parametrize("script", DEFAULTS)
def test_the_default_run_gives_the_number_of_the_readme(script, corpus, tmp_path):
    if corpus != "tiny_shakespeare":
        pytest.skip("the numbers are those of tiny_shakespeare")
    torch.set_num_threads(os.cpu_count())
    try:
        result = importlib.import_module(script).main(["--out", str(tmp_path)])
    finally:
        torch.set_num_threads(1)
    expected, tolerance = DEFAULTS[script]
    assert result["val_loss"] == pytest.approx(expected, abs=tolerance)
