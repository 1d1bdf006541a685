"""The integers that values hold, as far as they are known: sizes and indices that exporters compute
by nodes.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto

from ..sizes import are_numbers, at_least_zero, never_negative
from . import reader as reading
from .affine import Dimension, Unknown, as_int, number
from .forms import Exhausted
from .reader import attributes_of

if TYPE_CHECKING:
    from .reader import GraphView

INT32_MAX = 2**31 - 1
MANY = 2**10  # integers that are read one by one
WIDE_FLOATS = TensorProto.FLOAT, TensorProto.DOUBLE


def integers(graph: "GraphView", name: str) -> list[Dimension | None] | None:
    """Return a flat list of the integers that a value holds, and None for what isn't known.

    None instead of the list if it has many, or it isn't known how many.
    """
    dimensions = graph.type(name).shape
    if dimensions is None or not are_numbers(dimensions):
        return None
    # np.ndindex lists long axes, even of no elements.
    if math.prod(max(size, 1) for size in dimensions) > MANY:
        return None
    array = graph.array(name)
    if array is not None and array.dtype.kind in "iub":
        return [*map(int, array.ravel())]
    return [_integer(graph, name, index) for index in np.ndindex(*dimensions)]


def _integer(graph: "GraphView", name: str, index: Sequence[int]) -> Dimension | None:
    home = graph.home(name)
    with suppress(Unknown, Exhausted):
        return (
            None
            if home is None
            else reading.whole_number(home.reader.read(name, tuple(map(number, index))))
        )
    return None


def integer_list(graph: "GraphView", name: str) -> list[int] | None:
    """Return a value as a flat list of ints; None if any isn't known, or depends on open sizes."""
    values = integers(graph, name)
    numbers = [size for size in values or () if isinstance(size, int)]
    return numbers if values is not None and len(numbers) == len(values) else None


def whole_number(graph: "GraphView", name: str) -> Dimension | None:
    """Return a whole number, an int or a Size, that a value of any type is; None if it isn't known
    to be one.
    """
    array = graph.folded(name)
    if array is not None:
        value = array.item() if array.size == 1 and array.dtype.kind in "iuf" else math.nan
        return int(value) if math.isfinite(value) and value == int(value) else None
    # Another type has fewer numbers, and might hold another one.
    is_wide = graph.type(name).elements in (TensorProto.INT64, TensorProto.INT32, *WIDE_FLOATS)
    values = integers(graph, name) if is_wide else None
    return values[0] if values is not None and len(values) == 1 else None


def axes_of(graph: "GraphView", node: onnx.NodeProto) -> list[int] | None:
    """Return the axes that a node states, by an attribute or by its second input; None if none, or
    not for certain.
    """
    axes = attributes_of(node).get("axes")
    return integer_list(graph, node.input[1]) if axes is None and len(node.input) > 1 else axes


Cut = tuple[int, Dimension | None, Dimension | None, Dimension | None]


def cuts(graph: "GraphView", node: onnx.NodeProto) -> list[Cut] | None:
    """Return [(axis, start, end, step)] of a Slice, with None for what isn't known; None if the
    axes aren't known.
    """
    stated = attributes_of(node)
    lists: list[Sequence[Dimension | None] | None]
    if "starts" in stated:
        lists = [stated["starts"], stated["ends"], stated.get("axes", ()), ()]
    else:
        names = [*node.input[1:], "", ""][:4]
        lists = [integers(graph, name) if name else () for name in names]
    starts, ends, axes, steps = lists
    count = next((len(values) for values in (axes, starts, ends, steps) if values), None)
    if axes is None or count is None:
        return None
    steps = [1] * count if steps == () else steps
    columns = [[None] * count if stated is None else stated for stated in (starts, ends, steps)]
    numbers = [axis for axis in axes or range(count) if isinstance(axis, int)]
    return [*zip(numbers, *columns, strict=True)]


def sliced(
    size: Dimension, start: Dimension | None, end: Dimension | None, step: Dimension | None
) -> tuple[Dimension, Dimension]:
    """Return (first position, number of positions) that a Slice takes along an axis.

    Raises Unknown.
    """
    if start is None or end is None or not isinstance(step, int) or step == 0:
        raise Unknown("where a slice begins or ends")
    if step < 0 and isinstance(end, int) and end >= INT32_MAX:
        raise Unknown("ONNX Runtime reads such an end as the first element, onnx as the last one")
    low, high = (0, size) if step > 0 else (-1, size - 1)
    first = _clamped(start, size, 0, high)
    last = _clamped(end, size, low, high)
    span = last - first if step > 0 else first - last
    return first, at_least_zero((span + abs(step) - 1) // abs(step))


def _clamped(position: Dimension, size: Dimension, low: Dimension, high: Dimension) -> Dimension:
    """Return where a start or end that a Slice states lies on an axis. Raises Unknown."""
    # A number that lies outside whatever the size.
    if isinstance(position, int) and abs(position) >= INT32_MAX and not isinstance(size, int):
        position = high if position > 0 else low
    elif never_negative(-1 - position):
        position = position + size
    if isinstance(position, int) and isinstance(high, int) and isinstance(low, int):
        return min(max(position, low), high)
    if position != high and not (
        never_negative(position - low) and never_negative(high - position)
    ):
        raise Unknown("whether a slice begins or ends outside")
    return position


def part_of_sequence(graph: "GraphView", node: onnx.NodeProto) -> tuple[int, Dimension, Dimension]:
    """Return (axis, start, size) of the part of a SplitToSequence that a SequenceAt returns.

    Fails if it is unknown.
    """
    home = graph.home(node.input[0])
    split = home.producers[node.input[0]] if home is not None else node
    stated = attributes_of(split)
    if split.op_type != "SplitToSequence" or not stated.get("keepdims", 1):
        # ONNX Runtime may leave the axis out, which onnx says it doesn't where there are sizes.
        raise Unknown("the parts of a sequence")
    sizes = integers(graph, split.input[1]) or []
    stated_at = integer_list(graph, node.input[1])
    if not stated_at:
        raise Unknown("which part of a sequence it is")
    (position,) = stated_at
    dimensions = graph.type(split.input[0]).sizes
    axis = range(len(dimensions))[stated.get("axis", 0)]
    if graph.type(split.input[1]).shape == ():
        size = as_int(dimensions[axis])
        length = as_int(sizes[0] or 0)
        start = range(0, size, length)[position]
        return axis, start, min(length, size - start)
    position = range(len(sizes))[position]
    before = [size for size in sizes[: position + 1] if size is not None]
    return axis, sum(before[:position]), before[position]
