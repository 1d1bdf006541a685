"""docs/deployment.md is right: its service starts without compiling, and its settings fit other CPUs."""

import io
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from support.processes import environment as of_processes
from support.processes import python
from test_cache import PACKAGE
from test_docs import ROOT, examples

import onnx_ops
from onnx_ops.compiler import cache

PAGE = ROOT / "docs" / "deployment.md"
MODEL = ROOT / "models" / "exported" / "spatial_transformer" / "model.onnx"
SETTINGS = dict(re.findall(r"^ENV (NUMBA_\w+)=(.*)$", PAGE.read_text(), re.MULTILINE))


def environment(**more):
    return of_processes(PACKAGE.parent, *sys.path, **more)


@pytest.fixture
def app(tmp_path):
    """The folder of the page's image: model, service, and kernels that an earlier process has compiled."""
    (tmp_path / "service.py").write_text("".join(examples(PAGE, "python")))
    shutil.copy(MODEL, tmp_path)
    onnx_ops.InferenceSession(MODEL)
    kernels = tmp_path / "kernels" / "onnx_ops"
    kernels.mkdir(parents=True)
    for name in ("shape", "plan*", "linear-float32-float32-float32"):
        for file in cache.directory().glob(f"grid_sample-{name}-*.code"):
            shutil.copy(file, kernels)
    return tmp_path


def get(url, data=None):
    """Return (status, content), or None if nobody answers."""
    try:
        with urllib.request.urlopen(url, data, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
    except urllib.error.URLError:
        return None


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGTERM there")
def test_the_service_compiles_nothing(app):
    """The service answers its first request, refuses a bad one, and ends upon SIGTERM."""
    kernels = app / "kernels"
    files = [kernels, *kernels.rglob("*")]
    before = {path: path.stat().st_mtime_ns for path in files}
    assert any(path.suffix == ".code" for path in files)
    for path in files:
        path.chmod(0o555 if path.is_dir() else 0o444)
    port, image = free_port(), np.random.default_rng(0).random((2, 3, 144, 192), np.float32)
    settings = environment(NUMBA_CACHE_DIR=str(kernels), PORT=str(port))
    command = [sys.executable, "service.py"]
    with subprocess.Popen(command, cwd=app, env=settings, stderr=subprocess.PIPE, text=True) as process:
        try:
            url, deadline = f"http://127.0.0.1:{port}/", time.monotonic() + 60
            while not (ready := get(url)) and time.monotonic() < deadline:
                time.sleep(0.05)
            assert ready == (200, b"ready\n")
            content = io.BytesIO()
            np.save(content, image)
            status, answer = get(url, content.getvalue())
            refused, message = get(url, b"nonsense")
        finally:
            process.send_signal(signal.SIGTERM)
            log = process.communicate(timeout=30)[1]
            for path in files:
                path.chmod(0o755)
    assert (status, process.returncode, refused) == (200, 0, 400)
    assert message
    expected = onnx_ops.InferenceSession(MODEL).run(None, {"image": image})[0]
    np.testing.assert_array_equal(np.load(io.BytesIO(answer)), expected)
    assert "onnx_ops" not in log
    assert {path: path.stat().st_mtime_ns for path in [kernels, *kernels.rglob("*")]} == before


KEY = """
from onnx_ops.compiler import key
from onnx_ops.operators.col2im import plan
print(key.digest([plan]))
"""
OTHER_CPU = """
import llvmlite.binding as llvm
llvm.get_host_cpu_name = lambda: {name!r}
features = llvm.get_host_cpu_features
llvm.get_host_cpu_features = lambda: llvm.FeatureMap({{**features(), "avx2": {avx2}, "sse4.2": {avx2}}})
"""


def digests(**settings):
    """Return the digests, which name the files of kernels, on two CPUs."""
    return [
        python(OTHER_CPU.format(name=name, avx2=avx2) + KEY, folders=[PACKAGE.parent, *sys.path], **settings).stdout
        for name, avx2 in (("znver4", True), ("nehalem", False))
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    ("names", "portable"),
    [(("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"), True), (("NUMBA_CPU_NAME",), False), ((), False)],
    ids=["both", "name only", "none"],
)
def test_settings_for_other_cpus(names, portable):
    first, second = digests(**{name: SETTINGS[name] for name in names})
    assert (first == second) == portable


def test_the_cache_is_where_the_page_says(monkeypatch):
    assert SETTINGS.keys() == {"NUMBA_CACHE_DIR", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"}
    monkeypatch.setenv("NUMBA_CACHE_DIR", SETTINGS["NUMBA_CACHE_DIR"])
    assert cache.directory() == Path(SETTINGS["NUMBA_CACHE_DIR"], "onnx_ops")
    assert f"{cache.directory()} for the next process: " in PAGE.read_text()
