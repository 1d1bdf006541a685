"""Compiled code outlives its process, and no change of any source file goes unnoticed."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cases import CASES
from numba import types
from numba.core.ccallback import CFunc

import onnx_ops
from onnx_ops import dtypes
from onnx_ops.kernels import entry
from onnx_ops.operator import Record
from onnx_ops.operators import OPERATORS
from onnx_ops.runtime import warmup

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
    return cached(home)


def cached(home):
    return {f.name: f.stat().st_mtime_ns for f in (home / "cache").rglob("*") if f.is_file()}


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


WARMUP = """
import sys
import onnx_ops
assert onnx_ops.__file__.startswith(sys.argv[1]), onnx_ops.__file__
told = []
count = onnx_ops.warmup(["Col2Im"], ["float32"], progress=lambda *now: told.append(now))
assert [(index, total) for _, index, total in told] == [(k, count) for k in range(count)], told
assert {"Col2Im float32", "org.openvinotoolkit.Col2Im float32"} == {name for name, *_ in told}, told
"""


def test_after_warmup_sessions_compile_nothing(home):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(home / "cache"), "PYTHONPATH": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", WARMUP, str(home)], check=True, env=environment, cwd=home, capture_output=True, text=True
    )
    assert done.stderr == ""  # who asks for it need not be told
    files = cached(home)
    assert cached_after_a_run(home) == files


@pytest.mark.parametrize("domain", dict.fromkeys(o.domain for o in OPERATORS))
def test_warmup_knows_every_kernel(domain):
    """All that any of the tests' cases leads to."""
    found = {}
    for operator, parameters, signature in warmup.variants({o.name for o in OPERATORS}, dtypes.TABLE).values():
        found.setdefault(operator.plan, set()).add(kernel_of(operator, parameters, signature))
    cases = [c for c in CASES if c.domain == domain]
    assert cases
    for case in cases:
        parameters = case.operator.resolved(case.attributes)
        for signature in case.operator.signatures():
            if not refused(case.operator, parameters, signature):
                assert kernel_of(case.operator, parameters, signature) in found[case.operator.plan]


def kernel_of(operator, parameters, signature):
    record = Record(parameters[0])
    return operator.kernel(record), operator.storage(record, signature)


def refused(operator, parameters, signature):
    try:
        operator.allows(Record(parameters[0]), signature)
    except onnx_ops.OpError:
        return True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["Conv"],), r"operators = 'Conv': must be among Col2Im, GridSample"),
        ((None, ["float8"]), r"dtypes = 'float8': must be among float32"),
    ],
)
def test_warmup_refuses_what_it_does_not_know(arguments, message):
    with pytest.raises(onnx_ops.OpError, match=message):
        onnx_ops.warmup(*arguments)


def slow(x):
    return x


def test_slow_compilation_is_told(monkeypatch, caplog):
    """Once it takes longer than PATIENCE, and unless it was asked for."""
    monkeypatch.setattr(entry, "PATIENCE", 0.0)
    monkeypatch.setattr(CFunc, "_compile_uncached", lambda self: time.sleep(0.5))
    callback = entry.Callback(slow, ((types.int64,), types.int64), {}, {})
    callback._compile_uncached()
    assert [r.getMessage() for r in caplog.records] == ["onnx_ops: compiling slow (once; not kept)"]
    token = entry.expected.set(True)
    callback._compile_uncached()
    entry.expected.reset(token)
    assert len(caplog.records) == 1
