"""Claims about ul2.py."""

import dataclasses
import math

import pytest
import torch
from helpers import entropies, scramble, standard_error

import common
import prefix_lm
import ul2
from t5_span import restore_spans
from ul2 import (
    DENOISERS,
    IGNORE,
    KINDS,
    MIXES,
    Config,
    corrupt_tail,
    count_noise,
    draw_tail,
    loss_fn,
    make_batch,
    plan_rows,
    prefix_mask,
    raw_len,
)

TINY = dict(batch_size=16, seq_len=32, d_model=64, n_layer=2, n_head=1)
TEN = {name: 10 + i for i, name in enumerate(ul2.SPECIALS)}  # ten characters
SENTINELS = torch.arange(TEN["S0"], TEN["S0"] + 32)
PAPER = KINDS[:7]


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def windows(shape=(3, 30), V=10, seed=0):
    return torch.randint(V, shape, generator=rng(seed))


def batch_of(mix="uniform", n_rows=30, seq_len=32, seed=0):
    """-> windows, batch"""
    cfg = Config(seq_len=seq_len, mix=mix)
    given = windows((n_rows, raw_len(cfg)), seed=seed)
    return given, ul2.make_batch(given, cfg, TEN, rng(seed))


def prefix_lens(batch):
    """Mode and inputs, which end with the first EOS: read off the row, not off the mask."""
    return (batch.idx == TEN["EOS"]).float().argmax(-1) + 1


def parts(idx, targets, P):
    """What a row reads before it writes, without the mode, and what it has to write."""
    return idx[1:P], targets[targets != IGNORE]


def scrambled(**settings):
    return scramble(ul2.build_model(Config(**{**TINY, **settings}), 10 + len(TEN)))


@pytest.fixture(scope="session")
def ul2_data(corpus):
    """tokenizer with the specials, training ids, validation ids"""
    return common.load_data(corpus, ul2.SPECIALS, 65)[:3]


def fit(data, tmp_path, steps, pitfall="", **settings):
    """Train a tiny model.  -> model, log"""
    tokenizer, train_text, val_text = data
    cfg = Config(
        steps=steps, out=str(tmp_path / "run"), **{"eval_every": steps, **TINY, **settings}
    )
    torch.manual_seed(cfg.seed)
    model = ul2.build_model(cfg, tokenizer.vocab_size)
    log = common.Log(cfg, model, tokenizer, {"corpus": "test", "corpus_sha256": "0" * 64})
    broken = ul2.PITFALLS.get(pitfall, {})
    ul2.train(model, train_text, val_text, cfg, tokenizer.special, log, **broken)
    return model, log


# -------------------------------------------------------- transform
def noise_of(pattern):
    return torch.tensor([char == "T" for char in pattern])


def row_of(monkeypatch, name, ids, pattern):
    """The row that a denoiser makes where its cut is given.  -> idx, targets, prefix length"""
    for draw in ("draw_noise", "draw_tail"):
        monkeypatch.setattr(ul2, draw, lambda *args: noise_of(pattern))
    cfg = Config(seq_len=next(n for n in range(6, 99) if plan_rows(n, name)[name][0] == len(ids)))
    cfg = dataclasses.replace(cfg, mix=name)
    batch = ul2.make_batch(torch.tensor([ids]), cfg, TEN, rng())
    return batch.idx[0].tolist(), batch.targets[0].tolist(), int(prefix_lens(batch))


def check_worked_examples(monkeypatch):
    """The rows of the three modes, by hand."""
    R, S, X, EOS, S0, S1 = (TEN[name] for name in ("NLU", "S2S", "NLG", "EOS", "S0", "S1"))
    no = [IGNORE]
    ids = [1, 2, 3, 4, 5, 6, 7, 8]
    assert row_of(monkeypatch, "S", ids, "FFFFFFTT") == (
        [S, 1, 2, 3, 4, 5, 6, EOS, 7, 8],
        no * 7 + [7, 8, EOS],
        8,
    )
    assert row_of(monkeypatch, "R3-15", ids, "FFFFFFFT") == (
        [R, 1, 2, 3, 4, 5, 6, 7, S0, EOS, S0, 8],
        no * 9 + [S0, 8, EOS],
        10,
    )
    ids = [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]
    assert row_of(monkeypatch, "X3-50", ids, "FTTFFFFFTTTT") == (
        [X, 1, S0, 4, 5, 6, 7, 8, S1, EOS, S0, 2, 3, S1, 9, 0, 1, 2],
        no * 9 + [S0, 2, 3, S1, 9, 0, 1, 2, EOS],
        10,
    )


def test_worked_examples(monkeypatch):
    check_worked_examples(monkeypatch)


def test_corrupt_tail_worked_example():
    inputs, targets = corrupt_tail(torch.tensor([1, 2, 3, 4]), noise_of("FFTT"), 9)
    assert inputs.tolist() == [1, 2, 9] and targets.tolist() == [3, 4, 9]


def check_every_denoiser_restores():
    """What a row reads and what it writes give its text exactly; nothing is cut off."""
    for name in KINDS:
        length, k = plan_rows(64, name)[name]
        for seed in range(5):
            given, batch = batch_of(name, 25, 64, seed)
            for ids, idx, targets, P in zip(given, *batch[:2], prefix_lens(batch)):
                inputs, answer = parts(idx, targets, P)
                assert idx[0] == TEN[DENOISERS[name][0]]
                assert inputs[-1] == answer[-1] == TEN["EOS"]
                assert (inputs >= TEN["S0"]).sum() == (answer >= TEN["S0"]).sum() == k
                text = (
                    torch.cat([inputs[:-1], answer[:-1]])
                    if name == "S"
                    else restore_spans(inputs, answer, SENTINELS, TEN["EOS"])
                )
                assert torch.equal(text, ids[:length])


def test_every_denoiser_gives_its_text_back_exactly():
    check_every_denoiser_restores()


def check_rows():
    """The mode of the row's denoiser in front, nothing but what was cut scored, PAD at the end."""
    _, batch = batch_of(n_rows=300, seq_len=64)
    modes = [TEN[name] for name in ul2.MODES]
    assert len(batch.kind[:, 0].unique()) == 7
    for idx, targets, kind, mask, P in zip(*batch, prefix_lens(batch)):
        assert torch.equal(mask, prefix_lm.prefix_mask(P[None], 64)[0])
        assert idx[0] == TEN[DENOISERS[KINDS[kind[0]]][0]] and (kind == kind[0]).all()
        scored = (targets != IGNORE).nonzero()[:, 0]
        # one piece, from the last position that is read both ways to the one before EOS
        assert scored.tolist() == list(range(P - 1, P - 1 + len(scored)))
        assert targets[scored[-1]] == TEN["EOS"]
        assert torch.equal(idx[scored[1:]], targets[scored[:-1]])  # what was due is read next
        assert not torch.isin(targets[scored], torch.tensor([*modes, TEN["PAD"]])).any()
        padded = idx == TEN["PAD"]
        assert padded.sum() <= 2 and padded[: len(idx) - padded.sum()].sum() == 0
        assert not torch.isin(idx[1:], torch.tensor(modes)).any()


def test_a_row_is_mode_inputs_targets_and_only_the_targets_are_scored():
    check_rows()


def test_a_character_id_is_never_a_special():
    ids = list(TEN.values())
    assert len(set(ids)) == len(ids) == 37 and min(ids) == 10


def test_make_batch_and_pitfalls_leave_the_windows_alone():
    for function in (make_batch, *(how["batch_fn"] for how in ul2.PITFALLS.values())):
        given = windows((20, 30))
        function(given, Config(**TINY), TEN, rng())
        assert torch.equal(given, windows((20, 30)))


@pytest.mark.parametrize("P", [4, 6, 7])
def test_s_without_mode_and_eos_is_the_row_of_a_prefix_lm(monkeypatch, P):
    given = windows((5, 8))
    monkeypatch.setattr(ul2, "draw_tail", lambda n, *args: torch.arange(n) >= P)
    monkeypatch.setattr(prefix_lm, "draw_prefix_len", lambda n, *args: torch.full((n,), P))
    ours = make_batch(given, Config(seq_len=10, mix="S"), TEN, rng())
    theirs = prefix_lm.make_batch(given, prefix_lm.Config(seq_len=7), {}, rng())
    for row in range(5):
        keep = (ours.idx[row] < 10).nonzero()[:, 0]  # characters: neither mode nor EOS
        assert torch.equal(ours.idx[row, keep][:-1], theirs.idx[row])
        scored, expected = (b.targets[row][b.targets[row] != IGNORE] for b in (ours, theirs))
        assert torch.equal(scored[:-1], expected) and scored[-1] == TEN["EOS"]
        mask = ours.mask[row, 0][keep][:, keep]
        assert torch.equal(mask[:-1, :-1], theirs.mask[row, 0])


# -------------------------------------------------------- counts and draws
def test_the_paper_s_seven_in_their_modes():
    assert {DENOISERS[name] for name in PAPER} == {
        *[("NLU", mean, 0.15) for mean in (3, 8)],
        *[("NLG", mean, 0.5) for mean in (3, 8, 64)],
        ("NLG", 64, 0.15),
        ("S2S", None, 0.25),
    }
    by_mode = dict.fromkeys(ul2.MODES, 0)
    for name, weight in MIXES["ul2r"].items():
        by_mode[DENOISERS[name][0]] += weight / sum(MIXES["ul2r"].values())
    assert by_mode == {"NLU": 0.25, "S2S": 0.5, "NLG": 0.25}


CHI = {"uniform": 22.5, "ul2r": 16.3}  # 6 and 3 degrees of freedom, p = 0.001


@pytest.mark.parametrize("mix", CHI)
def test_denoisers_come_as_often_as_the_mix_says(mix):
    n, weights = 8000, torch.tensor([float(MIXES[mix].get(name, 0)) for name in KINDS])
    counts = torch.bincount(ul2.draw_denoisers(n, mix, rng(1)), minlength=len(KINDS))
    expected = n * weights / weights.sum()
    assert (counts[weights == 0] == 0).all()
    chi = ((counts - expected) ** 2 / expected)[weights > 0].sum()
    assert chi < CHI[mix]


def test_one_denoiser_alone_is_a_mix():
    for i, name in enumerate(KINDS):
        assert (ul2.draw_denoisers(50, name, rng()) == i).all()


def check_plans():
    """Rows are full but for two positions, one character more would not fit; nothing is cut."""
    for seq_len in (6, 7, 16, 31, 64, 128, 200, 256):
        for name, (length, k) in ul2.plan_rows(seq_len, "uniform").items():
            _, mean_span, density = DENOISERS[name]
            taken, more = (
                n + 2 * (count_noise(n, density, mean_span)[1] if mean_span else 0) + 2
                for n in (length, length + 1)
            )
            assert taken <= seq_len < more and seq_len - taken <= 2
            assert k == (taken - length - 2) // 2 <= 32


def test_rows_are_planned_for_every_length():
    check_plans()
    assert plan_rows(256, "uniform") == {
        "R3-15": (230, 11),
        "R8-15": (244, 5),
        "S": (254, 0),
        "X3-50": (190, 32),
        "X8-50": (226, 14),
        "X64-15": (252, 1),
        "X64-50": (250, 2),
    }


def test_which_denoisers_cut_the_end_only():
    tails = {n: [d for d, (_, k) in plan_rows(n, "uniform").items() if k == 1] for n in (128, 256)}
    assert tails == {128: ["X64-15", "X64-50"], 256: ["X64-15"]}
    assert plan_rows(256, "ul2r")["X32-15"][1] == 1


def check_tails():
    """All ends of half the text or less, down to one character, are equally likely."""
    n, source = 5000, rng(2)
    lengths = torch.stack([ul2.draw_tail(9, 0.25, source) for _ in range(n)])
    assert (lengths.diff(dim=1) >= 0).all()  # an end: False, then True
    counts = torch.bincount(lengths.sum(1), minlength=6)
    assert counts[0] == 0 and len(counts) == 6  # 9 characters: 4 to 8 are left
    assert ((counts[1:] - n / 5) ** 2 / (n / 5)).sum() < 18.5  # 4 degrees of freedom, p = 0.001


def test_s_cuts_up_to_half_of_the_text_all_lengths_equally_likely():
    check_tails()
    assert draw_tail(2, 0.25, rng()).tolist() == [False, True]
    kept = [int((~draw_tail(254, 0.25, rng(seed))).sum()) for seed in range(300)]
    assert 126 <= min(kept) < 130 and 250 < max(kept) <= 253


# -------------------------------------------------------- refusals
@pytest.mark.parametrize(
    "flags, said",
    [
        ("--seq-len 346", "X3-50 makes 43 gaps in 258 characters, but there are 32 sentinels"),
        ("--seq-len 346 --mix ul2r", "X3-50 makes 43 gaps"),
        ("--seq-len 5", "--seq-len 5: must be at least 6"),
        ("--seq-len -1", "--seq-len -1"),
        ("--mix R", "--mix R: not one of uniform, ul2r, R3-15"),
        ("--mode X", "--mode X: not one of all, NLU, S2S, NLG"),
    ],
)
def test_settings_out_of_range_are_refused_in_one_line(flags, said):
    with pytest.raises(common.Refusal, match=said) as refusal:
        ul2.main(flags.split())
    assert refusal.value.code == 2 and "\n" not in str(refusal.value)


# -------------------------------------------------------- leaks
def check_no_leak():
    """Mode and inputs move every logit; a target moves none before it; PAD only itself."""
    model = scrambled(n_head=2)
    for name in ("R3-15", "S", "X8-50"):
        _, batch = batch_of(name, 2, 64)  # rows as many as heads; X8-50 leaves two PAD
        P, T = prefix_lens(batch), 64
        before = model(batch.idx, batch.mask)
        for j in range(T):
            changed = batch.idx.clone()
            changed[0, j] = (batch.idx[0, j] + 1) % 40
            moved = (model(changed, batch.mask) - before).abs().amax(-1)
            assert (moved[1] == 0).all(), f"{name}: position {j} moved another row"
            first = 0 if j < P[0] else j
            assert (moved[0, :first] == 0).all(), f"{name}: {j} moved an earlier logit"
            assert (moved[0, first:] > 1e-5).all(), f"{name}: {j} did not reach a logit"


def test_the_inputs_reach_every_logit_and_the_targets_later_ones_only():
    check_no_leak()


def check_padding():
    """What stands in a PAD slot changes no logit that is scored, and no loss; none is nan."""
    model = scrambled()
    _, batch = batch_of("X8-50", 6, 64)
    padded = batch.idx == TEN["PAD"]
    assert padded.sum() == 6  # two per row; the first is a target only
    assert (batch.targets[padded] == IGNORE).all()
    other = batch._replace(idx=batch.idx.masked_fill(padded, 3))
    (loss, nll), (other_loss, other_nll) = (loss_fn(model, b, Config()) for b in (batch, other))
    assert loss == other_loss and torch.equal(nll, other_nll)
    assert model(batch.idx, batch.mask).isfinite().all()
    assert batch.mask.any(-1).all()  # no query without a key


def test_padding_is_neither_scored_nor_seen():
    check_padding()


def test_a_row_alone_equals_the_row_in_a_batch():
    model, (_, batch) = scrambled(), batch_of(n_rows=12)
    together = model(batch.idx, batch.mask)
    for i in range(12):
        alone = model(batch.idx[i : i + 1], batch.mask[i : i + 1])
        assert torch.allclose(alone[0], together[i], atol=1e-4)


def check_answers_are_hidden():
    """Logits up to a cut character do not depend on it."""
    model = scrambled()
    for name, last in (("S", 29), ("X3-50", 21), ("R3-15", 27)):  # the last character is cut
        assert plan_rows(32, name)[name][0] == last + 1
        rows = []
        for char in (0, 1):
            given = windows((1, last + 1)).clone()
            given[0, last] = char
            batch = ul2.make_batch(given, Config(seq_len=32, mix=name), TEN, rng())
            rows.append((batch.targets[0], model(batch.idx, batch.mask)[0]))
        (first, a), (second, b) = rows
        (at,) = (first != second).nonzero()[:, 0].tolist()  # the one target that differs
        assert torch.equal(a[: at + 1], b[: at + 1]) and not torch.equal(a[at + 1 :], b[at + 1 :])


def test_no_logit_depends_on_the_character_it_predicts():
    check_answers_are_hidden()


# -------------------------------------------------------- loss
def check_ignored():
    """Logits in the inputs and at PAD cost nothing and get no gradient; the others do."""
    _, batch = batch_of(n_rows=40, seq_len=64)
    logits = torch.randn(40, 64, 10 + len(TEN), generator=rng(), requires_grad=True)
    nll = ul2.token_nll(logits, batch.targets)
    (grad,) = torch.autograd.grad(ul2.mean_nll(nll, batch.targets), logits)
    at = torch.arange(64)
    due = at >= prefix_lens(batch)[:, None] - 1
    due &= torch.nn.functional.pad(batch.idx[:, 1:], (0, 1), value=TEN["EOS"]) != TEN["PAD"]
    due &= batch.idx != TEN["PAD"]
    assert (grad[~due] == 0).all() and (nll[~due] == 0).all()
    assert (grad[due].abs().amax(-1) > 0).all()


def test_inputs_and_padding_are_not_scored():
    check_ignored()


def test_uniform_logits_cost_ln_V():
    _, batch = batch_of()
    nll = ul2.token_nll(torch.zeros(30, 32, 47), batch.targets)
    assert ul2.mean_nll(nll, batch.targets).item() == pytest.approx(math.log(47), abs=1e-6)


def test_rows_weigh_by_what_they_score():
    _, batch = batch_of(n_rows=9, seq_len=64)
    model, counts = scrambled(), (batch.targets != IGNORE).sum(-1)
    assert len(counts.unique()) > 2
    rows = [ul2.Batch(*(part[i : i + 1] for part in batch)) for i in range(9)]
    loss, *each = (loss_fn(model, part, Config())[0] for part in (batch, *rows))
    weighted = sum(n * one for n, one in zip(counts, each)) / counts.sum()
    assert loss.item() == pytest.approx(weighted.item(), abs=1e-5)
    for x, y in zip(*(torch.autograd.grad(v, list(model.parameters())) for v in (loss, weighted))):
        assert torch.allclose(x, y, atol=1e-5)


# -------------------------------------------------------- learning
def test_step_0_costs_ln_V_with_the_specials_for_every_denoiser(ul2_data):
    tokenizer, _, val_text = ul2_data
    model = ul2.build_model(Config(**TINY), tokenizer.vocab_size)
    metrics = ul2.evaluate(model, val_text[:6000], Config(**TINY), tokenizer.special)
    assert list(metrics) == ["val_loss", *(f"val_loss_{name}" for name in PAPER)]
    for value in metrics.values():
        assert value == pytest.approx(math.log(len(tokenizer.ids) + 37), abs=5e-5)


def test_losses_by_denoiser_are_those_of_the_denoiser_alone(ul2_data):
    tokenizer, _, val_text = ul2_data
    model = scramble(ul2.build_model(Config(**TINY), tokenizer.vocab_size))
    cfg = Config(**TINY)
    metrics = ul2.evaluate(model, val_text[:6000], cfg, tokenizer.special)
    windows = val_text[: 6000 // raw_len(cfg) * raw_len(cfg)].view(-1, raw_len(cfg))
    source, nats, count = rng(1), dict.fromkeys(KINDS, 0.0), dict.fromkeys(KINDS, 0)
    for rows in windows.split(64):
        batch = make_batch(rows, cfg, tokenizer.special, source)
        with torch.no_grad():
            nll = loss_fn(model, batch, cfg)[1]
        for i in range(len(rows)):
            mode = tokenizer.shown[batch.idx[i, 0]].strip("<>")
            name = KINDS[batch.kind[i, 0]]
            assert DENOISERS[name][0] == mode
            nats[name] += nll[i].double().sum().item()
            count[name] += int((batch.targets[i] != IGNORE).sum())
    for name in PAPER:
        assert metrics[f"val_loss_{name}"] == pytest.approx(nats[name] / count[name], abs=1e-6)
    assert metrics["val_loss"] == pytest.approx(sum(nats.values()) / sum(count.values()), abs=1e-6)


def test_clean_training_beats_the_unigram_entropy(ul2_data, tmp_path):
    unigram, _ = entropies(torch.cat(ul2_data[1:]))
    short = *ul2_data[:2], ul2_data[2][:4000]
    row = fit(short, tmp_path, 60, n_layer=1, lr=0.05)[1].rows[-1]
    assert row["val_loss"] < unigram and row["val_loss_S"] < unigram


def test_same_seed_same_history_whenever_it_evaluates(ul2_data, tmp_path):
    short = *ul2_data[:2], ul2_data[2][:900]
    runs = [fit(short, tmp_path, 6, eval_every=n)[1].losses for n in (6, 6, 2)]
    assert runs[0] == runs[1] == runs[2]
    assert fit(short, tmp_path, 6, seed=1)[1].losses != runs[0]


def floor(N, k, V):
    """Best possible loss per target on uniform characters: cut characters, and where gaps end."""
    return (N * math.log(V) + math.log(math.comb(N - 1, k - 1))) / (N + k + 1)


def tail_floor(length, V):
    """The same for S: its answer ends where the text does, which its inputs tell."""
    least = max(1, round(0.5 * (length - 1)))
    cut = [length - P for P in range(least, length)]
    return sum(cut) * math.log(V) / sum(n + 1 for n in cut)


def test_floors_of_the_design():
    for mean, density, value in (
        (3, 0.15, 3.399),
        (8, 0.15, 3.737),
        (3, 0.5, 3.538),
        (8, 0.5, 3.936),
        (64, 0.15, 3.777),
        (64, 0.5, 4.048),
    ):
        assert floor(*count_noise(128, density, mean), 65) == pytest.approx(value, abs=5e-4)
    assert tail_floor(128, 65) == pytest.approx(4.0498, abs=5e-5)


def check_uniform_floor(tmp_path, steps=150):
    """On uniform characters no denoiser is below its floor, and all come near.

    S and X3-50 come down last: where a text ends, and each of many gaps, must be counted.
    """
    settings = dict(d_model=32, n_layer=1, batch_size=24, lr=0.05)
    digits = common.CharTokenizer("0123456789", ul2.SPECIALS)
    model, _ = fit((digits, windows((100_000,)), windows((300,))), tmp_path, steps, **settings)
    for name in PAPER:
        length, k = plan_rows(32, name)[name]
        lowest = tail_floor(length, 10)
        if name != "S":
            _, mean_span, density = DENOISERS[name]
            lowest = floor(count_noise(length, density, mean_span)[0], k, 10)
        cfg = Config(**{**TINY, **settings}, mix=name)
        batch = ul2.make_batch(windows((150, length), seed=5), cfg, digits.special, rng(6))
        with torch.no_grad():
            nll = loss_fn(model, batch, cfg)[1]
        n = (batch.targets != IGNORE).sum(-1)
        # total nats over total targets, and the error of that ratio over rows
        loss = (nll.sum() / n.sum()).item()
        error = standard_error(nll.sum(-1) - loss * n) / n.float().mean().item()
        assert lowest - 3 * error <= loss <= lowest + 0.5, (name, lowest, loss, error)


def test_on_uniform_characters_every_denoiser_comes_down_to_its_floor_and_never_below(tmp_path):
    check_uniform_floor(tmp_path)


# -------------------------------------------------------- pitfalls
def test_pitfalls_worked_example():
    given, clean = batch_of("X8-50", 3, 64)
    cfg = Config(seq_len=64, mix="X8-50")
    mute, padded = (
        function(given, cfg, TEN, rng()) for function in (ul2.no_mode_token, ul2.pad_scored)
    )
    assert (mute.idx[:, 0] == TEN["PAD"]).all() and torch.equal(mute.idx[:, 1:], clean.idx[:, 1:])
    assert torch.equal(mute.targets, clean.targets)
    more = padded.targets != clean.targets
    assert (more.sum(-1) == 2).all() and (padded.targets[more] == TEN["PAD"]).all()
    assert more[:, -2:].all() and torch.equal(padded.idx, clean.idx)


@pytest.fixture(scope="session")
def broken(ul2_data, tmp_path_factory):
    """pitfall -> model and log of a short run of a denoiser that leaves two PAD per row"""
    short = *ul2_data[:2], ul2_data[2][:2000]
    return {
        name: fit(short, tmp_path_factory.mktemp("run"), 50, name, **PADDED)
        for name in ul2.PITFALLS
    }


PADDED = dict(mix="X8-50", seq_len=64, n_layer=1, lr=0.05)


def test_padding_scored_looks_better_by_the_share_of_padding(ul2_data, broken):
    tokenizer, _, val_text = ul2_data
    model, _ = broken["pad-scored"]
    cfg = Config(**{**TINY, **PADDED})
    given = val_text[: 100 * raw_len(cfg)].view(100, -1)
    losses = []
    for function in (make_batch, ul2.pad_scored):
        batch = function(given, cfg, tokenizer.special, rng(3))
        with torch.no_grad():
            loss, nll = loss_fn(model, batch, cfg)
        losses.append(loss.item())
    N, k = count_noise(raw_len(cfg), 0.5, 8)
    n = N + k + 1
    # PAD soon costs little: what is lost is its share of the targets
    assert losses[1] == pytest.approx(losses[0] * n / (n + 2), abs=0.05)
    assert losses[1] < losses[0] - 0.1


def test_without_mode_tokens_none_is_learnt(ul2_data, broken):
    special = ul2_data[0].special
    cfg = Config(**{**TINY, **PADDED})
    torch.manual_seed(cfg.seed)
    fresh = ul2.build_model(cfg, ul2_data[0].vocab_size).emb.weight
    for name, expected in (("no-mode-token", True), ("pad-scored", False)):
        model, _ = broken[name]
        i = special["NLG"]
        assert torch.equal(model.emb.weight[i], fresh[i]) == expected


# -------------------------------------------------------- mutations: do checks notice?
MASKS = {
    "everyone": lambda causal, inside: causal | inside | True,
    "causal": lambda causal, inside: causal & (inside | True),
    "prefix only": lambda causal, inside: inside & (causal | True),
    "anti-causal": lambda causal, inside: causal.mT | inside,
}


@pytest.mark.parametrize("name", MASKS)
def test_the_leak_check_notices_a_wrong_mask(monkeypatch, name):
    def wrong(prefix_len, T):
        inside = torch.arange(T) < prefix_len[:, None, None, None]
        return MASKS[name](torch.ones(T, T).bool().tril(), inside)

    monkeypatch.setattr(ul2, "prefix_mask", wrong)
    with pytest.raises(AssertionError):
        check_no_leak()


@pytest.mark.parametrize("off", [-1, 1])
def test_the_checks_notice_a_prefix_that_is_off_by_one(monkeypatch, off):
    clean = ul2.prefix_mask
    monkeypatch.setattr(ul2, "prefix_mask", lambda P, T: clean((P + off).clamp(max=T), T))
    with pytest.raises(AssertionError):
        check_rows()


@pytest.mark.parametrize("off", [-1, 1])
def test_the_checks_notice_a_score_that_is_off_by_one(monkeypatch, off):
    clean = ul2.score_suffix
    monkeypatch.setattr(ul2, "score_suffix", lambda targets, P: clean(targets, P + off))
    for check in (check_rows, check_ignored):
        with pytest.raises(AssertionError):
            check()


def test_the_checks_notice_padding_that_is_scored(monkeypatch):
    clean = ul2.make_batch

    def scored(*args):
        batch = clean(*args)
        return batch._replace(targets=batch.targets.masked_fill(batch.idx == TEN["PAD"], 0))

    monkeypatch.setattr(ul2, "make_batch", scored)
    for check in (check_padding, check_rows):
        with pytest.raises(AssertionError):
            check()


def test_the_padding_check_notices_padding_in_front(monkeypatch):
    clean = ul2.make_batch

    def early(*args):  # rows moved to the right: what is scored now sees PAD
        batch = clean(*args)
        idx, targets = (part.roll(1, 1) for part in batch[:2])
        return batch._replace(idx=idx, targets=targets)

    monkeypatch.setattr(ul2, "make_batch", early)
    for check in (check_padding, check_rows):
        with pytest.raises(AssertionError):
            check()


def test_the_row_check_notices_a_mode_of_another_denoiser(monkeypatch):
    monkeypatch.setitem(ul2.DENOISERS, "S", ("NLU", None, 0.25))
    clean = ul2.corrupt

    def swapped(ids, name, special, rng):
        inputs, targets = clean(ids, name, special, rng)
        inputs[0] = special["NLU"]
        return inputs, targets

    monkeypatch.undo()
    monkeypatch.setattr(ul2, "corrupt", swapped)
    for check in (check_rows, check_every_denoiser_restores):
        with pytest.raises(AssertionError):
            check()


def test_the_checks_notice_a_text_that_is_cut_short_or_plans_that_do_not_fit(monkeypatch):
    clean = ul2.corrupt
    monkeypatch.setattr(ul2, "corrupt", lambda ids, *args: clean(ids[:-1], *args))
    with pytest.raises(AssertionError):
        check_every_denoiser_restores()
    for off in (-1, 1):
        plan = {name: (n + off, k) for name, (n, k) in plan_rows(64, "uniform").items()}
        monkeypatch.setattr(ul2, "plan_rows", lambda *args: plan)
        with pytest.raises(AssertionError):
            check_plans()


def test_the_checks_notice_a_mode_token_among_the_targets(monkeypatch):
    clean = ul2.corrupt

    def both(ids, name, special, rng):
        inputs, targets = clean(ids, name, special, rng)
        return inputs, torch.cat([inputs[:1], targets[1:]])

    monkeypatch.setattr(ul2, "corrupt", both)
    for check in (check_rows, check_every_denoiser_restores):
        with pytest.raises(AssertionError):
            check()


def test_the_tail_check_notices_other_ends(monkeypatch):
    for least in (1, 5):  # T5's plain prefix LM; half of the text and more
        monkeypatch.setattr(
            ul2,
            "draw_tail",
            lambda n, density, rng: torch.arange(n) >= torch.randint(least, n, (1,), generator=rng),
        )
        with pytest.raises(AssertionError):
            check_tails()


@pytest.mark.parametrize("wrong", [-1, 3])
def test_the_loss_check_notices_a_wrong_ignore_value(monkeypatch, wrong):
    monkeypatch.setattr(ul2, "IGNORE", wrong)
    clean = ul2.score_suffix
    monkeypatch.setattr(
        ul2, "score_suffix", lambda t, P: (s := clean(t, P)).where(s != wrong, -100)
    )
    with pytest.raises((AssertionError, IndexError)):
        check_ignored()


def test_the_floor_check_notices_targets_that_can_be_read(monkeypatch, tmp_path):
    monkeypatch.setattr(
        ul2, "prefix_mask", lambda P, T: prefix_lm.prefix_mask(torch.full_like(P, T), T)
    )
    with pytest.raises(AssertionError):
        check_uniform_floor(tmp_path, steps=60)


# -------------------------------------------------------- read-out
def test_an_answer_is_written_behind_the_inputs_until_eos():
    model, inputs = scrambled(), windows((9,))
    written = ul2.write_answer(model, inputs, 6, TEN["EOS"], 0, rng())
    ids = inputs
    for new in written:
        logits = model(ids[None], prefix_mask(torch.tensor([9]), len(ids)))[0, -1]
        assert logits.argmax() == new
        ids = torch.cat([ids, new[None]])
    assert len(written) == 6
    with torch.no_grad():
        model.head.weight[TEN["EOS"]] = model.head.weight[written[0]] * 3
    assert ul2.write_answer(model, inputs, 6, TEN["EOS"], 0, rng()).tolist() == [TEN["EOS"]]
    drawn = [ul2.write_answer(model, inputs, 6, 999, 1.0, rng(seed)).tolist() for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


def read(text, prompt="", **settings):
    tokenizer = common.CharTokenizer(text, ul2.SPECIALS)
    cfg = Config(prompt=prompt, **settings)
    return tokenizer, *ul2.read_prompt(tokenizer, tokenizer.encode(text), cfg)


def test_runs_of_underscores_become_gaps_and_without_any_the_text_is_continued():
    tokenizer, inputs, targets = read("the king\nis dead\n", "the k__g\r\nis _")
    assert tokenizer.decode(inputs) == "the k<S0>g\nis <S1><EOS>" and len(targets) == 0
    for text in ("the king", "the _king"):
        tokenizer, inputs, _ = read(text, "the k")
        assert tokenizer.decode(inputs) == "the k<EOS>"


def test_without_a_prompt_validation_text_is_cut():
    text = "the king is dead, long live the king\n" * 40
    tokenizer, inputs, targets = read(text)
    sentinels = torch.tensor([tokenizer.special[name] for name in ul2.SENTINELS])
    back = restore_spans(inputs, targets, sentinels, tokenizer.special["EOS"])
    assert tokenizer.decode(back) == text[:128]


@pytest.mark.parametrize(
    "text, prompt, said",
    [
        ("king_", "k_ng", "_ would mark a gap, but it is a character"),
        ("king", "k_nG", "'G'"),
        ("king", "k_" * 33, "--prompt: 33 gaps, but 32 sentinels"),
    ],
)
def test_a_prompt_that_cannot_be_read_is_refused_in_one_line(text, prompt, said):
    with pytest.raises(common.Refusal, match=said) as refusal:
        read(text, prompt)
    assert refusal.value.code == 2 and "\n" not in str(refusal.value)


def test_default_run_on_pydoc_in_small(tmp_path, capsys):
    flags = "--data pydoc --steps 2 --eval-every 2 --batch-size 2 --seq-len 128 --d-model 16"
    flags += f" --n-layer 1 --n-head 1 --out {tmp_path}"
    result = ul2.main(flags.split())
    assert result["steps"] == 2 and "val_ppl" not in result and "val_bpc" not in result
    assert result["vocab_size"] == len(set(common.load_text("pydoc"))) + 37
    shown = capsys.readouterr().out
    assert all(f"\n{name:8}  " in shown for name in ("inputs", *ul2.MODES, "targets"))
    more = ["--load", str(tmp_path / "ckpt.pt"), "--mode", "S2S", "--prompt", "a statement " * 20]
    loaded = ul2.main([*flags.split(), *more])
    shown = capsys.readouterr().out
    assert loaded["val_loss"] == result["val_loss"] and "NLU  " not in shown
    assert "the prompt takes 242 positions, the model has learnt on 128" in shown
    assert ul2.main([*flags.split(), "--show", "--mix", "S"]) == {}
    assert "<S2S>" in capsys.readouterr().out
