"""Inner loops that LLVM doesn't vectorize well, written here for one element at a time.

Each loop is written twice: here, and with vectors in compiler/simd_*.py. `vectorized` substitutes
the latter in compiled code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..declaration.jit import FUSE, jitable
from .elements import load, plus, store, zero

if TYPE_CHECKING:
    from .types import Elements, Indices, Offset, Pitch, Pixels, Sums, Weights

# Points of a vector, at most: arrays along b have room for a multiple of it, with a valid base.
MOST_LANES = 16
# A pixel that doesn't exist. Its lower 31 bits are those of the first pixel, which does.
OUTSIDE = np.int32(-(2**31))
PLANES = 8  # that `add_planes` sums side by side
WIDTH = 2 * MOST_LANES  # of the blocks in which `add_product` works


class View(NamedTuple):
    """Rows of neighbours in a flat array.

    Row (p, q, ...) begins at array[first + p * steps[0] + q * steps[1] + ...].
    """

    array: Elements
    first: Offset  # the first element of the first row
    steps: tuple[Pitch, ...]  # elements from one row to the next one, along each axis of rows


class Neighbours(NamedTuple):
    """The pixels that points read, r < taps rows of k < taps neighbours, and their weights."""

    base: Pixels  # the first pixel of each point b
    rows: tuple[Offset, ...]  # from there to the begin of each row
    row_weight: Weights  # [r, b]
    weight: Weights  # [k, b]: of the neighbours in each row
    ahead: Offset  # from these pixels to those that are read next


class Corners(NamedTuple):
    """The squares of 2 x 2 pixels around points.

    Corner 2 * i + j is i rows below and j to the right.
    """

    pixels: Pixels  # the first corner of each point b
    widths: Pixels  # pixels from there to the row below
    exist: Pixels  # a bit for each corner: 1 if it lies in the image
    weight: Weights  # [corner, b]


class RunRows(NamedTuple):
    """The rows of blocks in which runs lie. Some rows may not exist."""

    row: int  # of the first runs; those of others are `step`, 2 * step, ... before it
    rows: int  # of a plane: those with numbers from 0 on and below it exist
    step: int
    size: int  # number of rows with runs
    of_row: int  # number of runs in each


class Runs(NamedTuple):
    """Neighbouring blocks of a row, of which some may not exist."""

    first: Indices  # the element of each run's first block
    block: Indices  # the number of this block in its row
    blocks: int  # of a row: those with numbers from 0 on and below it exist
    rows: RunRows
    ahead: Offset  # from elements to those that are read later and shall be fetched; 0 for none


@jitable
def whole(count: int) -> int:
    """Return the points of whole vectors that hold so many."""
    return (count + MOST_LANES - 1) // MOST_LANES * MOST_LANES


@jitable
def fetch(array: Elements, first: Offset, count: int) -> None:
    """Have the CPU load elements that are used soon, which need not exist, into its caches.

    Plain code leaves that to the CPU.
    """


@jitable
def take(source: Elements, pixel: Pixels, ahead: Offset, target: Elements) -> None:
    """target[b] = source[pixel[b]], or 0 where pixel[b] is OUTSIDE.

    Elements that are read next lie `ahead` of these. The pixels are int32. As unsigned numbers they
    need no comparison with 0: a negative index would count from the end.
    """
    for b in range(pixel.size):
        v = load(source, np.uint32(max(pixel[b], 0)))
        store(target, b, v if pixel[b] >= 0 else zero(target))


@jitable(**FUSE)
def blend(
    source: Elements, points: Neighbours, offsets: tuple[int, ...], add: bool, target: Elements
) -> bool:
    """Interpolation: weighted sums over the neighbours of many points.

        target[b] = sum over r, k of
            row_weight[r, b] * weight[k, b] * source[base[b] + rows[r] + k]

    for b < base.size, and r, k < taps: 2 or 4. The k are neighbours in memory, and loaded together.
    `offsets` has a member for each k; with `add`, the sums are added to the target. Returns whether
    all sums are finite.
    """
    base, rows, row_weight, weight, _ = points
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
        faults += total * number(0)  # NaN for good, if a sum is not finite
    return faults == number(0)


@jitable
def quotient(a: int, b: int) -> int:
    """a // b, without a division for b = 1.

    On some CPUs a division takes as long as adding up a row.
    """
    return a if b == 1 else a // b


@jitable
def existing(first: int, size: int, step: int, count: int) -> tuple[int, int]:
    """Return the range of m < count with 0 <= first - m * step < size."""
    begin = max(0, quotient(first - size, step) + 1)
    return begin, max(begin, min(count, quotient(first, step) + 1))


@jitable
def runs_of(rows: RunRows, l: int) -> tuple[int, int, int]:
    """Return the range of the runs whose row exists, l rows after the first one.

    Also return how many rows from that one on surely have the same.
    """
    row = rows.row + l
    begin, end = existing(row, rows.rows, rows.step, rows.size)
    alike = rows.rows - row if end - begin == rows.size else 1
    return begin * rows.of_row, end * rows.of_row, max(alike, 1)


@jitable
def sum_runs(x: Elements, runs: Runs, rows: int, count: int, out: View) -> None:
    """Col2Im: sums of runs, in several rows of blocks.

    out[l, b] = sum over t of  x[first[t] + l * blocks + b]

    over the t in runs_of(runs.rows, l) with 0 <= block[t] + b < blocks, for l < rows and
    b < count < 2**30.
    """
    first, block, blocks, run_rows, _ = runs
    target, begin, (pitch,) = out
    for l in range(rows):
        t_begin, t_end, _ = runs_of(run_rows, l)
        for b in range(count):
            total = zero(x)
            for t in range(t_begin, t_end):
                if 0 <= block[t] + b < blocks:
                    total = plus(total, load(x, first[t] + l * blocks + b))
            store(target, begin + l * pitch + b, total)


@jitable
def add_planes(x: View, ahead: Offset, planes: int, places: Pixels, sums: Sums) -> None:
    """Col2Im: planes of which each pixel has a vector.

    sums[places[e] * PLANES + r] += x[r, e]   for r < planes and e < places.size

    What is read next lies `ahead` of these elements; 0 for nothing that shall be fetched.
    """
    source, first, (pitch,) = x
    for e in range(places.size):
        at = sums[np.uint32(places[e] * PLANES) :]
        for r in range(planes):
            at[r] = plus(at[r], load(source, first + r * pitch + e))


@jitable
def interleave(lanes: View, matrices: int, rows: int, columns: int, out: View) -> None:
    """Strides: transpose matrices, out[l, q, r] = lanes[l, r, q]

    for l < matrices, r < rows <= out.steps[1] and q < columns.
    """
    source, first, (step, pitch) = lanes
    target, begin, (out_step, out_pitch) = out
    for l in range(matrices):
        i = first + l * step
        j = begin + l * out_step
        if columns < rows:
            for q in range(columns):
                for r in range(rows):
                    store(target, j + q * out_pitch + r, load(source, i + r * pitch + q))
        else:
            for r in range(rows):
                for q in range(columns):
                    store(target, j + q * out_pitch + r, load(source, i + r * pitch + q))


@jitable
def copy_box(x: View, sizes: tuple[int, int, int], count: int, stride: int, out: View) -> None:
    """Im2Col: copy rows of any length, out[p, q, r, b] = x[p, q, r, b * stride]

    for p, q, r < sizes and b < count.
    """
    array, first, (p_step, q_step, r_step) = x
    target, begin, (p_out, q_out, r_out) = out
    for p in range(sizes[0]):
        for q in range(sizes[1]):
            for r in range(sizes[2]):
                row = first + p * p_step + q * q_step + r * r_step
                out_row = begin + p * p_out + q * q_out + r * r_out
                for b in range(count):
                    target[out_row + b] = array[row + b * stride]


@jitable
def clear_box(out: View, sizes: tuple[int, int, int], count: int) -> None:
    """out[p, q, r, b] = 0, as in `copy_box`."""
    array, first, (p_step, q_step, r_step) = out
    for p in range(sizes[0]):
        for q in range(sizes[1]):
            for r in range(sizes[2]):
                row = first + p * p_step + q * q_step + r * r_step
                for b in range(count):
                    store(array, row + b, zero(array))


@jitable(**FUSE)
def add_points(
    source: Elements, pitch: Pitch, points: Corners, add: bool, target: Elements
) -> None:
    """Deformable attention: of each of many points as many of its four corners as exist.

        target[c] = sum over b, i, j of
            weight[2 * i + j, b] * source[(pixels[b] + i * widths[b] + j) * pitch + c]

    for i, j < 2 where exist[b] has the bit 2 * i + j, added to what is there if `add` says so.
    """
    pixels, widths, exist, weight = points
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
    weights: View, rows: int, columns: Sums, depth: int, width: int, target: Sums
) -> None:
    """Deformable convolution: a product of matrices. The width must be a multiple of WIDTH.

    target[r * width + b] += sum over k of  weights[r, k] * columns[k * width + b]

    for r < rows, k < depth and b < width.
    """
    w, first, (pitch,) = weights
    for r in range(rows):
        for k in range(depth):
            weight = w[first + r * pitch + k]
            for b in range(width):
                target[r * width + b] += weight * columns[k * width + b]
