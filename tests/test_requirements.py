"""The versions of other packages that wheels are made with, and what works without onnxruntime-extensions."""

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from onnx_ops.compiler.jit import NUMBA


def test_the_minima_are_those_that_wheels_are_made_with():
    required = "".join(f"{line}\n" for line in metadata.requires("onnx-ops") if "extra ==" not in line)
    minima = dict(re.findall(r"^([\w-]+)[^;\n]*?>=([\d.]+)", required, re.MULTILINE))
    (needed,) = re.findall(r"^needed = .*$", (Path(__file__).parent.parent / "setup.py").read_text(), re.MULTILINE)
    least = dict(re.findall(r'"([\w-]+)>=([\d.]+)', needed))
    assert least.pop("numba") == ".".join(map(str, NUMBA[0]))
    assert f"<{NUMBA[1][0]}.{NUMBA[1][1] + 1}" in needed
    assert least == {name: version for name, version in minima.items() if "extensions" not in name}


def test_without_extensions():
    """The extensions backend is refused, as on Python 3.14; all else works, including lower()."""
    script = """
import sys
sys.modules["onnxruntime_extensions"] = None
from support.backends import quiet, run_session
from support.cases import COL2IM, assert_close, model, reference
import onnxruntime, onnx_ops
case = COL2IM[1]
inputs = case.inputs("float32")
proto, expected = model("", "Col2Im", inputs, case.attributes), reference(case, inputs)
assert_close(run_session(onnx_ops.InferenceSession(proto.SerializeToString(), quiet()), inputs), expected, "float32")
assert_close(onnx_ops.col2im(*inputs, **case.attributes), expected, "float32")
assert onnx_ops.lower(proto).graph.node[-1].domain == "ai.onnx.contrib"
from onnx_ops.cli.list import backends
assert backends()["extensions"].startswith("onnxruntime-extensions can't be imported"), backends()
try:
    onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), backend="extensions")
except onnx_ops.OpError as error:
    print(error)
"""
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    message = "onnx_ops: backend = 'extensions': needs onnxruntime-extensions, which can't be imported: "
    assert done.stdout.startswith(message), done.stderr


def test_extensions_that_cannot_be_imported(tmp_path):
    """Version 0.14.0 imports transformers, which it does not require."""
    (tmp_path / "onnxruntime_extensions.py").write_text("import something_that_is_missing")
    script = """
import sys
sys.path.insert(0, sys.argv[1])
import onnxruntime, onnx_ops
onnx_ops.register(onnxruntime.SessionOptions())
try:
    onnx_ops.register(onnxruntime.SessionOptions(), backend="extensions")
except onnx_ops.OpError as error:
    print(error)
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    message = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert message.startswith(
        "onnx_ops: backend = 'extensions': needs onnxruntime-extensions, which can't be imported: No m"
    )
