"""The division of a kernel's work among tiles."""

from typing import TYPE_CHECKING

from ..declaration.jit import IN_PLACE, jitable

if TYPE_CHECKING:
    from .types import Tiled


@jitable
def pieces(whole: int, size: int) -> int:
    """Return the number of pieces of this size in a whole; the last one may be smaller."""
    return (whole + size - 1) // size


@jitable(**IN_PLACE)
def share(count: int, g: "Tiled", tile: int) -> tuple[int, int]:
    """Return the range of a tile's share of `count` units of work.

    It avoids count * tile, which could overflow.
    """
    each, more = count // g.tiles, count % g.tiles
    begin = each * tile + min(tile, more)
    return begin, begin + each + (1 if tile < more else 0)
