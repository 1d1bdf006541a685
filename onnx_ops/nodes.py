"""A model's nodes and the names of its values, those in subgraphs included."""

from .operators import known


def declared(node, operators=None):
    """The operator that a node is one of, or None.

    operators  what `operators.known` returns, by default without operators of one's own
    """
    found = known() if operators is None else operators
    return found.get(("" if node.domain == "ai.onnx" else node.domain, node.op_type))


def model_nodes(model):
    """The nodes of a model, those of its functions and of all subgraphs included."""
    for owner in (model.graph, *model.functions):
        yield from all_nodes(owner)


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


def value_names(owner):
    """The names of all values in a graph or function and its subgraphs."""
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
