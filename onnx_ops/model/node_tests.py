"""Node tests: models of one node with inputs and outputs, in the layout of onnx's.

FOLDER/model.onnx
FOLDER/test_data_set_0/input_0.pb, input_1.pb, ..., output_0.pb
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from onnx import numpy_helper

from ..system.files import replaceable, staged
from .files import content_of
from .small_models import model_of, values_info

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .types import Array, Arrays, DataSets


IR_VERSION = 9  # by default onnx writes its newest version, which older runtimes refuse
ONNX_OPSET = 18  # of ai.onnx, for a node of another domain


def test_model(
    name: str, node: onnx.NodeProto, version: int, inputs: Arrays, outputs: Arrays
) -> onnx.ModelProto:
    """Return a model of one node, with inputs of these arrays' shapes.

    All inputs of the node are inputs of the graph.

    name     of the graph
    version  of the node's domain
    """
    imports = {"": ONNX_OPSET, node.domain: version}
    model = model_of([node], inputs, values_info(outputs), imports, IR_VERSION)
    model.graph.name = name
    model.producer_name = "onnx_ops"
    return model


def files(folder: Path, inputs: Arrays, outputs: Arrays) -> dict[Path, onnx.TensorProto]:
    """Return the files of a test's data, {name: array} in the graph's order."""
    return {
        folder / "test_data_set_0" / f"{role}_{k}.pb": numpy_helper.from_array(array, name)
        for role, arrays in (("input", inputs), ("output", outputs))
        for k, (name, array) in enumerate(arrays.items())
    }


def save(folder: Path, model: onnx.ModelProto, inputs: Arrays, outputs: Arrays) -> None:
    """Write a model and its test data: {name: array} in the graph's order."""
    replaceable(folder / "model.onnx")  # raises OSError before data are written
    with staged(folder) as new, staged(folder / "test_data_set_0") as data:
        onnx.save(model, new / "model.onnx")
        for file, tensor in files(folder, inputs, outputs).items():
            onnx.save_tensor(tensor, data / file.name)


def tests_below(path: Path) -> Iterator[tuple[str, Path, Callable[[], DataSets]]]:
    """Yield (name, model, function that returns its data) of each test below a folder."""
    directories = []
    seen = set()
    for folder, folders, files in os.walk(path, onerror=_raise_error, followlinks=True):
        folders.sort()
        # A link to a folder above it, or to one that was searched.
        if os.path.realpath(folder) in seen:
            folders.clear()
        elif "model.onnx" in files and any(name.startswith("test_data_set_") for name in folders):
            directories.append(Path(folder))
        seen.add(os.path.realpath(folder))
    for directory in sorted(directories):
        name = directory.relative_to(path).as_posix() if directory != path else path.absolute().name
        yield name, directory / "model.onnx", partial(data_sets, directory)


def _raise_error(error: OSError) -> None:
    raise error


def data_sets(directory: Path) -> DataSets:
    """Return the data of a test in a folder, by the names of their folders."""
    return {
        folder.name: (_tensors(folder, "input"), _tensors(folder, "output"))
        for folder in sorted(directory.glob("test_data_set_*"))
    }


def _tensors(folder: Path, role: str) -> list[Array]:
    files = folder.glob(f"{role}_*.pb")
    return [
        read_pb(file) for file in sorted(files, key=lambda file: int(file.stem.partition("_")[2]))
    ]


def read_pb(path: Path) -> Array:
    """Return the array in a file that holds a TensorProto. Raises ValueError."""
    tensor = onnx.TensorProto.FromString(content_of(path, "file"))
    # The bytes of other protobuf messages may parse to such a tensor.
    if tensor.HasField("segment"):
        raise ValueError("it holds no tensor")
    if onnx.external_data_helper.uses_external_data(tensor):
        raise ValueError("its data are in another file")
    return numpy_helper.to_array(tensor)
