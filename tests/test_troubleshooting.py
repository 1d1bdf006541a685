"""docs/troubleshooting.md: each row is provoked, has the message that is raised, and its remedy
works.
"""

import gc
import inspect
import logging
import os
import pickle
import platform
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from importlib import util as importlib_util
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import psutil
import pytest
from support.backends import HAVE_EXTENSIONS, ORT_VERSION, quiet, with_extensions
from support.backends import written_in_ort_format as written_as_ort
from support.cases import parsed
from support.commands import call, call_json
from support.pages import ROOT
from support.processes import python
from support.selection import but_names
from support.written import conv_relu_col2im_sigmoid, unfold_product, windows
from support.written import feeds as random_feeds

import onnx_ops
from onnx_ops.compiler import cache, code, key, numba_internals
from onnx_ops.compiler.records import Entry, Number, Step
from onnx_ops.declaration import jit
from onnx_ops.kernels.shares import pieces
from onnx_ops.model.sessions import OrtSession
from onnx_ops.native import library
from onnx_ops.session import native_backend, register

pytestmark = pytest.mark.any_library

PAGE = ROOT / "docs" / "troubleshooting.md"
ROW = re.compile(r"^\| (?!message or symptom )([^|]+?) \|", re.MULTILINE)
MESSAGE = re.compile(r"`([^`]+)`")  # begins a row, else the row is a symptom
WORDED = (1, 32)  # the version of ONNX Runtime with the messages that the page marks by (ORT)

CELLS = {
    (message[1] if (message := MESSAGE.match(cell)) else cell): cell
    for cell in ROW.findall(PAGE.read_text())
}
# Rows of processes that hang or end, one of Python's own message, and those whose like is in
# custom/test_python_ops.py.
SLOW = (
    "module 'onnx_ops' has no attribute 'InferenceSession'",
    "have operators of another library, such as @onnx_op functions",
    "Another library has operators in the same domain",
    "A worker hangs after a fork",
    "A child process hangs at its exit",
    "The process ends by SIGSEGV where a thread makes a session",
)
PROVOKED: dict[str, Callable[..., str | None]] = {}


def shows(row: str) -> Callable[[Callable[..., str | None]], Callable[..., str | None]]:
    """Mark a function that provokes a row, and returns the text with its message."""

    def add(function: Callable[..., str | None]) -> Callable[..., str | None]:
        assert row not in PROVOKED
        PROVOKED[row] = function
        return function

    return add


def refused(function: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """Return the message of the exception that a call raises."""
    with pytest.raises((Exception, SystemExit)) as caught:
        function(*arguments, **options)
    return str(caught.value)


def plain(proto: onnx.ModelProto, options: ort.SessionOptions | None = None) -> Any:
    return ort.InferenceSession(proto.SerializeToString(), options or quiet())


def ours(proto: onnx.ModelProto, options: ort.SessionOptions | None = None, **more: Any) -> Any:
    return onnx_ops.InferenceSession(proto.SerializeToString(), options or quiet(), **more)


def sampled(
    image: str = "float[1, 1, 3, 4]", grid: str = "float[1, 2, 2, 2]", node: str = ""
) -> Any:
    kind = image.partition("[")[0]
    return parsed(
        f"({image} x, {grid} f) => ({kind}[a, b, c, d] y) {{ y = GridSample {node} (x, f) }}", 20
    )


OPEN = sampled("float[N, 1, H, W]", "float[M, h, w, 2]")
FEEDS = {"x": np.ones((1, 1, 3, 4), np.float32), "f": np.zeros((1, 2, 2, 2), np.float32)}
ADD = parsed("(float[1] x) => (float[1] y) { y = Add (x, x) }", 20)
TWICE = parsed("(float[N] x) => (float[M] y) { y = my.domain.Twice (x) }", 20, "my.domain")
WARP = ROOT / "models" / "exported" / "spatial_transformer" / "model.onnx"


def twice(name: str = "my.domain::Twice", factor: int = 2) -> Any:
    declare = onnx_ops.operator(name, inputs="x: float32", outputs="y: float32")
    return declare(lambda x: factor * x)


def run_twice(session: Any) -> list[float]:
    return session.run(None, {"x": np.ones(1, np.float32)})[0].tolist()


def nodes_run(function: Callable[[], Any]) -> int:
    """Return the number of nodes that onnx_ops runs in the sessions that a function makes."""
    before = sum(onnx_ops.node_counts().values())
    function()
    return sum(onnx_ops.node_counts().values()) - before


@pytest.mark.parametrize("row", but_names(CELLS, SLOW))
def test_row(row: str, request: pytest.FixtureRequest) -> None:
    if "(ORT)" in CELLS[row] and ORT_VERSION != WORDED:
        pytest.skip("another version of ONNX Runtime may word it differently")
    function = PROVOKED[row]
    names = inspect.signature(function).parameters
    text = function(**{name: request.getfixturevalue(name) for name in names})
    is_message = CELLS[row].startswith("`")
    assert (text is not None) == is_message
    if text is not None:
        pattern = ".*".join(map(re.escape, row.split("...")))
        assert re.search(pattern, text, re.DOTALL), text


def test_every_row_is_provoked() -> None:
    assert len(CELLS) == len(ROW.findall(PAGE.read_text())) >= 25
    assert CELLS.keys() == PROVOKED.keys()


# Installation


@shows("the C library was not built when onnx_ops was installed")
def without_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    with monkeypatch.context() as patched:
        patched.setattr(library, "PLACE", tmp_path / "onnx_ops" / "native" / "library.so")
        return refused(onnx_ops.register, quiet(), OPEN)


@shows("the C library is not in the clone ..., which Python has imported")
def in_the_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "setup.py").touch()
    return without_compiler(tmp_path, monkeypatch) or ""


@shows("module 'onnx_ops' has no attribute 'InferenceSession'")
def around_the_clone(tmp_path: Path) -> str:
    (tmp_path / "onnx_ops").mkdir()
    script = "import onnx_ops; onnx_ops.InferenceSession"
    variables = {name: value for name, value in os.environ.items() if name[:6] != "PYTHON"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", script],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
    )
    python(script, cwd=tmp_path / "onnx_ops")
    return done.stderr


@shows("has another version than onnx_ops in Python; install onnx_ops again")
def with_an_old_library(monkeypatch: pytest.MonkeyPatch) -> str:
    load = library.load.__wrapped__
    with monkeypatch.context() as patched:
        patched.setattr(library.system, "digest_of_sources", lambda folder: 1)
        message = refused(load)
    assert load()
    return message


@pytest.fixture
def no_record() -> Any:
    """What is known of Numba is found out again, during the test and after it."""
    jit.numba_obstacle.cache_clear()
    yield
    jit.numba_obstacle.cache_clear()


@shows("Numba can't be imported to compile kernels")
def without_numba(monkeypatch: pytest.MonkeyPatch, no_record: None) -> str:
    find = importlib_util.find_spec
    with monkeypatch.context() as patched:
        patched.setattr(importlib_util, "find_spec", lambda name: name != "numba" and find(name))
        return refused(onnx_ops.register, quiet(), OPEN)


@shows("Numba is of version ..., but must be one of")
def with_a_new_numba(monkeypatch: pytest.MonkeyPatch, no_record: None) -> str:
    with monkeypatch.context() as patched:
        patched.setattr(metadata, "version", lambda name: "0.99.0")
        return refused(onnx_ops.register, quiet(), OPEN)


@shows("NUMBA_DISABLE_JIT is set, with which Numba compiles nothing")
def with_numba_switched_off(monkeypatch: pytest.MonkeyPatch) -> str:
    with monkeypatch.context() as patched:
        patched.setattr(numba_internals.config, "DISABLE_JIT", 1)
        message = refused(numba_internals.check_numba)
    numba_internals.check_numba()
    return message


@shows("needs onnxruntime-extensions, which can't be imported")
def without_extensions(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(sys.modules, "onnxruntime_extensions", None)
    assert ours(OPEN)
    return refused(ours, OPEN, backend="extensions")


@shows("the command line needs click")
def without_click(monkeypatch: pytest.MonkeyPatch) -> str:
    from onnx_ops.cli import main

    monkeypatch.setitem(sys.modules, "click", None)
    monkeypatch.delitem(sys.modules, "onnx_ops.cli.app", raising=False)
    return refused(main)


@shows("'CUDAExecutionProvider' is not in available provider names")
def without_cuda() -> str:
    if "CUDAExecutionProvider" in ort.get_available_providers():
        pytest.skip("this ONNX Runtime has the provider")
    with pytest.warns(UserWarning, match="CUDA") as caught:
        ours(OPEN, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
    return str(caught[0].message)


# Creating a session


@shows("mmdeploy:NMSRotated(-1) is not a registered function/op")
def unregistered() -> str:
    proto = parsed(
        """(float[N, B, 5] boxes, float[N, K, B] scores) => (int64[S, 3] kept) {
        kept = mmdeploy.NMSRotated <iou_threshold = 0.3, score_threshold = 0.05> (boxes, scores)
        }""",
        11,
        "mmdeploy",
    )
    assert nodes_run(lambda: ours(proto)) == 1
    return refused(plain, proto)


@shows("onnx_ops:ComputedGridSample(-1) is not a registered function/op")
def unregistered_after_optimize() -> str:
    proto = onnx_ops.optimize(WARP)
    assert nodes_run(lambda: plain(proto, onnx_ops.register(quiet(), proto))) == 1
    return refused(plain, proto)


@shows("ai.onnx.contrib:ai_onnx_GridSample(-1) is not a registered function/op")
def unregistered_after_lower() -> str:
    proto = onnx_ops.lower(OPEN)
    if HAVE_EXTENSIONS:
        assert plain(proto, with_extensions(quiet()))
    assert nodes_run(lambda: ours(OPEN)) == 1
    return refused(plain, proto)


@shows("my.domain:Twice(-1) is not a registered function/op")
def custom_operator_not_passed() -> str:
    assert run_twice(ours(TWICE, operators=[twice()])) == [2]
    return refused(ours, TWICE)


@shows("... is not a registered function/op")
def unknown_operator(tmp_path: Path) -> str:
    onnx.save(TWICE, tmp_path / "model.onnx")
    report = call_json("inspect", tmp_path / "model.onnx", exit_code=1)
    assert report["unknown"] == {"my.domain.Twice": 1}
    options = onnx_ops.register(quiet(), TWICE, operators=[twice()])
    assert run_twice(plain(TWICE, options)) == [2]
    return refused(plain, TWICE, onnx_ops.register(quiet(), TWICE))


@shows("Could not find an implementation for RoiAlign(22)")
def no_built_in_kernel() -> str:
    proto = parsed(
        "(float[1, 1, 3, 4] x, float[R, 4] r, int64[R] b) => (float[R, c, h, w] y) {"
        "y = RoiAlign (x, r, b) }",
        22,
    )
    assert nodes_run(lambda: ours(proto)) == 1
    return refused(plain, proto)


@shows("Could not find an implementation for Add(14)")
def bfloat16_beside_the_operators(tmp_path: Path) -> str:
    header = "(bfloat16[1, 1, 3, 4] x, bfloat16[1, 2, 2, 2] f) => (bfloat16[a, b, c, d] y)"
    around = """{ u = Cast <to = 1> (x) v = Add (u, u) z = Cast <to = 16> (v)
        y = GridSample (z, f) }"""
    proto = parsed(f"{header} {{ z = Add (x, x) y = GridSample (z, f) }}", 20)
    with native_backend.survey():  # which compiles nothing
        assert ours(parsed(f"{header} {around}", 20))
        message = refused(ours, proto)
    onnx.save(proto, tmp_path / "model.onnx")
    assert "Add" in "".join(call_json("inspect", tmp_path / "model.onnx", exit_code=1)["no_kernel"])
    return message


@shows("Unsupported model IR version")
def a_newer_onnx() -> str:
    proto = sampled()
    proto.ir_version = 99
    message = refused(ours, proto)
    proto.ir_version = 9
    assert ours(proto)
    return message


@shows("dtype of X = uint8: must be one of")
def integers_with_linear() -> str:
    image = "uint8[1, 1, 3, 4]"
    session = ours(sampled(image, node='<mode = "nearest">'))
    assert session.run(None, {**FEEDS, "x": FEEDS["x"].astype(np.uint8)})[0].dtype == np.uint8
    return refused(ours, sampled(image))


@shows("Type 'tensor(uint8)' of input parameter (...) ... is invalid")
def integers_without_support() -> str:
    def proto(cast: str = "") -> onnx.ModelProto:
        return parsed(
            "(uint8[1, 1, 3, 4] x, float[1, 2, 2, 2] f) => (TYPE[a, b, c, d] y) { CAST "
            "y = com.microsoft.GridSample (IMAGE, f) }".replace("CAST", cast)
            .replace("IMAGE", "z" if cast else "x")
            .replace("TYPE", "float" if cast else "uint8"),
            16,
            "com.microsoft",
        )

    wrong, right = proto(), proto("z = Cast <to = 1> (x)")
    assert nodes_run(lambda: plain(right, onnx_ops.register(quiet(), right))) == 1
    return refused(plain, wrong, onnx_ops.register(quiet(), wrong))


@shows("dtype of rois = float64: must be float32, that of X")
def unequal_types() -> str:
    def proto(rois: str, cast: str = "") -> onnx.ModelProto:
        return parsed(
            f"(float[1, 1, 3, 4] x, {rois}[R, 4] r, int64[R] b) => (float[R, c, h, w] y) {{"
            f"{cast} y = RoiAlign (x, {'s' if cast else 'r'}, b) }}",
            16,
        )

    wrong = proto("double")
    assert ours(proto("double", "s = Cast <to = 1> (r)"))
    message = refused(plain, wrong, onnx_ops.register(quiet(), wrong))
    assert ORT_VERSION != WORDED or "no kernel def matches node inputs" in message
    return refused(ours, wrong)


@shows("shape of X = ...: must have rank 4 or 5")
def another_rank() -> str:
    header = "(float[1, 3, 4] x, float[1, 2, 2, 2] f) => (float[a, b, c, d] y)"
    text = "{ axes = Constant <value = int64[1] {0}> () z = Unsqueeze (x, axes)"
    assert ours(parsed(f"{header} {text} y = GridSample (z, f) }}", 20))
    return refused(ours, parsed(f"{header} {{ y = GridSample (x, f) }}", 20))


@shows("ONNX Runtime alone runs it, since")
def refused_after_install() -> str:
    proto = sampled(node="<align_corners = 5>")
    with onnx_ops.install(), pytest.warns(UserWarning, match="align_corners = 5") as caught:
        assert type(plain(proto)) is OrtSession
    return str(caught[0].message)


@shows("attribute ... is unknown and will be ignored")
def misspelt_attribute(caplog: pytest.LogCaptureFixture) -> str:
    proto = sampled(node='<modus = "cubic">')
    assert ours(proto, optimize=True)
    text = caplog.text
    caplog.clear()
    assert ours(sampled(node='<mode = "cubic">'), optimize=True)
    assert not caplog.text
    return text


SAMPLED_BY_MICROSOFT = parsed(
    "(float[1, 1, 3, 4] x, float[1, 2, 2, 2] f) => (float[a, b, c, d] y) {"
    "y = com.microsoft.GridSample (x, f) }",
    16,
    "com.microsoft",
)


@shows("com.microsoft is left out")
def registered_without_a_model() -> str:
    register.warn_once.cache_clear()
    with pytest.warns(UserWarning, match="onnx_ops") as caught:
        options = onnx_ops.register(quiet())
    assert nodes_run(lambda: plain(SAMPLED_BY_MICROSOFT, options)) == 0
    onnx_ops.register(options, SAMPLED_BY_MICROSOFT)
    assert nodes_run(lambda: plain(SAMPLED_BY_MICROSOFT, options)) == 1
    return str(caught[0].message)


@shows("com.microsoft was registered on them for another model")
def options_of_two_models() -> str:
    options, (proto, _) = quiet(), conv_relu_col2im_sigmoid()
    ours(SAMPLED_BY_MICROSOFT, options)
    assert ours(proto)
    return refused(ours, proto, options)


BOTH_LIBRARIES = """
import onnx_ops
from onnxruntime_extensions import PyCustomOpDef, onnx_op
from support.backends import quiet, with_extensions
from support.cases import parsed

def halve(x):
    return x / 2

floats = [PyCustomOpDef.dt_float]
onnx_op(op_type="com.microsoft::Halve", inputs=floats, outputs=floats)(halve)
content = parsed("(float[1, 1, 3, 4] x, float[1, 2, 2, 2] f) => (float[a, b, c, d] y) {"
    "z = com.microsoft.GridSample (x, f) y = com.microsoft.Halve (z) }", 16,
    "com.microsoft").SerializeToString()
try:
    onnx_ops.InferenceSession(content, with_extensions(quiet()))
except onnx_ops.OpError as error:
    print(error)
declare = onnx_ops.operator("com.microsoft::Halve", inputs="x: float32", outputs="y: float32")
onnx_ops.InferenceSession(content, quiet(), operators=[declare(halve)])
"""


@shows("have operators of another library, such as @onnx_op functions")
def both_libraries_in_one_domain() -> str:
    if not HAVE_EXTENSIONS:
        pytest.skip("needs onnxruntime-extensions")
    return python(BOTH_LIBRARIES).stdout


BESIDE_A_LIBRARY = """
import onnxruntime as ort
import onnx_ops
from onnxruntime_extensions import PyCustomOpDef, onnx_op
from support.backends import quiet, with_extensions
from support.cases import parsed

floats = [PyCustomOpDef.dt_float]
onnx_op(op_type="mmdeploy::Halve", inputs=floats, outputs=floats)(lambda x: x / 2)
content = parsed("(float[1, 1, 3, 4] x, float[1, 2, 2, 2] f) => (float[a, b, c, d] y) {"
    "z = GridSample (x, f) y = mmdeploy.Halve (z) }", 20, "mmdeploy").SerializeToString()
for domains in (["", "mmdeploy"], [""]):
    try:
        options = onnx_ops.register(with_extensions(quiet()), domains=domains)
        ort.InferenceSession(content, options)
    except Exception as error:
        print(error)
print(onnx_ops.node_counts())
"""


@shows("Another library has operators in the same domain")
def domain_of_another_library() -> None:
    if not HAVE_EXTENSIONS:
        pytest.skip("needs onnxruntime-extensions")
    *errors, counts = python(BESIDE_A_LIBRARY).stdout.splitlines()
    assert len(errors) == 1
    assert counts == "{'GridSample': 1}"
    if ORT_VERSION == WORDED:
        assert "Domain already set in registry" in errors[0]


@shows("have the same library twice; register it once")
def one_library_twice() -> str:
    if not HAVE_EXTENSIONS:
        pytest.skip("needs onnxruntime-extensions")
    options = with_extensions(quiet())
    assert ours(OPEN, options)
    return refused(ours, OPEN, with_extensions(options))


@shows("the session's options have another operator of this name; use new options")
def declared_again() -> str:
    options = quiet()
    assert run_twice(ours(TWICE, options, operators=[twice()])) == [2]
    again = twice(factor=3)
    assert run_twice(ours(TWICE, operators=[again])) == [3]
    return refused(ours, TWICE, options, operators=[again])


@shows("is declared twice, in ...; one session can't have both")
def declared_twice() -> str:
    first, second = twice(), twice()
    assert ours(TWICE, operators=[first])
    return refused(ours, TWICE, operators=[first, second])


@shows("A custom operator runs in place of one of onnx_ops")
def with_a_name_of_onnx_ops() -> None:
    @onnx_ops.operator("::GridSample", inputs="x: float32, f: float32", outputs="y: float32")
    def seven(x: Any, f: Any) -> Any:
        return np.full((1, 1, 2, 2), 7, np.float32)

    assert (ours(OPEN, operators=[seven]).run(None, FEEDS)[0] == 7).all()
    assert (ours(OPEN).run(None, FEEDS)[0] == 1).all()


@shows("since the domains of a model in ONNX Runtime's own format are unknown")
def unknown_domains(tmp_path: Path) -> str:
    path = written_as_ort(OPEN, tmp_path / "model.ort", with_onnx_ops=False)
    with pytest.warns(UserWarning, match="onnx_ops") as caught:
        onnx_ops.InferenceSession(path, quiet())
    path = written_as_ort(OPEN, tmp_path / "ours.ort")
    options = onnx_ops.register(quiet(), domains=["", "com.microsoft"])
    assert nodes_run(lambda: onnx_ops.InferenceSession(path, options)) == 1
    return str(caught[0].message)


@shows("A session of an `.ort` file doesn't use the operators")
def built_in_kernels_in_the_other_format(tmp_path: Path) -> None:
    path = written_as_ort(OPEN, tmp_path / "model.ort", with_onnx_ops=False)
    assert nodes_run(lambda: ort.InferenceSession(path, quiet())) == 0
    path = written_as_ort(OPEN, tmp_path / "ours.ort")
    options = onnx_ops.register(quiet(), domains=["", "com.microsoft"])
    assert nodes_run(lambda: ort.InferenceSession(path, options)) == 1


@shows("can't rewrite a model in ONNX Runtime's own format")
def optimizing_the_other_format(tmp_path: Path) -> str:
    proto = onnx_ops.optimize(WARP)
    path = written_as_ort(proto, tmp_path / "model.ort")
    options = onnx_ops.register(quiet(), domains=["onnx_ops"])
    assert nodes_run(lambda: onnx_ops.InferenceSession(path, options)) == 1
    return refused(onnx_ops.InferenceSession, path, quiet(), optimize=True)


@shows("can't inline the model's functions")
def recursive_functions() -> str:
    text = """<ir_version: 9, opset_import: ["" : 20, "mine" : 1]>
        g (float[1, 1, 3, 4] x, float[1, 2, 2, 2] f) => (float[a, b, c, d] y) { y = mine.F (x, f) }
        <opset_import: ["" : 20, "mine" : 1], domain: "mine"> F (x, f) => (y) {
            z = GridSample (x, f) y = REST }"""
    proto = onnx.parser.parse_model(text.replace("REST", "mine.F (z, f)"))
    assert ours(onnx.parser.parse_model(text.replace("REST", "GridSample (z, f)")))
    return refused(ours, proto, backend="extensions")


def with_weights(folder: Path, location: str = "weights.bin") -> Path:
    """Write a model with external data, and these, into a folder; return the model's path."""
    folder.mkdir(exist_ok=True)
    proto = parsed(
        "(float[1, 1, 3, 4] x) => (float[a, b, c, d] y) { z = GridSample (x, f) y = Add (z, w) }",
        20,
        f=np.zeros((1, 40, 40, 2), np.float32),
        w=np.zeros((1, 1, 40, 40), np.float32),
    )
    onnx.save(
        proto,
        folder / "model.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    if location != "weights.bin":
        proto = onnx.load(folder / "model.onnx", load_external_data=False)
        for tensor in proto.graph.initializer:
            next(e for e in tensor.external_data if e.key == "location").value = location
        onnx.save(proto, folder / "model.onnx")
    return folder / "model.onnx"


@shows("External data path does not exist")
def weights_left_behind(tmp_path: Path) -> str:
    path = with_weights(tmp_path)
    (tmp_path / "moved").mkdir()
    moved = Path(shutil.move(path, tmp_path / "moved"))
    message = refused(onnx_ops.InferenceSession, moved, quiet())
    shutil.move(tmp_path / "weights.bin", tmp_path / "moved")
    assert onnx_ops.InferenceSession(moved, quiet())
    return message


@shows("external data = ...: must lie in the folder of the model")
def weights_elsewhere(tmp_path: Path) -> str:
    path = with_weights(tmp_path / "model", "../weights.bin")
    shutil.copy(tmp_path / "model" / "weights.bin", tmp_path)
    message = call("inspect", path, exit_code=1)
    assert onnx_ops.InferenceSession(with_weights(tmp_path / "other"), quiet())
    return " ".join(message.split())


@shows("must be imported in this process, and its get_library_path() called")
def library_of_another_process() -> str:
    script = """
        import sys, onnxruntime
        options = onnxruntime.SessionOptions()
        try:
            options.register_custom_ops_library(sys.argv[1])
        except Exception as error:
            print(error)
        import onnx_ops
        options.register_custom_ops_library(onnx_ops.get_library_path())
    """
    return python(script, onnx_ops.get_library_path()).stdout


# Running


@shows("Unexpected input data type. Actual: (tensor(double)) , expected: (tensor(float))")
def double_inputs() -> str:
    session = ours(OPEN)
    doubles = {name: array.astype(np.float64) for name, array in FEEDS.items()}
    assert session.run(None, {name: a.astype(np.float32) for name, a in doubles.items()})
    return refused(session.run, None, doubles)


@shows("Numpy_type 256 can't be converted")
def bfloat16_arrays() -> str:
    declare = onnx_ops.operator("my.domain::Twice", inputs="x: bfloat16", outputs="y: bfloat16")
    operators = [declare(lambda x: x + x)]
    proto = parsed(
        "(bfloat16[1] x) => (bfloat16[M] y) { y = my.domain.Twice (x) }", 20, "my.domain"
    )
    feeds = {"x": np.ones(1, ml_dtypes.bfloat16)}
    outputs = onnx_ops.Runner(proto.SerializeToString(), operators=operators)(feeds)
    assert outputs["y"].dtype == ml_dtypes.bfloat16
    return refused(ours(proto, operators=operators).run, None, feeds)


@shows("shape of grid = ...: axis 0 must be the batch size N of X")
def unequal_open_sizes() -> str:
    session = ours(OPEN)
    message = refused(session.run, None, {**FEEDS, "f": np.zeros((3, 2, 2, 2), np.float32)})
    assert session.run(None, FEEDS)
    return message


@shows("Failed to allocate memory for requested buffer")
def outputs_beyond_memory() -> str:
    node = "RoiAlign <output_height = SIZE, output_width = SIZE> (x, r, b)"
    text = f"""(float[1, 1, 3, 4] x, float[R, 4] r, int64[R] b) => (float[R, c, h, w] y) {{
        y = {node} }}"""
    feeds = {
        "x": FEEDS["x"],
        "r": np.zeros((64, 4), np.float32),
        "b": np.zeros(64, np.int64),
    }
    assert ours(parsed(text.replace("SIZE", "2"), 16)).run(None, feeds)
    return refused(ours(parsed(text.replace("SIZE", "1000000"), 16)).run, None, feeds)


@shows("is a view of memory that ends with the call, and was kept")
def kept_views() -> str:
    kept: list[Any] = []

    def session(keep: Callable[[Any], Any]) -> Any:
        declare = onnx_ops.operator("my.domain::Twice", inputs="x: float32", outputs="y: float32")
        return ours(TWICE, operators=[declare(lambda x: kept.append(keep(x)) or 2 * x)])

    assert run_twice(session(np.copy)) == [2]
    gc.freeze()  # the search for what keeps it collects garbage, among new objects alone
    try:
        return refused(run_twice, session(lambda x: x))
    finally:
        gc.unfreeze()


def with_kernel(kernel: Callable[..., Any], **options: Any) -> Any:
    declare = onnx_ops.operator(
        "my.domain::Twice", inputs="x: float32", outputs="y: float32", **options
    )
    return declare(lambda x: 2 * x).shape(lambda x: x).kernel(kernel)


@shows("its body in NumPy runs, since its kernel is compiled only for")
def a_rank_without_a_kernel(caplog: pytest.LogCaptureFixture) -> str:
    def vector(x, index, count, workspace, y):
        for k in range(len(x)):
            y[k] = 2 * x[k]

    def matrix(x, index, count, workspace, y):
        for k in range(x.shape[0]):
            for j in range(x.shape[1]):
                y[k, j] = 2 * x[k, j]

    proto = parsed(
        "(float[N, M] x) => (float[A, B] y) { y = my.domain.Twice (x) }", 20, "my.domain"
    )
    text = ""
    for operator in (with_kernel(matrix, ranks={"x": (2,)}), with_kernel(vector)):
        assert not text
        session = ours(proto, operators=[operator])
        assert session.run(None, {"x": np.ones((1, 1), np.float32)})[0].tolist() == [[2]]
        # A slow compilation is reported, too.
        text = "".join(m for m in caplog.messages if not m.startswith("onnx_ops: compiling"))
    return text


@shows("can't be compiled: it calls Python")
def a_kernel_that_prints() -> str:
    def printing(x, index, count, workspace, y):
        for k in range(len(x)):
            y[k] = 2 * x[k]
            print(x[k])

    return refused(with_kernel(printing), np.ones(3, np.float32))


@shows("Lines on stderr for errors that the program handles")
def lines_on_stderr(capfd: pytest.CaptureFixture) -> None:
    feeds = {**FEEDS, "f": np.zeros((3, 2, 2, 2), np.float32)}
    for severity, is_quiet in ((2, False), (4, True)):
        refused(ours(OPEN, quiet(log_severity_level=severity)).run, None, feeds)
        assert (capfd.readouterr().err == "") == is_quiet


@shows("can't constant fold GridSample")
def constant_inputs(capfd: pytest.CaptureFixture) -> str:
    proto = parsed(
        "() => (float[1, 1, 2, 2] y) { y = GridSample (x, f) }", 20, x=FEEDS["x"], f=FEEDS["f"]
    )
    session = ours(proto, quiet(log_severity_level=2))
    assert (session.run(None, {})[0] == 1).all()
    return capfd.readouterr().err


# Results and speed


@shows("the first node that differs is")
def differing_node(tmp_path: Path) -> str:
    proto = parsed(
        "(float[1, 6, N] x) => (float[a, b, c] y) { y = Col2Im <dilations = [2]> (x, s, k) }",
        18,
        s=np.array([9]),
        k=np.array([3]),
    )
    onnx.save(proto, tmp_path / "model.onnx")
    arguments = ["run", tmp_path / "model.onnx", "--random", "--shape", "x=1,6,5", "--compare"]
    call(*arguments, "reference")
    return call(*arguments, "builtin", exit_code=1)


@shows("Results of an optimized model differ in the last bits")
def roundings() -> None:
    proto = unfold_product()
    inputs = random_feeds(proto)
    optimized, expected, again = (
        ours(proto, optimize=optimize).run(None, inputs)[0] for optimize in (True, False, False)
    )
    assert 0 < np.abs(optimized - expected).max() < 1e-5 * np.abs(expected).max()
    np.testing.assert_array_equal(expected, again)


@shows("Results differ from PyTorch")
def results_of_pytorch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    onnx.save(OPEN, tmp_path / "model.onnx")
    call("run", tmp_path / "model.onnx", "--random", "--compare", "reference")
    image = np.linspace(-1, 1, 12, dtype=np.float32).reshape(1, 1, 3, 4)
    grid = np.full((1, 2, 2, 2), np.nan, np.float32)
    result = ours(sampled()).run(None, {"x": image, "f": grid})[0]
    sample = torch.nn.functional.grid_sample
    peer = sample(torch.tensor(image), torch.tensor(grid), align_corners=False).numpy()
    assert np.isfinite(result).all()
    assert np.isnan(peer).all()


SMALL = Entry((Step(pieces, (Number(0), Number(8))),))  # compiles in a tenth of a second


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The folder of an empty cache, from which this process has loaded nothing."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    code._outcome.cache_clear()
    cache.not_kept.cache_clear()
    yield tmp_path / "cache" / "onnx_ops"
    code._outcome.cache_clear()


@shows("compiling ... (once, a few seconds; cached in")
def the_first_session(
    kernels: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> str:
    monkeypatch.setattr(code, "PATIENCE", 0)
    monkeypatch.setattr(code, "_announced", set())
    code.code(SMALL, "Im2Col")
    text = caplog.text
    code._outcome.cache_clear()
    caplog.clear()
    code.code(SMALL, "Im2Col")
    assert not caplog.text
    return text


@shows("The first session or the first run takes seconds")
def compilations(kernels: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "onnx_ops")
    for is_compiled in (False, True):
        code._outcome.cache_clear()
        caplog.clear()
        code.code(SMALL, "Im2Col")
        assert ("compiling a function of Im2Col" in caplog.text) != is_compiled


@shows("gains nothing, since it has no node of these operators")
def nothing_to_gain(caplog: pytest.LogCaptureFixture) -> str:
    caplog.set_level(logging.INFO, "onnx_ops")
    with onnx_ops.install(optimize=True):
        plain(ADD)
    return caplog.text


@shows("since optimize can fuse nothing in it")
def nothing_to_fuse(tmp_path: Path) -> str:
    onnx.save(ADD, tmp_path / "model.onnx")
    assert "onnx_ops changes nothing" in call("inspect", tmp_path / "model.onnx")
    report = call_json("bench", tmp_path / "model.onnx", "--repeats", 1)
    assert "optimized" not in " ".join(report["seconds"])
    return call("optimize", tmp_path / "model.onnx", tmp_path / "new.onnx")


@shows("is not known to be that of an input")
def near_miss(tmp_path: Path) -> str:
    reports = []
    for is_open in (False, True):
        onnx.save(windows((4, 5, 2, 3), is_open=is_open), tmp_path / "model.onnx")
        reports.append(call("optimize", tmp_path / "model.onnx", tmp_path / "new.onnx", "--json"))
    assert "is not known" not in reports[0]
    assert "Im2Col" in reports[0]
    return reports[1]


def threads_of(**settings: Any) -> int:
    """Return how many threads a session adds to the process."""
    process = psutil.Process()
    before = process.num_threads()
    session = ours(OPEN, quiet(**settings))
    added = process.num_threads() - before
    del session
    return added


@shows("A session has more threads than the container has CPUs")
def threads() -> None:
    assert threads_of(intra_op_num_threads=3) == 2  # and the caller's
    assert threads_of(intra_op_num_threads=1) == 0


@shows("the operators run on the CPU, the other nodes may run on")
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> str:
    assert ours(OPEN)
    monkeypatch.setattr(OrtSession, "get_providers", lambda session: ["CUDAExecutionProvider"])
    with pytest.warns(UserWarning, match="onnx_ops") as caught:
        ours(OPEN)
    return str(caught[0].message)


# Deployment


def kept(name: str = "probe") -> cache.Kept:
    file = cache.Kept(name, "0")
    file.check()
    file.save(b"content")
    return file


@shows("compiled code is not kept in ... for the next process")
def a_folder_that_cannot_be_written_to(
    kernels: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> str:
    assert kept().load() == b"content"
    assert not caplog.text
    (kernels.parent / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(kernels.parent / "file"))
    assert kept().load() is None
    return caplog.text


@shows("it belongs to another user, or others may write to it")
def a_folder_of_another_user(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if sys.platform == "win32":
        pytest.skip("os.stat shows no owners there")
    assert kept().load() == b"content"
    if os.geteuid() == 0:
        os.chown(kernels, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    file = cache.Kept("probe", "0")
    assert file.load() is None
    return file.missing() or ""


@shows("is no absolute path")
def no_absolute_path(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    assert kept().missing() is None
    monkeypatch.setenv("NUMBA_CACHE_DIR", "here")
    return kept().missing() or ""


@shows("removed the permission of others to write to")
def a_folder_for_all(kernels: Path, caplog: pytest.LogCaptureFixture) -> str:
    if sys.platform == "win32":
        pytest.skip("there are no such permissions")
    kept()
    kernels.chmod(0o777)
    assert cache.Kept("probe", "0").load() is None
    assert stat.S_IMODE(kernels.stat().st_mode) == 0o755
    assert kept().load() == b"content"
    return caplog.text


@shows("can't be compiled: OSError: ... Cannot allocate memory")
def compilation_without_memory(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if sys.platform != "linux":
        pytest.skip("other systems word it differently")
    with monkeypatch.context() as patched:
        patched.setattr(code, "MEMORY", 2**62)
        message = refused(code.code, SMALL)
    assert code.code(SMALL).kept.missing() is None
    return message


@shows("A filled cache isn't used")
def other_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for cpu in ("generic", "x86-64-v2", "generic"):
        monkeypatch.setenv("NUMBA_CPU_NAME", cpu)
        monkeypatch.setenv("NUMBA_CPU_FEATURES", "")
        key.versions.cache_clear()
        names.append(key.digest([pieces]))
    monkeypatch.undo()
    key.versions.cache_clear()
    assert names[0] == names[2] != names[1]


WAITING = """
import os, time

def outcome(child, seconds):
    # Wait for a child process, and kill it if it doesn't end in this time.
    deadline = time.monotonic() + seconds
    ended = 0
    while not ended and time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)
    if not ended:
        os.kill(child, 9)
        os.waitpid(child, 0)
    return "ends" if ended else "hangs"
"""

FORKED = """
import os, sys, time, warnings
import numpy as np
import onnx_ops
from support.backends import quiet
from support.cases import parsed

warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
content = parsed("(float[1, 1, 3, 4] x, float[1, 2, 2, 2] f) => (float[a, b, c, d] y) {"
    "y = GridSample (x, f) }", 20).SerializeToString()
feeds = {"x": np.ones((1, 1, 3, 4), np.float32), "f": np.zeros((1, 2, 2, 2), np.float32)}

def make():
    return onnx_ops.InferenceSession(content, quiet(intra_op_num_threads=2))

def of_parent():
    global session
    del session  # waits for its threads, which this process lacks

def of_child():
    make().run(None, feeds)

session = make()
for work in (*[of_parent] * 3, of_child):
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(0)
    print(outcome(child, 0.5 if work is of_parent else 600), flush=True)
"""


@shows("A worker hangs after a fork")
def forks() -> None:
    if not hasattr(os, "fork"):
        pytest.skip("there is no fork here")
    *of_parent, of_child = python(WAITING + FORKED).stdout.split()
    assert of_child == "ends"
    if ORT_VERSION == WORDED:  # other versions may wait for no threads
        assert "hangs" in of_parent  # it depends on what a thread did when its process forked


LEAVING = """
import os, sys, time, warnings
import onnx_ops
from support.backends import quiet

warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
session = onnx_ops.InferenceSession(sys.argv[1], quiet(intra_op_num_threads=2))
for leave in (sys.exit, os._exit):
    child = os.fork()
    if not child:
        leave(0)
    print(outcome(child, 0.5 if leave is sys.exit else 600), flush=True)
"""


@shows("A child process hangs at its exit")
def exits_of_children() -> None:
    if not hasattr(os, "fork"):
        pytest.skip("there is no fork here")
    normal, at_once = python(WAITING + LEAVING, WARP).stdout.split()
    assert at_once == "ends"
    if ORT_VERSION == WORDED:  # other versions may wait for no threads
        assert normal == "hangs"


@shows("cannot pickle 'onnxruntime.capi.onnxruntime_pybind11_state.SessionOptions' object")
def pickled_sessions() -> str:
    runner = pickle.loads(pickle.dumps(onnx_ops.Runner(OPEN.SerializeToString())))
    assert (runner(FEEDS)["y"] == 1).all()
    return refused(pickle.dumps, ours(OPEN))


STACK = """
import sys, threading
import onnx_ops

threading.stack_size(int(sys.argv[1]) * 1024)
thread = threading.Thread(target=onnx_ops.InferenceSession, args=[sys.argv[2]])
thread.start()
thread.join()
print("done")
"""


@shows("The process ends by SIGSEGV where a thread makes a session")
def small_stacks() -> None:
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("other systems have other least stacks")
    if sys.version_info[:2] == (3, 11):  # others may need less
        assert python(STACK, 32, WARP, check=False).returncode == -signal.SIGSEGV
    assert python(STACK, 256, WARP).stdout == "done\n"


@shows("Memory grows with each session")
def registrations() -> None:
    counted: list[str] = []

    class Options(ort.SessionOptions):
        def register_custom_ops_library(self, path: str) -> None:
            counted.append(path)
            super().register_custom_ops_library(path)

    for _ in range(3):
        ours(OPEN, Options())
    assert len(counted) == 3
    shared = Options()
    for _ in range(3):
        ours(OPEN, shared)
    assert len(counted) == 4
