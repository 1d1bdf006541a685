"""A model's nodes, those in subgraphs included."""

from .operators import OPERATORS

_DECLARED = {(operator.domain, operator.name): operator for operator in OPERATORS}


def declared(node):
    """The Operator that a node is one of, or None."""
    return _DECLARED.get(("" if node.domain == "ai.onnx" else node.domain, node.op_type))


def all_nodes(owner):
    """The nodes of a graph or function and of its subgraphs."""
    for node in owner.node:
        yield node
        for graph in subgraphs(node):
            yield from all_nodes(graph)


def subgraphs(node):
    """The graphs among a node's attributes: of If, Loop, Scan."""
    for attribute in node.attribute:
        yield from [attribute.g] if attribute.type == attribute.GRAPH else attribute.graphs
