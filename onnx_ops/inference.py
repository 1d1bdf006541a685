"""The types and shapes that onnx infers for a model's values."""

from contextlib import suppress

import onnx
from onnx import helper
from onnx.external_data_helper import uses_external_data

from .schemas import register_schemas

LARGE = 1024  # bytes of a tensor on whose values no shape depends


def inferred(model, operators=()):
    """Return the model without its large tensors, and with the types and shapes in `value_info` that onnx can infer.

    operators  of one's own that the model has
    """
    slim = without_large_tensors(model)
    register_schemas(operators)
    with suppress(Exception):  # the session reports what is wrong with the model
        return onnx.shape_inference.infer_shapes(slim)
    return slim


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
