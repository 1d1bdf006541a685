"""Operators whose kernels have several phases: a counting sort of bytes, by a rule with axes, and by a plan."""

import numpy as np

import onnx_ops
from onnx_ops.compiler.jit import jitable
from onnx_ops.declaration import Input, Kernel, Operator, Output, Plan
from onnx_ops.limits import MAX_TILES, UNKNOWN

SHARED = 8 * (1 + MAX_TILES * 256)  # bytes: the number of tiles that have counted, and for each how often each byte is


@jitable
def count_bytes(x, index, count, workspace, shared):
    """Count in the workspace, so that a mistake shows that has two tiles, or the shared memory, in one place."""
    counts, numbers = workspace.view(np.int32), shared.view(np.int64)
    counts[:] = 0
    for i in range(len(x) * index // count, len(x) * (index + 1) // count):
        counts[x[i]] += 1
    for byte in range(256):
        numbers[1 + 256 * index + byte] = counts[byte]
    if index == 0:
        numbers[0] = count


@jitable
def add_counts(shared):
    """Turn the counts into the places in the output at which each tile begins to put each byte."""
    numbers, place = shared.view(np.int64), 0
    for byte in range(256):
        for tile in range(numbers[0]):
            at = 1 + 256 * tile + byte
            numbers[at], place = place, place + numbers[at]


@jitable
def put_bytes(x, index, count, workspace, shared, y, order):
    places, numbers = workspace.view(np.int32), shared.view(np.int64)
    for byte in range(256):
        places[byte] = numbers[1 + 256 * index + byte]
    for i in range(len(x) * index // count, len(x) * (index + 1) // count):
        y[places[x[i]]], order[places[x[i]]] = x[i], i
        places[x[i]] += 1


@onnx_ops.operator("my.domain::Sort", inputs="x: uint8", outputs="y: uint8, order: int64")
def sort(x):
    order = np.argsort(x, kind="stable")
    return x[order], order


@sort.shape
def _(x):
    return x, x


def count_phase(x, index, count, workspace, shared, y, order):
    count_bytes(x, index, count, workspace, shared)


def add_phase(x, index, count, workspace, shared, y, order):
    add_counts(shared)


def put_phase(x, index, count, workspace, shared, y, order):
    put_bytes(x, index, count, workspace, shared, y, order)


PHASES = (count_phase, add_phase, put_phase)
sort.kernel(PHASES, loop=lambda x: (x[0], 1, x[0]), workspace=lambda x: 4 * 256, shared=lambda x: SHARED)


@jitable
def sort_shape(attributes, inputs, outputs):
    (x,), (y, order) = inputs, outputs
    y[0] = order[0] = x[0] if len(x) == 1 else UNKNOWN
    return 1, 1


@jitable
def sort_plan(attributes, inputs, outputs, g):
    onnx_ops.require(len(inputs[0]) == 1, "shape of {x}", inputs[0], "must have rank 1")
    g.tiles[0] = g.tiles[2] = min(5, inputs[0][0])
    g.tiles[1] = 1
    g.workspace, g.shared = 4 * 256, SHARED


@jitable
def count_flat(x, g, tile, workspace, shared, y, order):
    count_bytes(x, tile, g.tiles[0], workspace, shared)


@jitable
def add_flat(x, g, tile, workspace, shared, y, order):
    if g.tiles[0] > 0:  # else nobody has counted
        add_counts(shared)


@jitable
def put_flat(x, g, tile, workspace, shared, y, order):
    put_bytes(x, tile, g.tiles[2], workspace, shared, y, order)


PLANNED = Operator(
    domain="my.domain",
    name="PlannedSort",
    versions=(1,),
    ranks=(1,),
    inputs=(Input("x", "T"),),
    outputs=(Output("y", "T"), Output("order", "I")),
    types={"T": ("uint8",), "I": ("int64",)},
    plan=Plan(sort_shape, sort_plan),
    kernels=(Kernel((count_flat, add_flat, put_flat)),),
    reference=sort.declaration.reference,
)
