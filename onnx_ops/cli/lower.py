"""`onnx-ops lower`: rewrite a model for backend="extensions"."""

import click

from .. import lower as lowered
from ..nodes import declared, model_nodes
from .common import say
from .rewrite import rewrite, source_argument, target_argument


@click.command()
@source_argument
@target_argument
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

    def lowered_and_counted(model):
        return lowered(model), sum(declared(node) is not None for node in model_nodes(model))

    target, count = rewrite(source, target, lowered_and_counted)
    say(f"{target}: {count} {'node' if count == 1 else 'nodes'} rewritten")
