"""The C library that ONNX Runtime loads: where it is, and the functions that were compiled into it, if any were."""

import ctypes as C
import functools
import os
import sys
from pathlib import Path

from .. import dtypes, operators
from ..errors import OpError
from ..kernels.jit import numba_obstacle
from . import table

NAME = {"win32": "onnx_ops.dll", "darwin": "libonnx_ops.dylib"}.get(sys.platform, "libonnx_ops.so")
PLACE = Path(__file__).with_name(NAME)
_NAMES = {t.onnx: name for name, t in dtypes.TABLE.items()}


def obstacle():
    """Why there is no library that can be used, or None."""
    if not os.path.exists(__file__):
        return "no C library can be loaded from inside a zip file, where onnx_ops is; unpack it"
    if not PLACE.exists():
        return "the C library was not built when onnx_ops was installed; install a C compiler and onnx_ops again"
    return None if is_complete() else numba_obstacle()


def have_numba():
    """Whether what isn't in the library can be compiled."""
    return numba_obstacle() is None


@functools.cache
def load():
    """The library, which stays loaded for ever. Raises OpError."""
    try:
        library = C.CDLL(str(PLACE))
    except OSError as error:
        raise OpError("library", repr(str(PLACE)), f"can't be loaded: {error}", "onnx_ops") from error
    library.onnx_ops_choose.restype = C.c_char_p
    sizes = [C.sizeof(s) for s in table.LAYOUT]
    fits = list((C.c_int64 * len(sizes)).in_dll(library, "onnx_ops_layout")) == sizes
    lack = library.onnx_ops_choose() if fits else None
    rows = table.Table.in_dll(library, "onnx_ops_table") if fits and not lack else table.Table()
    found = {declared(row): row.declaration.decode() for row in rows.operators[: rows.operator_count]}
    if not fits or any(o is None or table.declaration(o) != digest for o, digest in found.items()):
        lack = b"is of another version of onnx_ops than its Python; install that again"
    if lack:
        raise OpError("library", repr(str(PLACE)), lack.decode(errors="replace"), "onnx_ops")
    C.pythonapi.Py_IncRef(C.py_object(library))
    return library


def table_in_use():
    """The table of operators that the library reads. What was compiled ahead is in it from the beginning."""
    return table.Table.in_dll(load(), "onnx_ops_table")


@functools.cache
def is_complete():
    """Whether the library has compiled functions of its own."""
    return PLACE.exists() and bool(C.c_char_p.in_dll(load(), "onnx_ops_cpu").value)


def declared(row):
    """The operator that is meant by one of the table's; None if there is none."""
    title = row.domain.decode(), row.name.decode()
    return next((operator for operator in operators.OPERATORS if (operator.domain, operator.name) == title), None)


def signature(operator, overload):
    """{type variable: element type} of one of the table's overloads."""
    return {i.type: _NAMES[number] for i, number in zip(operator.inputs, overload.types, strict=False)}


@functools.cache
def _functions():
    """{(operator, kernel, element types of the inputs): (addresses of plan, of kernel)} of what was compiled ahead."""
    found = {}
    rows = table_in_use() if is_complete() else table.Table()
    for row in rows.operators[: rows.operator_count]:
        operator = declared(row)
        for overload in row.overloads[: row.overload_count]:
            for kernel, address in zip(operator.kernels, overload.kernels, strict=False):
                if address:
                    types = tuple(_NAMES[number] for number in overload.types[: len(operator.inputs)])
                    found[operator, kernel.function, types] = row.plan, address
    return found


def functions(operator, kernel, signature):
    """The addresses of plan and kernel for these types, if they were compiled ahead; else None."""
    return _functions().get((operator, kernel.function, tuple(signature[i.type] for i in operator.inputs)))
