"""Sliding blocks along one axis, for the kernels of Col2Im and Im2Col.

A geometry `g` has for each image axis, y and x always among them: image, block, counts, strides, dilations and pads.
"""

from .jit import jitable


@jitable
def run(g, a, k, begin, end):
    """The blocks [low, high) of axis a whose position k lies on the pixels [begin, end), and the first one's pixel."""
    stride = g.strides[a]
    shift = k * g.dilations[a] - g.pads[a] - begin
    low = max(0, -quotient(shift, stride))
    return low, min(g.counts[a], quotient(end - begin - 1 - shift, stride) + 1), low * stride + shift


@jitable
def pieces(whole, size):
    """How many pieces of this size a whole has, the last one of which may be smaller."""
    return (whole + size - 1) // size


@jitable
def quotient(a, b):
    """a // b, which takes some CPUs as long as adding up a row."""
    return a if b == 1 else a // b
