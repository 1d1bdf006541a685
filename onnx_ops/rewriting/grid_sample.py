"""`torch.nn.functional.grid_sample` with the nodes that only make its grid, as one node that needs none.

By what the coordinates are: those of an AffineGrid become AffineGridSample; elements of a matrix times places, added
up, too, or, divided by such a sum, PerspectiveGridSample; a number of a plane each, moved step by step, FlowGridSample.
All of these round as the nodes do, so that any mode may follow.
"""

from dataclasses import dataclass

import numpy as np
from onnx import TypeProto, helper

from ..errors import OpError
from ..operators import grid_sample
from .affine_grid import places
from .expressions import AXES, Constant, Leaf, Operation, expression
from .finding import NearMiss
from .flows import flow
from .graph import AI_ONNX, Graph
from .integers import numbers, shape
from .matrices import affine, perspective

DOMAIN = "onnx_ops"
NAME = "grid_sample"
LARGEST = 2**24  # places along an axis
LAST, DOMAINS = "GridSample", (*AI_ONNX, "com.microsoft")  # of the node that ends it
TYPES = {1: "float32", 11: "float64"}  # by their numbers in ONNX
MODES = {b"linear": b"bilinear", b"cubic": b"bicubic"}  # newer names


@dataclass
class Sampling:
    """A GridSample, and what its grid is like. axes: their names, but for the last one."""

    graph: Graph
    node: object
    dimensions: tuple
    dtype: str | None

    @property
    def mode(self):
        return next((a.s.decode() for a in self.node.attribute if a.name == "mode"), "linear")

    @property
    def axes(self):
        return "n" + AXES[-self.dimensions[-1] :]

    def constant(self, name, array):
        return self.graph.add_constant(f"{self.node.output[0]}_{name}", np.ascontiguousarray(array, self.dtype))

    def along(self, vector, size):
        """A vector along an axis of the grid of this size; one element is repeated."""
        if not isinstance(size, int) or size > LARGEST or len(vector) not in (1, size):
            raise NearMiss(f"the size of its grid along an axis, {size}, is not known, or large")
        return np.broadcast_to(vector, size)

    def places(self, *vectors):
        """x, y and z; of two image axes an empty z."""
        return [self.constant(axis, v) for axis, v in zip("xyz", [*vectors, [], []][:3], strict=True)]

    def add_node(self, op_type, name, *lists, **attributes):
        """What a node makes of a value and lists of integers."""
        if self.graph.opset < 13:
            raise NearMiss(
                f"other nodes are needed for it, in version 13 of ai.onnx; the model imports {self.graph.opset}"
            )
        given = [self.graph.add_constant(op_type, np.array(numbers, np.int64)) for numbers in lists]
        return self.graph.add_node(self.node, op_type, [name, *given], **attributes)


def match(graph, node, standard):
    """The arguments of `Graph.replace` that make the GridSample one without a grid; None if there is no such grid."""
    if standard or len(node.input) != 2 or any(a.ref_attr_name for a in node.attribute):
        return None
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    try:
        grid_sample.ONNX.resolved(attributes)
    except OpError:  # which the session will tell
        return None
    attributes = {name: MODES.get(value, value) for name, value in attributes.items()}
    maker = graph.producers.get(node.input[1])
    if maker is not None and (maker.domain, maker.op_type, len(maker.input)) == (DOMAIN, "AffineGrid", 4):
        _check_types(graph, node.input[0], maker.input[0])
        found = "AffineGridSample", maker.input, {}
    else:
        found = _of_coordinates(graph, node)
    if found is None:
        return None
    op_type, inputs, more = found
    return {"op_type": op_type, "inputs": [node.input[0], *inputs], "domain": DOMAIN, **attributes, **more}


def _of_coordinates(graph, node):
    """(operator, inputs, more attributes), or None where nothing makes the grid that could be left out."""
    grid = node.input[1]
    dimensions, described = shape(graph, grid), graph.type(grid)
    if dimensions is None or len(dimensions) not in (4, 5) or dimensions[-1] != len(dimensions) - 2:
        return None
    images, grids = (shape(graph, node.input[0]) or (None,))[0], dimensions[0]
    if isinstance(images, int) and isinstance(grids, int) and images != grids:  # which the session will tell
        return None
    sampling = Sampling(graph, node, dimensions, TYPES.get(described.tensor_type.elem_type))
    indices = [(*sampling.axes, i) for i in range(dimensions[-1])]
    coordinates = [expression(graph, grid, index) for index in indices]
    grids = {found.name if isinstance(found, Leaf) and found.index == index else None
             for found, index in zip(coordinates, indices, strict=True)}  # fmt: skip
    if len(grids) == 1 and None not in grids:  # one that is made elsewhere
        maker = graph.producer(grids.pop(), "AffineGrid")
        return maker and _affine_grid(sampling, maker)
    _check_types(graph, *node.input)
    if all(isinstance(found, Constant) for found in coordinates):
        raise NearMiss("the grid is constant: ONNX Runtime computes it once")
    if sampling.dtype is None:
        raise NearMiss("its grid is not of float32 or float64, so that every rounding matters")
    kinds = {_kind(found) for found in coordinates}
    if len(kinds) > 1:
        raise NearMiss("its coordinates are computed in different ways")
    return kinds.pop()(sampling, coordinates)


def _check_types(graph, *names):
    kinds = {(graph.type(name) or TypeProto()).tensor_type.elem_type for name in names}
    if len(kinds) > 1 or 0 in kinds:
        raise NearMiss("its image and its grid are not known to be of one type")


def _affine_grid(sampling, maker):
    """The AffineGrid of ai.onnx, which computes the places itself."""
    _check_types(sampling.graph, *sampling.node.input)
    size = numbers(sampling.graph, maker.input[1])
    align_corners = any(a.name == "align_corners" and a.i for a in maker.attribute)
    if size is None or len(size) != len(sampling.dimensions) or min(size) < 1:
        raise NearMiss("the size of its AffineGrid is open")
    if sampling.mode == "nearest" or sampling.dtype is None:
        raise NearMiss("every rounding matters of an AffineGrid that ONNX Runtime computes")
    if align_corners and 1 in size[2:]:
        raise NearMiss("an AffineGrid of one pixel along an axis is ONNX Runtime's own")
    vectors = [places(sampling.along(np.zeros(1), n).size, align_corners) for n in size[:1:-1]]
    return "AffineGridSample", [maker.input[0], *sampling.places(*vectors)], {}


def _kind(found):
    if isinstance(found, Operation) and found.op_type == "Div" and not isinstance(found.operands[1], Constant):
        return perspective
    return affine if isinstance(found, Operation) and len([*found.leaves()]) > 1 else flow
