"""What the scripts share is one text: compare it, or copy it from the first script that has it.

    python tests/copies.py          # print what differs, exit 1 if anything does
    python tests/copies.py --fix    # write the canonical text into the other scripts

A closed world: every top-level name of two or more scripts has one source text, the comments above
it included, unless DIFFERS names it with a reason. Of Config, the fields above the line
"# of this objective" are compared: names, types, order, comments and defaults. A default may be
another where its comment goes on with "; differs from clm.py: why".
"""

import ast
import difflib
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
ORDER = "clm mlm prefix_lm t5_span ul2 fim mtp continued_pretrain bart".split()
SHARED_FIELDS = "Config, shared fields"
DIFFERS = {  # name -> why its text is not the same everywhere
    "SPECIALS": "Each objective has its own tokens beside the characters.",
    "KINDS": "What can be scored depends on the objective.",
    "CODE_LENGTH": "Only some objectives spell a whole text.",
    "Batch": "An encoder-decoder reads two texts.",
    "raw_len": "How many characters become seq_len positions depends on the corruption.",
    "make_batch": "The corruption is the objective.",
    "attention_mask": "Who sees whom is part of the objective.",
    "loss_fn": "What is scored is part of the objective.",
    "build_model": "An encoder-decoder is another network.",
    "CrossAttention": "BART's inputs are padded, and its decoder looks for what follows.",
    "CrossBlock": "BART's inputs are padded, and no one may attend to PAD.",
    "EncoderDecoder": "BART's inputs are padded, and no one may attend to PAD.",
    "sample": "The prefix LM reads the prompt both ways.",
    "read_prompt": "A prompt is continued here and has gaps to fill there.",
    "write_targets": "BART's inputs are padded, and no one may attend to PAD.",
    "show_off": "The read-out shows what only this objective can do.",
    "PITFALLS": "Each objective has its own mistakes.",
    "main": "Continued pre-training is two trainings, and takes weights of another script.",
}


def names(node):
    """The top-level names that a statement defines."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [target.id for target in targets if isinstance(target, ast.Name)]
    return []


def blocks(source):
    """name -> (first line, line behind the last), counted from 0, of every top-level definition."""
    lines, found = source.splitlines(keepends=True), {}
    for node in ast.parse(source).body:
        start = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) - 1
        while (
            start and lines[start - 1].startswith("#") and not lines[start - 1].startswith("# ----")
        ):
            start -= 1
        for name in names(node):
            found[name] = start, node.end_lineno
        if names(node) == ["Config"]:
            own = [
                i
                for i in range(start, node.end_lineno)
                if lines[i].strip() == "# of this objective"
            ]
            del found["Config"]
            found[SHARED_FIELDS] = start, own[0] if own else node.end_lineno
    return found


def excused(text, wanted):
    """Shared fields, as they would stand without the defaults that say why they differ."""
    fields = {line.split("=")[0]: line for line in wanted.splitlines(keepends=True)}
    return "".join(
        fields.get(line.split("=")[0], line) if "; differs from clm.py: " in line else line
        for line in text.splitlines(keepends=True)
    )


def differences(scripts, differs):
    """scripts: name -> source.  -> (list of complaints, fixed sources)"""
    complaints, fixed = [], dict(scripts)
    canonical = {}  # name -> (script, text)
    shared = {name: 0 for name in differs}
    varied = set()
    for script, source in scripts.items():
        lines = source.splitlines(keepends=True)
        # from the bottom up, so that a replaced block does not move those still to come
        for name, (start, end) in sorted(blocks(source).items(), key=lambda item: -item[1][0]):
            text = "".join(lines[start:end])
            home, wanted = canonical.setdefault(name, (script, text))
            shared[name] = shared.get(name, 0) + 1
            if text == wanted or name == SHARED_FIELDS and excused(text, wanted) == wanted:
                continue
            varied.add(name)
            if name not in differs:
                lines[start:end] = wanted.splitlines(keepends=True)
                complaints.append(
                    "".join(
                        difflib.unified_diff(
                            wanted.splitlines(True),
                            text.splitlines(True),
                            f"{home}.py: {name}",
                            f"{script}.py: {name}",
                        )
                    )
                )
        fixed[script] = "".join(lines)
    for name in differs:
        if name not in varied:
            complaints.append(f"DIFFERS lists {name}, which is the same everywhere or not shared\n")
    return complaints, fixed


def read(folder):
    """The scripts that exist, in the fixed order."""
    return {
        name: (folder / f"{name}.py").read_text(encoding="utf-8")
        for name in ORDER
        if (folder / f"{name}.py").exists()
    }


def main(fix=False, folder=HERE):
    """-> exit code"""
    complaints, fixed = differences(read(folder), DIFFERS)
    print("\n".join(complaints), end="")
    if fix:
        for name, source in fixed.items():
            (folder / f"{name}.py").write_text(source, encoding="utf-8")
        complaints = differences(read(folder), DIFFERS)[0]
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(fix="--fix" in sys.argv[1:]))
