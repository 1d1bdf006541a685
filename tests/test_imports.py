"""Imports lead down, also those inside functions and for type checkers: docs/how-it-works.md lists the floors."""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from support.processes import TESTS

import onnx_ops

PACKAGE = Path(onnx_ops.__file__).parent
PAGE = (TESTS.parent / "docs" / "how-it-works.md").read_text()
# {folder, or module beside the folders: its floor}
FLOORS = {name: int(floor) for floor, name in re.findall(r"^\| (\d+) \| `(\w+)` \|", PAGE, re.MULTILINE)}


def module_name(path, package):
    """Return the dotted name of a file in a package, such as "onnx_ops.session.session"."""
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(package):
    """Return {module: modules of the package that it imports, at its top, inside functions and for type checkers}."""
    files = {module_name(path, package): path for path in package.rglob("*.py")}
    found = {}
    for name, path in files.items():
        found[name] = set()
        inside = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                around = inside[: len(inside) + 1 - node.level] if node.level else []
                base = ".".join([*around, *filter(None, [node.module])])
                each = {f"{base}.{alias.name}" for alias in node.names}
                found[name] |= {module if module in files else base for module in each}
        found[name] &= files.keys() - {name}
    return found


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
