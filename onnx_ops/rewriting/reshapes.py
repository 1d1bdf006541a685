"""Reshape nodes to several open sizes, which come from the shapes of other values when the model runs."""

import math
from functools import reduce

from .finding import NearMiss
from .reading.integers import integers
from .reading.reader import attributes_of
from .sizes import Size, as_target, never_negative, origins, parts_of_product, quotient


def reshape(graph, node, name, dimensions, open_in=()):
    """Return the arguments of `Graph.add_node` that make a Reshape of a value to dimensions.

    A tuple is the dimension of an axis with several. open_in: values that may have axes of open sizes, beside the
    model's inputs.
    """
    numbers = as_target(map(_product_of, dimensions))
    own = (*(graph.type(name).shape or ()), *[None] * len(numbers))
    copied = [
        0 if n == -1 and _product_of(d) == size else n for n, d, size in zip(numbers, dimensions, own, strict=False)
    ]
    if 0 not in numbers and -1 not in copied:
        return {"inputs": [name, graph.add_integers(f"{node.output[0]}_sizes", *copied)]}
    zeros = {"allowzero": 1} if graph.opset >= 14 else {}  # else Reshape takes a size of 0 for one of the value's
    if not zeros and (0 in numbers or numbers.count(-1) > 1):
        raise NearMiss("more than one of its sizes is open, or one is 0")
    if numbers.count(-1) + (0 in numbers) < 2:
        return {"inputs": [name, graph.add_integers(f"{node.output[0]}_sizes", *numbers)], **zeros}
    parts = [
        open_size(graph, node, size if number == -1 else number, (name, *open_in))
        for number, size in zip(numbers, dimensions, strict=True)
    ]
    return {"inputs": [name, graph.add_node(node, "Concat", parts, axis=0)], **zeros}


def open_size(graph, node, dimension, open_in=()):
    """Return the name of a vector that holds a size: a number, that of a value's axis, or a product of these."""
    outermost = graph
    while not outermost.is_main:
        outermost = outermost.outer
    inputs = [value.name for value in outermost.owner.input if graph.home(value.name) is outermost]
    places = {}
    for name in (*inputs[::-1], *open_in):
        places |= {size: (name, axis) for axis, size in enumerate(graph.type(name).shape or ())}
    factors = dimension if isinstance(dimension, tuple) else (dimension,)
    factors = [part for each in factors for part in ([each] if each in places else parts_of_product(each))]
    parts = []
    for factor in factors:
        if isinstance(factor, int):
            parts.append(graph.add_integers(f"{node.output[0]}_size", factor))
        elif factor in places:
            name, axis = places[factor]
            axis = graph.add_integers(f"{node.output[0]}_axis", axis)
            parts.append(graph.add_node(node, "Gather", [graph.add_node(node, "Shape", [name]), axis]))
        else:
            what = unknown_size(graph, [factor]) or f"the size {factor}"
            raise NearMiss(f"{what}, which is open, is not known to be that of an input of the model")
    return reduce(lambda *pair: graph.add_node(node, "Mul", pair), parts)


def unknown_size(graph, dimensions):
    """Return a text for the first unknown size among these and their sources; None if there is none."""
    for value, axis in (origin for size in dimensions for origin in origins(size)):
        node = graph.producers.get(value)
        return f"the size of axis {axis} of {f'{node.op_type} ' if node else ''}{value}"
    return None


def _product_of(dimension):
    return math.prod(dimension) if isinstance(dimension, tuple) else dimension


def states_its_shape(graph, node):
    """Return whether a Reshape gives the shape that its second input states, also to a value without elements.

    A size of 0 is copied from the input, and so is an open one that is 0.
    """
    sizes, target = graph.type(node.input[0]).shape, integers(graph, node.input[1])
    if sizes is None or target is None or None in target:
        return False
    return attributes_of(node).get("allowzero") or all(
        not _may_be_zero(size) or (k < len(sizes) and _is_zero_with(sizes[k], size)) for k, size in enumerate(target)
    )


def _is_zero_with(size, other):
    """Return whether a size is certain to be 0 where another one is."""
    return quotient(size, other) is not None or isinstance(quotient(other, size), int)


def _may_be_zero(size):
    return isinstance(size, Size) and not never_negative(size - 1)
