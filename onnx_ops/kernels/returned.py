"""Shapes returned by a user's shape function, for the generated functions of custom/plans.py."""

from ..declaration.errors import require


def shapes_of(outputs, returned):
    """Return a shape for each output, from the result of a shape function. Sizes may be PyTorch's symbols.

    In compiled code, this and `write_shapes` are in compiler/arrays.py.
    """
    shapes = (returned,) if is_shape(returned) else returned
    fits = isinstance(shapes, tuple | list) and len(shapes) == len(outputs) and all(map(is_shape, shapes))
    text = "must return a tuple of integers" + (", for each of the outputs" if len(outputs) > 1 else "")
    require(fits, "rule", f"a function that returns {returned!r}", text)
    return tuple(map(tuple, shapes))


def is_shape(value):
    return isinstance(value, tuple | list) and all(hasattr(size, "__index__") for size in value)


def write_shapes(outputs, shapes):
    """Write shapes into a plan's vectors, as far as they fit; return the ranks."""
    for sizes, shape in zip(outputs, shapes, strict=True):
        for axis in range(min(len(sizes), len(shape))):
            sizes[axis] = shape[axis]
    return tuple(map(len, shapes))
