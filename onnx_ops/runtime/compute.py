"""What ONNX Runtime calls for every node of every operator, compiled.

It collects addresses and shapes into one record on its stack, lets the operator's plan check them and describe the
output, has ONNX Runtime allocate that, and hands the tiles to the session's own threads.
"""

import functools

import numpy as np
from numba import carray, types

from ..kernels.entry import call_dtype, callback
from ..kernels.memory import address, ccall, pointer, stack
from ..operator import MAX_INPUTS, MAX_RANK
from ..operators import OPERATORS
from .native import STATE


@functools.cache
def compute():
    """KernelComputeV2 as a compiled callback: (kernel state, OrtKernelContext*) -> OrtStatus*."""
    # The geometry comes last in a call, so one layout of what is before it serves all operators.
    call = call_dtype(np.dtype([("tiles", np.int64), ("rank", np.int64), ("shape", np.int64, (MAX_RANK,))]))
    largest = max(operator.geometry.itemsize for operator in OPERATORS)
    words = (call.fields["geometry"][1] + largest) // 8 + 1
    at = {name: offset for name, (_, offset, *_) in call.fields.items()}
    data_at, shape_at, scratch_at = at["data"], at["shape"], at["scratch"]
    out_shape_at = at["geometry"] + call["geometry"].fields["shape"][1]
    row = MAX_RANK * 8

    @callback(types.int64, (types.voidptr, types.voidptr), "compute")
    def compute(state, context):
        s = carray(state, (1,), STATE)[0]
        memory = stack(words)
        c = carray(memory, (1,), call)[0]
        if s.tile == 0:
            return ccall(s.slow, (state, context))
        at, value, info = address(memory), 0, 0
        for k in range(s.inputs):
            status = ccall(s.KernelContext_GetInput, (context, k, at + scratch_at))
            if status != 0:
                return status
            value = c.scratch[0]
            if s.GetTensorElementTypeAndShapeDataReference != 0:
                out = at + scratch_at
                status = ccall(s.GetTensorElementTypeAndShapeDataReference, (value, out, out + 8, out + 16))
                if status != 0:
                    return status
                rank = c.scratch[2]
                for a in range(min(rank, MAX_RANK)):
                    c.shape[k][a] = carray(pointer(c.scratch[1]), (rank,), np.int64)[a]
            else:
                status = ccall(s.GetTensorTypeAndShape, (value, at + scratch_at))
                if status != 0:
                    return status
                info = c.scratch[0]
                ccall(s.GetDimensionsCount, (info, at + scratch_at))
                rank = c.scratch[0]
                if rank <= MAX_RANK:
                    ccall(s.GetDimensions, (info, at + shape_at + row * k, rank))
                ccall(s.ReleaseTensorTypeAndShapeInfo, (info,))
            status = ccall(s.GetTensorMutableData, (value, at + data_at + 8 * k))
            if status != 0:
                return status
            if rank > MAX_RANK or (s.values[k] != 0 and (rank != 1 or c.shape[k][0] > MAX_RANK)):
                return ccall(s.slow, (state, context))
            if s.values[k] == 0:
                c.rank[k], c.size[k] = rank, 1
                for a in range(rank):
                    c.size[k] *= c.shape[k][a]
            else:
                count = c.shape[k][0]
                c.rank[k] = count
                for a in range(count):
                    if s.values[k] == 8:
                        c.shape[k][a] = carray(pointer(c.data[k]), (count,), np.int64)[a]
                    else:
                        c.shape[k][a] = carray(pointer(c.data[k]), (count,), np.int32)[a]
        if ccall(s.plan, (s.parameters, at)) != 0:
            return ccall(s.slow, (state, context))
        g = c.geometry
        status = ccall(s.KernelContext_GetOutput, (context, 0, at + out_shape_at, g.rank, at + scratch_at))
        if status != 0:
            return status
        status = ccall(s.GetTensorMutableData, (c.scratch[0], at + data_at + 8 * MAX_INPUTS))
        if status != 0:
            return status
        c.size[MAX_INPUTS] = 1
        for a in range(g.rank):
            c.size[MAX_INPUTS] *= g.shape[a]
        if g.tiles == 1:
            ccall(s.tile, (at, 0))
        elif g.tiles > 1:
            ccall(s.KernelContext_ParallelFor, (context, s.tile, g.tiles, 0, at))
        return 0

    return compute
