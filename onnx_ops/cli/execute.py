"""`onnx-ops exec`: run a program with the operators of this package in its sessions."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click import UsageError

from .. import system
from ..session.installation import environment, settings_of
from .arguments import named_files

if TYPE_CHECKING:
    from collections.abc import Iterable


FIRST_LINES = 500  # bytes at the start of a command that name its Python
PYTHON = (
    r"#!(/\S*python\S*)",
    r"#!/usr/bin/env +(?:-S +)?(\S*python\S*)",
    # Of commands whose path is long, or has spaces.
    r"""#!/bin/sh\n'''exec' "?([^"\n]*python[^"\s]*)""",
)


# From the program on, arguments are its own.
@click.command("exec", context_settings={"allow_interspersed_args": False})
@click.option("--optimize", is_flag=True, help="Optimize each model first, as `onnx-ops optimize`.")
@click.option(
    "--verbose", is_flag=True, help="Print what each session gains, or why it gains nothing."
)
@click.option("-m", "is_module", is_flag=True, help="PROGRAM is a module.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def execute(
    optimize: bool, verbose: bool, is_module: bool, program: str, arguments: tuple[str, ...]
) -> None:
    """Run a program with sessions of onnx_ops, without changing it.

    PROGRAM is a Python script, an installed command, or with -m a module. Every
    onnxruntime.InferenceSession in it, and in Python processes that it starts, becomes an
    onnx_ops.InferenceSession. Where ONNX Runtime alone runs a model that onnx_ops refuses, ONNX
    Runtime does, with a warning. Sessions on GPUs stay as they are.

    \b
    Examples:
      onnx-ops exec --optimize rembg i photo.jpg cut.png
      onnx-ops exec --verbose service.py --port 8000
      onnx-ops exec -m my_package
    """
    command = (
        [sys.executable, "-m", program, *arguments]
        if is_module
        else command_line(program, *arguments)
    )
    files = [str(path.absolute()) for path in named_files()]
    system.become(command, environment(os.environ, settings_of(optimize, verbose, files)))


def command_line(program: str, *arguments: str) -> list[str]:
    """Return the path and arguments of a program.

    Raises UsageError if there is none, or its Python lacks onnx_ops.
    """
    if program.endswith(".py"):
        if not os.path.exists(program):
            raise UsageError(f"there is no script {program}.")
        return [sys.executable, program, *arguments]
    path = shutil.which(program)
    if path is None:
        raise UsageError(
            f"{program} must be a Python script (.py), an installed command, or -m and a module."
        )
    python, options = python_of(path, arguments)
    if python and any(re.match("-[A-Za-z]*[EIS]", option) for option in options):
        raise UsageError(
            f"{program} runs in a Python that ignores its environment ({' '.join(options)})."
        )
    if python and not has_onnx_ops(python):
        rule = "which has no onnx_ops; install it in that environment, as by pipx inject."
        raise UsageError(f"{program} runs in {python}, {rule}")
    return [path, *arguments]


def python_of(path: str, arguments: Iterable[str]) -> tuple[str | None, list[str]]:
    """Return the Python that runs a command, and its options. It is the command itself, or in its
    first lines.

    None: unknown
    """
    if re.fullmatch(r"python[\d.]*(\.exe)?", Path(path).name):
        return path, [
            *itertools.takewhile(
                lambda text: text.startswith("-") and text not in ("-m", "-c"), arguments
            )
        ]
    with open(path, "rb") as file:
        lines = file.read(FIRST_LINES).decode(errors="replace")
    for pattern in PYTHON:
        if match := re.match(pattern, lines):
            return shutil.which(match[1]), lines[match.end() :].partition("\n")[0].split()
    return None, []


def has_onnx_ops(python: str) -> bool:
    """Return whether a Python can import onnx_ops."""
    if python == sys.executable:
        return True
    statement = "from importlib.util import find_spec; raise SystemExit(not find_spec('onnx_ops'))"
    return (
        subprocess.run(
            [python, "-c", statement], cwd=Path(python).anchor, capture_output=True
        ).returncode
        == 0
    )
