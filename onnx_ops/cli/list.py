"""`onnx-ops list`: the operators, and which backends work here."""

from importlib.metadata import PackageNotFoundError, version

import click

from .. import OpError, operators
from .arguments import json_option
from .console import print_json, table


def backends():
    """Return {backend: None if it works here, or why it doesn't}."""
    from ..native import library
    from ..session.registration import get_library_path

    obstacles = {"native": None, "extensions": library.extensions_obstacle(), "functions": None}
    try:
        get_library_path()
    except OpError as error:
        obstacles["native"] = error.rule
    if not library.have_numba() and (obstacles["native"] or not library.is_complete()):
        obstacles["functions"] = "works, but slowly: Numba can't be imported"
    return obstacles


def versions():
    versions_by_package = {}
    for name in ("onnx-ops", "onnxruntime", "onnxruntime-extensions", "onnx", "numba", "numpy"):
        try:
            versions_by_package[name] = version(name)
        except PackageNotFoundError:
            versions_by_package[name] = None
    return versions_by_package


@click.command("list")
@json_option
def list_operators(as_json):
    """List the operators with their versions and element types, and the backends that work here.

    \b
    Examples:
      onnx-ops list
      onnx-ops list --json
    """
    if as_json:
        print_json({"operators": operators(), "backends": backends(), "versions": versions()})
        return
    table(
        "operators",
        ("operator", "domain", "versions", "ranks", "element types, in sessions"),
        [
            (
                o["name"],
                o["domain"] or "ai.onnx",
                ", ".join(map(str, o["versions"])),
                ", ".join(map(str, o["ranks"])),
                "\n".join(f"{v}: {' '.join(names)}" for v, names in o["dtypes"].items()),
            )
            for o in operators()
        ],
    )
    table("backends here", ("backend", "works"), [(n, "yes" if o is None else o) for n, o in backends().items()])
    table("versions", ("package", "version"), [(n, v or "not installed") for n, v in versions().items()])
