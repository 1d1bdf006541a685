"""The reads: GridSample without its arithmetic, which leaves what every kernel must do.

It is GridSample with another kernel, in blocks and tiles of the same size. In place of the two
coordinates of a point the kernel gets as many bytes with the number of the first pixel to read. It
reads the same neighbours of this pixel, in the same order and in equally wide loads, adds them up,
and writes as many elements; of interpolation, it leaves out the last points of an image that fill
no vector. GridSample spends the rest of its time on coordinates, weights and products: a kernel
that reads in this order can't gain more, except for some percent that depend on when its loads are
issued.
"""

from dataclasses import replace

import numpy as np
from numba.extending import overload
from onnx import TensorProto, helper
from support.cases import finished
from support.peers import OLDER_NAMES

import onnx_ops
from onnx_ops.compiler.simd import plus, put
from onnx_ops.compiler.simd_points import four_count, fours, indices, pair_count, pairs, transposed
from onnx_ops.declaration.jit import FLAGS, INNER, jitable
from onnx_ops.declaration.operator import Kernel
from onnx_ops.kernels.elements import indices_in
from onnx_ops.kernels.vectors import take
from onnx_ops.sampling.grid_sample import MICROSOFT, pad_coordinate, unnormalize
from onnx_ops.sampling.grid_sample_kernels import BLOCK, image_unit_of
from onnx_ops.sampling.taps import image_size

DOMAIN = "benchmark"


def add_square(source, base, width, taps, target):
    """Write the sum of each point's `taps` by `taps` neighbours to `target`, as `blend` does, for
    whole vectors.
    """
    raise NotImplementedError


@overload(add_square, jit_options=FLAGS | INNER)
def _(source, base, width, taps, target):
    step, step_of_fours = pair_count(source), 4 * four_count(source)

    def add_square(source, base, width, taps, target):
        for b in range(0, base.size - step + 1 if taps == 2 else 0, step):
            index = indices(source, base, b)
            low, high = pairs(source, index, 0)
            next_low, next_high = pairs(source, index, width)
            put(target, b, plus(plus(low, high), plus(next_low, next_high)))
        for b in range(0, base.size - step_of_fours + 1 if taps == 4 else 0, step_of_fours):
            c0, c1, c2, c3 = transposed(
                add_rows(source, base, width, b),
                add_rows(source, base, width, b + 1),
                add_rows(source, base, width, b + 2),
                add_rows(source, base, width, b + 3),
            )
            put(target, b, plus(plus(c0, c1), plus(c2, c3)))

    return add_square


@jitable
def add_rows(source, base, width, b):
    low = plus(fours(source, base, b, 0), fours(source, base, b, width))
    return plus(low, plus(fours(source, base, b, 2 * width), fours(source, base, b, 3 * width)))


@jitable
def read(x, numbers, g, taps, tile, workspace, out):
    base, pixels = indices_in(workspace, 0, g.span), image_size(g)
    for unit in range(g.units * tile // g.tiles, g.units * (tile + 1) // g.tiles):
        n, _, first, end, channel, last_channel = image_unit_of(g, unit)
        while first < end:
            count = min(g.span, end - first)
            index_words = numbers[2 * (n * g.points + first) :]
            for b in range(count):
                base[b] = index_words[2 * b] + index_words[2 * b + 1]
            width = g.image[1]
            for c in range(channel, last_channel):
                source = x[(n * g.channels + c) * pixels :]
                for b in range(0, count, BLOCK):
                    pixel, target = (
                        base[:count][b:][:BLOCK],
                        out[(n * g.channels + c) * g.points + first + b :],
                    )
                    if taps == 1:
                        take(source, pixel, pixels, target[: pixel.size])
                    else:
                        add_square(source, pixel, width, taps, target)
            first += count


@jitable
def read_one(x, numbers, g, tile, workspace, out):
    read(x, numbers, g, 1, tile, workspace, out)


@jitable
def read_fours(x, numbers, g, tile, workspace, out):
    read(x, numbers, g, 4, tile, workspace, out)


@jitable
def read_pairs(x, numbers, g, tile, workspace, out):
    read(x, numbers, g, 2, tile, workspace, out)


READS = replace(
    MICROSOFT,
    domain=DOMAIN,
    name="Reads",
    types={"T1": ("float32",), "T2": ("int32",)},
    kernels=(
        Kernel(read_one, {"mode": "nearest"}),
        Kernel(read_pairs, {"mode": "bilinear"}),
        Kernel(read_fours, {"mode": "bicubic"}),
    ),
    reference=lambda parameters, x, numbers: np.zeros(
        (*x.shape[:2], *numbers.shape[1:-1]), x.dtype
    ),
)


def has_reads(case):
    if case.op_type != "GridSample" or case.dtype != "float32" or len(case.shapes[0]) != 4:
        return False
    return min(case.shapes[0][2:]) >= taps(case.attributes["mode"])


def taps(mode):
    return {"nearest": 1, "bilinear": 2}.get(OLDER_NAMES.get(mode, mode), 4)


def reads(attributes, x, grid, y, options):
    """Return (session, its inputs, its output) that read what a GridSample of images reads."""
    count, align = taps(attributes["mode"]), attributes["align_corners"]
    indices = np.zeros(grid.shape[:-1], np.int64)
    for size, g in zip(x.shape[2:], np.moveaxis(grid, -1, 0)[::-1], strict=True):
        pixels = pad_coordinate(
            unnormalize(g, np.float32(size), align), size, attributes["padding_mode"], align
        )
        first_pixel = np.rint(pixels) if count == 1 else np.floor(pixels) - (count == 4)
        indices = indices * size + np.clip(first_pixel, 0, size - count).astype(np.int64)
    index_words = np.stack([indices, np.zeros_like(indices)], -1).astype(np.int32)
    mode = OLDER_NAMES.get(attributes["mode"], attributes["mode"])
    node = helper.make_node("Reads", ["x", "numbers"], ["y"], domain=DOMAIN, mode=mode)
    names_and_types = zip(
        ("x", "numbers", "y"),
        (TensorProto.FLOAT, TensorProto.INT32, TensorProto.FLOAT),
        strict=True,
    )
    described = [
        helper.make_tensor_value_info(name, element_type, [None] * 4)
        for name, element_type in names_and_types
    ]
    proto = finished(helper.make_graph([node], "reads", described[:2], described[2:]), 21, DOMAIN)
    return (
        onnx_ops.InferenceSession(proto.SerializeToString(), options, operators=[READS]),
        (x, index_words),
        y,
    )
