"""External data: tensors of a model that lie in files beside it. Only small ones, which may state sizes, are read."""

import math
from pathlib import Path

import onnx
from onnx.external_data_helper import (
    ExternalDataInfo,
    load_external_data_for_tensor,
    set_external_data,
    uses_external_data,
)

from ..errors import OpError
from ..nodes import model_nodes, subgraphs
from . import ort_format

LARGEST = 2**31  # bytes that a protobuf may have


def is_small(tensor):
    """Whether a tensor may be an input that states sizes."""
    return len(tensor.dims) <= 1 and math.prod(tensor.dims) <= 64


def with_sizes(path):
    """Load a model with only the small tensors of its external data, as onnx needs sizes to infer types.

    All tensors still say where their data are.
    """
    model = onnx.load(path, load_external_data=False)
    for tensor in tensors(model):
        location = list(tensor.external_data) if uses_external_data(tensor) else []
        if location and is_small(tensor):
            load_external_data_for_tensor(tensor, str(Path(path).parent))
            tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]
        tensor.external_data.extend(location)
    return model


def refer(model):
    """Drop the data from each tensor that says where its external data are."""
    for tensor in tensors(model):
        if tensor.external_data:
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL


def move_data(model, directory, name):
    """Load the data that lie below `directory`, so that onnx.save writes them to one file of this name by the model."""
    for tensor in filter(uses_external_data, tensors(model)):
        load_external_data_for_tensor(tensor, str(directory))
        set_external_data(tensor, name)


def files(path):
    """The file of a model, and the files of its external data."""
    if ort_format.is_ort_format(path):
        return [Path(path)]
    external = filter(uses_external_data, tensors(onnx.load(path, load_external_data=False)))
    names = {ExternalDataInfo(tensor).location for tensor in external}
    return [Path(path), *(Path(path).parent / name for name in sorted(names))]


def pack(path):
    """Return the bytes of a model together with its external data. Raises OpError where that is too large."""
    paths = files(path)
    if len(paths) == 1:
        return paths[0].read_bytes()
    if (size := sum(file.stat().st_size for file in paths)) >= LARGEST:
        rule = f"has {size / 2**30:.1f} GiB with the files of its data, and must have less than 2 to be sent"
        raise OpError("model", repr(str(path)), rule, "onnx_ops")
    return onnx.load(path).SerializeToString()


def tensors(model):
    """Yield all tensors that are stored in a model: initializers and attributes, also in subgraphs and functions."""
    nodes = list(model_nodes(model))
    for graph in (model.graph, *(inner for node in nodes for inner in subgraphs(node))):
        yield from graph.initializer
    for attribute in (a for node in nodes for a in node.attribute):
        yield from [attribute.t] if attribute.HasField("t") else attribute.tensors
