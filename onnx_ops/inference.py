"""The types and shapes that onnx infers for a model's values."""

import itertools
from contextlib import suppress

import onnx
from onnx import TensorProto, TypeProto, helper
from onnx.external_data_helper import uses_external_data

from .nodes import graphs_in, own_names
from .schemas import register_schemas

LARGE = 1024  # bytes of a tensor on whose values no shape depends
LONG = 2**12  # elements of a vector on whose values no shape depends; onnx would take 400 bytes for each element
PASSING = {"Add", "Cast", "Concat", "Gather", "Mul", "Slice", "Squeeze", "Sub", "Unsqueeze"}  # pass values on in onnx


def inferred(model, operators=()):
    """Return the model without its large tensors, and with the types and shapes in `value_info` that onnx can infer.

    operators  of one's own that the model has
    """
    slim = without_large_tensors(model)
    register_schemas(operators)
    with suppress(Exception):  # the session reports what is wrong with the model
        return onnx.shape_inference.infer_shapes(slim)
    return slim


def inferred_from_inputs(model):
    """Return what `inferred` does, but as if the model stated no shapes except those of its inputs.

    onnx also computes the values of vectors, such as shapes, where it takes none for others: it keeps them by name, and
    would write long ones out. What it misreads goes through an Identity, whose values it doesn't know.
    """
    slim = without_large_tensors(model)
    for owner in graphs_in(slim.graph):
        owner.ClearField("value_info")
        for value in owner.input if owner is not slim.graph else ():
            for dimension in value.type.tensor_type.shape.dim:  # a Loop's body may get others in each turn
                dimension.Clear()
    for value in slim.graph.output:
        value.type.tensor_type.ClearField("shape")
    register_schemas()
    with suppress(Exception):  # the session reports what is wrong with the model
        slim = onnx.shape_inference.infer_shapes(slim)
        graphs = [*graphs_in(slim.graph)]
        names = [name for graph in graphs for name in own_names(graph)]
        has_long = any(map(is_long, itertools.chain(slim.graph.input, slim.graph.value_info)))
        if slim.functions or has_long or len(names) > len(set(names)):
            return slim
        nodes = (node for graph in graphs for node in graph.node if node.op_type == "Constant")
        constants = {"", *(node.output[0] for node in nodes), *(t.name for graph in graphs for t in graph.initializer)}
        for graph in graphs:
            types = {value.name: value.type.tensor_type for value in (*graph.value_info, *graph.output)}
            misread = [k for k, node in enumerate(graph.node) if is_misread(node, types, constants)]
            for k in misread[::-1]:
                node, name = graph.node[k], graph.node[k].output[0]
                node.output[0] = f"{name} before onnx_ops hides its value"
                graph.node.insert(k + 1, helper.make_node("Identity", node.output, [name]))
        return onnx.shape_inference.infer_shapes(slim, data_prop=True)
    return slim


def is_misread(node, types, constants):
    """Return whether onnx may take the values that a node makes for others.

    It neither rounds nor wraps anything, takes tables for vectors, and unknown positions in a Slice for 0.
    """
    if node.op_type not in PASSING or not node.output:
        return False
    its_type = types.get(node.output[0], TypeProto.Tensor())
    is_vector = its_type.HasField("shape") and len(its_type.shape.dim) < 2
    is_unknown = node.op_type == "Slice" and not constants.issuperset(node.input[1:])
    return its_type.elem_type != TensorProto.INT64 or not is_vector or is_unknown


def without_large_tensors(model):
    """Return a copy of a model in which large tensors, and those that a caller may replace, are inputs."""
    slim = onnx.ModelProto()
    slim.ir_version = model.ir_version
    slim.opset_import.extend(model.opset_import)
    slim.functions.extend(model.functions)
    graph = model.graph
    slim.graph.name = graph.name or "graph"
    for field in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(slim.graph, field).extend(getattr(graph, field))
    input_names = {value.name for value in graph.input}
    for tensor in graph.initializer:
        if tensor.name in input_names and model.ir_version > 3:
            continue  # a default, which a caller may replace: onnx would take it for a constant
        if tensor.ByteSize() < LARGE and not uses_external_data(tensor):
            slim.graph.initializer.append(tensor)
        elif tensor.name not in input_names:
            slim.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return slim


def is_long(value):
    """Return whether a value is a vector with more than LONG elements."""
    dims = value.type.tensor_type.shape.dim
    return len(dims) == 1 and dims[0].dim_value > LONG
