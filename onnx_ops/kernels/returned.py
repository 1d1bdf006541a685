"""The shapes that a user's rule returns, for the generated functions of custom/plans.py."""

from ..declaration.errors import require
from ..declaration.jit import jitable


def shapes_of(outputs, returned):
    """Return a shape for each of the outputs, as a rule has returned them. Sizes may be PyTorch's symbols.

    In compiled code, this is in compiler/arrays.py.
    """
    shapes = (returned,) if is_shape(returned) else returned
    fits = isinstance(shapes, tuple | list) and len(shapes) == len(outputs) and all(map(is_shape, shapes))
    text = "must return a tuple of integers" + (", for each of the outputs" if len(outputs) > 1 else "")
    require(fits, "rule", f"a function that returns {returned!r}", text)
    return tuple(map(tuple, shapes))


def is_shape(value):
    return isinstance(value, tuple | list) and all(hasattr(size, "__index__") for size in value)


@jitable
def write_shape(sizes, shape):
    """Write a shape into a plan's vector, as far as there is room; return the rank."""
    for axis, size in enumerate(shape + (0,)):  # noqa: RUF005  Numba has no loops over empty tuples
        if axis < len(sizes):
            sizes[axis] = size
    return len(shape)
