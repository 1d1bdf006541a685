"""The operators in ONNX Runtime, through the C library (native/), which this module gives what it needs of Python.

The library asks for functions of the table that are not compiled yet, and for what tensors of strings come to. ONNX
Runtime keeps pointers to all of this until its last session is gone, which at exit can be after Python has begun to
free modules: everything that C may call or read is immortal.
"""

import ctypes as C
import functools
import threading
from contextlib import contextmanager

from .. import operators
from ..errors import OpError, named
from ..kernels import records
from ..kernels.jit import numba_obstacle
from ..locks import COMPILATION, REGISTRATION
from . import bodies, interrupts, library, table

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
    return _usable(library.obstacle())


def _usable(obstacle):
    if obstacle:
        raise OpError("backend", "'native'", f'{obstacle}, or use backend="extensions"', "onnx_ops")
    connect()
    return str(library.PLACE)


@functools.cache
def connect():
    """Have the library call this module's functions from now on."""
    loaded, rows = library.load(), library.table_in_use()
    functions = table.Python.in_dll(loaded, "onnx_ops_python")
    functions.compile, functions.plan, functions.run = compile_function, plan, run
    functions.interrupt = interrupts.INTERRUPT
    interrupts.listeners.append(loaded.onnx_ops_wait_for_interrupt)
    there = rows.operators[: rows.operator_count]
    declared = {library.declared(row) for row in there}
    more = [operator for operator in operators.OPERATORS if operator not in declared] if library.have_numba() else []
    if more:
        made = [table.operator(o, list(o.signatures()), number) for number, o in enumerate(more, len(there))]
        for number, row in enumerate(there):
            row.number = number
        rows.operators = immortal(table.array(table.Operator, [*there, *made]))
        rows.operator_count = len(there) + len(made)


def add_operators(options, domains, own=()):
    """Put these domains' operators on the options, and those of one's own; what they have already stays as it is."""
    path = _usable(library.lack() if own else library.obstacle())  # bodies in NumPy need no compiler
    for domain in domains:
        key = f"onnx_ops.register.{domain or 'ai.onnx'}"
        try:
            options.get_session_config_entry(key)
        except RuntimeError:  # there is none
            options.add_session_config_entry(key, "1")
    pointers = table.array(C.c_void_p, [C.addressof(library.own_row(operator)) for operator in own])
    with REGISTRATION:
        try:
            library.load().onnx_ops_add(pointers, C.c_size_t(len(own)))
            options.register_custom_ops_library(path)
        finally:  # or, interrupted between the two, the next registration would add what is no longer there
            library.load().onnx_ops_add(None, C.c_size_t(0))


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
def compile_function(number, function, overload, position):
    """Put a function of an operator into the table."""
    row = library.row(number)
    operator = library.declared(row)
    with named(operator):
        if lack := numba_obstacle():
            raise OpError("kernel", "any", f"can't be compiled: {lack}")
        with COMPILATION:  # or a fork might leave to nobody the lock of a module that is being imported
            from ..kernels.code import code
        if function == table.RESOLVE:
            row.resolve = immortal(code(records.resolve_entry(operator))).address
        elif function == table.INFER:
            row.infer = immortal(code(records.infer_entry(operator))).address
        elif function == table.PLAN:
            row.plans[position] = immortal(code(records.plan_entry(operator, position))).address
        else:
            signature = library.signature(operator, row.overloads[overload])
            if (needed := getattr(_SURVEY, "needed", None)) is not None:
                needed.append((operator, position, signature))
                return LEFT_OUT
            entry = records.kernel_entry(operator, position, signature)
            row.overloads[overload].kernels[position] = immortal(code(entry)).address
    return None


plan = callback(C.c_int64, C.c_void_p)(bodies.plan)
run = callback(C.c_int64, C.c_int64, C.POINTER(table.Run))(bodies.run)
