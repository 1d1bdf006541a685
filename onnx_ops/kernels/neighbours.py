"""Weighted sums over the neighbours of many points: the inner loop of interpolation.

    target[b] = sum over r, k of  row_weight[r, b] * weight[k, b] * source[base[b] + r * pitch + k]

for r, k < taps: 2 or 4. The k are neighbours in memory. What stands here says it one element at a time;
neighbours_numba.py loads them together, for many points at a time.
"""

from .elements import load
from .jit import FUSE, jitable

GROUP = 16  # points: there must be room for a multiple of it along b, and a valid base


@jitable(**FUSE)
def blend_plainly(source, base, pitch, row_weight, weight, offsets, add, target):
    """`offsets` has a member for each k; with `add`, the sums are added to the target."""
    number = weight.dtype.type
    for b in range(target.size):
        total = target[b] if add else number(0)
        for r in range(len(offsets)):
            row = number(0)
            for k in range(len(offsets)):
                row += weight[k, b] * load(source, base[b] + r * pitch + k)
            total += row_weight[r, b] * row
        target[b] = total


def blend(source, base, pitch, row_weight, weight, offsets, add, target):
    blend_plainly(source, base, pitch, row_weight, weight, offsets, add, target)
