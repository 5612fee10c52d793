"""The README's snippets run as they are written there, and do what is said of them."""

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import copies
import pytest
import torch
from helpers import scramble
from torch.utils.data import DataLoader

import fim
import mlm

README = (copies.HERE / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", README.partition("## Copy it into")[2], re.DOTALL)


def snippet(word):
    """The one snippet that has this word."""
    (found,) = (text for text in SNIPPETS if word in text)
    return found


def test_snippets_are_short():
    assert len(SNIPPETS) == 4
    assert all(
        text.count("\n") <= 15 and max(map(len, text.split("\n"))) <= 100 for text in SNIPPETS
    )


# -------------------------------------------------------- DataLoader
N = 300  # ids of a text that holds each once: a row tells which window it is


@pytest.fixture
def loading(monkeypatch):
    """The names of the first snippet, over a text of N different characters."""
    special = {name: N + i for i, name in enumerate(fim.SPECIALS)}
    tokenizer = SimpleNamespace(special=special)
    monkeypatch.setattr(fim.common, "load_data", lambda *_: (tokenizer, torch.arange(N), None, {}))
    names = {"__name__": "snippet"}
    exec(snippet("DataLoader"), names)
    torch.manual_seed(0)
    return names


def starts(batches):
    """The window of every row, by its first character, which no gap moves out of the row."""
    return [int(row.min()) for batch in batches for row in batch.idx]


def cuts(batches):
    """The corruption of every batch: where parts and specials stand."""
    return [tuple(batch.kind.flatten().tolist()) for batch in batches]


def test_two_workers_deal_each_window_once_and_never_cut_alike(loading):
    loader = loading["loader"]
    assert loader.num_workers == 2
    first, second = list(loader), list(loader)
    for epoch in (first, second):
        assert sorted(starts(epoch)) == list(range(N - 128))
        assert starts(epoch) != list(range(N - 128))
    assert starts(first) != starts(second)
    assert len(set(cuts(first + second))) == len(first + second)


def test_the_same_seed_gives_the_same_batches(loading):
    one, two = ([torch.manual_seed(5), list(loading["loader"])][1] for _ in range(2))
    assert all(torch.equal(a.idx, b.idx) for a, b in zip(one, two))


def test_a_generator_made_before_the_workers_would_cut_alike(loading):
    corrupt = loading["Corrupt"]()
    corrupt.rng = torch.Generator().manual_seed(0)
    ids = torch.arange(N).unfold(0, fim.raw_len(loading["cfg"]), 1)
    batches = list(DataLoader(ids, 24, num_workers=2, collate_fn=corrupt))
    assert len(set(cuts(batches))) < len(batches)


# -------------------------------------------------------- processes
SCRAMBLED = """
from helpers import scramble
import mlm
build = mlm.build_model
mlm.build_model = lambda *args: scramble(build(*args))      # fresh ones have no gradient in blocks
"""
KEPT = """
torch.save({"batch": tuple(batch), "loss": loss.detach(), "tensors": [p.grad for p in
           model.parameters()]}, f"{rank}.pt")
dist.destroy_process_group()
"""


def test_two_processes_have_the_loss_and_gradient_of_one(tmp_path):
    program = tmp_path / "step.py"
    program.write_text(SCRAMBLED + snippet("all_reduce") + KEPT, encoding="utf-8")
    path = os.pathsep.join([str(copies.HERE), str(copies.HERE / "tests")])
    process = subprocess.run(
        # torchrun, where no such command is on the path
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(program)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    batches = [mlm.Batch(*rank["batch"]) for rank in ranks]
    counts = [int((batch.targets != mlm.IGNORE).sum()) for batch in batches]
    assert counts[0] != counts[1] and not torch.equal(batches[0].idx, batches[1].idx)

    model = scramble(mlm.build_model(mlm.Config(), int(max(b.idx.max() for b in batches)) + 1))
    together = mlm.Batch(*map(torch.cat, list(zip(*batches))[:3]), batches[0].mask)
    loss = mlm.loss_fn(model, together, mlm.Config())[0]
    loss.backward()
    for rank in ranks:
        assert rank["loss"].item() == pytest.approx(loss.item(), rel=1e-6)
        for p, grad in zip(model.parameters(), rank["tensors"]):
            assert (p.grad - grad).abs().max() < 1e-5 * p.grad.abs().max()
    # a mean of the two means is another loss
    means = [mlm.loss_fn(model, batch, mlm.Config())[0].item() for batch in batches]
    assert abs(sum(means) / 2 - loss.item()) > 1e-4 * loss.item()


# -------------------------------------------------------- Hugging Face
@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The names of both snippets after they ran, and the trainers that they made."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    trainers = []

    clean = transformers.Trainer.__init__

    def watched(self, *args, **kwargs):
        clean(self, *args, **kwargs)
        self.args.logging_steps = self.state.logging_steps = 1
        trainers.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("hf"))
        patch.setattr(transformers.Trainer, "__init__", watched)
        exec(snippet("BertConfig"), bert := {"__name__": "snippet"})
        exec(snippet("GPT2Config"), gpt := dict(bert))  # goes on from the first
    return (bert, gpt), trainers


@pytest.mark.parametrize("which", [0, 1])
def test_the_trainer_learns_with_our_transform_as_its_collator(trained, which):
    trainer = trained[1][which]
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert len(losses) == 20 and sum(losses[-3:]) < sum(losses[:3]) - 1.0  # over three steps


@pytest.mark.parametrize("which", [0, 1])
def test_their_loss_is_ours_over_the_same_targets(trained, which):
    names, script = trained[0][which], (mlm, fim)[which]
    rows = names["ids"][: 5 * script.raw_len(names["cfg"])].view(5, -1)
    given = names["collate"](list(rows))
    model = names["model"].eval().cpu()
    with torch.no_grad():
        theirs = model(**given)
        logits, targets = theirs.logits, given["labels"]
        if which:  # position t answers for label t + 1
            logits, targets = logits[:, :-1], targets[:, 1:]
        nll = script.token_nll(logits, targets)
    assert theirs.loss.item() == pytest.approx(script.mean_nll(nll, targets).item(), abs=1e-5)
    if which:
        # every next id, as in fim.py: labels shifted twice would be the one behind it
        assert torch.equal(targets, given["input_ids"][:, 1:])
