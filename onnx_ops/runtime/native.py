"""The operators in ONNX Runtime, through the C library (native/), which this module gives what it needs of Python.

The library asks for functions of the table that are not compiled yet, and for what tensors of strings come to. ONNX
Runtime keeps pointers to all of this until its last session is gone, which at exit can be after Python has begun to
free modules: everything that C may call or read is immortal.
"""

import ctypes as C
import functools
import itertools
import threading
from contextlib import contextmanager

import numpy as np

from .. import dtypes, operators
from ..errors import OpError, named
from ..kernels import records
from ..locks import COMPILATION
from ..operator import Record
from . import interrupts, library, table

UNFINISHED, DONE, LEFT_OUT, FAILED, REFUSED = range(5)  # outcomes of an answer
_SURVEY = threading.local()  # what sessions that are made on this thread would compile, while that is asked


def immortal(thing):
    """`thing`, never to be freed."""
    C.pythonapi.Py_IncRef(C.py_object(thing))
    return thing


def callback(*argtypes):
    """Decorator: the function as the address of a C callback with an Answer as its last parameter.

    It returns the outcome, LEFT_OUT among them, or None if it is done.
    """

    def wrap(function):
        @functools.wraps(function)
        def call(*args):
            *args, answer = args
            answer = answer.contents
            try:
                outcome = function(*args)
                answer.outcome = DONE if outcome is None else outcome
            except BaseException as error:
                if not isinstance(error, Exception) and interrupts.postpone(error):
                    return
                known = isinstance(error, OpError)
                text = str(error) if known else f"onnx_ops: {type(error).__name__}: {error}"
                answer.message = text.encode(errors="replace")[:4095]
                answer.outcome = REFUSED if known else FAILED

        return C.cast(immortal(C.CFUNCTYPE(None, *argtypes, C.POINTER(table.Answer))(call)), C.c_void_p).value

    return wrap


def get_library_path() -> str:
    """For `options.register_custom_ops_library(...)`: a library with the operators of all domains but com.microsoft.

    Raises OpError if there is none in this installation.
    """
    if lack := library.obstacle():
        raise OpError("backend", "'native'", f'{lack}, or use backend="extensions"', "onnx_ops")
    connect()
    return str(library.PLACE)


@functools.cache
def connect():
    """Have the library call this module's functions from now on."""
    loaded, rows = library.load(), library.table_in_use()
    functions = table.Python.in_dll(loaded, "onnx_ops_python")
    functions.compile, functions.run_strings = compile_function, run_strings
    functions.interrupt = interrupts.INTERRUPT
    interrupts.listeners.append(loaded.onnx_ops_wait_for_interrupt)
    there = rows.operators[: rows.operator_count]
    declared = {library.declared(row) for row in there}
    more = [operator for operator in operators.OPERATORS if operator not in declared] if library.have_numba() else []
    if more:
        made = table.table(more).operators[: len(more)]
        rows.operators = immortal(table.array(table.Operator, [*there, *made]))
        rows.operator_count = len(there) + len(made)


def add_domains(options, domains):
    """Put these domains' operators on the options; those that they have already stay as they are."""
    path = get_library_path()
    for domain in domains:
        key = f"onnx_ops.register.{domain or 'ai.onnx'}"
        try:
            options.get_session_config_entry(key)
        except RuntimeError:  # there is none
            options.add_session_config_entry(key, "1")
    options.register_custom_ops_library(path)


def default_domains():
    """All but com.microsoft, which as a custom domain breaks models that ONNX Runtime fuses nodes of into it."""
    return {operator.domain for operator in operators.OPERATORS} - {"com.microsoft"}


@contextmanager
def survey():
    """While this lasts, sessions that this thread makes compile no kernels, and can't run their nodes of ours.

    Yields the list to which each of these nodes adds (its operator, its kernel, {type variable: element type}).
    """
    get_library_path()
    _SURVEY.needed = []
    library.load().onnx_ops_survey(True)
    try:
        yield _SURVEY.needed
    finally:
        library.load().onnx_ops_survey(False)
        del _SURVEY.needed


@callback(C.c_int64, C.c_int64, C.c_int64, C.c_int64)
def compile_function(number, function, overload, kernel):
    """Put a function of an operator into the table."""
    with COMPILATION:  # or a fork might leave to nobody the lock of a module that is being imported
        from ..kernels.code import code

    row = library.table_in_use().operators[number]
    operator = library.declared(row)
    with named(operator):
        if function != table.KERNEL:
            entry = (records.resolve_entry, records.infer_entry, records.plan_entry)[function](operator)
            setattr(row, ("resolve", "infer", "plan")[function], immortal(code(entry)).address)
            return None
        signature, wanted = library.signature(operator, row.overloads[overload]), operator.kernels[kernel]
        if (needed := getattr(_SURVEY, "needed", None)) is not None:
            needed.append((operator, wanted, signature))
            return LEFT_OUT
        entry = records.kernel_entry(operator, wanted, operator.storage(wanted, signature))
        row.overloads[overload].kernels[kernel] = immortal(code(entry)).address
        return None


@callback(C.c_int64, C.c_int64, C.POINTER(table.Strings))
def run_strings(number, overload, strings):
    """Hand over what the operator makes of tensors, some of which are of strings."""
    row, given = library.table_in_use().operators[number], strings.contents
    operator = library.declared(row)
    signature = library.signature(operator, row.overloads[overload])
    call = borrowed(given.call, 1, records.call_dtype(operator.geometry_dtype))[0]
    parameters = borrowed(given.parameters, 1, operator.parameters_dtype)
    arrays = []
    for i, tensor in zip(operator.inputs, call["tensors"], strict=False):
        shape, dtype = tensor["shape"][: tensor["rank"]], dtypes.TABLE[signature[i.type]].numpy
        size, data = int(tensor["size"]), int(tensor["data"])
        if i.values:
            arrays.append(shape)
        else:
            flat = strings_at(data, size) if dtype.hasobject else borrowed(data, size, dtype)
            arrays.append(flat.reshape(shape))
    content = [
        text.encode(errors="surrogateescape") for text in operator.reference(Record(parameters[0]), *arrays).flat
    ]
    library.load().onnx_ops_fill_strings(strings, table.array(C.c_char_p, content), C.c_size_t(len(content)))


def borrowed(address, count, dtype):
    """A flat array over memory that outlives it."""
    if not count:
        return np.empty(0, dtype)
    return np.frombuffer((C.c_char * (count * dtype.itemsize)).from_address(address), dtype)


def strings_at(address, count):
    """The strings of a tensor as native/python.c lays them out: count + 1 offsets, then the bytes."""
    offsets = borrowed(address, count + 1, np.dtype(np.uintp)).tolist()
    content, found = C.string_at(address + 8 * (count + 1), offsets[count]), np.empty(count, object)
    found[:] = [content[a:b].decode(errors="surrogateescape") for a, b in itertools.pairwise(offsets)]
    return found
