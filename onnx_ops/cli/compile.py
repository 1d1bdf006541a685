"""`onnx-ops build` and `onnx-ops warmup`: compile kernels ahead of time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import onnx_ops

from ..compiler.cpu_levels import LEVELS, SYSTEMS
from ..native import library
from ..registry import custom_operators
from ..session.variants import TYPES
from ..system import NAME as THIS
from .arguments import (
    TARGET_FILE,
    ModelFile,
    check_targets,
    jobs_option,
    named_files,
    operator_option,
)
from .console import progress, say

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any, TypeVar

    from ..ahead.build import SystemName

    T = TypeVar("T")

dtype_option = click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    type=click.Choice(TYPES),
    help="Only this data type; may be repeated.",
)


@click.command()
@click.option(
    "--output",
    required=True,
    type=TARGET_FILE,
    help="Path of the library.",
)
@operator_option
@dtype_option
@click.option(
    "--cpu", "cpus", multiple=True, type=click.Choice(list(LEVELS)),
    help="CPU to compile for; may be repeated.  [default: all of this machine's architecture]",
)  # fmt: skip
@click.option(
    "--system", type=click.Choice(list(SYSTEMS)), help="System of the library.  [default: this one]"
)
@jobs_option
def build(
    output: Path,
    operators: tuple[str, ...],
    dtypes: tuple[str, ...],
    cpus: tuple[str, ...],
    system: SystemName | None,
    jobs: int | None,
) -> None:
    """Build a shared library of the operators.

    ONNX Runtime in C++, C#, Java, Triton or Python loads the library, without Numba. It has code
    for several generations of CPUs, and runs the newest that the machine supports. Building needs
    Numba, a C compiler and some minutes. A second build only links.

    \b
    Examples:
      onnx-ops build --output libonnx_ops.so
      onnx-ops build --output libonnx_ops.so --operator GridSample --dtype float32 --cpu x86-64-v3
      onnx-ops build --output onnx_ops.dll --system windows
      onnx-ops --operators my_ops.py build --output libmine.so
    """
    check_targets([output], [])
    if named_files() and not custom_operators():
        raise click.UsageError(
            "--operators: a library has operators of onnx_ops.operator only, and none is given."
        )
    requested = operators or custom_operators() or None
    built_for = compiling(
        onnx_ops.build,
        output,
        operators=requested,
        dtypes=dtypes,
        cpus=cpus,
        system=system,
        jobs=jobs,
    )
    say(
        f"{output}: {output.stat().st_size / 2**20:.1f} MB, for {system or THIS} on "
        f"{', '.join(built_for)}"
    )
    say(
        "In Python: options.register_custom_ops_library(path), of onnxruntime.SessionOptions; "
        "others: docs/library.md"
    )


@click.command()
@click.argument("models", metavar="[MODEL]...", nargs=-1, type=ModelFile())
@operator_option
@dtype_option
@jobs_option
def warmup(
    models: tuple[Path, ...], operators: tuple[str, ...], dtypes: tuple[str, ...], jobs: int | None
) -> None:
    """Compile kernels ahead of time, into the cache.

    Sessions load them from there. Without this command, the first session that uses an operator
    with a data type compiles it, in 3 to 10 seconds. Given models, it compiles exactly the kernels
    of their sessions. Given operators or data types, it compiles all kernels of these; the default
    data types are the floats. All operators take some minutes.

    \b
    Examples:
      onnx-ops warmup model.onnx
      onnx-ops warmup --operator GridSample --dtype float32 --dtype float16
    """
    if models and (operators or dtypes):
        raise click.UsageError("Models can't be combined with operators and types.")
    count = compiling(
        onnx_ops.warmup, operators or None, dtypes or None, models=list(models) or None, jobs=jobs
    )
    say(f"{count} {'kernel is' if count == 1 else 'kernels are'} in {cache_location()}")


def compiling(work: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Call a function that compiles, with a progress bar as its `progress`; return its result.

    Without a terminal, about 20 lines show the progress.
    """
    with progress() as bar:
        task = bar.add_task("compiling", total=None)

        def show(name: str, index: int, total: int) -> None:
            bar.update(task, description=name, completed=index, total=total)
            if not bar.console.is_terminal and 20 * index % total < 20:
                bar.console.out(f"compiling {index + 1} of {total}: {name}")

        return work(*arguments, progress=show, **options)


def cache_location() -> str:
    """Return a text on the place of compiled kernels."""
    from ..compiler.cache import directory

    locations = [f"the library, {library.PLACE}"] if library.is_complete() else []
    if custom_operators() or not locations:
        locations.append(f"the cache, {directory()}")
    return " or ".join(locations)
