"""Im2Col: the sliding blocks of an image as columns (PyTorch's `unfold`), for any number of image axes. The inverse map
of Col2Im.

    y[n, c * K + k, l] = x[n, c, p]  with
    p_i = l_i * strides_i + k_i * dilations_i - pads_begin_i

n: batch, c: channel, i: image axis, p: pixel, k: position within kernel_shape (K of them in all), l: block (L of them
in all); k and l are flattened in row-major order. Outside of the image: 0, of strings the empty one.

Sources: PyTorch's `unfold`; attributes and the order of blocks are those of the ONNX operator specification, Col2Im-18.
"""

import math

import numpy as np

from .. import blocks, dtypes
from ..blocks import ATTRIBUTES, AXES, GEOMETRY, PARAMETERS, WORK, block_counts, lay_out, overlaps
from ..errors import refuse
from ..kernels.im2col import im2col, share_out
from ..kernels.jit import jitable
from ..operator import ELEMENTS, Attribute, Input, Operator, geometry, words


def resolve(kernel_shape, **sliding):
    found = blocks.resolve(**sliding, kernel_shape=kernel_shape)
    return {**found, "kernel_shape": blocks.spread(kernel_shape, 1)}


@jitable
def plan(parameters, shapes, g):
    (x,) = shapes
    axes = parameters.axes
    if len(x) != 2 + axes:
        return refuse("shape of {x}", x, "must be [N, C, *image], with as many image axes as kernel_shape has:", axes)
    if lay_out(parameters, x[2:], parameters.kernel_shape[:axes], g) != 0:
        return 1
    if max(x[0], 1) > ELEMENTS // g.positions // g.blocks // max(x[1], 1):
        return refuse("shape of {x}", x, "output must have at most 2**58 elements")
    g.rank, g.shape[0], g.shape[1], g.shape[2] = 3, x[0], x[1] * g.positions, g.blocks
    g.planes = x[0] * x[1]
    g.units = share_out(g)
    g.tiles = min(64, g.units, g.planes * (g.pixels + g.positions * g.blocks) // WORK + 1)
    return 0


def reference(parameters, x):
    """The formula from the blocks' side: each position k within a block is a strided slice of the image."""
    image, block = x.shape[2:], parameters.kernel_shape[: parameters.axes].tolist()
    counts = block_counts(parameters, image, block)
    x = dtypes.widest(x)
    y = np.full((*x.shape[:2], *block, *counts), dtypes.zero(x), x.dtype)
    for k, seen, pixels in overlaps(parameters, image, block) if x.size else ():
        y[(slice(None), slice(None), *k, *seen)] = x[(..., *pixels)]
    return y.reshape(x.shape[0], x.shape[1] * math.prod(block), math.prod(counts))


def infer(parameters, shapes, values):
    (x,) = shapes
    if parameters is None or not x or len(x) != 2 + parameters.axes:
        return [x[0] if x else None, None, None]
    block, sizes = parameters.kernel_shape[: parameters.axes].tolist(), x[2:]
    known = all(isinstance(size, int) for size in sizes)
    blocks = math.prod(block_counts(parameters, sizes, block)) if known else 0
    return [x[0], x[1] * math.prod(block) if isinstance(x[1], int) else None, blocks or None]


IM2COL = Operator(
    domain="onnx_ops",
    name="Im2Col",
    versions=(1,),
    ranks=tuple(range(3, 3 + AXES)),
    inputs=(Input("x", "T"),),
    output="T",
    types={"T": dtypes.ALL},
    attributes=(Attribute("kernel_shape", "ints", required=True), *ATTRIBUTES),
    parameters=words(kernel_shape=AXES, **PARAMETERS),
    geometry=geometry(
        planes=None, group=None, groups=None, leads=None, band_y=None, bands_y=None, band_x=None, bands_x=None,
        rows=None, part=None, parts=None, units=None, sweeps=None, **GEOMETRY,
    ),
    resolve=resolve,
    plan=plan,
    kernel=lambda parameters: im2col,
    variants=({"kernel_shape": (1,)},),
    copies=lambda parameters: True,
    reference=reference,
    infer=infer,
    terms={"image_shape": "image axes of x", "block_shape": "kernel_shape"},
)  # fmt: skip
OPERATORS = (IM2COL,)
