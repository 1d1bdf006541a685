"""A library of the operators runs without this package, on every CPU, with the same results and
error messages.
"""

import ctypes as C
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from support.backends import quiet, run_session
from support.cases import (
    COL2IM,
    GRID_SAMPLE,
    OPENVINO,
    assert_close,
    col2im,
    expected_of,
    model,
    named,
)
from support.commands import invoke
from support.detector import rotated_detector
from support.libraries import check_library
from support.malformed import AT_CREATION, AT_RUN, BY_TYPE
from support.processes import TESTS, on_disk, python

import onnx_ops
from onnx_ops import system
from onnx_ops.ahead import build as building
from onnx_ops.compiler.cpu_levels import LEVELS
from onnx_ops.native import library

HERE = TESTS
OPERATORS = [
    "Col2Im",
    "GridSample",
    "MMCVModulatedDeformConv2d",
    "MMCVRoIAlignRotated",
    "NMSRotated",
]
BEST = "x86-64-v3"
CASES = [
    *named(COL2IM, "overlapping", "tiling_with_a_rest", "everything"),
    *named(
        GRID_SAMPLE, "nearest_zeros_edges", "nearest_reflection_corners",
        "bilinear_reflection_edges", "bicubic_border_corners",
    ),
    *named(OPENVINO, "openvino_defaults", "openvino_unbatched"),
]  # fmt: skip
REGISTER = {
    domain: f"onnx_ops.register.{domain or 'ai.onnx'}"
    for domain in ("", "com.microsoft", "mmcv", "mmdeploy", "org.openvinotoolkit")
}
LIBRARY = system.LIBRARIES["linux"]
pytestmark = [
    pytest.mark.long,  # it compiles all kernels for another target
    pytest.mark.skipif(sys.platform != "linux", reason="tried on Linux only"),
    pytest.mark.skipif(
        not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="there is no C compiler"
    ),
    pytest.mark.skipif(not library.have_numba(), reason="there is no Numba"),
]


def runs_here(cpu):
    """Return whether Linux lists the CPU's features; the library itself asks the CPU."""
    flags = Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split()
    lacking = {
        "x86-64-v2": "ssse3",
        "x86-64-v3": "avx2",
        "x86-64-v4": "avx512bw",
        "sapphirerapids": "avx512_fp16",
    }
    return lacking.get(cpu, "no flag") in flags


def build_library(folder, cpus):
    path = folder / LIBRARY
    onnx_ops.build(path, operators=OPERATORS, dtypes=["float32"], cpus=cpus, jobs=2)
    return path


@pytest.fixture(scope="session")
def path(tmp_path_factory):
    """The path of a library with code for one CPU."""
    if not runs_here(BEST):
        pytest.skip(f"this machine is no {BEST}")
    return build_library(tmp_path_factory.mktemp("library"), [BEST])


@pytest.fixture(scope="session")
def path_for_all(tmp_path_factory):
    return build_library(tmp_path_factory.mktemp("library"), None)


def session(path, proto, domain=""):
    """Return a session that uses the library alone, without this package's Python."""
    options = quiet()
    options.add_session_config_entry(REGISTER[domain], "1")
    options.register_custom_ops_library(str(path))
    return ort.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results(case, path):
    inputs = case.inputs("float32")
    proto = model(case.domain, case.op_type, inputs, case.attributes)
    assert_close(
        run_session(session(path, proto, case.domain), inputs), expected_of(case, inputs), "float32"
    )


@pytest.mark.parametrize(
    "bad",
    [b for b in AT_RUN + AT_CREATION if b.domain in REGISTER and b.op_type in OPERATORS][::9],
    ids=str,
)
def test_messages(bad, path):
    """The library refuses a call with the message of the function, when the session is made or at
    the run.
    """
    proto = model(bad.domain, bad.op_type, bad.inputs, bad.attributes, dims="none")
    with pytest.raises(Exception, match=rf"{bad.title}( \(node 'the_node'\))?: {bad.message}"):
        run_session(session(path, proto, bad.domain), bad.inputs)


@pytest.mark.parametrize("bad", BY_TYPE, ids=str)
def test_types_that_the_library_lacks(bad, path):
    """ONNX Runtime refuses types for which the library has no operator."""
    with pytest.raises(Exception, match=r"[Tt]ype|NOT_IMPLEMENTED"):
        session(path, model(bad.domain, bad.op_type, bad.inputs, bad.attributes), bad.domain)


ALONE = """
import sys
for name in ("numba", "llvmlite", "onnx_ops"):
    sys.modules[name] = None
import numpy as np, onnxruntime as ort
options = ort.SessionOptions()
options.register_custom_ops_library(sys.argv[1])
session = ort.InferenceSession(sys.argv[2], options)
inputs = np.load(sys.argv[3])
(y,) = session.run(None, {i.name: inputs[i.name] for i in session.get_inputs()})
np.save(sys.argv[4], y)
"""


def saved(folder):
    """Save a Col2Im that ONNX Runtime's kernel gets wrong; return (path, inputs, path of inputs,
    right result).
    """
    case = col2im("dilated", (12,), (3,), dilations=[2])
    names, inputs = [i.name for i in case.operator.inputs], case.inputs("float32")
    (folder / "model.onnx").write_bytes(
        model("", "Col2Im", inputs, case.attributes).SerializeToString()
    )
    np.savez(folder / "inputs.npz", **dict(zip(names, inputs, strict=True)))
    return (
        folder / "model.onnx",
        dict(zip(names, inputs, strict=True)),
        folder / "inputs.npz",
        expected_of(case, inputs),
    )


def alone(path, folder, **environment):
    proto, _, inputs, expected = saved(folder)
    return python(
        ALONE, path, proto, inputs, folder / "y.npy", cwd=folder, check=False, **environment
    ), expected


def test_in_a_process_without_this_package(path, tmp_path):
    process, expected = alone(path, tmp_path)
    assert process.returncode == 0, process.stderr
    assert_close(np.load(tmp_path / "y.npy"), expected, "float32")


@pytest.mark.long
@pytest.mark.parametrize("cpu", [name for name, (kind, *_) in LEVELS.items() if kind == "x86_64"])
def test_every_cpu(cpu, path_for_all, tmp_path):
    """The library runs the code of the CPU that the variable names, and refuses one that this
    machine is not.
    """
    process, expected = alone(path_for_all, tmp_path, ONNX_OPS_CPU=cpu)
    if not runs_here(cpu):
        assert (
            f"ONNX_OPS_CPU = {cpu}: can't be run here by this library, which has " in process.stderr
        )
        pytest.skip(f"this machine is no {cpu}: its code was not run")
    assert process.returncode == 0, process.stderr
    assert_close(np.load(tmp_path / "y.npy"), expected, "float32")


def test_a_cpu_that_the_library_has_not(path, tmp_path):
    process, _ = alone(path, tmp_path, ONNX_OPS_CPU="armv8-a")
    assert (
        "ONNX_OPS_CPU = armv8-a: can't be run here by this library, which has x86-64-v"
        in process.stderr
    )


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """A function that runs a model by a program in C, with the ONNX Runtime of its wheel, and
    returns its elements.
    """
    runtime = next(Path(ort.__file__).parent.glob("capi/libonnxruntime.so*"), None)
    if runtime is None:
        pytest.skip("this onnxruntime has no library of its own")
    folder = tmp_path_factory.mktemp("host")
    flags = (
        f"-std=c11 -Wall -Wextra -Werror -I{building.SOURCES} -o {folder}/host "
        f"{HERE}/support/host.c -ldl"
    )
    subprocess.run([*building.c_compiler("linux", "x86_64"), *flags.split()], check=True)

    def run(path, proto, inputs):
        arguments = []
        for name, value in inputs.items():
            value.tofile(folder / f"{name}.bin")
            kind = 1 if value.dtype == np.float32 else 7
            arguments.append(f"{name}:{kind}:{','.join(map(str, value.shape))}:{folder / name}.bin")
        command = [folder / "host", runtime, path, proto, folder / "y.bin", *arguments]
        process = subprocess.run(command, capture_output=True, text=True)
        assert (process.returncode, process.stderr) == (0, "")
        return np.fromfile(folder / "y.bin", np.float32)

    return run


def test_in_a_program_in_c(host, path, tmp_path):
    proto, inputs, _, expected = saved(tmp_path)
    assert_close(host(path, proto, inputs).reshape(expected.shape), expected, "float32")


def test_a_rotated_detector_in_a_program_in_c(host, path, tmp_path):
    proto, inputs, expected = rotated_detector()
    (tmp_path / "detector.onnx").write_bytes(proto.SerializeToString())
    boxes = host(path, tmp_path / "detector.onnx", inputs)
    np.testing.assert_allclose(boxes, expected["boxes"].ravel(), rtol=1e-5)


def test_the_same_sources_give_the_same_library(tmp_path):
    """Its bytes depend neither on what a cache has, nor on the order of Python's sets."""
    libraries = [tmp_path / "one.so", tmp_path / "another.so"]
    script = """
    import sys, onnx_ops
    onnx_ops.build(sys.argv[1], operators=["Im2Col"], dtypes=["float32", "int16"],
        cpus=["x86-64-v3"], jobs=2)
    """
    for seed, file in enumerate(libraries):
        python(script, file, PYTHONHASHSEED=str(seed), NUMBA_CACHE_DIR=str(tmp_path / file.stem))
    assert libraries[0].read_bytes() == libraries[1].read_bytes()


def test_what_it_needs_and_what_it_shows(path):
    """The library needs libc and libm alone, and exports only its own names and the one that ONNX
    Runtime calls.
    """
    needed = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
    names = {line.split()[0].partition(".so")[0].rpartition("/")[2] for line in needed.splitlines()}
    assert names <= {"linux-vdso", "libc", "libm", "ld-linux-x86-64", "ld-linux-aarch64"}
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True
    ).stdout
    exported = {line.split()[-1] for line in symbols.splitlines()}
    assert "RegisterCustomOps" in exported
    assert all(name == "RegisterCustomOps" or name.startswith("onnx_ops_") for name in exported), (
        exported
    )


def call_build(*arguments):
    return invoke("build", *arguments)


def test_the_command(path, tmp_path):
    """The command links compiled code again, and replaces an existing library when the new one is
    complete.
    """
    output = tmp_path / LIBRARY
    output.write_text("the old one")
    outcome = call_build(
        "--output", output, "--operator", "Col2Im", "--dtype", "float32", "--cpu", BEST
    )
    size = f"{output.stat().st_size / 2**20:.1f} MB"
    assert outcome.exit_code == 0
    compiled, text = outcome.output.split(f"{output}: ")
    assert all(line.startswith("compiling ") for line in compiled.splitlines())
    assert text.startswith(f"{size}, for linux on {BEST}\nIn Python: options.register_custom_ops_")
    assert output.stat().st_size < path.stat().st_size
    assert alone(output, tmp_path)[0].returncode == 0


FOREIGN = (
    r"for windows on x86_64: cc -fPIC can't build the library: "
    r"\S+ error: #error .* is for another system"
)
FAILURES = {
    "no compiler": (
        {"CC": "/none/cc -O3"},
        [],
        3,
        "for linux on x86_64: there is no C compiler called /none",
    ),
    "a compiler that fails": (
        {"CC": "false"},
        [],
        3,
        "false can't build the library: it ends with exit code 1",
    ),
    "a compiler for another system": ({"CC": "cc -fPIC"}, ["--system", "windows"], 3, FOREIGN),
    "a compiler that does nothing": (
        {"CC": "true"},
        [],
        3,
        "true can't build the library: it ends with exit code 0",
    ),
    "two architectures": (
        {},
        ["--cpu", "armv8-a"],
        3,
        f"cpu = {BEST}, armv8-a: must be of one architecture",
    ),
    "no such types": ({}, ["--dtype", "string"], 2, "'string' is not one of"),
    "nowhere to write": (
        {},
        ["--output", "/proc/x.so"],
        3,
        "output = '/proc/x.so': can't be written: No such file",
    ),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_what_goes_wrong(failure, path, tmp_path, monkeypatch):
    environment, arguments, code, message = FAILURES[failure]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    output = tmp_path / LIBRARY
    output.write_text("the old one")
    outcome = call_build(
        "--output", output, "--operator", "Col2Im", "--dtype", "float32", "--cpu", BEST, *arguments
    )
    assert outcome.exit_code == code, outcome.output
    assert re.search(message, outcome.stderr)
    assert output.read_text() == "the old one"
    assert list(tmp_path.iterdir()) == [output]


@pytest.mark.parametrize("full", ["output", "temporary files"])
def test_a_full_disk(full, path, tmp_path):
    """The error also names the folder of temporary files, if that is full."""
    disk, output = tmp_path / "disk", tmp_path / LIBRARY
    disk.mkdir()
    temporary = {"TMPDIR": str(disk)} if full == "temporary files" else {}
    output = output if temporary else disk / LIBRARY
    command = [
        "build",
        "--output",
        output,
        "--operator",
        "Col2Im",
        "--dtype",
        "float32",
        "--cpu",
        BEST,
    ]
    done = on_disk("size=8k", disk, sys.executable, "-m", "onnx_ops", *command, **temporary)
    place = rf"{disk}/tmp\w+" if temporary else output
    assert done.returncode == 3
    assert re.search(
        f"output = '{output}': can't be written: No space left on device: {place}\n$", done.stderr
    )


@pytest.mark.skipif(not find_spec("ziglang"), reason="there is no ziglang")
def test_linked_by_ziglang(path, tmp_path, monkeypatch):
    """Wheels are, and libraries for other systems: they must find out what the CPU can run, too."""
    monkeypatch.setenv("CC", shlex.join(building.ziglang("linux", "x86_64")))
    output = tmp_path / "a.so"
    outcome = call_build(
        "--output", output, "--operator", "Col2Im", "--dtype", "float32", "--cpu", BEST
    )
    assert outcome.exit_code == 0, outcome.output
    process, expected = alone(output, tmp_path)
    assert process.returncode == 0, process.stderr
    assert_close(np.load(tmp_path / "y.npy"), expected, "float32")


def kernels(path):
    """The number of kernels that the library has made."""
    table = building.table.Table.in_dll(C.CDLL(str(path)), "onnx_ops_table")
    return sum(row.contents.kernels_made for row in table.operators[: table.operator_count])


def test_a_library_that_is_loaded_is_replaced_for_other_processes(path, tmp_path, caplog):
    output = shutil.copy(path, tmp_path)
    for count in (0, 1):
        onnx_ops.build(output, operators=["Col2Im"], dtypes=["float32"], cpus=[BEST])
        warning = f"onnx_ops: {output} is loaded here: at that path, this process keeps the old one"
        assert [r.getMessage() for r in caplog.records] == [warning] * count
        C.CDLL(output)


def test_it_stays_when_it_was_loaded(path, tmp_path):
    """Else its permanent allocations would be lost whenever ONNX Runtime unloads it with the last
    session.
    """
    proto = saved(tmp_path)[0].read_bytes()

    def load_and_unload():
        options = quiet()
        options.register_custom_ops_library(str(path))
        ort.InferenceSession(proto, options)

    load_and_unload()
    before = kernels(path)
    load_and_unload()
    assert kernels(path) == before + 1


OTHER = """
import sys
from dataclasses import replace
from pathlib import Path
import numpy as np
from onnx_ops import system
from onnx_ops.compiler import records
from onnx_ops.fold import col2im
from onnx_ops.native import library
def changed(o):
    if o.title != "Col2Im":
        return o
    class Larger(o.plan.geometry):
        one_more: int
    return replace(o, plan=replace(o.plan, geometry=Larger))
if sys.argv[2] == "other":
    col2im.OPERATORS = tuple(map(changed, col2im.OPERATORS))
if sys.argv[2] == "other call":
    size = records.CALL.itemsize // 8
    records.call_dtype = lambda g: np.dtype([("head", np.int64, size + 1),
        ("geometry", np.int64, g.itemsize // 8)])
if sys.argv[2] == "other C":
    system.digest_of_sources = lambda folder: 1
library.PLACE = Path(sys.argv[1])
import onnx_ops
try:
    print(library.is_complete(), onnx_ops.get_library_path())
except onnx_ops.OpError as error:
    print(error)
"""


@pytest.mark.parametrize("declarations", ["same", "other", "other call", "other C"])
def test_a_library_and_python_of_other_versions(declarations, path):
    """A library of another version is not used, such as that of an editable installation after `git
    pull`.
    """
    output = (
        f"True {path}" if declarations == "same" else "has another version than onnx_ops in Python"
    )
    assert output in python(OTHER, path, declarations, cwd=HERE.parent).stdout


OTHERS = [
    ("linux", "armv8-a"),
    *((system, cpu) for system in ("windows", "macos") for cpu in ("x86-64-v3", "armv8-a")),
]


@pytest.mark.long
@pytest.mark.parametrize(("system", "cpu"), OTHERS, ids="-".join)
def test_for_another_system(system, cpu, tmp_path):
    try:
        building.c_compiler(system, LEVELS[cpu][0])
    except onnx_ops.OpError as error:
        pytest.skip(str(error))
    output = tmp_path / "operators.bin"
    words = f"--output {output} --operator Col2Im --dtype float32 --cpu {cpu} --system {system}"
    outcome = call_build(*words.split())
    assert outcome.exit_code == 0, outcome.output
    assert [path.name for path in tmp_path.iterdir()] == ["operators.bin"]
    check_library(output.read_bytes(), system, LEVELS[cpu][0], output.name)


@pytest.mark.long
@pytest.mark.parametrize("threads", ["win32", "posix"])
def test_a_dll_needs_windows_alone(threads, tmp_path, monkeypatch):
    """Whichever threads mingw was built for: distributions differ in that."""
    compiler = f"x86_64-w64-mingw32-gcc-{threads}"
    if not shutil.which(compiler):
        pytest.skip(f"there is no {compiler}")
    monkeypatch.setenv("CC", compiler)
    output = tmp_path / "a.dll"
    onnx_ops.build(
        output, operators=["Col2Im"], dtypes=["float32"], cpus=["x86-64-v3"], system="windows"
    )
    check_library(output.read_bytes(), "windows", "x86_64", output.name)


def test_no_compiler_for_another_system(monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(building.shutil, "which", lambda name: None)
    monkeypatch.setattr(building, "find_spec", lambda name: None)
    with pytest.raises(
        onnx_ops.OpError,
        match=r"for macos on aarch64: install one, or the package ziglang, or name",
    ):
        building.c_compiler("macos", "aarch64")
    rule = (
        r"for windows on x86_64: there is no C compiler called x86_64-w64-mingw32-gcc; "
        r"install one, or the package"
    )
    with pytest.raises(onnx_ops.OpError, match=rule):
        building.c_compiler("windows", "x86_64")
    with pytest.raises(
        onnx_ops.OpError, match="system = 'beos': must be one of linux, windows, macos"
    ):
        onnx_ops.build("x.so", system="beos")
