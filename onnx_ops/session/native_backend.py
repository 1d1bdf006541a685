"""Register the operators through the C library (native/) and its callbacks into Python.

The library calls Python to compile functions that its table lacks, and to plan and compute nodes
without compiled code. ONNX Runtime keeps pointers to all of this until its last session ends. At
exit, that may be after Python has begun to free modules. So everything that C may call or read is
immortal.
"""

from __future__ import annotations

import ctypes as C
import functools
import threading
import weakref
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from .. import registry
from ..compiler import records
from ..declaration.errors import OpError, errors_of, escaped, reason
from ..declaration.jit import numba_obstacle
from ..native import library, refusals, table
from ..system import interrupts
from ..system.locks import COMPILATION, REGISTRATION
from . import bodies, reports
from .variants import Variant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from typing import Any, TypeVar

    import onnxruntime as ort

    from ..declaration.operator import Operator

    T = TypeVar("T")

UNFINISHED, DONE, LEFT_OUT, FAILED, REFUSED = range(5)  # outcomes of an answer
# {a session's options: operators that they have}
_REGISTERED = weakref.WeakKeyDictionary[object, set[object]]()
# During `survey`: kernels that sessions made on this thread would compile.
_SURVEY = threading.local()


def immortal(value: T) -> T:
    """Return `value`, which is never freed from now on."""
    C.pythonapi.Py_IncRef(C.py_object(value))
    return value


def c_callback(*argtypes: Any) -> Callable[[Callable[..., int | None]], int | None]:
    """Turn a function into the address of a C callback, whose last parameter is an Answer.

    The function gets the other parameters. It returns an outcome such as LEFT_OUT, or None for
    DONE. The text of an exception becomes the Answer's message, and an OpError is reported to the
    session.
    """

    def wrap(function: Callable[..., int | None]) -> int | None:
        @functools.wraps(function)
        def call(*args: Any) -> None:
            answer = table.Answer.from_address(args[-1])
            try:
                outcome = function(*args[:-1])
                reports.forget()
                answer.outcome = DONE if outcome is None else outcome
            except BaseException as error:
                if not isinstance(error, Exception) and interrupts.postpone(error):
                    return
                answer.outcome = FAILED
                reports.forget()
                message = str(error) if isinstance(error, OpError) else f"onnx_ops: {reason(error)}"
                content = escaped(message, kept="\n").encode()[: reports.LONGEST]
                message = content.decode(errors="ignore")  # without a part of a character
                answer.message = message.encode()
                if isinstance(error, OpError):
                    reports.add(message, error)
                    answer.outcome = REFUSED

        return C.cast(immortal(C.CFUNCTYPE(None, *argtypes, C.c_void_p)(call)), C.c_void_p).value

    return wrap


def get_library_path() -> str:
    """Return the path of the library for `register_custom_ops_library`.

    It registers the operators of all domains except com.microsoft and custom,
    for the reasons that `register` states. A GridSample of com.microsoft then
    runs ONNX Runtime's built-in kernel, without a warning. In an installation
    from source, only the process that calls this function can use the library.

    Returns
    -------
    str
        The path.

    Raises
    ------
    OpError
        This installation has no library, or can't use it.

    Examples
    --------
    >>> import onnxruntime as ort
    >>> options = ort.SessionOptions()
    >>> options.register_custom_ops_library(onnx_ops.get_library_path())
    """
    path = _usable(library.obstacle())
    with REGISTRATION:  # functools.cache would have two threads make tables
        fill_table()
    return path


def _usable(obstacle: str | None) -> str:
    if obstacle:
        remains = "" if library.extensions_obstacle() else ', or use backend="extensions"'
        raise OpError("backend", "'native'", f"{obstacle}{remains}", "onnx_ops")
    with REGISTRATION:
        connect()
    return str(library.PLACE)


@functools.cache
def connect() -> None:
    """Set this module's functions as the library's callbacks."""
    loaded = library.load()
    functions = table.Python.in_dll(loaded, "onnx_ops_python")
    functions.compile = compile_function
    functions.plan = plan
    functions.run = run_body
    functions.refuse = refuse
    functions.interrupt = interrupts.INTERRUPT
    interrupts.listeners.append(loaded.onnx_ops_wait_for_interrupt)


@functools.cache
def fill_table() -> None:
    """Fill the table with all operators, for hosts that register them without Python."""
    in_use = library.table_in_use()
    filled = immortal(table.table_of(rows_of(registry.OPERATORS)))
    in_use.operators = filled.operators
    in_use.operator_count = filled.operator_count


def rows_of(declared: Iterable[Operator]) -> list[C.Structure]:
    """Return the rows of those operators that sessions can run."""
    return [library.row_of(o) for o in declared if library.can_run(o)]


def register_operators(options: ort.SessionOptions, declared: Sequence[Operator]) -> None:
    """Register operators on a session's options, except those registered there before.

    ONNX Runtime notes each registration with the options, so that many sessions on them would take
    more and more.
    """
    is_any_custom = not all(map(registry.is_built_in, declared))
    # Bodies in NumPy need no compiler.
    path = _usable(library.lack() if is_any_custom else library.obstacle())
    with REGISTRATION:
        before = _REGISTERED.setdefault(options, set())
        if before.issuperset(declared):
            return
        rows = rows_of(declared)
        pointers = table.array(C.c_void_p, list(map(C.addressof, rows)))
        try:
            library.load().onnx_ops_add(pointers, C.c_size_t(len(rows)))
            options.register_custom_ops_library(path)
        finally:
            # Else, after an interrupt, the next registration would add what no longer exists.
            library.load().onnx_ops_add(None, C.c_size_t(0))
        before.update(declared)


def registered_domains(options: ort.SessionOptions) -> set[str]:
    """Return our domains that the library has registered on a session's options.

    It doesn't matter who asked for it.

    The library notes them there.
    """
    return {
        d
        for d in registry.DOMAINS
        if config_entry(options, f"onnx_ops.registered.{d or 'ai.onnx'}")
    }


def default_domains() -> set[str]:
    """Return the domains that are registered by default: not com.microsoft and custom."""
    return {domain for domain in registry.DOMAINS if registry.is_default(domain, True)}


def config_entry(options: ort.SessionOptions, key: str) -> str | None:
    """Return a session configuration entry of options, or None."""
    try:
        return options.get_session_config_entry(key)
    except RuntimeError:
        return None


@contextmanager
def survey() -> Iterator[list[Variant]]:
    """Return a context in which sessions of this thread list kernels, and compile none.

    Yields the list, with a Variant for each node of ours. These sessions can't run such nodes.
    """
    _usable(library.obstacle())
    _SURVEY.needed = []
    try:
        with switched_on(library.load().onnx_ops_survey):
            yield _SURVEY.needed
    finally:
        del _SURVEY.needed


def leaving_out() -> AbstractContextManager[None]:
    """Return a context in which sessions of this thread have no operators of the library.

    The options don't matter.
    """
    return nullcontext() if library.obstacle() else switched_on(library.load().onnx_ops_leave_out)


@contextmanager
def switched_on(switch: Callable[[bool], object]) -> Iterator[None]:
    """Return a context in which a switch of the library is on for this thread."""
    switch(True)
    try:
        yield
    finally:
        switch(False)


@c_callback(C.c_int64, C.c_int64, C.c_int64, C.c_int64)
def compile_function(number: int, function: int, overload: int, position: int) -> int | None:
    """Compile a function of an operator, and put it into the table."""
    operator, row = library.entry(number)
    with errors_of(operator):
        if function == table.KERNEL:
            signature = library.signature(operator, row.overloads[overload])
            if (needed := getattr(_SURVEY, "needed", None)) is not None:
                needed.append(Variant(operator, position, signature))
                return LEFT_OUT
        if obstacle := numba_obstacle():
            raise OpError("kernel", "any", f"can't be compiled: {obstacle}")
        # Else a child forked during this import might wait for the module's lock for ever.
        with COMPILATION:
            from ..compiler.code import code
        address = lambda entry: immortal(code(entry, operator.title)).address
        if function == table.INFER:
            row.infer = address(records.infer_entry(operator))
        elif function == table.PLAN:
            row.plans[position] = address(
                records.plan_entry(operator, position * len(operator.kernels))
            )
        else:
            row.overloads[overload].kernels[position] = address(
                records.kernel_entry(operator, position, signature)
            )
    return None


@c_callback(C.c_int64, C.c_void_p, C.c_void_p, C.c_char_p)
def refuse(number: int, node: int | None, refusal: int, note: bytes | None) -> None:
    """Raise the OpError for a refusal at an address; see refusal.c."""
    refusals.refuse(library.entry(number)[0], refusal, table.name_at(node), (note or b"").decode())


plan = c_callback(C.c_int64, C.c_void_p, C.c_void_p)(bodies.plan)
run_body = c_callback(C.c_int64, C.c_int64, C.c_void_p)(bodies.run_body)
