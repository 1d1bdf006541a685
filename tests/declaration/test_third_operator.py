"""Another operator is one file, such as docs/operator-declarations.md shows, and listed; every
adapter has it then.
"""

from dataclasses import replace
from typing import Any

import pytest
from support.pages import operator_file
from support.processes import copy_package, python
from support.selection import on_demand

import onnx_ops
from onnx_ops.declaration.operator import Geometry, Input, vector
from onnx_ops.registry import OPERATORS

pytestmark = pytest.mark.any_library

MODEL = """
import onnx
from onnx import helper
node = helper.make_node("Shift", ["x"], ["y"], domain="test", amount=5)
infos = [helper.make_tensor_value_info(n, onnx.TensorProto.INT64, ["N"]) for n in "xy"]
opsets = [helper.make_opsetid("", 18), helper.make_opsetid("test", 1)]
proto = helper.make_model(helper.make_graph([node], "g", infos[:1], infos[1:]),
    opset_imports=opsets, ir_version=9)
"""
SCRIPT = """
import os
import numpy as np, onnx_ops
from onnx.reference import ReferenceEvaluator
from support.backends import IN_SESSIONS

assert onnx_ops.__file__.startswith(os.getcwd()), onnx_ops.__file__
assert "Shift" in [o["name"] for o in onnx_ops.operators()]
x = np.arange(10)
for backend in IN_SESSIONS:
    session = onnx_ops.InferenceSession(proto.SerializeToString(), backend=backend)
    assert session.get_outputs()[0].shape == ["N"]
    assert (session.run(None, {"x": x})[0] == x + 5).all()
evaluator = ReferenceEvaluator(proto, new_ops=onnx_ops.reference_ops())
assert (evaluator.run(None, {"x": x})[0] == x + 5).all()
onnx_ops.register_schemas()
onnx.checker.check_model(proto, full_check=True)
try:
    shift = next(o for o in onnx_ops.registry.OPERATORS if o.name == "Shift")
    onnx_ops.arrays.functions.call(shift, np.zeros((2, 2), np.int64))
except onnx_ops.OpError as error:
    assert str(error) == "test.Shift: shape of x = [2, 2]: must have rank 1", error
else:
    raise AssertionError("not refused")
"""


def run_in(folder, script):
    """Run MODEL and a script in a folder whose modules they can import; return what they print."""
    return python(
        MODEL + script, folders=[folder], cwd=folder, NUMBA_CACHE_DIR=str(folder / "cache")
    ).stdout


@pytest.mark.long
@on_demand
def test_one_file(tmp_path):
    copy_package(tmp_path, "fold/shift.py", operator_file())
    run_in(tmp_path, "import onnx_ops.arrays.functions\n" + SCRIPT)


class Many(Geometry):
    numbers: Any = vector(2050)


def test_too_many_inputs_and_too_large_a_geometry():
    operator = next(o for o in OPERATORS if o.title == "Col2Im")
    with pytest.raises(onnx_ops.OpError, match=r"Col2Im: inputs = 17: must be at most 16"):
        replace(operator, inputs=(Input("x", "T"),) * 17)
    with pytest.raises(
        onnx_ops.OpError, match=r"Col2Im: bytes of geometry = \d+: must be at most 16384"
    ):
        replace(operator, plan=replace(operator.plan, geometry=Many))
