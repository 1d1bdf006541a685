"""The benchmark runs, and its figures follow from its measurements. It has its own processes, as it adds operators."""

import json

import pytest
from support.backends import HAVE_EXTENSIONS, ORT_VERSION
from support.processes import TESTS, python
from support.selection import on_demand

BENCH = TESTS.parent / "scripts" / "bench.py"
NEEDS_A_PEER = pytest.mark.skipif(ORT_VERSION < (1, 21), reason="it has no GridSample of version 22")
DIFFERING = """
import numpy as np
import peers
from benchmark import measure
from benchmark.cases import grid_sample

wrong = lambda *arguments: lambda: peers.builtin(*arguments)() + np.float32(0.1)
peers.PEERS = {"right": peers.builtin, "wrong": wrong}
(row,) = measure.measure([grid_sample(1, 1, (4, 4))], "", 1, ("right", "wrong"), (1, 1), 0)
assert row.differ == ["wrong"], row.differ
assert "right" in row.seconds and "wrong" not in row.seconds, row.seconds
"""


def bench(*arguments):
    code = f"import runpy, sys; sys.argv[0] = {str(BENCH)!r}; runpy.run_path(sys.argv[0], run_name='__main__')"
    return python(code, "--group", "baseline", *arguments).stdout


@pytest.mark.long
@on_demand
@NEEDS_A_PEER
def test_times_and_ratios(tmp_path):
    file = tmp_path / "times.json"
    assert "N1 C1 4x4 -> 6x6, bilinear zeros" in bench("--quick", "--only", "4x4 -> 6x6", "--json", str(file))
    (row,) = json.loads(file.read_text())
    times, runtimes = row["milliseconds"], {"onnx_ops", "ONNX Runtime", *["extensions"] * HAVE_EXTENSIONS}
    assert runtimes | {f"{name} run" for name in runtimes} | {"limit"} <= times.keys()
    assert min(times.values()) > 0
    assert row["bytes"] == 4 * (4 * 4 + 6 * 6 * 2 + 6 * 6)
    # With one turn the median of ratios is the ratio of the times.
    assert row["of_limit"] == pytest.approx(times["limit"] / times["onnx_ops"])
    peers = times.keys() & {"ONNX Runtime", "PyTorch", "OpenVINO"}
    assert row["to_fastest_peer"] == pytest.approx(min(times[p] for p in peers) / times["onnx_ops"])


@on_demand
@NEEDS_A_PEER
def test_a_result_that_differs_is_not_timed():
    python(DIFFERING)
