"""`onnx-ops list`: the operators. `onnx-ops versions`: the installation, for bug reports."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import distributions
from typing import TYPE_CHECKING

import click
import onnxruntime
from rich.text import Text

from .. import OpError, operators, system
from .arguments import json_option
from .console import print_json, table

if TYPE_CHECKING:
    from collections.abc import Sequence


PACKAGES = "onnx", "num", "llvm", "torch"  # prefixes of packages' names


def backends() -> dict[str, str | None]:
    """Return {backend: None if it works here, else the reason}."""
    from ..native import library
    from ..session.native_backend import get_library_path

    native = functions = None
    try:
        get_library_path()
    except OpError as error:
        native = error.rule
    if not library.have_numba() and (native or not library.is_complete()):
        functions = "works, but slowly: Numba can't be imported"
    return {"native": native, "extensions": library.extensions_obstacle(), "functions": functions}


def versions() -> dict[str, object]:
    """Return {package, or part of the installation: its version, name or state}."""
    from ..compiler.cache import directory

    packages = {p.name: p.version for p in distributions() if (p.name or "").startswith(PACKAGES)}
    return dict(sorted(packages.items())) | {
        "Python": sys.version,
        "system": platform.platform(),
        "CPU": system.cpu_name(),
        "CPUs": len(system.available_cpus()),
        "providers": ", ".join(onnxruntime.get_available_providers()),
        "cache": directory(),
        **{f"backend {name}": obstacle or "works" for name, obstacle in backends().items()},
        **{
            name: value
            for name, value in os.environ.items()
            if name.startswith(("NUMBA_", "ONNX_OPS_"))
        },
    }


@click.command("versions")
@json_option
def show_versions(as_json: bool) -> None:
    """Show the installation, for bug reports.

    This includes versions, system, CPU, cache and working backends.

    \b
    Examples:
      onnx-ops versions
      onnx-ops versions --json
    """
    installed = versions()
    print_json(installed) if as_json else table("versions", ("part", "version"), installed.items())


@click.command("list")
@json_option
def list_operators(as_json: bool) -> None:
    """List the operators with their versions and data types.

    \b
    Examples:
      onnx-ops list
      onnx-ops list --json
    """
    declared = operators()
    if as_json:
        print_json({"operators": declared})
        return
    table(
        "operators",
        ("operator, domain", "versions", "ranks", "data types, in sessions"),
        [
            (
                # In one column, for narrow terminals.
                Text(f"{o['name']}\n{o['domain'] or 'ai.onnx'}"),
                ", ".join(map(str, o["versions"])),
                listed(o["ranks"]),
                Text("\n".join(f"{v}: {' '.join(names)}" for v, names in o["dtypes"].items())),
            )
            for o in declared
        ],
        fixed=3,
    )


def listed(ranks: Sequence[int]) -> str:
    """Return the text of ranks: "3", "3, 4", or "3 to 16" for more without a gap."""
    is_range = len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1
    return f"{ranks[0]} to {ranks[-1]}" if is_range else ", ".join(map(str, ranks))
