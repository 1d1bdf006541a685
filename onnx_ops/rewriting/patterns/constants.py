"""Nodes of our operators that compute a constant, such as the divisor in `fold(unfold(x)) / fold(unfold(ones))`.

When ONNX Runtime makes a session it computes constants by its own kernels only, and would run these nodes, and all
that follows from them, again and again.
"""

from onnx import numpy_helper

from ..graph import AI_ONNX, OURS

NAME = "constant"
NEEDS = tuple((name,) for name in OURS)  # a graph needs one of these sets of types of nodes
LAST, DOMAINS = OURS, AI_ONNX  # types and domains of the node that ends the pattern


def match(graph, node):
    """Return the arguments of `Graph.replace` for a node whose inputs are constant; None for others."""
    if not graph.model.runs_nodes:
        return {"op_type": "Constant", "inputs": []} if graph.is_constant(node.output[0]) else None
    value = graph.folded(node.output[0])
    if value is None or value.nbytes > graph.model.room:
        return None
    graph.model.room -= value.nbytes
    return {"op_type": "Constant", "inputs": [], "value": numpy_helper.from_array(value)}
