"""The C library that ONNX Runtime loads: where it is, and the functions that were compiled into it, if any were."""

import ctypes as C
import functools
import os
import sys
from pathlib import Path

from .. import dtypes, operators
from ..declaration import MAX_INPUTS
from ..errors import OpError
from ..kernels.jit import numba_obstacle
from ..locks import REGISTRATION
from . import table

NAME = {"win32": "onnx_ops.dll", "darwin": "libonnx_ops.dylib"}.get(sys.platform, "libonnx_ops.so")
PLACE = Path(__file__).with_name(NAME)
OWN = 2**20  # the first number of operators of one's own
_own: list = []  # (operator, what the library knows it by), by their numbers
_NAMES = {t.onnx: name for name, t in dtypes.TABLE.items()}


def obstacle():
    """Why the operators of this package can't be had from the library, or None."""
    return lack() or (None if is_complete() else numba_obstacle())


def lack():
    """Why there is no library that can be used, or None."""
    if not os.path.exists(__file__):
        return "no C library can be loaded from inside a zip file, where onnx_ops is; unpack it"
    if not PLACE.exists():
        return "the C library was not built when onnx_ops was installed; install a C compiler and onnx_ops again"
    return None


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
    library.onnx_ops_choose.restype, library.onnx_ops_output.restype = C.c_char_p, C.c_void_p
    library.onnx_ops_output.argtypes = [C.POINTER(table.Run), C.c_size_t]
    library.onnx_ops_fill_strings.argtypes = [C.POINTER(table.Run), C.c_size_t, table.TEXTS, C.c_size_t]
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
    if row.number >= OWN:
        return _own[row.number - OWN][0]
    title = row.domain.decode(), row.name.decode()
    return next((operator for operator in operators.OPERATORS if (operator.domain, operator.name) == title), None)


def row(number):
    """The operator of the library that it knows by this number."""
    return _own[number - OWN][1] if number >= OWN else table_in_use().operators[number]


def own_row(operator):
    """What the library knows an operator of one's own by, made when it is first asked for, and immortal."""
    with REGISTRATION:
        for other, made in _own:
            if other is operator:
                return made
        made = table.operator(operator, list(operator.signatures()), OWN + len(_own))
        C.pythonapi.Py_IncRef(C.py_object(made))
        _own.append((operator, made))
        return made


def signature(operator, overload):
    """{type variable: element type} of one of the table's overloads."""
    inputs = {i.type: _NAMES[number] for i, number in zip(operator.inputs, overload.types, strict=False)}
    outputs = overload.types[MAX_INPUTS : MAX_INPUTS + len(operator.outputs)]
    return inputs | {o.type: _NAMES[number] for o, number in zip(operator.outputs, outputs, strict=True)}


@functools.cache
def _functions():
    """The addresses of (plan, kernel) that were compiled ahead.

    By (operator, position of the kernel, element types of the inputs).
    """
    found = {}
    rows = table_in_use() if is_complete() else table.Table()
    for row in rows.operators[: rows.operator_count]:
        operator = declared(row)
        for overload in row.overloads[: row.overload_count]:
            for position, address in enumerate(overload.kernels[: overload.kernel_count]):
                if address:
                    types = tuple(_NAMES[number] for number in overload.types[: len(operator.inputs)])
                    found[operator, position, types] = row.plans[0], address
    return found


def functions(operator, position, signature):
    """The addresses of plan and kernel for these types, if they were compiled ahead; else None."""
    return _functions().get((operator, position, tuple(signature[i.type] for i in operator.inputs)))
