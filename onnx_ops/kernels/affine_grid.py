"""AffineGrid. It writes the output in the order of memory: other orders compute a row faster, but write it more slowly.

A tile is a range of the rows of all images. A row has the points of one (n, d, h).
"""

from ..compiler.jit import jitable
from .blocks import share
from .coordinates import IMAGE, VOLUME
from .elements import load, sums_in
from .vectors import transform_rows

COLUMNS = 128  # bytes of the workspace for theta's columns


@jitable
def affine_grid(theta, x, y, z, g, tile, workspace, out):
    row, end = share(g.rows, g, tile)
    image_rows, row_size = g.depth * g.height, g.width * g.axes
    while row < end:
        n, first = row // image_rows, row % image_rows
        rows = min(image_rows - first, end - row)
        target = out[row * row_size :][: rows * row_size]
        write_affine(theta, x, y, z, n, first * g.width, g, workspace, target)
        row += rows


@jitable
def write_affine(theta, x, y, z, n, first, g, workspace, out):
    """Fill `out` with points of image n, from `first` on."""
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
