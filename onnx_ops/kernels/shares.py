"""The share that each tile has of a kernel's work."""

from ..declaration.jit import IN_PLACE, jitable


@jitable
def pieces(whole, size):
    """The number of pieces of this size into which a whole is cut; the last one may be smaller."""
    return (whole + size - 1) // size


@jitable(**IN_PLACE)
def share(count, g, tile):
    """The range of a tile's units of work, of which there are `count`: without count * tile, which could overflow."""
    each, more = count // g.tiles, count % g.tiles
    begin = each * tile + min(tile, more)
    return begin, begin + each + (1 if tile < more else 0)
