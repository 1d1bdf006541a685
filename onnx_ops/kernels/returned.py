"""Shapes returned by a user's shape function, for the generated functions of custom/plans.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..declaration.errors import require

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .types import OutputSizes, Sizes


def returned_shapes(outputs: Sequence[OutputSizes], returned: Any) -> tuple[Sizes, ...]:
    """Return a shape for each output, from the result of a shape function. Sizes may be PyTorch's
    symbols.

    In compiled code, this and `write_shapes` are in compiler/arrays.py.
    """
    shapes = (returned,) if is_shape(returned) else returned
    fits = (
        isinstance(shapes, tuple | list)
        and len(shapes) == len(outputs)
        and all(map(is_shape, shapes))
    )
    text = "must return a tuple of integers" + (
        ", for each of the outputs" if len(outputs) > 1 else ""
    )
    require(fits, "rule", f"a function that returns {returned!r}", text)
    return tuple(map(tuple, shapes))


def is_shape(value: object) -> bool:
    return isinstance(value, tuple | list) and all(hasattr(size, "__index__") for size in value)


def write_shapes(outputs: Sequence[OutputSizes], shapes: Sequence[Sizes]) -> tuple[int, ...]:
    """Write shapes into a plan's vectors, as far as they fit; return the ranks."""
    for sizes, shape in zip(outputs, shapes, strict=True):
        for axis in range(min(len(sizes), len(shape))):
            sizes[axis] = shape[axis]
    return tuple(map(len, shapes))
