"""`onnx-ops warmup`: compile kernels before a session needs them."""

from functools import partial
from pathlib import Path

import click

from .. import dtypes as table
from .common import OperatorName, compiling, is_model, say


def are_models(ctx, parameter, paths):
    return [is_model(ctx, parameter, path) for path in paths]


@click.command()
@click.argument(
    "models", metavar="[MODEL]...", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path),
    callback=are_models,
)  # fmt: skip
@click.option("--operator", "operators", multiple=True, type=OperatorName(), help="Only this one; may be repeated.")
@click.option("--dtype", "dtypes", multiple=True, type=click.Choice(table.ALL), help="Only this type; may be repeated.")
@click.option("--jobs", type=click.IntRange(1), help="Processes side by side.  [default: all cores]")
def warmup(models, operators, dtypes, jobs):
    """Compile the kernels ahead, into the cache that sessions load them from.

    Otherwise the first session that uses an operator with an element type compiles it, in 3 to 10 seconds. With
    models: what sessions of them compile, and nothing else. Without: every kernel of the operators and element types;
    without --dtype, too, these are the floats, all of which take some minutes.

    \b
    Examples:
      onnx-ops warmup model.onnx
      onnx-ops warmup --operator GridSample --dtype float32 --dtype float16
    """
    from .. import warmup

    if models and (operators or dtypes):
        raise click.UsageError("Models leave no choice of operators and types.")
    count = compiling(partial(warmup, operators or None, dtypes or None, models=models or None, jobs=jobs))
    say(f"{count} {'kernel is' if count == 1 else 'kernels are'} in {place()}")


def place():
    """Return a text on where sessions find compiled kernels."""
    from ..runtime import library

    if library.is_complete():
        return f"the library, {library.PLACE}"
    from ..compiler.cache import directory

    return f"the cache, {directory()}"
