"""Rewrite a model for backend="extensions": its nodes become Python ops of onnxruntime-extensions.

Such ops support neither list attributes nor absent attributes nor 16-bit floats. So a list becomes
an input, which is empty for an absent list. Defaults of other attributes are written out. 16-bit
floats are cast to float32 and back, which rounds the float32 result once, as the kernels do.

    y = Col2Im(x, image_shape, block_shape, strides=[2, 2])
    z = ai.onnx.contrib.ai_onnx_Col2Im(x, image_shape, block_shape, dilations, pads, strides, run)
    y = Reshape(z, Shape(z))

An absent optional input becomes an empty tensor, which the attribute PRESENT marks.

The input `run` identifies the session of an error, see extensions.py. It is the constant [0, 0] in
a model for plain sessions, and an additional graph input in a model for
`onnx_ops.InferenceSession`.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from copy import deepcopy
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from onnx import TensorProto, helper

from ..declaration import dtypes, plain
from ..declaration.attributes import KINDS
from ..declaration.errors import OpError, as_text, errors_of, escaped
from ..model.external_data import opened
from ..model.files import EXTENSIONS, REPLACING, lowered_name
from ..model.nodes import declared, in_its_versions, inlined, model_nodes, subgraphs, used_names
from ..model.schemas import node_attribute, register_schemas
from ..registry import KEYS, available, is_built_in
from ..rewriting.graph import Graph
from ..rewriting.models import Model

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    import onnx

    from ..declaration.attributes import AttributeValues
    from ..declaration.operator import Input, Operator
    from ..model.types import Array, PathLike, Source
    from ..registry import Declared, Operators
    from .types import Lowered


RUN = "onnx_ops_run"  # the input `run` of a graph, unless the model has such a name
RUN_SHAPE = [2]
# The attribute with a letter for each optional input: 0 if it is absent, else 1.
PRESENT = "onnx_ops_present"
DOMAIN, VERSION = EXTENSIONS, 1


def lower(model: Source, *, operators: Iterable[Declared] = ()) -> onnx.ModelProto:
    """Return a copy of a model with Python operators of onnxruntime-extensions.

    They replace the operators of this package, and run the same machine code,
    on copies of the tensors. A plain session runs the result after `import
    onnx_ops`, with `onnxruntime_extensions.get_library_path()` registered on
    its options.

    The rest of the model stays as it is, with two exceptions: shapes are stated
    that only the original operators imply, and local functions are inlined.
    Subgraphs are lowered, too. A model without these operators comes back
    equal.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
        The model, which is not changed. Its external data are not loaded.
    operators : iterable of custom operators
        Custom operators to lower, too.

    Returns
    -------
    onnx.ModelProto
        The lowered copy.

    Raises
    ------
    OpError
        An attribute is wrong, an operator can't be one of
        onnxruntime-extensions, or the model is in ONNX Runtime's own format.

    Examples
    --------
    >>> lowered = onnx_ops.lower("model.onnx")
    >>> [node.op_type for node in lowered.graph.node if node.domain == "ai.onnx.contrib"]
    ['ai_onnx_GridSample']
    """
    proto, path = opened(model)
    lowered, _ = lower_for_session(proto, available(operators), path, has_run_input=False)
    return lowered


def lower_for_session(
    model: onnx.ModelProto,
    operators: Operators,
    origin: PathLike | None = None,
    has_run_input: bool = True,
) -> Lowered:
    """Lower a model for `onnx_ops.InferenceSession`.

    Returns the copy and the name of its additional graph input.

    The name is None if there is nothing to lower.

    operators      the result of `registry.available`
    origin         the model's file or the folder of its external data, or None if unknown
    has_run_input  whether there is such an input
    """
    try:
        return _lowered(model, in_its_versions(operators, model), origin, has_run_input)
    except UnicodeDecodeError as error:  # protobuf reads such names, and writes none
        name = bytes(error.object)
        raise OpError(
            "name", repr(name), "must be UTF-8 in a model that is lowered", "onnx_ops"
        ) from error


def _lowered(
    model: onnx.ModelProto, operators: Operators, origin: PathLike | None, has_run_input: bool
) -> Lowered:
    """Lower a model as `lower_for_session`, for the operators of the model's versions."""
    lowered = deepcopy(model)
    if not any(declared(node, operators) for node in model_nodes(model)):
        return lowered, None
    if model.functions:  # their callers' attributes and types must be known here
        try:
            lowered = inlined(model, operators=operators)
        except RuntimeError as error:
            rule = f"can't inline the model's functions: {escaped(str(error))}"
            raise OpError("backend", "'extensions'", rule, "onnx_ops") from error
    used = set(used_names(lowered.graph))
    candidates = itertools.chain(
        [RUN] if has_run_input else [], map("onnx_ops_{}".format, itertools.count())
    )
    names = (name for name in candidates if name not in used)
    run = next(names) if has_run_input else None
    register_schemas(operators.values())
    original = deepcopy(lowered)
    typed = Graph(Model(original, origin, operators), original.graph, "main")
    _Lowering(operators, run, names).graph(lowered.graph, typed)
    if all(i.domain != DOMAIN for i in lowered.opset_import):
        lowered.opset_import.append(helper.make_opsetid(DOMAIN, VERSION))
    if run:
        lowered.graph.input.append(helper.make_tensor_value_info(run, TensorProto.INT64, RUN_SHAPE))
    return lowered, run


class _Lowering(NamedTuple):
    """Lowers a graph with its subgraphs.

    run    the name of the graph's input `run`, or None
    names  an iterator over new names
    """

    operators: Operators
    run: str | None
    names: Iterator[str]

    def graph(self, owner: onnx.GraphProto, graph: Graph) -> None:
        """Lower `owner`, a copy of the graph of `graph`, which has its types."""
        nodes: list[onnx.NodeProto] = []
        stated = {value.name: value.type for value in (*owner.value_info, *owner.output)}
        for node, original in zip(owner.node, graph.owner.node, strict=True):
            for inner, original_inner in zip(subgraphs(node), graph.inside(original), strict=True):
                self.graph(inner, original_inner)
            operator = declared(node, self.operators)
            if not operator:
                if node.op_type in RESHAPES:
                    # ONNX Runtime names shapes after nodes that it fuses.
                    node.name = node.name or next(self.names)
                nodes.append(node)
                continue
            for name in node.output:
                its_type = graph.type(name)
                if not its_type.elements:
                    continue
                info = helper.make_tensor_value_info(name, its_type.elements, its_type.dimensions)
                if name not in stated:
                    owner.value_info.append(info)
                elif graph.outer and not stated[name].tensor_type.HasField("shape"):
                    # A Scan asks for the ranks of its body's outputs.
                    stated[name].CopyFrom(info.type)
            nodes += self.node(operator, node, graph)
        del owner.node[:]
        owner.node.extend(nodes)

    def node(self, operator: Operator, node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
        """Lower a node of a declared operator; returns the nodes that replace it."""
        values = checked_values(operator, node)
        inputs = operator.pairs(operator.padded(node.input))
        elements = {
            i.type: dtypes.NAMES.get(graph.type(name).elements, "") for i, name in inputs if name
        }
        lowering = _NodeLowering(
            operator, node, graph, self.names, values, inputs, elements, [], []
        )
        return lowering.nodes(self.run)


class _NodeLowering(NamedTuple):
    """Lowers a node of a declared operator.

    graph     the graph of the node, with its types
    names     an iterator over new names
    values    of the attributes
    inputs    (declared input, its name; "" for an absent one) of each
    elements  {type variable of inputs: data type}, "" for an unknown one
    before    nodes to be added before the op
    after     nodes to be added after it
    """

    operator: Operator
    node: onnx.NodeProto
    graph: Graph
    names: Iterator[str]
    values: AttributeValues
    inputs: list[tuple[Input, str]]
    elements: dict[str, str]
    before: list[onnx.NodeProto]
    after: list[onnx.NodeProto]

    def nodes(self, run: str | None) -> list[onnx.NodeProto]:
        """Return the nodes that replace the node. run: the name of the input `run`, or None."""
        inputs = self.tensors()
        outputs = self.outputs()
        stated = {a.name: a for a in self.node.attribute}
        attributes = []
        for a, vector in self.values.pairs:
            if not a.is_list:
                value = self.values.by_name[a.name]
                attributes.append(stated.get(a.name) or node_attribute(a, value))
            else:
                vector = np.empty(0, KINDS[a.kind].dtype) if vector is None else vector
                inputs.append(self.constant(vector))
        marks = ["01"[bool(name)] for i, name in self.inputs if i.presence == "optional"]
        if marks:
            attributes.append(helper.make_attribute(PRESENT, "".join(marks)))
        inputs.append(run or self.constant(np.zeros(RUN_SHAPE, np.int64)))
        lowered = helper.make_node(
            name_of_op(self.operator),
            inputs,
            outputs,
            as_text(self.node.name),
            as_text(self.node.doc_string),
            DOMAIN,
        )
        lowered.attribute.extend(attributes)
        return [*self.before, lowered, *self.after]

    def add(
        self,
        nodes: list[onnx.NodeProto],
        op_type: str,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
        **attributes: Any,
    ) -> str:
        """Add a node to `before` or `after`; return the name of its output."""
        # ONNX Runtime names a shape after the node that it fuses, so two unnamed nodes would
        # share a name.
        name = next(self.names)
        nodes.append(helper.make_node(op_type, inputs, outputs or [name], name, **attributes))
        return nodes[-1].output[0]

    def constant(self, values: Array) -> str:
        name = next(self.names)
        data_type = helper.np_dtype_to_tensor_dtype(values.dtype)
        tensor = helper.make_tensor(name, data_type, values.shape, values.tolist())
        return self.add(self.before, "Constant", outputs=[name], value=tensor)

    def tensors(self) -> list[str]:
        """Return the operator's inputs for the op: none is absent, none has 16-bit floats."""
        inputs = []
        for i, name in self.inputs:
            data_type = self.elements.get(i.type)
            is_half = data_type in dtypes.HALVES
            if not name and i.presence == "optional":
                data_type = "float32" if is_half else data_type or self.operator.types[i.type][0]
                name = self.constant(np.empty(0, dtypes.TABLE[data_type].numpy))
            elif is_half and not i.values:
                name = self.add(self.before, "Cast", [name], to=TensorProto.FLOAT)
            inputs.append(name)
        return inputs

    def outputs(self) -> list[str]:
        """Return the op's outputs, from which nodes after it compute those of the node."""
        outputs = list(self.node.output)
        for k, (o, name) in enumerate(zip(self.operator.outputs, outputs, strict=False)):
            if not name:
                continue
            # An op's output has unknown sizes and isn't a graph output. Else ONNX Runtime might
            # have allocated it already, and the empty tensor of an op that refuses would end the
            # process.
            output = outputs[k] = next(self.names)
            data_type = self.elements.get(o.type)
            if data_type in dtypes.HALVES:
                self.add(self.after, "Cast", [output], [name], to=dtypes.TABLE[data_type].onnx)
            else:
                # ONNX Runtime 1.25 to 1.30 open no model in which a Reshape or its like follows
                # such a Reshape.
                users = self.graph.consumers[name]
                is_followed = any(user.op_type in RESHAPES for user, _ in users)
                op_type = "Expand" if is_followed and self.graph.opset >= 8 else "Reshape"
                shape = self.add(self.after, "Shape", [output])
                self.add(self.after, op_type, [output, shape], [name])
        return outputs


def checked_values(operator: Operator, node: onnx.NodeProto) -> AttributeValues:
    """Return the values of a node's attributes. Raises OpError unless the op can have them."""
    with errors_of(operator, node.name):
        for a in node.attribute:
            if a.ref_attr_name:
                passed = f"(what a caller passes as {a.ref_attr_name})"
                raise OpError(a.name, passed, "must be a value, outside of functions")
            if a.type == a.UNDEFINED:
                raise OpError(a.name, "(a value without a type)", "must have a type")
        operator.each_input(len(node.input))  # refuses too few or too many
        values = operator.values({a.name: _value(a) for a in node.attribute})
        nothing = [None] * len(operator.inputs)
        # Attributes that don't agree with each other are refused.
        plain.infer(operator, values, nothing, nothing)
        if reason := unable(operator):
            raise OpError("backend", "'extensions'", reason)
    return values


def _value(attribute: onnx.AttributeProto) -> Any:
    """Return the value of an attribute, with strings decoded where they are text."""
    value = helper.get_attribute_value(attribute)
    with suppress(UnicodeDecodeError):
        if attribute.type == attribute.STRINGS:
            return [text.decode() for text in value]
        return value.decode() if attribute.type == attribute.STRING else value
    return value


RESHAPES = "Reshape", "Squeeze", "Unsqueeze"


def name_of_op(operator: Operator) -> str:
    """Return an operator's name in the domain of onnxruntime-extensions."""
    is_replacing = operator.key in KEYS and not is_built_in(operator)
    return lowered_name(*operator.key) + REPLACING * is_replacing


def optional_inputs(operator: Operator) -> list[Input]:
    return [i for i in operator.inputs if i.presence == "optional"]


def unable(operator: Operator) -> str | None:
    """Return the reason why an operator can't be a Python op of onnxruntime-extensions, or None."""
    if operator.is_variadic:
        return "has no variadic inputs"
    if any(a.kind == "tensor" for a in operator.attributes):
        return "has no attributes that are tensors"
    if any(a.default is None and not a.required and not a.is_list for a in operator.attributes):
        return "has no attributes that may be None"
    return None
