"""The types and shapes of a graph's values, from its inputs and constants on: sizes are ints or
`Size`s.

They are worked out when a pattern asks for them. What other tools have written into a model about
the values between is not believed, since the model may have been changed since, and names that
tools make up for sizes mean nothing. Where there is no rule (shape_rules.py), onnx's own inference
is asked about the one node (inference.py). Only where that doesn't know a rank, either, it is the
one that the model states.
"""

from typing import TYPE_CHECKING

import onnx

from ..model.nodes import domain_of, subgraphs
from .finding import tried
from .inference import by_declaration, by_onnx, by_onnx_runtime
from .reading.reader import attributes_of
from .shape_rules import RULES, by_rule
from .sizes import named, size_of
from .tensor_types import UNKNOWN, Inferred, Misread, Type

if TYPE_CHECKING:
    from .inference import TypedGraph


def type_of(graph: "TypedGraph", name: str) -> Type:
    """Return the Type of a value of the graph, or of one around it."""
    pending = [name]
    while pending:  # what a value is computed from comes first: chains of nodes may be long
        last = pending.pop()
        home = graph.home(last) or graph
        if last in home.types:
            continue
        node = home.producers.get(last)
        # What the graphs inside of a node read comes first, too.
        inputs = () if node is None else graph.model.reads(node)
        unknown = [
            operand for operand in inputs if operand not in (graph.home(operand) or graph).types
        ]
        if unknown and last not in home.visited:
            home.visited.add(last)
            pending += [last, *unknown]
            continue
        if unknown:  # a value that is computed from itself
            home.types[last] = UNKNOWN
            continue
        for output, its_type in _outputs(home, node, last).items():
            home.types.setdefault(output, its_type)
    return (graph.home(name) or graph).types[name]


def _outputs(graph: "TypedGraph", node: onnx.NodeProto | None, name: str) -> dict[str, Type]:
    """Return {value: Type} for a value, and for what else its node makes."""
    tensor = graph.initializers.get(name)
    if tensor is not None and name not in graph.inputs:
        return {name: Type(tensor.data_type, tuple(tensor.dims))}
    if node is None or name in graph.inputs:
        return {name: _completed(graph, name, tried(_of_body, graph, name) or UNKNOWN)}
    inferred = _inferred(graph, node)
    return {
        output: _completed(graph, output, inferred.get(output, UNKNOWN))
        for output in node.output
        if output
    }


def _inferred(graph: "TypedGraph", node: onnx.NodeProto) -> dict[str, Inferred]:
    """Return {output: what is inferred of its type}."""
    inputs = [type_of(graph, operand) if operand else None for operand in node.input]
    key = domain_of(node), node.op_type
    if any(subgraphs(node)):
        return _by_subgraphs(graph, node)
    if any(a.ref_attr_name for a in node.attribute):
        return {}
    rule = RULES.get(key[0] or "ai.onnx", {}).get(key[1])
    if rule and key not in graph.model.custom:
        its_type = tried(by_rule, rule, graph, node, inputs)
        return {node.output[0]: its_type} if its_type else by_onnx_runtime(node, inputs, Misread)
    if key in graph.model.operators:
        return tried(by_declaration, graph, node, inputs) or {}
    return tried(by_onnx, graph, node, inputs) or by_onnx_runtime(node, inputs)


def _completed(graph: "TypedGraph", name: str, inferred: Inferred) -> Type:
    """Return the type of a value with what isn't known: unknown sizes get names, an unknown rank is
    as stated.
    """
    stated = _stated(graph, name)
    elements = inferred.elements or stated.elements
    dimensions = inferred.shape
    if dimensions is None and not isinstance(inferred, Misread):
        dimensions = stated.shape
    if dimensions is None:
        return Type(elements)
    # CenterCropPad makes 0 of less than 0. No tensor is as large as more: products only grow long.
    return Type(elements, tuple(
        size_of(name, k) if d is None or (isinstance(d, int) and not 0 <= d < 2**63) else d for k,
        d in enumerate(dimensions)
    ))  # fmt: skip


def _stated(graph: "TypedGraph", name: str) -> Type:
    """Return the type that the model states.

    Of its sizes only those of the model's inputs must hold.
    """
    stated = graph.stated.get(name)
    if stated is None:
        return UNKNOWN
    # A Loop's body may get other sizes in each turn.
    must_hold = name in graph.inputs and graph.outer is None
    dimensions = None
    holds_many = False
    while (variant := stated.WhichOneof("value")) in ("sequence_type", "optional_type"):
        stated = getattr(stated, variant).elem_type
        holds_many = True
    if stated.tensor_type.HasField("shape") and not holds_many:
        dimensions = tuple(
            d.dim_value if must_hold and d.HasField("dim_value") and d.dim_value >= 0
            else named(d.dim_param) if must_hold and d.dim_param
            else size_of(name, k)
            for k, d in enumerate(stated.tensor_type.shape.dim)
        )  # fmt: skip
    return Type(stated.tensor_type.elem_type, dimensions)


def _of_body(graph: "TypedGraph", name: str) -> Inferred:
    """Return the type of an input of a Loop's or Scan's body as far as it needn't be stated there.

    It has the elements that are passed and, of a Scan, the rank, which in a Loop may be another one
    in each turn.
    """
    outer = graph.outer
    node = graph.node
    if outer is None or node is None or name not in graph.inputs:
        return UNKNOWN
    names = [value.name for value in graph.owner.input]
    if len(node.input) > len(names):  # a Scan before version 9 has one more
        return UNKNOWN
    outside = dict(zip(names, node.input, strict=False)).get(name)
    passed = type_of(outer, outside) if outside else UNKNOWN
    if node.op_type != "Scan" or passed.shape is None:
        return Inferred(passed.elements)
    is_scanned = names.index(name) >= len(names) - attributes_of(node)["num_scan_inputs"]
    return Inferred(passed.elements, (None,) * (len(passed.shape) - is_scanned))


def _by_subgraphs(graph: "TypedGraph", node: onnx.NodeProto) -> dict[str, Inferred]:
    """Return {output: type} with the element types, which those of the last outputs of all
    subgraphs are.
    """
    columns = [
        [type_of(inner, value.name).elements for value in inner.owner.output]
        for inner in graph.inside(node)
    ]
    count = len(node.output)  # a Loop's body has a condition before these
    rows = zip(*(column[-count:] for column in columns), strict=False)
    return {
        name: Inferred(row[0])
        for name, row in zip(node.output, rows, strict=False)
        if len({*row}) == 1
    }
