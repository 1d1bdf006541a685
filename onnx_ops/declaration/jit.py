"""Marks functions that Numba may compile, and says with which flags.

Functions that compiled code calls are marked `@jitable` and stay plain Python functions, importable without Numba.
compilation.py compiles them as part of the functions that call them.
"""

import functools
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, overload

_F = TypeVar("_F", bound=Callable[..., Any])
_PACKAGE = os.path.dirname(os.path.dirname(__file__))
# A slow mode that finds indices outside of arrays: see bounds.py.
BOUNDSCHECK = os.environ.get("ONNX_OPS_BOUNDSCHECK", "0") not in ("", "0")
# error_model: a division by zero raises nothing; NumPy's rules give inf, nan or 0. An exception would end the call with
# no more than "compiled code has raised an exception".
#
# _nrt: compiled code borrows arrays from its caller and counts no references, so a slice costs nothing instead of two
# atomic additions. And kernels can't allocate: np.empty is an error of the compiler. The caller provides a workspace.
# The only allocation is the block of a refusal, for which `require` calls malloc (refusals.py).
FLAGS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}
# Allows a multiplication and the following addition to become one instruction. Not used where rounding is specified.
FUSE: dict[str, Any] = {"fastmath": {"contract"}}
# Promises that no two of the function's arrays overlap, as far as it touches both. Without it, LLVM compares their
# addresses before a vectorized loop, and doesn't vectorize if there are many.
APART: dict[str, Any] = {"noalias": True}
# Makes one function of the marked one and its caller, as if its lines stood there: LLVM makes other code of a
# call, even of one that it inlines.
IN_PLACE: dict[str, Any] = {"inline": "always"}
# Marked functions have no wrappers for calls from Python and C, since compiled code calls them.
INNER: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
# How the names of variables begin in which Numba puts addresses, which are of this process alone.
ADDRESS = "numba.dynamic.globals"

NUMBA = ((0, 60), (0, 68))  # the versions whose internals numba_internals.py knows


@functools.cache
def numba_obstacle() -> str | None:
    """Why Numba can't compile kernels here, or None. Does not import Numba."""
    if not importlib.util.find_spec("numba"):
        return "Numba can't be imported, which compiles the kernels when they are needed: pip install 'onnx-ops[jit]'"
    from importlib import metadata

    version = metadata.version("numba")
    if not NUMBA[0] <= tuple(map(int, version.split(".")[:2])) <= NUMBA[1]:
        least, most = (".".join(map(str, each)) for each in NUMBA)
        return f"Numba is of version {version}, but must be one of {least} to {most} to compile the kernels"
    return None


# The compiler's modules, with those that they import, and their files. The sources are part of every key (key.py).
COMPILER: dict[str, str] = {
    f"{__name__.partition('.')[0]}.{name}": os.path.join(_PACKAGE, *name.split(".")) + ".py"
    for name in """compiler.arrays compiler.bounds compiler.compilation compiler.cpu_levels compiler.halves
         compiler.numba_internals compiler.records compiler.refusals compiler.simd compiler.simd_points
         compiler.simd_products compiler.simd_rows compiler.target declaration.attributes declaration.dtypes
         declaration.errors declaration.jit declaration.limits declaration.operator kernels.elements
         kernels.returned kernels.vectors""".split()
}


def stamps() -> list[tuple[int, int]]:
    """When each of the compiler's files was last changed, and its size; nothing where they are in a zip file."""
    with suppress(OSError):
        return [(s.st_mtime_ns, s.st_size) for s in map(os.stat, COMPILER.values())]
    return []


stamps_at_import = stamps()
flags_of: dict[Callable[..., Any], dict[str, Any]] = {}  # {marked function: its flags}
marked: list[Callable[..., Any]] = []  # those that Numba doesn't know yet


@overload
def jitable(function: _F, **flags: Any) -> _F: ...


@overload
def jitable(function: None = None, **flags: Any) -> Callable[[_F], _F]: ...


def jitable(function: Any = None, **flags: Any) -> Any:
    """Decorator: mark a function as one that kernels and rules may call.

    It stays a plain function of Python. Numba compiles it together with the
    kernel or rule that calls it.

    Parameters
    ----------
    function : callable, optional
        The function. Without it, a decorator with these flags is returned.
    **flags
        Flags for Numba, as of `numba.njit`.

    Returns
    -------
    callable
        The function itself.

    Examples
    --------
    >>> @onnx_ops.jitable
    ... def clipped(value, least, most):
    ...     return min(max(value, least), most)
    >>> clipped(7, 0, 5)
    5
    """
    if function is None:
        return functools.partial(jitable, **flags)
    flags_of[function] = FLAGS | INNER | flags
    marked.append(function)
    return function


def signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function, in which annotations of unknown names stay references.

    Python 3.14 evaluates annotations when they are asked for, not with the `def`.
    """
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


def known(count: int) -> tuple[int, ...]:
    """A count for compiled code, as a tuple: its length is known when a function is compiled, once for each length."""
    return (0,) * count
