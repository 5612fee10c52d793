"""Claims about mlm.py."""

import math

import pytest
import torch
import torch.nn.functional as F
from helpers import entropies, scramble, standard_error

import common
import mlm
from mlm import (
    IGNORE,
    Config,
    attention_mask,
    draw_fates,
    fill,
    loss_fn,
    make_batch,
    mask_tokens,
    mean_nll,
    token_nll,
)

TINY = dict(batch_size=16, seq_len=32, d_model=64, n_layer=2, n_head=1)
TEN = {"MASK": 10, "CLS": 11}  # ten characters


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def windows(shape=(3, 9), V=10):
    return torch.randint(V, shape, generator=rng())


def scrambled(**settings):
    return scramble(mlm.build_model(Config(**{**TINY, **settings}), 12))


@pytest.fixture(scope="session")
def mlm_data(corpus):
    """tokenizer with MASK and CLS, training ids, validation ids"""
    return common.load_data(corpus, mlm.SPECIALS, 65)[:3]


def fit(data, tmp_path, steps, pitfall="", batch_fn=None, **settings):
    """Train a tiny model.  -> model, log"""
    tokenizer, train_text, val_text = data
    cfg = Config(
        steps=steps, out=str(tmp_path / "run"), **{"eval_every": steps, **TINY, **settings}
    )
    torch.manual_seed(cfg.seed)
    model = mlm.build_model(cfg, tokenizer.vocab_size)
    log = common.Log(cfg, model, tokenizer, {"corpus": "test", "corpus_sha256": "0" * 64})
    broken = {"batch_fn": batch_fn} if batch_fn else mlm.PITFALLS.get(pitfall, {})
    mlm.train(model, train_text, val_text, cfg, tokenizer.special, log, **broken)
    return model, log


def end(log, n=20):
    """Mean training loss of the last steps."""
    return sum(log.losses[-n:]) / n


def chi_square(counts, shares=(0.8, 0.1, 0.1)):
    """How far counts are from their shares: above 13.82 has probability 0.001."""
    n = sum(counts)
    return sum((count - n * p) ** 2 / (n * p) for count, p in zip(counts, shares))


# -------------------------------------------------------- transform
def check_worked_example():
    ids = torch.tensor([[11, 12, 13, 14, 15]])
    idx, targets = mlm.mask_tokens(
        ids, torch.tensor([[0, 1, 0, 2, 3]]), torch.full_like(ids, 40), 99
    )
    assert idx.tolist() == [[11, 99, 13, 40, 15]]
    assert targets.tolist() == [[-100, 12, -100, 14, 15]]
    cost = token_nll(torch.zeros(1, 5, 100), targets)
    assert mean_nll(cost, targets).item() == pytest.approx(4.605170, abs=1e-6)


def test_mask_tokens_worked_example():
    check_worked_example()


def check_originals_come_back():
    """Plain positions are as they were, the targets hold the rest; the input is not changed."""
    for seed in range(200):
        given = windows((2, 12))
        batch = mlm.make_batch(given, Config(mask_rate=0.4), TEN, rng(seed))
        assert torch.equal(given, windows((2, 12)))
        idx, targets = batch.idx[:, 1:], batch.targets[:, 1:]
        assert torch.equal(idx.where(targets == IGNORE, targets), given)
        masked = idx == TEN["MASK"]
        assert (targets[masked] != IGNORE).all() and (idx[~masked] < 10).all()


def test_targets_put_the_original_back_over_200_draws():
    check_originals_come_back()


def test_pitfalls_leave_the_windows_alone():
    for how in mlm.PITFALLS.values():
        given = windows()
        how["batch_fn"](given, Config(), TEN, rng())
        assert torch.equal(given, windows())


def test_cls_stands_first_and_is_never_selected():
    batch = make_batch(windows((50, 31)), Config(mask_rate=1.0), TEN, rng())
    assert batch.idx.shape == batch.targets.shape == batch.kind.shape == (50, 32)
    assert (batch.idx[:, 0] == TEN["CLS"]).all() and (batch.targets[:, 0] == IGNORE).all()
    assert (batch.targets[:, 1:] != IGNORE).all() and (batch.idx[:, 1:] != TEN["CLS"]).all()


def test_kinds_name_the_fate_of_every_target():
    given = windows((40, 31), V=10)
    batch = make_batch(given, Config(mask_rate=0.5), TEN, rng())
    idx, targets, kind = (part[:, 1:] for part in batch[:3])
    scored = targets != IGNORE
    mask, keep = (scored & (kind == mlm.KINDS.index(name)) for name in ("mask", "keep"))
    assert torch.equal(mask, idx == TEN["MASK"]) and torch.equal(idx[keep], given[keep])


# -------------------------------------------------------- rates
def test_chi_square_worked_examples():
    assert chi_square((812, 95, 93)) == pytest.approx(0.92)
    assert chi_square((81_000, 10_000, 9_000)) == pytest.approx(112.5)
    assert chi_square((80_000, 2_000, 18_000)) == pytest.approx(12_800)


def check_rates():
    """15 % are selected, and 80, 10 and 10 % of those get each fate."""
    n = 1_000_000
    fates = mlm.draw_fates((1000, 1000), 0.15, rng())
    plain, *counts = torch.bincount(fates.flatten(), minlength=4).tolist()
    assert abs(1 - plain / n - 0.15) < 3 * math.sqrt(0.1275 / n)
    assert chi_square(counts) < 13.82, counts


def test_rates_are_15_percent_and_80_10_10():
    check_rates()


def test_a_position_takes_one_number_from_the_generator():
    fated, bare = rng(), rng()
    draw_fates((7, 9), 0.15, fated)
    torch.rand((7, 9), generator=bare)
    assert torch.equal(fated.get_state(), bare.get_state())


def test_random_ids_are_characters_of_every_kind_and_never_specials():
    batch = make_batch(windows((200, 100)), Config(mask_rate=1.0), TEN, rng())
    random = batch.idx[batch.kind == mlm.KINDS.index("random")]
    assert random.unique().tolist() == list(range(10))


def test_every_batch_is_masked_anew_and_every_evaluation_alike(mlm_data):
    given, again = windows((4, 31)), rng()
    first, second = (make_batch(given, Config(), TEN, again) for _ in range(2))
    assert not torch.equal(first.targets, second.targets)
    tokenizer, _, val_text = mlm_data
    model = scramble(mlm.build_model(Config(**TINY), tokenizer.vocab_size))
    metrics = [
        mlm.evaluate(model, val_text, Config(**TINY, seed=seed), tokenizer.special, 40)
        for seed in (0, 1)
    ]
    assert metrics[0] == metrics[1]


# -------------------------------------------------------- edges
def check_never_nan():
    """A window of 7 characters: 32 % of the draws select none of them."""
    model = scrambled(seq_len=8)
    for seed in range(300):
        batch = mlm.make_batch(windows((1, 7)), Config(seq_len=8), TEN, rng(seed))
        assert (batch.targets != IGNORE).any()
        loss, nll = loss_fn(model, batch, Config())
        assert loss.isfinite() and nll.isfinite().all()


def test_a_batch_has_a_target_whatever_the_draw():
    check_never_nan()


def test_a_forced_target_may_be_anywhere():
    fates = [draw_fates((2, 3), 1e-6, rng(seed)) for seed in range(200)]
    assert all(f.count_nonzero() == 1 for f in fates) and sum(fates).count_nonzero() == 6


@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (3, 1)])
def test_rate_1_selects_every_character_of_the_smallest_windows(shape):
    assert (draw_fates(shape, 1.0, rng()) > 0).all()
    batch = make_batch(windows(shape), Config(mask_rate=1.0), TEN, rng())
    assert (batch.targets != IGNORE).sum() == shape[0] * shape[1]


def test_a_hundred_steps_of_one_tiny_window_are_finite(mlm_data, tmp_path):
    one = dict(batch_size=1, seq_len=8, n_layer=1, d_model=16)
    _, log = fit(mlm_data, tmp_path, 100, eval_every=50, **one)
    assert all(math.isfinite(loss) for loss in log.losses) and log.skipped < 50
    assert all(math.isfinite(row["val_loss"]) for row in log.rows)


@pytest.mark.parametrize("rate", ["0", "-0.1", "1.01", "15", "nan"])
def test_a_rate_outside_0_to_1_is_refused(rate):
    with pytest.raises(common.Refusal, match=r"--mask-rate .*: must be above 0 and at most 1"):
        mlm.main(["--mask-rate", rate])


def test_a_window_without_a_character_is_refused():
    with pytest.raises(common.Refusal, match="no character is left"):
        mlm.main(["--seq-len", "1"])


# -------------------------------------------------------- mask
def check_sees_both_sides():
    """Whatever position changes, every logit moves."""
    model, T = scrambled(), 8
    idx, mask = windows((1, T)), mlm.attention_mask(T)
    before = model(idx, mask)
    for j in range(T):
        changed = idx.clone()
        changed[0, j] = (idx[0, j] + 1) % 10
        moved = (model(changed, mask) - before).abs().amax(-1)[0]
        assert (moved > 1e-4).all(), f"character {j} did not reach every logit"


def test_every_character_moves_every_logit():
    check_sees_both_sides()


def test_attention_mask_hides_nothing():
    assert attention_mask(5).int().tolist() == [[1] * 5] * 5


def check_answer_is_hidden():
    """Where the answer is masked, the logits do not depend on it."""
    model, fates = scrambled(), torch.tensor([[0, 0, 1, 0, 0]])
    ids = windows((1, 5))
    other = ids.clone()
    other[0, 2] = (ids[0, 2] + 1) % 10
    inputs = [mlm.mask_tokens(x, fates, ids, TEN["MASK"])[0] for x in (ids, other)]
    a, b = (model(idx, attention_mask(5)) for idx in inputs)
    assert torch.equal(a, b)


def test_no_logit_depends_on_a_masked_answer():
    check_answer_is_hidden()


# -------------------------------------------------------- loss
def test_full_and_masked_loss_worked_example():
    nll, selected = torch.tensor([2.0, 1.0, 0.1, 0.1, 0.1]), torch.tensor([1, 1, 0, 0, 0]).bool()
    m = selected.float().mean()
    masked, visible = nll[selected].mean(), nll[~selected].mean()
    assert masked.item() == pytest.approx(1.5) and nll.mean().item() == pytest.approx(0.66)
    assert (m * masked + (1 - m) * visible).item() == pytest.approx(0.66)


def test_the_loss_on_all_is_the_mix_of_selected_and_visible():
    model, given = scrambled(), windows((5, 31))
    clean, every = (
        batch_fn(given, Config(), TEN, rng()) for batch_fn in (make_batch, mlm.score_all)
    )
    assert torch.equal(clean.idx, every.idx)
    full, nll = loss_fn(model, every, Config())
    selected = clean.targets != IGNORE
    visible = ~selected & (every.targets != IGNORE)
    m = selected.sum() / (every.targets != IGNORE).sum()
    mixed = m * loss_fn(model, clean, Config())[0] + (1 - m) * nll[visible].mean()
    assert full.item() == pytest.approx(mixed.item(), abs=1e-5)


def check_ignored():
    """Logits at positions that are not selected get no gradient and cost nothing."""
    batch = mlm.make_batch(windows((3, 31)), Config(), TEN, rng())
    logits = torch.randn(3, 32, 12, generator=rng(), requires_grad=True)
    nll = mlm.token_nll(logits, batch.targets)
    (grad,) = torch.autograd.grad(mlm.mean_nll(nll, batch.targets), logits)
    unselected = batch.targets == -100
    assert (grad[unselected] == 0).all() and (nll[unselected] == 0).all()
    assert (grad[~unselected].abs().amax(-1) > 0).all()


def test_unselected_positions_are_not_scored():
    check_ignored()


def test_halves_with_3_and_40_targets_weigh_as_43():
    model, given = scrambled(), windows((2, 40))
    fates = torch.ones_like(given)
    fates[0, 3:] = 0
    idx, targets = mask_tokens(given, fates, given, TEN["MASK"])
    batch = mlm.Batch(idx, targets, torch.zeros_like(idx), attention_mask(40))
    halves = [batch._replace(idx=idx[i : i + 1], targets=targets[i : i + 1]) for i in (0, 1)]
    loss, a, b = (loss_fn(model, part, Config())[0] for part in (batch, *halves))
    weighted = (3 * a + 40 * b) / 43
    assert loss.item() == pytest.approx(weighted.item(), abs=1e-5)
    for x, y in zip(*(torch.autograd.grad(v, list(model.parameters())) for v in (loss, weighted))):
        assert torch.allclose(x, y, atol=1e-5)


# -------------------------------------------------------- learning
def test_step_0_costs_ln_V_with_the_specials_for_every_fate(mlm_data):
    tokenizer, _, val_text = mlm_data
    model = mlm.build_model(Config(**TINY), tokenizer.vocab_size)
    metrics = mlm.evaluate(model, val_text[:20_000], Config(**TINY), tokenizer.special)
    assert list(metrics) == ["val_loss", *(f"val_loss_{kind}" for kind in mlm.KINDS)]
    for value in metrics.values():
        assert value == pytest.approx(math.log(len(tokenizer.ids) + 2), abs=5e-5)


@pytest.fixture(scope="session")
def logs(mlm_data, tmp_path_factory):
    """name -> log of a short run: the clean one, and the same with causal attention"""
    longer = dict(steps=220, eval_every=110, batch_size=32, n_head=2)
    return {
        name: fit(mlm_data, tmp_path_factory.mktemp("run"), pitfall=name, **longer)[1]
        for name in ("clean", "causal")
    }


def test_clean_training_beats_unigram_then_bigram(mlm_data, logs):
    unigram, bigram = entropies(torch.cat(mlm_data[1:]))
    rows = logs["clean"].rows
    assert rows[1]["val_loss"] < unigram and rows[-1]["val_loss"] < bigram


def test_same_seed_same_history_whenever_it_evaluates(mlm_data, tmp_path):
    runs = [fit(mlm_data, tmp_path, 12, eval_every=n)[1].losses for n in (12, 12, 5)]
    assert runs[0] == runs[1] == runs[2]
    assert fit(mlm_data, tmp_path, 12, seed=1)[1].losses != runs[0]


def floors(V):
    """Best possible losses on uniform characters: of MASK, of random, of keep, of all."""
    a, b = (1 + 1 / V) / 2, 1 / (2 * V)  # a shown character is right; is any one wrong
    shown = -a * math.log(a) - (V - 1) * b * math.log(b)
    random = -math.log(a) / V - (1 - 1 / V) * math.log(b)
    return math.log(V), random, -math.log(a), 0.8 * math.log(V) + 0.2 * shown


def test_floors_of_the_design():
    assert floors(65) == pytest.approx((4.1744, 4.8031, 0.6779, 3.8876), abs=5e-5)
    assert floors(10)[3] == pytest.approx(2.1774, abs=5e-5)


def uniform_run(tmp_path, batch_fn=None, steps=200):
    """Train on uniform characters.  -> fate -> nll of fresh targets, log"""
    digits = common.CharTokenizer("0123456789", mlm.SPECIALS)
    data = digits, windows((100_000,)), windows((4000,))
    small = dict(d_model=32, n_layer=1, batch_size=32, lr=0.02)
    model, log = fit(data, tmp_path, steps, batch_fn=batch_fn, **small)
    fresh = torch.randint(10, (3000, 31), generator=rng(5))
    batch = (batch_fn or mlm.make_batch)(fresh, Config(), digits.special, rng(6))
    with torch.no_grad():
        nll = loss_fn(model, batch, Config())[1]
    scored = batch.targets != IGNORE
    return [nll[scored & (batch.kind == kind)] for kind in range(3)], log


def check_uniform_floor(tmp_path, steps=200):
    """On uniform characters no loss is below its floor, and all come near."""
    nll, log = uniform_run(tmp_path, steps=steps)
    mask, random, keep, total = floors(10)
    means = [part.mean().item() for part in nll]
    weighted = 0.8 * means[0] + 0.1 * means[1] + 0.1 * means[2]
    # each fate weighs its share: how many of each were drawn is no merit of the model
    error = math.hypot(*(w * standard_error(part) for w, part in zip((0.8, 0.1, 0.1), nll)))
    assert total - 3 * error <= weighted <= total + 0.03
    assert mask - 3 * standard_error(nll[0]) <= means[0] <= mask + 0.03
    assert abs(means[1] - random) < 0.3 and abs(means[2] - keep) < 0.3
    assert sum(log.losses) / len(log.losses) > total - 0.02


def test_on_uniform_characters_the_loss_comes_down_to_its_floor_and_never_below(tmp_path):
    check_uniform_floor(tmp_path)


def mask_only(windows, cfg, special, rng):
    """100 % MASK."""
    batch = make_batch(windows, cfg, special, rng)
    idx = batch.idx.where(batch.targets == IGNORE, special["MASK"])
    return batch._replace(idx=idx, kind=torch.zeros_like(idx))


def test_with_mask_only_the_floor_is_ln_V(tmp_path):
    nll, _ = uniform_run(tmp_path, mask_only)
    floor = math.log(10)
    assert floor - 3 * standard_error(nll[0]) <= nll[0].mean().item() <= floor + 0.03


# -------------------------------------------------------- pitfalls
def never_masked(windows, cfg, special, rng):
    """The targets of a clean batch, the text as it is."""
    batch = make_batch(windows, cfg, special, rng)
    return batch._replace(idx=F.pad(windows, (1, 0), value=special["CLS"]))


ZERO = 0.1  # on the way to 0, and far below the nat and more that an honest guess costs


def test_causal_mask_makes_mlm_worse_not_zero(logs, corpus):
    # pydoc has more kinds of characters: so short a run has hardly begun to look around
    margin = 0.25 if corpus == "tiny_shakespeare" else 0.1
    assert end(logs["causal"], 30) > end(logs["clean"], 30) + margin


def test_scoring_all_looks_several_times_better(mlm_data, logs, tmp_path):
    _, log = fit(mlm_data, tmp_path, 80, "score-all")
    assert end(log) < end(logs["clean"]) / 3


def test_labels_after_masking_fall_to_zero(mlm_data, tmp_path):
    _, log = fit(mlm_data, tmp_path, 110, "labels-after-masking")
    assert end(log) < ZERO


def test_masks_never_applied_fall_to_zero(mlm_data, tmp_path):
    _, log = fit(mlm_data, tmp_path, 120, batch_fn=never_masked)
    assert end(log) < ZERO


def test_pitfalls_worked_example():
    given, settings = windows((2, 9)), (Config(mask_rate=0.5), TEN)
    clean = make_batch(given, *settings, rng())
    after = mlm.labels_after_masking(given, *settings, rng())
    scored = clean.targets != IGNORE
    assert torch.equal(after.targets[scored], clean.idx[scored])
    assert torch.equal(after.targets == IGNORE, ~scored)
    every = mlm.score_all(given, *settings, rng()).targets
    assert torch.equal(every[:, 1:], given) and (every[:, 0] == IGNORE).all()
    causal = mlm.causal(given, *settings, rng())
    assert torch.equal(causal.idx, clean.idx) and torch.equal(causal.targets, clean.targets)
    assert torch.equal(causal.mask, torch.ones(10, 10).tril().bool())


# -------------------------------------------------------- mutations: do checks notice?
def test_the_rate_check_notices_draws_that_overlap(monkeypatch):
    def overlapping(shape, mask_rate, rng):
        selected, random, keep = (
            torch.rand(shape, generator=rng) < p for p in (mask_rate, 0.1, 0.1)
        )
        fates = torch.ones(shape, dtype=torch.long).masked_fill(keep, 3).masked_fill(random, 2)
        return fates * selected

    monkeypatch.setattr(mlm, "draw_fates", overlapping)
    with pytest.raises(AssertionError):
        check_rates()


def test_the_rate_check_notices_80_2_18(monkeypatch):
    clean = mlm.draw_fates

    def skewed(shape, mask_rate, rng):
        fates = clean(shape, mask_rate, rng)
        return fates.masked_fill((fates == 2) & (torch.rand(shape, generator=rng) < 0.8), 3)

    monkeypatch.setattr(mlm, "draw_fates", skewed)
    with pytest.raises(AssertionError):
        check_rates()


def test_the_nan_check_notices_a_draw_without_a_target(monkeypatch):
    def plain(shape, mask_rate, rng):
        return (torch.rand(shape, generator=rng) < mask_rate).long()

    monkeypatch.setattr(mlm, "draw_fates", plain)
    with pytest.raises(AssertionError):
        check_never_nan()


@pytest.mark.parametrize("wrong", [lambda T: torch.ones(T, T).bool().tril()])
def test_the_two_sides_check_notices_a_causal_mask(monkeypatch, wrong):
    monkeypatch.setattr(mlm, "attention_mask", wrong)
    with pytest.raises(AssertionError):
        check_sees_both_sides()


MUTANTS = {
    "targets of the corrupted ids": lambda idx, targets, ids: (
        idx,
        idx.where(targets != IGNORE, IGNORE),
    ),
    "shifted targets": lambda idx, targets, ids: (idx, targets.roll(-1, -1)),
    "all scored": lambda idx, targets, ids: (idx, ids),
    "not masked": lambda idx, targets, ids: (ids, targets),
    "masked where not selected": lambda idx, targets, ids: (torch.full_like(ids, 10), targets),
}


def mutate(monkeypatch, name):
    clean = mlm.mask_tokens
    monkeypatch.setattr(
        mlm, "mask_tokens", lambda ids, *rest: MUTANTS[name](*clean(ids, *rest), ids)
    )


@pytest.mark.parametrize("name", MUTANTS)
def test_the_worked_example_notices_a_wrong_transform(monkeypatch, name):
    mutate(monkeypatch, name)
    with pytest.raises(AssertionError):
        check_worked_example()


def test_the_round_trip_notices_corruption_outside_the_selection_and_in_place(monkeypatch):
    mutate(monkeypatch, "masked where not selected")
    with pytest.raises(AssertionError):
        check_originals_come_back()
    monkeypatch.undo()
    given, clean = windows((2, 12)), mlm.mask_tokens

    def in_place(ids, fates, random_ids, mask_id):
        answer = clean(ids, fates, random_ids, mask_id)
        ids.copy_(answer[0])
        return answer

    monkeypatch.setattr(mlm, "mask_tokens", in_place)
    assert torch.equal(given, windows((2, 12)))
    with pytest.raises(AssertionError):
        check_originals_come_back()


def test_the_hidden_answer_check_notices_a_mask_not_applied(monkeypatch):
    mutate(monkeypatch, "not masked")
    with pytest.raises(AssertionError):
        check_answer_is_hidden()


@pytest.mark.parametrize("wrong", [-1, 3])
def test_the_loss_check_notices_a_wrong_ignore_value(monkeypatch, wrong):
    monkeypatch.setattr(mlm, "IGNORE", wrong)
    with pytest.raises((AssertionError, IndexError)):
        check_ignored()


def test_the_floor_check_notices_masks_that_are_not_applied(monkeypatch, tmp_path):
    mutate(monkeypatch, "not masked")
    with pytest.raises(AssertionError):
        check_uniform_floor(tmp_path, steps=40)


# -------------------------------------------------------- read-out
def test_fill_answers_the_gaps_and_nothing_else():
    model, idx = scrambled(), F.pad(windows((20,)), (1, 0), value=TEN["CLS"])
    idx[[3, 4, 9, 20]] = TEN["MASK"]
    before = idx.clone()
    likeliest = model(idx[None], attention_mask(21))[0, :, :10].argmax(-1)
    for rounds in (1, 2, 4, 9):
        done = fill(model, idx, rounds)
        assert torch.equal(idx, before) and (done[1:] < 10).all()
        assert torch.equal(done[idx != TEN["MASK"]], idx[idx != TEN["MASK"]])
        if rounds == 1:
            assert torch.equal(done[idx == TEN["MASK"]], likeliest[idx == TEN["MASK"]])
    assert torch.equal(fill(model, idx[:3], 5), idx[:3])  # no gap


def test_fill_asks_again_about_the_least_certain_only():
    model, idx = scrambled(), torch.full((5,), TEN["MASK"])
    p = model(idx[None], attention_mask(5))[0, :, :10].softmax(-1)
    sure, first = p.max(-1)
    second = first.clone()
    doubtful = sure.topk(2, largest=False).indices  # 5 gaps, 2 rounds: 5 * 1 // 2
    second[doubtful] = TEN["MASK"]
    again = model(second[None], attention_mask(5))[0, :, :10].argmax(-1)
    second[doubtful] = again[doubtful]
    assert torch.equal(fill(model, idx, 2), second)


def read(text, prompt="", **settings):
    tokenizer = common.CharTokenizer(text, mlm.SPECIALS)
    cfg = Config(prompt=prompt, **settings)
    return tokenizer, *mlm.read_prompt(tokenizer, tokenizer.encode(text), cfg)


def test_gaps_of_a_prompt_become_mask():
    tokenizer, idx, targets = read("the king\nis dead\n", "the k_ng\r\nis _")
    assert tokenizer.decode(idx) == "the k<MASK>ng\nis <MASK>" and (targets == IGNORE).all()


def test_without_a_prompt_a_line_of_the_validation_text_is_hidden_in_part():
    text = "the king is dead, long live the king\n" * 40
    tokenizer, idx, targets = read(text)
    gaps = idx == tokenizer.special["MASK"]
    assert torch.equal(gaps, targets != IGNORE) and gaps.any() and not gaps.all()
    assert torch.equal(idx.where(~gaps, targets), tokenizer.encode(text[:72]))
    assert len(read(text, seq_len=8)[1]) == 7


@pytest.mark.parametrize(
    "text, prompt, said",
    [
        ("king", "king", "nothing to fill"),
        ("king_", "k_ng", "_ would mark a gap, but it is a character"),
        ("king", "k_nG", "'G'"),
    ],
)
def test_a_prompt_that_cannot_be_filled_is_refused_in_one_line(text, prompt, said):
    with pytest.raises(common.Refusal, match=said) as refusal:
        read(text, prompt)
    assert refusal.value.code == 2 and "\n" not in str(refusal.value)


def test_the_read_out_marks_right_and_wrong_and_colours_a_terminal_only(monkeypatch, capsys):
    tokenizer, idx, targets = read("the king\nis dead\n" * 5, seq_len=32, mask_rate=0.5)
    cfg = Config(**TINY)
    model = scramble(mlm.build_model(cfg, tokenizer.vocab_size))
    assert mlm.show_off(model, tokenizer, (idx, targets), None, cfg) == {}
    plain = capsys.readouterr().out
    hidden, _, marks = plain.splitlines()[:3]
    assert hidden.count("_") == marks.count("x") + marks.count("+") > 0 and "\033" not in plain
    monkeypatch.setattr(mlm.sys.stdout, "isatty", lambda: True)
    mlm.show_off(model, tokenizer, (idx, targets), None, cfg)
    assert capsys.readouterr().out.count("\033[0m") == hidden.count("_")


def test_a_long_prompt_is_filled_in_pieces_with_a_notice(capsys):
    tokenizer, idx, targets = read("the king\n", "the k_ng " * 10)
    model = scramble(mlm.build_model(Config(**TINY), tokenizer.vocab_size))
    mlm.show_off(model, tokenizer, (idx, targets), None, Config(**TINY))
    said, hidden, filled = capsys.readouterr().out.splitlines()[:3]
    assert "the prompt has 90 characters, the model sees 31" in said
    assert hidden == "hidden  " + "the k_ng " * 10 and len(filled) >= len("hidden  ") + 89


def test_default_run_on_pydoc_in_small(tmp_path, capsys):
    flags = "--data pydoc --steps 2 --eval-every 2 --batch-size 2 --seq-len 16 --d-model 16"
    flags += f" --n-layer 1 --n-head 1 --out {tmp_path}"
    result = mlm.main(flags.split())
    assert result["steps"] == 2 and "val_ppl" not in result and "val_bpc" not in result
    assert result["vocab_size"] == len(set(common.load_text("pydoc"))) + 2
    loaded = mlm.main([*flags.split(), "--load", str(tmp_path / "ckpt.pt")])
    assert loaded["val_loss"] == result["val_loss"] and "written from 15" in capsys.readouterr().out
