"""The benchmark runs, and its figures follow from its measurements.

It has its own processes, as it adds operators.
"""

import json

import pytest
from support.backends import HAVE_EXTENSIONS, ORT_VERSION
from support.processes import TESTS, python
from support.selection import on_demand

BENCH = TESTS.parent / "scripts" / "measure" / "bench.py"
NEEDS_A_PEER = pytest.mark.skipif(
    ORT_VERSION < (1, 21), reason="it has no GridSample of version 22"
)
DIFFERING = """
import numpy as np
from support import peers
from benchmark import measure
from benchmark.cases import grid_sample

wrong = lambda *arguments: lambda: peers.builtin(*arguments)() + np.float32(0.1)
peers.PEERS = {"right": peers.builtin, "wrong": wrong}
(row,) = measure.measure([grid_sample(1, 1, (4, 4))], "", 1, ("right", "wrong"), (1, 1), 0)
assert row.differ == ["wrong"], row.differ
assert "right" in row.seconds and "wrong" not in row.seconds, row.seconds
"""


SCANNED = """
import numpy as np
from benchmark import drawn, scan

def outcome(seconds, of_copy, **ratios):
    case = drawn.Drawn("Col2Im", "stride 1", "a case", None, {})
    return scan.Outcome(case, 1, 4096, seconds, {**ratios, scan.COPY: of_copy})

slower, short = outcome(1e-4, 0.2, a=0.5, b=3.0, reads=0.25), outcome(1e-6, 0.2, a=0.6)
copying, faster = outcome(1e-4, 0.9, a=0.5), outcome(1e-3, 0.1, a=8.0, b=4.5)
alone = outcome(1.0, 0.5)
assert slower.is_slower
assert not any(o.is_slower for o in (short, copying, faster, alone))
*_, line = scan.summary([slower, short, copying, faster, alone])
assert line == "| Col2Im | 1 | 4 | 75 % | 25 % | 25 % | 25 % | 0.91 x | 3.50 x | 0.50 x |", line
*_, line = scan.slowest([slower, short, copying, faster, alone])
assert line == "| Col2Im: a case | 1 | 100.0 | 20.0 | 25.0 | 0.50, a |", line
"""
DRAWN = """
import numpy as np
import onnx
import onnxruntime as ort
from benchmark.drawn import DRAWS

import onnx_ops

for seed, (name, draw) in enumerate(DRAWS.items()):
    case, again = (draw(np.random.default_rng(seed)) for _ in range(2))
    assert case.name == again.name
    assert all(np.array_equal(v, again.inputs[k]) for k, v in case.inputs.items())
    onnx.checker.check_model(case.model)
    (expected,) = ort.InferenceSession(case.model.SerializeToString()).run(None, case.inputs)
    before = dict(onnx_ops.node_counts())
    session = onnx_ops.InferenceSession(case.model.SerializeToString(), optimize=True)
    operators = [k for k, count in onnx_ops.node_counts().items() if count > before.get(k, 0)]
    assert [k.rpartition(".")[2] for k in operators] == [name], (name, operators)
    (got,) = session.run(None, case.inputs)
    assert np.mean(abs(got - expected) > 4e-3) < 1e-3, case.name
"""


def bench(*arguments):
    code = f"import runpy; runpy.run_path({str(BENCH)!r}, run_name='__main__')"
    return python(code, *arguments, folders=[BENCH.parent]).stdout


@pytest.mark.long
@on_demand
@NEEDS_A_PEER
def test_times_and_ratios(tmp_path):
    file = tmp_path / "times.json"
    assert "N1 C1 4x4 -> 6x6, bilinear zeros" in bench(
        "--group",
        "baseline",
        "--quick",
        "--only",
        "4x4 -> 6x6",
        "--threads",
        "2",
        "--json",
        str(file),
    )
    (row,) = json.loads(file.read_text())
    times, runtimes = (
        row["milliseconds"],
        {"onnx_ops", "ONNX Runtime", *["extensions"] * HAVE_EXTENSIONS},
    )
    assert runtimes | {f"{name} run" for name in runtimes} | {"limit"} <= times.keys()
    assert min(times.values()) > 0
    assert row["bytes"] == 4 * (4 * 4 + 6 * 6 * 2 + 6 * 6)
    # With one turn the median of ratios is the ratio of the times.
    assert row["of_limit"] == pytest.approx(times["limit"] / times["onnx_ops"])
    peers = times.keys() & {"ONNX Runtime", "PyTorch", "OpenVINO"}
    assert row["to_fastest_peer"] == pytest.approx(min(times[p] for p in peers) / times["onnx_ops"])


@pytest.mark.long
@on_demand
@NEEDS_A_PEER
def test_a_result_that_differs_is_not_timed():
    python(DIFFERING, folders=[BENCH.parent])


@pytest.mark.long
@on_demand
@NEEDS_A_PEER
def test_the_scan(tmp_path):
    """A case on one thread and on two, with the ratios to the peers and to a copy."""
    file = tmp_path / "times.json"
    shown = bench(
        "--only",
        "Im2Col",
        "--cases",
        "1",
        "--threads",
        "1",
        "2",
        "--seconds",
        "0",
        "--json",
        str(file),
    )
    assert "seed 0" in shown
    rows = json.loads(file.read_text())
    assert [(row["operator"], row["threads"]) for row in rows] == [
        (name, threads) for name in ("Im2Col", "Im2ColProduct") for threads in (1, 2)
    ]
    for row in rows:
        assert {"ONNX Runtime", "copy"} <= row["ratios"].keys()
        assert min(row["microseconds"], row["bytes"], *row["ratios"].values()) > 0
        assert row["differ"] == []


@pytest.mark.long
@on_demand
def test_figures_of_the_scan():
    """A case is slower beyond noise only, where a copy is much faster; shares are of the cases that
    have a peer.
    """
    python(SCANNED, folders=[BENCH.parent])


@pytest.mark.long
@on_demand
@NEEDS_A_PEER
def test_cases_of_the_scan():
    """They depend on the seed only, and the models run with built-in kernels and with the operator
    in their place.
    """
    python(DRAWN, folders=[BENCH.parent])
