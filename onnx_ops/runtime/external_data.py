"""Tensors of a model that lie in files beside it: they stay there, and are not read, but for those that state sizes."""

import math
from pathlib import Path

import onnx
from onnx.external_data_helper import load_external_data_for_tensor, set_external_data, uses_external_data

from ..nodes import model_nodes, subgraphs


def is_small(tensor):
    """Whether a tensor may be the sizes that a node is given."""
    return len(tensor.dims) <= 1 and math.prod(tensor.dims) <= 64


def with_sizes(path):
    """A model without its external data, except small tensors: onnx needs sizes to tell what types there are.

    These tensors go on saying where their data are.
    """
    model = onnx.load(path, load_external_data=False)
    for tensor in tensors(model):
        places = list(tensor.external_data) if uses_external_data(tensor) else []
        if places and is_small(tensor):
            load_external_data_for_tensor(tensor, str(Path(path).parent))
            tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]
        tensor.external_data.extend(places)
    return model


def refer(model):
    """Let each tensor that says where its data are hold nothing else."""
    for tensor in tensors(model):
        if tensor.external_data:
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL


def move_data(model, directory, name):
    """Let onnx.save write the data that lie below `directory` into one file of this name beside the model."""
    for tensor in filter(uses_external_data, tensors(model)):
        load_external_data_for_tensor(tensor, str(directory))
        set_external_data(tensor, name)


def tensors(model):
    """All tensors that are stored in a model: initializers and attributes, wherever they are."""
    found = list(model_nodes(model))
    for graph in (model.graph, *(inner for node in found for inner in subgraphs(node))):
        yield from graph.initializer
    for attribute in (a for node in found for a in node.attribute):
        yield from [attribute.t] if attribute.HasField("t") else attribute.tensors
