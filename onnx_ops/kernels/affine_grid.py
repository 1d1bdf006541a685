"""AffineGrid. It writes the output in the order of memory: other orders compute a row faster, but write it more slowly.

A tile is a range of the rows of all images. A row has the points of one (n, d, h).
"""

from ..compiler.jit import jitable
from .blocks import share
from .grid_points import write_affine


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
