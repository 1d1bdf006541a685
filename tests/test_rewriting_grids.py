"""optimize() on a GridSample and the nodes of its grid: results are equal to the last bit, or nothing is changed."""

import numpy as np
import onnx
import pytest
from support.backends import quiet
from support.written import affine_grid, feeds, in_pixels, mesh, perspective, warp
from test_rewriting import near_miss

import onnx_ops
from onnx_ops.rewriting import rewritten

SIZE = (9, 12)
BASE = [np.linspace(-1, 1, 12)[None] + np.zeros(SIZE), np.linspace(-1, 1, 9)[:, None] + np.zeros(SIZE)]
WARPS = {
    "by pixels": warp(),
    "by pixels, together": warp(whole=True),
    "by a displacement": warp([("Add", BASE)]),
    "by a scaled displacement": warp([("Mul", [2 / 12, 2 / 9]), ("Add", mesh(SIZE))]),
    "subtracted": warp([("rSub", mesh(SIZE)), ("Div", [5, 4])]),
    "negated": warp([("Neg", 0), ("Mul", 0.5)]),
    "only transposed": warp([], whole=True),
    "channels backwards": warp(channels=[1, 0]),
    "one channel twice": warp(channels=[1, 1]),
    "channels last": warp(layout="last"),
    "maps": warp(layout="maps"),
    "channels of a larger value": warp(flow=[2, 5, 9, 12], channels=[4, 2]),
    "lookup": warp([("Add", mesh(SIZE)[::-1]), ("Div", 4), ("Sub", 1)], layout="last", flow=[2, 1, 1, 2]),
    "one flow for all images": warp(flow=[1, 2, 9, 12], expanded=True),
    "nearest": warp(mode="nearest"),
    "cubic": warp(mode="cubic", sampling={"padding_mode": "border", "align_corners": 1}),
    "opset 16": warp(mode="bilinear", opset=16),
    "of com.microsoft": warp(domain="com.microsoft", mode="bilinear", opset=11, whole=True),
    "reflected": warp(sampling={"padding_mode": "reflection"}),
    "float64": warp(dtype="float64"),
    "volumes": warp(size=(4, 5, 6)),
    "volumes together": warp(size=(4, 5, 6), whole=True, mode="nearest"),
    "one row": warp(size=(1, 12), steps=[("Add", mesh((1, 12))), ("Div", 6)]),
    "one pixel": warp(size=(1, 1), steps=[("Mul", 0.1)]),
    "one image": warp(batch=1),
    "only a scale": warp([("Mul", 0.25)]),
    "open sizes": warp([("Mul", 2), ("Sub", 1)], flow=["n", 2, "h", "w"], batch="n"),
}  # fmt: skip
DYNAMIC = {"inputs": {"more": ("float32", [2, 9, 12])}}
NO_WARPS = {
    "two values": (warp([("Add", "more")], **DYNAMIC), "other values"),
    "times a value": (warp([("Mul", "more")], **DYNAMIC), "other values"),
    "times what varies": (warp([("Mul", mesh(SIZE))]), "moved by other constants"),
    "divided by what varies": (warp([("Div", [m + 1 for m in mesh(SIZE)])]), "moved by other constants"),
    "moved twice": (warp([("Add", mesh(SIZE)), ("Mul", 2), ("Add", mesh(SIZE))]), "moved by other constants"),
    "moved by image": (warp([("Add", [np.arange(2).reshape(2, 1, 1)] * 2)]), "moved by other constants"),
    "many steps": (warp([("Add", 1), ("Mul", 2)] * 5), "by many"),
    "steps in another order": (warp(by_coordinate={1: [("Mul", 2), ("Add", 1), ("Div", 5), ("Sub", 1)]}), "different"),
    "fewer steps": (warp(by_coordinate={1: in_pixels(SIZE)[:1]}), "different"),
    "16 bits": (warp(dtype="float16", mode="nearest"), "float32 or float64"),
    "several nodes in an old version": (
        warp(domain="com.microsoft", mode="bilinear", opset=12, layout="maps"),
        "version 13",
    ),
    "an image of another type": (warp(image="float64"), "of one type"),
}
PERSPECTIVES = {
    "quotients": (perspective(), "PerspectiveGridSample"),
    "nearest": (perspective(mode="nearest"), "PerspectiveGridSample"),
    "float64": (perspective(dtype="float64"), "PerspectiveGridSample"),
    "one image": (perspective(batch=1), "PerspectiveGridSample"),
    "products swapped": (perspective(order=lambda a, b, c: (b, a, c)), "PerspectiveGridSample"),
    "sums": (perspective(divided=False, theta=2, rows=(0, 1)), "AffineGridSample"),
    "sums of a homogeneous matrix": (perspective(divided=False), "AffineGridSample"),
    "a matrix with more columns": (perspective(columns=4), "PerspectiveGridSample"),
    "sums of a matrix with more columns": (perspective(columns=4, divided=False), "AffineGridSample"),
}
NO_PERSPECTIVES = {
    "summed in another order": (perspective(order=lambda a, b, c: (c, b, a)), "one matrix"),
    "rows in another order": (perspective(rows=(1, 0, 2)), "one matrix"),
    "divided by another row": (perspective(rows=(0, 2, 1)), "one matrix"),
    "a last column of 2": (perspective(last=np.full(SIZE, 2)), "another value than 1"),
    "a base that is bent": (
        perspective(base=lambda base: base + (np.arange(base.size) == 49).reshape(base.shape)),
        "along the image's axes",
    ),
    "a base that is turned": (perspective(base=lambda base: base[..., [1, 0, 2]]), "along the image's axes"),
    "the first matrix for all": (perspective(first=True), "one matrix per image"),
    "one matrix for all": (perspective(thetas=1), "one matrix per image"),
    "16 bits": (perspective(dtype="float16"), "float32 or float64"),
}  # fmt: skip


def compare(proto, tolerance=0):
    """Assert that the optimized model gives the model's results with our GridSample; return its operators."""
    optimized, _ = rewritten(proto)
    onnx_ops.register_schemas()
    onnx.checker.check_model(optimized, full_check=True)
    inputs = feeds(proto, {"n": 2, "h": 9, "w": 12})
    expected, got = (
        onnx_ops.InferenceSession(each.SerializeToString(), quiet()).run(None, inputs)[0] for each in (proto, optimized)
    )
    assert got.shape == expected.shape
    assert np.any(expected) or "theta" in inputs  # some thetas lead out of the image
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)
    assert onnx_ops.optimize(optimized) == optimized
    return [n.op_type for n in optimized.graph.node]


@pytest.mark.parametrize("name", WARPS)
def test_flow(name):
    *others, last = compare(WARPS[name])
    assert last == "FlowGridSample"
    assert others == {
        "maps": ["Unsqueeze", "Unsqueeze", "Concat"],
        "channels of a larger value": ["Slice", "Squeeze", "Unsqueeze"] * 2 + ["Concat"],
    }.get(name, [])


@pytest.mark.parametrize("name", NO_WARPS)
def test_no_flow(name):
    proto, reason = NO_WARPS[name]
    findings = near_miss(proto, runs=name != "an image of another type")  # ONNX Runtime has no such GridSample
    assert reason in findings[0]


@pytest.mark.parametrize("name", PERSPECTIVES)
def test_perspective(name):
    proto, operator = PERSPECTIVES[name]
    assert compare(proto)[-1] == operator


@pytest.mark.parametrize("name", NO_PERSPECTIVES)
def test_no_perspective(name):
    proto, reason = NO_PERSPECTIVES[name]
    (finding,) = near_miss(proto)
    assert reason in finding


@pytest.mark.parametrize(
    "edits",
    [{}, {"open_batch": True}, {"size": (3, 4, 5)}, {"dtype": "float64"}, {"dtype": "float16", "sample": "linear"},
     {"sample": "nearest"}, {"sample": "cubic", "align_corners": True}],
    ids=str,
)  # fmt: skip
def test_affine_grid_of_pytorch(edits):
    """In 16 bits AffineGrid itself rounds less often than the nodes; the sampling is the same."""
    proto = affine_grid(**{"sample": "linear", "opset": 20, **edits})
    for dimension in proto.graph.input[1].type.tensor_type.shape.dim[:1] if edits.get("open_batch") else []:
        dimension.dim_value = 2
        proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    assert compare(proto, 0.05 if edits.get("dtype") == "float16" else 0) == ["AffineGridSample"]
