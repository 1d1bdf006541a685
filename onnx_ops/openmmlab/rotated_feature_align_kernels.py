"""RotatedFeatureAlign, for a block of pixels at a time.

The taps of the pixels' points are found once for all channels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..declaration.jit import FUSE, jitable
from ..detection.roi_align_kernels import FeatureMaps, is_inside, scale_of, tap_weight, taps_of
from ..kernels.elements import integers_in, load, store, sums_in, zero
from ..kernels.shares import share

if TYPE_CHECKING:
    from ..kernels.types import Elements, Indices, Pixel, Tile, Weights, Workspace

PIXELS = 256  # of a unit
TAPS = 4 * 5  # of a pixel's points, at most


class RotatedFeatureAlignGeometry(FeatureMaps):
    """The points of boxes, and the division of a feature map into blocks of pixels.

    A unit of work is a block of one image.
    """

    points: int  # of a box: 1 or 5
    blocks: int  # into which the pixels of a channel are divided


@jitable
def workspace_size() -> int:
    """Return the bytes that a tile needs: the taps of a unit's pixels."""
    return 16 * TAPS * PIXELS


@jitable
def rotated_feature_align(
    features: Elements,
    boxes: Elements,
    g: RotatedFeatureAlignGeometry,
    tile: Tile,
    workspace: Workspace,
    out: Elements,
) -> None:
    """Compute a tile, unit by unit."""
    offset = integers_in(workspace, 0, (TAPS, PIXELS))
    weight = sums_in(workspace, 8 * TAPS * PIXELS, (TAPS, PIXELS), out)
    begin, end = share(g.batch * g.blocks, g, tile)
    for unit in range(begin, end):
        n = unit // g.blocks
        first = unit % g.blocks * PIXELS
        count = min(PIXELS, g.pixels - first)
        for b in range(count):
            place_points(boxes, n * g.pixels + first + b, g, b, offset, weight)
        for c in range(g.channels):
            plane = (n * g.channels + c) * g.pixels
            add_samples(
                features[plane:][: g.pixels],
                first,
                4 * g.points,
                offset,
                weight,
                out[plane + first :][:count],
            )


@jitable
def place_points(
    boxes: Elements,
    box: int,
    g: RotatedFeatureAlignGeometry,
    b: int,
    offset: Indices,
    weight: Weights,
) -> None:
    """Store the taps of a box's points as those of pixel b: offset[:, b] and weight[:, b].

    box  its number in `boxes`
    """
    number = weight.dtype.type
    scale = number(scale_of(g))
    begin = 5 * box
    y = load(boxes, begin) * scale
    x = load(boxes, begin + 1) * scale
    half_width = load(boxes, begin + 2) * scale * number(0.5)
    half_height = load(boxes, begin + 3) * scale * number(0.5)
    angle = np.float64(load(boxes, begin + 4))
    cosine = number(np.cos(angle))
    sine = number(np.sin(angle))
    for k in range(g.points):
        # The centre, then the corners.
        along = number(0) if k == 0 else half_width if k % 2 == 1 else -half_width
        across = number(0) if k == 0 else half_height if k < 3 else -half_height
        v = y + along * sine + across * cosine
        u = x + along * cosine - across * sine
        for t in range(4):
            offset[4 * k + t, b] = 0
            weight[4 * k + t, b] = number(0)
        if is_inside(v, g.height) and is_inside(u, g.width):
            top, bottom, down = taps_of(v, g.height)
            left, right, right_share = taps_of(u, g.width)
            for t in range(4):
                row = bottom if t // 2 else top
                offset[4 * k + t, b] = row * g.width + (right if t % 2 else left)
                weight[4 * k + t, b] = tap_weight(t, down, right_share)


@jitable(**FUSE)
def add_samples(
    plane: Elements, first: Pixel, taps: int, offset: Indices, weight: Weights, target: Elements
) -> None:
    """Add the samples of pixels to the pixels, without taps that have a weight of 0.

    target[b] = plane[first + b] + sum over t < taps of  weight[t, b] * plane[offset[t, b]]
    """
    none = zero(plane)
    for b in range(target.size):
        total = load(plane, first + b)
        for t in range(taps):
            if weight[t, b] > none:
                total += weight[t, b] * load(plane, np.uintp(offset[t, b]))
        store(target, b, total)
