"""Elements in memory and in sums. Kernels read, add up and write through these, whatever the element type.

A 16-bit float is a record of its bits; it is summed as float32 and rounded once, when it is written. Booleans add up to
"or". All other elements are themselves. What stands here is that last case; elements_numba.py has the others.
"""

import numpy as np


def load(array, i):
    """Element i in the type in which it is summed."""
    return array[i]


def store(array, i, value):
    """Write a sum as element i."""
    array[i] = value


def plus(a, b):
    return a + b


def zero(array):
    """An empty sum of the array's elements."""
    return array.dtype.type(0)


def is_wide(array):
    """Whether the array's elements are summed in another type."""
    return False


def sums_in(workspace, begin, shape, array):
    """Room for sums of the array's elements, in the workspace from its byte `begin` on."""
    return np.ndarray(shape, array.dtype, workspace, begin)


def elements_in(workspace, begin, shape, array):
    """Room for elements like the array's, likewise."""
    return np.ndarray(shape, array.dtype, workspace, begin)


def integers_in(workspace, begin, shape):
    """Room for int64, likewise."""
    return np.ndarray(shape, np.int64, workspace, begin)


def indices_in(workspace, begin, shape):
    """Room for int32, likewise."""
    return np.ndarray(shape, np.int32, workspace, begin)


def sums(array, scratch):
    """Where to add up what the array is to hold: in the array itself if it can hold sums, else in `scratch`."""
    return array
