"""The types and shapes that onnx infers for a model's values."""

import itertools
from contextlib import suppress

import onnx
from onnx import TensorProto, helper
from onnx.external_data_helper import uses_external_data

from .nodes import graphs_in
from .schemas import register_schemas

LARGE = 1024  # bytes of a tensor on whose values no shape depends
LONG = 2**12  # elements of a vector on whose values no shape depends; onnx would take 400 bytes for each element


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

    onnx also computes the values of vectors, such as shapes, unless there is a long one. Of the nodes, those are left
    out whose values it would take for others: it doesn't round and wrap what is cast.
    """
    slim = without_large_tensors(model)
    for owner in graphs_in(slim.graph):
        owner.ClearField("value_info")
    for value in slim.graph.output:
        value.type.tensor_type.ClearField("shape")
    register_schemas()
    with suppress(Exception):  # the session reports what is wrong with the model
        slim = onnx.shape_inference.infer_shapes(slim)
        if any(map(is_long, itertools.chain(slim.graph.input, slim.graph.value_info))):
            return slim
        cast = {node.output[0] for node in slim.graph.node if is_cast(node)}
        types = [value for value in slim.graph.value_info if value.name in cast]
        known = {value.name for value in types}
        nodes = [node for node in slim.graph.node if not known.intersection(node.output)]
        slim.graph.input.extend(types)
        del slim.graph.node[:]
        slim.graph.node.extend(nodes)
        return onnx.shape_inference.infer_shapes(slim, data_prop=True)
    return slim


def is_cast(node):
    """Return whether a node casts to another type than int64, of which sizes are."""
    return node.op_type == "Cast" and any(a.name == "to" and a.i != TensorProto.INT64 for a in node.attribute)


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
