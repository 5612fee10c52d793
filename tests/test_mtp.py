"""Claims about mtp.py."""

import inspect
import json
import math
import textwrap

import pytest
import torch
from helpers import entropies, scramble, standard_error

import clm
import common
import mtp
from mtp import Batch, Config, attention_mask, loss_fn, make_batch, token_nll

TINY = dict(batch_size=16, seq_len=32, d_model=48, n_layer=2, n_head=1)
SMALL = "--steps 3 --eval-every 2 --batch-size 2 --seq-len 16".split()
SMALL += "--d-model 16 --n-layer 1 --n-head 1".split()


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def windows(shape=(3, 9), V=10):
    return torch.randint(V, shape, generator=rng())


def config(**settings):
    return Config(**{**TINY, **settings})


def fit(data, out, steps, pitfall="", script=mtp, **settings):
    """Train a tiny model.  -> model, log"""
    tokenizer, train_text, val_text = data
    settings = {**TINY, "steps": steps, "eval_every": steps, "out": str(out), **settings}
    cfg = script.Config(**settings)
    torch.manual_seed(cfg.seed)
    model = script.build_model(cfg, tokenizer.vocab_size)
    log = common.Log(cfg, model, tokenizer, {"corpus": "test", "corpus_sha256": "0" * 64})
    how = script.PITFALLS.get(pitfall, {})
    script.train(model, train_text, val_text, cfg, {}, log, **how)
    return model, log


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """model of two modules and its log; not to be changed"""
    return fit(data, tmp_path_factory.mktemp("run"), 120, depth=2, eval_every=60)


# -------------------------------------------------------- transform
def check_targets():
    batch = mtp.make_batch(
        torch.tensor([[1, 2, 3, 4, 5, 6]]), Config(depth=2, seq_len=5), {}, rng()
    )
    assert batch.idx.tolist() == [[1, 2, 3, 4, 5]]
    assert batch.targets.tolist() == [[2, 3, 4, 5, 6] + [3, 4, 5, 6] + [4, 5, 6]]
    assert batch.kind.tolist() == [[0] * 5 + [1] * 4 + [2] * 3]


def test_each_depth_predicts_one_character_further_worked_example():
    check_targets()


def test_nothing_wraps_at_the_end_of_the_window():
    T, D = 8, 3
    batch = make_batch(torch.arange(T + 1)[None], Config(depth=D, seq_len=T), {}, rng())
    for k in range(1 + D):
        scored = batch.targets[batch.kind == k]
        assert scored.tolist() == list(range(k + 1, T + 1))  # T - k of them, position 0 first


def test_main_rows_are_those_of_clm_and_the_windows_stay_as_they_are():
    given = windows()
    before, theirs = given.clone(), clm.make_batch(given, clm.Config(), {}, rng())
    for function in (make_batch, mtp.offset):
        batch = function(given, Config(depth=3, seq_len=8), {}, rng())
        assert torch.equal(given, before), function
        assert torch.equal(batch.idx, theirs.idx) and torch.equal(batch.mask, theirs.mask)
        assert torch.equal(batch.targets[:, :8], theirs.targets)
    assert mtp.raw_len(Config()) == clm.raw_len(clm.Config())


def test_the_deepest_depth_may_have_one_target_but_not_none():
    cfg = config(depth=3, seq_len=4)
    metrics = mtp.evaluate(mtp.build_model(cfg, 10), windows((50,)), cfg, {})
    assert metrics["val_loss_depth3"] == pytest.approx(math.log(10), abs=1e-6)
    with pytest.raises(common.Refusal, match="--depth 3 --seq-len 3"):
        config(depth=3, seq_len=3)


@pytest.mark.parametrize(
    "flags, says",
    [
        ("--depth 0", "--depth 0 --seq-len 128"),
        ("--depth 4", "--depth 4 --seq-len 128"),
        ("--depth 1 --seq-len 1", "--depth 1 --seq-len 1"),
        ("--depth 1 --seq-len 0", "--seq-len 0: must be above 0"),
        ("--mtp-weight -0.1", "--mtp-weight -0.1: must be 0 or above"),
        ("--mtp-weight nan", "--mtp-weight nan"),
        ("--mtp-weight inf", "--mtp-weight inf: must be a finite number"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(flags, says):
    with pytest.raises(common.Refusal) as refusal:
        mtp.main(flags.split())
    assert says in str(refusal.value) and "\n" not in str(refusal.value)
    assert refusal.value.code == 2


# -------------------------------------------------------- mask
def check_reach(depth=3, T=8):
    """Depth k at position i: characters up to i + k move its logits, later ones never do."""
    model = scramble(mtp.build_model(config(depth=depth), 10))
    idx, mask = windows((1, T)), mtp.attention_mask(T)
    before = model.depths(idx, mask)
    assert [part.shape[1] for part in before] == [T - k for k in range(1 + depth)]
    for j in range(T):
        changed = idx.clone()
        changed[0, j] = (idx[0, j] + 1) % 10
        for k, part in enumerate(model.depths(changed, mask)):
            moved = (part - before[k]).abs().amax(-1)[0]  # (T - k,)
            first = max(0, j - k)
            assert (moved[:first] == 0).all(), f"character {j} moved an earlier logit of depth {k}"
            assert (moved[first:] > 1e-4).all(), f"character {j} did not reach depth {k}"


def test_depth_k_sees_the_characters_up_to_i_plus_k_and_nothing_later():
    check_reach()


def test_the_gradient_to_later_embeddings_is_exactly_zero():
    T = 8
    model = scramble(mtp.build_model(config(depth=2), 10))
    for k in range(3):
        for i in range(T - k):
            # every id occurs once, so that row j of the gradient belongs to position j
            logits = model.depths(torch.arange(T)[None], attention_mask(T))[k]
            (grad,) = torch.autograd.grad(logits[0, i].sum(), model.emb.weight)
            assert (grad[i + k + 1 :] == 0).all()
            assert (grad[: i + k + 1].abs().amax(-1) > 0).all()


def test_attention_mask_is_the_lower_triangle():
    assert attention_mask(4).int().tolist() == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [1, 1, 1, 0],
        [1, 1, 1, 1],
    ]


# -------------------------------------------------------- model
def test_equations_21_to_23_by_hand():
    T, cfg = 6, config(depth=2)
    model = scramble(mtp.build_model(cfg, 10))
    idx = windows((2, T))
    h = model.hidden(idx, attention_mask(T))
    for k, module in enumerate(model.mtp, 1):
        ahead = model.emb.weight[idx[:, k:]]
        unit = [x / x.square().mean(-1, keepdim=True).sqrt() for x in (h[:, : T - k], ahead)]
        h = module.block(torch.cat(unit, -1) @ module.merge.weight.T, attention_mask(T - k))
        h = h / h.square().mean(-1, keepdim=True).sqrt()
        got = model.depths(idx, attention_mask(T))[k]
        assert torch.allclose(got, h @ model.head.weight.T, atol=1e-4)


def test_embedding_and_head_are_shared_and_each_depth_has_its_own_module():
    model, theirs = mtp.build_model(config(depth=2), 10), clm.build_model(clm.Config(**TINY), 10)
    own = {name for name, _ in model.named_parameters()} - {
        name for name, _ in theirs.named_parameters()
    }
    D = TINY["d_model"]
    assert all(name.startswith(("mtp.0.", "mtp.1.")) for name in own) and len(own) == 2 * 5
    assert sum(p.numel() for p in model.mtp.parameters()) == 2 * (2 + 12) * D * D
    assert not any(10 in p.shape for p in model.mtp.parameters())  # nothing as wide as V


def check_gradients():
    """The loss of a depth alone teaches the embedding, the head and every block."""
    model = scramble(mtp.build_model(config(), 10))
    batch = make_batch(windows((3, 33)), config(), {}, rng())
    depth1 = token_nll(model.depths(batch.idx, batch.mask)[1], batch.targets[:, 32:]).mean()
    # to the blocks, the head and, without the characters that the module reads, the embedding
    for name, grad in zip(
        (name for name, _ in model.named_parameters()),
        torch.autograd.grad(depth1, list(model.parameters()), allow_unused=True),
    ):
        assert grad is not None and grad.abs().max() > 0, name


def test_the_depths_teach_the_main_model():
    check_gradients()


def test_the_main_model_stays_the_same_without_its_modules():
    model, theirs = scramble(mtp.build_model(config(), 10)), clm.build_model(Config(**TINY), 10)
    state = {name: p for name, p in model.state_dict().items() if not name.startswith("mtp.")}
    theirs.load_state_dict(state)
    idx, mask = windows((2, 32)), attention_mask(32)
    for logits in (model(idx, mask), model.depths(idx, mask)[0]):
        assert torch.equal(logits, theirs(idx, mask))


def test_muon_gets_all_matrices_of_blocks_and_modules_and_nothing_else():
    model = mtp.build_model(config(depth=2), 10)
    muon, adamw = mtp.make_optimizers(model, config())
    matrices = [*model.blocks.parameters(), *model.mtp.parameters()]
    assert {id(p) for p in muon.param_groups[0]["params"]} == {id(p) for p in matrices}
    rest = {id(model.emb.weight), id(model.head.weight)}
    assert {id(p) for p in adamw.param_groups[0]["params"]} == rest


# -------------------------------------------------------- loss
class Answers(torch.nn.Module):
    """Every target costs as many nats as its depth was given."""

    def __init__(self, nats, V=10):
        super().__init__()
        self.nats, self.V = nats, V

    def depths(self, idx, attn_mask):
        parts = []
        for k, nats in enumerate(self.nats):
            n, p = idx.shape[1] - k, math.exp(-nats)
            rest = math.log((1 - p) / (self.V - 1))
            parts.append(torch.full((len(idx), n, self.V), rest))
            parts[-1][..., 3] = -nats  # the text repeats 3
        return parts


def check_weights():
    cfg = Config(depth=2, mtp_weight=0.3, seq_len=5)
    batch = make_batch(torch.full((2, 6), 3), cfg, {}, rng())
    loss, nll = mtp.loss_fn(Answers([1.5, 2.0, 3.0]), batch, cfg)
    assert loss.item() == pytest.approx(1.5 + 0.3 / 2 * (2 + 3), abs=1e-5)  # 2.25
    assert nll.shape == batch.targets.shape == (2, 5 + 4 + 3)


def test_the_depths_are_averaged_then_weighted_worked_example():
    check_weights()


def test_a_depth_is_divided_by_its_targets_where_the_paper_divides_by_the_window():
    cfg = Config(depth=1, mtp_weight=1.0, seq_len=5)
    batch = make_batch(torch.full((1, 6), 3), cfg, {}, rng())
    loss, nll = loss_fn(Answers([1.0, 2.0]), batch, cfg)
    depth1 = nll[batch.kind == 1]
    assert loss.item() == pytest.approx(1 + depth1.sum().item() / 4, abs=1e-5)  # 2.0, not 1.6
    assert depth1.sum().item() / 5 == pytest.approx(1.6, abs=1e-5)


def test_two_halves_weigh_as_one_batch():
    cfg = config(depth=2)
    model = scramble(mtp.build_model(cfg, 10))
    batch = make_batch(windows((5, 33)), cfg, {}, rng())
    loss, _ = loss_fn(model, batch, cfg)
    parts = [
        loss_fn(model, Batch(*(part[rows] for part in batch[:3]), batch.mask), cfg)[0]
        for rows in (slice(0, 2), slice(2, 5))
    ]
    assert loss.item() == pytest.approx((2 * parts[0] + 3 * parts[1]).item() / 5, abs=1e-5)


def test_evaluate_reports_each_depth_by_itself_over_several_batches():
    cfg = config(depth=2, seq_len=8)
    model = scramble(mtp.build_model(cfg, 10))
    text = windows((70 * 9,))
    rows = text.view(-1, 9)
    metrics = mtp.evaluate(model, text, cfg, {})
    for k, part in enumerate(model.depths(rows[:, :-1], attention_mask(8))):
        nll = token_nll(part, rows[:, k + 1 :]).double()
        assert metrics[f"val_loss_{mtp.KINDS[k]}"] == pytest.approx(nll.mean().item(), abs=1e-6)
    assert "val_loss_depth3" not in metrics
    assert metrics["val_ppl"] == pytest.approx(math.exp(metrics["val_loss_main"]))
    theirs = clm.build_model(cfg, 10)
    theirs.load_state_dict(model.state_dict(), strict=False)
    clean = clm.evaluate(theirs, text, clm.Config(**{**TINY, "seq_len": 8}), {})
    assert metrics["val_loss_main"] == clean["val_loss"]


# -------------------------------------------------------- reduction
def check_reduction(data, out):
    steps = 25  # the first 20 have no usual norm: none of theirs is skipped
    model, log = fit(data, out, steps, mtp_weight=0.0)
    theirs, their_log = fit(data, out, steps, script=clm)
    state = model.state_dict()
    for name, weights in theirs.state_dict().items():
        assert torch.equal(state[name], weights), name
    assert log.norms == their_log.norms
    assert log.rows[-1]["val_loss_main"] == their_log.rows[-1]["val_loss"]
    return state


def test_weight_0_trains_clm_bit_for_bit_and_leaves_the_modules_alone(data, tmp_path):
    state = check_reduction(data, tmp_path)
    torch.manual_seed(0)
    fresh = mtp.build_model(config(), data[0].vocab_size).state_dict()
    for name in (name for name in state if name.startswith("mtp.")):
        assert torch.equal(state[name], fresh[name]), name


# -------------------------------------------------------- learning
def test_step_0_costs_ln_V_at_every_depth(data):
    tokenizer, _, val_text = data
    cfg = config(depth=3)
    metrics = mtp.evaluate(mtp.build_model(cfg, tokenizer.vocab_size), val_text[:33000], cfg, {})
    for kind in mtp.KINDS:
        assert metrics[f"val_loss_{kind}"] == pytest.approx(
            math.log(tokenizer.vocab_size), abs=5e-5
        )


def test_main_and_depths_beat_the_bigram_entropy(data, trained):
    unigram, bigram = entropies(torch.cat(data[1:]))
    rows = trained[1].rows
    for kind in ("main", "depth1", "depth2"):
        assert rows[1][f"val_loss_{kind}"] < unigram
        assert rows[-1][f"val_loss_{kind}"] < bigram


def test_depths_cost_little_more_than_main_since_they_see_every_earlier_character(trained):
    row = trained[1].rows[-1]
    for k in (1, 2):
        assert row[f"val_loss_depth{k}"] < row["val_loss_main"] + 0.1


def test_same_seed_same_history_whenever_it_evaluates(data, tmp_path):
    runs = [fit(data, tmp_path, 12, eval_every=n)[1].losses for n in (12, 12, 5)]
    assert runs[0] == runs[1] == runs[2]
    assert fit(data, tmp_path, 12, seed=1)[1].losses != runs[0]


def test_on_uniform_characters_no_depth_goes_below_ln_V(tmp_path):
    V, text = 10, windows((60_000,))
    texts = common.CharTokenizer("0123456789"), text, windows((4000,))
    settings = dict(d_model=32, n_layer=1, batch_size=24)
    model, _ = fit(texts, tmp_path, 100, **settings)
    fresh = torch.randint(V, (1000, 33), generator=rng(5))
    for k, part in enumerate(model.depths(fresh[:, :-1], attention_mask(32))):
        nll = token_nll(part, fresh[:, k + 1 :]).detach()
        assert math.log(V) - 3 * standard_error(nll) <= nll.mean().item() <= math.log(V) + 0.03


# -------------------------------------------------------- pitfalls
def test_offset_takes_its_depth_to_zero_while_its_true_loss_is_high(data, trained, tmp_path):
    tokenizer, _, val_text = data
    cfg = config()
    model, log = fit(data, tmp_path, 80, "offset")
    rows = val_text[: 200 * 33].view(-1, 33)
    batch = mtp.offset(rows, cfg, {}, rng())
    nll = loss_fn(model, batch, cfg)[1]
    copied = nll[batch.kind == 1].mean().item()
    assert copied < math.log(tokenizer.vocab_size) / 50
    # what is reported falls by the share of that depth: N_1 of N targets cost nothing
    main = nll[batch.kind == 0].mean().item()
    assert sum(log.losses[-10:]) / 10 < main * 0.6
    # Jensen: true loss >= (1 - pi) ln((1 - pi) / copied), pi and both losses from the same text
    true = loss_fn(model, make_batch(rows, cfg, {}, rng()), cfg)[1][batch.kind == 1].mean().item()
    pi = (rows[:, 2:] == rows[:, 1:-1]).double().mean().item()
    assert true >= (1 - pi) * math.log((1 - pi) / copied)
    assert true > math.log(tokenizer.vocab_size)
    # a draft is the character before it
    ids = val_text[:12]
    h = model.hidden(ids[None], attention_mask(12))
    assert mtp.draft(model, h[:, :-1], ids, 1).tolist() == ids[-1:].tolist()
    clean = trained[0]
    batch = make_batch(rows, config(depth=2), {}, rng())
    assert loss_fn(clean, batch, cfg)[1][batch.kind == 1].mean() > 1


def test_offset_worked_example():
    batch = mtp.offset(torch.tensor([[1, 2, 3, 4, 5, 6]]), Config(depth=2, seq_len=5), {}, rng())
    assert batch.targets.tolist() == [[2, 3, 4, 5, 6] + [2, 3, 4, 5] + [3, 4, 5]]


# -------------------------------------------------------- sample
def check_lossless(model, val_text, texts=20, seq_len=32):
    """The drafts change no character.  -> judged, accepted, forwards"""
    model, total = model.double(), torch.zeros(3)
    try:
        for i in range(texts):
            ids = val_text[500 * i : 501 * i + 1]  # 1 to 20 characters
            n = seq_len - len(ids)
            text, *counts = mtp.speculate(model, ids, n)
            assert text.tolist() == mtp.sample(model, ids, n, seq_len, 0, rng()).tolist()
            judged, accepted, forwards = counts
            assert forwards + accepted == n and accepted <= judged <= len(model.mtp) * forwards
            total += torch.tensor(counts)
    finally:
        model.float()
    return total.tolist()


def test_drafting_writes_what_plain_greedy_decoding_writes(data, trained):
    judged, accepted, forwards = check_lossless(trained[0], data[2])
    assert 0.3 * judged < accepted < judged  # both sides of the judgement were exercised


def test_even_useless_drafts_change_nothing(data):
    for depth in (1, 3):
        model = scramble(mtp.build_model(config(depth=depth), data[0].vocab_size))
        judged, accepted, _ = check_lossless(model, data[2], texts=5)
        assert accepted < 0.5 * judged


@pytest.mark.parametrize("right, forwards", [(True, 1 + 7), (False, 20)])
def test_right_drafts_save_forwards_and_wrong_ones_cost_none(
    data, trained, monkeypatch, right, forwards
):
    model, ids = trained[0], data[2][:5]
    greedy = mtp.sample(model, ids, 20, 32, 0, rng())
    asked = []

    def known(model, h, ids, n):
        assert h.shape[1] == len(ids) - 1 and len(ids) + n < len(greedy) or n < 1
        text = greedy[len(ids) : len(ids) + max(0, n)]
        return text if right else (text + 1) % data[0].vocab_size

    hidden = model.hidden
    monkeypatch.setattr(mtp, "draft", known)
    monkeypatch.setattr(model, "hidden", lambda *args: asked.append(args) or hidden(*args))
    text, judged, accepted, counted = mtp.speculate(model, ids, 20)
    assert text.tolist() == greedy.tolist()
    assert len(asked) == counted == forwards  # one without drafts, then up to three each
    assert accepted == (judged if right else 0)
    assert max(idx.shape[1] for idx, _ in asked) < len(greedy)


def test_a_draft_is_the_likeliest_character_of_its_depth(data, trained):
    model, text = trained[0], data[2][:15]
    mask = attention_mask(15)
    h = model.hidden(text[None], mask)[:, :-1]
    first, second = mtp.draft(model, h, text, 2).tolist()
    longer = torch.cat([text, torch.tensor([first])])[None]
    _, depth1, depth2 = model.depths(longer, attention_mask(16))
    assert first == depth1[0, 13].argmax() and second == depth2[0, 13].argmax()
    assert mtp.draft(model, h, text, 1).tolist() == [first]
    assert mtp.draft(model, h, text, 0).tolist() == mtp.draft(model, h, text, -1).tolist() == []


# -------------------------------------------------------- mutations: do checks notice?
def mutate(monkeypatch, owner, name, old, new):
    """Put another line into a function of mtp.py."""
    source = textwrap.dedent(inspect.getsource(getattr(owner, name)))
    assert source.count(old) == 1
    space = vars(mtp).copy()
    exec(source.replace(old, new), space)
    monkeypatch.setattr(owner, name, space[name])


@pytest.mark.parametrize(
    "check, owner, name, old, new",
    [
        # the window's end wraps; the target of the character that is read; one too far
        (check_targets, mtp, "make_batch", "targets[:, k:]", "targets.roll(-k, 1)"),
        (check_targets, mtp, "make_batch", "targets[:, k:]", "targets[:, max(0, k - 1):]"),
        (check_targets, mtp, "make_batch", "targets[:, k:]", "targets[:, 2 * k:]"),
        (check_reach, mtp, "attention_mask", ".tril()", ""),
        (check_reach, mtp.MTP, "depths", "attn_mask[:-k, :-k]", "None"),
        (check_reach, mtp.MTP, "depths", "idx[:, k:]", "idx[:, :-k]"),
        (check_reach, mtp.MTP, "depths", "idx[:, k:]", "idx.roll(-k - 1, 1)[:, :-k]"),
        (check_reach, mtp.MTPModule, "forward", "norm(h)", "0 * h"),
        (check_reach, mtp.MTPModule, "forward", "norm(ahead)", "0 * ahead"),
        (check_gradients, mtp.MTP, "depths", "h[:, :-1]", "h[:, :-1].detach()"),
        (check_weights, mtp, "loss_fn", " / len(ahead)", ""),
        (check_weights, mtp, "loss_fn", "sum(ahead)", "sum(part * 0.8 for part in ahead)"),
    ],
)
def test_the_checks_notice(monkeypatch, check, owner, name, old, new):
    mutate(monkeypatch, owner, name, old, new)
    with pytest.raises(AssertionError):
        check()


@pytest.mark.parametrize(
    "name, old, new",
    [
        ("speculate", "== drafts", ">= 0"),  # every draft is accepted
        ("speculate", "likeliest[: right + 1]", "likeliest[right: right + 1]"),
        ("speculate", ".cumprod(0)", ""),  # also right ones behind a wrong one
    ],
)
def test_the_lossless_check_notices_a_careless_judge(data, trained, monkeypatch, name, old, new):
    mutate(monkeypatch, mtp, name, old, new)
    with pytest.raises(AssertionError):
        check_lossless(trained[0], data[2])


def test_the_reduction_check_notices_a_weight_that_is_not_0(data, tmp_path, monkeypatch):
    new = "if True: loss = loss + 1e-3 * sum(ahead)\n    if False:"
    mutate(monkeypatch, mtp, "loss_fn", "if cfg.mtp_weight:", new)
    with pytest.raises(AssertionError):
        check_reduction(data, tmp_path)


# -------------------------------------------------------- the whole script
@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("the king of the hill is dead, long live the king\n" * 40, encoding="utf-8")
    return str(path)


def test_a_run_reports_what_the_readme_promises(text_file, tmp_path, capsys):
    flags = [*SMALL, "--data", text_file, "--out", str(tmp_path)]
    flags += ["--prompt", "the king of the hill"]
    result = mtp.main([*flags, "--depth", "2"])
    shown = capsys.readouterr().out
    assert "the prompt has 20 characters, its last 8 are read" in shown
    assert "\nthe hill[" in shown and "king" not in shown.partition("its last 8")[2]
    saved = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    for name in ("val_loss_main", "val_loss_depth1", "val_loss_depth2", "val_ppl", "val_bpc"):
        assert math.isfinite(saved[name])
    assert 0 <= saved["accept_rate"] <= 1 <= saved["tokens_per_forward"] <= 3
    assert saved["speedup"] > 0 and "val_loss_depth3" not in result
    again = mtp.main([*flags, "--depth", "2", "--load", str(tmp_path / "ckpt.pt")])
    assert again["val_loss_main"] == result["val_loss_main"]
    assert again["accept_rate"] == result["accept_rate"]
    with pytest.raises(common.Refusal, match="add --depth 2"):
        mtp.main([*flags, "--load", str(tmp_path / "ckpt.pt")])


def test_the_smallest_window_still_reads_out(text_file, tmp_path):
    result = mtp.main([*SMALL, "--data", text_file, "--out", str(tmp_path), "--seq-len", "2"])
    assert result["accept_rate"] == 0 and result["tokens_per_forward"] == 1


def test_show_prints_all_targets_and_trains_nothing(text_file, capsys):
    mtp.main(["--show", "--data", text_file, "--seq-len", "16", "--depth", "2"])
    assert "scored    45 of 45 positions" in capsys.readouterr().out
