"""The commands together, and what becomes of their errors."""

import warnings

import click

from .. import __version__
from .bench import bench
from .common import reason
from .demo import demo
from .inspect import inspect
from .list import list_operators
from .lower import lower
from .run import run
from .validate import validate
from .warmup import warmup


class Failure(click.ClickException):
    exit_code = 3


class Application(click.Group):
    def invoke(self, ctx):
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: click.echo(f"Warning: {message}", err=True)
            try:
                return super().invoke(ctx)
            except (click.ClickException, click.exceptions.Exit, click.Abort):
                raise
            except Exception as error:
                if ctx.params["traceback"]:
                    raise
                raise Failure(reason(error)) from error


@click.group(cls=Application, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="onnx-ops")
@click.option("--traceback", is_flag=True, help="Show where in the program an error was met.")
def app(traceback):
    """Col2Im and GridSample for ONNX Runtime: complete, fast, on unmodified models.

    \b
    Start with:
      onnx-ops demo                   what it does, on models and a picture that it brings along
      onnx-ops inspect model.onnx     what it would do with a model of yours
      onnx-ops bench model.onnx       and how much faster that is

    \b
    Exit codes:
      0  done, and all is well
      1  done, and the answer is no: a test failed, results differ, a node or the model will fail
      2  the command line is wrong, or a file that it names
      3  it could not be done; the reason is the last line
    """


for command in (demo, list_operators, inspect, run, validate, bench, warmup, lower):
    app.add_command(command)
