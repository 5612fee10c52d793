"""Claims about bart.py."""

import itertools
import math

import pytest
import torch
from helpers import entropies, scramble, standard_error

import bart
import common
from bart import GAP, IGNORE, KINDS, Config, attention_mask, loss_fn, make_batch, padding_mask

TINY = dict(batch_size=16, seq_len=32, d_model=64, n_layer=2, n_head=1, lr=0.05)
TEN = {name: 10 + i for i, name in enumerate(bart.SPECIALS)}  # ten characters, 0 ends a line
ALL = ("mask", "delete", "infill", "permute", "rotate", "none", "permute+infill")
A, B, C, D, E, M = 1, 2, 3, 4, 5, 99
TEXT = torch.tensor([A, B, C, D, E])


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def windows(shape=(3, 31), V=10, seed=0):
    return torch.randint(V, shape, generator=rng(seed))


def scrambled(**settings):
    return scramble(bart.build_model(Config(**{**TINY, **settings}), 10 + len(TEN)))


def logits_of(model, batch):
    return model(batch.inputs, batch.idx, batch.mask, batch.seen)


def chosen(*places, n=5):
    return torch.tensor([i in places for i in range(n)])


@pytest.fixture(scope="session")
def bart_data(corpus):
    """tokenizer with the specials, training ids, validation ids"""
    return common.load_data(corpus, bart.SPECIALS, 65)[:3]


def fit(data, tmp_path, steps, pitfall="", **settings):
    """Train a tiny model.  -> model, log"""
    tokenizer, train_text, val_text = data
    cfg = Config(
        steps=steps, out=str(tmp_path / "run"), **{"eval_every": steps, **TINY, **settings}
    )
    torch.manual_seed(cfg.seed)
    model = bart.build_model(cfg, tokenizer.vocab_size)
    log = common.Log(cfg, model, tokenizer, {"corpus": "test", "corpus_sha256": "0" * 64})
    broken = bart.PITFALLS.get(pitfall, {})
    bart.train(model, train_text, val_text, cfg, tokenizer.special, log, **broken)
    return model, log


def end(log, n=20):
    """Mean training loss of the last steps."""
    return sum(log.losses[-n:]) / n


# -------------------------------------------------------- transform
def check_worked_examples():
    """a b c d e under every noise."""
    pair = torch.tensor
    assert bart.mask_chars(TEXT, chosen(1, 3), M).tolist() == [A, M, C, M, E]
    assert bart.delete_chars(TEXT, chosen(1, 3)).tolist() == [A, C, E]
    assert bart.infill_spans(TEXT, pair([1]), pair([2]), M).tolist() == [A, M, D, E]
    assert bart.infill_spans(TEXT, pair([4]), pair([0]), M).tolist() == [A, B, C, D, M, E]
    assert bart.infill_spans(TEXT, pair([0, 1, 1]), pair([0, 0, 4]), M).tolist() == [M, A, M, M]
    assert bart.infill_spans(TEXT, pair([2, 5]), pair([3, 0]), M).tolist() == [A, B, M, M]
    assert bart.permute_lines(TEXT, pair([2, 3, 5]), pair([2, 0, 1])).tolist() == [D, E, A, B, C]
    assert bart.rotate_text(TEXT, 3).tolist() == [D, E, A, B, C]
    assert bart.rotate_text(TEXT, 0).tolist() == [A, B, C, D, E]


def test_worked_examples():
    check_worked_examples()
    assert TEXT.tolist() == [A, B, C, D, E]


def test_a_line_ends_with_its_first_newline_and_the_last_one_with_the_text():
    ids = torch.tensor([A, 0, 0, B, 0, C])  # "a", blank, "b", and a line that was cut
    ends, order = bart.draw_lines(ids == 0, rng())
    assert ends.tolist() == [2, 5, 6] and sorted(order.tolist()) == [0, 1, 2]
    moved = bart.permute_lines(ids, ends, torch.tensor([1, 2, 0]))
    assert moved.tolist() == [0, B, 0, C, A, 0]
    for text, expected in (([A, 0], [2]), ([A], [1]), ([0, A, B], [1, 3]), ([], [])):
        assert bart.draw_lines(torch.tensor(text) == 0, rng())[0].tolist() == expected


def check_noises():
    """Every noise on 40 texts: what is lost, what is kept, in which order."""
    for seed, name in itertools.product(range(40), ALL):
        n = 1 + seed % 31
        ids, N = windows((n,), V=4, seed=seed), math.ceil(0.3 * n)
        before = ids.clone()
        places = bart.draw_places(ids, Config(noise=name), rng(seed))
        assert torch.equal(ids, before)
        kept, gaps = places[places != GAP], int((places == GAP).sum())
        lost = N if {"mask", "delete", "infill"} & set(name.split("+")) else 0
        assert len(set(kept.tolist())) == len(kept) == n - lost
        assert kept.min() >= 0 and kept.max() < n if len(kept) else True
        if name in ("mask", "delete", "infill", "none"):
            assert (kept.diff() > 0).all()
        assert gaps == {"mask": N, "delete": 0, "permute": 0, "rotate": 0, "none": 0}.get(
            name, gaps
        )
        if name == "mask":
            assert (places[places != GAP] == torch.arange(n)[places != GAP]).all()
        if name == "rotate":
            assert torch.equal(places, torch.arange(n).roll(-int(places[0])))


def test_every_noise_keeps_and_loses_what_it_says():
    check_noises()


def check_spans():
    """Lengths are Poisson but for the last one; spans lie in order, and lose exactly the share."""
    starts, lengths = bart.draw_spans(10_000, 0.3, 3.0, rng())
    assert lengths.sum() == 3000 and starts[0] >= 0 and starts[-1] + lengths[-1] <= 10_000
    assert (starts[1:] >= (starts + lengths)[:-1]).all()
    p = [math.exp(-3) * 3**i / math.factorial(i) for i in range(8)]
    p = torch.tensor([*p, 1 - sum(p)])
    expected, got = len(lengths) * p, torch.bincount(lengths.clamp(max=8), minlength=9)
    assert ((got - expected) ** 2 / expected).sum() < 26.1  # 8 degrees, p = 0.001
    source = rng(1)
    for n in (0, 1, 2, 9):
        for _ in range(40):
            starts, lengths = bart.draw_spans(n, 0.3, 3.0, source)
            assert lengths.sum() == math.ceil(0.3 * n) and len(starts) == len(lengths)
            assert (starts + lengths <= n).all() and (starts.diff() >= 0).all()


def test_spans_are_poisson_zero_too_and_lose_exactly_the_share():
    check_spans()


def check_places():
    """One of five characters, with or without an empty span: every way is equally likely."""
    source, seen = rng(2), {1: [], 2: []}
    for _ in range(3000):
        starts, lengths = bart.draw_spans(5, 0.2, 2.0, source)
        if len(starts) in seen:
            seen[len(starts)].append((*starts.tolist(), *lengths.tolist()))
    # alone: 5 places; beside an empty one: two of six slots, and which of the two is empty
    for k, ways, limit in ((1, 5, 18.5), (2, 30, 58.3)):  # p = 0.001
        counts = [seen[k].count(way) for way in set(seen[k])]
        expected = len(seen[k]) / ways
        assert len(counts) == ways
        assert sum((c - expected) ** 2 / expected for c in counts) < limit


def test_all_places_are_equally_likely():
    check_places()


def check_orders():
    """Lines really move: all 6 orders of 3 lines are equally likely, 5 of them change the text."""
    ids, source, n = torch.tensor([A, 0, B, 0, C, 0]), rng(3), 1200
    texts = [
        tuple(ids[bart.draw_places(ids, Config(noise="permute"), source)].tolist())
        for _ in range(n)
    ]
    counts = [texts.count(text) for text in set(texts)]
    assert len(counts) == 6 and texts.count(tuple(ids.tolist())) < n / 4
    assert sum((c - n / 6) ** 2 / (n / 6) for c in counts) < 20.5  # 5 degrees, p = 0.001


def test_permuting_really_changes_the_order():
    check_orders()


def test_permuting_the_validation_text_changes_almost_every_window(bart_data):
    tokenizer, _, val_text = bart_data
    assert tokenizer.ids["\n"] == bart.NEWLINE
    texts = val_text[: 40 * 127].view(40, 127)
    batch = make_batch(texts, Config(noise="permute"), tokenizer.special, rng())
    changed = (batch.inputs[:, :-1] != texts).any(1)
    assert changed.float().mean() > 0.8
    assert torch.equal(batch.inputs[:, :-1].sort(1).values, texts.sort(1).values)


def test_every_start_of_a_rotation_is_equally_likely():
    source = rng(4)
    counts = torch.bincount(torch.tensor([bart.draw_start(5, source) for _ in range(1000)]))
    assert len(counts) == 5 and ((counts - 200) ** 2 / 200).sum() < 18.5  # 4 degrees, p = 0.001


def test_noises_apply_from_left_to_right():
    ids, cfg = torch.tensor([A, 0, B, 0, C, 0, D, 0]), Config(noise="mask+permute")
    # with its newlines masked, a line is not found to be one
    pairs = [bart.draw_places(ids, cfg, rng(seed)) for seed in range(50)]
    for places in pairs:
        cuts = (places[1:] != places[:-1] + 1) & (places[1:] != GAP) & (places[:-1] != GAP)
        assert (ids[places[:-1]][cuts] == 0).all()
    pairs = [bart.draw_places(ids, Config(noise="permute+mask"), rng(seed)) for seed in range(50)]
    assert all((places != GAP).sum() == 5 for places in pairs)


def test_targets_are_the_whole_text_and_eos_whatever_the_noise():
    for name in ALL:
        batch = make_batch(windows(), Config(noise=name), TEN, rng())
        assert torch.equal(batch.targets[:, :-1], windows())
        assert (batch.targets[:, -1] == TEN["EOS"]).all()
        assert (batch.idx[:, 0] == TEN["BOS"]).all()
        assert torch.equal(batch.idx[:, 1:], batch.targets[:, :-1])


def kinds_by_hand(places, n):
    """The definition, read off the inputs one target at a time."""
    kinds = []
    for i in range(n):
        if i not in places:
            kinds.append("restored")
        else:
            at = places.index(i)
            behind = places[at - 1] == i - 1 if at and i else at == i == 0
            kinds.append("copied" if behind else "resumed")
    return [*kinds, "eos"]


def check_kinds():
    """a b c d e: which target stands where in the inputs?"""
    for places, expected in (
        ([0, 1, 2, 3, 4], "copied copied copied copied copied eos"),
        ([0, GAP, 2, GAP, 4], "copied restored resumed restored resumed eos"),
        ([0, 2, 4], "copied restored resumed restored resumed eos"),
        ([0, GAP, 3, 4], "copied restored restored resumed copied eos"),
        ([GAP, 0, 1, GAP, 2, 3, 4], "resumed copied resumed copied copied eos"),
        ([3, 4, 0, 1, 2], "resumed copied copied resumed copied eos"),
        ([], "restored restored restored restored restored eos"),
    ):
        kind = bart.kinds_of(torch.tensor(places, dtype=torch.long), 5)
        assert [KINDS[k] for k in kind] == expected.split()
    for seed, name in itertools.product(range(20), ALL):
        places = bart.draw_places(windows((20,), V=4, seed=seed), Config(noise=name), rng(seed))
        kind = bart.kinds_of(places, 20)
        assert [KINDS[k] for k in kind] == kinds_by_hand(places.tolist(), 20)


def test_kinds_say_how_much_is_copying():
    check_kinds()


def test_nothing_is_restored_where_nothing_is_lost():
    for name, copied in (("permute", 0.5), ("rotate", 0.9), ("none", 1)):
        kind = make_batch(windows(), Config(noise=name), TEN, rng()).kind[:, :-1]
        assert not (kind == KINDS.index("restored")).any()
        assert (kind == KINDS.index("copied")).float().mean() >= copied


def test_inputs_are_what_the_places_say():
    given, cfg = windows((8, 31)), Config()
    batch = make_batch(given, cfg, TEN, rng(5))
    source = rng(5)
    for ids, row, seen in zip(given, batch.inputs, batch.seen[:, 0, 0]):
        places = bart.draw_places(ids, cfg, source)
        n = len(places)
        expected = [TEN["MASK"] if at == GAP else int(ids[at]) for at in places.tolist()]
        assert row[: n + 1].tolist() == [*expected, TEN["EOS"]]
        assert (row[n + 1 :] == TEN["PAD"]).all()
        assert seen.tolist() == [i <= n for i in range(len(row))]


def test_make_batch_and_pitfalls_leave_the_windows_alone():
    for function in (make_batch, *(how["batch_fn"] for how in bart.PITFALLS.values())):
        given = windows()
        function(given, Config(**TINY), TEN, rng())
        assert torch.equal(given, windows())


def test_the_smallest_texts_and_the_largest_share():
    for name, seq_len in itertools.product((*ALL, "delete+rotate", "delete+permute"), (3, 4)):
        cfg = Config(noise=name, seq_len=seq_len, noise_density=0.9)
        batch = make_batch(windows((2, seq_len - 1)), cfg, TEN, rng())
        assert batch.targets.shape == (2, seq_len) and batch.seen[..., 0].all()


# -------------------------------------------------------- refusals
@pytest.mark.parametrize(
    "flags, said",
    [
        ("--noise-density 0", "--noise-density 0.0 --mean-span 3.0: must be above 0 to 0.9"),
        ("--noise-density 0.95", "--noise-density 0.95"),
        ("--noise-density nan", "--noise-density nan"),
        ("--mean-span 0.5", "--mean-span 0.5"),
        ("--mean-span inf", "--mean-span inf: must be a finite number"),
        ("--seq-len 2", "--seq-len 2 --n-layer 4: must be at least 3"),
        ("--n-layer 1", "--seq-len 128 --n-layer 1"),
        ("--noise shuffle", "--noise shuffle: 'shuffle' is not one of mask, delete, infill"),
        ("--noise mask+", "--noise mask[+]: '' is not one of"),
    ],
)
def test_settings_out_of_range_are_refused_in_one_line(flags, said):
    with pytest.raises(common.Refusal, match=said) as refusal:
        bart.main(flags.split())
    assert refusal.value.code == 2 and "\n" not in str(refusal.value)


# -------------------------------------------------------- leaks
def check_no_leak():
    """The inputs move every logit; what the decoder reads moves none before it."""
    model, S, T = scrambled(n_layer=4), 9, 7
    inputs, idx, mask = windows((1, S)), windows((1, T)), bart.attention_mask(T)
    seen = padding_mask(inputs, TEN["PAD"])
    before = model(inputs, idx, mask, seen)
    for j in range(S):
        changed = inputs.clone()
        changed[0, j] = (inputs[0, j] + 1) % 10
        moved = (model(changed, idx, mask, seen) - before).abs().amax(-1)[0]
        assert (moved > 1e-5).all(), f"input {j} did not reach every logit"
    for j in range(T):
        changed = idx.clone()
        changed[0, j] = (idx[0, j] + 1) % 10
        moved = (model(inputs, changed, mask, seen) - before).abs().amax(-1)[0]
        assert (moved[:j] == 0).all(), f"decoder position {j} moved an earlier logit"
        assert (moved[j:] > 1e-5).all(), f"decoder position {j} did not reach a later logit"


def test_inputs_reach_every_logit_and_the_decoder_sees_its_past_only():
    check_no_leak()


def check_padding(batch_fn=None):
    """What stands at PAD moves no logit, and a row alone gives what it gives beside longer ones."""
    model = scrambled(n_layer=4)
    batch = (batch_fn or bart.make_batch)(windows((6, 31)), Config(**TINY), TEN, rng())
    together, pad = logits_of(model, batch), batch.inputs == TEN["PAD"]
    assert pad.any() and not pad.all(1).any()
    other = batch._replace(inputs=batch.inputs.where(~pad, 3))
    assert torch.equal(logits_of(model, other), together)
    for i in range(6):
        inputs = batch.inputs[i : i + 1, : int((~pad[i]).sum())]
        alone = model(inputs, batch.idx[i : i + 1], batch.mask, padding_mask(inputs, TEN["PAD"]))
        assert torch.allclose(alone[0], together[i], atol=1e-4)


def test_padding_is_never_attended():
    check_padding()


def test_padding_is_never_scored():
    for name in ALL:
        batch = make_batch(windows(), Config(noise=name), TEN, rng())
        assert not (batch.targets == TEN["PAD"]).any() and not (batch.idx == TEN["PAD"]).any()
        assert batch.targets.shape == (3, 32)


def check_answers_are_hidden():
    """Logits up to a masked character do not depend on it, whatever hides it."""
    model = scrambled(n_layer=4)
    for name in ("mask", "delete", "infill", "permute+infill"):
        ids, seen = windows((31,), V=9) + 1, []
        places = bart.draw_places(ids, Config(noise=name), rng(1)).tolist()
        lost = [i for i in range(31) if i not in places][2]
        for last in (1, 2):
            ids[lost] = last
            batch = bart.make_batch(ids[None], Config(noise=name), TEN, rng(1))
            seen.append(logits_of(model, batch)[0])
        assert torch.equal(seen[0][: lost + 1], seen[1][: lost + 1])
        assert not torch.equal(seen[0][lost + 1], seen[1][lost + 1])


def test_no_logit_depends_on_the_character_it_predicts():
    check_answers_are_hidden()


def test_decoder_mask_is_the_lower_triangle_and_padding_is_hidden_from_all():
    assert attention_mask(3).int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert padding_mask(torch.tensor([[4, 1, 9], [1, 9, 9]]), 9).int().tolist() == [
        [[[1, 1, 0]]],
        [[[1, 0, 0]]],
    ]


# -------------------------------------------------------- loss
def check_ignored():
    """Logits where the target is -100 do not count."""
    targets, logits = torch.tensor([[1, -100, 3]]), torch.randn(1, 3, 10, generator=rng())
    other = logits.clone()
    other[0, 1] += torch.randn(10, generator=rng(1))
    assert torch.equal(bart.token_nll(logits, targets), bart.token_nll(other, targets))


def test_logits_at_unscored_positions_change_nothing():
    check_ignored()


def test_rows_with_3_and_32_targets_weigh_as_35():
    model, batch = scrambled(), make_batch(windows((2, 31)), Config(**TINY), TEN, rng())
    targets = batch.targets.clone()
    targets[0, 3:] = IGNORE
    batch = batch._replace(targets=targets)
    halves = [
        bart.Batch(*(part[i : i + 1] for part in batch[:4]), batch.mask, batch.seen[i : i + 1])
        for i in (0, 1)
    ]
    loss, a, b = (loss_fn(model, part, Config())[0] for part in (batch, *halves))
    weighted = (3 * a + 32 * b) / 35
    assert loss.item() == pytest.approx(weighted.item(), abs=1e-5)
    for x, y in zip(*(torch.autograd.grad(v, list(model.parameters())) for v in (loss, weighted))):
        assert torch.allclose(x, y, atol=1e-4)


# -------------------------------------------------------- learning
def test_step_0_costs_ln_V_with_the_specials_for_every_kind(bart_data):
    tokenizer, _, val_text = bart_data
    model = bart.build_model(Config(**TINY), tokenizer.vocab_size)
    metrics = bart.evaluate(model, val_text[:10_000], Config(**TINY), tokenizer.special)
    assert list(metrics) == ["val_loss", *(f"val_loss_{kind}" for kind in KINDS)]
    for value in metrics.values():
        assert value == pytest.approx(math.log(len(tokenizer.ids) + 4), abs=5e-5)


def test_muon_gets_all_matrices_of_the_blocks_and_nothing_else():
    model = bart.build_model(Config(**TINY), 10)
    muon, adamw = bart.make_optimizers(model, Config(**TINY))
    inner = {id(p) for p in (*model.encoder.parameters(), *model.decoder.parameters())}
    assert {id(p) for p in muon.param_groups[0]["params"]} == inner
    rest = {id(model.emb.weight), id(model.head.weight)}
    assert {id(p) for p in adamw.param_groups[0]["params"]} == rest


@pytest.fixture(scope="session")
def logs(bart_data, tmp_path_factory):
    """name -> log of a short run, clean and broken"""
    runs = {"": 80, "unshifted-decoder": 40, "causal-off": 80}
    return {
        name: fit(bart_data, tmp_path_factory.mktemp("run"), steps, name)[1]
        for name, steps in runs.items()
    }


def test_clean_training_beats_the_entropies_and_copying_is_cheap(bart_data, logs):
    unigram, bigram = entropies(torch.cat(bart_data[1:]))
    row = logs[""].rows[-1]
    assert row["val_loss"] < bigram < unigram
    assert row["val_loss_copied"] < row["val_loss_restored"] - 1


def test_same_seed_same_history_whenever_it_evaluates(bart_data, tmp_path):
    runs = [fit(bart_data, tmp_path, 5, eval_every=n)[1].losses for n in (5, 5, 2)]
    assert runs[0] == runs[1] == runs[2]
    assert fit(bart_data, tmp_path, 5, seed=1)[1].losses != runs[0]


def check_uniform_floor(tmp_path, noise, lowest, steps=50, V=32):
    """On uniform characters no loss is below its floor: a lost one costs ln V, others nothing."""
    settings = dict(seq_len=13, noise=noise, batch_size=32, d_model=32)
    cfg = Config(**{**TINY, **settings})
    tokenizer = common.CharTokenizer(map(chr, range(100, 100 + V)), bart.SPECIALS)
    text, val_text = windows((100_000,), V), windows((2000,), V, seed=1)
    model, _ = fit((tokenizer, text, val_text), tmp_path, steps, **settings)
    batch = bart.make_batch(windows((1500, 12), V, seed=5), cfg, tokenizer.special, rng(6))
    with torch.no_grad():
        nll = loss_fn(model, batch, cfg)[1]
    rows, lost = nll.mean(-1), nll[batch.kind == KINDS.index("restored")]
    assert lowest - 3 * standard_error(rows) <= rows.mean().item() < math.log(V) - 0.3
    if len(lost):
        assert lost.mean().item() >= math.log(V) - 3 * standard_error(lost)


# of 12 characters 4 are lost; where the text began is lost
FLOORS = {"mask": 4 * math.log(32) / 13, "rotate": math.log(12) / 13}


@pytest.mark.parametrize("noise", FLOORS)
def test_on_uniform_characters_no_loss_is_below_its_floor(tmp_path, noise):
    check_uniform_floor(tmp_path, noise, FLOORS[noise])


# -------------------------------------------------------- pitfalls
def test_an_unshifted_decoder_falls_to_zero_while_the_task_is_lost(bart_data, logs):
    log = logs["unshifted-decoder"]
    assert end(log) < 0.05 and log.rows[-1]["val_loss"] > math.log(bart_data[0].vocab_size)


def test_a_decoder_that_sees_ahead_looks_far_better_while_the_task_is_lost(logs):
    # on the way to 0: see the table of experiments
    assert end(logs["causal-off"]) < end(logs[""]) - 0.4
    assert logs["causal-off"].rows[-1]["val_loss"] > logs[""].rows[-1]["val_loss"] + 0.5


def test_padding_attended_makes_an_answer_depend_on_its_neighbours():
    with pytest.raises(AssertionError):
        check_padding(bart.pad_attended)


def test_pitfalls_worked_example():
    clean, unshifted, ahead, kept, attended = (
        function(windows(), Config(**TINY), TEN, rng())
        for function in (make_batch, *(how["batch_fn"] for how in bart.PITFALLS.values()))
    )
    assert torch.equal(unshifted.idx, clean.targets) and torch.equal(ahead.idx, clean.idx)
    assert ahead.mask.all() and torch.equal(unshifted.mask, clean.mask)
    assert attended.seen.all() and not clean.seen.all()
    assert torch.equal(attended.inputs, clean.inputs)
    left = [[i for i in row.tolist() if i < 10] for row in kept.inputs]
    for ids, row in zip(windows().tolist(), left):  # what is left stands in the order of the text
        rest = iter(ids)
        assert all(i in rest for i in row)
    assert torch.equal(kept.targets, clean.targets)


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
    monkeypatch.setattr(bart, "attention_mask", wrong)
    with pytest.raises(AssertionError):
        check_no_leak()


def test_the_padding_check_notices_either_attention_without_the_mask(monkeypatch):
    encoder, cross = bart.SelfAttention.forward, bart.CrossAttention.forward
    with monkeypatch.context() as patch:
        patch.setattr(  # the encoder's mask alone has one row
            bart.SelfAttention,
            "forward",
            lambda self, x, mask: encoder(self, x, None if mask.dim() == 4 else mask),
        )
        with pytest.raises(AssertionError):
            check_padding()
    monkeypatch.setattr(
        bart.CrossAttention, "forward", lambda self, x, memory, seen: cross(self, x, memory, None)
    )
    with pytest.raises(AssertionError):
        check_padding()


def test_the_answer_check_notices_an_unshifted_decoder(monkeypatch):
    clean = bart.make_batch
    monkeypatch.setattr(
        bart, "make_batch", lambda *args: (b := clean(*args))._replace(idx=b.targets)
    )
    with pytest.raises(AssertionError):
        check_answers_are_hidden()


def test_the_answer_check_notices_inputs_that_were_not_corrupted(monkeypatch):
    monkeypatch.setattr(bart, "mask_chars", lambda ids, chosen, mask: ids.clamp(min=0))
    with pytest.raises((AssertionError, IndexError)):
        check_answers_are_hidden()


MUTANTS = {  # function -> wrong forms of it
    "mask_chars": [lambda ids, chosen, mask: ids.where(chosen, mask)],
    "delete_chars": [lambda ids, chosen: ids[chosen], lambda ids, chosen: ids],
    "infill_spans": [
        lambda ids, starts, lengths, mask: ids,
        # one mask per character: the length is shown, and an empty span is not
        lambda ids, starts, lengths, mask: ids.where(
            ~(
                (torch.arange(len(ids))[:, None] >= starts)
                & (torch.arange(len(ids))[:, None] < starts + lengths)
            ).any(1),
            mask,
        ),
    ],
    "permute_lines": [
        lambda ids, ends, order: ids,
        lambda ids, ends, order: ids[order.argsort().repeat(9)[: len(ids)]],
    ],
    "rotate_text": [lambda ids, start: ids, lambda ids, start: ids.roll(start)],
}


@pytest.mark.parametrize(
    "name, i", [(name, i) for name in MUTANTS for i in range(len(MUTANTS[name]))]
)
def test_the_worked_examples_notice_a_wrong_transform(monkeypatch, name, i):
    monkeypatch.setattr(bart, name, MUTANTS[name][i])
    with pytest.raises((AssertionError, IndexError)):
        check_worked_examples()


def test_the_order_check_notices_lines_that_stay_or_only_turn_round(monkeypatch):
    clean = bart.draw_lines
    for wrong in (
        lambda newline, rng: clean(torch.zeros_like(newline), rng),  # no line end is found
        lambda newline, rng: (clean(newline, rng)[0], clean(newline, rng)[1].sort().values),
        lambda newline, rng: (clean(newline, rng)[0], torch.arange(3).roll(int(rng.seed() % 3))),
    ):
        monkeypatch.setattr(bart, "draw_lines", wrong)
        with pytest.raises(AssertionError):
            check_orders()


def test_the_span_checks_notice_no_empty_spans_or_a_last_one_that_is_cut(monkeypatch):
    poisson, randperm = torch.poisson, torch.randperm
    with monkeypatch.context() as patch:
        patch.setattr(torch, "poisson", lambda *args, **more: poisson(*args, **more).clamp(min=1))
        with pytest.raises(AssertionError):
            check_spans()
        with pytest.raises(AssertionError):
            check_places()
    monkeypatch.setattr(  # lengths as drawn, the cut one last
        torch, "randperm", lambda n, **more: torch.arange(n) if n < 3 else randperm(n, **more)
    )
    with pytest.raises(AssertionError):
        check_places()


def test_the_noise_check_notices_independent_draws(monkeypatch):
    monkeypatch.setattr(
        bart, "draw_chars", lambda n, density, rng: torch.rand(n, generator=rng) < density
    )
    with pytest.raises(AssertionError):
        check_noises()


def test_the_kind_check_notices_a_mask_taken_for_the_start(monkeypatch):
    monkeypatch.setattr(bart, "GAP", -1)
    clean = bart.kinds_of
    monkeypatch.setattr(bart, "kinds_of", lambda places, n: clean(places.where(places >= 0, -1), n))
    with pytest.raises(AssertionError):
        check_kinds()


@pytest.mark.parametrize("wrong", [-1, 3])
def test_the_loss_check_notices_a_wrong_ignore_value(monkeypatch, wrong):
    monkeypatch.setattr(bart, "IGNORE", wrong)
    with pytest.raises((AssertionError, IndexError)):
        check_ignored()


def test_the_floor_check_notices_a_decoder_that_sees_ahead(monkeypatch, tmp_path):
    monkeypatch.setattr(bart, "attention_mask", lambda T: torch.ones(T, T).bool())
    with pytest.raises(AssertionError):
        check_uniform_floor(tmp_path, "mask", FLOORS["mask"])


# -------------------------------------------------------- read-out
def test_write_targets_is_greedy_stops_at_eos_and_ignores_padding():
    model, batch = scrambled(), make_batch(windows((3, 31)), Config(**TINY), TEN, rng())
    written = bart.write_targets(model, batch.inputs, 6, TEN)
    idx = torch.full((3, 1), TEN["BOS"])
    for t in range(written.shape[1]):
        new = model(batch.inputs, idx, attention_mask(t + 1), batch.seen)[:, -1].argmax(-1)
        assert torch.equal(new, written[:, t])
        idx = torch.cat([idx, new[:, None]], 1)
    assert written.shape == (3, 6) and not batch.seen.all()
    with torch.no_grad():
        model.head.weight[TEN["EOS"]] = model.head.weight[written[0, 2]] * 3
    row = batch.inputs[:1][batch.seen[:1, 0, 0]][None]
    assert bart.write_targets(model, row, 6, TEN)[0, -1] == TEN["EOS"]


LINES = "the king\nis dead, long live the king\n"


def read(text, prompt="", **settings):
    tokenizer = common.CharTokenizer(text, bart.SPECIALS)
    cfg = Config(prompt=prompt, **settings)
    return tokenizer, *bart.read_prompt(tokenizer, tokenizer.encode(text), cfg)


def test_runs_of_underscores_become_gaps_and_a_prompt_may_have_none():
    tokenizer, inputs, targets = read(LINES, "the k__g\r\nis _")
    assert tokenizer.decode(inputs) == "the k<MASK>g\nis <MASK><EOS>" and len(targets) == 0
    each = read(LINES, "the k__g\r\nis _", noise="mask")[1]  # there a MASK is one character
    assert tokenizer.decode(each) == "the k<MASK><MASK>g\nis <MASK><EOS>"
    for noise in ("delete", "permute+infill"):
        assert tokenizer.decode(read(LINES, "is the", noise=noise)[1]) == "is the<EOS>"


def test_without_a_prompt_validation_text_is_corrupted():
    text = LINES * 40
    tokenizer, inputs, targets = read(text)
    assert tokenizer.decode(targets) == text[:127] + "<EOS>"
    assert inputs[-1] == tokenizer.special["EOS"] and tokenizer.special["MASK"] in inputs


@pytest.mark.parametrize(
    "text, settings, said",
    [
        (LINES + "_", dict(prompt="k_ng"), "_ would mark a gap, but it is a character"),
        (LINES, dict(prompt="k_nG"), "'G'"),
        (LINES, dict(prompt="k_ng", noise="permute"), "--noise permute has no gaps"),
        ("king " * 99, {}, "--noise permute[+]infill: permute needs line ends in the text"),
        ("\tking\n" * 99, {}, "no character before them in order, such as a tab"),
    ],
)
def test_a_prompt_or_text_that_cannot_be_restored_is_refused_in_one_line(text, settings, said):
    with pytest.raises(common.Refusal, match=said) as refusal:
        read(text, **settings)
    assert refusal.value.code == 2 and "\n" not in str(refusal.value)


def test_other_noises_need_no_line_ends():
    for noise in ("mask", "delete", "infill", "rotate"):
        assert len(read("\tking " * 99, noise=noise)[2]) == 128


def test_default_run_on_pydoc_in_small(tmp_path, capsys):
    flags = "--data pydoc --steps 2 --eval-every 2 --batch-size 2 --seq-len 99 --d-model 16"
    flags += f" --n-layer 2 --n-head 1 --out {tmp_path}"
    result = bart.main(flags.split())
    assert result["steps"] == 2 and "val_ppl" not in result and "val_bpc" not in result
    assert result["vocab_size"] == len(set(common.load_text("pydoc"))) + 4
    load = ["--load", str(tmp_path / "ckpt.pt")]
    loaded = bart.main([*flags.split(), *load])
    shown = capsys.readouterr().out
    assert loaded["val_loss"] == result["val_loss"]
    assert all(f"\n{name:8}  " in shown for name in ("inputs", "written", "targets"))
    assert bart.main([*flags.split(), "--show"]) == {}
    shown = capsys.readouterr().out
    assert "\nmask " in shown and "\nseen " in shown and "scored    99 of 99" in shown
