"""A model for backend="extensions": its nodes as Python ops of onnxruntime-extensions.

These know no lists among their attributes, no absent attributes and no 16-bit floats. So a list becomes an input (an
empty one stands for "absent"), other attributes are spelled out, and 16-bit floats are cast to float32 and back: which
rounds the float32 result once, as the kernels themselves do.

    y = Col2Im(x, image_shape, block_shape, strides=[2, 2])
    y = ai.onnx.contrib.ai_onnx_Col2Im(x, image_shape, block_shape, dilations, pads, strides, run)

`run` is how a session tells its errors from those of others, see extensions.py: [0, 0] in a model for plain sessions,
in one for `onnx_ops.InferenceSession` an input of the graph.
"""

import itertools
from contextlib import suppress

import onnx
from onnx import AttributeProto, TensorProto, helper

from ..errors import OpError, named
from .model import RUN
from .nodes import all_nodes, declared, subgraphs

DOMAIN, VERSION = "ai.onnx.contrib", 1
RUN_SHAPE = [2]
SIXTEEN_BITS = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def op_type(operator):
    """The name in ai.onnx.contrib."""
    return f"{(operator.domain or 'ai.onnx').replace('.', '_')}_{operator.name}"


def lower(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of an onnx.ModelProto whose declared operators are Python ops of onnxruntime-extensions.

    Everything else stays as it is, except that shapes which only the original operators tell are stated; a model
    without such operators comes back equal. Subgraphs and local functions are lowered too. Plain sessions run the
    result once `onnx_ops` has been imported and `onnxruntime_extensions.get_library_path()` is registered on their
    options. Raises OpError.
    """
    return _lower(model, None)


def lower_for_session(model):
    """`lower`, with an additional graph input RUN if there is anything to lower."""
    import onnx.inliner

    # A function sees nothing of the graph around it, so those that contain our operators are put into the graph.
    functions = {(f.domain, f.name): f for f in model.functions}
    ours = {key for key, f in functions.items() if any(map(declared, all_nodes(f)))}
    while more := {k for k, f in functions.items() if any((n.domain, n.op_type) in ours for n in all_nodes(f))} - ours:
        ours |= more
    if ours:
        model = onnx.inliner.inline_selected_functions(model, sorted(ours))
    lowered = _lower(model, RUN)
    if lowered != model:
        lowered.graph.input.append(helper.make_tensor_value_info(RUN, TensorProto.INT64, RUN_SHAPE))
    return lowered


def _lower(model, run):
    lowered = onnx.ModelProto()
    lowered.CopyFrom(model)
    owners = [lowered.graph, *lowered.functions]
    if not any(declared(node) for owner in owners for node in all_nodes(owner)):
        return lowered
    taken = {name for owner in owners for node in all_nodes(owner) for name in (*node.input, *node.output)}
    names = (name for name in map("onnx_ops_{}".format, itertools.count()) if name not in taken)
    _Lowering(run, *_known(model), names).graph(lowered.graph)
    _import_contrib(lowered)
    for function in lowered.functions:
        if any(map(declared, all_nodes(function))):
            _Lowering(None, {}, {}, names, of_function=True).graph(function)
            _import_contrib(function)
    return lowered


def _import_contrib(owner):
    if all(i.domain != DOMAIN for i in owner.opset_import):
        owner.opset_import.append(helper.make_opsetid(DOMAIN, VERSION))


def _known(model):
    """{value: element type} and, of those that are no inputs or outputs, {value: description}, as far as onnx can tell.

    Of all graphs: names are unique in a model.
    """
    from ..schemas import register_schemas

    register_schemas()
    with suppress(Exception):  # too large to serialize, or wrong in a way that the session will tell
        model = onnx.shape_inference.infer_shapes(model)
    types, described = {}, {}

    def visit(graph):
        described.update((value.name, value) for value in graph.value_info)
        for value in (*graph.input, *graph.output, *graph.value_info):
            types[value.name] = value.type.tensor_type.elem_type
        for tensor in graph.initializer:
            types[tensor.name] = tensor.data_type
        for node in graph.node:
            for inner in subgraphs(node):
                visit(inner)

    visit(model.graph)
    return types, described


class _Lowering:
    """Of one graph with its subgraphs, or of one function."""

    def __init__(self, run, types, described, names, of_function=False):
        self.run, self.types, self.described, self.names = run, types, described, names
        self.of_function = of_function

    def graph(self, owner):
        nodes = []
        for node in owner.node:
            for inner in subgraphs(node):
                self.graph(inner)
            operator = declared(node)
            nodes.extend(self.node(operator, node) if operator else [node])
            output = self.described.get(node.output[0]) if operator and node.output else None
            if output and all(v.name != output.name for v in owner.value_info):
                owner.value_info.append(output)
        del owner.node[:]
        owner.node.extend(nodes)

    def node(self, operator, node):
        """The nodes that stand for one of a declared operator."""
        attributes = {a.name: a for a in node.attribute}
        with named(operator, node.name):
            references = {n: a.ref_attr_name for n, a in attributes.items() if a.ref_attr_name}
            for name, of_caller in references.items() if not self.of_function else ():
                raise OpError(name, f"(what a caller passes as {of_caller})", "must be a value, outside of functions")
            # Whatever a function's caller will pass can't be checked here.
            operator.resolved({n: _value(a) for n, a in attributes.items() if n not in references})
        before, after, inputs, outputs = [], [], list(node.input), list(node.output)
        for k, i in enumerate(operator.inputs):
            if k < len(inputs) and self.types.get(inputs[k]) in SIXTEEN_BITS and not i.values:
                cast = helper.make_node("Cast", [inputs[k]], [next(self.names)], to=TensorProto.FLOAT)
                if i.type == operator.output and not after:
                    after.append(helper.make_node("Cast", [next(self.names)], outputs, to=self.types[inputs[k]]))
                    outputs = list(after[0].input)
                before.append(cast)
                inputs[k] = cast.output[0]
        kept = []
        for known in operator.attributes:
            attribute = attributes.get(known.name)
            if known.kind == "ints":
                before.append(_list_constant(next(self.names), attribute))
                inputs.append(before[-1].output[0])
            else:
                kept.append(attribute or helper.make_attribute(known.name, known.default))
        if self.run is None:
            before.append(_constant(next(self.names), [0, 0]))
        inputs.append(self.run or before[-1].output[0])
        lowered = helper.make_node(op_type(operator), inputs, outputs, node.name, node.doc_string, DOMAIN)
        lowered.attribute.extend(kept)
        return [*before, lowered, *after]


def _value(attribute):
    """An attribute's value, text where it is text, as in errors."""
    value = helper.get_attribute_value(attribute)
    with suppress(UnicodeDecodeError):
        if attribute.type == AttributeProto.STRING:
            return value.decode()
        if attribute.type == AttributeProto.STRINGS:
            return [text.decode() for text in value]
    return value


def _constant(name, values):
    value = helper.make_tensor(name, TensorProto.INT64, [len(values)], values)
    return helper.make_node("Constant", [], [name], value=value)


def _list_constant(name, attribute):
    """A constant for a list attribute; one that refers to a function's attribute goes on doing so."""
    if attribute is None:
        return _constant(name, [])
    if not attribute.ref_attr_name:
        return _constant(name, list(attribute.ints))
    node = helper.make_node("Constant", [], [name])
    node.attribute.append(attribute)
    node.attribute[0].name = "value_ints"
    return node
