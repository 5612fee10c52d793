"""Claims about continued_pretrain.py."""

import copy
import csv
import json
import math
from dataclasses import replace
from fractions import Fraction

import copies
import pytest
import torch
from helpers import entropies, scramble, standard_error

import clm
import common
import continued_pretrain as cpt
import mlm
from common import CharTokenizer, Refusal
from continued_pretrain import (
    IGNORE,
    Batch,
    Config,
    count_replay,
    loss_fn,
    mean_nll,
    token_nll,
)

TINY = dict(batch_size=16, seq_len=32, d_model=64, n_layer=2, n_head=1)
SMALL = "--steps 3 --eval-every 2 --batch-size 4 --seq-len 16".split()
SMALL += "--d-model 16 --n-layer 1 --n-head 1".split()
GENERAL = "the king is dead, long live the king\n" * 60
DOMAIN = "for i in range(10): x[i] = i * 7\n" * 60
RUNS = ("replay_0", "replay_0.1", "replay_0.3", "scratch")


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def windows(shape=(3, 9), V=10):
    return torch.randint(V, shape, generator=rng())


@pytest.fixture
def run(tmp_path):
    """main() on two small files in a second; further flags win."""
    for name, text in (("general", GENERAL), ("domain", DOMAIN)):
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    flags = ["--data", str(tmp_path / "general.txt"), "--domain", str(tmp_path / "domain.txt")]
    return lambda *more: cpt.main([*SMALL, *flags, "--out", str(tmp_path / "out"), *more])


@pytest.fixture
def quiet(monkeypatch):
    """No read-out, which takes longer than so small a training."""
    monkeypatch.setattr(cpt, "show_off", lambda *args: {})


@pytest.fixture(scope="module")
def base(data, tmp_path_factory):
    """A trained tiny base.  -> its Config, tokenizer of both, Texts, model, rarest id"""
    tokenizer, *general = data
    own, *domain, _ = common.load_data("stdlib", (), 65)
    wider, texts = cpt.join_texts(tokenizer, general, own, domain, "stdlib")
    cfg = Config(steps=100, eval_every=100, out=str(tmp_path_factory.mktemp("base")), **TINY)
    torch.manual_seed(0)
    model = cpt.build_model(cfg, tokenizer.vocab_size)
    about = {"corpus": "test", "corpus_sha256": "0" * 64}
    cpt.train(model, texts.general, texts.general_val[:3300], cfg, {}, log(cfg, model, about))
    rarest = torch.bincount(texts.general, minlength=tokenizer.vocab_size).argmin()
    return cfg, wider, texts, model, rarest


def log(cfg, model, about=None):
    about = about or {"corpus": "test", "corpus_sha256": "0" * 64}
    return common.Log(cfg, model, CharTokenizer("ab"), about)


@torch.no_grad()
def loss_on(model, text, old=None, rows=200, length=32):
    """Loss on the first windows of a text; old: over the logits of so many ids only."""
    batch = cpt.make_batch(
        text[: rows * (length + 1)].view(-1, length + 1), Config(seq_len=length), {}, rng()
    )
    logits = model(batch.idx, batch.mask)[..., :old]
    return mean_nll(token_nll(logits, batch.targets), batch.targets).item()


def go_on(base, share=0.0, steps=50, **settings):
    """Train the tiny base on the domain.  -> general and domain loss after, the log"""
    cfg, tokenizer, texts, model, rarest = base
    cfg = replace(cfg, **{"steps": steps, "eval_every": steps, **settings})
    torch.manual_seed(0)
    grown = cpt.grow(model, cfg, tokenizer.vocab_size, rarest)
    history = log(cfg, grown)
    val = cpt.join_rows((texts.general_val, texts.domain_val), cfg, 10)
    draw = cpt.mix(texts.general, share, cpt.draw_windows)
    cpt.train(grown, texts.domain, val, cfg, {}, history, draw=draw)
    return loss_on(grown, texts.general_val), loss_on(grown, texts.domain_val), history


# -------------------------------------------------------- transform
def check_shift():
    given = torch.tensor([[3, 8, 1, 9, 2], [~3, ~8, ~1, ~9, ~2]])
    batch = cpt.make_batch(given, Config(seq_len=4), {}, rng())
    assert batch.idx.tolist() == [[3, 8, 1, 9]] * 2 and batch.targets.tolist() == [[8, 1, 9, 2]] * 2
    assert batch.kind.tolist() == [[0] * 4, [1] * 4]
    assert cpt.KINDS == ("general", "domain") and (batch.targets != IGNORE).sum() == 8


def test_both_texts_are_read_alike_and_reported_apart_worked_example():
    check_shift()


def test_the_sign_of_a_character_comes_off_again_and_the_windows_stay_as_they_are():
    for seed in range(200):
        ids = torch.randint(100, (4, 9), generator=rng(seed))
        domain = torch.rand(4, 1, generator=rng(seed)) < 0.5
        given = ids.where(~domain, ~ids)
        before = given.clone()
        batch = cpt.make_batch(given, Config(seq_len=8), {}, rng())
        assert torch.equal(torch.cat([batch.idx, batch.targets[:, -1:]], 1), ids)
        assert torch.equal(batch.kind, domain.long().expand(4, 8)) and torch.equal(given, before)


def test_fractions_of_rows_are_carried_worked_example():
    assert [count_replay(step, 32, 0.05) for step in range(5)] == [1, 2, 1, 2, 2]
    assert {count_replay(step, 64, 0.25) for step in range(20)} == {16}
    assert sum(count_replay(step, 64, 0.25) for step in range(1000)) == 16_000


@pytest.mark.parametrize("share", [0, 0.01, 0.1, 0.3, 1 / 3, 0.7, 0.99, 1])
@pytest.mark.parametrize("batch_size", [1, 8, 24])
def test_the_share_is_exact_at_every_step(share, batch_size):
    total = 0
    for step in range(500):
        n = count_replay(step, batch_size, share)
        total += n
        assert 0 <= n <= batch_size
        # 45 * 8 * 0.7 comes out a little below 252, and must not be rounded down
        assert total == math.floor((step + 1) * batch_size * Fraction(share).limit_denominator(100))


def check_compute_equivalent():
    general, domain = torch.arange(1000), ~torch.arange(1000)
    counts = {}
    for share in (0, 0.1, 0.3, 1):
        draw = cpt.mix(general, share, cpt.draw_windows)
        rows = torch.cat([draw(domain, 24, 9, rng(step)) for step in range(50)])
        signs = (rows >= 0).all(1), (rows < 0).all(1)
        assert (signs[0] ^ signs[1]).all(), "a row of both texts"
        counts[share] = [int(sign.sum()) for sign in signs]
    assert counts == {0: [0, 1200], 0.1: [120, 1080], 0.3: [360, 840], 1: [1200, 0]}


def test_replay_takes_the_place_of_domain_rows_and_adds_none():
    check_compute_equivalent()


def test_without_replay_the_batches_are_those_of_the_domain_alone():
    text, draw = torch.arange(100), cpt.draw_windows
    assert torch.equal(cpt.mix(text, 0, draw)(~text, 5, 9, rng()), draw(~text, 5, 9, rng()))
    assert torch.equal(cpt.mix(text, 1, draw)(~text, 5, 9, rng()), draw(text, 5, 9, rng()))


def test_two_texts_are_joined_by_whole_windows_of_each():
    cfg = Config(seq_len=4)
    rows = cpt.join_rows((torch.arange(23), ~torch.arange(14)), cfg).view(-1, 5)
    assert rows[:, 0].tolist() == [0, 5, 10, 15, ~0, ~5]
    few = cpt.join_rows((torch.arange(1000), ~torch.arange(14)), cfg, 50).view(-1, 5)
    assert (few >= 0).all(1).sum() == 50 and few[-2:, 0].tolist() == [~0, ~5]


# -------------------------------------------------------- vocabulary
def check_old_ids_stay():
    base = CharTokenizer("banana")
    wider = cpt.widen(base, "cabz!")
    assert wider.ids == {"a": 0, "b": 1, "n": 2, "!": 3, "c": 4, "z": 5}
    assert base.vocab_size == 3


def test_no_id_of_the_base_moves_worked_example():
    check_old_ids_stay()


def test_the_texts_come_back_from_their_ids(base, data, corpus):
    _, tokenizer, texts, model, _ = base
    assert torch.equal(texts.general, data[1]) and torch.equal(texts.general_val, data[2])
    general = tokenizer.decode(torch.cat(texts[:2]))
    assert general == common.load_text(corpus)
    # training and validation are two ends of a text: together they are all of it, once
    assert tokenizer.decode(~torch.cat(texts[2:])) == common.load_text("stdlib")
    assert tokenizer.vocab_size > len(model.head.weight)


def check_growth(base):
    """Over the old ids the loss is the base's; over all it is hardly more."""
    cfg, tokenizer, texts, model, rarest = base
    grown = cpt.grow(model, cfg, tokenizer.vocab_size, rarest)
    V = len(model.head.weight)
    for new, old in zip(grown.parameters(), model.parameters()):
        assert torch.equal(new[: len(old)], old)
    before, old = loss_on(model, texts.general_val), loss_on(grown, texts.general_val, V)
    assert old == pytest.approx(before, abs=1e-6)
    assert old < loss_on(grown, texts.general_val) < old + 0.01
    assert (grown.head.weight[V:] == model.head.weight[rarest]).all()
    return grown


def test_growing_costs_less_than_a_hundredth_of_a_nat(base):
    grown = check_growth(base)
    assert all(p.requires_grad and p.grad_fn is None for p in grown.parameters())


def test_head_rows_left_at_zero_would_cost_more(base, monkeypatch):
    clean = cpt.grow

    def zero(model, cfg, vocab_size, rarest):
        grown = clean(model, cfg, vocab_size, rarest)
        with torch.no_grad():
            grown.head.weight[len(model.head.weight) :] = 0
        return grown

    monkeypatch.setattr(cpt, "grow", zero)
    with pytest.raises(AssertionError):
        check_growth(base)


def test_growing_leaves_the_base_as_it_is(base):
    model = base[3]
    before = copy.deepcopy(model.state_dict())
    go_on(base, steps=2)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


# -------------------------------------------------------- mask
def check_triangle():
    assert cpt.attention_mask(5).int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1],
    ]


def test_attention_mask_is_the_lower_triangle():
    check_triangle()


def check_no_leak():
    """A later character moves no earlier logit, also not in a model that has grown."""
    T, cfg = 8, Config(**TINY)
    model = cpt.grow(scramble(cpt.build_model(cfg, 10)), cfg, 14, 3)
    given = windows((1, T + 1), V=14)
    batch = cpt.make_batch(~given, cfg, {}, rng())
    before = model(batch.idx, batch.mask)
    for j in range(T):
        changed = batch.idx.clone()
        changed[0, j] = (changed[0, j] + 1) % 14
        moved = (model(changed, batch.mask) - before).abs().amax(-1)[0]  # (T,)
        assert (moved[:j] == 0).all(), f"character {j} moved an earlier logit"
        assert (moved[j:] > 1e-4).all(), f"character {j} did not reach a later logit"


def test_a_later_character_moves_no_earlier_logit():
    check_no_leak()


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
    assert torch.equal(cpt.token_nll(logits, targets), cpt.token_nll(other, targets))


def test_logits_at_unscored_positions_change_nothing():
    check_ignored()


def test_halves_with_3_and_40_targets_weigh_as_43():
    model = scramble(cpt.build_model(Config(**TINY), 10))
    batch = cpt.make_batch(windows((2, 41)), Config(), {}, rng())
    targets = batch.targets.clone()
    targets[0, 3:] = IGNORE
    batch = batch._replace(targets=targets)
    halves = [
        loss_fn(model, Batch(*(part[i : i + 1] for part in batch[:3]), batch.mask), Config())[0]
        for i in (0, 1)
    ]
    weighted = (3 * halves[0] + 40 * halves[1]) / 43
    assert loss_fn(model, batch, Config())[0].item() == pytest.approx(weighted.item(), abs=1e-5)


def test_each_text_has_its_own_loss_whatever_the_other_is():
    cfg = Config(**TINY)
    model = scramble(cpt.build_model(cfg, 10))
    general, domain = windows((66 * 33,)), ~torch.randint(10, (9 * 33,), generator=rng(3))
    both = cpt.evaluate(model, cpt.join_rows((general, domain), cfg), cfg, {})
    alone = [cpt.evaluate(model, text, cfg, {}) for text in (general, domain)]
    assert both["val_loss_general"] == pytest.approx(alone[0]["val_loss"], abs=1e-7)
    assert both["val_loss_domain"] == pytest.approx(alone[1]["val_loss"], abs=1e-7)
    assert both["val_loss"] == pytest.approx(
        (66 * alone[0]["val_loss"] + 9 * alone[1]["val_loss"]) / 75, abs=1e-6
    )
    assert "val_ppl" not in both


# -------------------------------------------------------- learning
@pytest.fixture(scope="module")
def after(base):
    """General and domain loss by share of replay."""
    return {share: go_on(base, share)[:2] for share in (0, 0.3)}


def test_the_base_has_learned_its_text(base, data):
    unigram, bigram = entropies(torch.cat(data[1:]))
    assert loss_on(base[3], base[2].general_val) < bigram


def test_replay_lessens_forgetting_and_hardly_touches_adaptation(base, after):
    cfg, tokenizer, texts, model, rarest = base
    grown = cpt.grow(model, cfg, tokenizer.vocab_size, rarest)
    general, domain = loss_on(grown, texts.general_val), loss_on(grown, texts.domain_val)
    forgetting = {share: losses[0] - general for share, losses in after.items()}
    adaptation = {share: domain - losses[1] for share, losses in after.items()}
    assert forgetting[0] > forgetting[0.3] + 0.1 and forgetting[0] > 0.2
    assert adaptation[0] > 0.5 and abs(adaptation[0] - adaptation[0.3]) < 0.2 * adaptation[0]


def test_going_on_beats_starting_anew_at_equal_steps(base, after):
    cfg, tokenizer, texts, *_ = base
    cfg = replace(cfg, steps=50, eval_every=50)
    torch.manual_seed(0)
    model = cpt.build_model(cfg, tokenizer.vocab_size)
    cpt.train(model, texts.domain, texts.domain_val[:3300], cfg, {}, log(cfg, model))
    assert after[0][1] < loss_on(model, texts.domain_val) - 0.02


def test_same_seed_same_history_whenever_it_evaluates(base):
    runs = [go_on(base, 0.3, 8, eval_every=n)[2].losses for n in (8, 8, 3)]
    assert runs[0] == runs[1] == runs[2]
    assert go_on(base, 0.3, 8, seed=1)[2].losses != runs[0]


def test_on_uniform_characters_the_loss_never_goes_below_ln_V(base):
    V = base[1].vocab_size

    def draw(text, batch_size, length, rng):
        return ~torch.randint(V, (batch_size, length), generator=rng)

    cfg, tokenizer, texts, model, rarest = base
    cfg = replace(cfg, steps=40, eval_every=40)
    grown = cpt.grow(model, cfg, V, rarest)
    cpt.train(grown, texts.domain, texts.domain_val[:3300], cfg, {}, log(cfg, grown), draw=draw)
    batch = cpt.make_batch(draw(None, 300, 33, rng(5)), cfg, {}, rng())
    nll = loss_fn(grown, batch, cfg)[1].detach()
    assert math.log(V) - 3 * standard_error(nll) <= nll.mean().item() <= math.log(V) + 0.1


# -------------------------------------------------------- whole runs
def test_a_run_leaves_a_folder_for_each_phase_and_one_table(run, tmp_path, capsys):
    result = run()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        ["base", *RUNS, "result.json"]
    )
    for name in ("base", *RUNS):
        folder = tmp_path / "out" / name
        assert sorted(path.name for path in folder.iterdir()) == [
            "ckpt.pt",
            "log.csv",
            "result.json",
        ]
        assert json.loads((folder / "result.json").read_text("utf-8")) == result["runs"][name]
    assert json.loads((tmp_path / "out" / "result.json").read_text("utf-8")) == result
    assert result["base_loss"] == result["runs"]["base"]["val_loss"]
    assert [result["runs"][name]["steps"] for name in ("base", *RUNS)] == [9, 3, 3, 3, 3]
    for name in RUNS:
        rows = list(csv.DictReader(open(tmp_path / "out" / name / "log.csv", encoding="utf-8")))
        assert [row["step"] for row in rows] == ["0", "2", "3"]
        assert all(float(row[f"val_loss_{kind}"]) > 0 for row in rows for kind in cpt.KINDS)
        general, domain = (result["runs"][name][f"val_loss_{kind}"] for kind in cpt.KINDS)
        assert result[f"forgetting_{name}"] == general - result["base_loss"]
        assert result[f"adaptation_{name}"] == result["domain_before"] - domain
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[-5:]] == ["before", *RUNS]
    assert max(len(line) for line in lines if line.startswith("   step")) <= 82
    assert len({result["runs"][name]["step0_loss"] for name in RUNS[:3]}) == 1


def test_forgetting_and_adaptation_worked_example(tmp_path):
    before, after = (
        {"val_loss_general": general, "val_loss_domain": domain}
        for general, domain in ((1.5, 2.4), (1.8, 1.9))
    )
    runs = {"base": {"val_loss": 1.5}, "before": before, "replay_0": after}
    result = cpt.finish(runs, Config(out=str(tmp_path)), {})
    assert result["forgetting_replay_0"] == pytest.approx(0.3)
    assert result["adaptation_replay_0"] == pytest.approx(0.5)
    assert result["forgetting_before"] == result["adaptation_before"] == 0


def watch_train(monkeypatch, seen):
    """Every training is of one step, and tells first what it was asked to do."""
    clean = cpt.train

    def watched(model, text, val_text, cfg, special, log, draw):
        seen.append((cfg, cpt.lr_factor(0, 100)))
        clean(model, text, val_text, replace(cfg, steps=1), special, log, draw=draw)

    monkeypatch.setattr(cpt, "train", watched)


def test_the_rate_warms_up_again_to_its_share_of_the_bases_peak(run, quiet, monkeypatch):
    watch_train(monkeypatch, seen := [])
    run("--replay", "0,0.1", "--steps", "100", "--lr-scale", "0.3")
    assert [(cfg.steps, cfg.lr) for cfg, _ in seen] == [
        (300, 0.05),
        (100, pytest.approx(0.015)),
        (100, pytest.approx(0.015)),
        (100, 0.05),
    ]
    factors = [cpt.lr_factor(step, 100) for step in range(100)]
    assert factors[0] == 0.5 and factors[-1] == 0.01
    assert factors[1:] == sorted(factors[1:], reverse=True)


def test_the_base_is_clm_bit_for_bit_and_a_checkpoint_of_clm_takes_its_place(
    run, tmp_path, quiet, monkeypatch
):
    whole = run("--replay", "0.3")
    clm_out = tmp_path / "clm"
    flags = ["--data", str(tmp_path / "general.txt"), "--out", str(clm_out)]
    made = clm.main([*SMALL, *flags, "--steps", "9"])
    ours, theirs = (
        torch.load(folder / "ckpt.pt", weights_only=True)["model"]
        for folder in (tmp_path / "out" / "base", clm_out)
    )
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
    for path in (clm_out / "ckpt.pt", tmp_path / "out" / "base" / "ckpt.pt"):
        loaded = run("--replay", "0.3", "--load", str(path), "--out", str(tmp_path / "loaded"))
        assert loaded["base_loss"] == made["val_loss"] == whole["base_loss"]
        # nothing but the weights passes from the base to what follows
        for name in ("replay_0.3", "scratch", "before"):
            for measure in ("general", "domain"):
                assert loaded[f"{measure}_{name}"] == whole[f"{measure}_{name}"]
    assert not (tmp_path / "loaded" / "base").exists()


def test_a_checkpoint_that_is_no_base_is_refused(run, tmp_path, quiet):
    run("--replay", "0")
    good, bad = tmp_path / "out" / "base" / "ckpt.pt", tmp_path / "bad.pt"

    def refused(said, *flags):
        with pytest.raises(Refusal, match=said) as refusal:
            run("--load", *flags)
        assert "\n" not in str(refusal.value)

    refused("No such file", str(tmp_path / "none.pt"))
    bad.write_bytes(good.read_bytes()[:1000])
    refused("not a checkpoint", str(bad))
    content = torch.load(good, weights_only=True)
    torch.save({"script": "clm"}, bad)
    refused("not a checkpoint", str(bad))
    torch.save(content | {"script": mlm.__name__}, bad)
    refused("written by mlm.py, this is continued_pretrain.py", str(bad))
    refused("add --d-model 16 --n-layer 1", str(good), "--d-model", "32", "--n-layer", "2")
    refused("add --lr 0.05", str(good), "--lr", "0.01")
    refused("its characters are those of", str(tmp_path / "out" / "replay_0" / "ckpt.pt"))
    refused("its characters are those of", str(good), "--data", "pydoc")


def test_the_text_of_the_base_is_refused_as_domain(run, tmp_path, monkeypatch):
    monkeypatch.setattr(cpt, "train", lambda *args: pytest.fail("trained first"))
    again = tmp_path / "again.txt"
    for text in (GENERAL, "more\n" + GENERAL, GENERAL[:1000]):
        again.write_text(text, encoding="utf-8")
        with pytest.raises(Refusal, match="again.txt: the same text as --data, or a part of it"):
            run("--domain", str(again))
    with pytest.raises(Refusal, match="cannot be read"):
        run("--domain", str(tmp_path / "none"))
    with pytest.raises(Refusal, match="not among the 16 characters.*'Z'"):
        run("--prompt", "Z")


@pytest.mark.parametrize(
    "flags, said",
    [
        ("--replay 1.5", "--replay 1.5: must be shares between 0 and 1, as in 0,0.1,0.3"),
        ("--replay=-0.1", "must be shares"),
        ("--replay 0,x", "--replay 0,x: must be shares"),
        ("--replay 0.1,", "must be shares"),
        ("--replay nan", "must be shares"),
        ("--lr-scale 0", "--lr-scale 0.0: must be above 0"),
        ("--lr-scale -1", "must be above 0"),
        ("--lr-scale nan", "must be above 0"),
        ("--lr-scale inf", "must be a finite number"),
        ("--steps 0", "must be above 0"),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_code_2(run, flags, said):
    with pytest.raises(Refusal) as refusal:
        run(*flags.split())
    assert said in str(refusal.value) and refusal.value.code == 2 and "\n" not in str(refusal.value)


def test_ctrl_c_in_any_phase_ends_all_training_and_keeps_what_there_is(
    run, tmp_path, quiet, monkeypatch
):
    clean, calls = cpt.train, []

    def stopped(*args, **hooks):
        calls.append(1)
        clean(*args, **hooks)
        if len(calls) == stop:
            raise KeyboardInterrupt

    monkeypatch.setattr(cpt, "train", stopped)
    for stop, names in ((1, ["base"]), (3, ["base", "before", "replay_0", "replay_0.1"])):
        calls.clear()
        out = tmp_path / f"stop-{stop}"
        result = run("--out", str(out))
        assert result["interrupted"] and len(calls) == stop and list(result["runs"]) == names
        assert (out / "result.json").exists()


def test_show_trains_nothing_and_shows_a_row_of_each_text(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cpt, "train", lambda *args: pytest.fail("trained"))
    assert run("--show") == {} and not (tmp_path / "out").exists()
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("idx")]
    assert len(shown) == 2 and "king" in shown[0] and "i" in shown[1] and "·" not in shown[1]


# -------------------------------------------------------- pitfalls
def test_without_warm_up_the_first_step_has_the_full_rate():
    assert cpt.lr_factor(0, 100) == 0.5 and cpt.no_warmup(0, 100) == 1
    assert all(cpt.lr_factor(step, 100) == cpt.no_warmup(step, 100) for step in range(1, 100))


def test_a_pitfall_takes_its_place_after_the_base_and_gives_it_back(run, quiet, monkeypatch):
    watch_train(monkeypatch, seen := [])
    functions, results = (cpt.lr_factor, cpt.widen), {}
    for pitfall in ("", *cpt.PITFALLS):
        results[pitfall] = run("--replay", "0", *(("--pitfall", pitfall) if pitfall else ()))
        assert (cpt.lr_factor, cpt.widen) == functions
    assert [first for _, first in seen] == [0.5] * 3 + [0.5, 1, 1] + [0.5] * 3
    clean, _, rebuilt = results.values()
    assert rebuilt["base_loss"] == clean["base_loss"]
    assert rebuilt["general_before"] > clean["general_before"]


def test_rebuilt_ids_move_and_the_old_loss_jumps_above_unigram(base, data):
    cfg, _, texts, model, rarest = base
    tokenizer, *general = data
    own, *domain, _ = common.load_data("stdlib", (), 65)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpt, "widen", cpt.rebuilt_vocab)
        rebuilt, broken = cpt.join_texts(tokenizer, general, own, domain, "stdlib")
    assert rebuilt.decode(broken.general[:99]) == tokenizer.decode(texts.general[:99])
    unigram, _ = entropies(torch.cat(general))
    losses = [
        loss_on(cpt.grow(model, cfg, rebuilt.vocab_size, rarest), text)
        for text in (texts.general_val, broken.general_val)
    ]
    assert losses[0] < unigram - 0.8 and losses[1] > unigram + 0.5


# -------------------------------------------------------- mutations: do checks notice?
@pytest.mark.parametrize(
    "wrong",
    [lambda T: torch.ones(T, T).bool(), lambda T: torch.ones(T, T).bool().tril(1)],
)
def test_the_leak_check_notices_a_mask_that_shows_the_future(monkeypatch, wrong):
    monkeypatch.setattr(cpt, "attention_mask", wrong)
    for check in (check_no_leak, check_triangle):
        with pytest.raises(AssertionError):
            check()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda batch: batch._replace(targets=batch.idx),
        lambda batch: batch._replace(kind=1 - batch.kind),
        lambda batch: batch._replace(idx=batch.idx.flip(1)),
    ],
)
def test_the_worked_example_notices_a_wrong_shift_and_swapped_kinds(monkeypatch, wrong):
    clean = cpt.make_batch
    monkeypatch.setattr(cpt, "make_batch", lambda *args: wrong(clean(*args)))
    with pytest.raises(AssertionError):
        check_shift()


def test_the_loss_check_notices_a_wrong_ignore_value(monkeypatch):
    monkeypatch.setattr(cpt, "IGNORE", 3)
    with pytest.raises((AssertionError, IndexError)):
        check_ignored()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda step, batch_size, share: round(batch_size * share),
        lambda step, batch_size, share: math.floor(batch_size * share),
        lambda step, batch_size, share: 0,
    ],
)
def test_the_row_counts_notice_fractions_that_are_not_carried(monkeypatch, wrong):
    monkeypatch.setattr(cpt, "count_replay", wrong)
    with pytest.raises(AssertionError):
        check_compute_equivalent()


def test_the_row_counts_notice_replay_on_top_of_the_domain(monkeypatch):
    def on_top(general, share, draw_windows):
        def draw(text, batch_size, length, rng):
            extra = draw_windows(general, round(batch_size * share), length, rng)
            return torch.cat([extra, draw_windows(text, batch_size, length, rng)])

        return draw

    monkeypatch.setattr(cpt, "mix", on_top)
    with pytest.raises(AssertionError):
        check_compute_equivalent()


def test_the_id_check_notices_a_rebuilt_vocabulary(monkeypatch):
    monkeypatch.setattr(cpt, "widen", cpt.rebuilt_vocab)
    with pytest.raises(AssertionError):
        check_old_ids_stay()


def test_of_the_shared_text_only_main_differs_and_only_here():
    scripts = copies.read(copies.HERE)
    del scripts["continued_pretrain"]
    differs = {name: why for name, why in copies.DIFFERS.items() if name != "main"}
    complaints, _ = copies.differences(scripts, differs)
    assert not any(": main" in complaint for complaint in complaints)
