"""Count the tokens of the package: of Python without comments, docstrings and types, and of C
without comments.

Types are annotations, and blocks that only type checkers read (`if TYPE_CHECKING:`). A string of
more than 80 characters counts as several tokens, so that code gains nothing by moving into strings.
Where the formatter breaks lines is layout: the last comma within brackets doesn't count if the
closing one is on the next line, a string that goes on in the next line is one string, and
parentheses around an expression don't count if they only allow it to be on several lines.
tests/test_budget.py bounds both sums. The count is the same on every version of Python, which
tokenize's is not.
"""

import ast
import itertools
import keyword
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx_ops

PACKAGE = Path(onnx_ops.__file__).parent
CODE = ".py", ".c", ".h"
STRING = r'[A-Za-z]{0,2}(?:"""[\s\S]*?"""|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')'
WORD = r"\d[\w.]*|\w+|<<=|>>=|[-+*/%&|^<>=!]=|->|//|\*\*|<<|>>|\+\+|--|&&|\|\||\.\.\.|[^\w\s]"
COMMENT = r"#[^\n]*"
LAST_COMMA = rf",(?=[ \t]*(?:{COMMENT})?\n(?:\s|{COMMENT})*[)\]}}])"  # which the formatter adds
STRINGS = rf"{STRING}(?:\n\s*{STRING})*"
PYTHON = re.compile(rf"(?P<comment>{COMMENT}|{LAST_COMMA})|(?P<string>{STRINGS})|{WORD}")
C = re.compile(rf"(?P<comment>//[^\n]*|/\*[\s\S]*?\*/)|(?P<string>{STRING})|{WORD}")
IS_NAME = re.compile(r"\w+$").match
LOADED = """
import sys
from numba.core import event
import numpy as np
import onnx_ops

class Compiled(event.Listener):
    functions = 0
    def on_start(self, event):
        self.functions += 1
    def on_end(self, event):
        pass

compiled = Compiled()
event.register("numba:compile", compiled)
for path in sys.argv[1:]:
    session = onnx_ops.InferenceSession(path)
    inputs = {i.name: np.zeros(i.shape, np.int64 if "int64" in i.type else np.float32)
        for i in session.get_inputs()}
    try:
        session.run(None, inputs)
    except onnx_ops.OpError:
        pass  # the code that makes its message is loaded, as intended
print(compiled.functions)
for module in list(sys.modules.values()):
    print(getattr(module, "__file__", None) or "")
"""


def tokens(path: Path) -> int:
    """Return the number of tokens of a file of Python or C."""
    text = path.read_text()
    if path.suffix != ".py":
        return sum(map(weight, C.finditer(text)))
    text = without(uncounted(text), text)
    matches = list(PYTHON.finditer(text))
    return sum(map(weight, matches)) - 2 * line_breaks(text, matches)


def weight(token: re.Match[str]) -> int:
    if token["comment"] is not None:
        return 0
    return 1 + len(token[0]) // 80 if token["string"] else 1


def line_breaks(text: str, matches: Iterable[re.Match[str]]) -> int:
    """Return the number of parentheses around an expression that end a line to break it."""
    count = 0
    previous = ""
    for match in matches:
        is_call = previous in (")", "]") or (IS_NAME(previous) and not keyword.iskeyword(previous))
        count += match[0] == "(" and not is_call and text[match.end() : match.end() + 1] == "\n"
        previous = match[0]
    return count


def without(spans: Iterable[tuple[int, int]], text: str) -> str:
    """Return a text with spaces in place of spans of its bytes."""
    content = bytearray(text.encode())
    for begin, end in spans:
        content[begin:end] = b" " * (end - begin)
    return content.decode()


def uncounted(text: str) -> Iterator[tuple[int, int]]:
    """Yield (first byte, byte after the last) of each docstring, annotation and TYPE_CHECKING block
    of a module.
    """
    content = text.encode()
    begins = [0, *itertools.accumulate(map(len, content.splitlines(keepends=True)))]  # of the lines

    def begin(node: ast.AST) -> int:
        return begins[node.lineno - 1] + node.col_offset

    def end(node: ast.AST) -> int:
        return begins[node.end_lineno - 1] + node.end_col_offset

    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                yield begin(node), end(node)
            case ast.arg(annotation=ast.expr()):
                yield begin(node) + len(node.arg.encode()), end(node)
            case ast.AnnAssign():
                yield end(node.target), end(node.annotation)
            case ast.FunctionDef(returns=ast.expr()):
                yield content.rindex(b"->", 0, begin(node.returns)), end(node.returns)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield begin(node), end(node.body[-1])


def shipped() -> list[Path]:
    """Return the files of the package that contain code."""
    return sorted(
        p for p in PACKAGE.rglob("*") if p.suffix in CODE and "__pycache__" not in p.parts
    )


def by_folder(paths: Iterable[Path]) -> dict[str, int]:
    """Return {folder, relative to the package's parent: tokens of these files in it}."""
    count: Counter[str] = Counter()
    for path in paths:
        count[path.parent.relative_to(PACKAGE.parent).as_posix()] += tokens(path)
    return dict(count)


def loaded(models: Iterable[Path]) -> tuple[list[Path], int]:
    """Return what a process loads to compile and run models: the package's files, with all C
    sources, and the number of functions that Numba compiles.
    """
    run = subprocess.run(
        [sys.executable, "-c", LOADED, *map(str, models)],
        capture_output=True,
        text=True,
        check=True,
    )
    functions, *files = run.stdout.splitlines()
    modules = set(map(Path, files))
    return [p for p in shipped() if p in modules or p.suffix in (".c", ".h")], int(functions)


def table(count: dict[str, int]) -> str:
    """Return lines with the tokens of each folder, and their sum."""
    rows = [*count.items(), ("sum", sum(count.values()))]
    return "\n".join(f"{n:8,}  {folder}" for folder, n in rows)
