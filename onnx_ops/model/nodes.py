"""Nodes of models and names of their values, including those in subgraphs."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from typing import TYPE_CHECKING, NamedTuple

from ..registry import available, first_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import onnx

    from ..declaration.operator import Operator
    from ..registry import Key, Operators
    from .types import Caller, FunctionKey, Owner


class FunctionCall(NamedTuple):
    """A node that calls a local function."""

    node: onnx.NodeProto
    function: FunctionKey
    attributes: dict[str, onnx.AttributeProto]  # the node's attributes, by their names


# Times the nodes and bytes of a model, without its weights, that it may have when inlined.
MOST = 16
FREE_NODES = 2**13  # that it may have beyond that
FREE_BYTES = 2**20  # likewise
# AttributeProto's types; reading them there takes longer than all else of `subgraphs`.
GRAPH, GRAPHS = 5, 10


def declared(node: onnx.NodeProto, operators: Operators | None = None) -> Operator | None:
    """Return the declared operator of a node, or None.

    operators  the result of `registry.available`, by default without custom operators
    """
    return (available() if operators is None else operators).get((domain_of(node), node.op_type))


def domain_of(owner: onnx.NodeProto | onnx.FunctionProto | onnx.OperatorSetIdProto) -> str:
    """Return the domain of a node, a function or an import; "" also for its other name, ai.onnx."""
    return "" if owner.domain == "ai.onnx" else owner.domain


def imports(model: onnx.ModelProto) -> dict[str, int]:
    """Return {domain: version} of what a model imports."""
    return {domain_of(i): i.version for i in model.opset_import}


def in_its_versions(operators: Operators, model: onnx.ModelProto) -> dict[Key, Operator]:
    """Return the operators in `registry.available` for the versions that a model imports.

    ONNX Runtime runs nodes of other versions.
    """
    imported = imports(model)
    return {
        key: operator
        for key, operator in operators.items()
        if not (operator.has_older and imported.get(operator.domain, 0) < operator.versions[0])
    }


def declared_nodes(model: onnx.ModelProto) -> Iterator[tuple[onnx.NodeProto, Operator]]:
    """Yield (node, its operator) for the nodes of a model with a declared operator.

    The imported version of the domain must have it.
    """
    operators = in_its_versions(available(), model)
    for node in model_nodes(model):
        if operator := declared(node, operators):
            yield node, operator


def model_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a model, its functions, defaults of attributes, and subgraphs."""
    defaults = (
        graph for function in model.functions for graph in graphs_of(function.attribute_proto)
    )
    for owner in (model.graph, *model.functions, *defaults):
        yield from all_nodes(owner)


def all_nodes(owner: Owner) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph or function and of its subgraphs."""
    for node in owner.node:
        yield node
        for graph in subgraphs(node):
            yield from all_nodes(graph)


def inlined(model: onnx.ModelProto, operators: Operators | None = None) -> onnx.ModelProto:
    """Return a copy of a model with its local functions inlined.

    onnx's inliner does it, after three passes.

    operators  what `registry.available` returns, by default without custom operators

    Raises RuntimeError, also for functions that call one another so often that the copy would be
    large.
    """
    import onnx.inliner  # here, because importing this package doesn't load onnx
    from google.protobuf.message import Error

    copy = deepcopy(model)
    _keep_operators(copy, operators or available())
    # The inliner's argument must fit into a protobuf, and weights may not fit.
    for tensor in copy.graph.initializer:
        tensor.CopyFrom(
            onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        )
    functions: dict[Caller, onnx.FunctionProto] = {
        (f.domain, f.name, f.overload): f for f in copy.functions
    }
    bodies: dict[Caller, Owner] = {"": copy.graph, **functions}
    nodes = {owner: list(all_nodes(body)) for owner, body in bodies.items()}
    calls = {
        owner: [
            FunctionCall(node, key, {a.name: a for a in node.attribute})
            for node in nodes[owner]
            if (key := (node.domain, node.op_type, node.overload)) in functions
        ]
        for owner in bodies
    }
    paths = _call_paths(calls)
    counts = {owner: len(nodes[owner]) for owner in bodies}
    lengths = {owner: body.ByteSize() for owner, body in bodies.items()}
    limit = FREE_BYTES + MOST * sum(lengths.values())
    # Nodes of functions get copies of what calls pass on, or of defaults.
    given = [a for function in copy.functions for a in function.attribute_proto]
    given += [call.node for owner in calls for call in calls[owner]]
    largest = max((value.ByteSize() for value in given), default=0)
    for owner in functions:
        copies = [a for node in nodes[owner] for a in node.attribute if a.ref_attr_name]
        lengths[owner] += len(copies) * largest
    _check_growth(paths, counts, FREE_NODES + MOST * sum(counts.values()))
    _check_growth(paths, lengths, limit)
    _spell_defaults_out(functions, calls, paths)
    for caller, function in functions.items():
        _remove_types(function, paths[caller] <= 1)
    try:
        flat = onnx.inliner.inline_local_functions(copy)
    # Protobuf, for example, refuses deep subgraphs.
    except (Error, onnx.checker.ValidationError) as error:
        raise RuntimeError(str(error)) from error
    for tensor, weights in zip(flat.graph.initializer, model.graph.initializer, strict=True):
        tensor.CopyFrom(weights)
    return flat


def _keep_operators(model: onnx.ModelProto, operators: Operators) -> None:
    """Remove functions with the name of an operator that sessions have, which sessions run.

    The other functions get the model's imports. ONNX Runtime uses these, and onnx inlines no
    function with others.
    """
    # Here, because sessions of most models don't need it.
    from .builtin import first_builtin_version

    versions = imports(model)
    for k, function in reversed([*enumerate(model.functions)]):
        key = domain_of(function), function.name
        first = first_version(operators[key]) if key in operators else first_builtin_version(key)
        if first and first <= versions.get(key[0], 0):
            del model.functions[k]  # remove() would compare it with all before it
        else:
            for i in function.opset_import:
                i.version = versions.get(domain_of(i), i.version)


def _call_paths(calls: Mapping[Caller, Iterable[FunctionCall]]) -> Counter[Caller]:
    """Return {function: number of ways to call it from the graph, ""}.

    Callers come before the functions that they call.

    Raises RuntimeError for a chain of more than 100 calls, and so for recursion: onnx before 1.22
    overflows the stack.
    """
    paths: Counter[Caller] = Counter()
    reached: Counter[Caller] = Counter([""])  # by as many calls as rounds
    for _ in range(102):
        if not reached:
            return paths
        following: Counter[Caller] = Counter()
        for owner, count in reached.items():
            paths[owner] = paths.pop(owner, 0) + count  # behind the callers of this round
            for call in calls[owner]:
                following[call.function] += count
        reached = following
    raise RuntimeError("functions are recursive, or call one another more than 100 deep")


def _check_growth(paths: Counter[Caller], sizes: dict[Caller, int], limit: int) -> None:
    """Raise RuntimeError if a model would be too large when inlined.

    sizes  {the graph "" or a function: number of its nodes or bytes, at each call}
    """
    if sum(paths[owner] * sizes[owner] for owner in sizes) > limit:
        raise RuntimeError(
            f"inlined, the functions are more than {MOST} times as large as the model"
        )


def _spell_defaults_out(
    functions: Mapping[Caller, onnx.FunctionProto],
    calls: Mapping[Caller, Iterable[FunctionCall]],
    owners: Iterable[Caller],
) -> None:
    """Write the defaults of attributes into calls that omit them.

    onnx's inliner forgets defaults.

    calls   {function: the calls in it}
    owners  callers before the functions that they call

    Raises RuntimeError for a call that passes on an attribute that its own caller omits.
    """
    count: Counter[Caller] = Counter()  # calls of a function
    # Calls that give a (function, attribute) a value.
    stated: Counter[tuple[Caller, str]] = Counter()
    for owner in owners:
        for call in calls[owner]:
            count[call.function] += 1
            defaults = {a.name: a for a in functions[call.function].attribute_proto}
            for name, a in (defaults | call.attributes).items():
                if name not in call.attributes:
                    call.node.attribute.append(a)
                elif a.ref_attr_name and stated[owner, a.ref_attr_name] < count[owner]:
                    if name in defaults:
                        where = f"{call.function[1]}'s attribute {name}"
                        raise RuntimeError(
                            f"the default of {where} is needed where a caller passes nothing on"
                        )
                    continue
                stated[call.function, name] += 1


def _remove_types(owner: Owner, keeps_elements: bool, kept: int = 0) -> None:
    """Remove the shapes and data types that a function states of its values.

    They may differ by call, but onnx's inliner keeps them.

    kept  number of unchanged inputs of a subgraph: the first two of a Loop, as ONNX Runtime
          requires their ranks
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


def graphs_in(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and all its subgraphs."""
    yield graph
    for node in all_nodes(graph):
        yield from subgraphs(node)


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs among a node's attributes, which If, Loop and Scan have."""
    return graphs_of(node.attribute)


def graphs_of(attributes: Iterable[onnx.AttributeProto]) -> Iterator[onnx.GraphProto]:
    """Yield the graphs among attributes."""
    for attribute in attributes:
        attribute_type = attribute.type
        if attribute_type == GRAPH:
            yield attribute.g
        elif attribute_type == GRAPHS:
            yield from attribute.graphs


def own_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names of a graph's own values, without those of its subgraphs."""
    names = {value.name for value in (*graph.input, *graph.initializer)}
    return names | {name for node in graph.node for name in node.output if name}


def used_names(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the names of all values and nodes in a graph and its subgraphs."""
    for inner in graphs_in(graph):
        yield from (
            value.name
            for value in (*inner.input, *inner.output, *inner.initializer, *inner.value_info)
        )
        yield from (tensor.values.name for tensor in inner.sparse_initializer)
        for node in inner.node:
            yield from (node.name, *node.input, *node.output)
