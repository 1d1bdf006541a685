"""Arguments and options of several commands."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from ..arrays.comparison import TOLERANCES
from ..model.files import USE_ONNX, imports_and_nodes, is_ort_format
from ..native.threads import MOST
from ..registry import available, custom_operators

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from click.decorators import FC

    from ..model.types import PathLike
    from .types import Tolerances


def names() -> list[str]:
    """Return the names of all operators, including custom ones in use."""
    return sorted({name for _, name in available()})


class OperatorName(click.ParamType):
    """A parameter that is one of `names`."""

    name = "operator"

    def convert(
        self, value: str, parameter: click.Parameter | None, context: click.Context | None
    ) -> str:
        if value not in names():
            self.fail(f"{value!r} must be one of {', '.join(names())}.", parameter, context)
        return value

    def shell_complete(
        self, context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(name) for name in names() if name.startswith(incomplete)]


class ModelFile(click.Path):
    """A parameter that is the path of a model."""

    other_endings: tuple[str, ...] = ()  # endings of other files that it may be

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False, path_type=Path)

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> Path | str:
        path = super().convert(value, parameter, context)
        assert isinstance(path, Path)  # its type above
        if not path.is_file():
            self.fail(
                f"{path} must be an ordinary file, as it is read more than once.",
                parameter,
                context,
            )
        if path.suffix in self.other_endings:
            return path
        if is_ort_format(path):
            self.fail(f"{path} {USE_ONNX}.", parameter, context)
        if not imports_and_nodes(path)[0]:
            self.fail(f"{path} is no ONNX model, or a damaged one.", parameter, context)
        return path


# Parameters that are paths to be written.
TARGET_FILE = click.Path(dir_okay=False, path_type=Path)
TARGET_FOLDER = click.Path(file_okay=False, path_type=Path)

OUTPUT_FILES = (".npz", ".npy", ".pb")  # endings of files with outputs of another runtime


class Peer(ModelFile):
    """The parameter of --compare: a name, or the path of a model or of its outputs."""

    other_endings = OUTPUT_FILES

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> Path | str:
        return (
            value
            if value in ("builtin", "reference")
            else super().convert(value, parameter, context)
        )


model_argument = click.argument("model", type=ModelFile())
operator_option = click.option(
    "--operator",
    "operators",
    multiple=True,
    type=OperatorName(),
    help="Only this operator; may be repeated.",
)
jobs_option = click.option(
    "--jobs", type=click.IntRange(1, MOST), help="Parallel processes.  [default: all cores]"
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
threads_option = click.option(
    "--threads", type=click.IntRange(1, MOST), help="Threads per session.  [default: all cores]"
)


def tolerance_option(help_text: str) -> Callable[[FC], FC]:
    """Return an option with the value {data type: tolerance}, for `comparison.difference`."""

    def by_type(
        context: click.Context, parameter: click.Parameter, value: float | None
    ) -> Tolerances:
        if value is not None and not value >= 0:  # nor NaN, which nothing exceeds
            raise click.BadParameter(f"{value} is not a number of at least 0")
        return TOLERANCES if value is None else dict.fromkeys(TOLERANCES, value)

    return click.option("--tolerance", "tolerances", type=float, callback=by_type, help=help_text)


def named_files() -> Sequence[Path]:
    """Return the files that --operators names."""
    return click.get_current_context().find_root().params.get("custom", ())


def program_with_operators() -> str:
    """Return the text of a call of `onnx-ops` with the same --operators, up to the command."""
    return " ".join(["onnx-ops", *(f"--operators {quote(str(path))}" for path in named_files())])


def custom_files() -> list[Path]:
    """Return the files with custom operators.

    These are the files of --operators, and those with the operators' functions.
    """
    of_bodies = [
        Path(sys.modules[operator.source].__file__ or "") for operator in custom_operators()
    ]
    return sorted({path.resolve() for path in (*named_files(), *of_bodies)})


def check_targets(targets: Iterable[PathLike], sources: Iterable[PathLike]) -> None:
    """Raise an error if an output file is also read: as a source, or for operators."""
    read = {identity(path): path for path in (*sources, *custom_files()) if os.path.exists(path)}
    for path in targets:
        if os.path.exists(path) and (source := read.get(identity(path))):
            raise click.UsageError(
                f"{path} would replace {source}, which is read; choose another output."
            )


def identity(path: PathLike) -> tuple[int, int]:
    """Return a key that is equal for all paths of a file.

    Paths may differ in case, lead through links, or be in other mounts.
    """
    status = os.stat(path)
    return status.st_dev, status.st_ino
