"""`onnx-ops lower`: a model for backend="extensions"."""

from pathlib import Path

import click
import onnx
from onnx.external_data_helper import load_external_data_for_tensor, set_external_data, uses_external_data

from .. import lower as lowered
from ..files import staged_file
from ..runtime.nodes import all_nodes, declared, subgraphs
from .common import model_file, say
from .values import is_small


@click.command()
@model_file("source", metavar="IN.ONNX")
@click.argument("target", metavar="OUT.ONNX", type=click.Path(dir_okay=False, path_type=Path))
def lower(source, target):
    """Rewrite a model for plain sessions with onnxruntime-extensions.

    Such a session needs that library on its options, and onnx_ops imported: docs/backends.md shows how. Here it runs
    with --backend extensions.

    Weights that the model keeps in other files stay there if OUT.ONNX is in the same folder as IN.ONNX. Otherwise they
    are copied into OUT.ONNX.data.

    \b
    Examples:
      onnx-ops lower model.onnx lowered.onnx
      onnx-ops run lowered.onnx --random --backend extensions
    """
    model = with_sizes(source)
    count = sum(declared(node) is not None for node in nodes(model))
    model = lowered(model)
    refer(model)
    if target.parent.resolve() != source.parent.resolve():
        move_data(model, source.parent, f"{target.name}.data")
    with staged_file(target) as path:
        onnx.save(model, path)
    say(f"{target}: {count} {'node' if count == 1 else 'nodes'} rewritten")


def with_sizes(path):
    """A model without its external data, except small tensors: onnx needs sizes to tell what types there are.

    These tensors go on saying where their data are.
    """
    model = onnx.load(path, load_external_data=False)
    for tensor in tensors(model):
        places = list(tensor.external_data) if uses_external_data(tensor) else []
        if places and is_small(tensor):
            load_external_data_for_tensor(tensor, str(path.parent))
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


def nodes(model):
    """All nodes of a model, those of its functions and of all subgraphs included."""
    return [node for owner in (model.graph, *model.functions) for node in all_nodes(owner)]


def tensors(model):
    """All tensors that are stored in a model: initializers and attributes, wherever they are."""
    found = nodes(model)
    for graph in (model.graph, *(inner for node in found for inner in subgraphs(node))):
        yield from graph.initializer
    for attribute in (a for node in found for a in node.attribute):
        yield from [attribute.t] if attribute.HasField("t") else attribute.tensors
