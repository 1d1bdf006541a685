"""The command line, called in this process."""

import inspect

from click.testing import CliRunner

from onnx_ops.cli.app import app

# click 8.1 leaves what is written to stderr out of `output` if it is to keep it apart; newer
# versions have both.
APART = {name: False for name in ("mix_stderr",) if name in inspect.signature(CliRunner).parameters}


def invoke(*arguments, apart=False):
    """Run a command; return click's Result, with all that is written in `output`.

    apart  whether the Result has `stderr`, and `stdout` without it
    """
    return CliRunner(**APART if apart else {}).invoke(app, list(map(str, arguments)))
