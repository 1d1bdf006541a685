"""Tensors of a model that lie in files beside it: they stay there, and are not read, but for those that state sizes."""

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

LARGEST = 2**31  # bytes of a protobuf


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


def files(path):
    """The file of a model, and those in which its external data are."""
    if ort_format.is_ort_format(path):
        return [Path(path)]
    external = filter(uses_external_data, tensors(onnx.load(path, load_external_data=False)))
    names = {ExternalDataInfo(tensor).location for tensor in external}
    return [Path(path), *(Path(path).parent / name for name in sorted(names))]


def pack(path):
    """The bytes of a model that hold its external data, too. Raises OpError where these are more than it can hold."""
    its_files = files(path)
    if len(its_files) == 1:
        return its_files[0].read_bytes()
    if (size := sum(file.stat().st_size for file in its_files)) >= LARGEST:
        rule = f"has {size / 2**30:.1f} GiB with the files of its data, and must have less than 2 to be sent"
        raise OpError("model", repr(str(path)), rule, "onnx_ops")
    return onnx.load(path).SerializeToString()


def tensors(model):
    """All tensors that are stored in a model: initializers and attributes, wherever they are."""
    found = list(model_nodes(model))
    for graph in (model.graph, *(inner for node in found for inner in subgraphs(node))):
        yield from graph.initializer
    for attribute in (a for node in found for a in node.attribute):
        yield from [attribute.t] if attribute.HasField("t") else attribute.tensors
