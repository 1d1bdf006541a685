"""Randomly damaged exports: optimize() raises nothing, and models that still run give the same results."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from support.backends import quiet
from support.selection import long_unless
from support.written import affine_grid, attention, feeds, perspective, unfold, warp

import onnx_ops
from onnx_ops.rewriting import rewritten

WRITTEN = {
    "unfold": unfold(),
    "unfold of open sizes": unfold(open_sizes=True),
    "affine_grid": affine_grid(),
    "affine_grid that is sampled": affine_grid(open_batch=True, sample="linear", opset=20),
    "flow": warp(),
    "flow by several nodes": warp(flow=[2, 5, 9, 12], channels=[4, 2]),
    "flow, together": warp(whole=True, mode="nearest"),
    "perspective": perspective(),
    "attention": attention(),
    "attention of open sizes": attention(open_sizes=True, cut="Slice"),
    "attention with merged axes": attention(merged=True),
    "attention by sequences": attention(cut="SplitToSequence"),
}
SIZES = {"n": 2, "size_0": 11, "size_1": 13, "q": 7}
OTHERS = (
    "Mul",
    "Div",
    "Concat",
    "Squeeze",
    "Unsqueeze",
    "Transpose",
    "Gather",
    "Pad",
    "Reshape",
    "ReduceSum",
    "Slice",
    "Add",
    "Sub",
)


def one_of(rng, values):
    return values[rng.integers(len(values))]


def damage_node(rng, node):
    kind = rng.integers(7)
    if kind == 0 and node.input:
        del node.input[rng.integers(len(node.input))]
    elif kind == 1:
        del node.output[:]
    elif kind == 2 and node.input:
        node.input[rng.integers(len(node.input))] = one_of(rng, ["", "x", *node.output])
    elif kind == 3:
        node.op_type = one_of(rng, OTHERS)
    elif kind == 4 and node.attribute:
        del node.attribute[rng.integers(len(node.attribute))]
    elif kind == 5 and node.attribute:
        attribute = one_of(rng, node.attribute)
        attribute.i = int(rng.integers(-3, 6))
        if attribute.ints:
            attribute.ints[rng.integers(len(attribute.ints))] = int(rng.integers(-3, 6))
    else:
        node.name = ""


def damage_constant(rng, tensor):
    array = numpy_helper.to_array(tensor).copy()
    kind = rng.integers(5)
    if kind == 0:
        array = array.ravel()[: rng.integers(array.size + 1)]
    elif kind == 1:
        array = array.reshape(-1)
    elif kind == 2:
        array = array.astype(np.float32 if array.dtype == np.int64 else np.int64)
    elif array.size:
        array.flat[rng.integers(array.size)] += one_of(rng, [-5, -1, 1, 2])
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def damaged(rng, proto):
    proto = onnx.ModelProto.FromString(proto.SerializeToString())
    for _ in range(rng.integers(1, 3)):
        if rng.random() < 0.5 and proto.graph.initializer:
            damage_constant(rng, one_of(rng, proto.graph.initializer))
        else:
            damage_node(rng, one_of(rng, proto.graph.node))
    return proto


def results(proto, inputs):
    """Run a model with our GridSample and without ONNX Runtime's optimization; None if it is refused."""
    options = onnx_ops.register(quiet(), domains=["", "onnx_ops"])  # these round alike
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = ort.InferenceSession(proto.SerializeToString(), options)
        return session.run(None, {i.name: inputs[i.name] for i in session.get_inputs()})
    except Exception:
        return None


@pytest.mark.parametrize("seed", [long_unless(seed == 0, seed) for seed in range(8)])
@pytest.mark.parametrize("name", WRITTEN)
def test_damaged(name, seed):
    rng, ran = np.random.default_rng(seed), 0
    inputs = feeds(WRITTEN[name], SIZES)
    for _ in range(150):
        proto = damaged(rng, WRITTEN[name])
        optimized, findings = rewritten(proto)
        rewritten(proto, standard=True)
        if any(finding.operator for finding in findings):
            expected = results(proto, inputs)
            if expected is not None:
                ran += 1
                for got, value in zip(results(optimized, inputs), expected, strict=True):
                    np.testing.assert_allclose(got, value, rtol=0, atol=2e-5 if "attention" in name else 0)
        else:
            assert optimized == proto
    assert ran > 3
