"""Sessions of a model made in other processes, which a model or an operator may end."""

import logging
import re
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .. import system
from ..declaration.errors import as_text
from ..model.external_data import model_in
from ..model.nodes import model_nodes
from ..model.operator_files import use_file
from ..session.runner import open_session
from .console import one_line
from .reading import title_of

PROGRAM = "from onnx_ops.cli.attempts import attempt; attempt(*{!a})"
WAYS = {  # {kind of session: arguments of `open_session`}
    "ONNX Runtime alone": ("builtin", False),
    "onnx_ops": ("native", False),
    "onnx_ops, optimize=True": ("native", True),
    "onnx_ops, backend extensions": ("extensions", False),
}


def attempts(path: Path, files: Iterable[Path], is_lowered: bool) -> list[dict[str, Any]]:
    """Make sessions of a model, each in a process of its own.

    files  of custom operators

    Returns for each {"session": kind, "error": text or None, "node": name of the node that is refused, or None}.
    """
    *others, extensions = WAYS
    results = []
    for kind in [others[0], extensions] if is_lowered else others:
        error = error_in_process(str(path), [str(file) for file in files], *WAYS[kind])
        node = refused_node(path, error) if error else None
        results.append({"session": kind, "error": error, "node": node})
    return results


def error_in_process(*arguments: Any) -> str | None:
    """Return the error of `attempt` with these arguments, in another process, or None."""
    command = system.python(PROGRAM.format(arguments))
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    last_line = lines[-1] if lines else "it printed nothing"
    if done.returncode < 0:
        name = signal.strsignal(-done.returncode)
        return f"the process was ended by signal {-done.returncode}, {name}: {last_line}"
    return last_line if done.returncode else None


def attempt(path: str, files: list[str], backend: str, optimize: bool) -> None:
    """Make a session; exit with its error if there is one."""
    logging.getLogger("onnx_ops").setLevel(logging.ERROR)
    try:
        for file in files:
            use_file(file)
        open_session(path, backend, optimize=optimize)
    except Exception as error:
        sys.exit(one_line(error))


def refused_node(path: Path, error: str) -> str | None:
    """Return the node that an error names or, if only one node has it, the node with the operator that it names."""
    nodes = list(model_nodes(model_in(path)))
    names = [as_text(node.name) for node in nodes if node.name]
    named = [name for name in names if re.search(rf"(?i:node|name):? ?['\"(]{re.escape(name)}['\")]", error)]
    if named:
        return max(named, key=len)
    op_types = {re.escape(as_text(node.op_type)) for node in nodes}
    refused = {name for name in op_types if re.search(rf"\b{name}\(|\({name}\)|\bfor {name}\b", error)}
    of_operator = [title_of(node) for node in nodes if re.escape(as_text(node.op_type)) in refused]
    return of_operator[0] if len(of_operator) == 1 else None
