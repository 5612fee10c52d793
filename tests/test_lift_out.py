"""What stands above the model can be copied: sections 1 to 5 run without common.py."""

import builtins
import copy
import dis
import importlib
import inspect
import math
import re
import sys
import types

import copies
import pytest
import torch
from helpers import scramble

import common

SCRIPTS = list(copies.read(copies.HERE))
SMALL = dict(batch_size=2, d_model=16, n_layer=2, n_head=1)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def lift(name):
    """Sections 1 to 5 of a script as a module, without its import of common."""
    source = (copies.HERE / f"{name}.py").read_text(encoding="utf-8")
    _, first, rest = source.partition("# " + "-" * 56 + " 1 ")
    upper = (first + rest).split("# " + "-" * 56 + " 6 ")[0]
    assert upper.count("import common\n") == 1
    module = types.ModuleType(f"lifted_{name}")
    exec(compile(upper.replace("import common\n", ""), module.__name__, "exec"), vars(module))
    return module


@pytest.fixture
def lifted(monkeypatch):
    """lift, where nothing can import common."""
    monkeypatch.setitem(sys.modules, "common", None)
    return lift


def globals_of(code):
    """The names that a function looks up outside itself, functions within it included."""
    used = {i.argval for i in dis.get_instructions(code) if "LOAD_GLOBAL" in i.opname}
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return used.union(*map(globals_of, inner))


def functions(module):
    """name -> function, of the module's own; methods of its classes as Class.name"""
    found = {}
    for name, value in vars(module).items():
        for at, part in [(name, value), *((f"{name}.{k}", v) for k, v in members(value))]:
            if inspect.isfunction(part) and part.__module__ == module.__name__:
                found[at] = part
    return found


def members(value):
    return vars(value).items() if inspect.isclass(value) else ()


# -------------------------------------------------------- any script
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_objective_needs_torch_and_itself_only(lifted, name):
    module = lifted(name)
    assert {"Batch", "make_batch", "loss_fn"} <= vars(module).keys()
    for at, function in functions(module).items():
        missing = globals_of(function.__code__) - vars(module).keys() - vars(builtins).keys()
        # a setting is refused by common.Refusal: the one use, and settings stay behind
        allowed = {"common"} if at == "Config.__post_init__" else set()
        assert missing <= allowed, f"{name}.py: {at} needs {missing}"


def test_the_check_notices_what_is_needed_from_below():
    module = types.ModuleType("one")
    exec("def outer():\n    def inner():\n        return norm(1)\n    return inner", vars(module))
    assert globals_of(module.outer.__code__) == {"norm"}


@pytest.mark.parametrize("name", SCRIPTS)
def test_lifted_batches_and_losses_are_those_of_the_script(name):
    script = importlib.import_module(name)
    module = lift(name)
    results = []
    for part in (module, script):
        cfg = part.Config(**SMALL)
        special = {special: 65 + i for i, special in enumerate(part.SPECIALS)}
        windows = torch.randint(65, (2, part.raw_len(cfg)), generator=rng())
        given = windows.clone(), dict(special), copy.copy(vars(cfg))
        batch = part.make_batch(windows, cfg, special, rng(1))
        assert torch.equal(windows, given[0]) and (special, vars(cfg)) == given[1:], "changed"
        model = scramble(script.build_model(script.Config(**SMALL), 65 + len(special)))
        kept = [tensor.clone() for tensor in batch]
        loss, nll = part.loss_fn(model, batch, cfg)
        assert all(map(torch.equal, batch, kept)), "loss_fn changed the batch"
        results.append([*batch, loss, nll])
    assert all(map(torch.equal, *results))


# -------------------------------------------------------- worked examples
def clm_example(m):
    batch = m.make_batch(torch.tensor([[3, 8, 1, 9, 2]]), m.Config(seq_len=4), {}, rng())
    assert batch.idx.tolist() == [[3, 8, 1, 9]] and batch.targets.tolist() == [[8, 1, 9, 2]]
    mask = m.document_mask(torch.tensor([[1, 2, 0, 3]]), eot=0)[0, 0]
    assert mask.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1]]
    logits = torch.tensor([[[0.7, 0.1, 0.1, 0.1]]]).log()
    smooth = m.smooth_nll(logits, torch.tensor([[0]]), 0.1)
    assert smooth.item() == pytest.approx(0.551266, abs=1e-6)


def mlm_example(m):
    ids, fates = torch.tensor([[11, 12, 13, 14, 15]]), torch.tensor([[0, 1, 0, 2, 3]])
    idx, targets = m.mask_tokens(ids, fates, torch.full_like(ids, 40), 99)
    assert idx.tolist() == [[11, 99, 13, 40, 15]]
    assert targets.tolist() == [[-100, 12, -100, 14, 15]]
    cost = m.mean_nll(m.token_nll(torch.zeros(1, 5, 100), targets), targets)
    assert cost.item() == pytest.approx(4.605170, abs=1e-6)


def prefix_lm_example(m):
    targets, P = torch.tensor([[4, 4, 2, 9, 5]]), torch.tensor([2])
    assert m.score_suffix(targets, P).tolist() == [[-100, 4, 2, 9, 5]]
    mask = m.prefix_mask(P, 4)[0, 0]
    assert mask.int().tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


def fim_example(m):
    special = {"PRE": 101, "SUF": 102, "MID": 103, "EOT": 100}
    ids = torch.arange(1, 9)
    psm, spm = (m.fim_permute(ids, 2, 5, special, order) for order in ("PSM", "SPM"))
    assert psm.tolist() == [101, 1, 2, 102, 6, 7, 8, 103, 3, 4, 5, 100]
    assert spm.tolist() == [101, 102, 6, 7, 8, 103, 1, 2, 3, 4, 5, 100]
    restored, i, j = m.fim_restore(psm, special, "PSM")
    assert torch.equal(restored, ids) and (i, j) == (2, 5)


def t5_span_example(m):
    ids, sentinels = torch.arange(21, 31), torch.tensor([99, 98, 97])
    noise = torch.tensor([char == "T" for char in "FFFTTFFFFT"])
    inputs, targets = m.corrupt_spans(ids, noise, sentinels, 1)
    assert inputs.tolist() == [21, 22, 23, 99, 26, 27, 28, 29, 98, 1]
    assert targets.tolist() == [99, 24, 25, 98, 30, 1]
    assert torch.equal(m.restore_spans(inputs, targets, sentinels, 1), ids)
    assert m.draw_noise(10, 0.3, 1.5, rng()).sum() == 3


def ul2_example(m):
    special = {"NLU": 10, "S2S": 11, "NLG": 12, "PAD": 13, "EOS": 14}
    special |= {name: 15 + i for i, name in enumerate(m.SENTINELS)}
    ids, noise = torch.arange(1, 5), torch.tensor([False, False, True, True])
    inputs, targets = m.corrupt_tail(ids, noise, 14)
    assert inputs.tolist() == [1, 2, 14] and targets.tolist() == [3, 4, 14]
    # two characters, one gap: nothing is left to chance
    inputs, targets = m.corrupt(torch.tensor([7, 8]), "R3-15", special, rng())
    assert inputs.tolist() == [10, 7, 15, 14] and targets.tolist() == [15, 8, 14]
    batch = m.make_batch(torch.tensor([[7, 8]]), m.Config(seq_len=6, mix="R3-15"), special, rng())
    assert batch.idx.tolist() == [[10, 7, 15, 14, 15, 8]]
    assert batch.targets.tolist() == [[-100] * 3 + [15, 8, 14]]
    assert batch.mask[0, 0].sum(1).tolist() == [4, 4, 4, 4, 5, 6]
    assert m.draw_tail(2, 0.25, rng()).tolist() == [False, True]


def mtp_example(m):
    cfg = m.Config(depth=2, seq_len=5)
    batch = m.make_batch(torch.tensor([[1, 2, 3, 4, 5, 6]]), cfg, {}, rng())
    assert batch.targets.tolist() == [[2, 3, 4, 5, 6] + [3, 4, 5, 6] + [4, 5, 6]]


def continued_pretrain_example(m):
    windows = torch.tensor([[3, 8, 1, 9, 2], [~3, ~8, ~1, ~9, ~2]])
    batch = m.make_batch(windows, m.Config(seq_len=4), {}, rng())
    assert batch.idx.tolist() == [[3, 8, 1, 9]] * 2 and batch.kind.tolist() == [[0] * 4, [1] * 4]
    assert [m.count_replay(step, 32, 0.05) for step in range(5)] == [1, 2, 1, 2, 2]
    draw = m.mix(torch.zeros(9), 0.05, lambda text, n, length, rng: text[:1].expand(n, length))
    assert draw(torch.ones(9), 32, 4, rng()).sum(0).tolist() == [31] * 4


BART = {"BOS": 10, "EOS": 11, "PAD": 12, "MASK": 13}


def bart_example(m):
    ids, chosen = torch.arange(1, 6), torch.tensor([False, True, False, True, False])
    one, two = torch.tensor([1]), torch.tensor([2])
    assert m.mask_chars(ids, chosen, 99).tolist() == [1, 99, 3, 99, 5]
    assert m.delete_chars(ids, chosen).tolist() == [1, 3, 5]
    assert m.infill_spans(ids, one, two, 99).tolist() == [1, 99, 4, 5]
    ends, order = torch.tensor([2, 3, 5]), torch.tensor([2, 0, 1])
    assert m.permute_lines(ids, ends, order).tolist() == [4, 5, 1, 2, 3]
    assert m.rotate_text(ids, 3).tolist() == [4, 5, 1, 2, 3]
    assert m.draw_spans(10, 0.3, 3.0, rng())[1].sum() == 3
    assert m.draw_chars(10, 0.3, rng()).sum() == 3
    ends, order = m.draw_lines(torch.tensor([False, True, False]), rng())
    assert ends.tolist() == [2, 3] and order.sort().values.tolist() == [0, 1]
    # of one character there is one rotation
    batch = m.make_batch(torch.tensor([[7]]), m.Config(noise="rotate"), BART, rng())
    assert batch.inputs.tolist() == [[7, 11]] and batch.idx.tolist() == [[10, 7]]
    assert batch.targets.tolist() == [[7, 11]] and batch.kind.tolist() == [[0, 3]]


@pytest.mark.parametrize("name", SCRIPTS)
def test_worked_examples_come_out_without_the_project_and_leave_their_inputs(lifted, name):
    module, called, changed = lifted(name), set(), []

    def watched(at, function):
        def call(*args, **kwargs):
            called.add(at)
            before = snapshot((args, kwargs))
            result = function(*args, **kwargs)
            if not same(snapshot((args, kwargs)), before):
                changed.append(at)
            return result

        return call

    own = {at: part for at, part in functions(module).items() if "." not in at}
    for at, function in own.items():  # what they call among themselves is watched, too
        setattr(module, at, watched(at, function))
    globals()[f"{name}_example"](module)
    cfg, special = module.Config(), {name: 65 + i for i, name in enumerate(module.SPECIALS)}
    windows = torch.randint(65, (3, module.raw_len(cfg)), generator=rng())
    targets = module.make_batch(windows, cfg, special, rng()).targets
    logits = torch.zeros(*targets.shape, 65 + len(special))
    cost = module.mean_nll(module.token_nll(logits, targets), targets)
    assert cost.item() == pytest.approx(math.log(65 + len(special)), rel=1e-5)
    assert not changed and own.keys() - called == {"loss_fn"}  # it needs a model: see above


def snapshot(value):
    """A copy to compare with later; a generator may change, that is what it is for."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: snapshot(part) for key, part in value.items()}
    return [snapshot(part) for part in value] if isinstance(value, (tuple, list)) else value


def same(a, b):
    """Whether two snapshots are equal, tensors by their values."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a is b or a == b


def test_the_watch_notices_a_change_in_place():
    given = (torch.tensor([1, 2]), {"PRE": 3}, [torch.tensor(4)])
    for change in (
        lambda: given[0].add_(1),
        lambda: given[1].update(PRE=4),
        lambda: given[2].append(5),
    ):
        before = snapshot(given)
        assert same(snapshot(given), before)
        change()
        assert not same(snapshot(given), before)


# -------------------------------------------------------- the table of the README
def table():
    """(script, function, arguments) of every row of the README's table of what to take."""
    readme = (copies.HERE / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+)\.py \| `(\w+)\((.*?)\)` \|", readme, re.MULTILINE)
    return [
        (script, name, [part.strip() for part in args.split(",")]) for script, name, args in rows
    ]


def test_the_table_of_the_readme_names_functions_and_arguments_as_they_are(lifted):
    rows = table()
    assert len(rows) >= 14
    for script, name, arguments in rows:
        function = getattr(lifted(script), name)
        assert list(inspect.signature(function).parameters) == arguments, (script, name)


def test_common_is_not_reachable_from_what_was_lifted(lifted):
    module = lifted("mlm")
    with pytest.raises(NameError):
        module.Config(mask_rate=15.0)  # a wrong setting is refused by common, and only there
    assert common not in vars(module).values()
