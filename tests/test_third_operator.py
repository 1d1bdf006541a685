"""A third operator takes one file, and every adapter has it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnx_ops

SCRIPT = """
import os
import numpy as np, onnx, onnx_ops
from onnx import helper
from onnx.reference import ReferenceEvaluator

assert onnx_ops.__file__.startswith(os.getcwd()), onnx_ops.__file__
assert "Shift" in [o["name"] for o in onnx_ops.operators()]
node = helper.make_node("Shift", ["x"], ["y"], domain="test", amount=5)
x_info, y_info = (helper.make_tensor_value_info(n, onnx.TensorProto.INT64, ["N"]) for n in "xy")
opsets = [helper.make_opsetid("", 18), helper.make_opsetid("test", 1)]
proto = helper.make_model(helper.make_graph([node], "g", [x_info], [y_info]), opset_imports=opsets, ir_version=9)
x = np.arange(10)
for backend in ("native", "extensions"):
    session = onnx_ops.InferenceSession(proto.SerializeToString(), backend=backend)
    assert session.get_outputs()[0].shape == ["N"]
    assert (session.run(None, {"x": x})[0] == x + 5).all()
assert (ReferenceEvaluator(proto, new_ops=onnx_ops.reference_ops()).run(None, {"x": x})[0] == x + 5).all()
onnx_ops.register_schemas()
onnx.checker.check_model(proto, full_check=True)
try:
    onnx_ops.functions.call(onnx_ops.operators.OPERATORS[-1], np.zeros((2, 2), np.int64))
except onnx_ops.OpError as error:
    assert str(error) == "test.Shift: shape of x = [2, 2]: must have rank 1", error
else:
    raise AssertionError("not refused")
"""


def test_one_file(tmp_path):
    package = Path(onnx_ops.__file__).parent
    shutil.copytree(package, tmp_path / "onnx_ops", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(Path(__file__).with_name("third_operator.py"), tmp_path / "onnx_ops" / "operators" / "shift.py")
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    script = "import sys; sys.path.insert(0, '.')\nimport onnx_ops.functions\n" + SCRIPT
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
