"""The group of all commands, with their errors, warnings and exit codes."""

from __future__ import annotations

import logging
import os
import sys
import traceback
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .. import __version__, system
from ..declaration.errors import escaped
from ..model.operator_files import use_file
from . import data
from .bench import bench
from .compile import build, warmup
from .console import CompilationColumn, console, one_line
from .demo import demo
from .execute import execute
from .inspect import inspect
from .list import list_operators, show_versions
from .make_test import make_test
from .rewrite import lower, optimize
from .run import run
from .validate import validate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO, Any


HINT = (
    "\nnext: see what onnx-ops inspect says; custom operators: onnx-ops --operators FILE, "
    "before the command"
)
FAILED, INTERRUPTED, CLOSED_PIPE = 3, 130, 141  # the last two as in a shell: 128 + signal
WRITERS = "click", "rich"  # packages that write all of the output, and no other files


class Application(click.Group):
    def main(self, *args: Any, **kwargs: Any) -> Any:
        with endings():  # click writes its own messages in here
            return super().main(*args, **kwargs)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with endings():  # click writes the texts of --help and --version in here
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with shown_warnings(ctx.params["traceback"]), failures(ctx.params["traceback"]), endings():
            try:
                return super().invoke(ctx)
            except click.NoSuchOption as error:
                if any(error.option_name in parameter.opts for parameter in self.get_params(ctx)):
                    where = f"onnx-ops {error.option_name} ... {ctx.invoked_subcommand}"
                    vars(error).update(
                        message=f"{error.option_name} goes before the command: {where}",
                        possibilities=[],
                    )
                raise


class Failure(click.ClickException):
    exit_code = FAILED


@contextmanager
def failures(with_traceback: bool) -> Iterator[None]:
    """Turn an exception into a message that ends the command, after its traceback on request."""
    try:
        yield
    except click.ClickException as error:
        vars(error)["message"] = escaped(error.message)
        raise
    except (click.exceptions.Exit, click.Abort):
        raise
    except Exception as error:
        if with_traceback:
            click.echo(escaped(traceback.format_exc(), kept="\n"), err=True)
        text = one_line(error)
        raise Failure(text + HINT if "is not a registered function/op" in text else text) from error


@contextmanager
def endings() -> Iterator[None]:
    """End the process with a special exit code for some endings.

    These are Ctrl-C, a closed pipe, and output that can't be written.
    """
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:
        if not is_of_output(error):
            raise
        is_closed = system.is_closed_pipe(error)
        if not is_closed:
            with suppress(OSError):
                click.echo(f"Error: the output can't be written: {error.strerror}", err=True)
        for stream in sys.stdout, sys.stderr:
            discard_rest(stream)
        sys.exit(CLOSED_PIPE if is_closed else FAILED)


def is_of_output(error: OSError) -> bool:
    """Return whether an OSError comes from writing to stdout or stderr."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals["__name__"].partition(".")[0] in WRITERS


def discard_rest(stream: IO[str]) -> None:
    """Discard what a stream couldn't write: Python would try again at exit, and fail."""
    try:
        stream.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


@contextmanager
def shown_warnings(with_tracebacks: bool) -> Iterator[None]:
    """Show Python's warnings and this package's log messages as lines on stderr, each text once.

    with_tracebacks  also show tracebacks of exceptions in bodies of operators, which are logged at
                     level DEBUG
    """
    log = logging.getLogger("onnx_ops")
    handler = WarningLines()
    level = log.level
    if with_tracebacks:
        handler.setLevel(logging.DEBUG)
    log.setLevel(min(handler.level, log.getEffectiveLevel()))
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: handler.show(str(message))
        log.addHandler(handler)
        try:
            yield
        finally:
            log.removeHandler(handler)
            log.setLevel(level)


class WarningLines(logging.Handler):
    """A handler that writes each text once, as a warning line. On a terminal, a progress bar shows
    compilation.

    level  the minimum level of its records
    """

    def __init__(self) -> None:
        self.is_terminal = console(stderr=True).is_terminal
        super().__init__(logging.INFO if self.is_terminal else logging.WARNING)
        self.shown: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if not hasattr(record, "compiling") or (
            record.levelno == logging.WARNING and not self.is_terminal
        ):
            self.show(record.getMessage().removeprefix("onnx_ops: "))
        elif record.levelno == logging.INFO and self.is_terminal:
            CompilationColumn.show(record.compiling)

    def show(self, text: str) -> None:
        if text not in self.shown:
            self.shown.add(text)
            click.echo(f"Warning: {escaped(text)}", err=True)


# Of all commands.
SETTINGS = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
    "show_default": True,
}


@click.group(cls=Application, context_settings=SETTINGS)
@click.version_option(__version__, prog_name="onnx-ops")
@click.option("--traceback", is_flag=True, help="Show the traceback of an error.")
@click.option(
    "--operators", "custom", multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A Python file with custom operators, made by onnx_ops.operator or "
    "onnxruntime_extensions.onnx_op; may be repeated.",
)  # fmt: skip
@click.option(
    "--unpacked", type=click.IntRange(1), default=data.unpacked.get(),
    metavar="MB",
    help="Memory that an image or .npz may take as an input, unless the file itself is larger; "
    "images take 16 bytes per pixel.",
)  # fmt: skip
def app(traceback: bool, custom: tuple[Path, ...], unpacked: int) -> None:
    """Fast CPU kernels for image sampling in ONNX Runtime: GridSample, Col2Im, RoiAlign, deformable
    convolution.

    \b
    Start with:
      onnx-ops demo                   run small models with and without onnx_ops
      onnx-ops inspect model.onnx     list the nodes that onnx_ops runs, and problems
      onnx-ops bench model.onnx       measure the gain

    \b
    Exit codes:
      0    success
      1    negative result: a test failed, results differ, a node or the model will fail
      2    the command line, or a file that it names, is wrong
      3    the command failed; the last line is the reason
      130  interrupted by Ctrl-C
      141  the reader of the output has closed the pipe
    """
    data.unpacked.set(unpacked)
    for path in custom:
        use_file(path)


for command in (
    demo, list_operators, inspect, run, execute, validate, make_test, bench, build, warmup,
    optimize, lower,
    show_versions,
):  # fmt: skip
    app.add_command(command)
