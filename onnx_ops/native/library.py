"""The C library that ONNX Runtime loads: its path, its table, its compiled functions."""

from __future__ import annotations

import ctypes as C
import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING

from .. import registry, system
from ..declaration import dtypes
from ..declaration.errors import OpError
from ..declaration.jit import numba_obstacle
from ..declaration.limits import MAX_INPUTS
from ..system.locks import REGISTRATION
from . import table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..declaration.operator import Operator, Types
    from .table import Row

OTHER_VERSION = "has another version than onnx_ops in Python; install onnx_ops again"
PLACE = Path(__file__).with_name(system.LIBRARIES[system.NAME])
SOURCES = PLACE.parent
MADE = 2**20  # the number of the first row that `row_of` makes
# (operator, its row) for these rows; their numbers are MADE + position
_made: list[tuple[Operator, Row]] = []


def obstacle() -> str | None:
    """Return the reason why the library can't provide this package's operators, or None."""
    return lack() or (None if is_complete() else numba_obstacle())


def lack() -> str | None:
    """Return the reason why the library can't be used at all, or None."""
    if not os.path.exists(__file__):
        return "no C library can be loaded from inside a zip file, where onnx_ops is; unpack it"
    if not PLACE.exists():
        clone = PLACE.parents[2]
        if (clone / "setup.py").exists():
            advice = (
                "start Python in another folder for what is installed, or build it by a C "
                "compiler and pip install -e ."
            )
            return f"the C library is not in the clone {clone}, which Python has imported; {advice}"
        return (
            "the C library was not built when onnx_ops was installed; install a C compiler "
            "and onnx_ops again"
        )
    return None


def extensions_obstacle() -> str | None:
    """Return the reason why the extensions backend doesn't work here, or None.

    Imports onnxruntime-extensions.
    """
    try:
        # First, as users do: it imports our module, see on_import.py.
        import onnxruntime_extensions  # noqa: F401
    except ImportError as error:
        return f"needs onnxruntime-extensions, which can't be imported: {error}"
    return None


def have_numba() -> bool:
    """Return whether Numba can compile kernels that aren't in the library."""
    return numba_obstacle() is None


@functools.cache
def load() -> C.CDLL:
    """Load the library, which then stays loaded. Raises OpError."""
    try:
        library = C.CDLL(str(PLACE))
    except OSError as error:
        raise _refused(f"can't be loaded: {error}") from error
    declare_types(library)
    expected = [*map(C.sizeof, table.LAYOUT), system.digest_of_sources(SOURCES)]
    stated = list((C.c_int64 * len(expected)).in_dll(library, "onnx_ops_layout"))
    if stated != [*expected[:-1], expected[-1] or stated[-1]]:
        raise _refused(OTHER_VERSION)
    if reason := library.onnx_ops_choose():
        raise _refused(reason.decode(errors="replace"))
    C.pythonapi.Py_IncRef(C.py_object(library))
    return library


def declare_types(library: C.CDLL) -> None:
    """Declare the types of the library's functions to ctypes."""
    library.onnx_ops_choose.restype = C.c_char_p
    library.onnx_ops_outputs.argtypes = [C.c_void_p]
    library.onnx_ops_fill_strings.argtypes = [
        C.c_void_p,
        C.c_size_t,
        C.c_char_p,
        C.POINTER(C.c_size_t),
        C.c_size_t,
    ]


def _refused(rule: str) -> OpError:
    return OpError("library", repr(str(PLACE)), rule, "onnx_ops")


def table_in_use() -> Row:
    """Return the table of operators that the library reads."""
    return table.Table.in_dll(load(), "onnx_ops_table")


@functools.cache
def compiled_ahead() -> dict[tuple[str, str], Row]:
    """Return {(domain, name): its row} for the operators that were compiled ahead.

    Raises OpError.
    """
    rows = [
        pointer.contents for pointer in table_in_use().operators[: table_in_use().operator_count]
    ]
    by_key = {(row.domain.decode(), row.name.decode()): row for row in rows if row.number < MADE}
    if not by_key.keys() <= registry.KEYS.keys():
        raise _refused(OTHER_VERSION)
    return by_key


@functools.cache
def is_complete() -> bool:
    """Return whether this package's functions were compiled into the library."""
    return PLACE.exists() and bool(C.c_char_p.in_dll(load(), "onnx_ops_cpu").value)


def entry(number: int) -> tuple[Operator, Row]:
    """Return (operator, its row) for the library's number of an operator."""
    if number >= MADE:
        return _made[number - MADE]
    key, row = list(compiled_ahead().items())[number]
    return registry.built_in(key), row


def rows() -> list[Row]:
    """Return the rows of all operators: those compiled ahead, and those made so far.

    Raises OpError.
    """
    return [*compiled_ahead().values(), *(row for _, row in _made)]


def row_of(operator: Operator) -> Row:
    """Return the row of an operator: one compiled ahead, or one made at the first call.

    A row that is made is never freed.

    Raises OpError if the declaration isn't the one that was compiled.
    """
    with REGISTRATION:
        return _row_of(operator)


@functools.cache
def _row_of(operator: Operator) -> Row:
    if is_ahead(operator):
        row = compiled_ahead()[operator.key]
        if row.declaration.decode() != table.declaration(operator):
            raise _refused(OTHER_VERSION)
        return row
    row = table.operator_row(operator, list(operator.signatures()), MADE + len(_made))
    C.pythonapi.Py_IncRef(C.py_object(row))
    _made.append((operator, row))
    return row


def is_ahead(operator: Operator) -> bool:
    """Return whether an operator of this package was compiled ahead, for some types."""
    return operator.key in compiled_ahead() and registry.is_built_in(operator)


def can_run(operator: Operator) -> bool:
    """Return whether sessions can run an operator.

    If not, ONNX Runtime's built-in kernel may run it.
    """
    return have_numba() or is_ahead(operator) or not registry.is_built_in(operator)


def signature(operator: Operator, overload: Row) -> dict[str, str]:
    """Return {type variable: element type} for an overload in the operator's row."""
    inputs = {
        i.type: dtypes.NAMES[number]
        for i, number in zip(operator.inputs, overload.types, strict=False)
    }
    outputs = overload.types[MAX_INPUTS : MAX_INPUTS + len(operator.outputs)]
    return inputs | {
        o.type: dtypes.NAMES[number] for o, number in zip(operator.outputs, outputs, strict=True)
    }


@functools.cache
def _functions(operator: Operator) -> Mapping[tuple[int, tuple[str, ...]], tuple[int, int]]:
    """Return the addresses of the functions of an operator that were compiled ahead.

    They are {(position of a kernel, types of the inputs): (of the plan, of the kernel)}.
    """
    addresses = {}
    row = row_of(operator) if is_complete() and is_ahead(operator) else table.Operator()
    for overload in row.overloads[: row.overload_count]:
        for position, kernel in enumerate(overload.kernels[: overload.kernel_count]):
            if kernel:
                types = tuple(
                    dtypes.NAMES[number] for number in overload.types[: len(operator.inputs)]
                )
                addresses[position, types] = row.plans[position // len(operator.kernels)], kernel
    return addresses


def functions(operator: Operator, position: int, signature: Types) -> tuple[int, int] | None:
    """Return the addresses of the plan and the kernel for these types, or None.

    None: they weren't compiled ahead.
    """
    return _functions(operator).get((position, tuple(signature[i.type] for i in operator.inputs)))
