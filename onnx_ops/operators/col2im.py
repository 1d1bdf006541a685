"""Col2Im: sliding blocks back into an image, overlaps added up (PyTorch's `fold`), for any number of image axes.

    y[n, c, p] = sum of x[n, c * K + k, l]  over all (k, l) with
    p_i = l_i * strides_i + k_i * dilations_i - pads_begin_i

n: batch, c: channel, i: image axis, p: pixel in image_shape, k: position within block_shape (K of them in all),
l: block, one of block_counts (L of them in all); k and l are flattened in row-major order. A pixel without any (k, l)
is 0.

The sum of booleans is "or"; strings are concatenated in ascending (k, l).

Sources: ONNX operator specification, Col2Im-18; OpenVINO operation specification, Col2Im-15, which is the same for two
image axes, with other names (and allows a dilation of 0, which is refused here).
"""

import math
from dataclasses import replace

import numpy as np

from .. import dtypes
from ..blocks import (
    ATTRIBUTES,
    AXES,
    GEOMETRY,
    LIMIT,
    PARAMETERS,
    WORK,
    block_counts,
    known_product,
    lay_out,
    overlaps,
    resolve,
    set_axes,
    sizes,
)
from ..compiler.jit import jitable
from ..declaration import ELEMENTS, UNKNOWN, Input, Kernel, Operator, Output
from ..errors import require
from ..kernels.blocks import pieces
from ..kernels.col2im import BAND, GROUP, col2im, row_pitch, unit_count, workspace_size


@jitable
def plan(parameters, shapes, g):
    require(len(shapes[0]) == 3, "shape of {input}", shapes[0], "must have rank 3: [N, C * prod({block_shape}), L]")
    plan_blocks(parameters, shapes, shapes[0][0], g)


@jitable
def plan_blocks(parameters, shapes, batch, g):
    """Plan for this batch size. The last two axes of the input have the channels' block elements and the blocks."""
    x, image_shape, block_shape = shapes
    axes, given = len(image_shape), parameters.axes
    rows, columns = x[len(x) - 2], x[len(x) - 1]
    rule = "number of image axes must be at least 1 and at most"
    require(1 <= axes <= AXES, "{image_shape}", image_shape, rule, AXES)
    rule = "must be as long as {image_shape}, which is of length"
    require(len(block_shape) == axes, "{block_shape}", block_shape, rule, axes)
    rule = "{strides}, {dilations} and {pads} are for image axes:"
    require(given == 0 or given == axes, "{image_shape}", image_shape, rule, given)
    for i in range(axes):
        require(1 <= image_shape[i] <= LIMIT, "{image_shape}", image_shape, "must lie in [1, 2**40]")
    lay_out(parameters, image_shape, block_shape, g)
    for i in range(axes):
        fits = g.counts[i + g.axes - axes] > 0
        require(fits, "{block_shape}", block_shape, "must, dilated, fit into the padded image; too large on axis", i)
    block = g.positions
    if len(x) == 2:
        rule = "axis 0 must be divisible by the product of {block_shape},"
        require(rows % block == 0, "shape of {input}", x, rule, block)
        require(columns == g.blocks, "shape of {input}", x, "axis 1 must be the number of blocks,", g.blocks)
    else:
        rule = "axis 1 must be divisible by the product of {block_shape},"
        require(rows % block == 0, "shape of {input}", x, rule, block)
        require(columns == g.blocks, "shape of {input}", x, "axis 2 must be the number of blocks,", g.blocks)
    channels = rows // block
    fits = max(channels, 1) <= ELEMENTS // g.pixels // max(batch, 1)
    require(fits, "{image_shape}", image_shape, "output must have at most 2**58 elements")
    tiled = 1
    for i in range(axes):
        # With pads, blocks reach outside of the image, and don't tile it.
        pads = parameters.pads_begin[i] + parameters.pads_end[i]
        if block_shape[i] != parameters.strides[i] or parameters.dilations[i] != 1 or pads != 0:
            tiled = 0
        g.shape[2 + i] = image_shape[i]

    g.rank, g.shape[0], g.shape[1] = 2 + axes, batch, channels
    height, width = g.image[g.axes - 2], g.image[g.axes - 1]
    g.planes = batch * channels * (g.pixels // (height * width))
    g.band_x = min(width, BAND)
    g.bands_x = pieces(width, g.band_x)
    g.tiled = tiled if g.bands_x == 1 else 0
    work = batch * (channels * g.pixels + rows * columns)
    g.tiles = min(64, work // WORK + 1)
    # A band is as high as the cache allows, but there are at least as many bands as tiles.
    share = max(1, g.planes * g.bands_x * height // max(g.tiles, 1))
    g.band_y = min(height, max(1, BAND // row_pitch(g)), share)
    g.bands_y = pieces(height, g.band_y)
    # A group has several planes if they are small, and if there are no leading axes, on which planes would differ.
    group = min(GROUP // (height * row_pitch(g)), g.planes // max(g.tiles, 1)) if g.axes == 2 else 1
    g.group = max(1, group) if g.bands_x * g.bands_y == 1 else 1
    g.tiles = min(g.tiles, unit_count(g))
    g.workspace = workspace_size(g)


def reference(parameters, x, image_shape, block_shape):
    """The formula, ordered by k: the pixels of position k in all blocks are a strided slice of the image."""
    image, block = (np.asarray(sizes).tolist() for sizes in (image_shape, block_shape))
    x = dtypes.widest(x)
    y = np.full((x.shape[0], x.shape[1] // math.prod(block), *image), dtypes.zero(x), x.dtype)
    if not x.size:
        return y
    x = x.reshape(*y.shape[:2], *block, *block_counts(parameters, image, block))
    for k, blocks, pixels in overlaps(parameters, image, block):
        y[(..., *pixels)] = y[(..., *pixels)] + x[(slice(None), slice(None), *k, *blocks)]
    return y


@jitable
def infer(parameters, shapes, g):
    batch = shapes[0][0] if len(shapes[0]) == 3 else UNKNOWN
    infer_image(parameters, shapes, batch, g)


@jitable
def infer_image(parameters, shapes, batch, g):
    """Infer the output's shape for this batch size, from the input's last two axes and the shapes."""
    x, image_shape, block_shape = shapes
    image, block, given = len(image_shape), len(block_shape), parameters.axes
    if given != 0:
        require(image == 0 or image == given, "length of {image_shape}", image, "attributes are for image axes:", given)
        require(block == 0 or block == given, "length of {block_shape}", block, "attributes are for image axes:", given)
    axes = max(image, block)
    if not 1 <= axes <= AXES:
        return
    g.rank, g.shape[0], g.shape[1] = 2 + axes, batch, UNKNOWN
    positions = known_product(block_shape)
    if len(x) >= 2 and x[len(x) - 2] >= 0 and len(block_shape) > 0 and positions > 0:
        g.shape[1] = x[len(x) - 2] // positions
    for i in range(axes):
        g.shape[2 + i] = image_shape[i] if i < len(image_shape) and image_shape[i] > 0 else UNKNOWN


COL2IM = Operator(
    domain="",
    name="Col2Im",
    versions=(18,),
    ranks=(3,),
    inputs=(Input("input", "T"), Input("image_shape", "I", values=True), Input("block_shape", "I", values=True)),
    outputs=(Output("output", "T"),),
    types={"T": dtypes.ALL, "I": ("int64",)},
    attributes=ATTRIBUTES,
    parameters=PARAMETERS,
    geometry={
        "planes": None, "group": None, "band_y": None, "bands_y": None, "band_x": None, "bands_x": None, "tiled": None,
        **GEOMETRY,
    },
    resolve=resolve,
    plan=plan,
    infer=infer,
    kernels=(Kernel(col2im),),
    reference=reference,
)  # fmt: skip


@jitable
def resolve_openvino(attributes, p):
    """Resolve the attributes for two image axes: OpenVINO's operator has no others."""
    strides, dilations, pads_begin, pads_end = attributes
    p.axes = 2
    set_axes(p.strides, strides, 1)
    set_axes(p.dilations, dilations, 1)
    set_axes(p.pads_begin, pads_begin, 0)
    set_axes(p.pads_end, pads_end, 0)


@jitable
def plan_openvino(parameters, shapes, g):
    if len(shapes[0]) == 2:
        plan_blocks(parameters, shapes, 1, g)
        drop_batch(g)
    else:
        plan(parameters, shapes, g)


def reference_openvino(parameters, x, image_shape, block_shape):
    if x.ndim == 2:
        return reference(parameters, x[None], image_shape, block_shape)[0]
    return reference(parameters, x, image_shape, block_shape)


@jitable
def infer_openvino(parameters, shapes, g):
    if len(shapes[0]) == 2:
        infer_image(parameters, shapes, 1, g)
        drop_batch(g)
    elif len(shapes[0]) == 3:
        infer(parameters, shapes, g)


@jitable
def drop_batch(g):
    """Remove the first axis from the output's shape."""
    g.rank -= 1
    for i in range(g.rank):
        g.shape[i] = g.shape[i + 1]


OPENVINO = replace(
    COL2IM,
    domain="org.openvinotoolkit",
    versions=(1,),
    ranks=(2, 3),
    inputs=(Input("data", "T"), Input("output_size", "I", values=True), Input("kernel_size", "I", values=True)),
    types={"T": dtypes.ALL, "I": ("int32", "int64")},
    attributes=(
        *(sizes(name, axes=(2, 2)) for name in ("strides", "dilations")),
        *(sizes(name, axes=(2, 2), least=0) for name in ("pads_begin", "pads_end")),
    ),
    resolve=resolve_openvino,
    plan=plan_openvino,
    reference=reference_openvino,
    infer=infer_openvino,
    terms={"input": "data", "image_shape": "output_size", "block_shape": "kernel_size"},
)
OPERATORS = (COL2IM, OPENVINO)
