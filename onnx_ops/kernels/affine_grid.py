"""AffineGrid in the order of memory: what is faster per row but skips between rows takes longer to write.

A tile is some of the rows of all images, and a row's numbers are those of one (n, d, h).
"""

from .jit import jitable
from .points import write_affine


@jitable
def affine_grid(theta, x, y, z, g, tile, workspace, out):
    # Rows are shared out without forming rows * tile, which could overflow.
    share, more = g.rows // g.tiles, g.rows % g.tiles
    row = share * tile + min(tile, more)
    end = row + share + (1 if tile < more else 0)
    of_image, numbers = g.depth * g.height, g.width * g.axes
    while row < end:
        n, first = row // of_image, row % of_image
        rows = min(of_image - first, end - row)
        written = out[row * numbers :][: rows * numbers]
        write_affine(theta, x, y, z, n, first * g.width, g, workspace, written)
        row += rows
