"""Reshape nodes to several open sizes, which come from the shapes of other values when the model
runs.
"""

import math
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import onnx

from .finding import NearMiss
from .graph import Graph
from .reading.integers import integers
from .reading.reader import attributes_of
from .sizes import (
    Dimension,
    Size,
    are_numbers,
    as_target,
    never_negative,
    origins,
    parts_of_product,
    quotient,
)

if TYPE_CHECKING:
    from typing import TypeGuard

    from .reading.reader import GraphView

    # The size of an axis, or the sizes whose product it is.
    Axis = Dimension | tuple[Dimension, ...]


def reshape(
    graph: Graph,
    node: onnx.NodeProto,
    name: str,
    dimensions: "Sequence[Axis]",
    open_in: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the arguments of `Graph.add_node` that make a Reshape of a value to dimensions.

    open_in: values that may have axes of open sizes, beside the model's inputs.
    """
    numbers = as_target(map(_product_of, dimensions))
    own = [*(graph.type(name).shape or ()), *[None] * len(numbers)]
    copied = [
        0 if n == -1 and _product_of(d) == size else n
        for n, d, size in zip(numbers, dimensions, own, strict=False)
    ]
    if 0 not in numbers and -1 not in copied:
        return {"inputs": [name, graph.add_integers(f"{node.output[0]}_sizes", *copied)]}
    # Else Reshape takes a size of 0 for one of the value's.
    zeros = {"allowzero": 1} if graph.opset >= 14 else {}
    if not zeros and (0 in numbers or numbers.count(-1) > 1):
        raise NearMiss("more than one of its sizes is open, or one is 0")
    if numbers.count(-1) + (0 in numbers) < 2:
        target = graph.add_integers(f"{node.output[0]}_sizes", *numbers)
    else:
        sizes = [
            size if number == -1 else number
            for number, size in zip(numbers, dimensions, strict=True)
        ]
        target = vector(graph, node, "sizes", sizes, (name, *open_in))
    return {"inputs": [name, target], **zeros}


def vector(
    graph: Graph,
    node: onnx.NodeProto,
    like: str,
    sizes: "Sequence[Axis]",
    open_in: Iterable[str] = (),
) -> str:
    """Return the name of a vector that holds sizes. like: the name of a constant, if they are
    numbers.
    """
    if are_numbers(sizes):
        return graph.add_integers(like, *sizes)
    elements = [open_size(graph, node, size, open_in) for size in sizes]
    return graph.add_node(node, "Concat", elements, axis=0)


def open_size(
    graph: Graph, node: onnx.NodeProto, dimension: "Axis", open_in: Iterable[str] = ()
) -> str:
    """Return the name of a vector that holds a size: a number, that of a value's axis, or a product
    of these.
    """
    outermost = graph
    while outermost.outer:
        outermost = outermost.outer
    inputs = [value.name for value in outermost.owner.input if graph.home(value.name) is outermost]
    axes_by_size: dict[Dimension, tuple[str, int]] = {}
    for name in (*inputs[::-1], *open_in):
        axes_by_size |= {
            size: (name, axis) for axis, size in enumerate(graph.type(name).shape or ())
        }
    sizes = dimension if isinstance(dimension, tuple) else (dimension,)
    factors = [
        factor_size
        for size in sizes
        for factor_size in ([size] if size in axes_by_size else parts_of_product(size))
    ]
    names = []
    for factor in factors:
        if isinstance(factor, int):
            names.append(graph.add_integers(f"{node.output[0]}_size", factor))
        elif factor in axes_by_size:
            name, number = axes_by_size[factor]
            axis = graph.add_integers(f"{node.output[0]}_axis", number)
            names.append(
                graph.add_node(node, "Gather", [graph.add_node(node, "Shape", [name]), axis])
            )
        else:
            title = unknown_size(graph, [factor]) or f"the size {factor}"
            raise NearMiss(
                f"{title}, which is open, is not known to be that of an input of the model"
            )
    return reduce(lambda *pair: graph.add_node(node, "Mul", pair), names)


def unknown_size(graph: "GraphView", dimensions: Iterable[Dimension]) -> str | None:
    """Return a text for the first unknown size among these and their sources; None if there is
    none.
    """
    for value, axis in (origin for size in dimensions for origin in origins(size)):
        node = graph.producers.get(value)
        return f"the size of axis {axis} of {f'{node.op_type} ' if node else ''}{value}"
    return None


def _product_of(dimension: "Axis") -> Dimension:
    return math.prod(dimension) if isinstance(dimension, tuple) else dimension


def states_its_shape(graph: "GraphView", node: onnx.NodeProto) -> bool:
    """Return whether a Reshape gives the shape that its second input states, also to a value
    without elements.

    A size of 0 is copied from the input, and so is an open one that is 0.
    """
    sizes = graph.type(node.input[0]).shape
    target = integers(graph, node.input[1])
    if sizes is None or target is None or None in target:
        return False
    return attributes_of(node).get("allowzero") or all(
        not _may_be_zero(size) or (k < len(sizes) and _is_zero_with(sizes[k], size))
        for k, size in enumerate(target)
    )


def _is_zero_with(size: Dimension, other: Dimension) -> bool:
    """Return whether a size is certain to be 0 where another one is."""
    return quotient(size, other) is not None or isinstance(quotient(other, size), int)


def _may_be_zero(size: Dimension | None) -> "TypeGuard[Size]":
    return isinstance(size, Size) and not never_negative(size - 1)
