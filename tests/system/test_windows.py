"""The library for Windows, built here, runs in ONNX Runtime's build for Windows, under Wine, with
the bits of Linux.

The variable ONNX_OPS_WINDOWS names a folder with that build, a folder for each version;
scripts/release/windows.sh makes it.
"""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from support.cases import model
from support.processes import TESTS

import onnx_ops
from onnx_ops.ahead import build as building

HERE = TESTS
MODELS = sorted((HERE.parent / "models").rglob("model.onnx"))
SMALL = next(path for path in MODELS if path.parent.name == "col2im_openvino_3")
CPU, DTYPES = "x86-64-v3", ["float32", "int32"]  # of the models
DLLS = sorted(
    Path(os.environ.get("ONNX_OPS_WINDOWS") or "/nowhere").glob(
        "*/onnxruntime/capi/onnxruntime.dll"
    )
)
COMPILER = "x86_64-w64-mingw32-gcc"
HOSTS = {"linux": ["cc"], "windows": [COMPILER]}
QUIET = {**os.environ, "WINEDEBUG": "-all"}
pytestmark = pytest.mark.wine
needs_wine = pytest.mark.skipif(
    not (DLLS and shutil.which("wine") and shutil.which(COMPILER)),
    reason="there is no Wine, no mingw-w64, or no ONNX Runtime for Windows: "
    "run scripts/release/windows.sh",
)


@pytest.fixture(scope="module", params=[path.parents[2].name for path in DLLS] or ["none"])
def runtimes(request):
    """{system: its library of ONNX Runtime}"""
    return {
        "linux": next(Path(ort.__file__).parent.glob("capi/libonnxruntime.so*")),
        "windows": next(path for path in DLLS if path.parents[2].name == request.param),
    }


@pytest.fixture(scope="module")
def hosts(runtimes, tmp_path_factory):
    """{system: a function that runs the host for it}; `hosts["windows"]` is run by Wine."""
    folder = tmp_path_factory.mktemp(
        "hosts of Windows, ä"
    )  # paths with spaces, and letters outside of ASCII
    return {system: host(system, folder, runtime) for system, runtime in runtimes.items()}


def host(system, folder, runtime):
    library, program = folder / f"operators-{system}.bin", folder / f"host-{system}.exe"
    onnx_ops.build(library, dtypes=DTYPES, cpus=[CPU], system=system)
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{building.SOURCES}", "-o", program]
    more = ["-ldl"] if system == "linux" else []
    subprocess.run([*HOSTS[system], *flags, HERE / "support/host.c", *more], check=True)

    def run(proto, inputs, **variables):
        """Run a model; returns (the output's bytes, None), or (None, what the host wrote about an
        error).
        """
        path, output, words = folder / "model ö.onnx", folder / "y.bin", []
        path.write_bytes(proto.SerializeToString())
        output.unlink(missing_ok=True)
        for k, (name, array) in enumerate(inputs.items()):
            (folder / f"{k}.bin").write_bytes(np.ascontiguousarray(array).tobytes())
            kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            words.append(f"{name}:{kind}:{','.join(map(str, array.shape))}:{folder / f'{k}.bin'}")
        files = [str(each) for each in (runtime, library, path, output)]
        if system == "windows":  # Wine shows the files of Linux as the drive Z
            files = [f"Z:{each}" for each in files]
            words = [f"{word.rpartition(':')[0]}:Z:{word.rpartition(':')[2]}" for word in words]
        command = [*(["wine"] if system == "windows" else []), str(program), *files, *words]
        process = subprocess.run(
            command, capture_output=True, env={**QUIET, **variables}, timeout=600
        )
        if process.returncode:
            return None, process.stderr.decode(errors="replace").replace("\r", "")
        return output.read_bytes(), None

    return run


def saved(path):
    """A model of models/, its inputs and the domain to register for it beside ai.onnx."""
    proto, folder = onnx.load(path), path.parent / "test_data_set_0"
    inputs = {}
    for k, each in enumerate(proto.graph.input):
        inputs[each.name] = numpy_helper.to_array(onnx.load_tensor(folder / f"input_{k}.pb"))
    domains = {node.domain for node in proto.graph.node} - {""}
    return proto, inputs, domains.pop() if domains else None


@needs_wine
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.parent.name)
def test_the_bits_of_linux(path, hosts):
    proto, inputs, domain = saved(path)
    variables = {"HOST_DOMAIN": domain} if domain else {}
    if (
        path.parent.parent.name == "exported"
    ):  # what else is in the network is ONNX Runtime's, which promises no bits
        (y, error), (expected, _) = (
            hosts[system](proto, inputs, **variables) for system in ("windows", "linux")
        )
        assert error is None
        np.testing.assert_allclose(
            *(np.frombuffer(b, np.float32) for b in (y, expected)), rtol=1e-5, atol=1e-5
        )
    else:
        assert hosts["windows"](proto, inputs, **variables) == hosts["linux"](
            proto, inputs, **variables
        )


@needs_wine
def test_errors_in_words(hosts):
    inputs = {
        "input": np.zeros((1, 5, 5), np.float32),
        "image_shape": np.array([5, 5]),
        "block_shape": np.array([1, 5]),
    }
    proto = model("", "Col2Im", list(inputs.values()), {})
    proto.graph.input[1].type.tensor_type.shape.dim[0].dim_value = 2
    wrong = {**inputs, "image_shape": np.array([5, 6])}
    _, error = hosts["windows"](proto, wrong)
    assert "Col2Im" in error
    assert "must be" in error
    assert error.startswith(hosts["linux"](proto, wrong)[1])  # Wine may add a line on graphics


@needs_wine
@pytest.mark.parametrize(
    "variables", [{"HOST_THREADS": "1"}, {"HOST_THREADS": "4"}, {"HOST_SESSIONS": "1000"}], ids=str
)
def test_threads_and_sessions(variables, hosts):
    """A thousand sessions also load and leave the library as often."""
    proto, inputs, _ = saved(SMALL)
    assert hosts["windows"](proto, inputs, **variables) == hosts["linux"](proto, inputs)


@needs_wine
@pytest.mark.parametrize("linker", ["mingw", "ziglang"])
def test_what_a_thread_announces_is_its_own(linker, runtimes, hosts, tmp_path, monkeypatch):
    """Each compiler has its own way to make variables of threads. Wheels are linked by ziglang."""
    monkeypatch.delenv("CC", raising=False)
    if linker == "ziglang":
        pytest.importorskip("ziglang")
        monkeypatch.setenv("CC", shlex.join(building.ziglang("windows", "x86_64")))
    proto, inputs, _ = saved(SMALL)
    run = host("windows", tmp_path, runtimes["windows"])
    assert run(proto, inputs, HOST_OTHER_THREAD="1") == hosts["linux"](
        proto, inputs, HOST_OTHER_THREAD="1"
    )
