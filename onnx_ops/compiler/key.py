"""The key of compiled code: a digest of all its sources, the same in every process.

The sources are

    functions  bytecode, constants, defaults, and the values of globals and closure variables; the
               same of functions among these values
    compiler   its sources, and the versions of the packages that it uses
    CPU        its name and features

So code is never used after any of these has changed, and no other change invalidates it.
"""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import hashlib
import os
import sys
from pathlib import Path
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING

import llvmlite
import numpy as np

from ..declaration.jit import BOUNDSCHECK, COMPILER, flags_of, stamps, stamps_at_import
from . import target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    __loader__: Any

NUMBA_SETTINGS = {  # Numba's variables that affect code
    f"NUMBA_{name}"
    for name in """BOUNDSCHECK DEBUGINFO DISABLE_INTEL_SVML ENABLE_AVX ENABLE_PROFILING
    EXTEND_VARIABLE_LIFETIMES LOOP_VECTORIZE OPT SLP_VECTORIZE""".split()
}  # fmt: skip
# In the current folder: Numba reads settings from it at each compilation.
NUMBA_FILE = ".numba_config.yaml"
# Types whose repr tells their values.
PLAIN = {
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    slice,
    type(None),
    type(...),
}
# The parts of a code object that affect compiled code, besides its constants.
FIELDS = (
    "code exceptiontable names varnames cellvars freevars argcount posonlyargcount "
    "kwonlyargcount flags"
).split()
VERSIONED = {"builtins", "numpy", "numba", "llvmlite"}  # their versions are part of every key


def digest(functions: Iterable[Callable[..., Any]], *details: object) -> str:
    """Return the key of the code of functions.

    details  other sources of the code, with a stable repr

    Raises OSError if no key can distinguish the code from other code.
    """
    return hashlib.sha256(repr((compiler(), details, reached(functions))).encode()).hexdigest()[:16]


def reached(functions: Iterable[Callable[..., Any]]) -> list[str | int]:
    """Return digests of the functions' sources without compiler and CPU.

    Raises OSError as `digest` does.
    """
    return [_Reach().function(function) for function in functions]


def compiler() -> tuple[object, ...]:
    """Return the common sources of all code: compiler, versions, settings, CPU. Raises OSError."""
    if stamps() != stamps_at_import:
        raise OSError("onnx_ops has been edited since it was imported")
    settings: list = sorted(
        (name, value) for name, value in os.environ.items() if name in NUMBA_SETTINGS
    )
    if os.path.exists(NUMBA_FILE):
        settings.append(Path(NUMBA_FILE).read_bytes())
    return versions(), target.current(), settings, BOUNDSCHECK


@functools.cache
def versions() -> tuple[str | None, ...]:
    """Return a digest of the compiler's sources, which may be in a zip file, and versions.

    Raises OSError.
    """
    from importlib import metadata

    try:
        sources = b"\0".join(__loader__.get_data(path) for path in COMPILER.values())
    except OSError as error:
        raise OSError("onnx_ops has no source files") from error
    python = sys.implementation.cache_tag
    return (
        hashlib.sha256(sources).hexdigest(),
        metadata.version("numba"),
        llvmlite.__version__,
        np.__version__,
        python,
    )


_known: dict = {}  # {function that another one has called: its digest then}, in this process


class _Reach:
    """Descriptions of functions by their sources, with a stable repr."""

    def __init__(self) -> None:
        self.callers: list[Callable[..., Any]] = []
        self.digests: dict[Callable[..., Any], str] = {}

    def function(self, function: Callable[..., Any]) -> str | int:
        """Return the digest of a function or, within its own description, the depth of the
        recursion.
        """
        if function in self.callers:
            return len(self.callers) - self.callers.index(function)
        if function not in self.digests:
            self.callers.append(function)
            fixed, variables = code_parts(function.__code__)
            settings = function.__defaults__, function.__kwdefaults__, flags_of.get(function)
            values = [
                (".".join(names), variable_value(function, how, *names))
                for how, *names in variables
            ]
            described = [
                self.described(function, *named) for named in (*values, ("its defaults", settings))
            ]
            self.digests[function] = hashlib.sha256(repr((fixed, described)).encode()).hexdigest()
            self.callers.pop()
        digest = self.digests[function]
        # Numba compiles a callee only once, with the values at that time.
        if self.callers and _known.setdefault(function, digest) != digest:
            raise OSError(f"what {function.__qualname__} reads has changed since it was first used")
        return digest

    def described(self, function: Callable[..., Any], name: str, value: object) -> object:
        """Describe the value of a variable that a function reads. Raises OSError."""
        try:
            return self.value(value)
        except TypeError:
            rule = "which no key can describe" + "; mark it by onnx_ops.jitable" * isinstance(
                value, FunctionType
            )
            raise OSError(
                f"{function.__qualname__} reads {name}, a {type(value).__qualname__}, {rule}"
            ) from None

    def value(self, value: Any) -> object:
        """Describe a value in a function's code. Raises TypeError."""
        class_ = type(value)
        if class_ in PLAIN or isinstance(value, np.dtype):
            return repr(value)
        if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            return (
                repr(value.dtype),
                value.shape,
                value.strides,
                hashlib.sha256(value.tobytes()).hexdigest(),
            )
        if isinstance(value, tuple | list):
            return class_.__qualname__, getattr(class_, "_fields", None), [*map(self.value, value)]
        if isinstance(value, set | frozenset):
            return sorted(repr(self.value(item)) for item in value)
        if isinstance(value, dict):
            return [(self.value(key), self.value(item)) for key, item in value.items()]
        if isinstance(value, enum.Enum):
            return class_.__qualname__, value.name, self.value(value.value)
        if isinstance(value, enum.EnumMeta):
            return value.__qualname__, self.value(dict(value.__members__))  # which has aliases, too
        if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
            named: Any = value
            return value.__qualname__, value._fields, self.value(named._field_defaults)
        if isinstance(value, FunctionType) and value in flags_of:
            return self.function(value)
        return versioned_name(value) or self.of_numba(value, sys.modules.get("numba"))

    def of_numba(self, value: Any, numba: ModuleType | None) -> object:
        """Describe a function that Numba compiles, or one of its types.

        Raises TypeError for other values.
        """
        if numba and isinstance(value, numba.types.Type):
            return str(value)
        if numba and numba.extending.is_jitted(value):
            from .numba_internals import compiled_types

            options = (
                self.value(value.targetoptions),
                self.value(value.locals),
                compiled_types(value),
            )
            return *options, self.function(value.py_func)
        raise TypeError


def versioned_name(value: object) -> str | None:
    """Return the name of an object of Python, NumPy or the compiler, or of an exception; else
    None.
    """
    # Only whether one is raised is in the code.
    if isinstance(value, type) and issubclass(value, BaseException):
        return value.__qualname__
    module = getattr(value, "__module__", None) or type(value).__module__
    name: Any = getattr(value, "__name__", None)
    if isinstance(value, ModuleType):
        return name if name.partition(".")[0] in VERSIONED else None
    is_versioned = module.partition(".")[0] in VERSIONED or module in COMPILER
    is_versioned |= isinstance(value, BuiltinFunctionType) and module in sys.stdlib_module_names
    return (
        f"{module}.{name}"
        if is_versioned and getattr(sys.modules.get(module), name or "", None) is value
        else None
    )


def variable_value(function: Callable[..., Any], how: str, name: str, *attributes: str) -> object:
    """Return the value of one of the variables in `code_parts`; None if it has none."""
    if how == "LOAD_GLOBAL":
        value = function.__globals__.get(name, getattr(builtins, name, None))
    else:
        cell = dict(
            zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        ).get(name)
        value = None if cell in (None, CellType()) else cell.cell_contents
    for attribute in attributes:
        value = getattr(value, attribute, None) if isinstance(value, ModuleType) else value
    return value


@functools.cache
def code_parts(code: CodeType) -> tuple[str, list[tuple[str, ...]]]:
    """Return (description of a function's code, list of the globals and closure variables that it
    reads).

    A variable is (instruction, name, *attributes), with immediate attribute accesses, as in
    `module.NUMBER`.
    """
    inner = [code_parts(c) for c in code.co_consts if isinstance(c, CodeType)]
    constants = [_Reach().value(c) for c in code.co_consts if not isinstance(c, CodeType)]
    fixed = (
        constants,
        [getattr(code, f"co_{field}", None) for field in FIELDS],
        [digest for digest, _ in inner],
    )
    variables = []
    variable: tuple[str, ...] = ()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and variable:
            variable = *variable, instruction.argval
        elif instruction.opname != "EXTENDED_ARG":
            variables.append(variable)
            is_outside = instruction.opname in ("LOAD_GLOBAL", "LOAD_DEREF")
            variable = (instruction.opname, instruction.argval) if is_outside else ()
    variables += [name for _, names in inner for name in names]
    return hashlib.sha256(repr(fixed).encode()).hexdigest(), [
        *filter(None, dict.fromkeys(variables))
    ]
