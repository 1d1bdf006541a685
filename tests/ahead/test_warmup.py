"""Warmup compiles what a model needs and nothing else, and fails if the code can't be kept."""

import re
from dataclasses import replace

import numpy as np
import onnx
import pytest
from support.backends import quiet
from support.cases import OPENVINO, case_named, model, parsed
from support.commands import call
from support.processes import python

import onnx_ops
from onnx_ops.ahead import warmup
from onnx_ops.arrays import functions
from onnx_ops.compiler import cache
from onnx_ops.native import library
from onnx_ops.openmmlab.rotated_feature_align import ROTATED_FEATURE_ALIGN as DECLARATION
from onnx_ops.session import native_backend, variants

OVERLAPPING = case_named("overlapping")

pytestmark = pytest.mark.compiler


def network():
    """A model with nodes in the main graph, a branch and a local function, which states only the
    types of inputs.
    """
    return parsed("""(float[1, 9, 4, 4] x, float[1, 3, 3, 2] grid, bool condition,
        float[1, 9, 9] blocks,
        int64[2] image_shape, int64[2] block_shape, int32[2] sizes) =>
        (float16[A, B, C, D] sampled, double[E, F, G, H] folded, float[I, J, K, L] y,
            uint8[M, N, O, P] nearest) {
        half = Cast <to = 10> (x)
        sampled = If (condition) <
            then_branch = cubic ()
                => (float16[A, B, C, D] a) { a = GridSample <mode = "cubic"> (half, grid) },
            else_branch = none () => (float16[A, B, C, D] b) { b = Identity (half) }>
        folded = local.fold (blocks, image_shape, block_shape)
        bytes = Cast <to = 2> (x)
        nearest = GridSample <mode = "nearest"> (bytes, grid)
        unused = GridSample <mode = "nearest", align_corners = 1> (bytes, grid)
        y = org.openvinotoolkit.Col2Im (blocks, sizes, sizes)
    }
    <opset_import: ["" : 20], domain: "local"> fold (x, image_shape, block_shape) => (y) {
        double = Cast <to = 11> (x)
        y = Col2Im (double, image_shape, block_shape)
    }""", 20, "org.openvinotoolkit", "local")  # fmt: skip


NEEDED = {
    "Col2Im float64",
    "GridSample bicubic, float16, float32",
    "GridSample nearest, uint8, float32",
    "org.openvinotoolkit.Col2Im float32",
}
COMPILED = [
    "col2im-col2im-float32-float32", "col2im-col2im-float64-float64", "col2im-plan",
    "col2im-plan_openvino",
    "col2im-shape", "col2im-shape_openvino", "grid_sample-cubic-float16-float32-float16",
    "grid_sample-nearest-uint8-float32-uint8", "grid_sample-plan", "grid_sample-shape",
]  # fmt: skip


COMMAND = "import sys; sys.argv[0] = 'onnx-ops'; from onnx_ops.cli import main; main()"


@pytest.mark.long
def test_what_a_model_needs_is_compiled_and_nothing_else(tmp_path):
    """Nodes are found in the main graph, a branch and a local function, and sessions compile
    nothing more.
    """
    onnx.save(network(), tmp_path / "network.onnx")
    done = python(COMMAND, "warmup", tmp_path / "network.onnx", NUMBA_CACHE_DIR=str(tmp_path))
    assert re.findall(r"^compiling (\d) of 4: .*\n", done.stderr, re.MULTILINE) == [
        "1",
        "2",
        "3",
        "4",
    ]
    assert done.stdout == f"4 kernels are in the cache, {tmp_path / 'onnx_ops'}\n"
    assert sorted(f.name.rpartition("-")[0] for f in (tmp_path / "onnx_ops").iterdir()) == COMPILED
    script = """
        import sys
        import onnx_ops
        from onnx_ops.compiler import code
        code.Code.compile = None
        onnx_ops.InferenceSession(sys.argv[1])
    """
    assert python(script, tmp_path / "network.onnx", NUMBA_CACHE_DIR=str(tmp_path)).stderr == ""


def test_what_a_model_needs_without_numba(monkeypatch):
    """As in a wheel with compiled kernels, where nothing is to be compiled: a survey lists kernels
    alone.
    """
    proto = model(
        OVERLAPPING.domain,
        "Col2Im",
        OVERLAPPING.inputs("float32"),
        OVERLAPPING.attributes,
    )
    onnx_ops.InferenceSession(
        proto.SerializeToString(), quiet()
    )  # the library has the plan from here on
    monkeypatch.setattr(native_backend, "numba_obstacle", lambda: "there is no Numba")
    assert warmup.needed_by([proto.SerializeToString()]).keys() == {"Col2Im float32"}


CUSTOM = """
import onnx_ops
twice = onnx_ops.operator("my::Twice", inputs="x: float32",
    outputs="y: float32")(lambda x: x * 2).shape(lambda x: x)
@twice.kernel
def _(x, index, count, workspace, y):
    for k in range(len(x)):
        y[k] = x[k] * 2
"""


def test_custom_operators_are_not_in_the_library(tmp_path, monkeypatch):
    """Even where it has all others."""
    (tmp_path / "twice_of_mine.py").write_text(CUSTOM)
    monkeypatch.setattr(library, "is_complete", lambda: True)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    text = call("--operators", tmp_path / "twice_of_mine.py", "warmup", "--operator", "Twice")
    assert text.endswith(f" or the cache, {tmp_path / 'onnx_ops'}\n")
    assert len(list((tmp_path / "onnx_ops").glob("*.code"))) == 2


def test_models_in_every_form(tmp_path):
    proto = network()
    onnx.save(proto, tmp_path / "model.onnx")
    small = model(
        OVERLAPPING.domain,
        "Col2Im",
        OVERLAPPING.inputs("float16"),
        OVERLAPPING.attributes,
    )
    onnx.save(small, tmp_path / "small.onnx")
    assert warmup.needed_by([tmp_path / "model.onnx"]).keys() == NEEDED
    assert warmup.needed_by([proto.SerializeToString()]).keys() == NEEDED
    assert warmup.needed_by(
        [str(tmp_path / "model.onnx"), tmp_path / "small.onnx"]
    ).keys() == NEEDED | {"Col2Im float16"}


def test_a_survey_computes_nothing(kernels_made):
    """Not even the result of constant inputs is computed, and the session refuses to run the
    nodes.
    """
    case = OPENVINO[0]
    names = [i.name for i in case.operator.inputs]
    inputs = case.inputs("float32")
    proto = model(case.domain, case.op_type, inputs, case.attributes, constants=names)
    with native_backend.survey() as needed:
        session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet())
    assert [operator.title for operator, _, _ in needed] == [case.operator.title]
    assert kernels_made == []
    with pytest.raises(Exception, match="onnx_ops: its session was not made to run"):
        session.run(None, {})
    onnx_ops.InferenceSession(proto.SerializeToString(), quiet()).run(None, {})
    assert kernels_made == [case.operator.title]


FOLD = model("", "Col2Im", OVERLAPPING.inputs("float32"), OVERLAPPING.attributes)
MODELS = {
    "none of ours": (
        parsed("(float[1] x) => (float[1] y) { y = Relu (x) }"),
        r"^onnx_ops: models = '.*model.onnx': have no nodes with kernels of onnx_ops$",
    ),
    "of Python ops": (
        onnx_ops.lower(FOLD),
        r"^onnx_ops: models = '.*model.onnx': has nodes that onnx_ops.lower made, whose types",
    ),
    "refused": (
        model("", "Col2Im", OVERLAPPING.inputs("float32"), {"strides": [0, 1]}),
        r"^Col2Im \(node 'the_node'\): strides = \[0, 1\]: must be 1 to 14",
    ),
    "broken": (
        parsed("(float[1] x) => (float[1] y) { y = NoSuchOperator (x) }"),
        r"^onnx_ops: models = '.*model.onnx': no session can be made of it: .*NoSuchOperator",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_that_are_refused(name, tmp_path):
    proto, message = MODELS[name]
    onnx.save(proto, tmp_path / "model.onnx")
    with pytest.raises(onnx_ops.OpError, match=message):
        onnx_ops.warmup(models=[tmp_path / "model.onnx"])
    assert call("warmup", tmp_path / "model.onnx", exit_code=3).count("\n") == 1


NO_GRID_SAMPLE = "sessions have no GridSample of these"
COMBINATIONS = [
    ({"operators": ["GridSample"], "dtypes": ["int8"]}, f"dtypes = int8: {NO_GRID_SAMPLE}"),
    (
        {"operators": ["Col2Im", "GridSample"], "dtypes": ["int8"]},
        f"dtypes = int8: {NO_GRID_SAMPLE}",
    ),
    ({"dtypes": ["float32", "complex64"]}, "dtypes = 'complex64': must be among float32"),
    (
        {"operators": ["Im2ColProduct"], "dtypes": ["float32", "int8"]},
        "dtypes = 'int8': sessions have no Im2ColP",
    ),
    ({"operators": ["Conv"]}, "operators = 'Conv': must be among Col2Im, .*GridSample"),
    ({"dtypes": ["float8"]}, "dtypes = 'float8': must be among float32"),
    (
        {"models": ["x.onnx"], "dtypes": ["float32"]},
        "models = given: can't be combined with names of operators or",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), COMBINATIONS)
def test_combinations_that_do_not_exist(arguments, message):
    with pytest.raises(onnx_ops.OpError, match=f"^onnx_ops: {message}"):
        onnx_ops.warmup(**arguments)


def test_types_that_share_a_kernel_are_found():
    """A type is not taken for one without kernels although another type has the same kernel."""
    asked_for = variants.asked_for(["Col2Im"], ["int8", "uint8"], ())
    assert list(variants.distinct(asked_for)) == [
        "Col2Im uint8",
        "org.openvinotoolkit.Col2Im uint8",
    ]


def test_operators_whose_attributes_differ_share_no_code():
    """Compiled code finds an attribute by its position, even if the plan and the kernel are the
    same.
    """
    one = DECLARATION
    same, other = (
        replace(one, name="Other", attributes=one.attributes[::step]) for step in (1, -1)
    )
    x, boxes = np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2), np.zeros((1, 2, 2, 5), "f")
    boxes[..., :2] = 1  # whose centre, scaled, is that of x
    for second, count in (same, 1), (other, 2):
        assert len(variants.distinct(variants.combinations([one, second], ["float32"]))) == count
        for each in one, second:
            aligned = functions.call(each, x, boxes, spatial_scale=0.5, points=1)
            assert aligned.ravel().tolist() == [1.5, 2.5, 3.5, 4.5]


def test_the_command_line_refuses_them():
    text = "Error: onnx_ops: dtypes = int8: sessions have no GridSample of these types alone\n"
    assert call("warmup", "--operator", "GridSample", "--dtype", "int8", exit_code=3) == text
    call("warmup", __file__, "--dtype", "string", exit_code=2)


@pytest.mark.long
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_cache_that_keeps_nothing(jobs):
    """The command fails, so that the build of an image without kernels does."""
    arguments = ["--operator", "Col2Im", "--dtype", "float32", "--dtype", "float64", "--jobs", jobs]
    done = python(COMMAND, "warmup", *arguments, check=False, NUMBA_CACHE_DIR="/proc/onnx_ops")
    assert (done.returncode, done.stdout) == (3, "")
    message = "onnx_ops: cache = /proc/onnx_ops/onnx_ops: can't keep what is compiled: "
    assert done.stderr.splitlines()[-1].startswith(f"Error: {message}")
    assert "Traceback" not in done.stderr


def test_a_file_that_is_gone(tmp_path, monkeypatch):
    """A missing file is noticed, even if this process has compiled its code before."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    kept = cache.Kept("probe", "0")
    assert kept.missing() == "probe-0.code is gone"
    kept.path.parent.mkdir()
    kept.path.touch()
    assert kept.missing() is None
