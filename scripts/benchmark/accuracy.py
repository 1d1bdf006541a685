"""How far results in float32 are from the operators' references, which add up in float64."""

import numpy as np
import peers
from rich.table import Table

from onnx_ops import functions
from onnx_ops.declaration import Record

from .measure import OWN


def errors(case):
    """({runtime: largest error}, {runtime: the same where the coordinates are in float64, too})

    Errors are in units of the largest |value|. The specification computes a grid's coordinates in the grid's own type;
    the second number says what that costs. It is the same as the first for operators without a grid.
    """
    inputs, found = case.inputs(), {}
    for name in (OWN, *peers.PEERS):
        try:
            found[name] = peers.PEERS[name](case, inputs)() if name != OWN else ours(case, inputs)
        except Exception:  # each peer has its own for what it can't do
            continue
    wide = [v.astype(np.float64) if v.dtype == np.float32 else v for v in inputs]
    parameters = Record(case.operator.resolved(case.attributes)[0])
    return tuple(
        {name: np.abs(y - expected).max() / np.abs(expected).max() for name, y in found.items()}
        for expected in (case.operator.reference(parameters, *given) for given in (inputs, wide))
    )


def ours(case, inputs):
    return functions.call(case.operator, *inputs, **case.attributes)


def table(found):
    """found: [(case, its errors), ...]; the last column is ours over PyTorch's, of both kinds."""
    runtimes = (OWN, *peers.PEERS)
    made = Table("", "case", title="largest error, in units of the largest value (exact: of coordinates, too)")
    for header in (*runtimes, *(f"{name}, exact" for name in runtimes), "onnx_ops / PyTorch"):
        made.add_column(header, justify="right")
    for case, both in found:
        cells = [f"{e[name]:.1e}" if name in e else "" for e in both for name in runtimes]
        ratios = [f"{e[OWN] / e['PyTorch']:.2f}" for e in both if e.get("PyTorch")]
        made.add_row(case.op_type, case.name, *cells, " ".join(ratios))
    return made
