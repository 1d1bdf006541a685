"""The command line, called in this process."""

import inspect
import json
from pathlib import Path
from typing import Any

import onnx
from click.testing import CliRunner, Result

from onnx_ops.cli.app import app

# click 8.1 leaves what is written to stderr out of `output` if it is to keep it apart; newer
# versions have both.
APART: dict[str, Any] = {
    name: False for name in ("mix_stderr",) if name in inspect.signature(CliRunner).parameters
}


def invoke(*arguments: object, apart: bool = False) -> Result:
    """Run a command; return click's Result, with all that is written in `output`.

    apart  whether the Result has `stderr`, and `stdout` without it
    """
    return CliRunner(**APART if apart else {}).invoke(app, list(map(str, arguments)))


def call(*arguments: object, exit_code: int = 0) -> str:
    """Run a command, assert its exit code and return what it prints."""
    done = invoke(*arguments)
    assert done.exit_code == exit_code, done.output
    return done.output


def call_json(*arguments: object, exit_code: int = 0) -> Any:
    done = invoke(*arguments, "--json")
    assert done.exit_code == exit_code, done.output
    return json.loads(done.stdout)


def sentences(*arguments: object, exit_code: int = 2) -> str:
    """Run a command that is refused, assert its exit code and return what it prints, in one
    line.
    """
    return " ".join(call(*arguments, exit_code=exit_code).split())


def saved(proto: onnx.ModelProto, directory: Path) -> Path:
    onnx.save(proto, directory / "model.onnx")
    return directory / "model.onnx"
