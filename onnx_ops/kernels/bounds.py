"""Bounds checks in all compiled code of this process, for as long as one looks for mistakes (ONNX_OPS_BOUNDSCHECK=1).

An index that leaves its array makes the callback return at once. It can raise no exception: Python reports an
IndexError to `sys.unraisablehook`, which by default prints it. Importing this module turns the checks on.
"""

import ctypes

import llvmlite.binding
from llvmlite import ir
from numba import config
from numba.core import cgutils

_SYMBOL = "onnx_ops_bounds_checks"
_count = ctypes.c_int64()
# By name, since code from the cache is linked to the counter of another process.
llvmlite.binding.add_symbol(_SYMBOL, ctypes.addressof(_count))
_check = cgutils.do_boundscheck


def checks():
    """How many indices have been checked so far."""
    return _count.value


def _counted_check(context, builder, *args, **kwargs):
    word = ir.IntType(64)
    counter = builder.module.globals.get(_SYMBOL)
    if counter is None:
        counter = ir.GlobalVariable(builder.module, word, _SYMBOL)
    builder.atomic_rmw("add", counter, word(1), "monotonic")
    _check(context, builder, *args, **kwargs)


cgutils.do_boundscheck = _counted_check
config.BOUNDSCHECK = 1
