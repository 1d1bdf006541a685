"""Sliding blocks over an image with any number of axes, which Col2Im and Im2Col share.

    p_i = l_i * strides_i + k_i * dilations_i - pads_begin_i

i: image axis, p: pixel, k: position within the block (K of them in all), l: block (L of them in all).
"""

import numpy as np

from .compiler.jit import jitable
from .declaration import ELEMENTS, MAX_RANK, UNKNOWN, Attribute
from .errors import require

LIMIT = 2**40  # of any size, stride, dilation or pad: more than memory holds, and sums of them fit into 64 bits
WORK = 2**15  # elements that one tile reads and writes, in about 15 us
AXES = MAX_RANK - 2  # the most image axes


def sizes(name, required=False, axes=(1, AXES), least=1):
    """Return the declaration of an attribute that holds sizes. axes: how few and how many there may be."""
    return Attribute(name, "ints", None, required, (least, LIMIT), axes)


ATTRIBUTES = (sizes("dilations"), sizes("pads", axes=(2, 2 * AXES), least=0), sizes("strides"))
PARAMETERS = {"axes": None, "strides": AXES, "dilations": AXES, "pads_begin": AXES, "pads_end": AXES}
# The last three are products over all axes.
GEOMETRY = {
    "axes": None, "image": AXES, "block": AXES, "counts": AXES, "strides": AXES, "dilations": AXES, "pads": AXES,
    "pixels": None, "positions": None, "blocks": None,
}  # fmt: skip


@jitable
def resolve(attributes, p):
    """Fill in the defaults for every possible axis. `axes` is 0 if the attributes leave the number of axes open."""
    dilations, pads, strides = attributes
    half = len(pads) // 2
    axes = max(len(dilations), len(strides), half)
    require(len(pads) % 2 == 0, "pads", pads, "must have two elements per image axis: all begins, then all ends")
    rule = "must agree with other attributes on the number of image axes,"
    require(len(dilations) == 0 or len(dilations) == axes, "dilations", dilations, rule, axes)
    require(len(strides) == 0 or len(strides) == axes, "strides", strides, rule, axes)
    require(half == 0 or half == axes, "pads", pads, rule, axes)
    p.axes = axes
    set_axes(p.dilations, dilations, 1)
    set_axes(p.strides, strides, 1)
    set_axes(p.pads_begin, pads[:half], 0)
    set_axes(p.pads_end, pads[half:], 0)


@jitable
def set_axes(field, values, default):
    """Set a field to the values of the axes that there are, and to the default for all others."""
    field[:] = default
    for i in range(len(values)):
        field[i] = values[i]


@jitable
def block_count(parameters, i, pixels, positions):
    """Return how many blocks fit along axis i. pixels, positions: of image and block there; 0 if none fits."""
    padded = pixels + parameters.pads_begin[i] + parameters.pads_end[i]
    if positions - 1 > (padded - 1) // parameters.dilations[i]:
        return 0
    return (padded - parameters.dilations[i] * (positions - 1) - 1) // parameters.strides[i] + 1


@jitable
def lay_out(parameters, image, block, g):
    """Check the sizes of image and block, which have the same axes, and fill the fields of GEOMETRY.

    There may be no pixels, and no blocks. A number of blocks above ELEMENTS is stated as ELEMENTS + 1.
    """
    axes = len(image)
    # Kernels always have two axes, y and x: a lone axis gets one of size 1 before it.
    g.axes = max(axes, 2)
    g.image[0] = g.block[0] = g.counts[0] = g.strides[0] = g.dilations[0] = 1
    g.pads[0] = 0
    g.pixels = g.positions = g.blocks = largest = 1
    for i in range(axes):
        require(image[i] <= LIMIT, "{image_shape}", image, "must be at most 2**40")
        require(1 <= block[i] <= LIMIT, "{block_shape}", block, "must lie in [1, 2**40]")
        count = block_count(parameters, i, image[i], block[i])
        require(image[i] <= ELEMENTS // largest, "{image_shape}", image, "product must be at most 2**58")
        require(block[i] <= ELEMENTS // g.positions, "{block_shape}", block, "product must be at most 2**58")
        g.pixels, g.positions, largest = g.pixels * image[i], g.positions * block[i], largest * max(image[i], 1)
        g.blocks = g.blocks * count if count <= ELEMENTS // max(g.blocks, 1) else ELEMENTS + 1
        a = i + g.axes - axes
        g.image[a], g.block[a], g.counts[a] = image[i], block[i], count
        g.strides[a], g.dilations[a] = parameters.strides[i], parameters.dilations[i]
        g.pads[a] = parameters.pads_begin[i]


@jitable
def known_product(vector):
    """Return the product of sizes; UNKNOWN if a size is unknown or less than 1, or the product exceeds ELEMENTS."""
    product = 1
    for size in vector:
        if not 1 <= size <= ELEMENTS // product:
            return UNKNOWN
        product *= size
    return product


def block_counts(parameters, image, block):
    """Return how many blocks there are along each axis."""
    return [block_count(parameters, i, *sizes) for i, sizes in enumerate(zip(image, block, strict=True))]


def overlaps(parameters, image, block):
    """Yield (k, blocks, pixels) for each position k within the block: the blocks whose k lies on the image, and where.

    Blocks and pixels are tuples of slices, one for each image axis. Positions that lie outside in all blocks are left
    out.
    """
    counts, image = block_counts(parameters, image, block), np.asarray(image)
    fields = (parameters.strides, parameters.dilations, parameters.pads_begin)
    stride, dilation, begin = (np.asarray(values[: image.size]) for values in fields)
    for k in np.ndindex(*block):
        shift = k * dilation - begin  # the pixel of position k in the first block, which may lie outside the image
        low, high = np.maximum(0, -(shift // stride)), np.minimum(counts, (image - 1 - shift) // stride + 1)
        if (low < high).all():
            pixels = map(slice, low * stride + shift, (high - 1) * stride + shift + 1, stride)
            yield k, tuple(map(slice, low, high)), tuple(pixels)
