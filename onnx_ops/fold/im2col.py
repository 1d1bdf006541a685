"""Im2Col: the sliding blocks of an image as columns (PyTorch's `unfold`), for any number of image
axes. The inverse map of Col2Im.

    y[n, c * K + k, l] = x[n, c, p]  with
    p_i = l_i * strides_i + k_i * dilations_i - pads_begin_i

n: batch, c: channel, i: image axis, p: pixel, k: position within kernel_shape (K of them in all),
l: block (L of them in all); k and l are flattened in row-major order. Outside of the image x is 0,
for strings the empty string. There are no blocks in an image into which, padded, not even one fits:
then y is empty.

Sources: PyTorch's `unfold`; attributes and the order of blocks are those of the ONNX operator
specification, Col2Im-18.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ..declaration import dtypes
from ..declaration.errors import require
from ..declaration.jit import jitable
from ..declaration.limits import ELEMENTS, UNKNOWN
from ..declaration.operator import Input, Kernel, Operator, Output, Plan
from .im2col_kernels import Im2ColGeometry, im2col, share_out
from .sliding_blocks import (
    ATTRIBUTES,
    AXES,
    LIMIT,
    WORK,
    block_count,
    block_counts,
    check_attributes,
    halves_of,
    known_product,
    lay_out,
    overlaps,
    sizes,
    spacing_of,
    spacing_of_lists,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..kernels.types import AttributeTuple, OutputSizes, Sizes
    from .geometry import SlidingBlocks


@jitable
def shape(
    attributes: AttributeTuple, inputs: tuple[Sizes, ...], outputs: tuple[OutputSizes, ...]
) -> int:
    (x,) = inputs
    (y,) = outputs
    kernel_shape = attributes.kernel_shape
    axes = len(kernel_shape)
    positions = known_product(kernel_shape)
    blocks = 1
    given = check_attributes(attributes)
    rule = "must agree with other attributes on the number of image axes,"
    require(given == 0 or given == axes, "kernel_shape", kernel_shape, rule, given)
    y[0] = x[0] if len(x) > 0 else UNKNOWN
    y[1] = UNKNOWN
    y[2] = UNKNOWN
    if len(x) != 2 + axes:
        return 3
    if x[1] >= 0 and 0 < positions <= ELEMENTS // max(x[1], 1):
        y[1] = x[1] * positions
    for i in range(axes):
        if not 0 <= x[2 + i] <= LIMIT:
            return 3
        count = block_count(spacing_of(attributes), i, x[2 + i], kernel_shape[i])
        if count > ELEMENTS // max(blocks, 1):
            return 3
        blocks *= count
    y[2] = blocks
    return 3


@jitable
def lay_out_image(attributes: AttributeTuple, x: Sizes, g: SlidingBlocks) -> None:
    """Check the rank of an image, and fill the fields of SlidingBlocks."""
    axes = len(attributes.kernel_shape)
    rule = "must be [N, C, *image], with as many image axes as kernel_shape has:"
    require(len(x) == 2 + axes, "shape of x", x, rule, axes)
    lay_out(spacing_of(attributes), x[2:], attributes.kernel_shape, g)


@jitable
def plan(
    attributes: AttributeTuple,
    inputs: tuple[Sizes, ...],
    outputs: tuple[OutputSizes, ...],
    g: Im2ColGeometry,
) -> None:
    (x,) = inputs
    lay_out_image(attributes, x, g)
    fits = max(x[0], 1) <= ELEMENTS // g.positions // max(g.blocks, 1) // max(x[1], 1)
    require(fits, "shape of x", x, "output must have at most 2**58 elements")
    g.planes = x[0] * x[1]
    g.units = share_out(g) if g.blocks else 0
    # Neither factor needs to be larger for 64 tiles, and the image may be much larger than the
    # output.
    work = min(g.planes, 64 * WORK) * min(g.pixels + g.positions * g.blocks, 64 * WORK)
    g.tiles = min(64, g.units, work // WORK + 1)


def reference(
    x: np.ndarray,
    *,
    kernel_shape: Sizes,
    dilations: Sizes | None,
    pads: Sizes | None,
    strides: Sizes | None,
) -> np.ndarray:
    """Evaluate the formula ordered by k.

    The pixels of position k in all blocks are a strided slice of the image.
    """
    image = x.shape[2:]
    spacing = spacing_of_lists(image, strides, dilations, *halves_of(pads))
    counts = block_counts(spacing, image, kernel_shape)
    x = dtypes.widest(x)
    y = np.full((*x.shape[:2], *kernel_shape, *counts), dtypes.zero(x), x.dtype)
    for k, inside, pixels in overlaps(spacing, image, kernel_shape) if x.size else ():
        y[:, :, *k, *inside] = x[..., *pixels]
    return y.reshape(x.shape[0], x.shape[1] * math.prod(kernel_shape), math.prod(counts))


def gradient(
    call: Callable[..., Any],
    grad_output: Any,
    x: Any,
    kernel_shape: Sizes,
    dilations: Sizes | None,
    pads: Sizes | None,
    strides: Sizes | None,
) -> Any:
    """Return the gradient in PyTorch: the sum over all reads of a pixel."""
    return call(
        "",
        "Col2Im",
        grad_output,
        x.shape[2:],
        kernel_shape,
        dilations=dilations,
        pads=pads,
        strides=strides,
    )


IM2COL = Operator(
    domain="onnx_ops",
    name="Im2Col",
    ranks=tuple(range(3, 3 + AXES)),
    inputs=(Input("x", "T"),),
    outputs=(Output("output", "T"),),
    types={"T": dtypes.ALL},
    attributes=(sizes("kernel_shape", required=True), *ATTRIBUTES),
    plan=Plan(shape, plan, Im2ColGeometry),
    kernels=(Kernel(im2col, sees_bits=True),),
    reference=reference,
    gradient=gradient,
    terms={"image_shape": "image axes of x", "block_shape": "kernel_shape"},
)
OPERATORS = (IM2COL,)
