"""The compiled entry points: C callbacks around an operator's plan and kernel, kept on disk (cache.py).

Importing this module imports Numba.
"""

import functools
import itertools
import logging
import os
import re
import sys
import threading
from contextlib import contextmanager
from contextvars import ContextVar

import numba
import numpy as np
from numba import config, types
from numba.core.bytecode import FunctionIdentity
from numba.core.ccallback import CFunc
from numba.core.codegen import CPUCodeLibrary
from numba.extending import lower_builtin, register_jitable, type_callable

from ..errors import OpError, refuse
from ..locks import COMPILATION
from . import elements_numba, vectors_numba  # noqa: F401  for their overloads
from .cache import Kept, NotKept, digest, not_kept
from .call import OUTPUT, call_dtype
from .jit import BOUNDSCHECK, FLAGS, marked
from .memory import array_at, give_back, shapes, take_first, tensors

NUMBA = os.path.dirname(numba.__file__)
PATIENCE = 1.0  # seconds of compiling after which users are told
expected = ContextVar("expected", default=False)  # whether they know
log = logging.getLogger("onnx_ops")
if BOUNDSCHECK:
    from . import bounds  # noqa: F401  all code that is compiled from here on is checked


def tell_code_apart():
    """Have Numba number functions from a random number on, so that no two processes give one name to different code.

    A name in machine code consists of the function's, of this number, and of types, where records are numbered as they
    are met. One process loads what several have compiled, and of code with one name only what it loads first.
    """
    FunctionIdentity._unique_ids = itertools.count(int.from_bytes(os.urandom(7), "little"))


tell_code_apart()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=tell_code_apart)


@type_callable(refuse)
def _(context):
    return lambda argument, value, rule, expected=None: types.int64


@lower_builtin(refuse, types.VarArg(types.Any))
def _(context, builder, signature, values):
    return context.get_constant(types.int64, 1)


def tell_numba():
    """Let compiled code call all functions that have been marked so far."""
    with COMPILATION:
        while marked:
            helper, flags = marked.pop()
            register_jitable(**flags)(helper)


def cause(error):
    """What an exception of the compiler is about, on one line.

    A message of Numba's nests the explanation for each function on the way to the reason, and after it names the lines.
    """
    heading, *lines = [line.strip() for line in str(error).splitlines()] or [""]
    after = [k for k, line in enumerate([heading, *lines]) if "Failed in nopython mode" in line]
    if not after or after[-1] >= len(lines):
        return f"{type(error).__name__}: {heading}"
    lines = lines[after[-1] :]
    reason = " ".join([lines[0], *[line for line in lines[:4] if line.startswith(">>>")]])
    if "Only accept returning of array" in reason:
        reason = "it allocates an array; compiled code has only the workspace that its plan states"
    places = re.findall(r"^During: typing of .* at (.+) \((\d+)\)$", "\n".join(lines), re.MULTILINE)
    places = [f" ({file}, line {line})" for file, line in places if not file.startswith(NUMBA)]
    return reason + (places[0] if places else "")


@contextmanager
def heeding_interrupts():
    """Raise at the end what ended one of the compiler's C callbacks, such as Ctrl-C, which Python would only print.

    While LLVM is at work, which takes most of the time, Python meets Ctrl-C nowhere else.
    """
    dropped, before, thread = [], sys.unraisablehook, threading.get_ident()

    def heed(unraisable):
        if threading.get_ident() == thread and not issubclass(unraisable.exc_type, Exception):
            dropped.append(unraisable.exc_value or unraisable.exc_type())
        else:
            before(unraisable)

    sys.unraisablehook = heed
    try:
        yield
    finally:
        sys.unraisablehook = before
        if dropped:
            raise dropped[0]


def optimized_once(compile_function):
    """What `compile_function` compiles, optimized by LLVM together with all that it calls.

    Numba also optimizes each of these by itself before, with its own callees, so the innermost ones as often as there
    are levels around them. It still does where Python calls them, too, as it does users' own compiled functions. All
    become local to the code that calls them: of functions of one name in several pieces of code, the first would run
    for all.
    """
    optimize, outermost = CPUCodeLibrary._optimize_final_module, []

    def optimize_outermost(library):
        functions = [f for f in library._final_module.functions if not f.is_declaration]
        if library in outermost:
            for function in functions:
                if not function.name.startswith("cfunc."):
                    function.linkage = "internal"
            optimize(library)
        elif any(f.name.startswith("_ZN7cpython") for f in functions):
            optimize(library)

    CPUCodeLibrary._optimize_final_module = optimize_outermost
    try:
        compiled = compile_function()
        outermost.append(compiled.library)
        compiled.library.finalize()
        return compiled
    finally:
        CPUCodeLibrary._optimize_final_module = optimize


class Callback(CFunc):
    """A C callback (`.address`, `.ctypes`) that is compiled now, or loaded."""

    def __init__(self, function, signature, kept):
        super().__init__(function, signature, {}, dict(FLAGS))
        self._cache = self.kept = kept
        with COMPILATION, kept.exclusive():
            tell_numba()
            with heeding_interrupts():
                self.compile()

    def _compile_uncached(self):
        kept = f"to be kept in {self.kept.path.parent}" if self.kept.path else "not kept"
        told = threading.Timer(PATIENCE, log.warning, ["onnx_ops: compiling %s (once; %s)", self.__name__, kept])
        told.daemon = True
        if not expected.get():
            told.start()
        try:
            return optimized_once(super()._compile_uncached)
        except Exception as error:
            raise OpError("kernel", self.__name__, f"can't be compiled: {cause(error)}") from error
        finally:
            told.cancel()


def callback(restype, argtypes, name, owner, *details):
    """Decorator: the function as a compiled `Callback`; `owner` and `details` are explained in `digest`."""

    def wrap(function):
        function.__name__ = function.__qualname__ = name
        try:
            kept = Kept(name + "-checked" * bool(config.BOUNDSCHECK), digest(owner, name, details))
        except OSError as error:
            not_kept(error)
            kept = NotKept(error)
        return Callback(function, (argtypes, restype), kept)

    return wrap


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
def plan(function, positions, parameters, geometry):
    """`function(parameters, shapes, geometry)` as a C callback (address of parameters, address of call) -> int64.

    `positions` are those of all the inputs.
    """
    call = call_dtype(geometry)
    name = _name(function)

    @callback(types.int64, (types.voidptr, types.voidptr), name, function, positions, parameters, geometry)
    def compiled(parameters_at, call_at):
        c = array_at(call_at, 1, call)[0]
        return function(array_at(parameters_at, 1, parameters)[0], shapes(c, positions), c.geometry)

    return compiled


@once
def tile(function, storage, positions, geometry):
    """`function(*tensors, geometry, tile, workspace, out)` as a C callback (address of call, index of the tile).

    `storage`: the dtypes of the tensors, found at these `positions` of the call, and last that of the output.
    """
    call = call_dtype(geometry)
    *kinds, out_kind = storage
    kinds = tuple(kinds)
    name = _name(function, *(d.names[0] if d.names else d.name for d in storage))

    @callback(types.void, (types.voidptr, types.intp), name, function, storage, positions, geometry)
    def compiled(call_at, index):
        c = array_at(call_at, 1, call)[0]
        size, out = c.geometry.workspace, array_at(c.data[OUTPUT], c.size[OUTPUT], out_kind)
        number = take_first(c.busy)
        workspace = array_at(c.workspace + number * size, size, np.uint8)
        function(*tensors(c, positions, kinds), c.geometry, index, workspace, out)
        give_back(c.busy, number)

    return compiled


def _name(function, *parts):
    return "-".join((function.__module__.rpartition(".")[2], function.__name__, *parts))
