"""Convert a grid's values to pixel coordinates, optionally moved into the image by the padding
mode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..declaration.jit import jitable, known
from .grid_points import load_coordinate

if TYPE_CHECKING:
    from typing import TypeAlias

    from ..kernels.types import Axis, Index, Known, Number
    from .geometry import GridSampleGeometry, Point, Points

    # Z, y and x; z of an image is unused.
    ImageAxes: TypeAlias = tuple["ImageAxis", "ImageAxis", "ImageAxis"]

ZEROS, BORDER, REFLECTION = 0, 1, 2
IMAGE, VOLUME = known(2), known(3)  # numbers of axes
# The coordinates that reflection handles: none, those less than a period from the image's edge
# (cubic: from pixel 0), or all. For all it needs a remainder, which LLVM can't vectorize.
NO_PERIOD, ONE_PERIOD, ALL_PERIODS = known(0), known(1), known(2)
NO_LIMITS = None  # instead of these: coordinates are neither padded nor limited


class ImageAxis(NamedTuple):
    """How a grid's values become coordinates along an axis.

    All but `reflects` are numbers of the coordinates' type.
    """

    scale: Number  # of the value + 1
    shift: Number  # that is subtracted from the scaled value
    reflects: bool
    edge: Number  # the first of the two coordinates at which reflection mirrors
    span: Number  # from that one to the other
    period: Number  # after which reflected coordinates repeat
    nowhere: Number  # a coordinate without taps
    low: Number  # limits of coordinates, which are moved to these
    high: Number


@jitable
def axis_of(g: GridSampleGeometry, i: Axis, cubic: bool, zero: Number) -> ImageAxis:
    """Return the parameters of `coordinate` for axis i, in the type of `zero`.

    cubic: whether the mode is cubic
    """
    dtype = type(zero)
    size = g.image[i]
    # (v + 1) / 2 * (size - 1), ((v + 1) * size - 1) / 2 or v + 1 - 1, all as
    # (v + 1) * scale - shift: a factor 1/2 rounds nothing.
    scale = dtype(size) * dtype(0.5)
    shift = dtype(0.5)
    if g.align_corners:
        scale = dtype(size - 1) * dtype(0.5)
        shift = dtype(0)
    if g.pixels:
        scale = dtype(1)
        shift = dtype(1)
    # Reflection mirrors at 0 and size - 1, or at -1/2 and size - 1/2. Under cubic, coordinates only
    # repeat with the period: taps are mirrored one by one.
    edge, span = (dtype(0), dtype(size - 1)) if g.align_corners else (dtype(-0.5), dtype(size))
    period = dtype(max(1, 2 * (size - g.align_corners))) if cubic else span + span
    # The high limit is outside of the image even after rounding, on axes with more pixels than
    # float32 has digits.
    reflects = g.padding_mode == REFLECTION
    nowhere = dtype(-2)
    low = dtype(-2)
    high = dtype(2 * size + 4)
    if cubic:
        nowhere = dtype(-3 * size - 8)
        low = dtype(-4)
        if reflects:
            low = nowhere
            high = -nowhere
    elif g.padding_mode != ZEROS:
        low = dtype(0)
        high = dtype(size - 1)
    return ImageAxis(scale, shift, reflects, edge, span, period, nowhere, low, high)


@jitable
def coordinate(
    v: Number, axis: ImageAxis, cubic: bool, periods: Known | None
) -> tuple[Number, bool]:
    """Return the pixel coordinate for a grid's value: padded, except for cubic, and limited so that
    it fits an integer.

    Returns also whether the value is beyond one period: with periods=ONE_PERIOD, the coordinate is
    then wrong. With NO_PERIOD it is wrong for all values that reflection changes. NaN counts as -1.
    Infinities under reflection become `nowhere`, a place without taps: -2 (for cubic:
    -3 * size - 8). Reflection rounds only where the edge is subtracted and added, for every finite
    value. With NO_LIMITS the coordinate is any number. It is NaN at infinities along an axis of a
    single pixel.
    """
    scale, shift, reflects, edge, span, period, nowhere, low, high = axis
    v = (v + type(v)(1) if v == v else type(v)(0)) * scale - shift
    if periods is NO_LIMITS:
        return v, False
    beyond = False
    if len(periods) and reflects:
        v = v if cubic else abs(v - edge)
        beyond = not abs(v) < period
        if len(periods) > 1 and beyond:
            v = np.fmod(v, period) if period > 0 else v * type(v)(0)
            if v != v:
                return nowhere, beyond
        if not cubic:
            v = (period - v if v > span else v) + edge
    v = v if v > low else low  # also at NaN
    return v if v < high else high, beyond


@jitable
def coordinate_of(points: Points, b: Point, i: Axis, g: GridSampleGeometry, cubic: bool) -> Number:
    """Return the pixel coordinate of point b along axis i, see `coordinate`."""
    v = load_coordinate(points, b, g.axes - 1 - i, g.axes)
    return coordinate(v, axis_of(g, i, cubic, type(v)(0)), cubic, ALL_PERIODS)[0]


@jitable
def pad_index(k: Index, size: int, padding_mode: int, align_corners: int) -> Index:
    """Return the pixel that padding substitutes for pixel `k` of an axis, or -1 for none."""
    if k < -2 * size - 4:
        return -1
    if padding_mode == BORDER:
        return min(max(k, 0), size - 1)
    if padding_mode == REFLECTION:
        k %= max(1, 2 * (size - align_corners))
        return k if k < size else 2 * size - 1 - align_corners - k
    return k if 0 <= k < size else -1
