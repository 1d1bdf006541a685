"""Sessions of a model made in other processes, which a model or an operator may end."""

from __future__ import annotations

import logging
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from .. import system
from ..declaration.errors import as_text
from ..model.external_data import model_in
from ..model.nodes import model_nodes
from ..model.operator_files import use_file
from ..session.runner import open_session
from .console import one_line
from .reading import title_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import Any

    from ..session.types import AnyBackend
    from .types import Report


PROGRAM = "from onnx_ops.cli.attempts import attempt; attempt(*{!a})"
WAYS = {  # {kind of session: arguments of `open_session`}
    "ONNX Runtime alone": ("builtin", False),
    "onnx_ops": ("native", False),
    "onnx_ops, optimize=True": ("native", True),
    "onnx_ops, backend extensions": ("extensions", False),
}


def attempts(path: Path, files: Iterable[Path], is_lowered: bool) -> list[Report]:
    """Make sessions of a model, each in a process of its own.

    files  of custom operators

    Returns for each {"session": its title, "error": text or None, "node": name of the node that is
    refused, or None}.
    """
    *unlowered, lowered = WAYS
    results = []
    for session in [unlowered[0], lowered] if is_lowered else unlowered:
        error = error_in_process(str(path), [str(file) for file in files], *WAYS[session])
        results.append(
            {
                "session": session,
                "error": error,
                "node": refused_node(path, error) if error else None,
            }
        )
    return results


def error_in_process(*arguments: Any) -> str | None:
    """Return the error of `attempt` with these arguments, in another process, or None."""
    done = subprocess.run(
        system.python(PROGRAM.format(arguments)), capture_output=True, text=True, errors="replace"
    )
    *_, last_line = "it printed nothing", *filter(str.strip, done.stderr.splitlines())
    if done.returncode < 0:
        number = -done.returncode
        return f"the process was ended by signal {number}, {signal.strsignal(number)}: {last_line}"
    return last_line if done.returncode else None


def attempt(path: str, files: list[str], backend: AnyBackend, optimize: bool) -> None:
    """Make a session; exit with its error if there is one."""
    logging.getLogger("onnx_ops").setLevel(logging.ERROR)
    try:
        for file in files:
            use_file(file)
        open_session(path, backend, optimize=optimize)
    except Exception as error:
        sys.exit(one_line(error))


def refused_node(path: Path, error: str) -> str | None:
    """Return the node that an error names, or the only one with the operator that it names."""
    nodes = list(model_nodes(model_in(path)))
    names = [as_text(node.name) for node in nodes if node.name]
    named = [
        name
        for name in names
        if re.search(rf"(?i:node|name):? ?['\"(]{re.escape(name)}['\")]", error)
    ]
    if named:
        return max(named, key=len)
    pattern = r"\b{0}\(|\({0}\)|\bfor {0}\b"
    refused = [
        node for node in nodes if re.search(pattern.format(re.escape(as_text(node.op_type))), error)
    ]
    return title_of(refused[0]) if len(refused) == 1 else None
