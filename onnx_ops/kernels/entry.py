"""The compiled entry points: C callbacks around an operator's plan and kernel, cached on disk by Numba.

Each is cached under a name that holds a digest of this package's sources, since Numba itself would only notice a change
in the file of the entry point. Importing this module imports Numba.
"""

import functools
import hashlib
import logging
import threading
import warnings
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import numba
import numpy as np
import platformdirs
from numba import carray, config, types
from numba.core.caching import FunctionCache
from numba.core.ccallback import CFunc
from numba.core.runtime import rtsys
from numba.extending import lower_builtin, register_jitable, type_callable

from ..errors import refuse
from ..operator import MAX_INPUTS, MAX_RANK
from . import elements_numba, vectors_numba  # noqa: F401  for their overloads
from .jit import BOUNDSCHECK, FLAGS, marked
from .memory import pointer, shapes, tensors

# One call of one operator, as all compiled code sees it. Position MAX_INPUTS is the output.
# `shape` holds an input's shape or, where the plan wants these, its values; `rank` is how many of them there are.
_SLOTS = MAX_INPUTS + 1
_CALL = [
    ("data", np.int64, (_SLOTS,)),
    ("size", np.int64, (_SLOTS,)),
    ("rank", np.int64, (_SLOTS,)),
    ("shape", np.int64, (_SLOTS, MAX_RANK)),
    ("scratch", np.int64, (3,)),
]
PATIENCE = 1.0  # seconds of compiling after which users are told
expected = ContextVar("expected", default=False)  # whether they know
_lock = threading.RLock()
log = logging.getLogger("onnx_ops")
if BOUNDSCHECK:
    from . import bounds  # noqa: F401  all code that is compiled from here on is checked


def call_dtype(geometry):
    """The dtype of one call of an operator with this geometry, which comes last."""
    return np.dtype([*_CALL, ("geometry", geometry)])


@type_callable(refuse)
def _(context):
    return lambda argument, value, rule, expected=None: types.int64


@lower_builtin(refuse, types.VarArg(types.Any))
def _(context, builder, signature, values):
    return context.get_constant(types.int64, 1)


@functools.cache
def digest():
    """Of every source file of the package."""
    root = Path(__file__).parent.parent
    found = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


@contextmanager
def cache_directory():
    """Numba keeps what is compiled meanwhile in the user's cache, unless NUMBA_CACHE_DIR says where.

    Its own choice, beside the sources, would outlive an uninstalled package and be in the next one's way.
    """
    chosen = config.CACHE_DIR
    config.CACHE_DIR = chosen or platformdirs.user_cache_dir("onnx_ops", appauthor=False)
    try:
        yield
    finally:
        config.CACHE_DIR = chosen


def tell_numba():
    """Let compiled code call all functions that have been marked so far."""
    with _lock:
        while marked:
            helper, flags = marked.pop()
            register_jitable(**flags)(helper)


class _Cache(FunctionCache):
    """Loads what is cached without first importing all that Numba needs to compile, which takes longer than the rest.

    Compiled code refers to functions of Numba's runtime by name; LLVM ends the process if it doesn't know one. Hence
    only with versions of Numba that were found to need no more than this.
    """

    TRIED = ((0, 60), (0, 68))

    def load_overload(self, sig, target_context):
        try:
            if not self.TRIED[0] <= numba.version_info.short <= self.TRIED[1]:
                return super().load_overload(sig, target_context)
            rtsys.initialize(target_context)
            with self._guard_against_spurious_io_errors():
                return self._load_overload(sig, target_context)
        except Exception:  # a damaged file: it is forgotten, and written again after compiling
            self.flush()
            return None


class Callback(CFunc):
    """A C callback (`.address`, `.ctypes`), cached on disk where possible."""

    def enable_caching(self):
        self._cache = _Cache(self._pyfunc)

    def _compile_uncached(self):
        what, where = self.__name__.replace("-", " "), self._cache.cache_path
        kept = f"kept in {Path(where).parent}" if where else "not kept"
        told = threading.Timer(PATIENCE, log.warning, ["onnx_ops: compiling %s (once; %s)", what, kept])
        told.daemon = True
        if not expected.get():
            told.start()
        try:
            return super()._compile_uncached()
        finally:
            told.cancel()


def callback(restype, argtypes, name):
    """Decorator: the function as a compiled `Callback`.

    What it closes over is part of the cache's key: plain functions of modules and dtypes have a stable one, Numba's own
    function objects do not, and must be globals.
    """

    def wrap(function):
        function.__name__, function.__qualname__ = (
            name,
            f"{name}-{digest()}" + ("-checked" if config.BOUNDSCHECK else ""),
        )
        with _lock:
            tell_numba()
            made = Callback(function, (argtypes, restype), {}, dict(FLAGS))
            try:
                with cache_directory():
                    made.enable_caching()
                    made.compile()
            except Exception as error:  # of the cache, as a rule; if it is the compiler's, it comes again
                warnings.warn(f"onnx_ops: compiled code is not kept for the next process: {error}", stacklevel=2)
                made = Callback(function, (argtypes, restype), {}, dict(FLAGS))
                made.compile()
        return made

    return wrap


@functools.cache
def plan(function, positions, parameters, geometry):
    """`function(parameters, shapes, geometry)` as a C callback (address of parameters, address of call) -> int64.

    `positions` are those of all the inputs.
    """
    call = call_dtype(geometry)

    @callback(types.int64, (types.voidptr, types.voidptr), _name(function))
    def compiled(parameters_at, call_at):
        c = carray(call_at, (1,), call)[0]
        return function(carray(parameters_at, (1,), parameters)[0], shapes(c, positions), c.geometry)

    return compiled


@functools.cache
def tile(function, storage, positions, geometry):
    """`function(*tensors, geometry, tile, out)` as a C callback (address of call, index of the tile) -> nothing.

    `storage`: the dtypes of the tensors, found at these `positions` of the call, and last that of the output.
    """
    call = call_dtype(geometry)
    *kinds, out_kind = storage
    kinds = tuple(kinds)

    @callback(
        types.void, (types.voidptr, types.intp), _name(function, *(d.names[0] if d.names else d.name for d in storage))
    )
    def compiled(call_at, index):
        c = carray(call_at, (1,), call)[0]
        out = carray(pointer(c.data[MAX_INPUTS]), (c.size[MAX_INPUTS],), out_kind)
        function(*tensors(c, positions, kinds), c.geometry, index, out)

    return compiled


def _name(function, *parts):
    return "-".join((function.__module__.rpartition(".")[2], function.__name__, *parts))
