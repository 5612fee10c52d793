"""One thread, and the corpus of the tests: tiny_shakespeare where it is, else pydoc."""

import sys
from pathlib import Path

import pytest
import torch

import common

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)  # tiny steps: two threads beside another busy process are six times slower


@pytest.fixture(scope="session")
def corpus():
    """Name of the corpus: no test touches the network."""
    return (
        "tiny_shakespeare" if (common.HERE / "data" / "tiny_shakespeare.txt").exists() else "pydoc"
    )


@pytest.fixture(scope="session")
def data(corpus):
    """tokenizer, training ids, validation ids"""
    return common.load_data(corpus, (), 65)[:3]
