"""`torch.nn.functional.grid_sample` and the nodes that only make its grid, as one node that needs no grid.

Which node that is depends on the coordinates. AffineGridSample: those of an AffineGrid, or sums of a matrix' elements
times pixel coordinates. PerspectiveGridSample: such sums, divided by another one. FlowGridSample: planes of a tensor,
shifted and scaled step by step. All of these round as the nodes do, so that they may be used with any mode.
"""

from dataclasses import dataclass

import numpy as np
from onnx import TypeProto, helper

from ..errors import OpError
from ..operators import grid_sample
from .affine_grid import pixel_coordinates
from .expressions import AXES, Constant, Leaf, Operation, expression
from .finding import NearMiss
from .flows import flow
from .graph import AI_ONNX, Graph
from .integers import integer_list, shape
from .matrices import affine, perspective

DOMAIN = "onnx_ops"
NAME = "grid_sample"
LARGEST = 2**24  # pixels along an axis of the grid
LAST, DOMAINS = "GridSample", (*AI_ONNX, "com.microsoft")  # type and domains of the node that ends the pattern
TYPES = {1: "float32", 11: "float64"}  # {number in ONNX: name}
MODES = {b"linear": b"bilinear", b"cubic": b"bicubic"}  # {newer name: older name}


@dataclass
class Sampling:
    """A GridSample, and the dimensions and the dtype of its grid. axes: names of the grid's axes but the last one."""

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
        """Return a vector along an axis of the grid of this size. A vector of one element is broadcast."""
        if not isinstance(size, int) or size > LARGEST or len(vector) not in (1, size):
            raise NearMiss(f"the size of its grid along an axis, {size}, is not known, or large")
        return np.broadcast_to(vector, size)

    def add_coordinates(self, *vectors):
        """Add x, y and z as constants, with an empty z for two image axes; returns their names."""
        return [self.constant(axis, v) for axis, v in zip("xyz", [*vectors, [], []][:3], strict=True)]

    def add_node(self, op_type, name, *lists, **attributes):
        """Add a node with a value and lists of integers as inputs; returns its output's name."""
        if self.graph.opset < 13:
            raise NearMiss(
                f"other nodes are needed for it, in version 13 of ai.onnx; the model imports {self.graph.opset}"
            )
        constants = [self.graph.add_constant(op_type, np.array(integers, np.int64)) for integers in lists]
        return self.graph.add_node(self.node, op_type, [name, *constants], **attributes)


def match(graph, node, standard):
    """Return the arguments of `Graph.replace` for a node without a grid; None if no nodes make the grid alone."""
    if standard or len(node.input) != 2 or any(a.ref_attr_name for a in node.attribute):
        return None
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    try:
        grid_sample.ONNX.values(attributes)
    except OpError:  # the session will report it
        return None
    attributes = {name: MODES.get(value, value) for name, value in attributes.items()}
    maker = graph.producers.get(node.input[1])
    if maker is not None and (maker.domain, maker.op_type, len(maker.input)) == (DOMAIN, "AffineGrid", 4):
        _check_types(graph, node.input[0], maker.input[0])
        replacement = "AffineGridSample", maker.input, {}
    else:
        replacement = _match_coordinates(graph, node)
    if replacement is None:
        return None
    op_type, inputs, more = replacement
    return {"op_type": op_type, "inputs": [node.input[0], *inputs], "domain": DOMAIN, **attributes, **more}


def _match_coordinates(graph, node):
    """Return (operator, inputs, more attributes), or None if no nodes make the grid that could be left out."""
    grid = node.input[1]
    dimensions, grid_type = shape(graph, grid), graph.type(grid)
    if dimensions is None or len(dimensions) not in (4, 5) or dimensions[-1] != len(dimensions) - 2:
        return None
    images, grids = (shape(graph, node.input[0]) or (None,))[0], dimensions[0]
    if isinstance(images, int) and isinstance(grids, int) and images != grids:  # the session will report it
        return None
    sampling = Sampling(graph, node, dimensions, TYPES.get(grid_type.tensor_type.elem_type))
    indices = [(*sampling.axes, i) for i in range(dimensions[-1])]
    coordinates = [expression(graph, grid, index) for index in indices]
    grids = {c.name if isinstance(c, Leaf) and c.index == index else None
             for c, index in zip(coordinates, indices, strict=True)}  # fmt: skip
    if len(grids) == 1 and None not in grids:  # no nodes are known that compute its elements
        maker = graph.producer(grids.pop(), "AffineGrid")
        return maker and _affine_grid(sampling, maker)
    _check_types(graph, *node.input)
    if all(isinstance(coordinate, Constant) for coordinate in coordinates):
        raise NearMiss("the grid is constant: ONNX Runtime computes it once")
    if sampling.dtype is None:
        raise NearMiss("its grid is not of float32 or float64, so that every rounding matters")
    builders = {_builder(coordinate) for coordinate in coordinates}
    if len(builders) > 1:
        raise NearMiss("its coordinates are computed in different ways")
    return builders.pop()(sampling, coordinates)


def _check_types(graph, *names):
    kinds = {(graph.type(name) or TypeProto()).tensor_type.elem_type for name in names}
    if len(kinds) > 1 or 0 in kinds:
        raise NearMiss("its image and its grid are not known to be of one type")


def _affine_grid(sampling, maker):
    """Return (operator, inputs, more attributes) in place of an AffineGrid of ai.onnx, which computes its base grid."""
    _check_types(sampling.graph, *sampling.node.input)
    size = integer_list(sampling.graph, maker.input[1])
    align_corners = any(a.name == "align_corners" and a.i for a in maker.attribute)
    if size is None or len(size) != len(sampling.dimensions) or min(size) < 1:
        raise NearMiss("the size of its AffineGrid is open")
    if sampling.mode == "nearest" or sampling.dtype is None:
        raise NearMiss("every rounding matters of an AffineGrid that ONNX Runtime computes")
    if align_corners and 1 in size[2:]:
        raise NearMiss("an AffineGrid of one pixel along an axis is ONNX Runtime's own")
    vectors = [pixel_coordinates(sampling.along(np.zeros(1), n).size, align_corners) for n in size[:1:-1]]
    return "AffineGridSample", [maker.input[0], *sampling.add_coordinates(*vectors)], {}


def _builder(coordinate):
    """Return the function that builds the node for a coordinate of this form."""
    if not isinstance(coordinate, Operation):
        return flow
    if coordinate.op_type == "Div" and not isinstance(coordinate.operands[1], Constant):
        return perspective
    return affine if len([*coordinate.leaves()]) > 1 else flow
