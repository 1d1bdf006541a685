"""Imports lead down, also those inside functions and for type checkers: docs/how-it-works.md lists
the floors.

Test files import neither each other nor scripts: what they share is in tests/support/.
"""

import ast
import functools
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from support.processes import TESTS

import onnx_ops

PACKAGE = Path(onnx_ops.__file__).parent
PAGE = (TESTS.parent / "docs" / "how-it-works.md").read_text()
ROWS = re.findall(r"^\| ([\d.]+) \| ([`\w, ]+) \|", PAGE, re.MULTILINE)
# {folder, or module beside the folders: its floor}; those with a point are of a file or folder
# inside of one
FLOORS = {name: float(floor) for floor, names in ROWS for name in re.findall(r"\w+", names)}


def module_name(path, package):
    """Return the dotted name of a file in a package, such as "onnx_ops.session.session"."""
    names = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def statements(body):
    """Yield all statements of a module's or a statement's body, without their expressions, which
    are most of a tree.
    """
    for node in body:
        yield node
        for field in ("body", "handlers", "cases", "orelse", "finalbody"):
            yield from statements(getattr(node, field, ()))


@functools.cache
def imports_of(package):
    """Return {module: modules of the package that it imports, at its top, inside functions and for
    type checkers}.
    """
    files = {module_name(path, package): path for path in package.rglob("*.py")}
    imports = {}
    for name, path in files.items():
        imports[name] = set()
        inside = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        for node in statements(ast.parse(path.read_text()).body):
            if isinstance(node, ast.Import):
                imports[name] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                around = inside[: len(inside) + 1 - node.level] if node.level else []
                base = ".".join([*around, *filter(None, [node.module])])
                imported = {f"{base}.{alias.name}" for alias in node.names}
                imports[name] |= {module if module in files else base for module in imported}
        imports[name] &= files.keys() - {name}
    return imports


def rooms(module):
    """Return the folder, or module beside the folders, of a module, and the part of the folder that
    it is in.
    """
    _, room, part, *_ = [*module.split("."), "", ""]
    return room or "__init__", part


def upward(imports):
    """Yield (module, what it imports) where this isn't on a lower floor, within a folder that has
    some and beyond.
    """
    for module, imported in imports.items():
        folder, module_part = rooms(module)
        for imported_module in imported:
            other_room, other_part = rooms(imported_module)
            if folder == other_room == "rewriting" and module_part and module_part != other_part:
                if FLOORS[module_part] < FLOORS[other_part]:
                    yield module, imported_module
            elif folder != other_room and FLOORS[folder] <= FLOORS[other_room]:
                yield module, imported_module


def test_imports_lead_to_lower_floors():
    assert [*upward(imports_of(PACKAGE))] == []


@pytest.mark.parametrize(
    ("module", "imported", "is_upward"),
    [
        ("onnx_ops.fold.col2im", "onnx_ops.session.session", True),
        ("onnx_ops.fold.col2im", "onnx_ops.sampling.grid_sample", True),  # of the same floor
        ("onnx_ops.declaration.errors", "onnx_ops", True),
        ("onnx_ops.session.session", "onnx_ops.model.files", False),
        ("onnx_ops.fold.col2im", "onnx_ops.fold.geometry", False),
        ("onnx_ops.rewriting.reading.forms", "onnx_ops.rewriting.graph", True),
        ("onnx_ops.rewriting.graph", "onnx_ops.rewriting.reading", False),
        ("onnx_ops.rewriting.graph", "onnx_ops.session.session", True),
    ],
)
def test_an_import_that_leads_up_is_found(module, imported, is_upward):
    assert [*upward({module: {imported}})] == [(module, imported)] * is_upward


def test_each_module_is_on_a_floor():
    names = {rooms(module) for module in imports_of(PACKAGE)}
    assert {folder for folder, _ in names} | {
        module_part for room, module_part in names if room == "rewriting" and module_part
    } == {*FLOORS}


def test_no_module_imports_itself_through_others():
    imports = imports_of(PACKAGE)
    assert "onnx_ops.rewriting" in imports["onnx_ops.session.prepare"]  # inside a function
    assert "onnx_ops" in imports["onnx_ops.cli.demo"]  # by its full name
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the modules of a cycle


@pytest.mark.parametrize("text", [
    "from ..upper import name", "from .. import upper", "def f():\n    from ..upper import name",
    "if TYPE_CHECKING:\n    from ..upper import name", "import package.upper",
])  # fmt: skip
def test_a_cycle_is_found(tmp_path, text):
    package = tmp_path / "package"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "inner" / "__init__.py").write_text("from .. import upper")
    (package / "inner" / "lower.py").write_text(text)
    (package / "upper.py").write_text("from .inner import lower")
    with pytest.raises(CycleError) as raised:
        TopologicalSorter(imports_of(package)).prepare()
    assert set(raised.value.args[1]) == {"package.upper", "package.inner.lower"}


def imported_names(text):
    """Return the modules that a file imports, anywhere, with the names that it takes from them."""
    names = set()
    for node in statements(ast.parse(text).body):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            names |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return names


def modules_in(folder, pattern="*.py"):
    """Return the names by which files of a folder, and packages in it, can be imported."""
    paths = list((TESTS.parent / folder).rglob(pattern))
    packages = {path.parent for path in paths if path.name == "__init__.py"}
    return {path.stem for path in (*paths, *packages) if path.parent not in packages}


TESTS_AND_SCRIPTS = modules_in("tests", "test_*.py") | modules_in("scripts")


def imports_of_tests_and_scripts(text):
    return {name for name in imported_names(text) if name.split(".")[0] in TESTS_AND_SCRIPTS}


def test_tests_import_neither_each_other_nor_scripts():
    imports = {
        str(path.relative_to(TESTS)): imports_of_tests_and_scripts(path.read_text())
        for path in TESTS.rglob("*.py")
    }
    assert {path: names for path, names in imports.items() if names} == {}


@pytest.mark.parametrize(
    ("text", "imported"),
    [
        ("import test_cli", {"test_cli"}),
        ("def f():\n    from test_cli import call", {"test_cli", "test_cli.call"}),
        ("import bench", {"bench"}),
        ("from benchmark import drawn", {"benchmark", "benchmark.drawn"}),
        ("from support import peers\nfrom .cases import Case\nimport onnx.numpy_helper", set()),
    ],
)
def test_an_import_of_a_test_or_script_is_found(text, imported):
    assert imports_of_tests_and_scripts(text) == imported
