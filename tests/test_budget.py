"""The size of the package is bounded: what comes in replaces something.

A bound is raised only in a commit that names what was added and what it replaced
(docs/contributing.md).
"""

import pytest
from support import budget
from support.processes import TESTS
from support.selection import on_demand

TOKENS = 239_566
# Of what a process loads that compiles and runs one GridSample and one Col2Im, with all C sources.
LOADED = 80_813
# Functions that Numba compiles for these. The time of the first call goes by them.
COMPILED = 151
MODELS = [
    TESTS.parent / "models" / name / "model.onnx"
    for name in ("com.microsoft/gridsample", "ai.onnx/col2im")
]
DATA = {"onnx_ops/cli/cat.jpg", "onnx_ops/py.typed"}  # shipped files without code


def test_tokens():
    count = budget.by_folder(budget.shipped())
    print(budget.table(count))
    assert sum(count.values()) <= TOKENS


def test_no_code_is_in_files_of_other_kinds():
    others = {
        p.relative_to(budget.PACKAGE.parent).as_posix()
        for p in budget.PACKAGE.rglob("*")
        if p.is_file()
    }
    others -= {p.relative_to(budget.PACKAGE.parent).as_posix() for p in budget.shipped()}
    assert {name for name in others if not name.endswith((".pyc", ".so", ".dll", ".dylib"))} <= DATA


@on_demand
@pytest.mark.long
def test_what_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))  # everything is compiled
    files, functions = budget.loaded(MODELS)
    print(f"{functions} functions are compiled")
    assert 100 < functions <= COMPILED
    count = budget.by_folder(files)
    print(budget.table(count))
    assert {"onnx_ops/compiler", "onnx_ops/native"} <= set(count)
    assert sum(count.values()) <= LOADED


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.py", '"""A docstring."""\n\n# a comment\nx = a.b + 1  # two\n', 7),
        ("a.py", 'def f():\n    """A docstring."""\n    return """text"""\n', 7),
        ("a.py", f'x = "{"exec " * 100}"\n', 9),
        ("a.py", "def f(a: int, *b: str, c: dict[str, int] = {}) -> list[int]: ...\n", 15),
        ("a.py", "é: dict[str, int] = {}\nclass C:\n    x: int\n", 8),
        ("a.py", "if TYPE_CHECKING:\n    import a\n    x: int = 1\ny = 1\n", 3),
        ("a.c", '/* a comment */\nint x = "a" /* b */ "c"; // d\n', 6),
        ("a.h", "p->x <<= 1;\n", 6),
    ],
)
def test_a_token_is_counted_once(name, text, expected, tmp_path):
    (tmp_path / name).write_text(text)
    assert budget.tokens(tmp_path / name) == expected
