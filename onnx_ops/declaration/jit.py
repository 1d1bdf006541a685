"""Mark functions that Numba may compile, with their compiler flags.

Functions that compiled code calls are marked `@jitable` and stay plain Python functions, importable
without Numba. compilation.py compiles them as part of the functions that call them.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar, overload

    _F = TypeVar("_F", bound=Callable[..., Any])

_PACKAGE = os.path.dirname(os.path.dirname(__file__))
# A slow mode that finds indices outside of arrays: see bounds.py.
BOUNDSCHECK = os.environ.get("ONNX_OPS_BOUNDSCHECK", "0") not in ("", "0")
# error_model: a division by zero raises nothing and gives inf, nan or 0, as in NumPy. An exception
# would end the call with a message that doesn't name it.
#
# _nrt: compiled code borrows arrays from its caller and counts no references, so a slice costs
# nothing instead of two atomic additions. Kernels can't allocate: np.empty is a compiler error. The
# caller provides a workspace. The only allocation is the block of a refusal, for which `require`
# calls malloc (refusals.py).
FLAGS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}
# Allows a multiplication and the following addition to become one instruction. Not used where
# rounding is specified.
FUSE: dict[str, Any] = {"fastmath": {"contract"}}
# Promises that the parts of arrays that a function touches don't overlap. Without it, LLVM compares
# their addresses before a vectorized loop, and doesn't vectorize if there are many.
APART: dict[str, Any] = {"noalias": True}
# Numba inserts the function's lines into its caller. LLVM generates different code for a call, even
# for one that it inlines.
IN_PLACE: dict[str, Any] = {"inline": "always"}
# Marked functions have no wrappers for calls from Python and C, since compiled code calls them.
INNER: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
# Prefix of the variables in which Numba puts addresses of this process.
ADDRESS = "numba.dynamic.globals"

NUMBA = ((0, 60), (0, 68))  # versions whose internals numba_internals.py supports


@functools.cache
def numba_obstacle() -> str | None:
    """Return the reason why Numba can't compile kernels here, or None. Does not import Numba."""
    if not importlib.util.find_spec("numba"):
        return "Numba can't be imported to compile kernels: pip install 'numba>=0.60,<0.69'"
    from importlib import metadata

    version = metadata.version("numba")
    if not NUMBA[0] <= tuple(map(int, version.split(".")[:2])) <= NUMBA[1]:
        least, most = (".".join(map(str, numbers)) for numbers in NUMBA)
        return (
            f"Numba is of version {version}, but must be one of {least} to {most} to compile "
            "the kernels"
        )
    return None


# {module: file} of the compiler and its imports. The sources are part of every key (key.py).
COMPILER: dict[str, str] = {
    f"{__name__.partition('.')[0]}.{name}": os.path.join(_PACKAGE, *name.split(".")) + ".py"
    for name in """compiler.arrays compiler.bounds compiler.compilation compiler.cpu_levels
         compiler.halves compiler.numba_internals compiler.records compiler.refusals compiler.simd
         compiler.simd_points compiler.simd_products compiler.simd_rows compiler.target
         declaration.attributes declaration.dtypes declaration.errors declaration.jit
         declaration.limits declaration.operator kernels.elements kernels.returned
         kernels.vectors""".split()
}


def stamps() -> list[tuple[int, int]]:
    """Return (time of the last change, size) of the compiler's files; [] for a zip file."""
    with suppress(OSError):
        return [(s.st_mtime_ns, s.st_size) for s in map(os.stat, COMPILER.values())]
    return []


stamps_at_import = stamps()
flags_of: dict[Callable[..., Any], dict[str, Any]] = {}  # {marked function: its flags}
marked: list[Callable[..., Any]] = []  # functions that `tell_numba` hasn't registered yet


if TYPE_CHECKING:

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
        The function itself. A function or flag that Numba can't compile is
        refused when a kernel that calls it is compiled.

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
    """Return the signature of a function. Annotations with undefined names stay references.

    Python 3.14 evaluates annotations when they are read, not with the `def`.
    """
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


def known(count: int) -> tuple[int, ...]:
    """Return a tuple of this length.

    Numba compiles a function for each length, which is then a constant.
    """
    return (0,) * count
