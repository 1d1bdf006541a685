"""RotatedFeatureAlign: the pixels of some columns or rows at a time, their points' taps once for all channels."""

import numpy as np

from ..declaration.jit import FUSE, jitable
from ..detection.roi_align_kernels import is_inside, scale_of, tap_weight, taps_of
from ..kernels.elements import integers_in, load, store, sums_in, zero
from ..kernels.shares import share

PIXELS = 256  # of a unit
TAPS = 4 * 5  # of a pixel's points, at most


@jitable
def workspace_size():
    return 16 * TAPS * PIXELS


@jitable
def rotated_feature_align(features, boxes, g, tile, workspace, out):
    offset = integers_in(workspace, 0, (TAPS, PIXELS))
    weight = sums_in(workspace, 8 * TAPS * PIXELS, (TAPS, PIXELS), out)
    begin, end = share(g.batch * g.blocks, g, tile)
    for unit in range(begin, end):
        n, first = unit // g.blocks, unit % g.blocks * PIXELS
        count = min(PIXELS, g.pixels - first)
        for b in range(count):
            place_points(boxes, n * g.pixels + first + b, g, b, offset, weight)
        for c in range(g.channels):
            plane = (n * g.channels + c) * g.pixels
            add_samples(features[plane:][: g.pixels], first, 4 * g.points, offset, weight, out[plane + first :][:count])


@jitable
def place_points(boxes, box, g, b, offset, weight):
    """Store the taps of a box's points as those of pixel b."""
    number = weight.dtype.type
    scale, at = number(scale_of(g)), 5 * box
    y, x = load(boxes, at) * scale, load(boxes, at + 1) * scale
    half_width, half_height = load(boxes, at + 2) * scale * number(0.5), load(boxes, at + 3) * scale * number(0.5)
    angle = np.float64(load(boxes, at + 4))
    cosine, sine = number(np.cos(angle)), number(np.sin(angle))
    for k in range(g.points):
        # The centre, then the corners.
        along = number(0) if k == 0 else half_width if k % 2 == 1 else -half_width
        across = number(0) if k == 0 else half_height if k < 3 else -half_height
        v, u = y + along * sine + across * cosine, x + along * cosine - across * sine
        for t in range(4):
            offset[4 * k + t, b], weight[4 * k + t, b] = 0, number(0)
        if is_inside(v, g.height) and is_inside(u, g.width):
            top, bottom, down = taps_of(v, g.height)
            left, right, right_share = taps_of(u, g.width)
            for t in range(4):
                row, column = bottom if t // 2 else top, right if t % 2 else left
                offset[4 * k + t, b] = row * g.width + column
                weight[4 * k + t, b] = tap_weight(t, down, right_share)


@jitable(**FUSE)
def add_samples(plane, first, taps, offset, weight, target):
    """target[b] = plane[first + b] + sum over t < taps of weight[t, b] * plane[offset[t, b]], without weights of 0"""
    none = zero(plane)
    for b in range(target.size):
        total = load(plane, first + b)
        for t in range(taps):
            if weight[t, b] > none:
                total += weight[t, b] * load(plane, np.uintp(offset[t, b]))
        store(target, b, total)
