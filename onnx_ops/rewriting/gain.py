"""Whether what is found pays: what nodes cost per element, as measured on one thread of ONNX
Runtime's kernels.
"""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import onnx

from .reading.reader import attributes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .reading.reader import GraphView

# Nanoseconds for each element of the output, of those that copy elements; others cost nothing. A
# Gather along the last axis copies element by element, one along another axis copies rows.
COSTS = {
    "Concat": 0.3, "Conv": 3.0, "Expand": 0.15, "Gather": 3.0, "GatherElements": 1.0,
    "GatherND": 3.0,
    "Im2Col": 0.15, "Pad": 0.3, "ScatterElements": 1.0, "ScatterND": 1.0, "Slice": 0.3,
    "Split": 0.3,
    "Tile": 0.3, "Transpose": 0.35,
}  # fmt: skip
ROWS = 0.3  # a Gather along another axis
FLIP = 0.7  # what a Slice with a negative step costs more

# Nanoseconds for each coordinate of a grid. Per sampler, a program costs more than reading a stored
# grid.
ARITHMETIC = 0.1  # of a node
REDUCTIONS = {"AffineGrid": 3.0, "ReduceSum": 50.0}
# Seconds for each element of what nodes compute: of ONNX Runtime, and of references, which NumPy
# computes.
PER_ELEMENT, PER_PRODUCT = 5e-9, 5e-10
PER_SAMPLE = {
    "ComputedGridSample": 1e-7,
    "DeformConv": 1e-6,
    "GridSample": 1e-7,
    "MultiScaleDeformableAttention": 1e-6,
    "RoiAlign": 1.5e-6,
}
# That an element adds up, by the shape of the weights.
PRODUCTS: "dict[str, Callable[[Sequence[int]], float]]" = {
    "Conv": lambda shape: math.prod(shape[1:]),
    "ConvTranspose": lambda shape: math.prod(shape) / shape[1],
    "Einsum": max,
    "Gemm": max,
    "MatMul": lambda shape: shape[-2:][0],
}
CUBIC = 5  # times the seconds of a sample
FREE = "Constant", "Flatten", "Identity", "Reshape", "Shape", "Squeeze", "Unsqueeze"
PROGRAM, STEP = 0.45, 0.01


def pays_again(
    graph: "GraphView", values: Iterable[str], grid: str, samplers: int, steps: int
) -> bool:
    """Return whether samplers of one grid save time if each of them computes it, by so many steps.

    values  those that nodes compute for the grid alone
    """
    saved = 0.0
    for value in values:
        node = graph.producers.get(value)
        if node is not None and node.op_type not in FREE:
            cost = REDUCTIONS.get(node.op_type) or COSTS.get(node.op_type, ARITHMETIC)
            saved += cost * share(graph, value, grid)
    return saved > samplers * (PROGRAM + STEP * steps)


def seconds_of(node: onnx.NodeProto, count: float, products: float = 0) -> float:
    """Return an estimate of the time that a node takes for so many elements, each of which adds up
    some products.
    """
    seconds = PER_SAMPLE.get(node.op_type, PER_ELEMENT) + PER_PRODUCT * products
    if any(a.name == "mode" and b"cubic" in a.s for a in node.attribute):
        seconds *= CUBIC
    return seconds * count


def cost_of(graph: "GraphView", values: Iterable[str], name: str) -> float:
    """Return what the nodes that make values cost, in nanoseconds for each element of a value."""
    return sum(_cost(graph, graph.producers[value], value) * share(graph, value, name)
               for value in values if value in graph.producers)  # fmt: skip


def share(graph: "GraphView", value: str, name: str) -> float:
    """Return how many elements a value has for each one of another; 1 if that isn't known."""
    first = graph.type(value).count
    second = graph.type(name).count
    return first / second if 0 < first * second < math.inf else 1.0


def _cost(graph: "GraphView", node: onnx.NodeProto, value: str) -> float:
    if node.op_type == "Gather":
        dimensions = graph.type(node.input[0]).shape or ()
        axis = attributes_of(node).get("axis", 0)
        return COSTS["Gather"] if axis in (-1, len(dimensions) - 1) else ROWS
    return COSTS.get(node.op_type, 0.0)
