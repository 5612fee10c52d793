"""Claims about t5_span.py."""

import itertools
import math

import pytest
import torch
from helpers import entropies, scramble, standard_error

import common
import t5_span
from t5_span import (
    IGNORE,
    Config,
    attention_mask,
    corrupt_spans,
    count_noise,
    draw_noise,
    loss_fn,
    make_batch,
    raw_len,
    restore_spans,
)

TINY = dict(batch_size=16, seq_len=32, d_model=64, n_layer=2, n_head=1, lr=0.05)
TEN = {name: 10 + i for i, name in enumerate(t5_span.SPECIALS)}  # ten characters
SENTINELS = torch.tensor([99, 98, 97])


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def windows(shape=(3, 34), V=10):
    return torch.randint(V, shape, generator=rng())


def scrambled(**settings):
    return scramble(t5_span.build_model(Config(**{**TINY, **settings}), 10 + len(TEN)))


@pytest.fixture(scope="session")
def t5_data(corpus):
    """tokenizer with the specials, training ids, validation ids"""
    return common.load_data(corpus, t5_span.SPECIALS, 65)[:3]


def fit(data, tmp_path, steps, pitfall="", **settings):
    """Train a tiny model.  -> model, log"""
    tokenizer, train_text, val_text = data
    cfg = Config(
        steps=steps, out=str(tmp_path / "run"), **{"eval_every": steps, **TINY, **settings}
    )
    torch.manual_seed(cfg.seed)
    model = t5_span.build_model(cfg, tokenizer.vocab_size)
    log = common.Log(cfg, model, tokenizer, {"corpus": "test", "corpus_sha256": "0" * 64})
    broken = t5_span.PITFALLS.get(pitfall, {})
    t5_span.train(model, train_text, val_text, cfg, tokenizer.special, log, **broken)
    return model, log


def end(log, n=20):
    """Mean training loss of the last steps."""
    return sum(log.losses[-n:]) / n


def noise_of(pattern):
    return torch.tensor([char == "T" for char in pattern])


# -------------------------------------------------------- transform
def check_worked_examples():
    """Reading off the paper's code: texts that begin and end clean or cut."""
    inputs, targets = t5_span.corrupt_spans(
        torch.arange(10, 16), noise_of("TTFFTF"), torch.tensor([999, 998]), 1
    )
    assert inputs.tolist() == [999, 12, 13, 998, 15, 1]
    assert targets.tolist() == [10, 11, 999, 14, 998, 1]
    inputs, targets = t5_span.corrupt_spans(
        torch.arange(21, 31), noise_of("FFFTTFFFFT"), SENTINELS, 1
    )
    assert inputs.tolist() == [21, 22, 23, 99, 26, 27, 28, 29, 98, 1]
    assert targets.tolist() == [99, 24, 25, 98, 30, 1]
    ids = torch.tensor([3, 2, 20, 4, 3, 2, 8, 13, 2, 3, 2, 23, 7, 19, 22, 3, 2, 7, 2])
    noise = noise_of("F" * 8 + "T" + "F" * 5 + "T" * 5)
    inputs, targets = t5_span.corrupt_spans(ids, noise, torch.tensor([25, 24]), 1)
    assert inputs.tolist() == [3, 2, 20, 4, 3, 2, 8, 13, 25, 3, 2, 23, 7, 19, 24, 1]
    assert targets.tolist() == [25, 2, 24, 22, 3, 2, 7, 2, 1]


def test_corrupt_spans_worked_examples():
    check_worked_examples()


def test_the_sentence_of_the_paper_word_by_word():
    words = "Thank you for inviting me to your party last week . <X> <Y> <Z> <EOS>".split()
    x = words.index("<X>")
    inputs, targets = corrupt_spans(
        torch.arange(11), noise_of("FFTTFFFFTFF"), torch.arange(x, x + 3), x + 3
    )
    assert " ".join(words[i] for i in inputs) == "Thank you <X> me to your party <Y> week . <EOS>"
    assert " ".join(words[i] for i in targets) == "<X> for inviting <Y> last <Z> <EOS>"


def test_decoder_input_is_bos_and_the_targets_one_late():
    batch = make_batch(windows(), Config(**TINY), TEN, rng())
    assert (batch.idx[:, 0] == TEN["BOS"]).all()
    assert torch.equal(batch.idx[:, 1:], batch.targets[:, :-1])
    assert not (batch.targets == IGNORE).any() and not (batch.targets == TEN["BOS"]).any()


def check_restores():
    """What is left and what was cut give the text, for any mask; nothing is lost or doubled."""
    for seed in range(200):
        n = 2 + seed % 30
        ids, sentinels = windows((n,)), torch.arange(50, 50 + n)
        drawn = draw_noise(n, 0.3, 2, rng(seed))
        anyhow = torch.rand(n, generator=rng(seed)) < 0.4
        for noise in (drawn, anyhow, torch.zeros(n).bool(), torch.ones(n).bool()):
            before = ids.clone()
            inputs, targets = t5_span.corrupt_spans(ids, noise, sentinels, 49)
            assert torch.equal(ids, before)
            assert inputs[-1] == targets[-1] == 49
            left, cut = inputs[inputs < 10], targets[targets < 10]
            assert torch.equal(left, ids[~noise]) and torch.equal(cut, ids[noise])
            assert torch.equal(t5_span.restore_spans(inputs, targets, sentinels, 49), ids)
            for part in (inputs, targets):
                used = part[part >= 50]
                assert torch.equal(used, sentinels[: len(used)])


def test_restore_spans_is_the_way_back_over_200_draws():
    check_restores()


def test_restore_spans_with_one_sentinel_for_all():
    ids, noise = windows((40,)), draw_noise(40, 0.3, 2, rng())
    same = torch.full((40,), 99)
    assert torch.equal(restore_spans(*corrupt_spans(ids, noise, same, 49), same, 49), ids)


def test_restore_spans_takes_what_a_model_writes():
    inputs = torch.tensor([21, 99, 26, 98, 27, 1])  # two gaps
    for written, expected in (
        ([99, 5, 98, 6, 7, 1], [21, 5, 26, 6, 7, 27]),
        ([99, 5, 98, 6, 1, 7, 97, 8], [21, 5, 26, 6, 27]),  # nothing counts after EOS
        ([99, 5, 1], [21, 5, 26, 27]),
        ([99, 5, 98, 6, 97, 8, 8, 8], [21, 5, 26, 6, 27]),  # one piece too many, no EOS
        ([1], [21, 26, 27]),
        ([], [21, 26, 27]),
    ):
        written = torch.tensor(written, dtype=torch.long)
        assert restore_spans(inputs, written, SENTINELS, 1).tolist() == expected


def test_more_gaps_than_sentinels_are_refused_with_the_numbers():
    with pytest.raises(ValueError, match="4 gaps, but 3 sentinels"):
        corrupt_spans(torch.arange(8), noise_of("FTFTFTFT"), SENTINELS, 1)


def test_kinds_name_every_target():
    batch = make_batch(windows(), Config(**TINY), TEN, rng())
    content, sentinel, eos = (batch.kind == i for i in range(3))
    assert (batch.targets[content] < 10).all() and (batch.targets[eos] == TEN["EOS"]).all()
    assert (batch.targets[sentinel] >= TEN["S0"]).all()
    N, k = count_noise(34, 0.15, 3)
    assert [int(part.sum()) for part in (content, sentinel, eos)] == [3 * N, 3 * k, 3]


def test_one_sentinel_is_the_only_difference_of_the_simplified_form():
    many, one = (
        make_batch(windows((3, 70)), Config(seq_len=64, one_sentinel=flag), TEN, rng())
        for flag in (False, True)
    )
    for a, b in zip(many[:4], one[:4]):
        assert torch.equal(a.clamp(max=TEN["S0"]), b)


def test_make_batch_and_pitfalls_leave_the_windows_alone():
    for function in (make_batch, *(how["batch_fn"] for how in t5_span.PITFALLS.values())):
        given = windows()
        function(given, Config(**TINY), TEN, rng())
        assert torch.equal(given, windows())


# -------------------------------------------------------- counts and draws
def test_counts_worked_examples():
    assert count_noise(10, 0.3, 1.5) == (3, 2) and count_noise(19, 0.3, 3) == (6, 2)
    assert count_noise(32, 0.25, 2) == (8, 4) and count_noise(2, 0.15, 3) == (1, 1)
    assert count_noise(64, 0.15, 3) == (10, 3) and count_noise(128, 0.15, 3) == (19, 6)
    assert count_noise(10, 0.15, 3)[0] == 2  # round(1.5), half to even
    assert count_noise(30, 0.15, 3) == (4, 1)  # round(4.5), half to even
    assert count_noise(20, 0.55, 1) == (11, 9)  # 11 gaps would need 11 pieces of text


def check_every_mask():
    """Exact counts; the first character is never cut, the last one always."""
    for length, density, mean_span in itertools.product(
        (2, 3, 9, 34, 64), (0.15, 0.5, 0.9), (1, 3)
    ):
        N, k = count_noise(length, density, mean_span)
        for seed in range(20):
            noise = t5_span.draw_noise(length, density, mean_span, rng(seed))
            assert len(noise) == length and noise.sum() == N
            assert not noise[0] and noise[-1]
            assert (noise[1:] & ~noise[:-1]).sum() == k


def test_every_mask_has_exact_counts_and_begins_with_text_and_ends_with_a_gap():
    check_every_mask()


def test_the_smallest_texts():
    assert draw_noise(2, 0.5, 2, rng()).tolist() == [False, True]
    assert draw_noise(1, 0.5, 2, rng()).tolist() == [False]


def check_uniform():
    """All 12 masks of 10 characters, 3 of them cut in 2 gaps, are equally likely."""
    n, source = 6000, rng(3)
    masks = [tuple(t5_span.draw_noise(10, 0.3, 1.5, source).tolist()) for _ in range(n)]
    counts = [masks.count(mask) for mask in set(masks)]
    assert len(counts) == math.comb(2, 1) * math.comb(6, 1) == 12
    assert sum((c - n / 12) ** 2 / (n / 12) for c in counts) < 31.3  # 11 degrees, p = 0.001


def test_all_masks_are_equally_likely():
    check_uniform()


def test_one_gap_is_always_the_end_of_the_text():
    assert all(count_noise(n, 0.15, 3)[1] == 1 for n in range(2, 31))
    masks = {tuple(draw_noise(30, 0.15, 3, rng(seed)).tolist()) for seed in range(20)}
    assert masks == {(False,) * 26 + (True,) * 4}


@pytest.mark.parametrize(
    "seq_len, density, mean_span, window, n_targets",
    [
        (512, 0.15, 3, 568, 114),
        (64, 0.2, 2, 70, 22),
        (64, 0.2, 1, 63, 27),
        (128, 0.15, 3, 141, 29),
        (256, 0.15, 3, 284, 58),
        (64, 0.15, 3, 70, 14),
    ],
)
def test_lengths_without_padding(seq_len, density, mean_span, window, n_targets):
    cfg = Config(seq_len=seq_len, noise_density=density, mean_span=mean_span)
    assert raw_len(cfg) == window
    batch = make_batch(windows((2, window)), cfg, TEN, rng())
    assert batch.targets.shape == batch.idx.shape == (2, n_targets)
    assert batch.inputs.shape == (2, seq_len)


def test_every_setting_gives_rows_of_one_length_that_fit():
    for seq_len, density, mean_span in itertools.product(
        (3, 4, 5, 17, 64), (0.01, 0.15, 0.5, 0.9), (1, 3, 64)
    ):
        cfg = Config(seq_len=seq_len, noise_density=density, mean_span=mean_span, one_sentinel=True)
        batch = make_batch(windows((3, raw_len(cfg))), cfg, TEN, rng())
        assert seq_len - 1 <= batch.inputs.shape[1] <= seq_len
        if density == 0.5:
            assert batch.targets.shape[1] <= seq_len


# -------------------------------------------------------- refusals
@pytest.mark.parametrize(
    "flags, said",
    [
        ("--noise-density 0", "--noise-density 0.0 --mean-span 3.0: must be above 0 to 0.9"),
        ("--noise-density 0.95", "--noise-density 0.95"),
        ("--noise-density nan", "--noise-density nan"),
        ("--mean-span 0.5", "--mean-span 0.5"),
        ("--mean-span nan", "--mean-span nan"),
        ("--mean-span inf", "--mean-span inf: must be a finite number"),
        ("--seq-len 2", "--seq-len 2 --n-layer 4: must be at least 3"),
        ("--n-layer 1", "--seq-len 128 --n-layer 1"),
        ("--seq-len 256 --noise-density 0.5", "64 gaps in 382 characters, but 32 sentinels"),
    ],
)
def test_settings_out_of_range_are_refused_in_one_line(flags, said):
    with pytest.raises(common.Refusal, match=said) as refusal:
        t5_span.main(flags.split())
    assert refusal.value.code == 2 and "\n" not in str(refusal.value)


def test_one_sentinel_suffices_for_any_number_of_gaps():
    assert raw_len(Config(seq_len=256, noise_density=0.5, one_sentinel=True)) == 382


# -------------------------------------------------------- leaks
def check_no_leak():
    """The inputs move every logit; what the decoder reads moves none before it."""
    model, S, T = scrambled(n_layer=4), 9, 7
    inputs, idx, mask = windows((1, S)), windows((1, T)), t5_span.attention_mask(T)
    before = model(inputs, idx, mask)
    for j in range(S):
        changed = inputs.clone()
        changed[0, j] = (inputs[0, j] + 1) % 10
        moved = (model(changed, idx, mask) - before).abs().amax(-1)[0]
        assert (moved > 1e-4).all(), f"input {j} did not reach every logit"
    for j in range(T):
        changed = idx.clone()
        changed[0, j] = (idx[0, j] + 1) % 10
        moved = (model(inputs, changed, mask) - before).abs().amax(-1)[0]
        assert (moved[:j] == 0).all(), f"decoder position {j} moved an earlier logit"
        assert (moved[j:] > 1e-4).all(), f"decoder position {j} did not reach a later logit"


def test_inputs_reach_every_logit_and_the_decoder_sees_its_past_only():
    check_no_leak()


def test_every_encoder_position_reaches_every_other():
    model = scrambled(n_layer=4)
    for i in range(6):
        # every id occurs once, so that row j of the gradient belongs to position j
        memory = t5_span.norm(model.emb(torch.arange(6)[None]))
        for block in model.encoder:
            memory = block(memory, None)
        (grad,) = torch.autograd.grad(memory[0, i].sum(), model.emb.weight)
        assert (grad[:6].abs().amax(-1) > 0).all()


def check_answers_are_hidden():
    """Logits up to a cut character do not depend on it: it is neither in inputs nor in idx yet."""
    model, ids = scrambled(n_layer=4), windows((12,))
    noise, sentinels = noise_of("FFFTTFFFFFTT"), torch.arange(TEN["S0"], TEN["S0"] + 32)
    seen = []
    for last in (0, 1):
        ids[11] = last  # the last character cut: target 6, read by the decoder at 7
        given = ids[None]
        t5_span.draw_noise, clean = (lambda *args: noise), t5_span.draw_noise
        try:
            batch = t5_span.make_batch(given, Config(**TINY), TEN, rng())
        finally:
            t5_span.draw_noise = clean
        assert torch.equal(batch.targets[0], corrupt_spans(ids, noise, sentinels, TEN["EOS"])[1])
        seen.append(model(batch.inputs, batch.idx, batch.mask)[0])
    assert torch.equal(seen[0][:6], seen[1][:6]) and not torch.equal(seen[0][6], seen[1][6])


def test_no_logit_depends_on_the_character_it_predicts():
    check_answers_are_hidden()


def test_a_row_alone_equals_the_row_in_a_batch():
    model, batch = scrambled(), make_batch(windows((5, 34)), Config(**TINY), TEN, rng())
    together = model(batch.inputs, batch.idx, batch.mask)
    for i in range(5):
        alone = model(batch.inputs[i : i + 1], batch.idx[i : i + 1], batch.mask)
        assert torch.allclose(alone[0], together[i], atol=1e-4)


def test_decoder_mask_is_the_lower_triangle():
    assert attention_mask(3).int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


# -------------------------------------------------------- loss
def check_ignored():
    """Logits where the target is -100 do not count."""
    targets, logits = torch.tensor([[1, -100, 3]]), torch.randn(1, 3, 10, generator=rng())
    other = logits.clone()
    other[0, 1] += torch.randn(10, generator=rng(1))
    assert torch.equal(t5_span.token_nll(logits, targets), t5_span.token_nll(other, targets))


def test_logits_at_unscored_positions_change_nothing():
    check_ignored()


def test_rows_with_3_and_40_targets_weigh_as_43():
    model, targets = scrambled(), windows((2, 40)).clone()
    targets[0, 3:] = IGNORE
    batch = t5_span.Batch(
        windows((2, 9)), windows((2, 40)), targets, targets * 0, attention_mask(40)
    )
    halves = [t5_span.Batch(*(part[i : i + 1] for part in batch[:4]), batch.mask) for i in (0, 1)]
    loss, a, b = (loss_fn(model, part, Config())[0] for part in (batch, *halves))
    weighted = (3 * a + 40 * b) / 43
    assert loss.item() == pytest.approx(weighted.item(), abs=1e-5)
    for x, y in zip(*(torch.autograd.grad(v, list(model.parameters())) for v in (loss, weighted))):
        assert torch.allclose(x, y, atol=1e-5)


# -------------------------------------------------------- learning
def test_step_0_costs_ln_V_with_the_specials_for_every_kind(t5_data):
    tokenizer, _, val_text = t5_data
    model = t5_span.build_model(Config(**TINY), tokenizer.vocab_size)
    metrics = t5_span.evaluate(model, val_text[:20_000], Config(**TINY), tokenizer.special)
    assert list(metrics) == ["val_loss", *(f"val_loss_{kind}" for kind in t5_span.KINDS)]
    for value in metrics.values():
        assert value == pytest.approx(math.log(len(tokenizer.ids) + 34), abs=5e-5)


def test_the_model_has_about_the_parameters_of_a_decoder_alone():
    n_params = sum(p.numel() for p in t5_span.build_model(Config(), 99).parameters())
    assert n_params == pytest.approx(803_000, rel=0.2)


def test_muon_gets_all_matrices_of_the_blocks_and_nothing_else():
    model = t5_span.build_model(Config(**TINY), 10)
    muon, adamw = t5_span.make_optimizers(model, Config(**TINY))
    inner = {id(p) for p in (*model.encoder.parameters(), *model.decoder.parameters())}
    assert {id(p) for p in muon.param_groups[0]["params"]} == inner
    rest = {id(model.emb.weight), id(model.head.weight)}
    assert {id(p) for p in adamw.param_groups[0]["params"]} == rest


@pytest.fixture(scope="session")
def logs(t5_data, tmp_path_factory):
    """name -> log of a short run, clean and broken"""
    runs = {"clean": 140, "unshifted-decoder": 60, "causal-off": 140}
    return {
        name: fit(t5_data, tmp_path_factory.mktemp("run"), steps, name, seq_len=64)[1]
        for name, steps in runs.items()
    }


def test_clean_training_beats_the_unigram_entropy(t5_data, logs):
    unigram, _ = entropies(torch.cat(t5_data[1:]))
    row = logs["clean"].rows[-1]
    assert row["val_loss_content"] < unigram and row["val_loss"] < unigram
    assert row["val_loss_sentinel"] < row["val_loss_content"]


def test_same_seed_same_history_whenever_it_evaluates(t5_data, tmp_path):
    runs = [fit(t5_data, tmp_path, 8, eval_every=n)[1].losses for n in (8, 8, 3)]
    assert runs[0] == runs[1] == runs[2]
    assert fit(t5_data, tmp_path, 8, seed=1)[1].losses != runs[0]


def floor(N, k, V):
    """Best possible loss per target on uniform characters: cut characters, and where gaps end."""
    return (N * math.log(V) + math.log(math.comb(N - 1, k - 1))) / (N + k + 1)


def test_floors_of_the_design():
    assert floor(*count_noise(64, 0.15, 3), 65) == pytest.approx(3.2377, abs=5e-5)
    assert floor(*count_noise(128, 0.15, 3), 65) == pytest.approx(3.3988, abs=5e-5)


def check_uniform_floor(tmp_path, steps=220):
    """On uniform characters, 64 per window, no loss is below its floor, and all come near."""
    settings = dict(seq_len=58, d_model=32, batch_size=24, lr=0.02)
    cfg = Config(**{**TINY, **settings})
    assert raw_len(cfg) == 64
    digits = common.CharTokenizer("0123456789", t5_span.SPECIALS)
    model, _ = fit((digits, windows((100_000,)), windows((4000,))), tmp_path, steps, **settings)
    fresh = torch.randint(10, (1000, 64), generator=rng(5))
    batch = t5_span.make_batch(fresh, cfg, digits.special, rng(6))
    with torch.no_grad():
        nll = loss_fn(model, batch, cfg)[1]
    lowest, rows = floor(10, 3, 10), nll.mean(-1)  # a row's gaps end where they end: rows are drawn
    assert lowest - 3 * standard_error(rows) <= rows.mean().item() <= lowest + 0.15
    content = nll[batch.kind == 0]
    assert content.mean().item() >= math.log(10) - 3 * standard_error(content)


def test_on_uniform_characters_the_loss_comes_down_to_its_floor_and_never_below(tmp_path):
    check_uniform_floor(tmp_path)


# -------------------------------------------------------- pitfalls
def test_an_unshifted_decoder_falls_to_zero_while_the_task_is_lost(t5_data, logs):
    log = logs["unshifted-decoder"]
    assert end(log) < 0.05 and log.rows[-1]["val_loss"] > math.log(t5_data[0].vocab_size)


def test_a_decoder_that_sees_ahead_falls_to_near_zero_while_the_task_is_lost(logs):
    # on the way to 0: a few hundred steps more, see the table of experiments
    assert end(logs["causal-off"]) < end(logs["clean"]) / 4
    assert logs["causal-off"].rows[-1]["val_loss"] > logs["clean"].rows[-1]["val_loss"] + 1


def test_pitfalls_worked_example():
    clean, unshifted, ahead = (
        function(windows(), Config(**TINY), TEN, rng())
        for function in (make_batch, t5_span.unshifted_decoder, t5_span.causal_off)
    )
    assert torch.equal(unshifted.idx, clean.targets) and torch.equal(ahead.idx, clean.idx)
    assert ahead.mask.all() and torch.equal(unshifted.mask, clean.mask)


# -------------------------------------------------------- mutations: do checks notice?
@pytest.mark.parametrize(
    "wrong",
    [
        lambda T: torch.ones(T, T).bool(),
        lambda T: torch.ones(T, T).bool().tril(1),
        lambda T: torch.ones(T, T).bool().triu(),
    ],
)
def test_the_leak_check_notices_a_decoder_that_sees_ahead(monkeypatch, wrong):
    monkeypatch.setattr(t5_span, "attention_mask", wrong)
    with pytest.raises(AssertionError):
        check_no_leak()


def test_the_leak_check_notices_a_causal_encoder(monkeypatch):
    clean = t5_span.Block.forward

    def causal(self, x, attn_mask):
        return clean(self, x, attention_mask(x.shape[1]))

    # with the cross-attention of one decoder block cut to the first input, half of it is gone
    monkeypatch.setattr(t5_span.Block, "forward", causal)
    cross = t5_span.CrossAttention.forward
    monkeypatch.setattr(
        t5_span.CrossAttention, "forward", lambda self, x, memory: cross(self, x, memory[:, :1])
    )
    with pytest.raises(AssertionError):
        check_no_leak()


def test_the_answer_check_notices_an_unshifted_decoder(monkeypatch):
    clean = t5_span.make_batch
    monkeypatch.setattr(
        t5_span, "make_batch", lambda *args: (b := clean(*args))._replace(idx=b.targets)
    )
    with pytest.raises(AssertionError):
        check_answers_are_hidden()


MUTANTS = {
    "closing sentinel always": lambda pair: (pair[0], torch.cat([pair[1][:-1], pair[0][-2:]])),
    "no EOS": lambda pair: (pair[0][:-1], pair[1][:-1]),
    "gaps shown": lambda pair: (torch.cat(pair), pair[1]),
    "swapped": lambda pair: pair[::-1],
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_worked_examples_notice_a_wrong_transform(monkeypatch, name):
    clean = t5_span.corrupt_spans
    monkeypatch.setattr(t5_span, "corrupt_spans", lambda *args: MUTANTS[name](clean(*args)))
    with pytest.raises(AssertionError):
        check_worked_examples()


def test_the_round_trip_notices_pieces_in_the_wrong_gaps(monkeypatch):
    clean = t5_span.restore_spans

    def late(inputs, targets, *rest):  # as if text after a sentinel always filled that sentinel
        return clean(inputs, torch.cat([rest[0][:1], targets]), *rest)

    monkeypatch.setattr(t5_span, "restore_spans", late)
    with pytest.raises(AssertionError):
        check_restores()


def test_the_mask_checks_notice_independent_draws_and_a_roll(monkeypatch):
    clean = t5_span.draw_noise
    for wrong in (
        lambda n, density, span, rng: torch.rand(n, generator=rng) < density,
        lambda *args: clean(*args).roll(1),
    ):
        monkeypatch.setattr(t5_span, "draw_noise", wrong)
        with pytest.raises(AssertionError):
            check_every_mask()


def test_the_uniformity_check_notices_lengths_drawn_one_after_the_other(monkeypatch):
    def greedy(total, k, rng):
        lengths = []
        for left in range(k - 1, -1, -1):
            most = total - sum(lengths) - left
            short = int(torch.randint(1, max(2, most), (1,), generator=rng))
            lengths.append(short if left else most)
        return torch.tensor(lengths)

    monkeypatch.setattr(t5_span, "draw_lengths", greedy)
    with pytest.raises(AssertionError):
        check_uniform()


@pytest.mark.parametrize("wrong", [-1, 3])
def test_the_loss_check_notices_a_wrong_ignore_value(monkeypatch, wrong):
    monkeypatch.setattr(t5_span, "IGNORE", wrong)
    with pytest.raises((AssertionError, IndexError)):
        check_ignored()


def test_the_floor_check_notices_a_decoder_that_sees_ahead(monkeypatch, tmp_path):
    monkeypatch.setattr(t5_span, "attention_mask", lambda T: torch.ones(T, T).bool())
    with pytest.raises(AssertionError):
        check_uniform_floor(tmp_path, steps=100)


# -------------------------------------------------------- read-out
def test_write_targets_is_greedy_and_stops_at_eos():
    model, inputs = scrambled(), windows((2, 9))
    written = t5_span.write_targets(model, inputs, 6, TEN)
    idx = torch.full((2, 1), TEN["BOS"])
    for t in range(written.shape[1]):
        new = model(inputs, idx, attention_mask(t + 1))[:, -1].argmax(-1)
        assert torch.equal(new, written[:, t])
        idx = torch.cat([idx, new[:, None]], 1)
    assert written.shape == (2, 6)
    with torch.no_grad():
        model.head.weight[TEN["EOS"]] = model.head.weight[written[0, 2]] * 3
    assert t5_span.write_targets(model, inputs[:1], 6, TEN)[0, -1] == TEN["EOS"]


def read(text, prompt="", **settings):
    tokenizer = common.CharTokenizer(text, t5_span.SPECIALS)
    cfg = Config(prompt=prompt, **settings)
    return tokenizer, *t5_span.read_prompt(tokenizer, tokenizer.encode(text), cfg)


def test_runs_of_underscores_become_gaps():
    tokenizer, inputs, targets = read("the king\nis dead\n", "the k__g\r\nis _")
    assert tokenizer.decode(inputs) == "the k<S0>g\nis <S1><EOS>" and len(targets) == 0
    same = read("the king\nis dead\n", "the k__g\r\nis _", one_sentinel=True)[1]
    assert tokenizer.decode(same) == "the k<S0>g\nis <S0><EOS>"


def test_without_a_prompt_validation_text_is_cut():
    text = "the king is dead, long live the king\n" * 40
    tokenizer, inputs, targets = read(text)
    sentinels = t5_span.sentinel_ids(Config(), tokenizer.special)
    back = restore_spans(inputs, targets, sentinels, tokenizer.special["EOS"])
    assert tokenizer.decode(back) == text[:141] and len(inputs) == 128


@pytest.mark.parametrize(
    "text, prompt, said",
    [
        ("king", "king", "nothing to fill, write ___"),
        ("king_", "k_ng", "_ would mark a gap, but it is a character"),
        ("king", "k_nG", "'G'"),
        ("king", "k_" * 33, "--prompt: 33 gaps, but 32 sentinels"),
    ],
)
def test_a_prompt_that_cannot_be_filled_is_refused_in_one_line(text, prompt, said):
    with pytest.raises(common.Refusal, match=said) as refusal:
        read(text, prompt)
    assert refusal.value.code == 2 and "\n" not in str(refusal.value)


def test_default_run_on_pydoc_in_small(tmp_path, capsys):
    flags = "--data pydoc --steps 2 --eval-every 2 --batch-size 2 --seq-len 16 --d-model 16"
    flags += f" --n-layer 2 --n-head 1 --out {tmp_path}"
    result = t5_span.main(flags.split())
    assert result["steps"] == 2 and "val_ppl" not in result and "val_bpc" not in result
    assert result["vocab_size"] == len(set(common.load_text("pydoc"))) + 34
    load = ["--load", str(tmp_path / "ckpt.pt")]
    loaded = t5_span.main([*flags.split(), *load])
    shown = capsys.readouterr().out
    assert loaded["val_loss"] == result["val_loss"] and "targets   <S0>" in shown
    assert t5_span.main([*flags.split(), "--show"]) == {}
