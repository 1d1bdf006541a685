"""`onnx-ops validate`: compare models with the outputs in their test data."""

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from ..arrays.comparison import difference
from ..model.attributes import unknown_in
from ..model.external_data import model_in
from ..model.nodes import declared_nodes
from ..registry import available
from .arguments import json_option, tolerance_option
from .comparison import BACKENDS, Kind, open_model
from .console import format_difference, one_line, print_json, progress, say, steps, table
from .data import read_pb


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--onnx", "with_onnx", is_flag=True, help="Also the node tests of the installed onnx for these operators."
)
@click.option(
    "--backend", type=click.Choice(BACKENDS), default="native", show_default=True, help="Implementation to test."
)
@tolerance_option("Relative to the largest expected value.  [default: by type]")
@json_option
def validate(paths, with_onnx, backend, tolerances, as_json):
    """Run models on their test data and compare the outputs.

    Tests are folders below PATHS in the layout of onnx's node tests: model.onnx beside test_data_set_0/input_0.pb,
    output_0.pb and so on. A test passes if types and shapes are equal and all values are within the tolerance. It is
    relative to the largest expected value: 2e-3 for float16, 2e-2 for bfloat16, 1e-4 for float32, 1e-7 for float64, and
    0 for other types. Attributes that an operator doesn't have are reported, since they are ignored.

    \b
    Examples:
      onnx-ops validate models/
      onnx-ops validate --onnx
      onnx-ops validate models/ --backend builtin
    """
    if not paths and not with_onnx:
        raise click.UsageError("state the folders of tests, or --onnx for the tests of the onnx package.")
    below = {path: list(tests_below(path)) for path in paths}
    if empty := [str(path) for path, tests in below.items() if not tests]:
        raise click.UsageError(f"no model.onnx next to a test_data_set_0 below {', '.join(empty)}")
    tests = [test for tests in below.values() for test in tests] + (onnx_tests() if with_onnx else [])
    results = [run_test(*test, backend, tolerances) for test in steps(tests, lambda test: test[0])]
    passed = sum(r["passed"] for r in results)
    if as_json:
        print_json({"backend": backend, "passed": passed, "failed": len(results) - passed, "tests": results})
    else:
        show(results, backend)
        say(f"{passed} of {len(results)} passed", None if passed == len(results) else "bold red")
    if passed < len(results):
        raise click.exceptions.Exit(1)


def tests_below(path):
    """Yield (name, model, function that returns its data) of each test below a folder."""
    directories, seen = [], set()
    for folder, folders, files in os.walk(path, onerror=refuse, followlinks=True):
        folders.sort()
        if os.path.realpath(folder) in seen:  # a link to a folder above it, or to one that was searched
            folders.clear()
        elif "model.onnx" in files and any(name.startswith("test_data_set_") for name in folders):
            directories.append(Path(folder))
        seen.add(os.path.realpath(folder))
    for directory in sorted(directories):
        name = str(directory.relative_to(path)) if directory != path else path.name
        yield name, directory / "model.onnx", lambda directory=directory: data_sets(directory)


def refuse(error):
    raise error


def data_sets(directory):
    """Return [(inputs, outputs)], each a list of arrays, of a test in a folder."""
    return [
        [[read_pb(file) for file in sorted(folder.glob(f"{kind}_*.pb"), key=number)] for kind in ("input", "output")]
        for folder in sorted(directory.glob("test_data_set_*"))
    ]


def number(file):
    return int(file.stem.partition("_")[2])


def onnx_tests():
    """Return [(name, model, function that returns its data)] of onnx's own tests for the declared operators."""
    with progress() as bar, warnings.catch_warnings():
        bar.add_task("collecting the tests of onnx", total=None)
        warnings.simplefilter("ignore")  # emitted by tests of other operators
        from onnx.backend.test.case.node import collect_testcases

        cases = [c for c in collect_testcases(None) if c.model and operators_in(c.model)]
    return [(f"onnx: {c.name}", c.model.SerializeToString(), lambda c=c: c.data_sets) for c in cases]


def run_test(
    name: str, model: Path | bytes, data: Callable[[], Any], backend: Kind, tolerances: dict[str, float]
) -> dict[str, Any]:
    """Run one test; return its report, as a dict."""
    report: dict[str, Any] = {"test": name, "model": None if isinstance(model, bytes) else str(model), "operators": [],
              "passed": False, "largest_error": None, "problem": "", "warnings": []}  # fmt: skip
    try:
        proto = model_in(model)
        report["operators"] = operators_in(proto)
        report["warnings"] = list(unknown_in(proto, available()))
        runner, differences = open_model(model, backend), []
        for inputs, expected in data():
            outputs = runner(dict(zip(runner.inputs, inputs, strict=True)))
            for (output, actual), array in zip(outputs.items(), expected, strict=True):
                differences.append((output, difference(actual, array, tolerances)))
        report["largest_error"] = max((d.largest for _, d in differences), default=0)
        report["problem"] = next((problem(n, d) for n, d in differences if not d.ok), "")
        report["passed"] = not report["problem"]
    except Exception as error:
        report["problem"] = one_line(error)
    return report


def problem(output, found):
    off = f"off by {format_difference(found.largest)}, allowed {format_difference(found.allowed)}"
    return f"{output}: {found.problem or off}"


def operators_in(proto):
    """Return the titles of the declared operators in a model."""
    return sorted({operator.title for _, operator in declared_nodes(proto)})


def show(results: list[dict[str, Any]], backend: str) -> None:
    """Print a table of the reports, and their warnings below it."""
    rows = [
        (
            r["test"],
            ", ".join(r["operators"]) or "none of these",
            "" if r["largest_error"] is None else format_difference(r["largest_error"]),
            "passed" if r["passed"] else Text.assemble(("failed", "bold red"), f": {r['problem']}"),
        )
        for r in results
    ]
    table(f"backend {backend}", ("test", "operators", "largest error|", "result"), rows)
    for r in results:
        for text in r["warnings"]:
            say(f"{r['test']}: {text}")
