"""Python files with custom operators, for the command line and for processes that compile.

Such a file may also declare Python operators of onnxruntime-extensions (`@onnx_op`), which that
library runs.
"""

from __future__ import annotations

import sys
import zlib
from contextlib import suppress
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING

from ..declaration.errors import OpError, reason
from ..declaration.operator import Operator
from ..registry import declaration_of, is_built_in, use
from .files import EXTENSIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

    from ..registry import Declared, Key
    from .types import OperatorSource, PathLike, PythonOp


DIGEST = "__onnx_ops_digest__"
# {name: module} of the modules in use that declare Python operators
_with_python_ops: dict[str, ModuleType] = {}


def use_file(path: PathLike) -> list[Declared]:
    """Put the operators in a Python file into use in this process; return them. Raises OpError."""
    operators = operators_in(module_of(path))
    use(operators)
    return operators


def module_of(path: PathLike) -> ModuleType:
    """Import a Python file. Raises OpError."""
    file = Path(path).absolute()
    name = file.stem  # the link's name: its target may have any name
    if file.suffix != ".py" or not name.isidentifier():
        rule = "must be the name of a module and .py, such as my_operators.py"
        raise refusal(repr(str(path)), rule)
    module = sys.modules.get(name)
    if module is None:
        spec = spec_from_file_location(name, file)
        assert spec  # of a file that ends in .py
        assert spec.loader
        module = sys.modules[name] = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            del sys.modules[name]
            if isinstance(error, OpError) or not isinstance(error, Exception | SystemExit):
                raise
            raise refusal(repr(str(path)), f"can't be imported: {reason(error)}") from error
    elif Path(getattr(module, "__file__", None) or "").resolve() != file.resolve():
        rule = f"has the name of the module {name}, which is imported; rename it"
        raise refusal(repr(str(path)), rule)
    return module


def refusal(value: str, rule: str) -> OpError:
    """Return the OpError for a file or an operator that can't be used."""
    return OpError("operators", value, rule, "onnx_ops")


def operators_in(module: ModuleType) -> list[Declared]:
    """Return a module's custom operators, and put its Python operators into use.

    Raises OpError if it has neither.
    """
    members = {id(member): member for member in vars(module).values()}.values()
    operators = [
        member for member in members if isinstance(getattr(member, "declaration", member), Operator)
    ]
    if any(_python_ops_in(module)):
        _with_python_ops[module.__name__] = module
    elif not operators:
        rule = "has no operators, which onnx_ops.operator or onnxruntime_extensions.onnx_op makes"
        raise refusal(repr(module.__file__), rule)
    return operators


def python_ops() -> dict[Key, PythonOp]:
    """Return {(domain, name): Python operator} of those in use."""
    ops = {}
    for module in _with_python_ops.values():
        for op in _python_ops_in(module):
            domain, separator, name = op.op_type.rpartition("::")
            ops[domain if separator else EXTENSIONS, name] = op
    return ops


def _python_ops_in(module: ModuleType) -> Iterator[PythonOp]:
    """Yield the Python operators among a module's variables."""
    if extensions := sys.modules.get("onnxruntime_extensions"):
        yield from (value for value in vars(module).values() if isinstance(value, extensions.Opdef))


def sources_of(operators: Iterable[Operator]) -> list[OperatorSource]:
    """Return (module's name or path, digest of the file) of these operators, for other processes.

    Includes the Python operators in use. Operators of this package need no source. Raises OpError.
    """
    modules = dict(_with_python_ops)
    for operator in operators:
        if is_built_in(operator):
            continue
        module = modules[operator.source] = sys.modules[operator.source]
        if getattr(module, "__file__", None) is None:
            rule = "is of no file, which other processes could read; write it into one"
            raise refusal(operator.title, rule)
        if all(declaration_of(declared) is not operator for declared in operators_in(module)):
            rule = f"is in no variable of {module.__name__}, where other processes could find it"
            raise refusal(operator.title, rule)
    return list(dict.fromkeys(map(_source_of, modules.values())))


def _source_of(module: ModuleType) -> OperatorSource:
    """Return an element of `sources_of`."""
    is_of_package = "." in module.__name__ or hasattr(module, "__path__")
    return module.__name__ if is_of_package else str(
        Path(module.__file__ or "").absolute()
    ), digest_of_module(module)


def operators_at(source: OperatorSource) -> list[Declared]:
    """Return the operators at an element of `sources_of`.

    Raises OpError, also if the file differs here.
    """
    location, expected = source
    module = module_of(location) if Path(location).suffix == ".py" else import_module(location)
    if digest_of_module(module) != expected:
        rule = "is not the file that the other process has; copy it, or start again"
        raise refusal(repr(module.__file__), rule)
    return operators_in(module)


def digest_of_module(module: ModuleType) -> int | None:
    """Return the digest of a module's file at the first call.

    Later edits have no effect before a reload.
    """
    # A module that is loaded again has a new spec.
    variables = vars(getattr(module, "__spec__", None) or module)
    if DIGEST not in variables:
        variables[DIGEST] = None
        with suppress(OSError):  # as in a zip file
            variables[DIGEST] = zlib.crc32(Path(module.__file__ or "").read_bytes())
    return variables[DIGEST]
