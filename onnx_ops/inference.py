"""The types and shapes that onnx infers for a model's values."""

import onnx
from onnx import helper
from onnx.external_data_helper import uses_external_data

from .schemas import register_schemas

LARGE = 1024  # bytes of a tensor whose values shapes don't depend on


def inferred(model):
    """The model without its large tensors, and with the types and shapes in `value_info` that onnx can tell."""
    slim = onnx.ModelProto()
    slim.ir_version = model.ir_version
    slim.opset_import.extend(model.opset_import)
    slim.functions.extend(model.functions)
    graph = model.graph
    slim.graph.name = graph.name or "graph"
    for field in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(slim.graph, field).extend(getattr(graph, field))
    given = {value.name for value in graph.input}
    for tensor in graph.initializer:
        if tensor.ByteSize() < LARGE and not uses_external_data(tensor):
            slim.graph.initializer.append(tensor)
        elif tensor.name not in given:
            slim.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    register_schemas()
    try:
        return onnx.shape_inference.infer_shapes(slim)
    except Exception:  # what is wrong with the model is for its session to tell
        return slim
