"""Another operator needs one file only, and every adapter has it."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.selection import long_unless, on_demand

import onnx_ops
from onnx_ops.declaration import Input
from onnx_ops.operators import OPERATORS

MODEL = """
import onnx
from onnx import helper
node = helper.make_node("Shift", ["x"], ["y"], domain="test", amount=5)
infos = [helper.make_tensor_value_info(n, onnx.TensorProto.INT64, ["N"]) for n in "xy"]
opsets = [helper.make_opsetid("", 18), helper.make_opsetid("test", 1)]
proto = helper.make_model(helper.make_graph([node], "g", infos[:1], infos[1:]), opset_imports=opsets, ir_version=9)
"""
SCRIPT = """
import os
import numpy as np, onnx_ops
from onnx.reference import ReferenceEvaluator

assert onnx_ops.__file__.startswith(os.getcwd()), onnx_ops.__file__
assert "Shift" in [o["name"] for o in onnx_ops.operators()]
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


def run_with(tmp_path, source, script):
    """Run a script in a copy of the package that has one more operator; return what it prints."""
    package = Path(onnx_ops.__file__).parent
    shutil.copytree(package, tmp_path / "onnx_ops", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "onnx_ops" / "operators" / "shift.py").write_text(source)
    return run_in(tmp_path, "import onnx_ops.functions\n" + script)


def run_in(tmp_path, script):
    """Run MODEL and a script in a folder whose modules they can import; return what they print."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    script = "import sys; sys.path.insert(0, '.')\n" + MODEL + script
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


SOURCE = (Path(__file__).parent / "support/third_operator.py").read_text()


@on_demand
def test_one_file(tmp_path):
    run_with(tmp_path, SOURCE, SCRIPT)


MISTAKES = {
    "a name that is not there": ("x[i] + g.amount", "x[i] + amount", "NameError: name 'amount' is not defined"),
    "a field that is not there": ("x[i] + g.amount", "x[i] + g.amuont", "KeyError: 'amuont'"),
    "a wrong type": ("x[i] + g.amount", "x[i] + 'a'", r"add\(uint64, .*\(a\)\).*shift\.py, line 29"),
    "memory of its own": ("out[i] =", "out[i] = np.zeros(3)[0] +", r"it allocates memory; .*shift\.py, line 29"),
}
REFUSED = """
import numpy as np, onnx_ops
from onnx_ops.compiler import compilation
compile_now, compiled = compilation.object_code, []
def counting(entry, symbol):
    compiled.append(entry.name)
    return compile_now(entry, symbol)
compilation.object_code = counting
for call in (
    lambda: onnx_ops.functions.call(onnx_ops.operators.OPERATORS[-1], np.arange(3)),
    lambda: onnx_ops.InferenceSession(proto.SerializeToString()),
):
    try:
        call()
    except onnx_ops.OpError as error:
        print(str(error)[:10_000].replace("\\n", " "))
print(*compiled)
"""


@on_demand
@pytest.mark.parametrize("mistake", [long_unless(k == 0, mistake) for k, mistake in enumerate(MISTAKES)])
def test_a_kernel_that_cannot_be_compiled(mistake, tmp_path):
    """The error names the operator and the function and quotes the compiler, which is called once."""
    right, wrong, message = MISTAKES[mistake]
    source = SOURCE.replace(right, wrong).replace("from ..errors", "import numpy as np\n\nfrom ..errors")
    function, session, compiled = run_with(tmp_path, source, REFUSED).splitlines()
    assert function.startswith("test.Shift: kernel = shift.py, line 26 for uint64, uint64: can't be compiled: ")
    assert session == function
    assert re.search(message, function)
    assert sorted(compiled.split()) == ["shift-plan", "shift-shape", "shift-shift-uint64-uint64"]


BUILD = """
import numpy as np, onnx_ops, onnxruntime, my_shift
assert onnx_ops.warmup(operators=[my_shift.SHIFT], dtypes=["float32", "int64"], jobs=2) == 2
onnx_ops.build("shift.so", operators=[my_shift.SHIFT], dtypes=["int64"], jobs=1)
options = onnxruntime.SessionOptions()
options.register_custom_ops_library("./shift.so")
session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
print(session.run(None, {"x": np.arange(3)})[0].tolist())
"""


@on_demand
def test_processes_that_compile_it(tmp_path):
    """Other processes than this one compile an operator with a plan that is no part of the package."""
    source = SOURCE.replace("from ..", "from onnx_ops.").replace("OPERATORS = (", "(SHIFT,) = (")
    (tmp_path / "my_shift.py").write_text(source)
    assert run_in(tmp_path, BUILD) == "[5, 6, 7]\n"


FOUR_TENSORS = """
import numpy as np, onnx_ops
operator = onnx_ops.operators.OPERATORS[-1]
inputs = [np.arange(10) * factor for factor in (1, 10, 100, 1000)]
print(onnx_ops.functions.call(operator, *inputs).tolist() == (np.arange(10) * 1111 + 1).tolist())
"""


@on_demand
def test_four_tensors(tmp_path):
    changes = {
        'inputs=(Input("x", "T"),)': 'inputs=tuple(Input(name, "T") for name in "abcd")',
        "(x,), (y,) = inputs, outputs": "(x, b, c, d), (y,) = inputs, outputs",
        "(x,) = inputs\n": "x, b, c, d = inputs\n",
        "def shift(x, g": "def shift(x, b, c, d, g",
        "x[i] + g": "x[i] + b[i] + c[i] + d[i] + g",
    }
    source = SOURCE
    for old, new in changes.items():
        source = source.replace(old, new)
    assert run_with(tmp_path, source, FOUR_TENSORS) == "True\n"


def test_too_many_inputs_and_too_large_a_geometry():
    operator = next(o for o in OPERATORS if o.title == "Col2Im")
    with pytest.raises(onnx_ops.OpError, match=r"Col2Im: inputs = 17: must be at most 16"):
        replace(operator, inputs=(Input("x", "T"),) * 17)
    with pytest.raises(onnx_ops.OpError, match=r"Col2Im: bytes of geometry = \d+: must be at most 16384"):
        replace(operator, plan=replace(operator.plan, geometry={"many": 2050}))
