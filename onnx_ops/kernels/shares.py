"""The division of a kernel's work among tiles."""

from typing import TYPE_CHECKING

from ..declaration.jit import IN_PLACE, jitable

if TYPE_CHECKING:
    from .types import Tiled


@jitable
def pieces(length: int, size: int) -> int:
    """Return the number of pieces of this size in a length; the last one may be smaller."""
    return (length + size - 1) // size


@jitable(**IN_PLACE)
def share(count: int, g: "Tiled", tile: int) -> tuple[int, int]:
    """Return the range of a tile's share of a number of units of work.

    It computes in numbers up to `count`, so nothing overflows.

    Parameters
    ----------
    count : int
        Number of units, such as the elements of the output.
    g : Geometry
        The geometry, with the number of tiles in its field `tiles`.
    tile : int
        Index of the tile, from 0 on.

    Returns
    -------
    tuple of int
        The begin and the end of the range. The shares of all tiles together are
        the units from 0 to `count` - 1, and differ by one unit at most.
    """
    size, rest = count // g.tiles, count % g.tiles  # the first tiles get one of the rest
    begin = size * tile + min(tile, rest)
    return begin, begin + size + (1 if tile < rest else 0)
