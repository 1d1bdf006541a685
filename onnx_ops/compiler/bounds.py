"""Bounds checks in all code that this process compiles, to look for mistakes (ONNX_OPS_BOUNDSCHECK=1).

Compiled code with an index outside of its array returns at once, and the call fails with "compiled code has raised an
exception". Importing this module turns the checks on; it replaces `cgutils.do_boundscheck` of Numba to count them.
"""

import ctypes

import llvmlite.binding
from llvmlite import ir
from numba import config
from numba.core import cgutils

_SYMBOL = "onnx_ops_bounds_checks"
_count = ctypes.c_int64()
# Code refers to the counter by name: code from the cache was compiled by another process, with another address.
llvmlite.binding.add_symbol(_SYMBOL, ctypes.addressof(_count))
_check = cgutils.do_boundscheck


def checks():
    """The number of indices that have been checked so far."""
    return _count.value


def _counted_check(context, builder, *args, **kwargs):
    int64 = ir.IntType(64)
    counter = builder.module.globals.get(_SYMBOL)
    if counter is None:
        counter = ir.GlobalVariable(builder.module, int64, _SYMBOL)
    builder.atomic_rmw("add", counter, int64(1), "monotonic")
    _check(context, builder, *args, **kwargs)


cgutils.do_boundscheck = _counted_check
config.BOUNDSCHECK = 1
