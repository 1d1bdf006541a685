"""Col2Im: sliding blocks back into an image, overlaps added up (PyTorch's `fold`), for any number of image axes.

    y[n, c, p] = sum of x[n, c * K + k, l]  over all (k, l) with
    p_i = l_i * strides_i + k_i * dilations_i - pads_begin_i

n: batch, c: channel, i: image axis, p: pixel in image_shape, k: position within block_shape (K of them in all),
l: block, one of block_counts (L of them in all); k and l are flattened in row-major order. Nothing lands: 0.

Source: ONNX operator specification, Col2Im-18.
"""

import math

import numpy as np

from ..dtypes import INTEGERS
from ..errors import OpError, refuse
from ..kernels.col2im import SEGMENT, col2im
from ..kernels.jit import jitable
from ..operator import MAX_RANK, Attribute, Input, Operator, geometry, words

LIMIT = 2**40  # of any size, stride, dilation or pad: far past memory, and sums of four and their products by 2**20 fit
ELEMENTS = 2**60  # of any tensor
WORK = 2**15  # elements read and written by one tile, about 15 us

AXES = MAX_RANK - 2
PARAMETERS = words(axes=None, strides=AXES, dilations=AXES, pads_begin=AXES, pads_end=AXES)
GEOMETRY = geometry(
    channels=None, axes=None, segment=None, segments=None, rows=None,
    image=AXES, block=AXES, counts=AXES, strides=AXES, dilations=AXES, pads=AXES,
)  # fmt: skip


def resolve(dilations, pads, strides):
    """Defaults spelled out for every possible axis; `axes` is 0 where the attributes leave the number of axes open."""
    given = {"dilations": dilations, "strides": strides, "pads": pads}
    axes = {name: len(v) // (2 if name == "pads" else 1) for name, v in given.items() if v is not None}
    if pads is not None and len(pads) % 2:
        raise OpError("pads", list(pads), "must have two elements per image axis: all begins, then all ends")
    for name, least in (("dilations", 1), ("strides", 1), ("pads", 0)):
        if given[name] is not None and not all(least <= v <= LIMIT for v in given[name]):
            raise OpError(name, list(given[name]), f"must lie in [{least}, 2**40]")
    if len(set(axes.values())) > 1:
        shown = ", ".join(f"{name} = {list(given[name])}" for name in axes)
        raise OpError("attributes", shown, "must agree on the number of image axes")
    count = next(iter(axes.values()), 0)
    if count > AXES or (axes and count == 0):
        raise OpError(next(iter(axes)), list(given[next(iter(axes))]), f"must be for 1 to {AXES} image axes")

    def spread(values, default):
        return tuple(values or ()) + (default,) * (AXES - len(values or ()))

    begin, end = (pads[:count], pads[count:]) if pads else ((), ())
    return {
        "axes": count, "strides": spread(strides, 1), "dilations": spread(dilations, 1),
        "pads_begin": spread(begin, 0), "pads_end": spread(end, 0),
    }  # fmt: skip


def lengths(parameters, known):
    """The number of image axes, where the model already states it."""
    for name, length in zip(("image_shape", "block_shape"), known, strict=True):
        if length is not None and parameters.axes not in (0, length):
            raise OpError(f"length of {name}", length, f"attributes are for image axes: {parameters.axes}")


@jitable
def plan(parameters, shapes, g):
    x, image_shape, block_shape = shapes
    axes = len(image_shape)
    if len(x) != 3:
        return refuse("shape of input", x, "must have rank 3: [N, C * prod(block_shape), L]")
    if not 1 <= axes <= AXES:
        return refuse("image_shape", image_shape, "number of image axes must be at least 1 and at most", AXES)
    if len(block_shape) != axes:
        return refuse("block_shape", block_shape, "must be as long as image_shape, which is of length", axes)
    if parameters.axes != 0 and parameters.axes != axes:
        return refuse("image_shape", image_shape, "strides, dilations and pads are for image axes:", parameters.axes)
    pixels = block = blocks = 1
    for i in range(axes):
        if not 1 <= image_shape[i] <= LIMIT:
            return refuse("image_shape", image_shape, "must lie in [1, 2**40]")
        if not 1 <= block_shape[i] <= LIMIT:
            return refuse("block_shape", block_shape, "must lie in [1, 2**40]")
        padded = image_shape[i] + parameters.pads_begin[i] + parameters.pads_end[i]
        dilation, stride = parameters.dilations[i], parameters.strides[i]
        if block_shape[i] - 1 > (padded - 1) // dilation:
            return refuse("block_shape", block_shape, "must, dilated, fit into the padded image; too large on axis", i)
        count = (padded - dilation * (block_shape[i] - 1) - 1) // stride + 1
        if image_shape[i] > ELEMENTS // pixels:
            return refuse("image_shape", image_shape, "product must be at most 2**60")
        if block_shape[i] > ELEMENTS // block:
            return refuse("block_shape", block_shape, "product must be at most 2**60")
        pixels, block = pixels * image_shape[i], block * block_shape[i]
        blocks = blocks * count if count <= ELEMENTS // blocks else ELEMENTS
        g.image[i], g.block[i], g.counts[i] = image_shape[i], block_shape[i], count
        g.strides[i], g.dilations[i], g.pads[i] = stride, dilation, parameters.pads_begin[i]
    if x[1] % block != 0:
        return refuse("shape of input", x, "axis 1 must be divisible by the product of block_shape,", block)
    if x[2] != blocks:
        return refuse("shape of input", x, "axis 2 must be the number of blocks,", blocks)
    channels = x[1] // block
    if x[0] * max(channels, 1) > ELEMENTS // pixels:
        return refuse("image_shape", image_shape, "output must have at most 2**60 elements")

    g.rank, g.shape[0], g.shape[1] = 2 + axes, x[0], channels
    for i in range(axes):
        g.shape[2 + i] = image_shape[i]
    width = image_shape[axes - 1]
    g.axes, g.channels = axes, channels
    g.segment = min(width, SEGMENT)
    g.segments = (width + g.segment - 1) // g.segment
    g.rows = x[0] * channels * (pixels // width)
    work = x[0] * (channels * pixels + x[1] * x[2])
    g.tiles = min(64, g.rows * g.segments, work // WORK + 1)
    return 0


def reference(parameters, x, image_shape, block_shape):
    """The formula from the blocks' side: each position k within a block is a strided slice of the padded image."""
    d, image, block = len(image_shape), np.asarray(image_shape), np.asarray(block_shape)
    fields = (parameters.strides, parameters.dilations, parameters.pads_begin, parameters.pads_end)
    stride, dilation, begin, end = (np.asarray(f[:d]) for f in fields)
    counts = (image + begin + end - dilation * (block - 1) - 1) // stride + 1
    if x.dtype.kind == "f":
        x = x.astype(np.float64)
    x = x.reshape(x.shape[0], -1 if x.size else x.shape[1] // math.prod(block), *block, *counts)
    y = np.zeros((*x.shape[:2], *(image + begin + end)), x.dtype)
    for k in np.ndindex(*block):
        first = k * dilation
        pixels = tuple(map(slice, first, first + (counts - 1) * stride + 1, stride))
        y[(..., *pixels)] += x[(slice(None), slice(None), *k)]
    return y[(..., *map(slice, begin, begin + image))]


OPERATORS = (
    Operator(
        domain="",
        name="Col2Im",
        since_version=18,
        inputs=(Input("input", "T"), Input("image_shape", "I", values=True), Input("block_shape", "I", values=True)),
        output="T",
        types={"T": ("float32", "float64", *INTEGERS), "I": ("int64",)},
        attributes=(Attribute("dilations", "ints"), Attribute("pads", "ints"), Attribute("strides", "ints")),
        parameters=PARAMETERS,
        geometry=GEOMETRY,
        resolve=resolve,
        lengths=lengths,
        plan=plan,
        kernel=lambda parameters: col2im,
        reference=reference,
    ),
)
