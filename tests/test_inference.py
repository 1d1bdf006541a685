"""The shapes of outputs that ONNX Runtime and onnx infer before there are inputs."""

import subprocess
import sys

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from support.backends import quiet
from support.cases import (
    AFFINE_GRID,
    ATTENTION,
    CASES,
    COL2IM,
    GRID_SAMPLE,
    IM2COL,
    OPENVINO,
    VOLUMES,
    finished,
    model,
)

import onnx_ops
from onnx_ops import functions
from onnx_ops.operators import OPERATORS


def output_shape(proto, options=None):
    options = onnx_ops.register(options or quiet(), proto)
    return ort.InferenceSession(proto.SerializeToString(), options).get_outputs()[0].shape


def stated_shapes(proto):
    """The output's shapes that a session and onnx state."""
    onnx_ops.register_schemas()
    by_onnx = onnx.shape_inference.infer_shapes(proto).graph.output[0].type.tensor_type
    dimensions = [d.dim_value if d.HasField("dim_value") else d.dim_param for d in by_onnx.shape.dim]
    return [output_shape(proto), dimensions]


def called(proto, case, how):
    """Move a model's node into a function, which gets its attributes from the caller or as defaults."""
    (node,) = proto.graph.node
    attributes, defaults = list(node.attribute), how == "by default"
    inner = helper.make_node(node.op_type, node.input, node.output, domain=node.domain)
    for a in attributes:
        inner.attribute.add(name=a.name, type=a.type, ref_attr_name=a.name)
    function = helper.make_function(
        "local", "Called", node.input, node.output, [inner], proto.opset_import,
        [] if defaults else [a.name for a in attributes], attributes if defaults else [],
    )  # fmt: skip
    node.op_type, node.domain = "Called", "local"
    if defaults:
        del node.attribute[:]
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("local", 1))
    return proto


@pytest.mark.parametrize("how", ["", "by the caller", "by default"])
@pytest.mark.parametrize("dims", ["fixed", "symbolic", "none"])
@pytest.mark.parametrize("operator", OPERATORS, ids=lambda o: o.title)
def test_stated_shapes_are_real(operator, dims, how):
    """What is stated before the run is what comes out: sizes are equal, and names stand for the inputs' sizes."""
    cases = [c for c in CASES if c.operator is operator and not np.isinf(c.extent)]
    assert cases
    for case in cases[:: 1 if not how else 7]:
        inputs = case.inputs("float32")
        names = [i.name + "_in" * (i.name == "y") for i in operator.inputs]
        sizes = {f"{n}_{a}": size for n, v in zip(names, inputs, strict=False) for a, size in enumerate(v.shape)}
        real = functions.call(operator, *inputs, **case.attributes).shape
        for constants in ((), [i.name for i in operator.inputs if i.values]):
            proto = model(case.domain, case.op_type, inputs, case.attributes, dims=dims, constants=constants)
            for shape in stated_shapes(called(proto, case, how) if how else proto):
                assert len(shape) in (0, len(real)), case
                known = [(d, e) for d, e in zip(shape, real, strict=False) if d is not None]
                assert all(sizes.get(d, e) == e if isinstance(d, str) else d == e for d, e in known), case


@pytest.mark.parametrize("case", [GRID_SAMPLE[6], VOLUMES[0]], ids=str)
def test_grid_sample_whole_shape(case):
    x, grid = case.inputs("float32")
    fixed = model(case.domain, case.op_type, [x, grid], case.attributes)
    assert output_shape(fixed) == [*x.shape[:2], *grid.shape[1:-1]]
    symbolic = model(case.domain, case.op_type, [x, grid], case.attributes, dims="symbolic")
    assert output_shape(symbolic) == ["X_0", "X_1", *(f"Grid_{a}" for a in range(1, grid.ndim - 1))]
    unknown = model(case.domain, case.op_type, [x, grid], case.attributes, dims="none")
    assert output_shape(unknown) == []


@pytest.mark.parametrize("case", [AFFINE_GRID[0], AFFINE_GRID[11]], ids=str)
def test_affine_grid_whole_shape(case):
    inputs = case.inputs("float32")
    _, axes, _ = inputs[0].shape
    sizes = [v.size for v in inputs[axes:0:-1]]
    fixed = model(case.domain, case.op_type, inputs, case.attributes)
    assert output_shape(fixed) == [2, *sizes, axes]
    unknown = model(case.domain, case.op_type, inputs, case.attributes, dims="none")
    assert output_shape(unknown) == []
    names = ["x_0", "y_in_0", "z_0"][:axes][::-1]
    for sizes_of_theta in (axes, None), (None, axes + 1):
        symbolic = model(case.domain, case.op_type, inputs, case.attributes, dims="symbolic")
        for dim, size in zip(symbolic.graph.input[0].type.tensor_type.shape.dim[1:], sizes_of_theta, strict=True):
            if size is not None:
                dim.dim_value = size
        assert output_shape(symbolic) == ["theta_0", *names, axes]


@pytest.mark.parametrize("case", [COL2IM[1], next(c for c in COL2IM if c.name == "3d"), OPENVINO[0]], ids=str)
def test_col2im_rank_and_batch(case):
    inputs = case.inputs("float32")
    shape = output_shape(model(case.domain, case.op_type, inputs, case.attributes))
    assert len(shape) == 2 + len(inputs[1])
    assert shape[0] == 2
    # Each unknown dimension has a name of its own, else it would be a literal -1.
    assert all(isinstance(d, str) and d for d in shape[1:])
    assert len(set(shape)) == len(shape)


@pytest.mark.parametrize("case", [IM2COL[2], next(c for c in IM2COL if c.name == "unfold_3d")], ids=str)
def test_im2col(case):
    (x,) = case.inputs("float32")
    assert (
        stated_shapes(model(case.domain, case.op_type, [x], case.attributes))
        == [list(onnx_ops.im2col(x, **case.attributes).shape)] * 2
    )
    for shape in stated_shapes(model(case.domain, case.op_type, [x], case.attributes, dims="symbolic")):
        assert shape[0] == "x_0"
        assert all(isinstance(d, str) for d in shape)
        assert len(set(shape)) == 3


def test_attention():
    """The number of channels is a product, which is inferred if both factors are known."""
    inputs = ATTENTION[0].inputs("float32")
    proto = model("onnx_ops", "MultiScaleDeformableAttention", inputs, {})
    assert output_shape(proto) == [2, 5, 12]
    symbolic = model("onnx_ops", "MultiScaleDeformableAttention", inputs, {}, dims="symbolic")
    batch, queries, channels = output_shape(symbolic)
    assert (batch, queries) == ("value_0", "sampling_locations_1")
    assert channels not in (batch, queries)
    unknown = model("onnx_ops", "MultiScaleDeformableAttention", inputs, {}, dims="none")
    assert len(set(output_shape(unknown))) == 3


def test_names_of_sizes_differ_by_process():
    """A model may have them from another process, by way of `get_outputs`. One name must not stand for two sizes."""
    case = COL2IM[1]
    proto = model(case.domain, case.op_type, case.inputs("float32"), case.attributes)
    script = (
        "import onnx_ops, sys; model = sys.stdin.buffer.read(); "
        "print(onnx_ops.InferenceSession(model).get_outputs()[0].shape[1])"
    )
    made = [subprocess.run([sys.executable, "-c", script], input=proto.SerializeToString(), capture_output=True,
                           check=True, text=False).stdout for _ in range(2)]  # fmt: skip
    assert made[0] != made[1]


def test_later_nodes_see_it():
    case = GRID_SAMPLE[6]
    proto = model(case.domain, case.op_type, case.inputs("float32"), case.attributes, dims="symbolic")
    proto.graph.node.append(helper.make_node("Transpose", ["y"], ["z"], perm=[0, 2, 3, 1]))
    proto.graph.output[0].name = "z"
    assert output_shape(proto) == ["X_0", "Grid_1", "Grid_2", "X_1"]


def test_stated_shapes_survive():
    case = COL2IM[1]
    proto = model(case.domain, case.op_type, case.inputs("float32"), case.attributes)
    for d in ("batch", 3, 9, 11):
        dim = proto.graph.output[0].type.tensor_type.shape.dim.add()
        if isinstance(d, str):
            dim.dim_param = d
        else:
            dim.dim_value = d
    assert output_shape(proto)[1:] == [3, 9, 11]


def test_shape_of_an_output_is_true_when_it_runs():
    """A Shape node on an output with unknown dimensions must not have been folded into something else."""
    case = COL2IM[1]
    inputs = case.inputs("float32")
    proto = model(case.domain, case.op_type, inputs, case.attributes, dims="symbolic")
    proto.graph.node.append(helper.make_node("Shape", ["y"], ["shape"]))
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("shape", TensorProto.INT64, None))
    session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet())
    feeds = dict(zip((i.name for i in session.get_inputs()), inputs, strict=True))
    assert session.run(None, feeds)[0].tolist() == [2, 3, 9, 11]


def test_onnx_knows_constant_sizes_in_the_domain_that_it_lacks():
    """The schema adapter reads constant sizes, and with it lower()."""
    onnx_ops.register_schemas()
    case = OPENVINO[0]
    inputs = case.inputs("float32")
    proto = model(case.domain, case.op_type, inputs, case.attributes, constants=["output_size", "kernel_size"])
    shape = onnx.shape_inference.infer_shapes(proto, strict_mode=True).graph.output[0].type.tensor_type.shape
    assert [d.dim_value for d in shape.dim] == [2, 3, 8, 9]
    follower = helper.make_node("Relu", ["y"], ["z"])
    z = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    graph = helper.make_graph([*proto.graph.node, follower], "g", proto.graph.input, [z], proto.graph.initializer)
    lowered = onnx_ops.lower(finished(graph, 21, case.domain))
    assert [d.dim_value for d in lowered.graph.value_info[0].type.tensor_type.shape.dim] == [2, 3, 8, 9]
