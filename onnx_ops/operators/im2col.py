"""Im2Col: the sliding blocks of an image as columns (PyTorch's `unfold`), for any number of image axes. The inverse map
of Col2Im.

    y[n, c * K + k, l] = x[n, c, p]  with
    p_i = l_i * strides_i + k_i * dilations_i - pads_begin_i

n: batch, c: channel, i: image axis, p: pixel, k: position within kernel_shape (K of them in all), l: block (L of them
in all); k and l are flattened in row-major order. Outside of the image x is 0, for strings the empty string. There are
no blocks in an image into which, padded, not even one fits: then y is empty.

Sources: PyTorch's `unfold`; attributes and the order of blocks are those of the ONNX operator specification, Col2Im-18.
"""

import math

import numpy as np

from .. import blocks, dtypes
from ..blocks import (
    ATTRIBUTES,
    AXES,
    GEOMETRY,
    LIMIT,
    PARAMETERS,
    WORK,
    block_count,
    block_counts,
    known_product,
    lay_out,
    overlaps,
    sizes,
)
from ..compiler.jit import jitable
from ..declaration import ELEMENTS, UNKNOWN, Input, Kernel, Operator, Output
from ..errors import require
from ..kernels.im2col import im2col, share_out


@jitable
def resolve(attributes, p):
    kernel_shape, dilations, pads, strides = attributes
    blocks.resolve((dilations, pads, strides), p)
    rule = "must agree with other attributes on the number of image axes,"
    require(p.axes == 0 or p.axes == len(kernel_shape), "kernel_shape", kernel_shape, rule, p.axes)
    p.axes = len(kernel_shape)
    blocks.set_axes(p.kernel_shape, kernel_shape, 1)


@jitable
def plan(parameters, shapes, g):
    (x,) = shapes
    axes = parameters.axes
    rule = "must be [N, C, *image], with as many image axes as kernel_shape has:"
    require(len(x) == 2 + axes, "shape of {x}", x, rule, axes)
    lay_out(parameters, x[2:], parameters.kernel_shape[:axes], g)
    fits = max(x[0], 1) <= ELEMENTS // g.positions // max(g.blocks, 1) // max(x[1], 1)
    require(fits, "shape of {x}", x, "output must have at most 2**58 elements")
    g.rank, g.shape[0], g.shape[1], g.shape[2] = 3, x[0], x[1] * g.positions, g.blocks
    g.planes = x[0] * x[1]
    g.units = share_out(g) if g.blocks > 0 else 0
    g.tiles = min(64, g.units, g.planes * (g.pixels + g.positions * g.blocks) // WORK + 1)


def reference(parameters, x):
    """The formula, ordered by k: the pixels of position k in all blocks are a strided slice of the image."""
    image, block = x.shape[2:], parameters.kernel_shape[: parameters.axes].tolist()
    counts = block_counts(parameters, image, block)
    x = dtypes.widest(x)
    y = np.full((*x.shape[:2], *block, *counts), dtypes.zero(x), x.dtype)
    for k, inside, pixels in overlaps(parameters, image, block) if x.size else ():
        y[(slice(None), slice(None), *k, *inside)] = x[(..., *pixels)]
    return y.reshape(x.shape[0], x.shape[1] * math.prod(block), math.prod(counts))


@jitable
def infer(parameters, shapes, g):
    (x,) = shapes
    axes = parameters.axes
    g.rank, g.shape[0], g.shape[1], g.shape[2] = 3, x[0] if len(x) > 0 else UNKNOWN, UNKNOWN, UNKNOWN
    if len(x) != 2 + axes:
        return
    positions, blocks = known_product(parameters.kernel_shape[:axes]), 1
    if x[1] >= 0 and 0 < positions <= ELEMENTS // max(x[1], 1):
        g.shape[1] = x[1] * positions
    for i in range(axes):
        if not 0 <= x[2 + i] <= LIMIT:
            return
        count = block_count(parameters, i, x[2 + i], parameters.kernel_shape[i])
        if count > ELEMENTS // max(blocks, 1):
            return
        blocks *= count
    g.shape[2] = blocks


IM2COL = Operator(
    domain="onnx_ops",
    name="Im2Col",
    versions=(1,),
    ranks=tuple(range(3, 3 + AXES)),
    inputs=(Input("x", "T"),),
    outputs=(Output("output", "T"),),
    types={"T": dtypes.ALL},
    attributes=(sizes("kernel_shape", required=True), *ATTRIBUTES),
    parameters={"kernel_shape": AXES, **PARAMETERS},
    geometry={
        "planes": None, "group": None, "groups": None, "leads": None, "band_y": None, "bands_y": None, "band_x": None,
        "bands_x": None, "rows": None, "part": None, "parts": None, "units": None, "sweeps": None, **GEOMETRY,
    },
    resolve=resolve,
    plan=plan,
    infer=infer,
    kernels=(Kernel(im2col, {"kernel_shape": (1,)}, sees_bits=True),),
    reference=reference,
    terms={"image_shape": "image axes of x", "block_shape": "kernel_shape"},
)  # fmt: skip
OPERATORS = (IM2COL,)
