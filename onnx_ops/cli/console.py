"""The output of commands: lines, tables, progress bars, JSON, and the format of values."""

from __future__ import annotations

import json
import math
import re
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import click
import numpy as np
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from ..declaration.errors import escaped

WIDTH = 120  # of tables that are not written to a terminal
PREFIXES = re.compile(  # that ONNX Runtime puts before the text of an error
    r"\[ONNXRuntimeError\] : \d+ : \w+ : |Load model from \S+ failed: ?|"
    r"Exception during initialization: |"
    r"Non-zero status code returned while running .*? Status Message: |"
    r"This is an invalid model\. .*?, Error |"
    r"/\S+:\d+ .*?\) (const )?"
)


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from typing import Any, NoReturn, TypeVar

    from rich.console import JustifyMethod
    from rich.progress import Task

    from ..model.types import Dimension

    T = TypeVar("T")


class Screen(Console):
    def on_broken_pipe(self) -> NoReturn:
        """Raise the error that is being handled again, for app.py.

        Rich would end the process with 1.
        """
        raise


def console(stderr: bool = False) -> Screen:
    # Names may have ":x:", which would become an emoji.
    screen = Screen(stderr=stderr, highlight=False, emoji=False)
    if not screen.is_terminal:
        screen.width = WIDTH
    return screen


class CompilationColumn(ProgressColumn):
    """A column of all progress bars that shows the compilation in progress.

    title  of the operator, or None
    bars   number of progress bars
    line   a separate bar, if there is no other
    """

    title: str | None = None
    bars = 0
    line: Progress | None = None

    def render(self, task: Task) -> Text:
        return Text(f"compiling {self.title} (once, a few seconds)" if self.title else "")

    @classmethod
    def show(cls, title: str | None) -> None:
        """Show that an operator's kernels are being compiled; None: compilation has ended."""
        cls.title = title
        if cls.line:
            cls.line.stop()
            cls.line = None
        elif title and not cls.bars:
            cls.line = Progress(
                SpinnerColumn(), cls(), TimeElapsedColumn(), console=console(True), transient=True
            )
            cls.line.add_task("")
            cls.line.start()


@contextmanager
def progress(*extra_columns: ProgressColumn) -> Iterator[Progress]:
    """Show a transient progress bar on stderr, with extra columns, if stderr is a terminal."""
    screen = console(stderr=True)
    CompilationColumn.bars += 1
    try:
        bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            *extra_columns,
            CompilationColumn(),
            console=screen,
            transient=True,
        )
        # Rich 13.0 ends a disabled bar by an empty line.
        with bar if screen.is_terminal else nullcontext():
            yield bar
    finally:
        CompilationColumn.bars -= 1


def steps(items: Collection[T], name: Callable[[T], str]) -> Iterator[T]:
    """Yield the `items` with a progress bar that shows `name(item)`."""
    with progress() as bar:
        task = bar.add_task("", total=len(items))
        for item in items:
            bar.update(task, description=escaped(name(item)))
            yield item
            bar.advance(task)


def table(
    title: str, columns: Iterable[str], rows: Iterable[Iterable[object]], fixed: int = 0
) -> None:
    """Print a table of values or Texts. A hidden "|" at a header's end aligns the column to the
    right.

    fixed  number of first columns that aren't made narrower for a narrow terminal
    """
    say("")
    say(title, "bold")
    rich_table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for k, column in enumerate(columns):
        side: JustifyMethod = "right" if column.endswith("|") else "left"
        rich_table.add_column(column.rstrip("|"), justify=side, overflow="fold", no_wrap=k < fixed)
    for row in rows:
        rich_table.add_row(*(v if isinstance(v, Text) else Text(escaped(str(v))) for v in row))
    console().print(rich_table)


def say(text: str, style: str | None = None) -> None:
    """Print one line."""
    console().print(escaped(text), style=style, markup=False, soft_wrap=True)


def print_json(data: object) -> None:
    text = json.dumps(finite(data), indent=2, default=str, allow_nan=False)
    # The only control character that json leaves as it is.
    click.echo(text.replace("\x7f", r"\u007f"))


def finite(data: Any) -> Any:
    """Replace infinities and NaN, which JSON lacks, by None, and NumPy's scalars by Python's."""
    if isinstance(data, dict):
        return {name: finite(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return list(map(finite, data))
    value = data.item() if isinstance(data, np.generic) else data
    return None if isinstance(value, float) and not math.isfinite(value) else value


def dimensions(dims: Iterable[Dimension]) -> str:
    """Return a shape's text, as [N, 3, ?, ?]; ? stands for an unknown dimension."""
    return f"[{', '.join('?' if d is None else str(d) for d in dims)}]"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 1 else f"{seconds * 1e3:.0f}"


def format_difference(value: float) -> str:
    """Return the text of a numerical difference: two digits and an exponent, or 0."""
    return "0" if value == 0 else f"{value:.1e}"


def one_line(error: BaseException) -> str:
    """Return an exception's text on one line, escaped, without ONNX Runtime's prefixes."""
    text = escaped(" ".join(str(error).split())) or type(error).__name__
    begin = 0
    while prefix := PREFIXES.match(text, begin):
        begin = prefix.end()
    return text[begin:]
