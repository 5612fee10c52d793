"""The README says what is there: commands parse, links lead somewhere, no script is missing."""

import importlib
import re
import shutil
import subprocess

import copies
import pytest

import common
from tests.experiments.table import EXPERIMENTS

TEXT = (common.HERE / "README.md").read_text(encoding="utf-8")
SCRIPTS = list(copies.read(common.HERE))


def commands():
    """Every command for a script, in text, tables and blocks."""
    found = re.findall(r"python3? (\w+)\.py((?: [^`|\n]*)?)", TEXT)
    found += re.findall(r"^    python (\w+)\.py(.*)$", TEXT, re.M)
    return sorted({(script, flags.split("#")[0].strip()) for script, flags in found})


@pytest.mark.parametrize("script, flags", commands())
def test_every_command_parses(script, flags, monkeypatch):
    module = importlib.import_module(script)
    flags = [flag.strip("\"'") for flag in re.findall(r'"[^"]*"|\S+', flags)]
    if flags == ["--help"]:
        return
    common.cli(module.Config, module.__doc__, flags, module.PITFALLS)


def test_every_experiment_named_exists():
    named = re.findall(r"python -m tests\.experiments ([\w -]+)", TEXT)
    assert named
    for name in {name for names in named for name in names.split()} - {"NAME"}:
        assert name in EXPERIMENTS or name == "figures", name


def test_every_relative_link_leads_to_a_file():
    links = re.findall(r"\]\((?!http)([^)#]+)\)", TEXT)
    assert links
    for link in links:
        assert (common.HERE / link).exists(), link


def test_every_script_has_a_row():
    for script in SCRIPTS:
        assert f"| [{script}.py]({script}.py) |" in TEXT, script


@pytest.mark.skipif(not shutil.which("diff"), reason="needs diff")
def test_the_sizes_of_the_diffs_are_those_of_the_files():
    names, _, cells = re.search(r"^\| X (.*)\n(.*)\n\| `diff.*?\|(.*)$", TEXT, re.M).groups()
    names, cells = (
        [part.strip() for part in row.split("|") if part.strip()] for row in (names, cells)
    )
    assert sorted([*names, "clm"]) == sorted(SCRIPTS)
    for name, cell in zip(names, cells, strict=True):
        files = [str(common.HERE / "clm.py"), str(common.HERE / f"{name}.py")]
        lines = subprocess.run(["diff", *files], capture_output=True, text=True).stdout.splitlines()
        total = len((common.HERE / f"{name}.py").read_text(encoding="utf-8").splitlines())
        assert cell == f"{sum(line[0] == '>' for line in lines)} of {total}", name


def test_every_pitfall_named_in_code_exists():
    known = {name for s in SCRIPTS for name in importlib.import_module(s).PITFALLS}
    for name in re.findall(r"--pitfall ([a-z-]+)", TEXT):
        assert name in known, name


def test_every_default_of_the_table_of_flags_is_that_of_the_script():
    rows = re.findall(r"^\| (\w+)\.py \| (`--.*) \|$", TEXT, re.M)
    assert [script for script, _ in rows] == [s for s in SCRIPTS if s in dict(rows)]
    for script, cells in rows:
        Config = importlib.import_module(script).Config
        shared = importlib.import_module("clm").Config.__dataclass_fields__
        own = {name for name in Config.__dataclass_fields__ if name not in shared}
        own |= {"label_smoothing"} if script == "clm" else set()
        quoted = dict(re.findall(r"`--([a-z-]+)(?: ([^`]+))?`", cells))
        assert {flag.replace("-", "_") for flag in quoted} == own, script
        for flag, value in quoted.items():
            default = getattr(Config, flag.replace("-", "_"))
            assert value == ("" if default is False else str(default)), f"{script} --{flag}"
