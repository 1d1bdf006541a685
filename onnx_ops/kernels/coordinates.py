"""Where a grid's points lie in an image: pixel coordinates, moved into the image as the padding mode says."""

import numpy as np

from .elements import load, zero
from .jit import jitable

ZEROS, BORDER, REFLECTION = 0, 1, 2
# Two ways to reflect: for places less than a period away from the image's edge (cubic: from pixel 0), and for all. LLVM
# makes no vectors of the latter's remainders. Compiled code knows lengths of tuples, and so which way is meant.
NEAR, FAR = (), (0,)


@jitable
def axis_of(g, i, cubic, zero):
    """What `coordinate` needs for axis i, in numbers of the type of `zero`."""
    number, size = type(zero), g.image[i]
    # (v + 1) / 2 * (size - 1) and ((v + 1) * size - 1) / 2, both as ((v + 1) * first - shift) * second.
    first, shift, second = number(size), number(1), number(0.5)
    if g.align_corners:
        first, shift, second = number(0.5), number(0), number(size - 1)
    # Mirrored at 0 and size - 1, or at -1/2 and size - 1/2. Cubic's repeats: its taps are mirrored one by one.
    edge, span = (number(0), number(size - 1)) if g.align_corners else (number(-0.5), number(size))
    period = number(max(1, 2 * (size - g.align_corners))) if cubic else span + span
    # So far to the right that it is still there when it is rounded, on axes with more pixels than float32 has digits.
    reflects, nowhere, low, high = g.padding_mode == REFLECTION, number(-2), number(-2), number(2 * size + 4)
    if cubic:
        nowhere, low = number(-3 * size - 8), number(-4)
        if reflects:
            low, high = nowhere, -nowhere
    elif g.padding_mode != ZEROS:
        low, high = number(0), number(size - 1)
    return first, shift, second, reflects, edge, span, period, nowhere, low, high


@jitable
def coordinate(v, axis, cubic, way):
    """The pixel coordinate for a grid's value, padded (except for cubic) and within reach of an integer; and whether it
    is too far away for the way NEAR, and therefore wrong.

    NaN becomes `nowhere`, a place without taps: -2 (for cubic: -3 * size - 8). Reflection rounds only where the edge is
    subtracted and added, for every finite value.
    """
    first, shift, second, reflects, edge, span, period, nowhere, low, high = axis
    v = ((v + type(v)(1)) * first - shift) * second
    far = False
    if reflects:
        v = v if cubic else abs(v - edge)
        far = not abs(v) < period
        if len(way) > 0 and far:
            v = np.fmod(v, period) if period > 0 else v * type(v)(0)
        if not cubic:
            v = (period - v if v > span else v) + edge
    v = low if v < low else v
    v = high if v > high else v
    return v if v >= nowhere else nowhere, far


@jitable
def coordinate_of(points, b, i, g, cubic):
    """The same of one point, along axis i."""
    v = load(points, (b + 1) * g.axes - 1 - i)
    return coordinate(v, axis_of(g, i, cubic, zero(points)), cubic, FAR)[0]


@jitable
def pad_index(k, size, padding_mode, align_corners):
    """The pixel that stands for pixel `k` of an axis, -1 if none does."""
    if k < -2 * size - 4:
        return -1
    if padding_mode == BORDER:
        return min(max(k, 0), size - 1)
    if padding_mode == REFLECTION:
        k %= max(1, 2 * (size - align_corners))
        return k if k < size else 2 * size - 1 - align_corners - k
    return k if 0 <= k < size else -1
