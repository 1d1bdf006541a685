"""Nodes of models and names of their values, including those in subgraphs."""

from collections import Counter, namedtuple
from copy import deepcopy

from ..registry import available, first_version

# A node that calls a local function, the enclosing function ("" for the graph), and {name: attribute} of the node.
Call = namedtuple("Call", "node owner function given")
GRAPH, GRAPHS = 5, 10  # AttributeProto's types; reading them there takes longer than all else of `subgraphs`


def declared(node, operators=None):
    """Return the declared operator of a node, or None.

    operators  the result of `registry.available`, by default without custom operators
    """
    return (available() if operators is None else operators).get((domain_of(node), node.op_type))


def domain_of(owner):
    """Return the domain of a node, a function or an import; "" also for its other name, ai.onnx."""
    return "" if owner.domain == "ai.onnx" else owner.domain


def imports(model):
    """Return {domain: version} of what a model imports."""
    return {domain_of(i): i.version for i in model.opset_import}


def in_its_versions(operators, model):
    """Return the operators in `registry.available` for the versions that a model imports.

    ONNX Runtime runs nodes of other versions.
    """
    imported = imports(model)
    return {
        key: operator
        for key, operator in operators.items()
        if not (operator.has_older and imported.get(operator.domain, 0) < operator.versions[0])
    }


def declared_nodes(model):
    """Yield (node, its operator) for the nodes of a model with a declared operator in the imported version."""
    operators = in_its_versions(available(), model)
    for node in model_nodes(model):
        if operator := declared(node, operators):
            yield node, operator


def model_nodes(model):
    """Yield the nodes of a model, of its functions, of the defaults of their attributes, and of all subgraphs."""
    defaults = (graph for function in model.functions for graph in graphs_of(function.attribute_proto))
    for owner in (model.graph, *model.functions, *defaults):
        yield from all_nodes(owner)


def all_nodes(owner):
    """Yield the nodes of a graph or function and of its subgraphs."""
    for node in owner.node:
        yield node
        for graph in subgraphs(node):
            yield from all_nodes(graph)


def inlined(model, operators=None):
    """Return a copy of a model with its local functions inlined, by onnx's inliner after three passes.

    operators  what `registry.available` returns, by default without custom operators

    Raises RuntimeError, and what onnx's inliner does.
    """
    import onnx.inliner  # here, because importing this package doesn't load onnx

    copy = deepcopy(model)
    _keep_operators(copy, operators or available())
    functions = {(f.domain, f.name, f.overload): f for f in copy.functions}
    calls = [Call(node, owner, key, {a.name: a for a in node.attribute})
             for owner, body in (("", copy.graph), *functions.items()) for node in all_nodes(body)
             if (key := (node.domain, node.op_type, node.overload)) in functions]  # fmt: skip
    _spell_defaults_out(functions, calls)
    once = called_once(functions, calls)
    for key, function in functions.items():
        _remove_types(function, key in once)
    # The inliner's argument must fit into a protobuf, and weights may not fit.
    for tensor in copy.graph.initializer:
        tensor.CopyFrom(onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims))
    flat = onnx.inliner.inline_local_functions(copy)
    for tensor, weights in zip(flat.graph.initializer, model.graph.initializer, strict=True):
        tensor.CopyFrom(weights)
    return flat


def _keep_operators(model, operators):
    """Remove functions with the name of an operator that sessions have, because sessions run the operator.

    The other functions get the model's imports. ONNX Runtime uses these, and onnx inlines no function with others.
    """
    from .builtin import first_builtin_version  # here, because sessions of most models don't need it

    versions = imports(model)
    for function in list(model.functions):
        key = domain_of(function), function.name
        first = first_version(operators[key]) if key in operators else first_builtin_version(key)
        if first and first <= versions.get(key[0], 0):
            model.functions.remove(function)
        else:
            for i in function.opset_import:
                i.version = versions.get(domain_of(i), i.version)


def _spell_defaults_out(functions, calls):
    """Write the defaults of attributes into calls that omit them, because onnx's inliner forgets defaults.

    Raises RuntimeError for a call that passes on an attribute that its own caller omits.
    """
    left_out = set()  # (function, its attribute) that some call omits, or passes on without a value

    def is_left_out(call, name):
        return name not in call.given or (call.owner, call.given[name].ref_attr_name) in left_out

    for _ in functions:  # a call may pass on an attribute that another one omits
        found = {(call.function, name) for call in calls for name in functions[call.function].attribute
                 if is_left_out(call, name)}  # fmt: skip
        if found == left_out:
            break
        left_out = found
    for call in calls:
        for a in functions[call.function].attribute_proto:
            if a.name not in call.given:
                call.node.attribute.append(a)
            elif is_left_out(call, a.name):
                where = f"{call.function[1]}'s attribute {a.name}"
                raise RuntimeError(f"the default of {where} is needed where a caller passes nothing on")


def called_once(functions, calls):
    """Return the functions that the graph calls in at most one way.

    Raises RuntimeError for a chain of more than 100 calls, and so for recursion: onnx before 1.22 overflows the stack.
    """
    ways, reached = Counter(), Counter([""])  # {function: number of ways to call it}, by as many calls as rounds
    for _ in range(102):
        if not reached:
            return {key for key in functions if ways[key] <= 1}
        ways += reached
        following = Counter()
        for call in calls:
            following[call.function] += reached[call.owner]
        reached = +following
    raise RuntimeError("functions are recursive, or call one another more than 100 deep")


def _remove_types(owner, keeps_elements, kept=0):
    """Remove the shapes and data types that a function states of its values.

    They may differ by call, but onnx's inliner keeps them.

    kept  number of unchanged inputs of a subgraph: the first two of a Loop, as ONNX Runtime requires their ranks
    """
    if not keeps_elements:
        del owner.value_info[:]
    values = (*owner.input[kept:], *owner.output) if hasattr(owner, "initializer") else ()
    for value in (*values, *owner.value_info):
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    for node in owner.node:
        for inner in subgraphs(node):
            _remove_types(inner, keeps_elements, 2 if node.op_type == "Loop" else 0)


def graphs_in(graph):
    """Yield a graph and all its subgraphs."""
    yield graph
    for node in all_nodes(graph):
        yield from subgraphs(node)


def subgraphs(node):
    """Yield the graphs among a node's attributes, which If, Loop and Scan have."""
    return graphs_of(node.attribute)


def graphs_of(attributes):
    """Yield the graphs among attributes."""
    for attribute in attributes:
        kind = attribute.type
        if kind == GRAPH:
            yield attribute.g
        elif kind == GRAPHS:
            yield from attribute.graphs


def own_names(graph):
    """Return the names of a graph's own values, without those of its subgraphs."""
    names = {value.name for value in (*graph.input, *graph.initializer)}
    return names | {name for node in graph.node for name in node.output if name}


def used_names(owner):
    """Yield the names of all values and nodes in a graph or function and its subgraphs."""
    if not hasattr(owner, "initializer"):
        yield from (*owner.input, *owner.output)
    else:
        yield from (value.name for value in (*owner.input, *owner.output, *owner.initializer))
        yield from (tensor.values.name for tensor in owner.sparse_initializer)
    yield from (value.name for value in owner.value_info)
    for node in owner.node:
        yield from (node.name, *node.input, *node.output)
        for inner in subgraphs(node):
            yield from used_names(inner)
