"""Col2Im: sliding blocks back into an image, overlaps added up (PyTorch's `fold`), for any number
of image axes.

    y[n, c, p] = sum of x[n, c * K + k, l]  over all (k, l) with
    p_i = l_i * strides_i + k_i * dilations_i - pads_begin_i

n: batch, c: channel, i: image axis, p: pixel in image_shape, k: position within block_shape (K of
them in all), l: block, one of block_counts (L of them in all); k and l are flattened in row-major
order. A pixel without any (k, l) is 0.

The sum of booleans is "or"; strings are concatenated in ascending (k, l).

Sources: ONNX operator specification, Col2Im-18; OpenVINO operation specification, Col2Im-15, which
is the same for two image axes, with other names (and allows a dilation of 0, which is refused
here).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..declaration import dtypes
from ..declaration.errors import require
from ..declaration.jit import jitable
from ..declaration.limits import ELEMENTS, UNKNOWN
from ..declaration.operator import Input, Kernel, Operator, Output, Plan
from .col2im_kernels import TOGETHER, choose_way, col2im, unit_count, workspace_size
from .geometry import Col2ImGeometry
from .sliding_blocks import (
    ATTRIBUTES,
    AXES,
    LIMIT,
    WORK,
    are_known,
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

    from numpy.typing import ArrayLike

    from ..kernels.types import AttributeTuple, OutputSizes, Sizes
    from .geometry import Spacing

# Elements that one tile reads and writes where blocks tile the image: as WORK, but only copied.
COPIED = 2**17


@jitable
def shape(
    attributes: AttributeTuple, inputs: tuple[Sizes, ...], outputs: tuple[OutputSizes, ...]
) -> int:
    batch = inputs[0][0] if len(inputs[0]) == 3 else UNKNOWN
    return shape_of_image(check_attributes(attributes), inputs, batch, outputs[0])


@jitable
def shape_of_image(given: int, inputs: tuple[Sizes, ...], batch: int, y: OutputSizes) -> int:
    """State the output's sizes for this batch size, from the input's last two axes and the shapes.

    given  the number of image axes that the attributes are for, or 0
    """
    x, image_shape, block_shape = inputs
    image = len(image_shape)
    block = len(block_shape)
    if given:
        fits = image == 0 or image == given
        rule = "{strides}, {dilations} and {pads} are for image axes:"
        require(fits or not are_known(image_shape), "{image_shape}", image_shape, rule, given)
        require(fits, "length of {image_shape}", image, "attributes are for image axes:", given)
        fits = block == 0 or block == given or are_known(block_shape)  # then `plan` tells
        require(fits, "length of {block_shape}", block, "attributes are for image axes:", given)
    axes = max(image, block)
    if not 1 <= axes <= AXES:
        return UNKNOWN
    y[0] = batch
    y[1] = UNKNOWN
    positions = known_product(block_shape)
    if len(x) >= 2 and x[-2] >= 0 and len(block_shape) > 0 and positions > 0:
        y[1] = x[-2] // positions
    for i in range(axes):
        y[2 + i] = image_shape[i] if i < len(image_shape) and image_shape[i] > 0 else UNKNOWN
    return 2 + axes


@jitable
def plan(
    attributes: AttributeTuple,
    inputs: tuple[Sizes, ...],
    outputs: tuple[OutputSizes, ...],
    g: Col2ImGeometry,
) -> None:
    require(
        len(inputs[0]) == 3,
        "shape of {input}",
        inputs[0],
        "must have rank 3: [N, C * prod({block_shape}), L]",
    )
    plan_blocks(spacing_of(attributes), inputs, inputs[0][0], g)


@jitable
def plan_blocks(spacing: Spacing, inputs: tuple[Sizes, ...], batch: int, g: Col2ImGeometry) -> None:
    """Plan for this batch size.

    The last two axes of the input have the channels' block elements and the blocks.
    """
    x, image_shape, block_shape = inputs
    axes = len(image_shape)
    rows = x[-2]
    columns = x[-1]
    rule = "number of image axes must be at least 1 and at most"
    require(1 <= axes <= AXES, "{image_shape}", image_shape, rule, AXES)
    rule = "must be as long as {image_shape}, which is of length"
    require(len(block_shape) == axes, "{block_shape}", block_shape, rule, axes)
    for i in range(axes):
        fits = 1 <= image_shape[i] <= LIMIT
        require(fits, "{image_shape}", image_shape, "must lie in [1, 2**40]")
    lay_out(spacing, image_shape, block_shape, g)
    rule = "must, dilated, fit into the padded image; too large on axis"
    for i in range(axes):
        require(g.counts[i + g.axes - axes] > 0, "{block_shape}", block_shape, rule, i)
    rule = "must have at most 2**58 places in the padded image"
    require(g.blocks <= ELEMENTS, "{block_shape}", block_shape, rule)
    block = g.positions
    rule = "the second to last axis must be divisible by the product of {block_shape},"
    require(rows % block == 0, "shape of {input}", x, rule, block)
    rule = "the last axis must be the number of blocks,"
    require(columns == g.blocks, "shape of {input}", x, rule, g.blocks)
    channels = rows // block
    fits = max(channels, 1) <= ELEMENTS // g.pixels // max(batch, 1)
    require(fits, "{image_shape}", image_shape, "output must have at most 2**58 elements")
    find_steps(g)
    g.planes = batch * channels * (g.pixels // (g.image[g.axes - 2] * g.image[g.axes - 1]))
    work = batch * (channels * g.pixels + rows * columns)
    g.tiles = min(64, work // (COPIED if g.disjoint else WORK) + 1)
    choose_way(g)
    if g.way == TOGETHER:
        g.planes = batch * channels
    g.tiles = max(1, min(g.tiles, unit_count(g)))
    g.workspace = workspace_size(g)


@jitable
def find_steps(g: Col2ImGeometry) -> None:
    """Find the steps from one hit of a pixel to the next one, and whether blocks tile the image."""
    g.disjoint = 1
    for i in range(g.axes):
        stride = g.strides[i]
        dilation = g.dilations[i]
        common = math.gcd(stride, dilation)
        g.k_steps[i] = stride // common
        g.l_steps[i] = dilation // common
        # With pads, blocks reach outside of the image, and don't tile it.
        inside = g.pads[i] == 0 and g.counts[i] * stride <= g.image[i]
        g.disjoint &= g.block[i] == stride and dilation == 1 and inside


def reference(
    x: np.ndarray,
    image_shape: ArrayLike,
    block_shape: ArrayLike,
    *,
    dilations: Sizes | None,
    pads: Sizes | None,
    strides: Sizes | None,
) -> np.ndarray:
    return sum_of_blocks(x, image_shape, block_shape, strides, dilations, *halves_of(pads))


def sum_of_blocks(
    x: np.ndarray,
    image_shape: ArrayLike,
    block_shape: ArrayLike,
    strides: ArrayLike | None,
    dilations: ArrayLike | None,
    pads_begin: ArrayLike | None,
    pads_end: ArrayLike | None,
) -> np.ndarray:
    """Evaluate the formula ordered by k.

    The pixels of position k in all blocks are a strided slice of the image.
    """
    image, block = (np.asarray(sizes).tolist() for sizes in (image_shape, block_shape))
    spacing = spacing_of_lists(image, strides, dilations, pads_begin, pads_end)
    x = dtypes.widest(x)
    y = np.full((x.shape[0], x.shape[1] // math.prod(block), *image), dtypes.zero(x), x.dtype)
    if not x.size:
        return y
    x = x.reshape(*y.shape[:2], *block, *block_counts(spacing, image, block))
    for k, blocks, pixels in overlaps(spacing, image, block):
        y[..., *pixels] += x[:, :, *k, *blocks]
    return y


def gradient(
    call: Callable[..., Any],
    grad_output: Any,
    block_shape: Sizes,
    dilations: Sizes | None,
    pads: Sizes | None,
    strides: Sizes | None,
) -> Any:
    """Return the gradient in PyTorch: each block element gets that of its pixel."""
    return call(
        "onnx_ops",
        "Im2Col",
        grad_output,
        kernel_shape=block_shape,
        dilations=dilations,
        pads=pads,
        strides=strides,
    )


COL2IM = Operator(
    domain="",
    name="Col2Im",
    versions=(18,),
    ranks=(3,),
    inputs=(
        Input("input", "T"),
        Input("image_shape", "I", values=True),
        Input("block_shape", "I", values=True),
    ),
    outputs=(Output("output", "T"),),
    types={"T": dtypes.ALL, "I": ("int64",)},
    attributes=ATTRIBUTES,
    plan=Plan(shape, plan, Col2ImGeometry),
    kernels=(Kernel(col2im),),
    reference=reference,
    gradient=gradient,
)


@jitable
def shape_openvino(
    attributes: AttributeTuple, inputs: tuple[Sizes, ...], outputs: tuple[OutputSizes, ...]
) -> int:
    """State shapes as `shape`, for two image axes: OpenVINO's operator has no others."""
    x = inputs[0]
    (y,) = outputs
    if len(x) == 3:
        return shape_of_image(2, inputs, x[0], y)
    if len(x) != 2:
        return UNKNOWN
    rank = shape_of_image(2, inputs, 1, y) - 1
    for i in range(rank):  # without a batch
        y[i] = y[i + 1]
    return max(rank, UNKNOWN)


@jitable
def plan_openvino(
    attributes: AttributeTuple,
    inputs: tuple[Sizes, ...],
    outputs: tuple[OutputSizes, ...],
    g: Col2ImGeometry,
) -> None:
    x = inputs[0]
    require(
        2 <= len(x) <= 3, "shape of {input}", x, "must have rank 3: [N, C * prod({block_shape}), L]"
    )
    spacing = attributes.strides, attributes.dilations, attributes.pads_begin, attributes.pads_end
    plan_blocks(spacing, inputs, x[0] if len(x) == 3 else 1, g)


def reference_openvino(
    x: np.ndarray, image_shape: ArrayLike, block_shape: ArrayLike, **spacing: Sizes | None
) -> np.ndarray:
    if x.ndim == 2:
        return sum_of_blocks(x[None], image_shape, block_shape, **spacing)[0]
    return sum_of_blocks(x, image_shape, block_shape, **spacing)


OPENVINO = replace(
    COL2IM,
    domain="org.openvinotoolkit",
    versions=(1,),
    ranks=(2, 3),
    inputs=(
        Input("data", "T"),
        Input("output_size", "I", values=True),
        Input("kernel_size", "I", values=True),
    ),
    types={"T": dtypes.ALL, "I": ("int32", "int64")},
    attributes=(
        *(sizes(name, axes=(2, 2)) for name in ("strides", "dilations")),
        *(sizes(name, axes=(2, 2), least=0) for name in ("pads_begin", "pads_end")),
    ),
    plan=Plan(shape_openvino, plan_openvino, Col2ImGeometry),
    reference=reference_openvino,
    gradient=None,
    terms={"input": "data", "image_shape": "output_size", "block_shape": "kernel_size"},
)
OPERATORS = (COL2IM, OPENVINO)
