"""`onnx-ops validate`: compare outputs with those in test data.

Models compute them, or another runtime has written them.
"""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click import UsageError

from ..arrays.comparison import difference
from ..declaration import dtypes
from ..model.attributes import unknown_in
from ..model.external_data import model_in
from ..model.node_tests import tests_below
from ..model.nodes import declared_nodes
from ..registry import available
from .arguments import json_option, tolerance_option
from .comparison import BACKENDS, open_model, report_of, verdict
from .console import format_difference, one_line, print_json, progress, say, steps, table
from .data import read_test_outputs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    import onnx

    from ..arrays.comparison import Difference
    from ..session.types import Described
    from .comparison import Kind
    from .types import Compute, Report, Test, Tolerances


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--onnx",
    "with_onnx",
    is_flag=True,
    help="Also the node tests of the installed onnx for these operators.",
)
@click.option(
    "--backend", type=click.Choice(BACKENDS), default="native", help="Implementation to test."
)
@click.option(
    "--outputs", "results_folder", type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Run nothing: compare the outputs that another runtime has written into this folder.",
)  # fmt: skip
@tolerance_option("Relative to the largest expected value.  [default: by type]")
@json_option
def validate(
    paths: tuple[Path, ...],
    with_onnx: bool,
    backend: Kind,
    results_folder: Path | None,
    tolerances: Tolerances,
    as_json: bool,
) -> None:
    """Run models on their test data and compare the outputs, or compare the outputs of another
    runtime.

    Tests are folders below PATHS in the layout of onnx's node tests: model.onnx beside
    test_data_set_0/input_0.pb, output_0.pb and so on. A test passes if types and shapes are equal
    and all values are within the tolerance. It is relative to the largest expected value: 2**-9 for
    float16, 2**-6 for bfloat16, 1e-4 for float32, 1e-7 for float64, and 0 for other types.
    Attributes that an operator doesn't have are reported, since they are ignored.

    \b
    The folder of --outputs has for each test NAME one of
      NAME.npz                         all outputs, by their names
      NAME.npy                         the only output
      NAME/test_data_set_0/output_0.npy, output_0.pb or OUTPUT.npy, and so on

    \b
    Examples:
      onnx-ops validate models/
      onnx-ops validate --onnx
      onnx-ops validate models/ --backend builtin
      onnx-ops validate models/ --outputs from_another_runtime/
    """
    if results_folder and with_onnx:
        raise UsageError("--outputs is for folders of tests: it excludes --onnx.")
    if not paths and not with_onnx:
        raise UsageError("state the folders of tests, or --onnx for the tests of the onnx package.")
    below = {path: list(tests_below(path)) for path in paths}
    if empty := [str(path) for path, tests in below.items() if not tests]:
        raise UsageError(f"no model.onnx next to a test_data_set_0 below {', '.join(empty)}")
    tests: list[Test] = [test for tests in below.values() for test in tests] + (
        onnx_tests() if with_onnx else []
    )
    names = [name for name, _, _ in tests]
    if results_folder and len(set(names)) < len(names):
        raise UsageError(
            f"--outputs: several tests are called {max(names, key=names.count)}; validate one at "
            "a time."
        )
    reports = [
        run_test(*test, backend, results_folder, tolerances)
        for test in steps(tests, lambda test: test[0])
    ]
    tested = {"outputs": str(results_folder)} if results_folder else {"backend": backend}
    passed = sum(r["passed"] for r in reports)
    if as_json:
        print_json(tested | {"passed": passed, "failed": len(reports) - passed, "tests": reports})
    else:
        show_tests(reports, " ".join(*tested.items()))
        say(f"{passed} of {len(reports)} passed", None if passed == len(reports) else "bold red")
    if passed < len(reports):
        raise click.exceptions.Exit(1)


def onnx_tests() -> list[Test]:
    """Return onnx's own tests for the declared operators.

    Each is (name, model, function that returns its data).
    """
    with progress() as bar, warnings.catch_warnings():
        bar.add_task("collecting the tests of onnx", total=None)
        warnings.simplefilter("ignore")  # emitted by tests of other operators
        from onnx.backend.test.case.node import collect_testcases

        return [
            (
                f"onnx: {c.name}",
                c.model.SerializeToString(),
                partial(dict, [*enumerate(c.data_sets or ())]),
            )
            for c in collect_testcases(None)
            if c.model and titles_in(c.model)
        ]


def run_test(
    name: str,
    model: Path | bytes,
    data: Callable[[], dict[Any, Any]],
    backend: Kind,
    results_folder: Path | None,
    tolerances: Tolerances,
) -> Report:
    """Run one test, or compare its outputs in a folder; return its report, as a dict."""
    report: Report = {
        "test": name,
        "model": None if isinstance(model, bytes) else model,
        "operators": [],
        "passed": False,
        "largest_error": None,
        "problem": "",
        "warnings": [],
    }
    try:
        proto = model_in(model)
        report["operators"] = titles_in(proto)
        report["warnings"] = list(unknown_in(proto, available()))
        compute = (
            computed_by(model, backend)
            if results_folder is None
            else written_in(results_folder, name, Path(str(model)).parent, proto)
        )
        differences = list(differences_of(compute, data(), tolerances))
        report["largest_error"] = max((d.largest for _, d in differences), default=0)
        report["problem"] = next(
            (f"{n}: {verdict(report_of(n, d))}" for n, d in differences if not d.ok), ""
        )
        report["passed"] = not report["problem"]
    except Exception as error:
        report["problem"] = one_line(error)
    return report


def differences_of(
    compute: Compute, data: dict[Any, Any], tolerances: Tolerances
) -> Iterator[tuple[str, Difference]]:
    """Yield (output, its Difference from the expected one) for all data of a test."""
    for folder, (inputs, expected) in data.items():
        outputs = compute(folder, inputs)
        if len(outputs) != len(expected):
            raise ValueError(
                f"{folder} has {len(expected)} output_*.pb, and the model {len(outputs)} outputs"
            )
        for (output, actual), array in zip(outputs.items(), expected, strict=True):
            yield output, difference(actual, array, tolerances)


def computed_by(model: Path | bytes, backend: Kind) -> Compute:
    """Return the function that computes the outputs."""
    runner = open_model(model, backend)
    return lambda folder, inputs: runner(dict(zip(runner.inputs, inputs, strict=True)))


def written_in(results_folder: Path, name: str, test: Path, proto: onnx.ModelProto) -> Compute:
    """Return the function that reads a test's outputs of another runtime.

    results_folder  the folder of that runtime's outputs
    test            the folder of the test
    """
    outputs: Described = {
        o.name: (dtypes.NAMES.get(o.type.tensor_type.elem_type), ()) for o in proto.graph.output
    }
    return lambda folder, inputs: read_test_outputs(results_folder / name, test, folder, outputs)


def titles_in(proto: onnx.ModelProto) -> list[str]:
    """Return the titles of the declared operators in a model."""
    return sorted({operator.title for _, operator in declared_nodes(proto)})


def show_tests(results: list[Report], title: str) -> None:
    """Print a table of the reports, and their warnings below it."""
    rows = [
        (
            r["test"],
            ", ".join(r["operators"]) or "none of these",
            "" if r["largest_error"] is None else format_difference(r["largest_error"]),
            "passed" if r["passed"] else f"failed: {r['problem']}",
        )
        for r in results
    ]
    table(title, ("test", "operators", "largest error|", "result"), rows)
    for r in results:
        for text in r["warnings"]:
            say(f"{r['test']}: {text}")
