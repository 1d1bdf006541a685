"""Models that a command reads from one file and writes, rewritten, to another one."""

from pathlib import Path

import click
import onnx

from ..files import staged_file
from ..runtime.external_data import move_data, refer, with_sizes
from ..runtime.ort_format import is_ort_format
from .common import model_file

source_argument = model_file("source", metavar="IN.ONNX")
target_argument = click.argument("target", metavar="OUT.ONNX", type=click.Path(dir_okay=False, path_type=Path))


def rewrite(source, target, function):
    """Write the model that `function` makes of the one in `source`, which may be the same file.

    function  onnx.ModelProto -> (onnx.ModelProto, what to tell of it)

    Returns where the model is, at the end of the links at `target`, and what there is to tell. Data in other files stay
    there if the folder is the same, and are copied beside the model otherwise.
    """
    if is_ort_format(source):
        raise click.UsageError(f"{source} is in ONNX Runtime's own format; it must be in that of ONNX.")
    target = target.resolve()  # where a link leads, the model's data belong, too
    model, told = function(with_sizes(source))
    refer(model)
    if target.parent != source.parent.resolve():
        move_data(model, source.parent, f"{target.name}.data")
    with staged_file(target) as path:
        onnx.save(model, path)
    return target, told
