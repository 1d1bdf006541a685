"""Sliding blocks along one axis, for the kernels of Col2Im and Im2Col, and shares of a kernel's work.

A geometry `g` has for each image axis, y and x always among them: image, block, counts, strides, dilations and pads.
"""

from ..declaration.jit import IN_PLACE, jitable


@jitable
def find_blocks(g, a, k, begin, end):
    """Find the blocks of axis a whose position k lies on the pixels [begin, end).

    Returns their range low, high (exclusive), and the pixel of block `low`, counted from `begin`.
    """
    stride = g.strides[a]
    shift = k * g.dilations[a] - g.pads[a] - begin
    low = max(0, -quotient(shift, stride))
    return low, min(g.counts[a], quotient(end - begin - 1 - shift, stride) + 1), low * stride + shift


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


@jitable
def quotient(a, b):
    """a // b, without a division for b = 1: on some CPUs a division takes as long as adding up a row."""
    return a if b == 1 else a // b
