"""`torch.nn.functional.grid_sample` and the nodes that only make its grid, as one
ComputedGridSample.

The operator runs the forms of the coordinates as a program, whichever nodes compute them. Each
operation is rounded in the type of the coordinates, or in float32 if that has 16 bits: then the
coordinates are rounded once.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from ...declaration.errors import OpError
from ...sampling import grid_sample
from ..finding import NearMiss
from ..gain import pays_again
from ..graph import FLOATS, Graph
from ..programs import Program
from ..reading.affine import Dimension, Variable, along, number
from ..reading.coordinates import AXES, is_part, users_of
from ..reading.forms import CASTS, Exhausted, Form
from ..reading.reader import Reader, attributes_of
from ..reshapes import unknown_size
from ..versions import AI_ONNX

DOMAIN, OPERATOR = "onnx_ops", "ComputedGridSample"
NAME = "grid_sample"
MODES = {b"linear": b"bilinear", b"cubic": b"bicubic"}  # {newer name: older name}
DEEPEST = 100  # values behind a grid in which an unknown size is looked for


@dataclass(frozen=True)
class ComputedGrid:
    """A GridSample with coordinates x, y (and z) of these forms."""

    program: Program
    forms: Sequence[Form]
    attributes: dict[str, Any]
    operator: str = OPERATOR

    @property
    def sources(self) -> Collection[str]:
        return {self.program.node.input[0], *self.program.leaves(self.forms)}

    def replacement(self, graph: Graph, node: onnx.NodeProto) -> dict[str, Any]:
        """Return the arguments of `Graph.replace`. Raises NearMiss."""
        program = self.program
        image, grid = node.input
        narrow = graph.type(grid).elements
        values = []
        for form in self.forms:
            value = program.value(form)
            is_rounded = narrow not in CASTS or program.is_rounded(form, narrow)
            values.append(value if is_rounded else program.step(CASTS[narrow], value))
        self._check_gain(graph, grid)
        program.state_sizes((graph.type(grid).shape or ())[1:-1])
        inputs, settings = program.finished(values)
        inputs = [image, *inputs]
        return {
            "op_type": OPERATOR,
            "inputs": inputs,
            "domain": DOMAIN,
            **self.attributes,
            **settings,
        }

    def _check_gain(self, graph: Graph, grid: str) -> None:
        """Raise NearMiss unless it takes less time to compute the grid than to read one that is
        computed once.

        A single sampler always computes its grid.
        """
        leaves = self.program.leaves(self.forms)
        users = users_of(self.program.reader, grid)
        if users.is_read:
            raise NearMiss("its grid is read by other nodes, which need it in any case")
        steps = len(self.program.steps)
        own = _values_for(graph, grid, leaves)
        if users.samplers > 1 and not pays_again(graph, own, grid, users.samplers, steps):
            raise NearMiss(
                f"{users.samplers} samplers read its grid: it is faster to compute it once"
            )


def _values_for(graph: Graph, grid: str, leaves: Collection[str]) -> list[str]:
    """Return the values that nodes compute from leaves for a grid alone, and the grid."""
    own = [grid]
    uses = Counter[str]()
    for value in own:
        node = graph.producers.get(value)
        for operand in () if node is None else node.input:
            uses[operand] += 1
            is_own = uses[operand] == graph.users[operand] - graph.measured[operand]
            if is_own and operand not in leaves and graph.folded(operand) is None:
                own.append(operand)
    return own


def match(reader: Reader, name: str, form: Form) -> ComputedGrid | None:
    """Match a GridSample and the nodes that make its grid. Raises NearMiss."""
    graph = reader.graph
    node = graph.producers[name]
    if node.op_type != "GridSample" or len(node.input) != 2 or not graph.is_sound(node):
        return None
    attributes = attributes_of(node)
    try:
        grid_sample.ONNX.values(attributes)
    except OpError:  # the session will report it
        return None
    dimensions = _grid_dimensions(reader, node)
    if dimensions is None:
        return None
    grid = node.input[1]
    element_types = [graph.type(value).elements for value in node.input]
    if not FLOATS.issuperset(element_types):
        raise NearMiss("the types of its image and its grid are not known to be floats")
    if graph.folded(grid) is not None:
        raise NearMiss("the grid is constant: ONNX Runtime computes it once")
    assert isinstance(graph, Graph)  # to which a program adds nodes
    program = Program(reader, graph, node, element_types[1])
    pixel = tuple(
        along(Variable(axis, size))
        for axis, size in zip("n" + AXES[2 - len(dimensions) :], dimensions, strict=False)
    )
    try:
        indices = [(*pixel, number(k)) for k in range(len(dimensions) - 2)]
        forms = [program.reader.read(grid, index) for index in indices]
        if grid in program.leaves(forms):
            _explain(reader, grid)
            return None
    except Exhausted as reason:
        raise NearMiss(str(reason)) from None
    attributes = {key: MODES.get(value, value) for key, value in attributes.items()}
    return ComputedGrid(program, forms, attributes)


def _grid_dimensions(reader: Reader, node: onnx.NodeProto) -> tuple[Dimension, ...] | None:
    """Return the dimensions of a grid; None if they don't fit.

    Raises NearMiss if they should be known.
    """
    image, grid = node.input
    dimensions: tuple[Dimension, ...] | None = reader.graph.type(grid).shape
    maker = reader.graph.producers.get(grid)
    if maker is not None and (is_part(reader, maker) or maker.op_type == "DequantizeLinear"):
        if dimensions is None:
            raise NearMiss("the rank of its grid is not known")
        if dimensions and not isinstance(dimensions[-1], int):
            raise NearMiss("the number of its coordinates is not known")
    if dimensions is None or len(dimensions) not in (4, 5) or dimensions[-1] != len(dimensions) - 2:
        return None
    images = (reader.graph.type(image).shape or (None,))[0]
    differs = isinstance(images, int) and isinstance(dimensions[0], int) and images != dimensions[0]
    return None if differs else dimensions  # the session will report it


def _explain(reader: Reader, grid: str) -> None:
    """Raise NearMiss if the node that makes a grid looks like a part of what a program could
    compute.
    """
    graph = reader.graph
    maker = graph.producers.get(grid)
    if maker is None or maker.domain not in AI_ONNX:
        return
    quantizer = None
    if maker.op_type == "DequantizeLinear":
        quantizer = graph.producer(maker.input[0], "QuantizeLinear")
    source = None if quantizer is None else graph.producer(quantizer.input[0])
    if source is not None and is_part(reader, source):
        dtype = graph.type(maker.input[0]).dtype
        raise NearMiss(f"its coordinates are rounded to {dtype} before {maker.op_type} {grid}")
    if is_part(reader, maker) and maker.op_type != "DequantizeLinear":
        size = _unknown_size_behind(reader, grid)
        reason = f": {size} isn't known" if size else ", or not for certain"
        raise NearMiss(f"the effect of {maker.op_type} {grid} on coordinates is unknown{reason}")


def _unknown_size_behind(reader: Reader, name: str) -> str | None:
    """Return a text for the first unknown size of a value or its sources."""
    reached = [name]
    for value in reached:
        size = unknown_size(reader.graph, reader.graph.type(value).shape or ())
        if size:
            return size
        node = reader.graph.producers.get(value)
        if node is not None and is_part(reader, node) and len(reached) < DEEPEST:
            reached += [operand for operand in node.input if operand and operand not in reached]
    return None
