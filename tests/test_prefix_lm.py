"""Claims about prefix_lm.py."""

import math

import pytest
import torch
from helpers import entropies, scramble, standard_error

import clm
import common
import prefix_lm
from prefix_lm import IGNORE, Config, loss_fn, make_batch, prefix_mask, score_suffix, token_nll

TINY = dict(batch_size=16, seq_len=32, d_model=64, n_layer=2, n_head=1)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def windows(shape=(3, 9), V=10):
    return torch.randint(V, shape, generator=rng())


def scrambled(**settings):
    return scramble(prefix_lm.build_model(Config(**{**TINY, **settings}), 10))


def fit(data, tmp_path, steps, pitfall="", batch_fn=None, **settings):
    """Train a tiny model.  -> model, log"""
    tokenizer, train_text, val_text = data
    cfg = Config(
        steps=steps, out=str(tmp_path / "run"), **{"eval_every": steps, **TINY, **settings}
    )
    torch.manual_seed(cfg.seed)
    model = prefix_lm.build_model(cfg, tokenizer.vocab_size)
    log = common.Log(cfg, model, tokenizer, {"corpus": "test", "corpus_sha256": "0" * 64})
    broken = {"batch_fn": batch_fn} if batch_fn else prefix_lm.PITFALLS.get(pitfall, {})
    prefix_lm.train(model, train_text, val_text, cfg, {}, log, **broken)
    return model, log


def end(log, n=20):
    """Mean training loss of the last steps."""
    return sum(log.losses[-n:]) / n


def same_length(monkeypatch, P):
    """Every row gets a prefix of P."""
    monkeypatch.setattr(prefix_lm, "draw_prefix_len", lambda n, T, rng: torch.full((n,), P))


# -------------------------------------------------------- transform
def check_worked_example():
    ids, P = torch.tensor([[7, 4, 4, 2, 9, 5]]), torch.tensor([2])
    assert prefix_lm.score_suffix(ids[:, 1:], P).tolist() == [[-100, 4, 2, 9, 5]]
    every = [prefix_lm.score_suffix(ids[:, 1:], torch.tensor([P])).ne(-100).sum() for P in range(6)]
    assert every == [5, 5, 4, 3, 2, 1]  # T - max(P, 1) + 1


def test_score_suffix_worked_example():
    check_worked_example()


def check_prefix_and_targets_are_the_window():
    """The prefix of a row and its targets together are the window, for 200 draws."""
    for seed in range(200):
        given = windows((4, 9))
        batch = prefix_lm.make_batch(given, Config(seq_len=8), {}, rng(seed))
        assert torch.equal(given, windows((4, 9))) and torch.equal(batch.idx, given[:, :-1])
        for ids, targets in zip(given, batch.targets):
            suffix = targets[targets != IGNORE]
            assert torch.equal(torch.cat([ids[: len(ids) - len(suffix)], suffix]), ids)


def test_prefix_and_targets_are_the_window_over_200_draws():
    check_prefix_and_targets_are_the_window()


def check_mask_and_targets_agree():
    """As many targets as the mask's prefix leaves."""
    batch = prefix_lm.make_batch(windows((200, 9)), Config(seq_len=8), {}, rng())
    prefix_len = batch.mask[:, 0, 0].sum(-1)  # the first query sees itself and the prefix
    assert torch.equal((batch.targets != IGNORE).sum(-1), 8 - prefix_len + 1)
    assert len(prefix_len.unique()) == 8  # a length for each row, not for the batch


def test_mask_and_targets_speak_of_the_same_prefix():
    check_mask_and_targets_agree()


def test_kinds_name_the_first_suffix_character_and_the_rest():
    batch = make_batch(windows((50, 9)), Config(seq_len=8), {}, rng())
    scored = batch.targets != IGNORE
    first = scored & (batch.kind == prefix_lm.KINDS.index("first"))
    assert (first.sum(-1) == 1).all()
    assert torch.equal(first.float().argmax(-1), scored.float().argmax(-1))


def test_every_length_from_1_to_T_is_equally_likely():
    lengths = prefix_lm.draw_prefix_len(80_000, 8, rng())
    counts = torch.bincount(lengths, minlength=9)
    assert counts[0] == 0 and len(counts) == 9
    assert ((counts[1:] - 10_000) ** 2 / 10_000).sum() < 24.3  # 7 degrees of freedom, p = 0.001


def test_pitfalls_leave_the_windows_alone():
    for how in prefix_lm.PITFALLS.values():
        given = windows()
        how["batch_fn"](given, Config(seq_len=8), {}, rng())
        assert torch.equal(given, windows())


def test_every_batch_is_split_anew_and_every_evaluation_alike(data):
    given, again = windows((8, 9)), rng()
    first, second = (make_batch(given, Config(seq_len=8), {}, again) for _ in range(2))
    assert not torch.equal(first.targets, second.targets)
    model = scramble(prefix_lm.build_model(Config(**TINY), data[0].vocab_size))
    metrics = [
        prefix_lm.evaluate(model, data[2], Config(**TINY, seed=seed), {}, 40) for seed in (0, 1)
    ]
    assert metrics[0] == metrics[1]


# -------------------------------------------------------- mask
def check_tables():
    two, five = prefix_lm.prefix_mask(torch.tensor([2, 5]), 5).int()
    assert two.tolist() == [
        [
            [1, 1, 0, 0, 0],
            [1, 1, 0, 0, 0],
            [1, 1, 1, 0, 0],
            [1, 1, 1, 1, 0],
            [1, 1, 1, 1, 1],
        ]
    ]
    assert two.sum() == 16 and five.sum() == 25
    for P in range(9):
        mask = prefix_lm.prefix_mask(torch.tensor([P]), 8)
        assert mask.shape == (1, 1, 8, 8) and mask.sum() == 8 * 9 // 2 + P * (P - 1) // 2
        mask = mask[0, 0]
        assert mask[:P, :P].all() and not mask[:P, P:].any() and mask[P:, :P].all()
        assert torch.equal(mask[P:, P:], torch.ones(8 - P, 8 - P).tril().bool())


def test_prefix_mask_worked_example_and_counts():
    check_tables()


@pytest.mark.parametrize("P", [-1, 9])
def test_a_prefix_longer_than_the_row_or_negative_is_refused(P):
    with pytest.raises(ValueError, match=rf"\[3, {P}\]: must be within 0..8"):
        prefix_mask(torch.tensor([3, P]), 8)


def check_no_leak():
    """A suffix character moves no earlier logit; one of the prefix moves every logit."""
    T, idx = 8, windows((1, 8))
    for n_head in (1, 2):  # rows as many as heads: a mask of three dimensions would be read so
        model = scrambled(n_head=n_head)
        for P in (0, 1, 2, 5, T):
            lengths = torch.tensor([P, 3][:n_head])
            mask = prefix_lm.prefix_mask(lengths, T)
            before = model(idx.expand(n_head, T), mask)
            for j in range(T):
                changed = idx.clone()
                changed[0, j] = (idx[0, j] + 1) % 10
                after = model(torch.cat([changed, idx])[:n_head], mask)
                moved = (after - before)[0].abs().amax(-1)  # (T,)
                first = 0 if j < P else j
                assert (moved[:first] == 0).all(), f"P {P}: character {j} moved an earlier logit"
                assert (moved[first:] > 1e-4).all(), f"P {P}: character {j} did not reach a logit"


def test_the_suffix_moves_no_earlier_logit_and_the_prefix_moves_all():
    check_no_leak()


def test_a_row_alone_equals_the_row_in_a_batch():
    model, idx, lengths = scrambled(), windows((6, 8)), torch.tensor([0, 1, 2, 4, 7, 8])
    together = model(idx, prefix_mask(lengths, 8))
    for i in range(6):
        alone = model(idx[i : i + 1], prefix_mask(lengths[i : i + 1], 8))
        assert torch.allclose(alone[0], together[i], atol=1e-4)


# -------------------------------------------------------- reduction
@pytest.mark.parametrize("P", [0, 1])
def test_prefix_0_and_1_are_clm_exactly(monkeypatch, P):
    same_length(monkeypatch, P)
    given, model = windows((5, 33)), scrambled()
    ours, plain = (m.make_batch(given, Config(**TINY), {}, rng()) for m in (prefix_lm, clm))
    assert torch.equal(ours.idx, plain.idx) and torch.equal(ours.targets, plain.targets)
    assert all(torch.equal(mask[0], plain.mask) for mask in ours.mask)
    loss, nll = loss_fn(model, ours, Config())
    expected, expected_nll = clm.loss_fn(model, plain, clm.Config())
    assert torch.equal(nll, expected_nll) and loss == expected


def test_with_prefix_1_the_training_is_that_of_clm(data, tmp_path, monkeypatch):
    same_length(monkeypatch, 1)
    _, log = fit(data, tmp_path, 5)
    cfg = clm.Config(steps=5, eval_every=5, out=str(tmp_path / "clm"), **TINY)
    torch.manual_seed(0)
    model = clm.build_model(cfg, data[0].vocab_size)
    plain = common.Log(cfg, model, data[0], {"corpus": "test", "corpus_sha256": "0" * 64})
    clm.train(model, *data[1:], cfg, {}, plain)
    assert log.losses == plain.losses


def test_prefix_T_leaves_one_target_and_a_finite_loss(monkeypatch):
    same_length(monkeypatch, 8)
    batch = make_batch(windows((2, 9)), Config(seq_len=8), {}, rng())
    assert (batch.targets != IGNORE).sum(-1).tolist() == [1, 1] and batch.mask.all()
    assert loss_fn(scrambled(), batch, Config())[0].isfinite()


def test_a_row_of_one_position_is_trained(data, tmp_path):
    _, log = fit(data, tmp_path, 3, seq_len=1)
    assert all(math.isfinite(loss) for loss in log.losses)


# -------------------------------------------------------- loss
def check_prefix_is_not_scored():
    """Logits within the prefix get no gradient and cost nothing; those from P - 1 on do."""
    batch = prefix_lm.make_batch(windows((20, 9)), Config(seq_len=8), {}, rng())
    logits = torch.randn(20, 8, 10, generator=rng(), requires_grad=True)
    nll = prefix_lm.token_nll(logits, batch.targets)
    (grad,) = torch.autograd.grad(prefix_lm.mean_nll(nll, batch.targets), logits)
    prefix_len = batch.mask[:, 0, 0].sum(-1)
    scored = torch.arange(8) >= prefix_len[:, None] - 1
    assert (grad[~scored] == 0).all() and (nll[~scored] == 0).all()
    assert (grad[scored].abs().amax(-1) > 0).all()


def test_positions_before_the_last_of_the_prefix_are_not_scored():
    check_prefix_is_not_scored()


def test_rows_with_3_and_40_targets_weigh_as_43():
    model, given, lengths = scrambled(), windows((2, 41)), torch.tensor([38, 1])
    targets, mask = score_suffix(given[:, 1:], lengths), prefix_mask(lengths, 40)
    batch = prefix_lm.Batch(given[:, :-1], targets, torch.zeros_like(targets), mask)
    halves = [prefix_lm.Batch(*(part[i : i + 1] for part in batch)) for i in (0, 1)]
    loss, a, b = (loss_fn(model, part, Config())[0] for part in (batch, *halves))
    weighted = (3 * a + 40 * b) / 43
    assert loss.item() == pytest.approx(weighted.item(), abs=1e-5)
    for x, y in zip(*(torch.autograd.grad(v, list(model.parameters())) for v in (loss, weighted))):
        assert torch.allclose(x, y, atol=1e-5)


# -------------------------------------------------------- learning
def test_step_0_costs_ln_V_for_every_kind(data):
    model = prefix_lm.build_model(Config(**TINY), data[0].vocab_size)
    metrics = prefix_lm.evaluate(model, data[2][:20_000], Config(**TINY), {})
    assert list(metrics) == ["val_loss", "val_loss_first", "val_loss_rest"]
    for value in metrics.values():
        assert value == pytest.approx(math.log(data[0].vocab_size), abs=5e-5)


@pytest.fixture(scope="session")
def logs(data, tmp_path_factory):
    """name -> log of a short run, clean and broken"""
    return {
        name: fit(data, tmp_path_factory.mktemp("run"), 160, name, eval_every=80)[1]
        for name in ("clean", "score-prefix", "late-start")
    }


def test_clean_training_beats_unigram_then_bigram(data, logs):
    unigram, bigram = entropies(torch.cat(data[1:]))
    rows = logs["clean"].rows
    assert rows[1]["val_loss"] < unigram and rows[-1]["val_loss"] < bigram


def test_same_seed_same_history_whenever_it_evaluates(data, tmp_path):
    runs = [fit(data, tmp_path, 12, eval_every=n)[1].losses for n in (12, 12, 5)]
    assert runs[0] == runs[1] == runs[2]
    assert fit(data, tmp_path, 12, seed=1)[1].losses != runs[0]


def uniform_run(tmp_path, batch_fn=None, **settings):
    """Train on uniform characters.  -> nll of fresh scored targets"""
    digits = common.CharTokenizer("0123456789")
    data = digits, windows((100_000,)), windows((4000,))
    model, _ = fit(data, tmp_path, 150, batch_fn=batch_fn, **settings)
    fresh = torch.randint(10, (1000, 33), generator=rng(5))
    batch = (batch_fn or prefix_lm.make_batch)(fresh, Config(**TINY), {}, rng(6))
    with torch.no_grad():
        nll = loss_fn(model, batch, Config())[1]
    return nll[batch.targets != IGNORE]


def check_uniform_floor(tmp_path):
    """On uniform characters the suffix costs ln V: never less, and little more."""
    nll = uniform_run(tmp_path, d_model=32, n_layer=1, lr=0.02)
    assert math.log(10) - 3 * standard_error(nll) <= nll.mean().item() <= math.log(10) + 0.03


def test_on_uniform_characters_the_loss_stays_at_ln_V(tmp_path):
    check_uniform_floor(tmp_path)


def test_with_the_prefix_scored_uniform_characters_cost_half(tmp_path):
    # (T + 1) / 2 of T targets are in the suffix, the others are read off: 33 / 64 ln V
    nll = uniform_run(tmp_path, prefix_lm.score_prefix)
    assert 33 / 64 * math.log(10) - 0.03 < nll.mean().item() < 33 / 64 * math.log(10) + 0.15


# -------------------------------------------------------- pitfalls
def test_scoring_the_prefix_looks_better_than_the_suffix_is(logs):
    looks, clean = end(logs["score-prefix"]), end(logs["clean"])
    assert looks < 0.75 * clean and logs["score-prefix"].rows[-1]["val_loss"] > looks + 0.5


def test_starting_late_leaves_out_one_target_per_row_and_shows_in_no_loss(logs):
    cfg = Config(**TINY)
    clean, late = (
        function(windows(), cfg, {}, rng())
        for function in (prefix_lm.make_batch, prefix_lm.late_start)
    )
    first = clean.kind == prefix_lm.KINDS.index("first")
    missing = (clean.targets != IGNORE) & (late.targets == IGNORE)
    assert missing.sum(1).tolist() == [1] * len(windows()) and first[missing].all()
    late, clean = (logs[name].rows[-1] for name in ("late-start", "clean"))
    assert abs(late["val_loss_rest"] - clean["val_loss_rest"]) < 0.1
    assert abs(late["val_loss_first"] - clean["val_loss_first"]) < 0.3  # few are scored: it varies


def test_pitfalls_worked_example(monkeypatch):
    same_length(monkeypatch, 2)
    given, settings = torch.tensor([[7, 4, 4, 2, 9, 5]]), (Config(seq_len=5), {}, rng())
    assert prefix_lm.score_prefix(given, *settings).targets.tolist() == [[4, 4, 2, 9, 5]]
    assert prefix_lm.late_start(given, *settings).targets.tolist() == [[-100, -100, 2, 9, 5]]


# -------------------------------------------------------- mutations: do checks notice?
MASKS = {
    "everyone": lambda causal, inside: causal | inside | True,
    "causal": lambda causal, inside: causal & (inside | True),
    "prefix only": lambda causal, inside: inside & (causal | True),
    "anti-causal": lambda causal, inside: causal.mT | inside,
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("check", [check_tables, check_no_leak])
def test_the_checks_notice_a_wrong_mask(monkeypatch, name, check):
    def wrong(prefix_len, T):
        inside = torch.arange(T) < prefix_len[:, None, None, None]
        return MASKS[name](torch.ones(T, T).bool().tril(), inside)

    monkeypatch.setattr(prefix_lm, "prefix_mask", wrong)
    with pytest.raises(AssertionError):
        check()


@pytest.mark.parametrize("off", [-1, 1])
def test_the_checks_notice_a_prefix_that_is_off_by_one(monkeypatch, off):
    clean = prefix_lm.prefix_mask
    monkeypatch.setattr(
        prefix_lm, "prefix_mask", lambda P, T: clean((P + off).clamp(min=0, max=T), T)
    )
    for check in (check_tables, check_no_leak):
        with pytest.raises(AssertionError):
            check()


def test_the_leak_check_notices_the_first_row_s_prefix_for_all(monkeypatch):
    clean = prefix_lm.prefix_mask
    # rows of other lengths than the first: the second row is watched here
    monkeypatch.setattr(prefix_lm, "prefix_mask", lambda P, T: clean(P[-1:].expand(len(P)), T))
    with pytest.raises(AssertionError):
        check_no_leak()


@pytest.mark.parametrize("off", [-1, 1])
def test_the_checks_notice_a_suffix_that_is_off_by_one(monkeypatch, off):
    clean = prefix_lm.score_suffix
    monkeypatch.setattr(prefix_lm, "score_suffix", lambda targets, P: clean(targets, P + off))
    for check in (
        check_worked_example,
        check_mask_and_targets_agree,
        check_prefix_is_not_scored,
    ):
        with pytest.raises(AssertionError):
            check()


@pytest.mark.parametrize("wrong", [-1, 3])
def test_the_loss_check_notices_a_wrong_ignore_value(monkeypatch, wrong):
    clean = prefix_lm.score_suffix
    monkeypatch.setattr(
        prefix_lm, "score_suffix", lambda t, P: (s := clean(t, P)).where(s != wrong, -100)
    )
    monkeypatch.setattr(prefix_lm, "IGNORE", wrong)
    with pytest.raises((AssertionError, IndexError)):
        check_prefix_is_not_scored()


def test_the_floor_check_notices_a_suffix_that_sees_ahead(monkeypatch, tmp_path):
    clean = prefix_lm.prefix_mask
    monkeypatch.setattr(prefix_lm, "prefix_mask", lambda P, T: clean(torch.full_like(P, T), T))
    with pytest.raises(AssertionError):
        check_uniform_floor(tmp_path)


# -------------------------------------------------------- read-out
def test_the_prompt_is_read_both_ways_and_what_follows_is_causal():
    model, prompt = scrambled(), windows((6,))
    logits = model(prompt[None], prefix_mask(torch.tensor([6]), 6))[0, -1]
    first = prefix_lm.sample(model, prompt, 1, 32, 0, rng())
    assert first[-1] == logits.argmax() and torch.equal(first[:6], prompt)
    second = prefix_lm.sample(model, prompt, 2, 32, 0, rng())
    logits = model(first[None], prefix_mask(torch.tensor([6]), 7))[0, -1]
    assert second[-1] == logits.argmax()


def test_beyond_the_window_the_prefix_shrinks_and_ends():
    model, T = scrambled(), 8
    for n in (6, 12):  # a prefix of n, then three more characters: 8 - 3 of it are left, at most
        ids = prefix_lm.sample(model, windows((n,)), 3, T, 0, rng())
        left = max(0, n - max(0, n + 3 - T))
        logits = model(ids[None, -T:], prefix_mask(torch.tensor([left]), T))[0, -1]
        after = prefix_lm.sample(model, windows((n,)), 4, T, 0, rng())
        assert after[-1] == logits.argmax()
    assert len(prefix_lm.sample(model, windows((3,)), 30, T, 1.0, rng(), top_k=2)) == 33
    for wrong in (dict(temperature=-1), dict(temperature=1, top_k=-1)):
        with pytest.raises(ValueError):
            prefix_lm.sample(model, windows((3,)), 1, T, rng=rng(), **wrong)


def test_a_prompt_is_encoded_or_refused_and_validation_text_stands_in():
    tokenizer = common.CharTokenizer("the king\nis dead\n")
    val_text = tokenizer.encode("the king\nis dead\n")
    said = prefix_lm.read_prompt(tokenizer, val_text, Config(prompt="the\r\nking"))
    assert tokenizer.decode(said) == "the\nking"
    default = prefix_lm.read_prompt(tokenizer, val_text, Config(seq_len=8))
    assert tokenizer.decode(default) == "the "
    assert len(prefix_lm.read_prompt(tokenizer, val_text, Config(seq_len=1))) == 1
    with pytest.raises(common.Refusal, match="'G'") as refusal:
        prefix_lm.read_prompt(tokenizer, val_text, Config(prompt="kinG"))
    assert refusal.value.code == 2 and "\n" not in str(refusal.value)


def test_default_run_on_pydoc_in_small(tmp_path, capsys):
    flags = "--data pydoc --steps 2 --eval-every 2 --batch-size 2 --seq-len 16 --d-model 16"
    flags += f" --n-layer 1 --n-head 1 --out {tmp_path}"
    result = prefix_lm.main(flags.split())
    assert result["steps"] == 2 and "val_ppl" not in result and "val_bpc" not in result
    assert result["vocab_size"] == len(set(common.load_text("pydoc")))
    prompt = ["--prompt", "statement " * 5, "--load", str(tmp_path / "ckpt.pt")]
    loaded = prefix_lm.main([*flags.split(), *prompt])
    shown = capsys.readouterr().out
    assert loaded["val_loss"] == result["val_loss"] and "the prefix:\n" in shown
    assert "the prompt has 50 characters, the model sees 16" in shown
    assert prefix_lm.main([*flags.split(), "--show"]) == {}


def test_uniform_logits_cost_ln_V():
    targets = score_suffix(windows((2, 8)), torch.tensor([3, 8]))
    nll = token_nll(torch.zeros(2, 8, 10), targets)
    assert prefix_lm.mean_nll(nll, targets).item() == pytest.approx(math.log(10), abs=1e-6)
