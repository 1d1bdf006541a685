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
    """Return the range of a tile's share of `count` units of work.

    It avoids count * tile, which could overflow.
    """
    size, rest = count // g.tiles, count % g.tiles  # the first tiles get one of the rest
    begin = size * tile + min(tile, rest)
    return begin, begin + size + (1 if tile < rest else 0)
