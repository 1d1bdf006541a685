"""Compiled code just in time: from the cache, or from Numba, which is imported only then."""

from __future__ import annotations

import ctypes
import functools
import logging
import mmap
import re
import secrets
import sys
import threading
import time
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from queue import SimpleQueue
from typing import TYPE_CHECKING

import llvmlite.binding as llvm

from ..declaration.errors import OpError, reason
from ..declaration.jit import BOUNDSCHECK
from ..system.locks import COMPILATION, POOL
from .cache import Kept
from .key import digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TypeVar

    from .records import Entry

    Result = TypeVar("Result")

# Names of functions of Numba's own library, in an object file.
_OF_NUMBA = re.compile(rb"(?<=\0)numba_\w+(?=\0)")
PATIENCE = 1.0  # seconds of compilation before a message is logged
# Exceptions that may not come again. Python raises SystemError where C code has no memory.
WANTS = MemoryError, OSError, SystemError
STACK = 2**23  # bytes for a thread that compiles
MEMORY = 400 * 2**20  # bytes of addresses that compiling a kernel takes at most
# Whether there is no message, because users expect the compilation.
is_silent = ContextVar("is_silent", default=False)
_title: ContextVar[str] = ContextVar("title")  # of the operator whose function `code` is asked for
# Titles of operators in messages: a session compiles several functions of one.
_announced: set[str] = set()
log = logging.getLogger("onnx_ops")


class Code:
    """The compiled function of an entry (records.py).

    symbol   the function's name
    content  the content of an object file with the function
    kept     the file in the cache
    """

    def __init__(self, entry: Entry, kept: Kept) -> None:
        self.entry, self.kept = entry, kept
        self._address: int | None = None
        self._call: Callable[..., int] | None = None
        self.symbol = re.sub(r"\W", "_", f"{entry.name}-{kept.key}")
        with COMPILATION:
            content = self.cached()
        if content is None:
            # While this thread imports the function's module, another one would wait for that
            # module's lock.
            is_here = any(map(is_being_imported, entry.functions))
            kept.check()
            # Without memory LLVM, and the C library's thread-local data, end the process.
            mmap.mmap(-1, MEMORY).close()
            with announced(_title.get(entry.name), kept):
                content = self.make() if is_here else uninterrupted(self.make)
        self.content = content

    def cached(self) -> bytes | None:
        """Return the content of the file in the cache, or None if this process can't load it."""
        content = self.kept.load()
        return content if content is not None and has_function(content, self.symbol) else None

    def make(self) -> bytes:
        """Compile the content, unless another process has done so meanwhile."""
        with COMPILATION, self.kept.exclusive():
            content = self.cached()
            if content is None:
                content = self.compile()
                if not self.kept.obstacle and key_of(self.entry) != (self.kept.key, None):
                    self.kept.obstacle = "values that it reads changed during the compilation"
                self.kept.save(content)
            return content

    # Not a cached_property: before Python 3.12 it has a lock, which a child forked meanwhile never
    # gets.
    @property
    def address(self) -> int:
        """Return the function's permanent address in memory."""
        with COMPILATION:
            if self._address is None:
                self._address = loaded(self.content, self.symbol)
            return self._address

    @property
    def call(self) -> Callable[..., int]:
        """Return the function as a Python callable with integers as parameters and result."""
        if self._call is None:
            self._call = ctypes.CFUNCTYPE(
                ctypes.c_int64, *[ctypes.c_int64] * self.entry.parameters
            )(self.address)
        return self._call

    def compile(self) -> bytes:
        from . import compilation

        return compilation.object_code(self.entry, self.symbol)


@contextmanager
def announced(title: str, kept: Kept) -> Iterator[None]:
    """Return a context for the compilation of an operator's function, which is logged unless
    `is_silent`.

    A message is logged once for each operator, if the compilation takes long.

    The records have the operator's title as `compiling`, or None at the end, for the command line.
    """
    if is_silent.get():
        yield
        return
    detail = (
        "a few seconds" if kept.obstacle else f"once, a few seconds; cached in {kept.path.parent}"
    )
    begin = time.monotonic()

    def warn() -> None:
        if title not in _announced:
            _announced.add(title)
            log.warning("onnx_ops: compiling %s (%s)", title, detail, extra={"compiling": title})

    timer = threading.Timer(PATIENCE, warn)
    timer.daemon = True
    timer.start()
    log.info("onnx_ops: compiling a function of %s", title, extra={"compiling": title})
    try:
        yield
    finally:
        timer.cancel()
        seconds = time.monotonic() - begin
        log.info(
            "onnx_ops: a function of %s took %.1f s", title, seconds, extra={"compiling": None}
        )


def is_being_imported(function: Callable[..., Any]) -> bool:
    """Return whether a function's module is being executed for the first time."""
    spec = getattr(sys.modules.get(function.__module__), "__spec__", None)
    return getattr(spec, "_initializing", False)


def uninterrupted(function: Callable[[], Result]) -> Result:
    """Return function(), which compiles, on another thread.

    That thread has a stack that is large enough for LLVM.

    Numba must not be interrupted, since its state would stay inconsistent. The interrupt is raised
    here at once, and the other thread goes on to its end.
    """
    outcome: SimpleQueue = SimpleQueue()
    context = copy_context()

    def work() -> None:
        try:
            outcome.put((context.run(function), None))
        except BaseException as error:
            outcome.put((None, error))

    with POOL:
        before = threading.stack_size(STACK)
        try:
            threading.Thread(target=work, name="onnx_ops compiles").start()
        finally:
            threading.stack_size(before)
    try:
        # Not join: if it is interrupted, it takes the thread for one that has ended.
        result, error = outcome.get()
    except BaseException:
        log.warning(
            "onnx_ops: interrupted; the process can end in some seconds, when %s is compiled",
            _title.get(),
        )
        raise
    if error:
        raise error
    return result


def has_function(content: bytes, symbol: str) -> bool:
    """Return whether the content is an object file for this process with a function `symbol`.

    LLVM ends the process when it loads other content.
    """
    is_ours = f"{symbol}\0".encode() in content and content.startswith(_header())
    return is_ours and bool(llvm.ObjectFileRef.from_data(content))


def loaded(content: bytes, symbol: str) -> int:
    """Load an object file's content; return the address of its function `symbol`.

    Raises OpError.
    """
    engine = _engine()
    for name in {name.decode() for name in _OF_NUMBA.findall(content)}:
        if not llvm.address_of_symbol(name):
            # Only for code that needs it, as importing Numba takes long.
            from .numba_internals import (
                c_helper,
            )

            address = c_helper(name.removeprefix("numba_"))
            if not address:
                raise OpError(
                    "kernel", symbol, f"can't be loaded: it calls {name}, which Numba doesn't have"
                )
            llvm.add_symbol(name, address)
    engine.add_object_file(llvm.ObjectFileRef.from_data(content))
    engine.finalize_object()
    address = engine.get_function_address(symbol)
    if not address:
        raise OpError("kernel", symbol, "can't be loaded: its object file doesn't define it")
    return address


@functools.cache
def _engine() -> llvm.ExecutionEngine:
    if BOUNDSCHECK:
        from . import bounds  # noqa: F401  it has the counter that checked code refers to
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())


def _machine() -> llvm.TargetMachine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine()


@functools.cache
def _header() -> bytes:
    """Return the first bytes of object files for this process, which state the format and the
    architecture.
    """
    empty = _machine().emit_object(llvm.parse_assembly(""))
    # Of ELF and Mach-O; COFF begins with the architecture.
    sizes = {
        b"\x7fELF": 20,
        b"\xcf\xfa\xed\xfe": 16,
    }
    return empty[: sizes.get(empty[:4], 2)]


def key_of(entry: Entry) -> tuple[str, OSError | None]:
    """Return (key of an entry's code, reason why it can't be kept or None)."""
    try:
        return digest(entry.functions, entry.name, entry), None
    except OSError as error:
        return secrets.token_hex(8), error


@functools.cache
def _outcome(entry: Entry) -> Code | OpError:
    """Return the `Code` of an entry, or the OpError: Numba explains a mistake in full only once.

    An error for want of memory, of a thread or of a file is raised, as an OpError. So it isn't
    kept.
    """
    try:
        return Code(entry, Kept(entry.name + "-checked" * BOUNDSCHECK, *key_of(entry)))
    except (OpError, RuntimeError, *WANTS) as error:  # RuntimeError: there is no room for a thread
        cause: BaseException | None = error
        while cause and not isinstance(cause, WANTS):
            cause = cause.__cause__ or cause.__context__
        if cause or not isinstance(error, OpError):
            raise OpError(
                "kernel", entry.name, f"can't be compiled: {reason(cause or error)}"
            ) from error
        return error


def code(entry: Entry, title: str | None = None) -> Code:
    """Return the `Code` of an entry. Raises OpError.

    title  of the operator, for messages
    """
    token = _title.set(title or entry.name)
    try:
        outcome = _outcome(entry)
    finally:
        _title.reset(token)
    if isinstance(outcome, OpError):
        raise OpError(*outcome.args) from outcome.__cause__
    return outcome
