"""Sliding blocks over an image with any number of axes, which Col2Im and Im2Col share.

    p_i = l_i * strides_i + k_i * dilations_i - pads_begin_i

i: image axis, p: pixel, k: position within the block (K of them in all), l: block (L of them in
all).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..declaration.attributes import Attribute
from ..declaration.errors import require
from ..declaration.jit import jitable
from ..declaration.limits import ELEMENTS, UNKNOWN
from ..kernels.vectors import quotient
from .geometry import AXES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from numpy.typing import ArrayLike

    from ..kernels.types import AttributeTuple, Axis, Sizes
    from .geometry import ArrayIndex, Block, Position, SlidingBlocks, Spacing

# Of any size, stride, dilation or pad: more than memory holds, and sums of them fit into 64 bits.
LIMIT = 2**40
WORK = 2**15  # elements that one tile reads and writes, in about 15 us


def sizes(
    name: str, required: bool = False, axes: tuple[int, int] = (1, AXES), least: int = 1
) -> Attribute:
    """Return the declaration of an attribute that holds sizes. axes: how few and how many there may
    be.
    """
    return Attribute(name, "ints", None, required, (least, LIMIT), axes)


ATTRIBUTES = (sizes("dilations"), sizes("pads", axes=(2, 2 * AXES), least=0), sizes("strides"))


@jitable
def spacing_of(attributes: AttributeTuple) -> Spacing:
    """Return the blocks' spacing: strides, dilations, begins and ends of pads, each empty or with
    one for each axis.
    """
    half = len(attributes.pads) // 2
    return attributes.strides, attributes.dilations, attributes.pads[:half], attributes.pads[half:]


@jitable
def check_attributes(attributes: AttributeTuple) -> int:
    """Refuse attributes that disagree on the number of image axes; return it, or 0 if they leave it
    open.
    """
    pads = attributes.pads
    dilations = attributes.dilations
    strides = attributes.strides
    axes = given_axes(spacing_of(attributes))
    require(
        len(pads) % 2 == 0,
        "pads",
        pads,
        "must have two elements per image axis: all begins, then all ends",
    )
    rule = "must agree with other attributes on the number of image axes,"
    require(len(dilations) == 0 or len(dilations) == axes, "dilations", dilations, rule, axes)
    require(len(strides) == 0 or len(strides) == axes, "strides", strides, rule, axes)
    require(len(pads) == 0 or len(pads) == 2 * axes, "pads", pads, rule, axes)
    return axes


@jitable
def given_axes(spacing: Spacing) -> int:
    """Return the number of image axes that the attributes are for; 0 if they leave it open."""
    strides, dilations, begins, _ = spacing
    return max(len(strides), len(dilations), len(begins))


@jitable
def along(values: Sizes, i: Axis, default: int) -> int:
    """Return the value given for axis i, or the default."""
    return values[i] if len(values) else default


@jitable
def block_count(spacing: Spacing, i: Axis, pixels: int, positions: int) -> int:
    """Return how many blocks fit along axis i. pixels, positions: of image and block there; 0 if
    none fits.
    """
    strides, dilations, begins, ends = spacing
    padded = pixels + along(begins, i, 0) + along(ends, i, 0)
    if positions - 1 > (padded - 1) // along(dilations, i, 1):
        return 0
    return (padded - along(dilations, i, 1) * (positions - 1) - 1) // along(strides, i, 1) + 1


@jitable
def find_blocks(g: SlidingBlocks, a: Axis, k: Position) -> tuple[Block, Block]:
    """Return the range of blocks of axis a with position k on the image.

    It is (the first one, the one after the last).
    """
    stride = g.strides[a]
    shift = k * g.dilations[a] - g.pads[a]
    return max(0, -quotient(shift, stride)), min(
        g.counts[a], quotient(g.image[a] - 1 - shift, stride) + 1
    )


@jitable
def lay_out(spacing: Spacing, image: Sizes, block: Sizes, g: SlidingBlocks) -> None:
    """Check the sizes of image and block, which have the same axes, and fill the fields of
    SlidingBlocks.

    There may be no pixels, and no blocks. A number of blocks above ELEMENTS is stated as
    ELEMENTS + 1.
    """
    axes = len(image)
    strides, dilations, begins, _ = spacing
    # Kernels always have two axes, y and x: a lone axis gets one of size 1 without pads before it.
    g.axes = max(axes, 2)
    g.image[0] = g.block[0] = g.counts[0] = g.strides[0] = g.dilations[0] = 1
    g.pixels = g.positions = g.blocks = largest = 1
    for i in range(axes):
        require(image[i] <= LIMIT, "{image_shape}", image, "must be at most 2**40")
        require(1 <= block[i] <= LIMIT, "{block_shape}", block, "must lie in [1, 2**40]")
        count = block_count(spacing, i, image[i], block[i])
        require(
            image[i] <= ELEMENTS // largest, "{image_shape}", image, "product must be at most 2**58"
        )
        require(
            block[i] <= ELEMENTS // g.positions,
            "{block_shape}",
            block,
            "product must be at most 2**58",
        )
        g.pixels *= image[i]
        g.positions *= block[i]
        largest *= max(image[i], 1)
        g.blocks = g.blocks * count if count <= ELEMENTS // max(g.blocks, 1) else ELEMENTS + 1
        a = i + g.axes - axes
        g.image[a] = image[i]
        g.block[a] = block[i]
        g.counts[a] = count
        g.strides[a] = along(strides, i, 1)
        g.dilations[a] = along(dilations, i, 1)
        g.pads[a] = along(begins, i, 0)


@jitable
def are_known(sizes: Sizes) -> bool:
    """Return whether no size is UNKNOWN."""
    known = True
    for size in sizes:
        known &= size >= 0
    return known


@jitable
def known_product(values: Sizes) -> int:
    """Return the product of sizes; UNKNOWN if a size is unknown or less than 1, or the product
    exceeds ELEMENTS.
    """
    product = 1
    for size in values:
        if not 1 <= size <= ELEMENTS // product:
            return UNKNOWN
        product *= size
    return product


def halves_of(pads: Sizes | None) -> Sequence[np.ndarray | None]:
    """Return the begins and the ends of pads, each None if there are none."""
    return np.split(np.array(pads), 2) if pads else (None, None)


def spacing_of_lists(
    image: Sizes,
    strides: ArrayLike | None,
    dilations: ArrayLike | None,
    pads_begin: ArrayLike | None,
    pads_end: ArrayLike | None,
) -> tuple[Any, ...]:
    """Return the spacing as `spacing_of` does; each argument is None or has a number for each axis
    of the image.
    """
    pairs = (strides, 1), (dilations, 1), (pads_begin, 0), (pads_end, 0)
    return tuple(
        np.array([default] * len(image) if given is None else given) for given, default in pairs
    )


def block_counts(spacing: Spacing, image: Sizes, block: Sizes) -> list[int]:
    """Return how many blocks there are along each axis."""
    return [
        block_count(spacing, i, *sizes) for i, sizes in enumerate(zip(image, block, strict=True))
    ]


def overlaps(
    spacing: tuple[Any, ...], image: Sizes, block: Sizes
) -> Iterator[tuple[ArrayIndex, ArrayIndex, ArrayIndex]]:
    """Yield (k, blocks, pixels) for each position k within the block: the blocks whose k lies on
    the image, and where.

    Blocks and pixels are tuples of slices, one for each image axis. Positions that lie outside in
    all blocks are left out.
    """
    counts = block_counts(spacing, image, block)
    extent = np.asarray(image)
    stride, dilation, begin, _ = spacing
    for k in np.ndindex(*block):
        # The pixel of position k in the first block, which may lie outside the image.
        shift = dilation * k - begin
        low = np.maximum(0, -(shift // stride))
        high = np.minimum(counts, (extent - 1 - shift) // stride + 1)
        if (low < high).all():
            pixels = map(slice, low * stride + shift, (high - 1) * stride + shift + 1, stride)
            yield k, tuple(map(slice, low, high)), tuple(pixels)
