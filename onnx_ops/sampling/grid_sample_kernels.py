"""GridSample over blocks of BLOCK output pixels: compute places and weights once per block, for all
channels.

A block is part of one image's points. Interpolation reads, for each point, a square of neighbours
from the pixel `base` on, all inside the image. Weights alone account for taps outside: they are
zero, or added to those of the pixels inside. In place of missing rows, the last row is read again,
with weights 0. Points beside infinities and NaN are read again tap by tap, as are all points of
images too large for 32-bit indices.

A unit of work has some points and some or all channels. Its points are placed span by span, and all
blocks of a span are read from a channel before the next one, so that pixels that several blocks
read stay in the caches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..declaration.jit import APART, IN_PLACE, jitable
from ..kernels.elements import (
    elements_in,
    indices_in,
    integers_in,
    is_wide,
    load,
    store,
    sums,
    sums_in,
    zero,
)
from ..kernels.vectors import Neighbours, blend, take, whole
from .computed_points import Grid, stripe_of
from .coordinates import ZEROS, coordinate_of, pad_index
from .grid_points import BLOCK, begin_points, provide_points
from .taps import (
    BlockTaps,
    PointSpan,
    cubic_weights,
    image_axes,
    image_size,
    indexed_images,
    nearest_pixel,
    place_nearest,
    place_points,
    reading_of,
)

if TYPE_CHECKING:
    from ..kernels.types import (
        Axis,
        Coordinates,
        Elements,
        Indices,
        Number,
        Pixels,
        Sums,
        Tile,
        Unit,
        Weights,
        Workspace,
    )
    from .coordinates import ImageAxes
    from .geometry import GridSampleGeometry, Point, TapOffsets, WithImage
    from .taps import Reading

LINEAR, CUBIC = (0, 1), (-1, 0, 1, 2)  # their taps, from the floor of a coordinate
# Pixels, at most, of a channel so small that a vector read from its last row would end after it,
# and of what is read there.
COPIED = 64


class Method(NamedTuple):
    """How points are interpolated."""

    offsets: TapOffsets  # LINEAR or CUBIC
    is_indexed: bool  # whether pixels have 32-bit indices; else points are read tap by tap
    reading: Reading


class PointBlock(NamedTuple):
    """Points of one image that are read together."""

    image: int
    first: Point  # the first one's number in the image
    span: PointSpan
    taps: BlockTaps
    channel_end: int  # after the last channel for which they are read


class Buffers(NamedTuple):
    """The parts of the workspace for `interpolate`."""

    base: Pixels  # [block, b]: of BlockTaps, as the next two
    weight: Weights  # [block, axis, tap, b]
    row_weight: Weights  # [block, plane, row, b]
    coordinates: Coordinates  # [axis, b]
    values: Sums  # of a block's points
    copied: Elements  # a channel of a small image, and elements beyond it
    rest: Workspace  # for `tap_by_tap`


class ImageUnit(NamedTuple):
    """A unit of work: points of a stripe, in some channels."""

    image: int
    stripe: int
    first: Point
    end: Point  # after the last point
    channel: int  # the first one
    channel_end: int  # the one after the last


@jitable
def workspace_size(axes: int, taps: int, span: int) -> int:
    """Return the bytes of workspace that a tile needs.

    They are for the arrays of `interpolate` and `tap_by_tap`, or of `copy_nearest`, which has no
    taps.
    """
    of_point = axes * taps + (taps * taps if axes == 3 else 0)
    of_tile = (axes + 1) * BLOCK + COPIED + 2 * 3 * taps + 2 * taps**3
    return (4 + 8 * of_point) * span + 8 * of_tile


@jitable
def nearest(
    x: Elements,
    grid: Coordinates,
    g: GridSampleGeometry,
    tile: Tile,
    workspace: Workspace,
    out: Elements,
) -> None:
    """Compute a tile with mode nearest."""
    copy_nearest(x, Grid((grid,), ()), g, tile, workspace, out)


@jitable
def linear(
    x: Elements,
    grid: Coordinates,
    g: GridSampleGeometry,
    tile: Tile,
    workspace: Workspace,
    out: Elements,
) -> None:
    """Compute a tile with mode linear."""
    interpolate(x, Grid((grid,), ()), g, LINEAR, tile, workspace, out)


@jitable
def cubic(
    x: Elements,
    grid: Coordinates,
    g: GridSampleGeometry,
    tile: Tile,
    workspace: Workspace,
    out: Elements,
) -> None:
    """Compute a tile with mode cubic."""
    interpolate(x, Grid((grid,), ()), g, CUBIC, tile, workspace, out)


@jitable
def copy_nearest(
    x: Elements,
    grid: Grid,
    g: GridSampleGeometry,
    tile: Tile,
    workspace: Workspace,
    out: Elements,
) -> None:
    """Compute a tile with mode nearest."""
    points, sources = grid
    pixels = image_size(g)
    indexed = indexed_images(g) > 0
    zyx = image_axes(g, False, zero(points[0]))
    base = indices_in(workspace, g.of_points, g.span)
    begin_points(sources, workspace)
    for unit in range(g.units * tile // g.tiles, g.units * (tile + 1) // g.tiles):
        n, stripe, first, end, channel, channel_end = image_unit_of(g, unit)
        while first < end:
            count = min(g.span, end - first)
            begin = provide_points(sources, n, stripe, first, g, workspace)
            if indexed:
                place_nearest(PointSpan(points, begin, count), g, zyx, base)
            for c in range(channel, channel_end):
                source = x[(n * g.channels + c) * pixels :]
                target = out[(n * g.channels + c) * g.points + first :][:count]
                if not indexed:
                    for b in range(count):
                        k = nearest_pixel(points, begin + b, g)
                        store(target, b, load(source, k) if k >= 0 else zero(out))
                else:
                    take(source, base[:count], pixels * (c + 1 < channel_end), target)
            first += count


# In place, as LLVM then knows the sizes along axes and taps when it chooses how to unroll loops.
@jitable(**IN_PLACE)
def buffers_in(
    workspace: Workspace, x: Elements, grid: Grid, g: GridSampleGeometry, taps: int, out: Elements
) -> Buffers:
    """Return the parts of a tile's workspace, one after the other."""
    blocks = g.span // BLOCK
    begin = g.of_points
    base = indices_in(workspace, begin, (blocks, BLOCK))
    begin += base.nbytes
    weight = sums_in(workspace, begin, (blocks, g.axes, taps, BLOCK), out)
    begin += weight.nbytes
    row_weight = sums_in(workspace, begin, (blocks, taps if g.axes == 3 else 0, taps, BLOCK), out)
    begin += row_weight.nbytes
    p = sums_in(workspace, begin, (g.axes if taps == 4 else 0, BLOCK), grid.points[0])
    begin += p.nbytes
    values = sums_in(workspace, begin, BLOCK, out)
    begin += values.nbytes
    copied = elements_in(workspace, begin, COPIED, x)
    rest = workspace[begin + copied.nbytes :]
    return Buffers(base, weight, row_weight, p, values, copied, rest)


@jitable
def interpolate(
    x: Elements,
    grid: Grid,
    g: GridSampleGeometry,
    offsets: TapOffsets,
    tile: Tile,
    workspace: Workspace,
    out: Elements,
) -> None:
    """Compute a tile with the mode LINEAR or CUBIC, which `offsets` states."""
    points, sources = grid
    taps = len(offsets)
    method = Method(offsets, indexed_images(g) > 0, reading_of(g, taps))
    buffers = buffers_in(workspace, x, grid, g, taps, out)
    zyx = image_axes(g, taps == 4, zero(points[0]))
    begin_points(sources, workspace)
    for unit in range(g.units * tile // g.tiles, g.units * (tile + 1) // g.tiles):
        n, stripe, first, end, channel, channel_end = image_unit_of(g, unit)
        while first < end:
            count = min(g.span, end - first)
            begin = provide_points(sources, n, stripe, first, g, workspace)
            blocks = (count + BLOCK - 1) // BLOCK
            if method.is_indexed:
                for k in range(blocks):
                    span = PointSpan(points, begin + k * BLOCK, min(BLOCK, count - k * BLOCK))
                    place_block(span, g, zyx, method, taps_of(buffers, k))
            for c in range(channel, channel_end):
                for k in range(blocks):
                    b = k * BLOCK
                    span = PointSpan(points, begin + b, min(BLOCK, count - b))
                    block = PointBlock(n, first + b, span, taps_of(buffers, k), channel_end)
                    read_channel(x, block, c, g, method, buffers, out)
            first += count


@jitable(**IN_PLACE)
def taps_of(buffers: Buffers, k: int) -> BlockTaps:
    """Return the taps of a span's block k."""
    return BlockTaps(buffers.base[k], buffers.weight[k], buffers.row_weight[k], buffers.coordinates)


@jitable(**IN_PLACE)
def place_block(
    span: PointSpan, g: GridSampleGeometry, zyx: ImageAxes, method: Method, taps: BlockTaps
) -> None:
    """Store the taps of a block's points."""
    place_points(span, g, zyx, method.offsets, taps)
    if g.axes == 3:
        multiply_weights(taps.weight, method.reading.order, whole(span.size), taps.row_weight)


@jitable
def read_channel(
    x: Elements,
    block: PointBlock,
    channel: int,
    g: GridSampleGeometry,
    method: Method,
    buffers: Buffers,
    out: Elements,
) -> None:
    """Write a channel of a block's points."""
    n, first, span, taps, channel_end = block
    offsets, is_indexed, ((plane, row, column), planes, rows, spare) = method
    pixels = image_size(g)
    ahead = pixels * (channel + 1 < channel_end)  # the next channel's image, or this one
    plane_count = min(len(offsets), g.image[plane]) if g.axes == 3 else 1
    padded = whole(span.size)
    # Sums are made where they belong if whole vectors of them have room there. Sums in 16 bits,
    # which are rounded, are not if those of a volume's next plane are to be added.
    in_place = span.size == padded and (plane_count == 1 or not is_wide(out))
    begin = (n * g.channels + channel) * pixels
    size = pixels + max(-spare, 0)
    source = x[begin:][:size]
    if is_indexed and begin + size > x.size:  # vectors would end beyond the tensor
        available = source
        source = buffers.copied[:size]
        for k in range(size):
            store(source, k, load(available, min(k, available.size - 1)))
    target = out[(n * g.channels + channel) * g.points + first :][: span.size]
    is_finite = False  # of all sums: the last plane's are sums of all planes
    for q in range(plane_count if is_indexed else 0):
        of_rows = taps.row_weight[q] if g.axes == 3 else taps.weight[row]
        neighbours = Neighbours(taps.base[:padded], rows, of_rows, taps.weight[column], ahead)
        # Two calls, as the types of `target` and of sums differ where elements have 16 bits.
        if is_wide(out) and in_place:
            is_finite = blend(source[planes[q] :], neighbours, offsets, False, target)
        else:
            into = sums(target, buffers.values) if in_place else buffers.values
            is_finite = blend(source[planes[q] :], neighbours, offsets, q > 0, into)
    if not in_place:
        store_all(buffers.values, target)
    if not is_finite:  # a tap outside reads a pixel inside with weight 0: NaN at an infinity
        tap_by_tap(source, span, g, method, buffers.rest, target)


@jitable(**APART)
def store_all(values: Sums, target: Elements) -> None:
    """Store sums as elements."""
    for b in range(target.size):
        store(target, b, values[b])


@jitable
def multiply_weights(
    weight: Weights, order: tuple[Axis, Axis, Axis], count: int, row_weight: Weights
) -> None:
    """Store the weights of a volume's rows.

    row_weight[plane, row, b], for each point b of a block
    """
    plane, row, _ = order
    for q in range(row_weight.shape[0]):
        for r in range(row_weight.shape[1]):
            product = row_weight[q, r][:count]
            w = weight[row, r][:count]
            w_plane = weight[plane, q]
            for b in range(product.size):
                product[b] = w[b] * w_plane[b]


@jitable
def image_unit_of(g: GridSampleGeometry, unit: Unit) -> ImageUnit:
    """Return a unit of work."""
    unit, channel = unit // g.parts, unit % g.parts * g.part
    begin, end = stripe_of(unit % g.stripes, g)
    channel_end = min(channel + g.part, g.channels)
    return ImageUnit(unit // g.stripes, unit % g.stripes, begin, end, channel, channel_end)


@jitable
def axis_weights(f: Number, weight: Weights) -> None:
    """Store the taps' weights along one axis for the fraction f of a coordinate."""
    if weight.size == 2:
        weight[0] = type(f)(1) - f
        weight[1] = f
    else:
        weight[0], weight[1], weight[2], weight[3] = cubic_weights(f)


@jitable
def tap_by_tap(
    source: Elements,
    span: PointSpan,
    g: GridSampleGeometry,
    method: Method,
    workspace: Workspace,
    target: Elements,
) -> None:
    """Compute points from taps inside alone: those with taps outside, or all of a large image."""
    offsets = method.offsets
    taps = len(offsets)
    index = integers_in(workspace, 0, (3, taps))
    inside = integers_in(workspace, 8 * 3 * taps, taps**3)  # the pixels of taps inside
    weight = sums_in(workspace, index.nbytes + inside.nbytes, (3, taps), target)
    inside_weight = sums_in(
        workspace, index.nbytes + inside.nbytes + weight.nbytes, taps**3, target
    )
    number = weight.dtype.type
    # Linear's coordinates are padded, so it has no taps outside; cubic's taps are padded one by
    # one.
    padding_mode = ZEROS if taps == 2 else g.padding_mode
    for b in range(target.size):
        outside = not method.is_indexed
        for i in range(g.axes):
            p = coordinate_of(span.points, span.first + b, i, g, taps == 4)
            floor = np.floor(p)
            k = np.int64(floor) + offsets[0]
            outside |= (k < 0) | (k + taps > g.image[i])
            for t in range(taps):
                index[i, t] = pad_index(k + t, g.image[i], padding_mode, g.align_corners)
            axis_weights(number(p - floor), weight[i])
        if outside:
            count = combine(index, weight, g, inside, inside_weight)
            total = number(0)
            for t in range(count):
                total += inside_weight[t] * load(source, inside[t])
            store(target, b, total)


@jitable
def combine(
    index: Indices, weight: Weights, g: WithImage, pixels: Indices, weights: Weights
) -> int:
    """Store pixels and weights of the taps inside, from those of each axis; return their number.

    index[axis, tap] is -1 for a tap outside.
    """
    taps = index.shape[1]
    last = g.axes - 1
    count = 0
    for q in range(taps if g.axes == 3 else 1):
        plane = 0
        plane_weight = weight.dtype.type(1)
        if g.axes == 3:
            plane = index[0, q] * g.image[1]
            plane_weight = weight[0, q]
        for r in range(taps if plane >= 0 else 0):
            row = (plane + index[last - 1, r]) * g.image[last]
            row_weight = plane_weight * weight[last - 1, r]
            for k in range(taps if index[last - 1, r] >= 0 else 0):
                if index[last, k] >= 0:
                    pixels[count] = row + index[last, k]
                    weights[count] = row_weight * weight[last, k]
                    count += 1
    return count
