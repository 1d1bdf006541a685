"""The two inner loops that LLVM makes little of by itself, one element at a time; at full width: vectors_numba.py.

Blend, for interpolation: weighted sums over the neighbours of many points,

    target[b] = sum over r, k of  row_weight[r, b] * weight[k, b] * source[base[b] + r * pitch + k]

for r, k < taps: 2 or 4. The k are neighbours in memory, and loaded together.

Interleave, for strides: target[q * stride + r] = lanes[r * pitch + q], a transposition.
"""

from .elements import load, store
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


@jitable
def interleave_plainly(lanes, pitch, stride, target):
    whole = target.size // stride
    for r in range(stride):
        a = lanes[r * pitch :][:whole]
        for q in range(whole):
            store(target, q * stride + r, load(a, q))


def interleave(lanes, pitch, stride, target):
    interleave_plainly(lanes, pitch, stride, target)
