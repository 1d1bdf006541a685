"""Nodes of our operators that compute a constant, such as the divisor in
`fold(unfold(x)) / fold(unfold(ones))`.

When ONNX Runtime makes a session it computes constants by its own kernels only, and would run these
nodes, and all that follows from them, again and again.
"""

import onnx
from onnx import numpy_helper

from ..finding import NOT_RUN, Finding
from ..folding import OURS
from ..graph import Graph
from ..versions import AI_ONNX

NAME = "constant"


def fold_constants(graph: Graph) -> list[Finding]:
    """Replace nodes of our operators with constant inputs by constants, and return the findings."""
    findings = []
    for node in [*graph.owner.node]:
        is_ours = node.op_type in OURS and node.domain in AI_ONNX and node.output
        is_kept = is_ours and graph.producers.get(node.output[0]) is node
        if is_kept and graph.is_sound(node):
            title = node.name or node.output[0]
            if _fold(graph, node):
                untried = None if graph.model.runs_nodes else NOT_RUN
                findings.append(Finding(NAME, graph.title, title, "Constant", untried=untried))
    return findings


def _fold(graph: Graph, node: onnx.NodeProto) -> bool:
    """Make a node a Constant if its inputs are constant, and return whether they are."""
    if not graph.model.runs_nodes:
        if graph.is_constant(node.output[0]):
            graph.replace(node, "Constant", [])
            return True
        return False
    value = graph.folded(node.output[0])
    if value is None or value.nbytes > graph.model.room:
        return False
    graph.model.room -= value.nbytes
    graph.replace(node, "Constant", [], value=numpy_helper.from_array(value))
    return True
