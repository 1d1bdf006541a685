"""`onnx-ops lower`: a model for backend="extensions"."""

from pathlib import Path

import click
import onnx

from .. import lower as lowered
from ..runtime.nodes import all_nodes, declared
from .common import model_file, say


@click.command()
@model_file("source", metavar="IN.ONNX")
@click.argument("target", metavar="OUT.ONNX", type=click.Path(dir_okay=False, path_type=Path))
def lower(source, target):
    """Rewrite a model for plain sessions with onnxruntime-extensions.

    Such a session needs that library on its options, and onnx_ops imported: docs/backends.md shows how. Here it runs
    with --backend extensions.

    \b
    Examples:
      onnx-ops lower model.onnx lowered.onnx
      onnx-ops run lowered.onnx --random --backend extensions
    """
    model = onnx.load(source)
    owners = (model.graph, *model.functions)
    count = sum(declared(node) is not None for owner in owners for node in all_nodes(owner))
    target.parent.mkdir(parents=True, exist_ok=True)
    external = any(
        t.data_location == onnx.TensorProto.EXTERNAL
        for t in onnx.load(source, load_external_data=False).graph.initializer
    )
    beside = target.with_name(f"{target.name}.data")
    beside.unlink(missing_ok=True)  # onnx.save refuses to replace it
    onnx.save(lowered(model), target, save_as_external_data=external, location=beside.name)
    say(f"{target}: {count} {'node' if count == 1 else 'nodes'} rewritten")
