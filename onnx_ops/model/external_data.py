"""External data: tensors of a model in files beside it.

Only small tensors, which may state sizes, are read.

The parameter `origin` is the model's file, or the folder of its external data.
"""

from __future__ import annotations

import functools
import math
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from onnx import helper
from onnx.external_data_helper import ExternalDataInfo, set_external_data, uses_external_data

from ..declaration.errors import OpError
from .files import USE_ONNX, content_of, is_ort_format, ordinary_file
from .nodes import model_nodes, subgraphs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .types import File, PathLike, Source


def is_small(tensor: onnx.TensorProto) -> bool:
    """Return whether a tensor may be an input that states sizes."""
    return len(tensor.dims) <= 1 and math.prod(tensor.dims) <= 64


def load(
    path: PathLike, wanted: Callable[[onnx.TensorProto], bool] | None = is_small
) -> onnx.ModelProto:
    """Load a model, with the `wanted` ones of its external tensors in the model itself; None: all.

    onnx needs the small ones to infer types. Raises OSError and OpError.
    """
    model = model_in(path)
    for tensor in filter(wanted, external(model)):
        read_data(tensor, path)
    return model


def model_in(source: File) -> onnx.ModelProto:
    """Load a model (path or bytes) without its external data.

    As to ONNX Runtime, it is a protobuf whatever the file's name ends in.
    """
    return onnx.ModelProto.FromString(source if isinstance(source, bytes) else content_of(source))


def opened(source: Source) -> tuple[onnx.ModelProto, PathLike | None]:
    """Return a model (path, bytes or ModelProto) without its external data, and its path or None.

    Raises OpError.
    """
    if isinstance(source, onnx.ModelProto):
        return source, None
    path = None if isinstance(source, bytes) else source
    if is_ort_format(source):
        raise OpError("model", path or "bytes", USE_ONNX, "onnx_ops")
    return model_in(source), path


def read_data(tensor: onnx.TensorProto, origin: PathLike, *, only_check: bool = False) -> None:
    """Put a tensor's external data into the tensor. Raises OSError and OpError.

    only_check  whether nothing is read, if the file is long enough
    """
    info = info_of(tensor)
    size = byte_size(tensor)
    offset = info.offset or 0
    data = b""
    with ordinary_file(file_of(info.location, origin), "external data") as (file, there):
        if offset + size <= there:
            if only_check:
                return
            file.seek(offset)
            data = file.read(size)
    if len(data) < size:
        rule = f"must have {size} bytes of {tensor.name} from {offset} on; the file ends before"
        raise OpError("external data", repr(info.location), rule, "onnx_ops")
    tensor.raw_data = data
    tensor.data_location = onnx.TensorProto.DEFAULT
    del tensor.external_data[:]


def info_of(tensor: onnx.TensorProto) -> ExternalDataInfo:
    """Return where a tensor's external data are.

    Raises OpError unless they are as long as its elements.
    """
    with suppress(TypeError, ValueError):  # keys or values that are not UTF-8 are bytes
        info = ExternalDataInfo(tensor)
        if (
            isinstance(info.location, str)
            and min(info.offset or 0, *tensor.dims, 0) >= 0
            and tensor.data_type in helper.get_all_tensor_dtypes()
            and (info.length or byte_size(tensor))
            == byte_size(tensor)  # ONNX Runtime takes 0 for no length
        ):
            return info
    rule = (
        f"must state a type, a file, numbers from 0 on, and the length of {list(tensor.dims)} "
        "elements"
    )
    raise OpError(
        "external data", repr({e.key: e.value for e in tensor.external_data}), rule, "onnx_ops"
    )


def byte_size(tensor: onnx.TensorProto) -> int:
    """Return the bytes of a tensor's elements. Some types have several in a byte."""
    packed = {"INT4": 2, "UINT4": 2, "FLOAT4E2M1": 2, "INT2": 4, "UINT2": 4}
    itemsize = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return -(
        -math.prod(tensor.dims)
        * itemsize
        // packed.get(onnx.TensorProto.DataType.Name(tensor.data_type), 1)
    )


def stated_size(tensors: Iterable[onnx.TensorProto], origin: PathLike) -> float:
    """Return the bytes of external data of tensors; infinite if a file is missing."""
    with suppress(OpError):
        if all(os.path.exists(file_of(info_of(tensor).location, origin)) for tensor in tensors):
            return sum(map(byte_size, tensors))
    return math.inf


def file_of(location: str, origin: PathLike) -> str:
    """Return the path of a file of external data, with all links resolved.

    As ONNX Runtime has it, the file must lie in the model's folder or, if the model is a link, in
    the folder in which the link ends: in Hugging Face's cache, both are links into another folder.
    Raises OpError.
    """
    folders = roots(origin)
    is_path = isinstance(location, str) and "\0" not in location and not os.path.isabs(location)
    file = os.path.realpath(os.path.join(folders[0], location)) if is_path else ""
    if not any(Path(file).is_relative_to(folder) for folder in folders):
        raise OpError(
            "external data",
            repr(location),
            f"must lie in the folder of the model, {folders[0]}",
            "onnx_ops",
        )
    return file


def roots(origin: PathLike) -> list[str]:
    """Return the folders that may hold external data, which may be equal.

    Locations are relative to the first one.
    """
    origin = os.path.abspath(origin)
    if os.path.isdir(origin):
        return [os.path.realpath(origin)]
    return [os.path.realpath(os.path.dirname(origin)), os.path.dirname(os.path.realpath(origin))]


def put_in_reach(model: onnx.ModelProto, origin: PathLike, most: float) -> str | None:
    """Have a session find the external data of a model that it gets as bytes.

    At most `most` bytes are read into the model. Else it states where they are, without links,
    relative to the folder that is returned: the session's options must state that. Raises OSError
    and OpError.
    """
    tensors = external(model)
    if stated_size(tensors, origin) <= most:
        for tensor in tensors:
            read_data(tensor, origin)
        return None
    folder = os.path.commonpath(roots(origin))
    location_in_folder = functools.cache(
        lambda location: Path(os.path.relpath(file_of(location, origin), folder)).as_posix()
    )
    for tensor in tensors:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location_in_folder(entry.value)
    return folder


def copy_data(tensors: list[onnx.TensorProto], origin: PathLike, path: Path) -> None:
    """Copy the external data of tensors into one file beside their model.

    onnx.save would leave out those of sparse tensors, and of subgraphs in functions. Raises OSError
    and OpError.
    """
    with open(path, "wb") as file:
        for tensor in tensors:
            read_data(tensor, origin)
            set_external_data(tensor, path.name, file.tell(), file.write(tensor.raw_data))
            tensor.ClearField("raw_data")


def files(path: PathLike) -> list[Path]:
    """Return the file of a model, and the files of its external data."""
    locations = {info_of(tensor).location for tensor in external(model_in(path))}
    return [Path(path), *(Path(file_of(location, path)) for location in sorted(locations))]


def external(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Return the tensors of a model whose data are in files.

    They may be in graphs, subgraphs, attributes and functions.
    """
    nodes = list(model_nodes(model))
    graphs = (model.graph, *(inner for node in nodes for inner in subgraphs(node)))
    attributes = [a for node in nodes for a in node.attribute]
    tensors = [
        *(tensor for graph in graphs for tensor in graph.initializer),
        *(
            t
            for graph in graphs
            for sparse in graph.sparse_initializer
            for t in (sparse.values, sparse.indices)
        ),
        *(tensor for a in attributes for tensor in (a.t, *a.tensors)),
    ]
    return [tensor for tensor in tensors if uses_external_data(tensor)]
