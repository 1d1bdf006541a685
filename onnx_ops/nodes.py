"""Nodes of models and names of their values, including those in subgraphs."""

from .operators import available


def declared(node, operators=None):
    """Return the declared operator of a node, or None.

    operators  what `operators.available` returns, by default without operators of one's own
    """
    operators = available() if operators is None else operators
    return operators.get(("" if node.domain == "ai.onnx" else node.domain, node.op_type))


def model_nodes(model):
    """Yield the nodes of a model, including those of its functions and of all subgraphs."""
    for owner in (model.graph, *model.functions):
        yield from all_nodes(owner)


def all_nodes(owner):
    """Yield the nodes of a graph or function and of its subgraphs."""
    for node in owner.node:
        yield node
        for graph in subgraphs(node):
            yield from all_nodes(graph)


def subgraphs(node):
    """Yield the graphs among a node's attributes, which If, Loop and Scan have."""
    for attribute in node.attribute:
        yield from [attribute.g] if attribute.type == attribute.GRAPH else attribute.graphs


def value_names(owner):
    """Yield the names of all values in a graph or function and its subgraphs."""
    if not hasattr(owner, "initializer"):
        yield from (*owner.input, *owner.output)
    else:
        yield from (value.name for value in (*owner.input, *owner.output, *owner.initializer))
        yield from (tensor.values.name for tensor in owner.sparse_initializer)
    yield from (value.name for value in owner.value_info)
    for node in owner.node:
        yield from (*node.input, *node.output)
        for inner in subgraphs(node):
            yield from value_names(inner)
