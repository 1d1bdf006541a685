"""The command line, called in this process."""

import inspect

from click.testing import CliRunner

from onnx_ops.cli.app import app

# click 8.1 mixes both outputs unless it is told not to; newer versions never do.
RUNNER = CliRunner(**{name: False for name in ("mix_stderr",) if name in inspect.signature(CliRunner).parameters})


def invoke(*arguments):
    """Run a command; return click's Result, with `stdout` and `stderr` apart."""
    return RUNNER.invoke(app, list(map(str, arguments)))
