"""What ONNX Runtime calls for every node of every operator, compiled.

It collects addresses and shapes into one record on its stack, lets the operator's plan check them and describe the
output, has ONNX Runtime allocate that, and hands the tiles to the session's own threads with memory to work in.
"""

import functools

import numpy as np
from numba import types

from ..kernels.call import OUTPUT, call_dtype
from ..kernels.entry import callback
from ..kernels.memory import address, array_at, ccall, copy, stack
from ..operator import MAX_GEOMETRY, MAX_RANK, MAX_TILES, geometry
from .state import STATE


@functools.cache
def compute():
    """KernelComputeV2 as a compiled callback: (kernel state, OrtKernelContext*) -> OrtStatus*."""
    call = call_dtype(geometry())  # what all geometries begin with
    words = (call.fields["geometry"][1] + MAX_GEOMETRY) // 8
    at = {name: offset for name, (_, offset, *_) in call.fields.items()}
    data_at, shape_at, scratch_at = at["data"], at["shape"], at["scratch"]
    out_shape_at = at["geometry"] + call["geometry"].fields["shape"][1]
    result_shape_at = STATE.fields["shape"][1]
    row = MAX_RANK * 8

    @callback(types.int64, (types.voidptr, types.voidptr), "compute", __name__)
    def compute(state, context):
        s = array_at(state, 1, STATE)[0]
        memory = stack(words)
        c = array_at(memory, 1, call)[0]
        if s.tile == 0:
            return ccall(s.slow, (state, context, 0))
        at, value, info = address(memory), 0, 0
        if s.result != 0:
            shape = address(state) + result_shape_at
            status = ccall(s.KernelContext_GetOutput, (context, 0, shape, s.rank, at + scratch_at))
            if status == 0:
                status = ccall(s.GetTensorMutableData, (c.scratch[0], at + scratch_at))
            if status == 0:
                copy(s.result, c.scratch[0], s.result_bytes)
            return status
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
                    c.shape[k][a] = array_at(c.scratch[1], rank, np.int64)[a]
            else:
                status = ccall(s.GetTensorTypeAndShape, (value, at + scratch_at))
                if status != 0:
                    return status
                info = c.scratch[0]
                status = ccall(s.GetDimensionsCount, (info, at + scratch_at))
                rank = c.scratch[0]
                if status == 0 and rank <= MAX_RANK:
                    status = ccall(s.GetDimensions, (info, at + shape_at + row * k, rank))
                ccall(s.ReleaseTensorTypeAndShapeInfo, (info,))
                if status != 0:
                    return status
            status = ccall(s.GetTensorMutableData, (value, at + data_at + 8 * k))
            if status != 0:
                return status
            if rank > MAX_RANK or (s.values[k] != 0 and (rank != 1 or c.shape[k][0] > MAX_RANK)):
                return ccall(s.slow, (state, context, 0))
            if s.values[k] == 0:
                c.rank[k], c.size[k] = rank, 1
                for a in range(rank):
                    c.size[k] *= c.shape[k][a]
            else:
                count = c.shape[k][0]
                c.rank[k] = count
                for a in range(count):
                    if s.values[k] == 8:
                        c.shape[k][a] = array_at(c.data[k], count, np.int64)[a]
                    else:
                        c.shape[k][a] = array_at(c.data[k], count, np.int32)[a]
        if ccall(s.plan, (s.parameters, at)) != 0:
            return ccall(s.slow, (state, context, 0))
        g = c.geometry
        status = ccall(s.KernelContext_GetOutput, (context, 0, at + out_shape_at, g.rank, at + scratch_at))
        if status != 0:
            return status
        status = ccall(s.GetTensorMutableData, (c.scratch[0], at + data_at + 8 * OUTPUT))
        if status != 0:
            return status
        c.size[OUTPUT] = 1
        for a in range(g.rank):
            c.size[OUTPUT] *= g.shape[a]
        needed = min(g.tiles, MAX_TILES) * g.workspace
        c.busy[0], c.workspace = 0, ccall(s.malloc, (needed,)) if needed > 0 else 0
        if needed > 0 and c.workspace == 0:
            return ccall(s.slow, (state, context, needed))
        if g.tiles == 1:
            ccall(s.tile, (at, 0))
        elif g.tiles > 1:
            status = ccall(s.KernelContext_ParallelFor, (context, s.tile, g.tiles, 0, at))
        ccall(s.free, (c.workspace,))
        return status

    return compute
