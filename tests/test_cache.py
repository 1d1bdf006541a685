"""Compiled code outlives its process, and no change of any source file goes unnoticed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import onnx_ops

PACKAGE = Path(onnx_ops.__file__).parent
SCRIPT = """
import sys
import numpy as np
import onnx_ops
from onnx_ops.kernels import entry
assert onnx_ops.__file__.startswith(sys.argv[1]), onnx_ops.__file__
session = onnx_ops.InferenceSession(sys.argv[2])
feeds = {"input": np.zeros((1, 9, 9), np.float32), "image_shape": np.array([5, 5]), "block_shape": np.array([3, 3])}
session.run(None, feeds)
"""


@pytest.fixture
def home(tmp_path):
    """A copy of the package and an empty cache."""
    shutil.copytree(PACKAGE, tmp_path / "onnx_ops", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "cache").mkdir()
    return tmp_path


def cached_after_a_run(home):
    from cases import model
    from malformed import col2im

    path = home / "model.onnx"
    path.write_bytes(model("", "Col2Im", col2im("", "").inputs, {}).SerializeToString())
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(home / "cache"), "PYTHONPATH": str(home)}
    subprocess.run([sys.executable, "-c", SCRIPT, str(home), str(path)], check=True, env=environment, cwd=home)
    files = [f for f in (home / "cache").rglob("*") if f.is_file()]
    return {f.name: f.stat().st_mtime_ns for f in files}


def test_a_second_process_compiles_nothing(home):
    first = cached_after_a_run(home)
    assert sorted(name.split("-")[0] for name in first if name.endswith(".nbi")) == [
        "compute.compute",
        "entry.col2im",
        "entry.col2im",
    ]
    assert cached_after_a_run(home) == first


@pytest.mark.parametrize("path", ["kernels/col2im.py", "kernels/memory.py", "operators/grid_sample.py"])
def test_a_changed_source_file_misses_the_cache(home, path):
    first = cached_after_a_run(home)
    with open(home / "onnx_ops" / path, "a") as file:
        file.write("\n# changed\n")
    second = cached_after_a_run(home)
    assert len(second.keys() - first.keys()) == len(first)


def test_importing_the_package_imports_nothing_heavy():
    script = "import sys, onnx_ops; sys.exit(', '.join({'numba', 'onnx', 'onnxruntime', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr.strip() == ""
