"""`onnx-ops lower`: a model for backend="extensions"."""

from pathlib import Path

import click
import onnx

from .. import lower as lowered
from ..files import staged_file
from ..runtime.external_data import move_data, nodes, refer, with_sizes
from ..runtime.nodes import declared
from .common import model_file, say


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
    target = target.resolve()  # where a link leads, the model's data belong, too
    model = with_sizes(source)
    count = sum(declared(node) is not None for node in nodes(model))
    model = lowered(model)
    refer(model)
    if target.parent != source.parent.resolve():
        move_data(model, source.parent, f"{target.name}.data")
    with staged_file(target) as path:
        onnx.save(model, path)
    say(f"{target}: {count} {'node' if count == 1 else 'nodes'} rewritten")
