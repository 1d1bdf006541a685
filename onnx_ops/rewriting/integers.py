"""The integers that values hold, as far as they are known: sizes and indices that exporters compute by nodes."""

import math
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import onnx
from onnx import TensorProto

from .reading import reader as reading
from .reading.affine import Dimension, Unknown, number
from .reading.forms import Exhausted
from .reading.reader import GraphView, attributes_of
from .sizes import are_numbers

MANY = 2**10  # integers that are read one by one
WIDE_FLOATS = TensorProto.FLOAT, TensorProto.DOUBLE


def integers(graph: GraphView, name: str) -> list[Dimension | None] | None:
    """Return a flat list of the integers that a value holds, and None for what isn't known.

    None instead of the list if it has many, or it isn't known how many.
    """
    dimensions = graph.type(name).shape
    if dimensions is None or not are_numbers(dimensions):
        return None
    if (
        math.prod(max(size, 1) for size in dimensions) > MANY
    ):  # np.ndindex lists long axes, even of no elements
        return None
    return [_integer(graph, name, index) for index in np.ndindex(*dimensions)]


def _integer(graph: GraphView, name: str, index: Sequence[int]) -> Dimension | None:
    home = graph.home(name)
    with suppress(Unknown, Exhausted):
        return (
            None
            if home is None
            else reading.whole_number(home.reader.read(name, tuple(map(number, index))))
        )
    return None


def integer_list(graph: GraphView, name: str) -> list[int] | None:
    """Return a value as a flat list of ints; None if any isn't known, or depends on open sizes."""
    known = integers(graph, name)
    numbers = [size for size in known or () if isinstance(size, int)]
    return numbers if known is not None and len(numbers) == len(known) else None


def whole_number(graph: GraphView, name: str) -> Dimension | None:
    """Return a whole number, an int or a Size, that a value of any type is; None if it isn't known to be one."""
    array = graph.folded(name)
    if array is not None:
        value = array.item() if array.size == 1 and array.dtype.kind in "iuf" else math.nan
        return int(value) if math.isfinite(value) and value == int(value) else None
    # Another type has fewer numbers, and might hold another one.
    is_wide = graph.type(name).elements in (TensorProto.INT64, TensorProto.INT32, *WIDE_FLOATS)
    known = integers(graph, name) if is_wide else None
    return known[0] if known is not None and len(known) == 1 else None


def axes_of(graph: GraphView, node: onnx.NodeProto) -> list[int] | None:
    """Return the axes that a node states, by an attribute or by its second input; None if none, or not for certain."""
    axes = attributes_of(node).get("axes")
    return integer_list(graph, node.input[1]) if axes is None and len(node.input) > 1 else axes
