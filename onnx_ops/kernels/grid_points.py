"""The points at which GridSample reads: those of a grid, or points that are computed a block at a time.

A `recipe` has the arrays from which points are computed. The tuple's length tells compiled code which points these are:

    ()                         those of a grid: nothing is computed
    (theta, x, y)              PerspectiveGridSample's points
    (theta, x, y, z)           AffineGrid's points, with all of its roundings
    (flow, operands, x, y, z)  FlowGridSample's points

The files in operators/ have the formulas. A row consists of points along the last image axis, with the same (n, d, h).
"""

from ..compiler.jit import APART, jitable
from .coordinates import IMAGE, VOLUME
from .elements import elements_in, load, sums_in
from .vectors import transform_rows

BLOCK = 512  # points that are computed at a time
LARGEST = 8  # bytes of the largest coordinate: float64
COLUMNS = 128  # bytes of the workspace for theta's columns; the points of a block follow


@jitable
def room_for_points(axes):
    """The bytes of the workspace that a recipe needs: for theta's columns, points, and FlowGridSample's rows."""
    return COLUMNS + 2 * LARGEST * axes * BLOCK


@jitable
def provide(recipe, n, first, images, count, g, workspace, grid):
    """Provide `count` points from `first` on, for each of `images` images from n on.

    Returns the index in `grid` of the first one. With a recipe, `grid` is scratch memory that gets just these points.
    """
    if len(recipe) == 0:
        return n * g.points + first
    for m in range(images):
        write_points(recipe, n + m, first, g, workspace, grid[m * count * g.axes :][: count * g.axes])
    return 0


@jitable
def write_points(recipe, n, first, g, workspace, out):
    """Fill `out` with the points of image n from `first` on."""
    if len(recipe) == 3:
        theta, x, y = recipe
        write_perspective(theta, x, y, n, first, out)
    elif len(recipe) == 4:
        theta, x, y, z = recipe
        write_affine(theta, x, y, z, n, first, g, workspace, out)
    else:
        flow, operands, x, y, z = recipe
        write_flow(flow, operands, x, y, z, n, first, g, workspace, out)


@jitable
def write_perspective(theta, x, y, n, first, out):
    """Fill `out` with PerspectiveGridSample's points of image n, from `first` on."""
    k, end = first, first + out.size // 2
    while k < end:
        h, w = k // x.size, k % x.size
        points = min(x.size - w, end - k)
        divide_row(theta[n * 9 :], x[w:][:points], load(y, h), out[(k - first) * 2 :][: points * 2])
        k += points


@jitable(**APART)
def divide_row(theta, x, y, out):
    """Compute PerspectiveGridSample's points of a part of a row."""
    for b in range(x.size):
        u = theta[0] * x[b] + theta[1] * y + theta[2]
        v = theta[3] * x[b] + theta[4] * y + theta[5]
        w = theta[6] * x[b] + theta[7] * y + theta[8]
        out[2 * b], out[2 * b + 1] = u / w, v / w


@jitable
def write_flow(flow, operands, x, y, z, n, first, g, workspace, out):
    """Fill `out` with FlowGridSample's points of image n, from `first` on."""
    if g.axes == 2:
        write_moved(flow, operands, (x, y), n, first, g, workspace, out)
    else:
        write_moved(flow, operands, (x, y, z), n, first, g, workspace, out)


@jitable
def write_moved(flow, operands, shifts, n, first, g, workspace, out):
    """Fill `out` as `write_flow` does. shifts: the array of shifts for each coordinate."""
    axes, height, width = len(shifts), g.output[g.axes - 2], g.output[g.axes - 1]
    rows = elements_in(workspace, COLUMNS + LARGEST * axes * BLOCK, (axes, BLOCK), out)
    k, end = first, first + out.size // axes
    while k < end:
        d, h, w = k // width // height, k // width % height, k % width
        points = min(width - w, end - k)
        for i in range(axes):
            stride, row = g.flow_strides[2:], rows[i][:points]
            begin = n * g.flow_strides[0] + g.channels_of_flow[i] * g.flow_strides[1]
            copy_row(flow[begin + d * stride[0] + h * stride[1] + w * stride[2] :], stride[2], row)
            for s in range(g.step_count):
                if g.steps[s] < 3:
                    move_row(row, g.steps[s], operands[s * axes + i])
                else:
                    stride = g.shift_strides[3 * i :]
                    add_row(shifts[i][d * stride[0] + h * stride[1] + w * stride[2] :], stride[2], row)
        into = out[(k - first) * axes :]
        if axes == 2:
            join(rows[0][:points], rows[1], (), into)
        else:
            join(rows[0][:points], rows[1], (rows[2],), into)
        k += points


# A loop for each kind of stride, and for each kind of step: LLVM vectorizes each by itself.


@jitable(**APART)
def copy_row(source, stride, row):
    """row[b] = source[b * stride]."""
    for b in range(row.size if stride == 0 else 0):
        row[b] = source[0]
    for b in range(row.size if stride == 1 else 0):
        row[b] = source[b]
    for b in range(row.size if stride > 1 else 0):
        row[b] = source[b * stride]


@jitable(**APART)
def add_row(source, stride, row):
    """row[b] += source[b * stride], for a stride of 0 or 1."""
    for b in range(row.size if stride == 0 else 0):
        row[b] += source[0]
    for b in range(row.size if stride == 1 else 0):
        row[b] += source[b]


@jitable
def move_row(row, step, operand):
    """Apply a step of FlowGridSample to a row: add, multiply or divide."""
    for b in range(row.size if step == 0 else 0):
        row[b] += operand
    for b in range(row.size if step == 1 else 0):
        row[b] *= operand
    for b in range(row.size if step == 2 else 0):
        row[b] /= operand


@jitable(**APART)
def join(x, y, z, out):
    """Write a row's points: x[0], y[0], (z[0],) x[1], ... `z` is a tuple, empty for two axes."""
    for b in range(x.size):
        if len(z) == 0:
            out[2 * b], out[2 * b + 1] = x[b], y[b]
        else:
            out[3 * b], out[3 * b + 1], out[3 * b + 2] = x[b], y[b], z[0][b]


@jitable
def write_affine(theta, x, y, z, n, first, g, workspace, out):
    """Fill `out` with AffineGrid's points of image n, from `first` on."""
    columns = sums_in(workspace, 0, (g.axes + 1, g.axes), out)
    if g.axes == 2:
        write_rows(theta, x, y, z, n, first, IMAGE, columns, out)
    else:
        write_rows(theta, x, y, z, n, first, VOLUME, columns, out)


@jitable
def write_rows(theta, x, y, z, n, first, axes, columns, out):
    """Fill `out` as `write_affine` does. axes: a tuple whose length tells compiled code how many there are."""
    count = len(axes)
    k, end = first, first + out.size // count
    while k < end:
        row, w = k // x.size, k % x.size
        d, h = row // y.size, row % y.size
        for i in range(count):
            for j in range(count + 1):
                columns[j, i] = load(theta, (n * count + i) * (count + 1) + j)
            if count == 3:
                columns[2, i] *= load(z, d)
            # AffineGrid's sum begins with +0, so that it is never -0; adding the 0 here has the same effect.
            columns[count, i] += columns.dtype.type(0)
        # Whole rows, or a part of one row.
        rows, points = min(y.size - h, (end - k) // x.size), x.size
        if w > 0 or rows == 0:
            rows, points = 1, min(x.size - w, end - k)
        target = out[(k - first) * count :][: rows * points * count]
        transform_rows(x[w:][:points], y[h:][:rows], columns, axes, target)
        k += rows * points
