"""Rewrite a model from one file to another one: what `optimize` and `lower` share."""

from pathlib import Path

import click
import onnx

from ..external_data import files, load, move
from ..files import staged_file
from ..runtime.ort_format import is_ort_format
from .common import check_targets, model_file, own_files

source_argument = model_file("source", metavar="IN.ONNX")
target_argument = click.argument("target", metavar="OUT.ONNX", type=click.Path(dir_okay=False, path_type=Path))


def rewrite(source, target, function):
    """Write to `target` the model that `function` makes of the one in `source`, which may be the same file.

    function  onnx.ModelProto -> (onnx.ModelProto, a report)

    Returns the model's path, with all links resolved, and the report. Data in other files stay there if the folder is
    the same, and are copied beside the model otherwise.
    """
    if is_ort_format(source):
        raise click.UsageError(f"{source} is in ONNX Runtime's own format; it must be in that of ONNX.")
    target = target.resolve()  # the model's data belong to the folder in which a link ends
    _, *external = files(source)
    is_beside = target.parent == source.parent.resolve() and all(f.is_relative_to(target.parent) for f in external)
    data = None if is_beside else target.with_name(f"{target.name}.data")
    check_targets([target, *filter(None, [data])], [*external, *own_files()])
    model, report = function(load(source))
    if data:
        move(model, source, data.name)
    with staged_file(target) as path:
        onnx.save(model, path)
    return target, report
