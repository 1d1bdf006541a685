"""Options, tables, progress bars and JSON that several commands share."""

import json
import math
import os
import re
import sys
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ..operators import available, own_operators
from ..runtime.model import imported_domains

WIDTH = 120  # of tables that are not written to a terminal
ORT_FORMAT = ".ort"  # suffix of ONNX Runtime's own format, which nothing else can read


def names():
    """Return the names of all operators that there are."""
    return sorted({name for _, name in available()})


class OperatorName(click.ParamType):
    """A parameter that is one of `names`, which include those of operators of one's own."""

    name = "operator"

    def convert(self, value, parameter, context):
        if value not in names():
            self.fail(f"{value!r} must be one of {', '.join(names())}.", parameter, context)
        return value


def is_model(ctx, parameter, path):
    if path.suffix != ORT_FORMAT and not imported_domains(path):
        raise click.BadParameter(f"{path} is no ONNX model, or a damaged one.")
    return path


def model_file(name, metavar=None):
    kind = click.Path(exists=True, dir_okay=False, path_type=Path)
    return click.argument(name, metavar=metavar, type=kind, callback=is_model)


def own_files():
    """Return the files with operators of one's own that this process uses."""
    return sorted({sys.modules[operator.source].__file__ for operator in own_operators()})


def check_targets(targets, sources):
    """Raise an error if one of the files `targets`, which are to be written, is one of `sources`, which are read."""
    read = {identity(path): path for path in sources if os.path.exists(path)}
    for path in targets:
        if os.path.exists(path) and (source := read.get(identity(path))):
            raise click.UsageError(f"{path} would replace {source}, which is read; choose another output.")


def identity(path):
    """Return what is equal for all names of a file: in letters of the other case, through links, in other mounts."""
    status = os.stat(path)
    return status.st_dev, status.st_ino


model_argument = model_file("model")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
threads_option = click.option("--threads", type=click.IntRange(1), help="Threads per session.  [default: all cores]")


class Screen(Console):
    def on_broken_pipe(self):
        """Raise the error that is being handled again, for endings.py. Rich would end the process with 1."""
        raise


def console(stderr=False):
    screen = Screen(stderr=stderr, highlight=False)
    return screen if screen.is_terminal else Screen(stderr=stderr, highlight=False, width=WIDTH)


def progress(*more):
    """A progress bar on stderr, with `more` columns, which disappears at its end; none if stderr is no terminal."""
    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    screen = console(stderr=True)
    return Progress(*columns, *more, console=screen, transient=True, disable=not screen.is_terminal)


def steps(items, name):
    """Yield the `items` with a progress bar that shows `name(item)`."""
    with progress() as bar:
        task = bar.add_task("", total=len(items))
        for item in items:
            bar.update(task, description=name(item))
            yield item
            bar.advance(task)


def compiling(work):
    """Return work(progress=...), which compiles, with a progress bar that shows what is being compiled."""
    with progress() as bar:
        task = bar.add_task("compiling", total=None)
        return work(
            progress=lambda name, index, total: bar.update(task, description=name, completed=index, total=total)
        )


def table(title, columns, rows):
    """Print a table of values or Texts. A "|" at a header's end, which is not shown, aligns the column to the right."""
    say(f"\n{title}", "bold")
    rich_table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        rich_table.add_column(column.rstrip("|"), justify="right" if column.endswith("|") else "left", overflow="fold")
    for row in rows:
        rich_table.add_row(*(v if isinstance(v, Text) else Text(str(v)) for v in row))
    console().print(rich_table)


def say(text, style=None):
    console().print(text, style=style, markup=False, soft_wrap=True)


def print_json(data):
    click.echo(json.dumps(finite(data), indent=2, default=str, allow_nan=False))


def finite(data):
    """Return the data with None in place of infinities and NaN, which JSON lacks."""
    if isinstance(data, dict):
        return {name: finite(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return list(map(finite, data))
    return None if isinstance(data, float) and not math.isfinite(data) else data


def milliseconds(seconds):
    return f"{seconds * 1e3:.3g}" if seconds < 1 else f"{seconds * 1e3:.0f}"


def format_difference(value):
    """Return the text of a numerical difference: two digits and an exponent, or 0."""
    return "0" if value == 0 else f"{value:.1e}"


def reason(error):
    """Return an exception's text on one line, without the prefixes that ONNX Runtime adds."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    text = re.sub(r"^Load model from \S+ failed: ?", "", text)
    text = re.sub(r"^Exception during initialization: ", "", text)
    text = re.sub(r"^Non-zero status code returned while running .*? Status Message: ", "", text)
    text = re.sub(r"^This is an invalid model\. .*?, Error ", "", text)
    return re.sub(r"^/\S+:\d+ .*?\) (const )?", "", text)
