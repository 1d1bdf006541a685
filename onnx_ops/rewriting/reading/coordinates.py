"""Reads coordinates: as the nodes compute them, with each rounding, in one type of floats.

They are followed as long as they vary along the axes of an image. What is the same for all of its
pixels, such as an element of a matrix, is a root, however it was computed. An index runs along
variables with the names of AXES.
"""

from collections.abc import Iterable
from typing import NamedTuple

import onnx
from onnx import TensorProto

from .affine import Array, Index, Position
from .arithmetic import COMPARISONS
from .forms import CASTS, Form
from .reader import Query, Reader, Rule

AXES = "ndhw"  # images, and the axes of each
OPERATIONS = {  # that are followed, beside moves
    "Abs", "Add", "AffineGrid", "And", "Ceil", "Clip", "Div", "Floor", "Max", "Min", "Mul", "Neg",
    "Not", "Or", "Pow",
    "ReduceSum", "Reciprocal", "Round", "Sqrt", "Sub", "Sum", "Where", *COMPARISONS,
}  # fmt: skip
PRODUCTS = "MatMul", "FusedMatMul"
INTEGERS = TensorProto.INT64, TensorProto.INT32


class CoordinateReader(Reader):
    """Reads coordinates that are computed in float32, beside 16-bit floats, or in float64.

    elements  the number of the type
    """

    def __init__(self, reader: Reader, elements: int):
        super().__init__(reader.graph, reader.table, is_exact=True)
        self.elements = elements

    def node(self, name: str) -> onnx.NodeProto | None:
        """Return the node of this graph that makes a value: what graphs around it compute stays
        there.
        """
        return super().node(name) if name in self.graph.producers else None

    def array(self, name: str) -> Array | None:
        return self.graph.folded(name)

    def constant(self, name: str, array: Array, index: Index) -> Form:
        if array.dtype.kind in "iu":
            return super().constant(name, array, index)
        return self.forms.element(name, index)

    def follows(self, node: onnx.NodeProto, rule: Rule, place: Query) -> bool:
        if rule.moves or self.graph.type(place.name).elements in INTEGERS:
            return True
        if not varies(place.index):
            return False
        if node.op_type in PRODUCTS:
            return len(users_of(self, place.name).grids) < 2
        return node.op_type in OPERATIONS and self._is_of_type(node)

    def _is_of_type(self, node: onnx.NodeProto) -> bool:
        """Return whether a node compares, if it does, numbers as a program for these coordinates
        does.
        """
        compared = self.graph.type(node.input[0]).elements
        return node.op_type not in COMPARISONS or compared in INTEGERS or self.reads(compared)

    def reads(self, elements: int) -> bool:
        """Return whether a program for these coordinates can read numbers of a type, by its number,
        as they are.
        """
        return elements == self.elements or (
            elements in CASTS and self.elements == TensorProto.FLOAT
        )


def coordinates(reader: Reader, elements: int) -> CoordinateReader:
    """Return the reader of a graph's coordinates of a type, which all of its grids share."""
    wide = elements if elements == TensorProto.DOUBLE else TensorProto.FLOAT
    known = reader.forms.known
    key = "coordinates", wide
    if key not in known:
        known[key] = CoordinateReader(reader, wide)
    return known[key]


def is_part(reader: Reader, node: onnx.NodeProto) -> bool:
    """Return whether a node is of a type that a program may compute."""
    rule = reader.rule_of(node)
    return rule is not None and (rule.moves or node.op_type in (*OPERATIONS, *PRODUCTS))


class Users(NamedTuple):
    """What uses a value, as the graph was when it was first asked.

    grids      those that nodes compute from it: if several, it is better computed once for all of
               them
    samplers   how many sample at it
    is_read    whether anything else reads more than its shape
    """

    grids: set[str]
    samplers: int
    is_read: bool


def users_of(reader: Reader, name: str) -> Users:
    """Return what uses a value."""
    key = "users", name
    if key not in reader.forms.known:
        reader.forms.known[key] = _users(reader, name)
    users: Users = reader.forms.known[key]
    return users


def _users(reader: Reader, name: str) -> Users:
    graph = reader.graph
    grids: set[str] = set()
    samplers = 0
    is_read = False
    reached = {name}
    values = [name]
    for value in values:
        users = graph.consumers.get(value, [])
        is_read = is_read or graph.users[value] > len(users)
        for node, position in users:
            if (node.op_type, position) == ("GridSample", 1):
                grids.add(value)
                samplers += value == name
            elif node.op_type == "ComputedGridSample":
                grids.add(node.output[0])
            elif is_part(reader, node):
                values += [output for output in node.output if output not in reached]
                reached.update(node.output)
            elif node.op_type != "Shape":
                is_read = True
    return Users(grids, samplers, is_read)


def varies(index: Iterable[Position]) -> bool:
    """Return whether an index differs from one pixel of an image to the next one."""
    return any(
        term.inner == 1 and term.variable.name in AXES[1:]
        for position in index
        for term in position.terms
    )
