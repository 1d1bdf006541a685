"""A model for backend="extensions": its nodes as Python ops of onnxruntime-extensions.

These know no lists among their attributes, no absent attributes and no 16-bit floats. So a list becomes an input (an
empty one stands for "absent"), other attributes are spelled out, and 16-bit floats are cast to float32 and back: which
rounds the float32 result once, as the kernels themselves do.

    y = Col2Im(x, image_shape, block_shape, strides=[2, 2])
    y = ai.onnx.contrib.ai_onnx_Col2Im(x, image_shape, block_shape, dilations, pads, strides, run)

By `run`, a session tells its errors from those of others, see extensions.py. It is the constant [0, 0] in a model for
plain sessions, and an additional input of the graph in one for `onnx_ops.InferenceSession`.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

from .. import dtypes, plain
from ..attributes import KINDS
from ..errors import OpError, errors_of
from ..inference import inferred
from ..nodes import all_nodes, declared, in_its_versions, inlined, model_nodes, subgraphs, value_names
from ..operators import OPERATORS, available

if TYPE_CHECKING:
    from ..attributes import Attribute
    from ..declaration import Input, Operator

_Operators: TypeAlias = "Mapping[tuple[str, str], Operator]"  # what `operators.available` returns
RUN = "onnx_ops_run"  # the input `run` of a graph, unless the model has such a name
DOMAIN, VERSION = "ai.onnx.contrib", 1
RUN_SHAPE = [2]
SIXTEEN_BITS = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def op_type(operator: "Operator") -> str:
    """The operator's name in ai.onnx.contrib."""
    return f"{(operator.domain or 'ai.onnx').replace('.', '_')}_{operator.name}"


def lower(model: onnx.ModelProto, *, operators: Iterable[Any] = ()) -> onnx.ModelProto:
    """Copy an onnx.ModelProto, with Python ops of onnxruntime-extensions in place of declared operators.

    Everything else stays as it is, except that the copy states shapes that could be inferred only from the original
    operators; a model without such operators comes back equal. Subgraphs are lowered, too; local functions that contain
    such operators are inlined. Plain sessions run the result once `onnx_ops` has been imported and
    `onnxruntime_extensions.get_library_path()` is registered on their options. Raises OpError.

    operators  of one's own, in addition
    """
    return _lower(model, available(operators), for_session=False)[0]


def lower_for_session(model: ModelProto, operators: _Operators) -> tuple[ModelProto, str | None]:
    """Lower a model for `onnx_ops.InferenceSession`; returns the copy and the name of its additional graph input.

    The name is None if there was nothing to lower.

    operators  what `operators.available` returns
    """
    return _lower(model, operators, for_session=True)


def _with_functions_inlined(model: ModelProto, operators: _Operators) -> ModelProto:
    """Inline the local functions that contain our operators: their callers' attributes and types must be known here."""
    names: set[tuple[str, str]] = set()
    while more := {(f.domain, f.name) for f in model.functions if _contains_ours(f, names, operators)} - names:
        names |= more
    try:
        return inlined(model, names) if names else model
    except RuntimeError as error:
        rule = f"can't inline the functions that contain these operators: {error}"
        raise OpError("backend", "'extensions'", rule, "onnx_ops") from error


def _contains_ours(function: FunctionProto, names: set[tuple[str, str]], operators: _Operators) -> bool:
    """Whether a function contains an operator of ours, or calls one of the functions of these names."""
    return any(declared(node, operators) or (node.domain, node.op_type) in names for node in all_nodes(function))


def _lower(model: ModelProto, operators: _Operators, for_session: bool) -> tuple[ModelProto, str | None]:
    operators, lowered = in_its_versions(operators, model), onnx.ModelProto()
    lowered.CopyFrom(_with_functions_inlined(model, operators))
    if not any(declared(node, operators) for node in model_nodes(model)):
        return lowered, None
    used_names = {name for owner in (model.graph, *model.functions) for name in value_names(owner)}
    candidates = itertools.chain([RUN] if for_session else [], map("onnx_ops_{}".format, itertools.count()))
    names = (name for name in candidates if name not in used_names)
    run = next(names) if for_session else None
    twin = inferred(lowered, [o for o in operators.values() if o not in OPERATORS])
    _Lowering(operators, run, names).graph(lowered.graph, twin.graph, {})
    if all(i.domain != DOMAIN for i in lowered.opset_import):
        lowered.opset_import.append(helper.make_opsetid(DOMAIN, VERSION))
    if run:
        lowered.graph.input.append(helper.make_tensor_value_info(run, TensorProto.INT64, RUN_SHAPE))
    return lowered, run


def _types(owner: GraphProto, outer: Mapping[str, int]) -> dict[str, int]:
    """{value: element type} in a graph. `outer`: those of the graph around it, whose names it may hide."""
    hiding = dict.fromkeys((name for node in owner.node for name in node.output), TensorProto.UNDEFINED)
    values = [*owner.input, *owner.output, *owner.value_info]
    tensors = [*owner.initializer, *(tensor.values for tensor in owner.sparse_initializer)]
    declared_types = {value.name: value.type.tensor_type.elem_type for value in values}
    return {**outer, **hiding, **declared_types, **{tensor.name: tensor.data_type for tensor in tensors}}


def forget_sizes(subgraph: GraphProto) -> None:
    """Leave open the sizes of what our ops make in a lowered subgraph.

    ONNX Runtime allocates a branch's output in advance if it knows the sizes. An op that refuses returns an empty
    tensor, for which onnxruntime-extensions would then end the process.
    """
    made = {name for node in subgraph.node if node.domain == DOMAIN for name in node.output}
    for value in (*subgraph.output, *subgraph.value_info):
        for dimension in value.type.tensor_type.shape.dim if value.name in made else ():
            dimension.Clear()


class _Lowering:
    """Lowers a graph with its subgraphs."""

    def __init__(self, operators: _Operators, run: str | None, names: Iterator[str]) -> None:
        self.operators, self.run, self.names = operators, run, names

    def graph(self, owner: GraphProto, inferred: GraphProto, outer: Mapping[str, int]) -> None:
        """Lower `owner`. `inferred` is a copy of it with all known shapes and types; `outer` is as in `_types`."""
        types = _types(inferred, outer)
        nodes: list[NodeProto] = []
        inferred_values = {value.name: value for value in inferred.value_info}
        for node, twin in zip(owner.node, inferred.node, strict=True):
            for inner, inner_twin in zip(subgraphs(node), subgraphs(twin), strict=True):
                self.graph(inner, inner_twin, types)
                forget_sizes(inner)
            operator = declared(node, self.operators)
            nodes.extend(self.node(operator, node, types) if operator else [node])
            output = inferred_values.get(node.output[0]) if operator and node.output else None
            if output and all(v.name != output.name for v in owner.value_info):
                owner.value_info.append(output)
        del owner.node[:]
        owner.node.extend(nodes)

    def node(self, operator: "Operator", node: NodeProto, types: Mapping[str, int]) -> list[NodeProto]:
        """Lower a node of a declared operator; returns the nodes that replace it."""
        attributes = {a.name: a for a in node.attribute}
        with errors_of(operator, node.name):
            for name, of_caller in ((n, a.ref_attr_name) for n, a in attributes.items() if a.ref_attr_name):
                raise OpError(name, f"(what a caller passes as {of_caller})", "must be a value, outside of functions")
            values = operator.values({name: _value(a) for name, a in attributes.items()})
            nothing = [None] * len(operator.inputs)
            plain.infer(operator, values, nothing, nothing)  # refuses attributes that don't agree with each other
            if reason := unable(operator):
                raise OpError("backend", "'extensions'", reason)
        before, after, outputs = [], [], list(node.output)
        inputs = [*node.input, *[""] * (len(operator.inputs) - len(node.input))]
        input_types = {i.type: types.get(name) for i, name in zip(operator.inputs, inputs, strict=False) if name}
        present = [
            int(bool(name)) for i, name in zip(operator.inputs, inputs, strict=False) if i.presence == "optional"
        ]
        halves = {variable: type_ for variable, type_ in input_types.items() if type_ in SIXTEEN_BITS}
        for k, i in enumerate(operator.inputs[: len(inputs)]):
            if not inputs[k] and i.presence == "optional":
                first = dtypes.TABLE[operator.types[i.type][0]].onnx
                type_ = TensorProto.FLOAT if i.type in halves else input_types.get(i.type) or first
                empty = helper.make_tensor("nothing", type_, [0], [])
                before.append(helper.make_node("Constant", [], [next(self.names)], value=empty))
                inputs[k] = before[-1].output[0]
            elif i.type in halves and not i.values:
                before.append(helper.make_node("Cast", [inputs[k]], [next(self.names)], to=TensorProto.FLOAT))
                inputs[k] = before[-1].output[0]
        for k, o in enumerate(operator.outputs[: len(outputs)]):
            if o.type in halves and outputs[k]:
                after.append(helper.make_node("Cast", [next(self.names)], [outputs[k]], to=halves[o.type]))
                outputs[k] = after[-1].input[0]
        kept = []
        for each in operator.attributes:
            attribute = attributes.get(each.name)
            if each in lists_of(operator):
                before.append(_list_constant(next(self.names), attribute, each))
                inputs.append(before[-1].output[0])
            else:
                kept.append(attribute or helper.make_attribute(each.name, each.default))
        run = self.run
        if run is None or present:
            before.append(_constant(next(self.names), [0, 0, *present] if run is None else present))
            run = before[-1].output[0] if run is None else run
        if self.run and present:
            joined = next(self.names)
            before.append(helper.make_node("Concat", [self.run, before[-1].output[0]], [joined], axis=0))
            run = joined
        inputs.append(run)
        lowered = helper.make_node(op_type(operator), inputs, outputs, node.name, node.doc_string, DOMAIN)
        lowered.attribute.extend(kept)
        return [*before, lowered, *after]


def _value(attribute: AttributeProto) -> Any:
    """The value of an attribute, with strings decoded where they are text."""
    value = helper.get_attribute_value(attribute)
    with suppress(UnicodeDecodeError):
        if attribute.type == AttributeProto.STRING:
            return value.decode()
        if attribute.type == AttributeProto.STRINGS:
            return [text.decode() for text in value]
    return value


def _constant(name: str, values: Sequence[int]) -> NodeProto:
    value = helper.make_tensor(name, TensorProto.INT64, [len(values)], values)
    return helper.make_node("Constant", [], [name], value=value)


def _list_constant(name: str, attribute: AttributeProto | None, declared: "Attribute") -> NodeProto:
    """Make a Constant node for a list attribute."""
    values: Any = declared.default or [] if attribute is None else attribute.ints or attribute.floats
    kind = TensorProto.INT64 if declared.kind == "ints" else TensorProto.DOUBLE
    return helper.make_node("Constant", [], [name], value=helper.make_tensor(name, kind, [len(values)], values))


def lists_of(operator: "Operator") -> "list[Attribute]":
    """The attributes that are lists, which a Python op gets as inputs."""
    return [a for a in operator.attributes if KINDS[a.kind].is_list]


def optional_inputs(operator: "Operator") -> "list[Input]":
    return [i for i in operator.inputs if i.presence == "optional"]


def unable(operator: "Operator") -> str | None:
    """Why an operator can't be a Python op of onnxruntime-extensions, or None."""
    if any(i.presence == "variadic" for i in operator.inputs):
        return "has no variadic inputs"
    if any(a.kind == "tensor" for a in operator.attributes):
        return "has no attributes that are tensors"
    if any(a.default is None and not a.required and not KINDS[a.kind].is_list for a in operator.attributes):
        return "has no attributes that may be None"
    return None
