"""Which functions Numba may compile, and with which flags.

Functions that compiled code calls are marked `@jitable` and stay plain Python functions, importable without Numba;
`compiler.py` compiles what calls them.
"""

import functools
import importlib.util
import os

# A slow mode to look for kernels that leave their arrays: see bounds.py.
BOUNDSCHECK = os.environ.get("ONNX_OPS_BOUNDSCHECK", "0") not in ("", "0")
# An exception in a C callback can't reach anyone: Numba would print it and report success. A division by zero must
# therefore not raise; NumPy's rules give inf, nan or 0.
#
# Arrays are borrowed from the caller, not counted: what a slice costs is then nothing, instead of two atomic additions.
# And nothing can be allocated: np.empty is an error of the compiler, where a failing one would be printed by Numba and
# reported as success. Kernels get their workspace from whoever calls them.
FLAGS = {"error_model": "numpy", "_nrt": False}
# Lets a multiplication and the following addition become one instruction. Never where rounding is specified.
FUSE = {"fastmath": {"contract"}}
# Lets a sum be added up in any order, many lanes at a time. Only where the order can't be seen in the result.
REORDER = {"fastmath": {"reassoc"}}
# Promises that no two of the function's arrays overlap, as far as it touches both. LLVM otherwise compares their
# addresses before it vectorizes a loop, and gives up where there are many.
APART = {"noalias": True}
# What only calls from Python and C need, marked functions do without: they are called by compiled code.
INNER = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}

NUMBA = ((0, 60), (0, 68))  # the versions whose internals compiler.py knows


@functools.cache
def numba_obstacle():
    """Why Numba can't compile kernels here, or None. Asked without importing it."""
    if not importlib.util.find_spec("numba"):
        return "Numba can't be imported, which compiles the kernels when they are needed: pip install 'onnx-ops[jit]'"
    from importlib import metadata

    version = metadata.version("numba")
    if not NUMBA[0] <= tuple(map(int, version.split(".")[:2])) <= NUMBA[1]:
        least, most = (".".join(map(str, each)) for each in NUMBA)
        return f"Numba is of version {version}, but must be one of {least} to {most} to compile the kernels"
    return None


marked: list = []  # (function, flags) of those that Numba has not been told of yet


# {module: stamp of its file when it was imported}: a file that is edited later is not what this process runs.
stamps: dict = {}


def stamp(path):
    """The path, and when the file there was last changed; None if it isn't one, as within a zip file."""
    try:
        return path, os.stat(path).st_mtime_ns
    except OSError:
        return path, None


def jitable(function=None, **flags):
    """Mark a plain function as one that compiled code may call."""
    if function is None:
        return functools.partial(jitable, **flags)
    if function.__module__ not in stamps:
        stamps[function.__module__] = stamp(function.__code__.co_filename)
    marked.append((function, FLAGS | INNER | flags))
    return function
