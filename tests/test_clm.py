"""Claims about clm.py."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from helpers import entropies, scramble, standard_error

import clm
import common
from clm import (
    IGNORE,
    Batch,
    Config,
    attention_mask,
    document_mask,
    loss_fn,
    make_batch,
    mean_nll,
    smooth_nll,
    token_nll,
)

TINY = dict(batch_size=16, seq_len=32, d_model=64, n_layer=2, n_head=1)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def windows(shape=(3, 9), V=10):
    return torch.randint(V, shape, generator=rng())


def fit(data, tmp_path, steps, pitfall="", train_text=None, **settings):
    """Train a tiny model.  -> model, log"""
    tokenizer, own_text, val_text = data
    cfg = Config(
        steps=steps, out=str(tmp_path / "run"), **{"eval_every": steps, **TINY, **settings}
    )
    torch.manual_seed(cfg.seed)
    model = clm.build_model(cfg, tokenizer.vocab_size)
    log = common.Log(cfg, model, tokenizer, {"corpus": "test", "corpus_sha256": "0" * 64})
    clm.train(
        model,
        own_text if train_text is None else train_text,
        val_text,
        cfg,
        {},
        log,
        **clm.PITFALLS.get(pitfall, {}),
    )
    return model, log


def end(log, n=20):
    """Mean training loss of the last steps."""
    return sum(log.losses[-n:]) / n


@torch.no_grad()
def losses_on(model, text, length=32, pitfall=clm.make_batch):
    """Loss on all windows of a text, whole, with the batches of clm or of a pitfall."""
    rows = text[: len(text) // (length + 1) * (length + 1)].view(-1, length + 1)
    batch = pitfall(rows, Config(seq_len=length), {}, rng())
    return mean_nll(loss_fn(model, batch, Config())[1], batch.targets).item()


# -------------------------------------------------------- transform
def check_shift():
    batch = clm.make_batch(torch.tensor([[3, 8, 1, 9, 2]]), Config(seq_len=4), {}, rng())
    assert batch.idx.tolist() == [[3, 8, 1, 9]] and batch.targets.tolist() == [[8, 1, 9, 2]]
    assert (batch.targets != IGNORE).sum() == 4


def test_targets_are_the_next_character_worked_example():
    check_shift()


def test_make_batch_leaves_the_windows_alone():
    given = windows()
    before = given.clone()
    for function in (
        make_batch,
        *(how["batch_fn"] for how in clm.PITFALLS.values() if "batch_fn" in how),
    ):
        function(given, Config(seq_len=8), {}, rng())
        assert torch.equal(given, before), function


def test_draw_windows_reaches_both_ends_and_never_wraps():
    text = torch.arange(12)
    rows = clm.draw_windows(text, 500, 5, rng())
    assert torch.equal(rows, rows[:, :1] + torch.arange(5))
    assert set(rows[:, 0].tolist()) == set(range(8))
    assert torch.equal(clm.draw_windows(text, 2, 12, rng()), text.expand(2, 12))


# -------------------------------------------------------- mask
def check_triangle():
    assert clm.attention_mask(5).int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1],
    ]
    assert clm.attention_mask(3).sum() == 6


def test_attention_mask_is_the_lower_triangle():
    check_triangle()


def check_no_leak():
    """A later character moves no earlier logit, and moves its own and the later ones."""
    T = 8
    model = scramble(clm.build_model(Config(**TINY), 10))
    idx, mask = windows((1, T)), clm.attention_mask(T)
    before = model(idx, mask)
    for j in range(T):
        changed = idx.clone()
        changed[0, j] = (idx[0, j] + 1) % 10
        moved = (model(changed, mask) - before).abs().amax(-1)[0]  # (T,)
        assert (moved[:j] == 0).all(), f"character {j} moved an earlier logit"
        assert (moved[j:] > 1e-4).all(), f"character {j} did not reach a later logit"


def test_a_later_character_moves_no_earlier_logit():
    check_no_leak()


def test_the_gradient_to_later_embeddings_is_exactly_zero():
    T = 8
    model = scramble(clm.build_model(Config(**TINY), 10))
    for t in range(T):
        # every id occurs once, so that row j of the gradient belongs to position j
        logits = model(torch.arange(T)[None], attention_mask(T))
        (grad,) = torch.autograd.grad(logits[0, t].sum(), model.emb.weight)
        assert (grad[t + 1 :] == 0).all() and (grad[: t + 1].abs().amax(-1) > 0).all()


def test_document_mask_worked_example():
    mask = document_mask(torch.tensor([[1, 2, 0, 3]]), eot=0)
    assert mask.shape == (1, 1, 4, 4)
    assert mask[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1]]


def test_document_mask_isolates_documents_and_needs_no_restart_of_positions():
    # V = 10, EOT = 9; as many rows as heads: a mask of three dimensions would be read per head
    model = scramble(clm.build_model(Config(**{**TINY, "n_head": 2}), 10))
    first, second = (
        torch.tensor([[1, 2, 3, 9], [4, 9, 5, 9]]),
        torch.tensor([[4, 5, 6, 9], [1, 2, 3, 4]]),
    )
    packed = torch.cat([first, second], 1)
    both = model(packed, document_mask(packed, 9))
    other = torch.cat([(first + 1) % 9, second], 1)
    other[:, 3] = 9
    assert torch.equal(model(other, document_mask(other, 9))[:, 4:], both[:, 4:])
    alone = model(second, document_mask(second, 9))
    assert torch.allclose(alone, both[:, 4:], atol=1e-4)
    assert not torch.allclose(model(packed, attention_mask(8))[:, 4:], alone, atol=1e-2)


# -------------------------------------------------------- loss
def test_uniform_logits_cost_ln_V():
    targets = torch.tensor([[4, 4, 2, IGNORE]])
    nll = token_nll(torch.zeros(1, 4, 10), targets)
    assert nll[0, 3] == 0 and mean_nll(nll, targets).item() == pytest.approx(math.log(10), abs=1e-6)


def check_ignored():
    """Logits where the target is -100 do not count."""
    targets = torch.tensor([[1, -100, 3]])
    logits = torch.randn(1, 3, 10, generator=rng())
    other = logits.clone()
    other[0, 1] += torch.randn(10, generator=rng(1))
    assert torch.equal(clm.token_nll(logits, targets), clm.token_nll(other, targets))


def test_logits_at_unscored_positions_change_nothing():
    check_ignored()


def test_halves_with_3_and_40_targets_weigh_as_43():
    model = scramble(clm.build_model(Config(**TINY), 10))
    batch = make_batch(windows((2, 41)), Config(), {}, rng())
    targets = batch.targets.clone()
    targets[0, 3:] = IGNORE
    batch = batch._replace(targets=targets)
    loss, nll = loss_fn(model, batch, Config())
    halves = [
        loss_fn(model, Batch(*(part[i : i + 1] for part in batch[:3]), batch.mask), Config())[0]
        for i in (0, 1)
    ]
    weighted = (3 * halves[0] + 40 * halves[1]) / 43
    assert loss.item() == pytest.approx(weighted.item(), abs=1e-5)
    for a, b in zip(
        *(torch.autograd.grad(value, list(model.parameters())) for value in (loss, weighted))
    ):
        assert torch.allclose(a, b, atol=1e-5)


def test_evaluate_weighs_by_targets_over_several_batches():
    model = scramble(clm.build_model(Config(**TINY), 10))
    text, cfg = windows((70 * 9,)), Config(**{**TINY, "seq_len": 8})
    rows = text.view(-1, 9)
    nll = token_nll(model(rows[:, :-1], attention_mask(8)), rows[:, 1:]).double()
    assert clm.evaluate(model, text, cfg, {})["val_loss"] == pytest.approx(
        nll.mean().item(), abs=1e-6
    )


def test_all_targets_ignored_is_zero_not_nan():
    targets = torch.full((1, 3), IGNORE)
    assert mean_nll(token_nll(torch.zeros(1, 3, 10), targets), targets) == 0


def test_label_smoothing_by_hand():
    logits = torch.tensor([[[0.7, 0.1, 0.1, 0.1]]]).log()
    by_hand = -(0.9 * math.log(0.7) + 3 * 0.1 / 3 * math.log(0.1))
    got = smooth_nll(logits, torch.tensor([[0]]), 0.1).item()
    assert got == pytest.approx(by_hand, abs=1e-6) == pytest.approx(0.551266, abs=1e-6)
    # torch's own argument means something else
    assert F.cross_entropy(
        logits[0], torch.tensor([0]), label_smoothing=0.1
    ).item() == pytest.approx(0.502618, abs=1e-6)


def test_label_smoothing_has_a_floor_above_zero_and_ignores_what_is_ignored():
    best = torch.full((65,), 0.1 / 64)
    best[5] = 0.9
    targets = torch.tensor([[5, IGNORE]])
    nll = smooth_nll(best.log().expand(1, 2, 65), targets, 0.1)
    assert nll[0].tolist() == pytest.approx([0.74097, 0], abs=1e-5)


def test_evaluation_never_smooths():
    model = scramble(clm.build_model(Config(**TINY), 10))
    text, cfg = windows((400,)), Config(**TINY)
    plain, smooth = (
        clm.evaluate(model, text, dataclasses.replace(cfg, label_smoothing=e), {})
        for e in (0.0, 0.1)
    )
    assert plain == smooth
    batch = make_batch(text[None, :33], cfg, {}, rng())
    losses = [
        loss_fn(model, batch, dataclasses.replace(cfg, label_smoothing=e))[0].item()
        for e in (0.0, 0.1)
    ]
    assert losses[0] != losses[1]


# -------------------------------------------------------- learning
def test_step_0_costs_ln_V_to_four_decimals(data):
    tokenizer, _, val_text = data
    metrics = clm.evaluate(
        clm.build_model(Config(**TINY), tokenizer.vocab_size), val_text, Config(**TINY), {}
    )
    assert metrics["val_loss"] == pytest.approx(math.log(tokenizer.vocab_size), abs=5e-5)
    assert metrics["val_ppl"] == pytest.approx(tokenizer.vocab_size, abs=1e-2)
    assert metrics["val_bpc"] == pytest.approx(math.log2(tokenizer.vocab_size), abs=1e-4)


def test_clean_training_beats_unigram_then_bigram(data, tmp_path):
    unigram, bigram = entropies(torch.cat(data[1:]))
    _, log = fit(data, tmp_path, 150, eval_every=50)
    assert log.rows[0]["train_loss"] is None and log.rows[1]["val_loss"] < unigram
    assert log.rows[-1]["val_loss"] < bigram


def test_one_batch_can_be_learned_by_heart(data, tmp_path):
    _, log = fit(data, tmp_path, 150, train_text=data[1][:65], seq_len=64, batch_size=1)
    assert log.losses[-1] < 0.1


def test_same_seed_same_history_whenever_it_evaluates(data, tmp_path):
    runs = [fit(data, tmp_path, 12, eval_every=n)[1].losses for n in (12, 12, 5)]
    assert runs[0] == runs[1] == runs[2]
    assert fit(data, tmp_path, 12, seed=1)[1].losses != runs[0]


def test_a_run_of_one_step_moves_the_weights(data, tmp_path):
    model, _ = fit(data, tmp_path, 1)
    assert model.head.weight.abs().max() > 0


def test_lr_factor_warms_up_and_ends_near_zero():
    factors = [clm.lr_factor(step, 100) for step in range(100)]
    assert factors[:3] == [0.5, 0.99, 0.98] and factors[-1] == 0.01
    assert clm.lr_factor(0, 1) == 1


def test_muon_gets_all_matrices_of_the_blocks_and_nothing_else():
    cfg = Config(**TINY)
    model = clm.build_model(cfg, 10)
    muon, adamw = clm.make_optimizers(model, cfg)
    assert {id(p) for p in muon.param_groups[0]["params"]} == {
        id(p) for p in model.blocks.parameters()
    }
    assert {id(p) for p in adamw.param_groups[0]["params"]} == {
        id(model.emb.weight),
        id(model.head.weight),
    }
    assert muon.param_groups[0]["weight_decay"] == adamw.param_groups[0]["weight_decay"] == 0


def test_on_uniform_characters_the_loss_never_goes_below_ln_V(data, tmp_path):
    V, text = 10, windows((60_000,))
    model, log = fit(
        (common.CharTokenizer("0123456789"), text, windows((4000,))), tmp_path, 150, "uniform-text"
    )
    fresh = torch.randint(V, (1000, 33), generator=rng(5))
    nll = token_nll(model(fresh[:, :-1], attention_mask(32)), fresh[:, 1:]).detach()
    assert math.log(V) - 3 * standard_error(nll) <= nll.mean().item() <= math.log(V) + 0.02
    # single batches of 512 targets: the mean over the run is what may not lie below
    assert sum(log.losses) / len(log.losses) > math.log(V) - 0.002


# -------------------------------------------------------- pitfalls
def test_unshifted_targets_fall_to_zero_not_to_ln_V_while_the_task_is_lost(data, tmp_path):
    tokenizer, _, val_text = data
    model, log = fit(data, tmp_path, 100, "no-shift")
    assert end(log) < 0.0133
    # Jensen: next-token loss >= (1 - pi) ln((1 - pi) / l), pi and both losses from the same text
    text = val_text[: 200 * 33]
    rows = text.view(-1, 33)
    pi = (rows[:, 1:] == rows[:, :-1]).double().mean().item()
    copied, true = losses_on(model, text, pitfall=clm.no_shift), losses_on(model, text)
    assert copied < 0.0133 and true > math.log(tokenizer.vocab_size)
    assert true >= (1 - pi) * math.log((1 - pi) / copied)
    greedy = clm.sample(model, val_text[:5], 10, 32, 0, rng())
    assert set(greedy[4:].tolist()) == {int(val_text[4])}


def test_without_the_mask_training_copies_the_future(data, tmp_path):
    model, log = fit(data, tmp_path, 120, "no-mask")
    assert end(log) < math.log(data[0].vocab_size) / 32 + 0.05  # h / T, and h is at most ln V
    assert losses_on(model, data[2][: 200 * 33]) > 3


def test_shuffled_labels_plateau_at_the_unigram_entropy_not_at_ln_V(data, tmp_path):
    unigram, bigram = entropies(data[1])
    _, log = fit(data, tmp_path, 100, "shuffled-labels")
    assert abs(end(log, 50) - unigram) < 0.05


def test_double_shift_still_learns_but_higher(data, tmp_path):
    unigram, bigram = entropies(torch.cat(data[1:]))
    _, log = fit(data, tmp_path, 150, "double-shift")
    assert bigram + 0.1 < end(log) < unigram - 0.2
    batch = clm.double_shift(torch.tensor([[7, 4, 4, 2]]), Config(), {}, rng())
    assert batch.idx.tolist() == [[7, 4, 4]] and batch.targets.tolist() == [[4, 2, IGNORE]]


def test_file_order_walks_through_the_text_and_starts_again():
    text, place = torch.arange(20), rng(0)
    first, second = (clm.file_order(text, 2, 6, place) for _ in range(2))
    assert first.tolist() == [list(range(6)), list(range(6, 12))]
    assert second.tolist() == [list(range(12, 18)), [18, 19, 0, 1, 2, 3]]


def test_uniform_text_covers_the_whole_vocabulary(data):
    drawn = clm.uniform_text(data[1], 200, 64, rng())
    assert drawn.unique().tolist() == list(range(int(data[1].max()) + 1))


# -------------------------------------------------------- mutations: do checks notice?
@pytest.mark.parametrize(
    "wrong",
    [
        lambda T: torch.ones(T, T).bool(),
        lambda T: torch.ones(T, T).bool().tril(1),
        lambda T: torch.ones(T, T).bool().triu(),
    ],
)
def test_the_leak_check_notices_a_mask_that_shows_the_future(monkeypatch, wrong):
    monkeypatch.setattr(clm, "attention_mask", wrong)
    with pytest.raises(AssertionError):
        check_no_leak()


def test_the_table_notices_a_mask_without_the_diagonal(monkeypatch):
    # the leak check cannot: SDPA answers 0 where there is no key, and the residual carries the rest
    monkeypatch.setattr(clm, "attention_mask", lambda T: torch.ones(T, T).bool().tril(-1))
    with pytest.raises(AssertionError):
        check_triangle()


@pytest.mark.parametrize("wrong", ["no-shift", "double-shift"])
def test_the_worked_example_notices_a_wrong_shift(monkeypatch, wrong):
    clean = clm.make_batch
    broken = {
        "no-shift": lambda *args: (b := clean(*args))._replace(targets=b.idx),
        "double-shift": lambda *args: (b := clean(*args))._replace(
            targets=F.pad(b.targets[:, 1:], (0, 1))
        ),
    }
    monkeypatch.setattr(clm, "make_batch", broken[wrong])
    with pytest.raises(AssertionError):
        check_shift()


@pytest.mark.parametrize("wrong", [-1, 3])
def test_the_loss_check_notices_a_wrong_ignore_value(monkeypatch, wrong):
    monkeypatch.setattr(clm, "IGNORE", wrong)
    with pytest.raises((AssertionError, IndexError)):
        check_ignored()


# -------------------------------------------------------- sample
def test_sample_argmax_topk_and_beyond_the_window(data):
    tokenizer, _, val_text = data
    model = scramble(clm.build_model(Config(**TINY), tokenizer.vocab_size))
    prompt = val_text[:4]
    greedy = clm.sample(model, prompt, 50, 32, 0, rng())
    assert len(greedy) == 54 and torch.equal(greedy[:4], prompt)
    assert torch.equal(greedy, clm.sample(model, prompt, 50, 32, 0, rng(1)))
    assert torch.equal(greedy, clm.sample(model, prompt, 50, 32, 1.0, rng(), top_k=1))
    free, off = (
        clm.sample(model, prompt, 20, 32, 1.0, rng(), top_k=k)
        for k in (0, tokenizer.vocab_size + 5)
    )
    assert torch.equal(free, off) and not torch.equal(
        free, clm.sample(model, prompt, 20, 32, 1.0, rng(1))
    )
    for wrong in (dict(temperature=-1), dict(temperature=1, top_k=-1)):
        with pytest.raises(ValueError):
            clm.sample(model, prompt, 1, 32, rng=rng(), **wrong)


def test_sample_sees_only_the_window():
    model = scramble(clm.build_model(Config(**TINY), 10))
    long = windows((40,))
    assert torch.equal(
        clm.sample(model, long, 5, 8, 0, rng())[40:],
        clm.sample(model, long[-8:], 5, 8, 0, rng())[8:],
    )
