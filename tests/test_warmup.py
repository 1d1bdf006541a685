"""Warmup compiles what a model needs and nothing else, and fails if the code can't be kept."""

import os
import subprocess
import sys

import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper
from support.backends import quiet
from support.cases import COL2IM, OPENVINO, finished, model
from test_ort_format import written

import onnx_ops
from onnx_ops.cli.app import app
from onnx_ops.compiler import cache
from onnx_ops.runtime import native, variants, warmup, workers

FLOAT, HALF, DOUBLE = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE


def network():
    """A model with nodes in the main graph, a branch and a local function, which states only the types of inputs."""
    value = helper.make_tensor_value_info
    branches = [
        helper.make_graph([node], name, [], [value(node.output[0], HALF, None)])
        for name, node in (
            ("cubic", helper.make_node("GridSample", ["x_half", "grid"], ["a"], mode="cubic")),
            ("none", helper.make_node("Identity", ["x_half"], ["b"])),
        )
    ]
    function = helper.make_function(
        "local", "fold", ["x", "image_shape", "block_shape"], ["y"],
        [
            helper.make_node("Cast", ["x"], ["double"], to=DOUBLE),
            helper.make_node("Col2Im", ["double", "image_shape", "block_shape"], ["y"]),
        ],
        [helper.make_opsetid("", 20)],
    )  # fmt: skip
    nodes = [
        helper.make_node("Cast", ["x"], ["x_half"], to=HALF),
        helper.make_node("If", ["condition"], ["sampled"], then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("fold", ["blocks", "image_shape", "block_shape"], ["folded"], domain="local"),
        helper.make_node("Cast", ["x"], ["bytes"], to=TensorProto.UINT8),
        helper.make_node("GridSample", ["bytes", "grid"], ["nearest"], mode="nearest"),
        helper.make_node("GridSample", ["bytes", "grid"], ["unused"], mode="nearest", align_corners=1),
        helper.make_node("Col2Im", ["x", "sizes", "sizes"], ["y"], domain="org.openvinotoolkit"),
    ]
    inputs = [
        value("x", FLOAT, [1, 9, 4, 4]), value("grid", FLOAT, [1, 3, 3, 2]), value("condition", TensorProto.BOOL, []),
        value("blocks", FLOAT, [1, 9, 9]), value("image_shape", TensorProto.INT64, [2]),
        value("block_shape", TensorProto.INT64, [2]), value("sizes", TensorProto.INT32, [2]),
    ]  # fmt: skip
    nodes[-1].input[0] = "blocks"
    outputs = [value(name, kind, None) for name, kind in (("sampled", HALF), ("folded", DOUBLE), ("y", FLOAT))]
    outputs.append(value("nearest", TensorProto.UINT8, None))
    proto = finished(helper.make_graph(nodes, "network", inputs, outputs), 20, "org.openvinotoolkit", "local")
    proto.functions.append(function)
    return proto


NEEDED = {
    "Col2Im float64",
    "GridSample bicubic, float16, float32",
    "GridSample nearest, uint8, float32",
    "org.openvinotoolkit.Col2Im float32",
}
COMPILED = [
    "col2im-col2im-float32-float32", "col2im-col2im-float64-float64", "col2im-plan", "col2im-plan_openvino",
    "col2im-shape", "col2im-shape_openvino", "grid_sample-cubic-float16-float32-float16",
    "grid_sample-nearest-uint8-float32-uint8", "grid_sample-plan", "grid_sample-shape",
]  # fmt: skip


def process(script, *arguments, cache):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.long
def test_what_a_model_needs_is_compiled_and_nothing_else(tmp_path):
    """Nodes are found in the main graph, a branch and a local function, and sessions compile nothing more."""
    onnx.save(network(), tmp_path / "network.onnx")
    done = process("from onnx_ops.cli import main; main()", "warmup", tmp_path / "network.onnx", cache=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"4 kernels are in the cache, {tmp_path / 'onnx_ops'}\n"
    assert sorted(f.name.rpartition("-")[0] for f in (tmp_path / "onnx_ops").iterdir()) == COMPILED
    script = """
import sys
import onnx_ops
from onnx_ops.compiler import code
def fail(*args):
    raise AssertionError("compiles")
code.Code.compile = fail
onnx_ops.InferenceSession(sys.argv[1])
"""
    done = process(script, tmp_path / "network.onnx", cache=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_models_in_every_form(tmp_path):
    proto = network()
    onnx.save(proto, tmp_path / "model.onnx")
    small = model(COL2IM[1].domain, "Col2Im", COL2IM[1].inputs("float16"), COL2IM[1].attributes)
    one = written(small, tmp_path / "model.ort")
    assert warmup.needed_by([tmp_path / "model.onnx"]).keys() == NEEDED
    assert warmup.needed_by([proto.SerializeToString()]).keys() == NEEDED
    assert warmup.needed_by([str(tmp_path / "model.onnx"), one]).keys() == NEEDED | {"Col2Im float16"}


def test_a_survey_computes_nothing(kernels_made):
    """Not even the result of constant inputs is computed, and the session refuses to run the nodes."""
    case = OPENVINO[0]
    names = [i.name for i in case.operator.inputs]
    inputs = case.inputs("float32")
    proto = model(case.domain, case.op_type, inputs, case.attributes, constants=names)
    with native.survey() as needed:
        session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet())
    assert [operator.title for operator, _, _ in needed] == [case.operator.title]
    assert kernels_made == []
    with pytest.raises(Exception, match="onnx_ops: its session was not made to run"):
        session.run(None, {})
    onnx_ops.InferenceSession(proto.SerializeToString(), quiet()).run(None, {})
    assert kernels_made == [case.operator.title]


def relu():
    value = [helper.make_tensor_value_info(name, FLOAT, [1]) for name in "xy"]
    return finished(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", value[:1], value[1:]))


def lowered():
    return onnx_ops.lower(model("", "Col2Im", COL2IM[1].inputs("float32"), COL2IM[1].attributes))


def refused():
    return model("", "Col2Im", COL2IM[1].inputs("float32"), {"strides": [0, 1]})


def broken():
    proto = relu()
    proto.graph.node[0].op_type = "NoSuchOperator"
    return proto


MODELS = {
    relu: r"^onnx_ops: models = '.*model.onnx': have no nodes for onnx_ops$",
    lowered: r"^onnx_ops: models = '.*model.onnx': imports ai.onnx.contrib, as lowered models do; what types its nodes",
    refused: r"^Col2Im \(node 'the_node'\): strides = \[0, 1\]: must be 1 to 14",
    broken: r"^onnx_ops: models = '.*model.onnx': no session can be made of it: .*NoSuchOperator",
}


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_models_that_are_refused(make, tmp_path):
    onnx.save(make(), tmp_path / "model.onnx")
    with pytest.raises(onnx_ops.OpError, match=MODELS[make]):
        onnx_ops.warmup(models=[tmp_path / "model.onnx"])
    done = CliRunner().invoke(app, ["warmup", str(tmp_path / "model.onnx")])
    assert done.exit_code == 3
    assert done.output.count("\n") == 1


COMBINATIONS = [
    ({"operators": ["GridSample"], "dtypes": ["string"]}, "dtypes = string: sessions have no GridSample of these"),
    (
        {"operators": ["Col2Im", "GridSample"], "dtypes": ["int8"]},
        "dtypes = int8: sessions have no GridSample of these",
    ),
    (
        {"dtypes": ["complex64"]},
        "dtypes = 'complex64': sessions have no .*Col2Im or .*GridSample.* of it and the other types",
    ),
    ({"dtypes": ["float32", "complex64"]}, "dtypes = 'complex64': sessions have no"),
    ({"operators": ["Conv"]}, "operators = 'Conv': must be among AffineGrid, .*Col2Im, .*GridSample"),
    ({"dtypes": ["float8"]}, "dtypes = 'float8': must be among float32"),
    (
        {"models": ["x.onnx"], "dtypes": ["float32"]},
        "models = given: can't be combined with names of operators or with dtypes",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), COMBINATIONS)
def test_combinations_that_do_not_exist(arguments, message):
    with pytest.raises(onnx_ops.OpError, match=f"^onnx_ops: {message}"):
        onnx_ops.warmup(**arguments)


def test_types_that_share_a_kernel_are_found():
    """A type is not taken for one without kernels although another type has the same kernel."""
    assert list(variants.asked_for(variants.chosen(["Col2Im"]), ["int8", "uint8"])) == [
        "Col2Im uint8",
        "org.openvinotoolkit.Col2Im uint8",
    ]


def test_the_command_line_refuses_them():
    done = CliRunner().invoke(app, ["warmup", "--operator", "GridSample", "--dtype", "string"])
    assert (done.exit_code, done.output) == (
        3, "Error: onnx_ops: dtypes = string: sessions have no GridSample of these types alone\n"
    )  # fmt: skip
    done = CliRunner().invoke(app, ["warmup", __file__, "--dtype", "string"])
    assert done.exit_code == 2


@pytest.mark.long
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_cache_that_keeps_nothing(jobs):
    """The command fails, so that the build of an image without kernels does."""
    arguments = ["warmup", "--operator", "Col2Im", "--dtype", "float32", "--dtype", "float64", "--jobs", jobs]
    done = process("from onnx_ops.cli import main; main()", *arguments, cache="/proc/onnx_ops")
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


def test_workers_that_end_before_they_begin(monkeypatch):
    monkeypatch.setattr(workers, "PROGRAM", "import sys; sys.exit(0)")
    with pytest.raises(onnx_ops.OpError, match=r"^onnx_ops: 3 processes have ended before they began$"):
        onnx_ops.warmup(["Col2Im"], ["float32", "float64"], jobs=2)
