"""Convert a grid's values to pixel coordinates, optionally moved into the image by the padding mode."""

import numpy as np

from ..declaration.jit import jitable, known
from .grid_points import load_coordinate

ZEROS, BORDER, REFLECTION = 0, 1, 2
IMAGE, VOLUME = known(2), known(3)  # numbers of axes
# The coordinates that reflection handles: none, those less than a period from the image's edge (cubic: from pixel 0),
# or all. For all it needs a remainder, which LLVM can't vectorize.
NO_PERIOD, ONE_PERIOD, ALL_PERIODS = known(0), known(1), known(2)
NO_LIMITS = None  # instead of these: coordinates are neither padded nor limited


@jitable
def axis_of(g, i, cubic, zero):
    """Return the parameters of `coordinate` for axis i, in the type of `zero`."""
    dtype, size = type(zero), g.image[i]
    # (v + 1) / 2 * (size - 1), ((v + 1) * size - 1) / 2 or v + 1 - 1, all as (v + 1) * scale - shift: a factor 1/2
    # rounds nothing.
    scale, shift = dtype(size) * dtype(0.5), dtype(0.5)
    if g.align_corners:
        scale, shift = dtype(size - 1) * dtype(0.5), dtype(0)
    if g.pixels:
        scale, shift = dtype(1), dtype(1)
    # Reflection mirrors at 0 and size - 1, or at -1/2 and size - 1/2. Under cubic, coordinates only repeat with the
    # period: taps are mirrored one by one.
    edge, span = (dtype(0), dtype(size - 1)) if g.align_corners else (dtype(-0.5), dtype(size))
    period = dtype(max(1, 2 * (size - g.align_corners))) if cubic else span + span
    # The high limit is outside of the image even after rounding, on axes with more pixels than float32 has digits.
    reflects, nowhere, low, high = g.padding_mode == REFLECTION, dtype(-2), dtype(-2), dtype(2 * size + 4)
    if cubic:
        nowhere, low = dtype(-3 * size - 8), dtype(-4)
        if reflects:
            low, high = nowhere, -nowhere
    elif g.padding_mode != ZEROS:
        low, high = dtype(0), dtype(size - 1)
    return scale, shift, reflects, edge, span, period, nowhere, low, high


@jitable
def coordinate(v, axis, cubic, periods):
    """Return the pixel coordinate for a grid's value: padded, except for cubic, and limited so that it fits an integer.

    Returns also whether the value is beyond one period: with periods=ONE_PERIOD, the coordinate is then wrong. With
    NO_PERIOD it is wrong for all values that reflection changes.
    NaN counts as -1. Infinities under reflection become `nowhere`, a place without taps: -2 (for cubic: -3 * size - 8).
    Reflection rounds only where the edge is subtracted and added, for every finite value.
    With NO_LIMITS the coordinate is any number. It is NaN at infinities along an axis of a single pixel.
    """
    scale, shift, reflects, edge, span, period, nowhere, low, high = axis
    v = (v + type(v)(1) if v == v else type(v)(0)) * scale - shift
    if periods is NO_LIMITS:
        return v, False
    beyond = False
    if len(periods) > 0 and reflects:
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
def coordinate_of(points, b, i, g, cubic):
    """Return the pixel coordinate of point b along axis i, see `coordinate`."""
    v = load_coordinate(points, b, g.axes - 1 - i, g.axes)
    return coordinate(v, axis_of(g, i, cubic, type(v)(0)), cubic, ALL_PERIODS)[0]


@jitable
def pad_index(k, size, padding_mode, align_corners):
    """Return the pixel that padding substitutes for pixel `k` of an axis, or -1 for none."""
    if k < -2 * size - 4:
        return -1
    if padding_mode == BORDER:
        return min(max(k, 0), size - 1)
    if padding_mode == REFLECTION:
        k %= max(1, 2 * (size - align_corners))
        return k if k < size else 2 * size - 1 - align_corners - k
    return k if 0 <= k < size else -1
