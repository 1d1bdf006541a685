"""`onnx-ops build`: the operators as a library for processes without this package."""

from functools import partial
from pathlib import Path

import click

from ..compiler.cpu_levels import LEVELS
from ..runtime.variants import TYPES
from .common import OperatorName, check_targets, compiling, own_files, say


@click.command()
@click.option(
    "--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="Where the library is to be."
)
@click.option("--operator", "operators", multiple=True, type=OperatorName(), help="Only this one; may be repeated.")
@click.option("--dtype", "dtypes", multiple=True, type=click.Choice(TYPES), help="Only this type; may be repeated.")
@click.option(
    "--cpu", "cpus", multiple=True, type=click.Choice(list(LEVELS)),
    help="With code for these; may be repeated.  [default: all of this machine's architecture]",
)  # fmt: skip
@click.option("--jobs", type=click.IntRange(1), help="Processes side by side.  [default: all cores]")
def build(output, operators, dtypes, cpus, jobs):
    """Build a shared library of the operators, which ONNX Runtime loads in any process: C++, C#, Java, Triton, Python.

    It needs neither Python nor Numba, has code for several generations of CPUs, and runs the best that it can. Building
    takes Numba, a C compiler and some minutes; what has been built before is only linked.

    \b
    Examples:
      onnx-ops build --output libonnx_ops.so
      onnx-ops build --output libonnx_ops.so --operator GridSample --dtype float32 --cpu x86-64-v3
      onnx-ops --operators my_ops.py build --output libmine.so
    """
    from .. import build
    from ..operators import own_operators

    check_targets([output], own_files())
    settings = {
        "operators": operators or own_operators() or None,
        "dtypes": dtypes or None,
        "cpus": cpus or None,
        "jobs": jobs,
    }
    compiling(partial(build, output, **settings))
    say(f"{output}: {output.stat().st_size / 2**20:.1f} MB")
