"""Compare results in float32 with the operators' references, which sum in float64."""

import numpy as np
import peers
from rich.table import Table

from onnx_ops import functions

from .measure import OWN


def errors(case):
    """({runtime: largest error}, {runtime: largest error from exact coordinates})

    Errors are in units of the largest |value|. The specification computes a grid's coordinates in the grid's own type;
    the second reference computes them in float64. Without a grid both are the same.
    """
    inputs, results = case.inputs(), {}
    for name in (OWN, *peers.PEERS):
        try:
            results[name] = peers.PEERS[name](case, inputs)() if name != OWN else ours(case, inputs)
        except Exception:  # each peer raises its own exceptions for what it can't do
            continue
    wide = [v.astype(np.float64) if v.dtype == np.float32 else v for v in inputs]
    attributes = case.operator.values(case.attributes).by_name
    return tuple(
        {name: np.abs(y - expected).max() / np.abs(expected).max() for name, y in results.items()}
        for expected in (case.operator.reference(*arrays, **attributes) for arrays in (inputs, wide))
    )


def ours(case, inputs):
    return functions.call(case.operator, *inputs, **case.attributes)


def table_of(errors_by_case):
    """A table of [(case, its errors), ...]; the last column has the ratios of our errors to PyTorch's."""
    runtimes = (OWN, *peers.PEERS)
    table = Table("", "case", title="largest error, in units of the largest value (exact: of coordinates, too)")
    for header in (*runtimes, *(f"{name}, exact" for name in runtimes), "onnx_ops / PyTorch"):
        table.add_column(header, justify="right")
    for case, both_errors in errors_by_case:
        cells = [f"{e[name]:.1e}" if name in e else "" for e in both_errors for name in runtimes]
        ratios = [f"{e[OWN] / e['PyTorch']:.2f}" for e in both_errors if e.get("PyTorch")]
        table.add_row(case.op_type, case.name, *cells, " ".join(ratios))
    return table
