"""The C library that ONNX Runtime loads: where it is, its table, and functions that were compiled into it, if any."""

import ctypes as C
import functools
import os
from pathlib import Path

from .. import operators, system
from ..declaration import dtypes
from ..declaration.errors import OpError
from ..declaration.jit import numba_obstacle
from ..declaration.limits import MAX_INPUTS
from ..system.locks import REGISTRATION
from . import table

PLACE = Path(__file__).with_name(system.LIBRARIES[system.NAME])
SOURCES = Path(__file__).parents[1] / "native"
CUSTOM = 2**20  # the number of the first custom operator
_custom: list = []  # (operator, its row) for custom operators; their numbers are CUSTOM + position


def obstacle():
    """Why the library can't provide the operators of this package, or None."""
    return lack() or (None if is_complete() else numba_obstacle())


def lack():
    """Why the library can't be used at all, or None."""
    if not os.path.exists(__file__):
        return "no C library can be loaded from inside a zip file, where onnx_ops is; unpack it"
    if not PLACE.exists():
        clone = PLACE.parents[2]
        if (clone / "setup.py").exists():
            advice = (
                "start Python in another folder for what is installed, or build it by a C compiler and pip install -e ."
            )
            return f"the C library is not in the clone {clone}, which Python has imported; {advice}"
        return "the C library was not built when onnx_ops was installed; install a C compiler and onnx_ops again"
    return None


def extensions_obstacle():
    """Why the extensions backend can't be used here, or None. Imports onnxruntime-extensions."""
    try:
        import onnxruntime_extensions  # noqa: F401  first, as users do: it imports our module, see on_import.py
    except ImportError as error:
        return f"needs onnxruntime-extensions, which can't be imported: {error}"
    return None


def have_numba():
    """Whether Numba can compile what isn't in the library."""
    return numba_obstacle() is None


@functools.cache
def load():
    """Load the library, which then stays loaded for ever. Raises OpError."""
    try:
        library = C.CDLL(str(PLACE))
    except OSError as error:
        raise OpError("library", repr(str(PLACE)), f"can't be loaded: {error}", "onnx_ops") from error
    describe(library)
    expected = [*map(C.sizeof, table.LAYOUT), system.digest_of_sources(SOURCES)]
    stated = list((C.c_int64 * len(expected)).in_dll(library, "onnx_ops_layout"))
    fits = stated == [*expected[:-1], expected[-1] or stated[-1]]
    reason = library.onnx_ops_choose() if fits else None
    rows = table.Table.in_dll(library, "onnx_ops_table") if fits and not reason else table.Table()
    digests = {declared(row): row.declaration.decode() for row in rows.operators[: rows.operator_count]}
    if not fits or any(o is None or table.declaration(o) != digest for o, digest in digests.items()):
        reason = b"is of another version of onnx_ops than its Python; install that again"
    if reason:
        raise OpError("library", repr(str(PLACE)), reason.decode(errors="replace"), "onnx_ops")
    C.pythonapi.Py_IncRef(C.py_object(library))
    return library


def describe(library):
    """Tell ctypes the types of the library's functions."""
    library.onnx_ops_choose.restype, library.onnx_ops_outputs.argtypes = C.c_char_p, [C.c_void_p]
    library.onnx_ops_fill_strings.argtypes = [C.c_void_p, C.c_size_t, C.c_char_p, C.POINTER(C.c_size_t), C.c_size_t]


def table_in_use():
    """The table of operators that the library reads. It begins with the operators that were compiled ahead."""
    return table.Table.in_dll(load(), "onnx_ops_table")


@functools.cache
def is_complete():
    """Whether this package's functions were compiled into the library."""
    return PLACE.exists() and bool(C.c_char_p.in_dll(load(), "onnx_ops_cpu").value)


def declared(row):
    """The declaration of the operator in a row; None if this package doesn't declare it."""
    if row.number >= CUSTOM:
        return _custom[row.number - CUSTOM][0]
    title = row.domain.decode(), row.name.decode()
    return next((operator for operator in operators.OPERATORS if (operator.domain, operator.name) == title), None)


def row(number):
    """The row of the operator that the library knows by this number."""
    return _custom[number - CUSTOM][1] if number >= CUSTOM else table_in_use().operators[number]


def custom_row(operator):
    """The row of a custom operator, which is made at the first call and never freed."""
    with REGISTRATION:
        for other, row in _custom:
            if other is operator:
                return row
        row = table.operator(operator, list(operator.signatures()), CUSTOM + len(_custom))
        C.pythonapi.Py_IncRef(C.py_object(row))
        _custom.append((operator, row))
        return row


def signature(operator, overload):
    """{type variable: element type} for an overload in the operator's row."""
    inputs = {i.type: dtypes.NAMES[number] for i, number in zip(operator.inputs, overload.types, strict=False)}
    outputs = overload.types[MAX_INPUTS : MAX_INPUTS + len(operator.outputs)]
    return inputs | {o.type: dtypes.NAMES[number] for o, number in zip(operator.outputs, outputs, strict=True)}


@functools.cache
def _functions():
    """{(operator, position of a kernel, types of the inputs): (address of the plan, of the kernel)}, compiled ahead."""
    addresses = {}
    rows = table_in_use() if is_complete() else table.Table()
    for row in rows.operators[: rows.operator_count]:
        operator = declared(row)
        for overload in row.overloads[: row.overload_count]:
            for position, kernel in enumerate(overload.kernels[: overload.kernel_count]):
                if kernel:
                    types = tuple(dtypes.NAMES[number] for number in overload.types[: len(operator.inputs)])
                    addresses[operator, position, types] = row.plans[position // len(operator.kernels)], kernel
    return addresses


def functions(operator, position, signature):
    """The addresses of the plan and the kernel for these types if they were compiled ahead, else None."""
    return _functions().get((operator, position, tuple(signature[i.type] for i in operator.inputs)))
