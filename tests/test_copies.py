"""The scripts' shared text is shared, and the check would notice if it were not."""

import copies

CLM = '''"""One."""
# ---- 1
IGNORE = -100   # not scored


@dataclass
class Config:
    steps: int = 1      # steps
    # of this objective
    rate: float = 0.1   # own


# why
def norm(x):
    """Same."""
    return x


def make_batch(x):
    return x
'''


def test_the_scripts_share_their_text():
    complaints, _ = copies.differences(
        copies.read(copies.Path(copies.__file__).resolve().parent.parent), copies.DIFFERS
    )
    assert not complaints, (
        "\n".join(complaints)
        + "\npython tests/copies.py --fix writes the first script's text into the others"
    )


def test_own_fields_and_listed_names_may_differ():
    other = CLM.replace("rate: float = 0.1   # own", "span: int = 3").replace(
        "def make_batch(x):\n    return x", "def make_batch(y):\n    return y"
    )
    assert copies.differences({"clm": CLM, "fim": other}, {"make_batch": "the objective"}) == (
        [],
        {"clm": CLM, "fim": other},
    )


def test_a_default_may_differ_where_it_says_why():
    wanted = "    steps: int = 1      # steps\n"
    for line, excused in (
        ("    steps: int = 2      # steps; differs from clm.py: fewer targets\n", True),
        ("    steps: int = 2      # steps, other ones\n", False),
        ("    stops: int = 2      # steps; differs from clm.py: fewer targets\n", False),
        ("    steps: str = 2      # steps; differs from clm.py: fewer targets\n", False),
    ):
        complaints, _ = copies.differences({"clm": CLM, "fim": CLM.replace(wanted, line)}, {})
        assert bool(complaints) != excused, line


def test_every_kind_of_drift_is_noticed_and_fixed():
    drifts = [
        ("# why", "# because"),
        ("return x\n\n\ndef make", "return x + 0\n\n\ndef make"),
        ("-100   # not", "-100   # never"),
        ("steps: int = 1      # steps", "steps: int = 2      # steps"),
        ("@dataclass\n", ""),
    ]
    for old, new in drifts:
        drifted = CLM.replace(old, new)
        assert drifted != CLM
        complaints, fixed = copies.differences({"clm": CLM, "fim": drifted}, {})
        assert (
            len(complaints) == 1
            and complaints[0].startswith("--- clm.py: ")
            and fixed["fim"] == CLM
        ), old


def test_a_name_in_differs_that_does_not_differ_is_refused():
    complaints, _ = copies.differences({"clm": CLM, "fim": CLM}, {"norm": "no reason left"})
    assert complaints == ["DIFFERS lists norm, which is the same everywhere or not shared\n"]


def test_fix_writes_the_files(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(copies, "DIFFERS", {})
    (tmp_path / "clm.py").write_text(CLM, encoding="utf-8")
    (tmp_path / "mlm.py").write_text(CLM.replace("# why", "# because"), encoding="utf-8")
    assert copies.main(folder=tmp_path) == 1 and copies.main(fix=True, folder=tmp_path) == 0
    assert (tmp_path / "mlm.py").read_text(encoding="utf-8") == CLM
