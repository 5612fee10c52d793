"""Claims about fim.py."""

import dataclasses
import functools
import math
import random

import pytest
import torch
from helpers import entropies, scramble

import clm
import common
import fim
from fim import IGNORE, Config, draw_cut, fim_permute, fim_prompt, fim_restore, make_batch

TINY = dict(batch_size=8, seq_len=64, d_model=48, n_layer=2, n_head=1, max_middle=8)
SPECIAL = {"PRE": 101, "SUF": 102, "MID": 103, "EOT": 100}  # of the worked examples
LOW = {"PRE": 10, "SUF": 11, "MID": 12, "EOT": 13}  # behind the characters 0..9
TEXT = torch.arange(1, 9)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def windows(shape=(3, 65), V=10):
    return torch.randint(V, shape, generator=rng())


def config(**settings):
    return Config(**{**TINY, **settings})


def fit(data, out, steps, pitfall="", train=None, **settings):
    """Train a tiny model.  -> model, log"""
    tokenizer, train_text, val_text = data
    cfg = config(**{"steps": steps, "eval_every": steps, "out": str(out), **settings})
    torch.manual_seed(cfg.seed)
    model = fim.build_model(cfg, tokenizer.vocab_size)
    log = common.Log(cfg, model, tokenizer, {"corpus": "test", "corpus_sha256": "0" * 64})
    how = train or fim.PITFALLS.get(pitfall, {})
    fim.train(model, train_text, val_text, cfg, tokenizer.special, log, **how)
    return model, log


@pytest.fixture(scope="module")
def texts(corpus):
    """tokenizer with the specials, training ids, validation ids"""
    return common.load_data(corpus, fim.SPECIALS, 65)[:3]


@pytest.fixture(scope="module")
def trained(texts, tmp_path_factory):
    """name of a pitfall, or "": metrics of a tiny run"""
    found = {}

    def get(name):
        if name not in found:
            steps = 60 if name else 120  # what breaks breaks soon
            model, _ = fit(texts, tmp_path_factory.mktemp("run"), steps, name)
            tokenizer, _, val_text = texts
            cfg, special, val_text = config(), tokenizer.special, val_text[: 65 * 100]
            gaps = fim.draw_gaps(val_text, cfg)
            plain = fim.evaluate(model, val_text, config(fim_rate=0.0), special)["val_loss"]
            found[name] = {"val_loss": plain, **fim.score_gaps(model, gaps, special)}
            found[name] |= fim.fill_gaps(model, gaps[:20], cfg, special)
        return found[name]

    return get


# -------------------------------------------------------- transform
def check_worked_examples():
    assert fim.fim_permute(TEXT, 2, 5, SPECIAL, "PSM").tolist() == [
        *(101, 1, 2, 102, 6, 7, 8, 103, 3, 4, 5, 100)
    ]
    assert fim.fim_permute(TEXT, 2, 5, SPECIAL, "SPM").tolist() == [
        *(101, 102, 6, 7, 8, 103, 1, 2, 3, 4, 5, 100)
    ]
    assert fim.fim_permute(TEXT, 4, 4, SPECIAL, "PSM").tolist() == [
        *(101, 1, 2, 3, 4, 102, 5, 6, 7, 8, 103, 100)
    ]


def test_both_orders_worked_examples():
    check_worked_examples()


def test_spm_is_psm_with_an_empty_prefix_and_not_the_first_variant():
    spm = fim_permute(TEXT, 2, 5, SPECIAL, "SPM")
    assert torch.equal(spm, fim_permute(TEXT, 0, 5, SPECIAL, "PSM"))
    assert spm.tolist() != [102, 6, 7, 8, 101, 1, 2, 103, 3, 4, 5, 100]


def test_trimming_what_was_permuted_loses_the_whole_middle():
    assert fim_permute(TEXT, 2, 5, SPECIAL, "PSM")[:8].tolist() == [101, 1, 2, 102, 6, 7, 8, 103]


def test_one_document_of_a_window_worked_example():
    parts = [
        fim_permute(torch.tensor([1, 2, 3]), 1, 2, SPECIAL, "PSM"),
        torch.tensor([4, 5, 100, 6, 7]),
    ]
    packed = torch.cat(parts).tolist()
    assert packed == [101, 1, 102, 3, 103, 2, 100, 4, 5, 100, 6, 7]
    # trimmed to the 9 places of the window it has lost the end of the text; ours shortens first
    window, documents = torch.arange(1, 10), [(3, 1, 2, "PSM")]
    row, kind = fim.fim_row(window, documents, SPECIAL)
    assert row.tolist() == [101, 1, 102, 3, 103, 2, 100, 4, 5]
    assert kind.tolist() == [3, 0, 3, 1, 3, 2, 3, 0, 0]


def check_round_trip():
    generator = rng(3)
    for _ in range(200):
        n = int(torch.randint(1, 30, (), generator=generator))
        ids = torch.randint(10, (n,), generator=generator)
        before = ids.clone()
        i, j = fim.draw_cut(n, generator, 30)
        for order in ("PSM", "SPM"):
            row = fim.fim_permute(ids, i, j, LOW, order)
            restored, first, second = fim_restore(row, LOW, order)
            assert torch.equal(restored, ids) and second == j
            assert first == (i if order == "PSM" else None)
            assert len(row) == n + 4 and row[-1] == LOW["EOT"]
            assert sorted(row.tolist()) == sorted(ids.tolist() + list(LOW.values()))
        assert torch.equal(ids, before)


def test_restoring_gives_the_document_back_over_200_draws():
    check_round_trip()


@pytest.mark.parametrize("i, j", [(0, 0), (0, 8), (8, 8), (0, 3), (3, 8), (4, 4)])
@pytest.mark.parametrize("order", ["PSM", "SPM"])
def test_each_part_may_be_empty(i, j, order):
    row = fim_permute(TEXT, i, j, SPECIAL, order)
    assert torch.equal(fim_restore(row, SPECIAL, order)[0], TEXT)
    prompt = fim_prompt(TEXT[:i], TEXT[j:], SPECIAL, order)
    assert row.tolist() == prompt.tolist() + TEXT[i:j].tolist() + [100]


def test_an_empty_document_is_four_specials():
    row = fim_permute(TEXT[:0], 0, 0, SPECIAL, "SPM")
    assert row.tolist() == [101, 102, 103, 100]
    assert draw_cut(0, rng(), 4) == (0, 0)


def check_cuts():
    n, draws = 8, 100_000  # five statistics at 3 sigma: no single small sample
    generator = rng()
    cuts = torch.tensor([fim.draw_cut(n, generator, n) for _ in range(draws)]).double()
    i, j = cuts.T
    assert (i <= j).all() and i.min() == 0 and j.max() == n
    for values, mean in (
        (i, n * (2 * n + 1) / (6 * (n + 1))),
        (n - j, n * (2 * n + 1) / (6 * (n + 1))),
        (j - i, n * (n + 2) / (3 * (n + 1))),
        ((i == j).double(), 1 / (n + 1)),
        ((i == 0).double(), (2 * n + 1) / (n + 1) ** 2),
    ):
        assert abs(values.mean() - mean) < 3 * values.std() / math.sqrt(draws)


def test_cut_statistics():
    check_cuts()


def test_short_middles_have_the_law_of_the_cuts_given_that_they_are_short():
    n, longest, draws, generator = 6, 2, 10_000, rng()
    weight = {(i, j): 1 + (i < j) for i in range(n + 1) for j in range(i, min(n, i + longest) + 1)}
    counts = dict.fromkeys(weight, 0)
    for _ in range(draws):
        counts[draw_cut(n, generator, longest)] += 1
    total = sum(weight.values())
    chi = sum((counts[c] - (e := draws * w / total)) ** 2 / e for c, w in weight.items())
    assert chi < 35  # 17 degrees of freedom: 1 in 150 draws of a right sampler is above


def test_random_sample_never_empties_the_middle_and_never_reaches_the_end():
    n, chooser = 8, random.Random(0)
    popular = [sorted(chooser.sample(range(n), 2)) for _ in range(3000)]
    assert min(j - i for i, j in popular) == 1 and max(j for _, j in popular) == n - 1
    generator = rng()
    ours = [draw_cut(n, generator, n) for _ in range(3000)]
    assert min(j - i for i, j in ours) == 0 and max(j for _, j in ours) == n


def check_rows(seq_len, **settings):
    """Rows fill the window, their documents are its text, and every gap is whole."""
    cfg = config(seq_len=seq_len, **{"fim_rate": 1.0, **settings})
    given = windows((60, seq_len + 1))
    before = given.clone()
    batch = fim.make_batch(given, cfg, LOW, rng())
    assert torch.equal(given, before)
    assert batch.idx.shape == batch.targets.shape == batch.kind.shape == (60, seq_len)
    assert torch.equal(batch.idx[:, 1:], batch.targets[:, :-1])
    assert (batch.targets != IGNORE).all()
    rows = torch.cat([batch.idx[:, :1], batch.targets], 1)
    for row, window in zip(rows, given):
        text, gaps = undo(row)
        assert len(text) == len(window) - 4 * gaps and torch.equal(text, window[: len(text)])
        assert all((row == id).sum() == gaps for id in LOW.values()), "a gap lost a special"
    return rows, batch


def undo(row):
    """A row back into text.  -> text, number of gaps"""
    texts, gaps = [], 0
    while len(row):
        start = (row == LOW["PRE"]).nonzero()
        if not len(start):
            return torch.cat([*texts, row]), gaps
        start, end = int(start[0]), int((row == LOW["EOT"]).nonzero()[0]) + 1
        order = "SPM" if row[start + 1] == LOW["SUF"] else "PSM"
        texts += [row[:start], fim_restore(row[start:end], LOW, order)[0]]
        row, gaps = row[end:], gaps + 1
    return torch.cat(texts), gaps


@pytest.mark.parametrize("seq_len", [8, 9, 32])
@pytest.mark.parametrize("max_middle", [1, 4, 64])
def test_a_row_is_its_window_rearranged_and_shortened_beforehand(seq_len, max_middle):
    for fim_rate in (0.5, 1.0):
        check_rows(seq_len, max_middle=max_middle, spm_rate=0.5, fim_rate=fim_rate)


def test_the_places_of_eot_vary_so_that_they_cannot_be_counted():
    rows, _ = check_rows(32)
    assert len((rows == LOW["EOT"]).nonzero()[:, 1].unique()) > 20


def test_kinds_name_the_parts():
    for order in ("PSM", "SPM"):
        row, kind = fim.fim_row(TEXT, [(2, 1, 2, order)], SPECIAL)
        assert len(row) == len(kind) == 8
        parts = {"PSM": [101, 1, 102, 103, 2, 100], "SPM": [101, 102, 103, 1, 2, 100]}[order]
        kinds = {"PSM": [3, 0, 3, 3, 2, 3], "SPM": [3, 3, 3, 0, 2, 3]}[order]
        assert row.tolist() == [*parts, 3, 4] and kind.tolist() == [*kinds, 0, 0]
    batch = make_batch(windows(), config(fim_rate=1.0), LOW, rng())
    assert torch.equal(batch.kind == 3, batch.targets >= 10)


def test_rates_are_binomial(monkeypatch):
    drawn = []
    monkeypatch.setattr(fim, "fim_row", lambda window, documents, special: drawn.append(documents))
    generator = rng()
    for fim_rate in (0.0, 0.3, 0.75, 1.0):
        drawn.clear()
        cfg = config(fim_rate=fim_rate, spm_rate=0.3, max_middle=4, seq_len=128)
        for _ in range(1500):
            fim.draw_row(windows((129,)), cfg, LOW, generator)
        tries = len(drawn)
        for k in (1, 2, 3):  # so many documents fit into each row, whatever their lengths
            hits = sum(len(documents) >= k for documents in drawn)
            assert abs(hits - fim_rate * tries) <= 3 * math.sqrt(tries * fim_rate * (1 - fim_rate))
            tries = hits
        orders = [order for documents in drawn for *_, order in documents]
        spm = orders.count("SPM")
        assert abs(spm - 0.3 * len(orders)) <= 3 * math.sqrt(len(orders) * 0.21)


# -------------------------------------------------------- reduction
def test_rate_0_gives_the_batches_of_clm_bit_for_bit():
    ours = make_batch(windows(), config(fim_rate=0.0), LOW, rng())
    theirs = clm.make_batch(windows(), clm.Config(seq_len=64), {}, rng())
    for name, a, b in zip(ours._fields, ours, theirs):
        assert torch.equal(a, b) and a.dtype == b.dtype, name


def test_rate_0_costs_what_clm_costs_over_the_character_logits():
    small, large = clm.build_model(config(), 10), fim.build_model(config(), 14)
    scramble(small)
    scramble(large)
    for name, p in small.state_dict().items():
        large.state_dict()[name][: len(p)].copy_(p)
    batch = make_batch(windows(), config(fim_rate=0.0), LOW, rng())
    theirs = clm.loss_fn(small, clm.Batch(*batch), clm.Config())[0]
    ours = fim.token_nll(large(batch.idx, batch.mask)[..., :10], batch.targets)
    assert fim.mean_nll(ours, batch.targets).item() == pytest.approx(theirs.item(), abs=1e-6)


# -------------------------------------------------------- mask
def check_no_leak():
    """A later id of a rearranged row moves no earlier logit, and moves its own and later ones."""
    model = scramble(fim.build_model(config(), 14))
    batch = fim.make_batch(windows((1, 9)), config(seq_len=8, fim_rate=1.0), LOW, rng())
    before = model(batch.idx, batch.mask)
    for j in range(8):
        changed = batch.idx.clone()
        changed[0, j] = (changed[0, j] + 1) % 14
        moved = (model(changed, batch.mask) - before).abs().amax(-1)[0]
        assert (moved[:j] == 0).all() and (moved[j:] > 1e-4).all()


def test_a_later_id_moves_no_earlier_logit():
    check_no_leak()


def test_the_middle_sees_the_suffix_through_the_network_in_both_orders():
    model = scramble(fim.build_model(config(), 14))
    ids = windows((12,))
    other = ids.clone()
    other[8:] = (other[8:] + 1) % 10
    for order in ("PSM", "SPM"):
        rows = [fim_permute(text, 4, 8, LOW, order)[None] for text in (ids, other)]
        one, two = (model(row, fim.attention_mask(16))[0, -5:] for row in rows)
        assert ((one - two).abs().amax(-1) > 1e-4).all()


# -------------------------------------------------------- loss
def test_all_parts_are_scored_and_eot_always():
    model = fim.build_model(config(), 14)
    batch = make_batch(windows(), config(fim_rate=1.0), LOW, rng())
    loss, nll = fim.loss_fn(model, batch, config())
    assert torch.allclose(nll, torch.tensor(math.log(14))) and nll.shape == (3, 64)
    assert loss.item() == pytest.approx(math.log(14), abs=1e-6)
    assert (batch.targets == LOW["EOT"]).sum() >= 9


def cut_entropy(n, order):
    """Of the cuts that a row of n characters shows, in nats; uniform cuts."""
    if order == "PSM":
        return 2 * math.log(n + 1) - n / (n + 1) * math.log(2)
    p = torch.arange(1, 2 * n + 2, 2).double() / (n + 1) ** 2  # P(the later cut = 0..n)
    return -(p * p.log()).sum().item()


def row_entropy(room, order, lengths, V):
    """Of a row with that many places left, in nats: characters, lengths, cuts, nothing else."""

    @functools.cache
    def entropy(room):
        fits = [n for n in lengths if n + 4 <= room]
        stop, K = 1 - len(fits) / len(lengths), len(lengths)
        total = sum(
            math.log(K) + n * math.log(V) + cut_entropy(n, order) + entropy(room - n - 4)
            for n in fits
        )
        return total / K + (stop * (room * math.log(V) - math.log(stop)) if stop else 0)

    return entropy(room)


def test_the_floor_of_one_fixed_length_is_the_published_sum():
    assert (62 * math.log(65) + cut_entropy(62, "PSM")) / 65 == pytest.approx(4.0987, abs=5e-5)
    assert (61 * math.log(65) + cut_entropy(61, "SPM")) / 64 == pytest.approx(4.0402, abs=5e-5)


@pytest.mark.parametrize("order", ["PSM", "SPM"])
def test_on_uniform_characters_the_loss_never_goes_below_the_exact_floor(tmp_path, order):
    T, V = 64, 10
    tokenizer = common.CharTokenizer("0123456789", fim.SPECIALS)

    def uniform(text, batch_size, length, generator):
        return torch.randint(V, (batch_size, length), generator=generator)

    how = dict(fim_rate=1.0, spm_rate=float(order == "SPM"), max_middle=64)
    model, log = fit(
        (tokenizer, windows((99,)), windows((650,))), tmp_path, 80, train={"draw": uniform}, **how
    )
    floor = row_entropy(T + 1, order, range(16, T - 2), V) / T
    batch = make_batch(windows((300, T + 1)), config(**how), tokenizer.special, rng(5))
    with torch.no_grad():
        rows = fim.loss_fn(model, batch, config())[1].mean(1)
    assert floor - 3 * rows.std() / math.sqrt(300) <= rows.mean() <= floor + 0.08


# -------------------------------------------------------- learning
def test_step_0_costs_ln_V_with_the_specials(texts):
    tokenizer, _, val_text = texts
    model = fim.build_model(config(), tokenizer.vocab_size)
    metrics = fim.evaluate(model, val_text[:6500], config(), tokenizer.special)
    ln_v = math.log(len(tokenizer.ids) + 4)
    assert all(value == pytest.approx(ln_v, abs=5e-5) for value in metrics.values())
    assert set(metrics) == {"val_loss", *(f"val_loss_{kind}" for kind in fim.KINDS)}


def test_clean_training_beats_the_bigram_entropy_on_plain_rows(texts, trained):
    _, bigram = entropies(torch.cat(texts[1:]))
    assert trained("")["val_loss"] < bigram


def test_same_seed_same_history_whenever_it_evaluates(texts, tmp_path):
    runs = [fit(texts, tmp_path, 8, eval_every=n)[1].losses for n in (8, 8, 3)]
    assert runs[0] == runs[1] == runs[2]
    assert fit(texts, tmp_path, 8, seed=1)[1].losses != runs[0]


# -------------------------------------------------------- pitfalls
def test_cut_end_takes_the_end_of_every_middle_and_generation_never_stops(trained):
    cfg, given = config(fim_rate=1.0, seq_len=32, max_middle=32), windows((200, 33))
    batch = fim.cut_end(given, cfg, LOW, rng())
    assert (batch.targets != LOW["EOT"]).all() and batch.idx.shape == (200, 32)
    assert (batch.idx[:, 0] == LOW["PRE"]).all()
    clean, broken = trained(""), trained("cut-end")
    assert broken["stop_rate"] == 0 and clean["stop_rate"] > 0.1
    assert broken["val_eot_at_end"] > clean["val_eot_at_end"] + 2


def test_middle_only_loses_the_plain_text(trained):
    assert trained("middle-only")["val_loss"] > trained("")["val_loss"] + 0.3


def test_tokens_that_no_row_held_never_end_a_middle(trained):
    # the characters of a middle hardly suffer: in SPM the prefix stands right before it
    clean, broken = trained(""), trained("tokens-not-added")
    assert broken["stop_rate"] == 0 < clean["stop_rate"]
    assert broken["val_eot_at_end"] > clean["val_eot_at_end"] + 2
    assert broken["val_middle_fim"] > broken["val_middle_ltr"]


# -------------------------------------------------------- mutations: do checks notice?
def broken_permute(change):
    clean = fim.fim_permute
    return lambda ids, i, j, special, order: change(clean(ids, i, j, special, order), special)


@pytest.mark.parametrize(
    "check, name, wrong",
    [
        (check_no_leak, "attention_mask", lambda T: torch.ones(T, T).bool()),
        (check_no_leak, "attention_mask", lambda T: torch.ones(T, T).bool().tril(1)),
        (check_worked_examples, "fim_permute", broken_permute(lambda row, special: row[:-1])),
        (check_round_trip, "fim_permute", broken_permute(lambda row, special: row.flip(0))),
        (
            check_cuts,
            "draw_cut",
            lambda n, rng, _: sorted(torch.randint(n, (2,), generator=rng).tolist()),
        ),
        (
            check_cuts,
            "draw_cut",
            lambda n, rng, _: torch.randint(n + 1, (2,), generator=rng).tolist(),
        ),
        (lambda: check_rows(32), "make_batch", fim.cut_end),
        (lambda: check_rows(32), "make_batch", fim.middle_only),
        (lambda: check_rows(32), "make_batch", fim.tokens_not_added),
    ],
)
def test_the_checks_notice(monkeypatch, check, name, wrong):
    check()
    monkeypatch.setattr(fim, name, wrong)
    with pytest.raises((AssertionError, RuntimeError, ValueError)):
        check()


# -------------------------------------------------------- sample
ABC = common.CharTokenizer("abcdefgh <>PRESUFMIDOT\n", fim.SPECIALS)


def prompt(text, **settings):
    cfg = config(prompt=text, **settings)
    return fim.read_prompt(ABC, ABC.encode("abcdefgh" * 20), cfg)


def test_a_prompt_is_two_sides_and_becomes_specials():
    prefix, suffix = prompt("<PRE>ab <SUF>cd")
    assert ABC.decode(prefix) == "ab " and ABC.decode(suffix) == "cd"
    row = fim_prompt(prefix, suffix, ABC.special, "SPM")
    assert ABC.decode(row) == "<PRE><SUF>cd<MID>ab "
    assert [len(side) for side in prompt("<PRE><SUF>")] == [0, 0]
    assert ABC.decode(prompt("<PRE>a\r\nb<SUF>c")[0]) == "a\nb"


def test_text_that_spells_a_special_is_text():
    suffix = prompt("<PRE>a<SUF><EOT>")[1]
    assert len(suffix) == 5 and suffix.max() < len(ABC.ids)


@pytest.mark.parametrize("text", ["abc", "<PRE>abc", "ab<SUF>c", "<SUF>a<PRE>"])
def test_a_prompt_without_two_sides_is_refused(text):
    with pytest.raises(common.Refusal, match="<PRE>left<SUF>right"):
        prompt(text)


def test_unknown_characters_are_named():
    with pytest.raises(common.Refusal, match="'x' 'y'"):
        prompt("<PRE>axy<SUF>b")


def test_no_prompt_opens_a_gap_in_the_validation_text(capsys):
    prefix, suffix = prompt("")
    assert len(prefix) and len(suffix) and not capsys.readouterr().out


@pytest.mark.parametrize("before, after", [(200, 3), (3, 200), (200, 200)])
def test_a_long_prompt_keeps_what_is_near_the_gap_and_the_specials(capsys, before, after):
    prefix, suffix = prompt("<PRE>" + "a" * before + "b<SUF>c" + "d" * after)
    assert "are dropped" in capsys.readouterr().out
    row = fim_prompt(prefix, suffix, ABC.special, "PSM")
    assert len(prefix) + len(suffix) == fim.longest_document(config()) == 20
    text = ABC.decode(row)
    assert "b<SUF>c" in text and text.startswith("<PRE>") and text.endswith("<MID>")
    assert len(prefix) >= min(before, 8) and len(suffix) >= min(after, 8)


def test_infill_stops_at_eot_and_within_the_window():
    model = fim.build_model(config(), 14)
    row = fim_prompt(TEXT, TEXT, LOW, "SPM")
    model.head.weight.data[LOW["EOT"]] += 1  # whether that is the likeliest depends on the state
    ends = set()
    for seed in range(20):
        middle, ended = fim.infill(model, row, LOW, config(temperature=1.0), rng(seed))
        assert (LOW["EOT"] not in middle.tolist()) and len(middle) <= fim.longest_document(config())
        assert ended or len(middle) == fim.longest_document(config())
        ends.add(ended)
    assert True in ends


def test_score_gaps_scores_the_same_characters_three_ways():
    cfg, text = config(fim_rate=1.0), windows((65 * 70,))
    gaps = fim.draw_gaps(text, cfg)
    fresh = fim.score_gaps(fim.build_model(cfg, 14), gaps, LOW)
    for way in ("fim", "ltr", "wrong_suffix"):
        assert fresh[f"val_middle_{way}"] == pytest.approx(
            math.log(10), abs=1e-6
        )  # characters only
    assert fresh["val_eot_at_end"] == pytest.approx(math.log(14), abs=1e-6)
    assert gaps[0][1] is not gaps[0][0] and all(1 <= gap[2][1] <= gap[2][2] for gap in gaps)
    scores = fim.score_gaps(scramble(fim.build_model(cfg, 14)), gaps, LOW)
    assert len(set(scores.values())) == 5


@pytest.mark.parametrize(
    "flags, says",
    [
        (["--max-middle", "0"], "max-middle"),
        (["--seq-len", "7"], "seq-len"),
        (["--fim-rate", "1.5"], "between 0 and 1"),
        (["--spm-rate", "-1"], "between 0 and 1"),
        (["--prompt", "ROMEO:"], "<SUF>"),
    ],
)
def test_wrong_settings_are_refused_before_training(corpus, flags, says, tmp_path):
    with pytest.raises(common.Refusal, match=says):
        fim.main([*flags, "--data", corpus, "--out", str(tmp_path)])


def test_a_run_reports_what_the_readme_promises(corpus, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text(common.load_text(corpus)[:30_000], encoding="utf-8")
    sizes = "--steps 3 --batch-size 4 --seq-len 64 --d-model 16 --n-layer 1 --n-head 1"
    flags = [*sizes.split(), "--data", str(text), "--out", str(tmp_path)]
    result = fim.main([*flags, "--prompt", "<PRE>the king is <SUF>."])
    for name in "val_loss val_middle_fim val_middle_ltr val_middle_wrong_suffix stop_rate".split():
        assert math.isfinite(result[name])
    out = capsys.readouterr().out
    assert "the king is [" in out and "PSM" in out and "SPM" in out
    # val_loss is that of plain rows
    tokenizer, _, val_text, _ = common.load_data(str(text), fim.SPECIALS, 65)
    cfg = dataclasses.replace(Config(**result["config"]), fim_rate=0.0)
    model = fim.build_model(cfg, tokenizer.vocab_size)
    common.load(str(tmp_path / "ckpt.pt"), model, tokenizer, cfg)
    plain = fim.evaluate(model, val_text, cfg, tokenizer.special)
    assert result["val_loss"] == pytest.approx(plain["val_loss"], abs=1e-9)
