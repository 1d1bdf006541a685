"""Count the tokens of the package: of Python without comments and docstrings, and of C without comments.

    python scripts/budget.py                        # by folder, and their sum
    python scripts/budget.py --loaded MODEL ...     # what a process loads that compiles and runs these models

A string of more than 80 characters counts as several tokens, so that code gains nothing by moving into strings.
tests/test_budget.py bounds both sums. The count is the same on every version of Python, which tokenize's is not.
"""

import argparse
import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import onnx_ops

PACKAGE = Path(onnx_ops.__file__).parent
CODE = ".py", ".c", ".h"
STRING = r'[A-Za-z]{0,2}(?:"""[\s\S]*?"""|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')'
WORD = r"\d[\w.]*|\w+|<<=|>>=|[-+*/%&|^<>=!]=|->|//|\*\*|<<|>>|\+\+|--|&&|\|\||\.\.\.|[^\w\s]"
PYTHON = re.compile(rf"(?P<comment>#[^\n]*)|(?P<string>{STRING})|{WORD}")
C = re.compile(rf"(?P<comment>//[^\n]*|/\*[\s\S]*?\*/)|(?P<string>{STRING})|{WORD}")
LOADED = """
import sys
import numpy as np
import onnx_ops
for path in sys.argv[1:]:
    session = onnx_ops.InferenceSession(path)
    inputs = {i.name: np.zeros(i.shape, np.int64 if "int64" in i.type else np.float32) for i in session.get_inputs()}
    try:
        session.run(None, inputs)
    except onnx_ops.OpError:
        pass  # the code that makes its message is loaded, as intended
for module in list(sys.modules.values()):
    print(getattr(module, "__file__", None) or "")
"""


def tokens(path):
    """Return the number of tokens of a file of Python or C."""
    text = path.read_text()
    matches = list((PYTHON if path.suffix == ".py" else C).finditer(text))
    counted = sum(1 + len(m[0]) // 80 if m["string"] else m["comment"] is None for m in matches)
    return counted - (docstring_tokens(text) if path.suffix == ".py" else 0)


def docstring_tokens(text):
    """Return for how many tokens `tokens` counts the docstrings of a module."""
    statements = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr))
    strings = (s for s in statements if isinstance(s, ast.Constant) and isinstance(s.value, str))
    return sum(1 + len(ast.get_source_segment(text, s)) // 80 for s in strings)


def shipped():
    """Return the files of the package that contain code."""
    return sorted(p for p in PACKAGE.rglob("*") if p.suffix in CODE and "__pycache__" not in p.parts)


def by_folder(paths):
    """Return {folder, relative to the package's parent: tokens of these files in it}."""
    count = Counter()
    for path in paths:
        count[path.parent.relative_to(PACKAGE.parent).as_posix()] += tokens(path)
    return dict(count)


def loaded(models):
    """Return the package's files that a process loads to compile and run models, and all C sources."""
    run = subprocess.run([sys.executable, "-c", LOADED, *map(str, models)], capture_output=True, text=True, check=True)
    modules = {Path(line) for line in run.stdout.splitlines()}
    return [p for p in shipped() if p in modules or p.suffix in (".c", ".h")]


def table(count):
    """Return lines with the tokens of each folder, and their sum."""
    rows = [*count.items(), ("sum", sum(count.values()))]
    return "\n".join(f"{n:8,}  {folder}" for folder, n in rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loaded", nargs="+", type=Path, metavar="MODEL")
    chosen = parser.parse_args().loaded
    print(table(by_folder(loaded(chosen) if chosen else shipped())))
