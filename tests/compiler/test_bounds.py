"""No kernel accesses memory outside of its tensors: two oracles say so, and each detects a planted
mistake.
"""

import signal
import sys

import pytest
from support.pages import operator_file
from support.processes import TESTS, copy_package, python
from support.selection import on_demand

from onnx_ops.native.execute import EXCEPTION

HERE = TESTS
BREAKS = {
    "reads past the end": ("x[i]", "x[i + g.size]"),
    "reads before the start": ("x[i]", "x[i - 2 * g.size]"),
    "writes past the end": ("out[i] =", "out[i + g.size] ="),
}


SHIFT = """
import sys
sys.path[:0] = ['.', sys.argv[1]]
import numpy as np, onnx, onnx_ops
from onnx import helper
from onnx_ops.native import execute
from support import guarded
assert onnx_ops.__file__.startswith((sys.path[0], __import__('os').getcwd()))
def outcome(work):
    try:
        work()
    except Exception as error:
        return str(error).rpartition(": ")[2]
    return "done"
operator = next(o for o in onnx_ops.registry.OPERATORS if o.name == "Shift")
values = operator.values({})
x = guarded.readonly(np.arange(1024, dtype=np.int64))
print("function", outcome(lambda: execute.compute(operator, values, [x], 2, guarded.empty)),
    flush=True)
node = helper.make_node("Shift", ["x"], ["y"], domain="test")
infos = (helper.make_tensor_value_info(n, onnx.TensorProto.INT64, ["N"]) for n in "xy")
opsets = [helper.make_opsetid("", 18), helper.make_opsetid("test", 1)]
graph = helper.make_graph([node], "g", *([i] for i in infos))
proto = helper.make_model(graph, opset_imports=opsets, ir_version=9)
session = onnx_ops.InferenceSession(proto.SerializeToString())
print("native", outcome(lambda: session.run(None, {"x": np.arange(1024)})), flush=True)
"""


@pytest.fixture
def broken(tmp_path):
    """A function that returns the folder of a package whose operator Shift has a kernel with a
    mistake.
    """

    def make(right="", wrong=""):
        source = operator_file()
        assert right in source
        copy_package(tmp_path, "openmmlab/shift.py", source.replace(right, wrong))
        return tmp_path

    return make


@on_demand
@pytest.mark.long
@pytest.mark.parametrize("mistake", BREAKS)
def test_checked_indices_detect_a_mistake(mistake, broken):
    home = broken(*BREAKS[mistake])
    process = python(
        SHIFT,
        HERE,
        cwd=home,
        check=False,
        ONNX_OPS_BOUNDSCHECK="1",
        NUMBA_CACHE_DIR=str(home / "cache"),
    )
    assert process.stdout.split("\n")[:2] == [
        f"{way} compiled code has raised {EXCEPTION}" for way in ("function", "native")
    ], process.stderr[-3000:]


@on_demand
@pytest.mark.long
@pytest.mark.parametrize("mistake", ["reads past the end", "writes past the end"])
def test_guard_pages_detect_a_mistake(mistake, broken):
    home = broken(*BREAKS[mistake])
    process = python(SHIFT, HERE, cwd=home, check=False, NUMBA_CACHE_DIR=str(home / "cache"))
    assert process.returncode == -signal.SIGSEGV, process.stderr[-3000:]
    assert "function" not in process.stdout


@on_demand
@pytest.mark.long
def test_without_a_mistake_neither_detects_one(broken):
    home = broken()
    for checked in "01":
        process = python(
            SHIFT,
            HERE,
            cwd=home,
            check=False,
            ONNX_OPS_BOUNDSCHECK=checked,
            NUMBA_CACHE_DIR=str(home / "cache"),
        )
        assert process.stdout.split("\n")[:2] == ["function done", "native done"], process.stderr[
            -3000:
        ]
    # The two kinds of code are kept apart in the cache.
    assert len(list((home / "cache").rglob("*-checked-*.code"))) >= 3


GUARDED = """
import itertools, sys
import numpy as np, onnx_ops
from support import guarded
from support.backends import ort_value, quiet
from support.cases import CASES, assert_close, expected_of, model
from onnx_ops.native import execute
done = 0
for case in CASES:
    copies = "uint8" in case.operator.types[case.operator.outputs[0].type]
    if case.op_type == "GridSample":
        copies = copies and case.attributes["mode"] == "nearest"
    types = ["float32", "float64", *["uint8"] * copies]
    for dtype, at_end in itertools.product(types, (True, False)):
        print(case, dtype, at_end, file=sys.stderr, flush=True)
        inputs = case.inputs(dtype, "float32" if dtype == "uint8" else None)
        expected = expected_of(case, inputs)
        placed = [guarded.readonly(v, at_end=at_end) for v in inputs]
        empty = lambda shape, kind: guarded.empty(shape, kind, at_end=at_end)
        (got,) = execute.compute(case.operator, case.operator.values(case.attributes), placed, 2,
            empty)
        assert_close(got, expected, dtype)
        if expected.size and all(v.size for v in inputs):
            proto = model(case.domain, case.op_type, inputs, case.attributes).SerializeToString()
            session = onnx_ops.InferenceSession(proto, quiet(intra_op_num_threads=2))
            y = empty(expected.shape, inputs[0].dtype)
            values, target = [ort_value(v) for v in placed], ort_value(y)
            assert target.data_ptr() == y.ctypes.data
            binding = session.io_binding()
            for described, value in zip(session.get_inputs(), values, strict=True):
                binding.bind_ortvalue_input(described.name, value)
            binding.bind_ortvalue_output("y", target)
            session.run_with_iobinding(binding)
            assert_close(y, expected, dtype)
            del session, binding, values, target, y
        del placed, got
        guarded.free()
        done += 1
print("cases", done)
"""


@pytest.mark.long
@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="mprotect and its flags are Linux's here"
)
def test_every_case_beside_unreadable_pages():
    """Functions and sessions run with tensors at both ends of their pages, and with inputs that are
    read-only.
    """
    process = python(GUARDED)
    assert int(process.stdout.split()[-1]) > 400
