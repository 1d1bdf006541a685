"""The types and shapes that onnx infers for a model's values."""

import itertools
from contextlib import suppress

import onnx
from onnx import helper
from onnx.external_data_helper import uses_external_data

from .schemas import register_schemas

LARGE = 1024  # bytes of a tensor on whose values no shape depends
LONG = 2**12  # elements of a vector on whose values no shape depends; onnx would take 400 bytes for each element


def inferred(model, values=False):
    """Return the model without its large tensors, and with the types and shapes in `value_info` that onnx can infer.

    values  whether onnx computes the values of vectors, such as shapes; it doesn't if there is a long one
    """
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
    register_schemas()
    with suppress(Exception):  # the session reports what is wrong with the model
        slim = onnx.shape_inference.infer_shapes(slim)
        if values and not any(map(is_long, itertools.chain(slim.graph.input, slim.graph.value_info))):
            slim = onnx.shape_inference.infer_shapes(slim, data_prop=True)
    return slim


def is_long(value):
    """Return whether a value is a vector with more than LONG elements."""
    dims = value.type.tensor_type.shape.dim
    return len(dims) == 1 and dims[0].dim_value > LONG
