"""`onnx-ops warmup`: compile before the first session asks for it."""

import click

from .. import dtypes as table
from .common import NAMES, progress, say


@click.command()
@click.option(
    "--operator", "operators", multiple=True, type=click.Choice(NAMES), help="Only this one; may be repeated."
)
@click.option("--jobs", type=click.IntRange(1), help="Processes side by side.  [default: all cores]")
@click.option("--dtype", "dtypes", multiple=True, type=click.Choice(table.ALL), help="Only this type; may be repeated.")
def warmup(operators, dtypes, jobs):
    """Compile the kernels ahead, into the cache that sessions load them from.

    Otherwise the first session that uses an operator with an element type compiles it, in one to three seconds. Without
    --dtype: floats, all of which take some minutes.

    \b
    Examples:
      onnx-ops warmup
      onnx-ops warmup --operator GridSample --dtype float32 --dtype float16
    """
    from .. import warmup

    with progress() as bar:
        task = bar.add_task("compiling", total=None)

        def show(done, index, total):
            bar.update(task, description=done, completed=index, total=total)

        count = warmup(operators or None, dtypes or None, jobs=jobs, progress=show)
    say(f"{count} kernels are in the cache")
