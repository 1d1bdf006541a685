"""AffineGrid row by row, in the order of memory: what is faster per row but skips between rows takes longer to write.

A tile is some of the rows of all images, and a row's numbers are those of one (n, d, h).
"""

from .elements import load, sums_in
from .jit import jitable
from .vectors import transform_rows

LARGEST_SUM = 8  # bytes: float64


@jitable
def workspace_size(axes):
    """Bytes that a tile needs: for theta's columns."""
    return LARGEST_SUM * axes * (axes + 1)


@jitable
def affine_grid(theta, x, y, z, g, tile, workspace, out):
    columns = sums_in(workspace, 0, (g.axes + 1, g.axes), out)
    if g.axes == 2:
        write_rows(theta, x, y, z, g, (0, 1), columns, tile, out)
    else:
        write_rows(theta, x, y, z, g, (0, 1, 2), columns, tile, out)


@jitable
def write_rows(theta, x, y, z, g, axes, columns, tile, out):
    """All rows of a tile. How many `axes` there are is known when this is compiled."""
    count = len(axes)
    # Rows are shared out without forming rows * tile, which could overflow.
    share, more = g.rows // g.tiles, g.rows % g.tiles
    row = share * tile + min(tile, more)
    end = row + share + (1 if tile < more else 0)
    while row < end:
        plane, h = row // g.height, row % g.height
        n = plane // g.depth
        rows = min(g.height - h, end - row)
        for i in range(count):
            for k in range(count + 1):
                columns[k, i] = load(theta, (n * count + i) * (count + 1) + k)
            if count == 3:
                columns[2, i] *= load(z, plane % g.depth)
            # A sum that begins with +0 is never -0; nor is this one, wherever the 0 is added.
            columns[count, i] += columns.dtype.type(0)
        transform_rows(x, y[h:][:rows], columns, axes, out[row * g.width * count :][: rows * g.width * count])
        row += rows
