"""Inner loops that LLVM doesn't vectorize well, written here for one element at a time.

Each loop is written twice: here, and with vectors in compiler/simd_*.py. `vectorized` substitutes
the latter in compiled code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..declaration.jit import FUSE, jitable
from .elements import load, plus, store, zero

if TYPE_CHECKING:
    from .types import Elements, Indices, Offset, Pitch, Pixels, Sums, Weights

MOST_LANES = (
    16  # points of a vector: arrays along b have room for a multiple of it, with a valid base
)
PLANES = 8  # that `add_planes` sums side by side
WIDTH = 2 * MOST_LANES  # of the blocks in which `add_product` works


@jitable
def whole(count: int) -> int:
    """Return the points of whole vectors that hold so many."""
    return (count + MOST_LANES - 1) // MOST_LANES * MOST_LANES


@jitable
def take(source: Elements, pixel: Pixels, outside: int, target: Elements) -> None:
    """target[b] = source[pixel[b]], or 0 where pixel[b] is -1, as it is for `outside` of them.

    The pixels are int32. As unsigned numbers they need no comparison with 0: a negative index would
    count from the end.
    """
    if outside > 0:
        for b in range(pixel.size):
            v = load(source, np.uint32(max(pixel[b], 0)))
            store(target, b, v if pixel[b] >= 0 else zero(target))
    else:
        for b in range(pixel.size):
            store(target, b, load(source, np.uint32(pixel[b])))


@jitable
def points_at_once() -> int:
    """Return how many points' places and weights stay in the second-level cache beside the image
    that they read.
    """
    return 2**13


@jitable(**FUSE)
def blend(
    source: Elements,
    base: Pixels,
    rows: tuple[int, ...],
    row_weight: Weights,
    weight: Weights,
    offsets: tuple[int, ...],
    add: bool,
    target: Elements,
) -> bool:
    """Interpolation: weighted sums over the neighbours of many points.

        target[b] = sum over r, k of  row_weight[r, b] * weight[k,
                                      b] * source[base[b] + rows[r] + k]

    for b < base.size, and r, k < taps: 2 or 4. The k are neighbours in memory, and loaded together.
    `offsets` has a member for each k; with `add`, the sums are added to the target. Returns whether
    all sums are finite.
    """
    number = weight.dtype.type
    faults = number(0)
    for b in range(base.size):
        total = load(target, b) if add else number(0)
        for r in range(len(offsets)):
            row = number(0)
            for k in range(len(offsets)):
                row += weight[k, b] * load(source, base[b] + rows[r] + k)
            total += row_weight[r, b] * row
        store(target, b, total)
        faults += total * number(0)
    return faults == number(0)


@jitable
def sum_runs(
    x: Elements,
    first: Indices,
    block: Indices,
    blocks: int,
    rows: int,
    out: Elements,
    to: Offset,
    out_pitch: Pitch,
    count: int,
) -> None:
    """Col2Im: sums of runs of blocks, for several rows of `blocks` blocks.

    out[to + l * out_pitch + b] = sum over t of  x[first[t] + l * blocks + b]  where
    0 <= block[t] + b < blocks

    for l < rows and b < count < 2**30.
    """
    for l in range(rows):
        for b in range(count):
            total = zero(x)
            for t in range(first.size):
                if 0 <= block[t] + b < blocks:
                    total = plus(total, load(x, first[t] + l * blocks + b))
            store(out, to + l * out_pitch + b, total)


@jitable
def add_planes(
    x: Elements, first: Offset, pitch: Pitch, planes: int, places: Pixels, sums: Sums
) -> None:
    """Col2Im: planes of which each pixel has a vector.

    sums[places[e] * PLANES + r] += x[first + r * pitch + e]   for r < planes and e < places.size
    """
    for e in range(places.size):
        at = sums[np.uint32(places[e] * PLANES) :]
        for r in range(planes):
            at[r] = plus(at[r], load(x, first + r * pitch + e))


@jitable
def interleave(
    lanes: Elements,
    first: Offset,
    pitch: Pitch,
    row_pitch: Pitch,
    stride: int,
    count: int,
    rows: int,
    target: Elements,
    to: Offset,
    out_pitch: Pitch,
    step: Pitch,
) -> None:
    """Strides: each row is a transposition.

        target[to + l * out_pitch + q * step + r] = lanes[first + l * row_pitch + r * pitch + q]

    for l < rows, q < count and r < stride <= step.
    """
    for l in range(rows):
        source, row = first + l * row_pitch, to + l * out_pitch
        if count < stride:
            for q in range(count):
                for r in range(stride):
                    store(target, row + q * step + r, load(lanes, source + r * pitch + q))
        else:
            for r in range(stride):
                for q in range(count):
                    store(target, row + q * step + r, load(lanes, source + r * pitch + q))


@jitable
def copy_box(
    x: Elements,
    first: Offset,
    steps: tuple[Pitch, Pitch, Pitch],
    sizes: tuple[int, int, int],
    count: int,
    stride: int,
    out: Elements,
    to: Offset,
    out_steps: tuple[Pitch, Pitch, Pitch],
) -> None:
    """Im2Col: runs of any length and stride along three further axes.

        out[to + p * out_steps[0] + q * out_steps[1] + r * out_steps[2] + b]
            = x[first + p * steps[0] + q * steps[1] + r * steps[2] + b * stride]

    for p, q, r < sizes and b < count.
    """
    for p in range(sizes[0]):
        for q in range(sizes[1]):
            for r in range(sizes[2]):
                source = first + p * steps[0] + q * steps[1] + r * steps[2]
                target = to + p * out_steps[0] + q * out_steps[1] + r * out_steps[2]
                for b in range(count):
                    out[target + b] = x[source + b * stride]


@jitable
def clear_box(
    out: Elements,
    to: Offset,
    steps: tuple[Pitch, Pitch, Pitch],
    sizes: tuple[int, int, int],
    count: int,
) -> None:
    """out[to + p * steps[0] + q * steps[1] + r * steps[2] + b] = 0, as in `copy_box`."""
    for p in range(sizes[0]):
        for q in range(sizes[1]):
            for r in range(sizes[2]):
                target = to + p * steps[0] + q * steps[1] + r * steps[2]
                for b in range(count):
                    store(out, target + b, zero(out))


@jitable(**FUSE)
def add_points(
    source: Elements,
    pitch: Pitch,
    pixels: Pixels,
    widths: Pixels,
    exist: Pixels,
    weight: Weights,
    add: bool,
    target: Elements,
) -> None:
    """Deformable attention: of each of many points as many of its four taps as exist.

        target[c] = sum over b, i, j of  weight[2 * i + j,
                                         b] * source[(pixels[b] + i * widths[b] + j) * pitch + c]

    for i, j < 2 where exist[b] has the bit 2 * i + j, added to what is there if `add` says so.
    """
    for c in range(target.size):
        total = target[c] if add else target.dtype.type(0)
        for b in range(pixels.size):
            for t in range(4):
                if exist[b] >> t & 1:
                    pixel = np.int64(pixels[b]) + t // 2 * np.int64(widths[b]) + t % 2
                    total += weight[t, b] * load(source, pixel * pitch + c)
        target[c] = total


@jitable(**FUSE)
def add_product(
    w: Elements,
    first: Offset,
    pitch: Pitch,
    rows: int,
    columns: Sums,
    depth: int,
    width: int,
    target: Sums,
) -> None:
    """Deformable convolution: a product of matrices. The width must be a multiple of WIDTH.

    target[r * width + b] += sum over k of  w[first + r * pitch + k] * columns[k * width + b]

    for r < rows, k < depth and b < width.
    """
    for r in range(rows):
        for k in range(depth):
            weight = w[first + r * pitch + k]
            for b in range(width):
                target[r * width + b] += weight * columns[k * width + b]
