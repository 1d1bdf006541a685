"""Compiled code on demand: from the cache, or by Numba, which is only then imported."""

import ctypes
import functools
import logging
import re
import sys
import threading
from contextvars import ContextVar, copy_context
from queue import SimpleQueue

import llvmlite.binding as llvm

from ..errors import OpError
from ..locks import COMPILATION
from .cache import Kept, NotKept, digest, not_kept
from .jit import BOUNDSCHECK

_OF_NUMBA = re.compile(rb"(?<=\0)numba_\w+(?=\0)")  # functions of Numba's own library, by name in an object file
PATIENCE = 1.0  # seconds of compiling after which users are told
expected = ContextVar("expected", default=False)  # whether they know
log = logging.getLogger("onnx_ops")


class Code:
    """The compiled function of an entry (records.py).

    symbol   its name
    content  that of an object file
    kept     its file
    """

    def __init__(self, entry, kept):
        self.entry, self.kept, self._address, self._call = entry, kept, None, None
        self.symbol = re.sub(r"\W", "_", f"{entry.name}-{kept.key}")
        with COMPILATION:
            self.content = kept.load()
        if self.content is None:
            where = f"to be kept in {kept.path.parent}" if kept.path else "not kept"
            told = threading.Timer(PATIENCE, log.warning, ["onnx_ops: compiling %s (once; %s)", entry.name, where])
            told.daemon = True
            if not expected.get():
                told.start()
            try:
                # Another thread would wait for the lock of a module that this one is importing.
                self.content = self.made() if any(map(is_being_imported, entry.functions)) else uninterrupted(self.made)
            finally:
                told.cancel()

    def made(self):
        """The content, compiled now, unless another process has done so meanwhile."""
        with COMPILATION, self.kept.exclusive():
            content = self.kept.load()
            if content is None:
                content = self.compile()
                self.kept.save(content)
            return content

    # No cached_property: before Python 3.12 it has a lock, which a fork might leave to nobody.
    @property
    def address(self):
        """Where it is in memory, for ever."""
        with COMPILATION:
            if self._address is None:
                self._address = loaded(self.content, self.symbol)
            return self._address

    @property
    def call(self):
        """For Python: parameters and result are integers."""
        if self._call is None:
            self._call = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * self.entry.parameters)(self.address)
        return self._call

    def compile(self):
        from . import compiler

        return compiler.object_code(self.entry, self.symbol)


def is_being_imported(function):
    """Whether this is while a function's module is executed for the first time."""
    spec = getattr(sys.modules.get(function.__module__), "__spec__", None)
    return getattr(spec, "_initializing", False)


def uninterrupted(function):
    """What the function returns, which another thread runs if Ctrl-C could interrupt this one.

    Numba must not be stopped halfway: what it has learnt by halves stays wrong. The interrupt is raised here at once,
    and the other thread goes on to its end.
    """
    if threading.current_thread() is not threading.main_thread():
        return function()
    outcome: SimpleQueue = SimpleQueue()
    context = copy_context()

    def work():
        try:
            outcome.put((context.run(function), None))
        except BaseException as error:
            outcome.put((None, error))

    threading.Thread(target=work, name="onnx_ops compiles").start()
    result, error = outcome.get()  # not join: interrupted, that takes the thread for one that has ended
    if error:
        raise error
    return result


def loaded(content, symbol):
    """The address of the function `symbol` in an object file's content. Raises OpError."""
    engine = _engine()
    for name in set(_OF_NUMBA.findall(content)):
        if not llvm.address_of_symbol(name.decode()):
            from numba import _helperlib  # as importing Numba takes long, only for code that calls it

            address = _helperlib.c_helpers.get(name.decode().removeprefix("numba_"))
            if not address:
                raise OpError("kernel", symbol, f"can't be loaded: it calls {name.decode()}, which Numba doesn't have")
            llvm.add_symbol(name.decode(), address)
    engine.add_object_file(llvm.ObjectFileRef.from_data(content))
    engine.finalize_object()
    return engine.get_function_address(symbol)


@functools.cache
def _engine():
    if BOUNDSCHECK:
        from . import bounds  # noqa: F401  which has the counter that checked code refers to
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


def once(function):
    """Decorator: functools.cache that keeps OpErrors, too. Numba explains a mistake in full only the first time."""

    @functools.cache
    def outcome(*args):
        try:
            return function(*args), None
        except OpError as error:
            return None, error

    @functools.wraps(function)
    def call(*args):
        made, error = outcome(*args)
        if error:
            raise OpError(*error.args) from error.__cause__
        return made

    return call


@once
def code(entry):
    """The `Code` of an entry. Raises OpError."""
    try:
        kept = Kept(entry.name + "-checked" * BOUNDSCHECK, digest(entry.functions, entry.name, entry))
    except OSError as error:
        not_kept(error)
        kept = NotKept(error)
    return Code(entry, kept)
