"""`torch.nn.functional.grid_sample` and the nodes that only make its grid, as one ComputedGridSample.

The coordinates of the grid are expressions of other values, whichever nodes compute them; the operator runs these as a
program. Each operation is rounded in the type of the coordinates, or in float32 if that has 16 bits: then the
coordinates are rounded once.
"""

import numpy as np
from onnx import TensorProto, helper

from ...declaration.errors import OpError
from ...sampling import grid_sample
from ..expressions import (
    AXES,
    LARGEST,
    NARROWING,
    OPERATIONS,
    Constant,
    Leaf,
    expression,
    is_rounded,
    unknown_size_behind,
)
from ..finding import NearMiss
from ..graph import AI_ONNX, FLOATS
from ..indices import MOVES, attributes_of, shape
from ..positions import Position, variable
from ..programs import Program
from ..reshapes import open_size
from ..sizes import parts_of_broadcast

DOMAIN, OPERATOR = "onnx_ops", "ComputedGridSample"
NAME = "grid_sample"
NEEDS = (("GridSample",),)  # a graph needs one of these sets of types of nodes
LAST, DOMAINS = ("GridSample",), (*AI_ONNX, "com.microsoft")  # type and domains of the node that ends the pattern
MODES = {b"linear": b"bilinear", b"cubic": b"bicubic"}  # {newer name: older name}


def match(graph, node):
    """Return the arguments of `Graph.replace` for a node without a grid; None if no nodes make the grid alone."""
    if len(node.input) != 2 or any(a.ref_attr_name for a in node.attribute):
        return None
    attributes = attributes_of(node)
    try:
        grid_sample.ONNX.values(attributes)
    except OpError:  # the session will report it
        return None
    attributes = {name: MODES.get(value, value) for name, value in attributes.items()}
    grid = node.input[1]
    dimensions = shape(graph, grid)
    if graph.producer(grid, *MOVES, *OPERATIONS, "DequantizeLinear"):
        if dimensions is None:
            raise NearMiss("the rank of its grid is not known")
        if dimensions and not isinstance(dimensions[-1], int):
            raise NearMiss("the number of its coordinates is not known")
    if dimensions is None or len(dimensions) not in (4, 5) or dimensions[-1] != len(dimensions) - 2:
        return None
    images = (shape(graph, node.input[0]) or (None,))[0]
    if isinstance(images, int) and isinstance(dimensions[0], int) and images != dimensions[0]:
        return None  # the session will report it
    program = Program(graph, node, _grid_type(graph, node))
    coordinates = _coordinates(program, dimensions)
    if coordinates is None:
        return None
    state_sizes(program, dimensions)
    inputs, more = program.finished(coordinates)
    return {"op_type": OPERATOR, "inputs": [node.input[0], *inputs], "domain": DOMAIN, **attributes, **more}


def _coordinates(program, dimensions):
    """Return the values of a program that are the coordinates of the grid; None if no nodes compute it."""
    graph, grid = program.graph, program.node.input[1]
    narrow = graph.type(grid).elements
    pixels = [variable(axis, size) for axis, size in zip(axes_of(dimensions), dimensions[:-1], strict=True)]
    indices = [(*pixels, Position(i)) for i in range(dimensions[-1])]
    memo: dict = {}
    coordinates = [expression(graph, grid, index, memo) for index in indices]
    if all(isinstance(coordinate, Constant) for coordinate in coordinates):
        raise NearMiss("the grid is constant: ONNX Runtime computes it once")
    leaves = {c.name if isinstance(c, Leaf) and (c.index, shape(graph, c.name)) == (index, dimensions) else None
              for c, index in zip(coordinates, indices, strict=True)}  # fmt: skip
    if len(leaves) > 1 or None in leaves:
        values = [program.value(coordinate) for coordinate in coordinates]
        return [value if narrow not in NARROWING or is_rounded(graph, coordinate, narrow)
                else program.step(NARROWING[narrow], value)
                for value, coordinate in zip(values, coordinates, strict=True)]  # fmt: skip
    maker = graph.producers.get(leaves.pop())
    if maker is not None and maker.domain in AI_ONNX:
        _explain(graph, maker)
    return None


def _explain(graph, maker):
    """Raise NearMiss if the node that makes a grid looks like a part of what a program could compute."""
    if maker.op_type in (*MOVES, *OPERATIONS):
        unknown = unknown_size_behind(graph, maker.output[0])
        reason = f": {unknown} isn't known" if unknown else ", or not for certain"
        raise NearMiss(f"the effect of {maker.op_type} {maker.output[0]} on coordinates is unknown{reason}")
    quantizer = graph.producer(maker.input[0], "QuantizeLinear") if maker.op_type == "DequantizeLinear" else None
    if quantizer is not None and graph.producer(quantizer.input[0], *MOVES, *OPERATIONS):
        kind = graph.type(maker.input[0]).dtype
        raise NearMiss(f"its coordinates are rounded to {kind} before {maker.op_type} {maker.output[0]}")


def axes_of(dimensions):
    """Return the names of the axes of a grid with these dimensions, except for the last one."""
    return "n" + AXES[-dimensions[-1] :]


def _grid_type(graph, node):
    """Return the name of the type in which coordinates are computed. Raises NearMiss unless types fit."""
    kinds = [graph.type(name).elements for name in node.input]
    if not FLOATS.issuperset(kinds):
        raise NearMiss("the types of its image and its grid are not known to be floats")
    return "float64" if kinds[1] == TensorProto.DOUBLE else "float32"


def state_sizes(program, dimensions):
    """Have the sources state the sizes of the output. Raises NearMiss if one isn't known to be what they state."""
    for axis, size in zip(axes_of(dimensions)[1:], dimensions[1:-1], strict=True):
        stated = [size_of(program, position, at) for position, index in program.sources
                  for at, along in enumerate(index) if along == axis]  # fmt: skip
        # A number may be that of a constant, to which pixels of an open size are broadcast.
        is_stated = size in stated or (axis in program.stated and not isinstance(size, int))
        for part in () if is_stated else [each for each in parts_of_broadcast(size) if each not in (1, *stated)]:
            if not isinstance(part, int):
                zero = helper.make_tensor("", helper.np_dtype_to_tensor_dtype(np.dtype(program.dtype)), [1], [0])
                zeros = program.add_node("ConstantOfShape", open_size(program.graph, program.node, part), value=zero)
                program.source(program.input(zeros), (axis,))
            elif part > LARGEST:
                raise NearMiss(f"the size of its grid along {axis}, {part}, is large, and not that of a value")
            else:
                program.array(np.zeros([part if axis == other else 1 for other in AXES]), axis)


def size_of(program, position, axis):
    """Return the size of an input of a program along one of its axes, or None."""
    dimensions = shape(program.graph, program.inputs[position])
    return None if dimensions is None else dimensions[axis]
