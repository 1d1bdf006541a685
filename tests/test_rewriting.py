"""optimize(): its replacements give the same results, and it leaves models alone that differ a little."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from support.backends import quiet
from support.written import affine_grid, attention, feeds, unfold, windows

import onnx_ops
from onnx_ops.nodes import all_nodes
from onnx_ops.rewriting import rewritten

NEWEST = {"1.20": 21, "1.21": 22}.get(ort.__version__.rpartition(".")[0], 23)  # opset that ONNX Runtime opens

UNFOLDS = {
    "two axes": {},
    "one block": {"image": (3, 2), "pads": (0, 0, 0, 0), "dilations": (1, 1)},
    "no overlap": {"image": (8, 6), "kernel": (2, 2), "pads": (0,) * 4, "dilations": (1, 1), "strides": (2, 2)},
    "pixels": {"kernel": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "strides": (1, 1)},
    "a row of pixels": {"kernel": (1, 3), "pads": (0, 1, 0, 1), "dilations": (1, 1), "strides": (3, 1)},
    "one axis": {"image": (19,), "kernel": (4,), "pads": (2, 1), "dilations": (2,), "strides": (3,)},
    "three axes": {
        "image": (5, 6, 4), "kernel": (2, 3, 2), "pads": (1, 0, 0, 0, 1, 1), "dilations": (1, 2, 1),
        "strides": (2, 1, 1),
    },
    "float16": {"dtype": "float16"},
    "float64": {"dtype": "float64"},
    "int32": {"dtype": "int32"},
    "uint8": {"dtype": "uint8"},
    "opset 16": {"opset": 16},
    "newest opset": {"opset": NEWEST},
    "shape copied": {"target": [0, -1, 72]},
    "padded by a named 0": {"pad_value": 0},
    "one channel": {"channels": 1, "batch": 1, "target": [1, 6, -1]},
    "another shape": {"target": [2, 3, 6, 2, -1]},
    "flat": {"target": [-1]},
}  # fmt: skip


ONES = {"image": (1, 1), "kernel": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "strides": (1, 1), "channels": 1}


def test_unfold_of_one_position_to_more_axes():
    """Its last axes are as large as those that the Reshape leaves out."""
    proto = unfold(**ONES, after=lambda w: w.add("Reshape", "y", w.constant([2, 1, 1, 1, 1])), rank=5)
    assert compare(proto)[0] == ["Im2Col", "Reshape"]


def test_unfold_that_is_flattened_and_gets_its_axes_again():
    proto = unfold(target=[-1, 72], after=lambda w: w.add("Reshape", "y", w.constant([2, 18, 72])))
    assert compare(proto)[0] == ["Im2Col"]


def test_unfold_whose_sizes_are_copied_afterwards():
    """The Reshape, which copies sizes from what it reads, stays; the Transpose before it ends the unfold."""
    proto = unfold(target=[0, 0, 0, 0, -1])
    assert compare(proto)[0] == ["Im2Col", "Reshape", "Reshape"]


def used_twice(name, result):
    """A function that adds another use of an intermediate value to a Writer."""
    return lambda w: w.add("Add", result, w.add("ReduceMax", name, keepdims=0), name="z")


NO_UNFOLDS = {
    "an index off by one": {"indices": lambda i: [i[0] + (i[0] > 3), i[1]]},
    "indices from 1 on": {"indices": lambda i: [i[0] + 1, i[1]]},
    "an irregular index": {"indices": lambda i: [np.minimum(i[0] * i[0], 13), i[1]]},
    "indices from the end": {"indices": lambda i: [i[0] - 3, i[1]]},
    "indices that repeat": {"indices": lambda i: [i[0][:, :1].repeat(3, 1), i[1]]},
    "a block less": {"indices": lambda i: [i[0][:, :-1], i[1]]},
    "another axis order": {"perm": [0, 1, 4, 2, 3, 5]},
    "blocks before positions": {"perm": [0, 1, 3, 5, 2, 4]},
    "channels last": {"perm": [0, 2, 4, 1, 3, 5]},
    "pads that are computed": {
        "all_pads": lambda w: w.add("Mul", "more", w.constant([0, 0, 1, 0, 0, 0, 2, 1])),
        "inputs": {"more": ("int64", [1])},
    },
    "a value further up used twice": {"after": used_twice("gathered_0", "y")},
    "batch and channels flattened": {"target": [1, 36, 72], "allowzero": 1, "perm": [0, 1, 4, 2, 3, 5]},
}  # fmt: skip
PADDED = {  # in another way than Im2Col pads
    "with 1": {"pad_value": 1},
    "with -0": {"pad_value": -0.0},
    "by reflection": {"mode": "reflect"},
    "along channels": {"all_pads": [0, 1, 1, 0, 0, 0, 2, 1], "target": [2, 24, -1]},
    "and cropped": {"all_pads": [0, 0, -1, 0, 0, 0, -1, 1], "pads": (-1, 0, -1, 1)},
}  # fmt: skip
AFFINE_GRIDS = {
    "two axes": {},
    "two axes, corners": {"align_corners": True},
    "three axes": {"size": (3, 4, 5)},
    "three axes, corners": {"size": (3, 4, 5), "align_corners": True},
    "open batch": {"open_batch": True},
    "one row": {"size": (1, 9)},
    "one column": {"size": (9, 1)},
    "float64": {"dtype": "float64"},
    "float16": {"dtype": "float16"},
    "opset 16": {"opset": 16},
    "opset 20": {"opset": 20},
    "factors swapped": {"swapped": True},
    "the axis of the sum kept": {"keepdims": 1},
    "the axis of the sum from the front": {"over": [2]},
    "other coordinates": {"base": lambda base: base * np.float32([3, 0.5, 1])},
    "one image": {"batch": 1},
    "every matrix, row and column": {"picked": {0: [0, 1], 1: [0, 1, 2], 2: [0, 1]}},
}
NO_AFFINE_GRIDS = {
    "a base that is bent": {"base": lambda base: np.where(np.arange(7)[:, None] == 3, base[::-1], base)},
    "a base that is turned": {"base": lambda base: base[..., [1, 0, 2]]},
    "a last coordinate of 2": {"base": lambda base: base * np.float32([1, 1, 2])},
    "one pixel of the base moved": {"base": lambda base: base + (np.arange(base.size) == 50).reshape(base.shape)},
    "a sum over theta's rows": {"over": [-1], "target": [2, 5, 7, 3], "theta": [2, 3, 3], "base": lambda base: base},
    "theta not transposed": {"perm": [0, 1, 2], "theta": [2, 3, 2]},
    "another shape": {"target": [2, 7, 5, 2]},
    "batch after the pixels": {"target": [5, 7, 2, 2]},
    "a maximum instead of a product": {"product": "Max"},
    "the product used twice": {"after": used_twice("product", "grid")},
    "the sum used twice": {"after": used_twice("summed", "grid")},
    "a theta that broadcasts": {"theta": [2, 2, 1]},
    "a theta of unknown size": {"theta": [2, "rows", 3]},
    "nearest in 16 bits": {"dtype": "float16", "sample": "nearest", "opset": 20},
    "a base that is random": {"factor": "RandomUniformLike"},
    "a batch that is not theta's": {"target": [2, 5, 7, 2], "open_batch": True},
    "every second matrix": {"theta": [4, 2, 3], "picked": {0: [0, 2]}},
    "the first matrix twice": {"picked": {0: [0, 0]}},
    "the first matrix alone": {"picked": {0: [0]}, "target": [-1, 5, 7, 2]},
    "the first matrix for all": {"theta": ["n", 2, 3], "picked": {0: [0]}, "target": [-1, 5, 7, 2]},
    "the first row twice": {"picked": {2: [0, 0]}},
    "the first column only": {"picked": {1: [0, 0, 0]}},
}  # fmt: skip
ATTENTIONS = {
    "two levels": {},
    "slices": {"cut": "Slice"},
    "sequences": {"cut": "SplitToSequence"},
    "one axis for levels and points": {"merged": True},
    "slices, one axis for levels and points": {"merged": True, "cut": "Slice"},
    "sequences, one axis for levels and points": {"merged": True, "cut": "SplitToSequence"},
    "one level": {"levels": ((4, 5),)},
    "eight levels": {"levels": ((3, 2),) * 8},
    "levels of one row, column and pixel": {"levels": ((1, 5), (4, 1), (1, 1))},
    "one image": {"batch": 1},
    "one head": {"heads": 1},
    "one image, one head": {"batch": 1, "heads": 1},
    "one channel": {"channels": 1},
    "one point": {"points": 1},
    "one query": {"queries": 1},
    "as many of all": {"levels": ((2, 2),) * 2, "batch": 2, "queries": 2, "heads": 2, "channels": 2, "points": 2},
    "float16": {"dtype": "float16"},
    "float64": {"dtype": "float64"},
    "opset 16": {"opset": 16, "sampling": {"mode": "bilinear"}},
    "newest opset": {"opset": NEWEST},
    "settings left out": {"sampling": {}},
    "sampled by com.microsoft": {"sampling": {"mode": "bilinear", "domain": "com.microsoft"}},
    "factors swapped": {"swapped": True},
    "the axis of the sum kept": {"keepdims": 1},
    "the axis of the sum from the front": {"over": [3]},
}
NO_ATTENTIONS = {
    "nearest": {"sampling": {"mode": "nearest"}},
    "border": {"sampling": {"padding_mode": "border"}},
    "corners": {"sampling": {"align_corners": 1}},
    "other places": {"factor": 3},
    "places plus 1": {"shift": "Add"},
    "levels in another order": {"order": (1, 0)},
    "one level twice": {"order": (0, 0)},
    "grids of several sources": {"second_grid": "other", "inputs": {"other": ("float32", [2, 7, 3, 2, 2, 2])}},
    "pixels left over": {"pixels": (20, 6, 4)},
    "images on their side": {"turned": True},
    "points before levels": {"axis": -1},
    "weights of points before levels": {"weights_perm": [0, 2, 1, 4, 3]},
    "weights of queries before heads": {"weights_perm": [0, 1, 2, 3, 4], "queries": 3},
    "a sum over channels": {"over": [1]},
    "images and heads mixed": {"target": (3, 8, 7)},
    "heads and queries mixed": {"target": (2, 7, 12)},
    "nine levels": {"levels": ((1, 2),) * 9},
    "an unknown number of pixels": {"value": [2, "s", 3, 4]},
    "an unknown number of heads": {"value": [2, 26, "m", 4]},
    "a value of unknown shape": {"value": ["a", "b", "c", "d"]},
    "a sample used twice": {"after": used_twice("sample_1", "y")},
    "the samples used twice": {"after": used_twice("samples", "y")},
    "the product used twice": {"after": used_twice("product", "y")},
    "the result used twice": {"after": used_twice("result", "y")},
}


def results(proto, inputs, optimized=False):
    """Run a model with ONNX Runtime's own kernels, except for the domain onnx_ops; return its outputs."""
    options = onnx_ops.register(quiet(), domains=["onnx_ops"]) if optimized else quiet()
    names = [value.name for value in proto.graph.input]
    return ort.InferenceSession(proto.SerializeToString(), options).run(None, {n: inputs[n] for n in names})


def compare(proto, sizes=(), tolerance=0, **options):
    """Assert that the optimized model gives the model's results; return its operators and the findings."""
    optimized, findings = rewritten(proto, **options)
    onnx_ops.register_schemas()
    onnx.checker.check_model(optimized, full_check=True)
    inputs = feeds(proto, sizes)
    for expected, got in zip(results(proto, inputs), results(optimized, inputs, True), strict=True):
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)
    assert [v.name for v in optimized.graph.input] == [v.name for v in proto.graph.input]
    assert optimized.graph.output == proto.graph.output
    assert onnx_ops.optimize(optimized, **options) == optimized
    return [n.op_type for n in optimized.graph.node], findings


@pytest.mark.parametrize("name", UNFOLDS)
def test_unfold(name):
    nodes, (finding,) = compare(unfold(**UNFOLDS[name]))
    assert nodes == ["Im2Col", "Reshape"] if name in ("another shape", "flat") else ["Im2Col"]
    assert (finding.operator, finding.reason) == ("Im2Col", None)


@pytest.mark.parametrize("opset", [16, 18, 20, NEWEST])
@pytest.mark.parametrize("name", ["two axes", "one axis", "three axes", "pixels", "a row of pixels"])
def test_unfold_of_open_sizes(name, opset):
    case = UNFOLDS[name]
    proto = unfold(open_sizes=True, opset=opset, **case)
    for more in (0, 1, 6):
        sizes = {f"size_{a}": s + more for a, s in enumerate(case.get("image", (11, 13)))}
        assert compare(proto, sizes={"n": 2, **sizes})[0] == ["Im2Col"]


SAMPLERS = ["ComputedGridSample"]  # that the grids of a near miss become


def near_miss(proto, sizes=(), runs=True, also=(), **options):
    """Assert that a model is left alone; return the reasons. also: operators that other patterns may put into it."""
    optimized, findings = rewritten(proto, **options)
    left = [f for f in findings if f.operator not in also]
    assert [f.operator for f in left] == [None] * len(left)
    assert optimized == proto or len(left) < len(findings)
    if runs:
        inputs = feeds(proto, sizes)
        results(proto, inputs)  # ONNX Runtime takes the model, so nothing else is wrong with it
        sessions = (onnx_ops.InferenceSession(each.SerializeToString(), quiet()) for each in (proto, optimized))
        for expected, got in zip(*(session.run(None, inputs) for session in sessions), strict=True):
            np.testing.assert_array_equal(got, expected)
    return [f.reason for f in left]


@pytest.mark.parametrize("name", NO_UNFOLDS)
def test_no_unfold(name):
    (reason,) = near_miss(unfold(**NO_UNFOLDS[name])) or [None]
    assert reason or "used twice" in name


@pytest.mark.parametrize("name", PADDED)
def test_unfold_of_what_is_padded(name):
    nodes, (finding,) = compare(unfold(**PADDED[name]))
    assert nodes == ["Pad", "Im2Col"]
    assert finding.operator == "Im2Col"


WINDOWS = {
    "as they are": windows(None),
    "of no batch": windows(None, lead=(3,)),
    "positions before blocks": windows((4, 5, 2, 3)),
    "positions in another order": windows((5, 4, 2, 3)),
    "positions between blocks": windows((2, 4, 3, 5)),
    "positions before blocks, strides": windows((4, 5, 2, 3), (2, 3), size=8),
    "strides that leave nothing over": windows(None, (2, 2)),
    "flattened": windows(None, after=lambda w, y: w.add("Reshape", y, w.constant([2, 3, 25, 9]))),
    "flattened, then turned": windows(None, after=lambda w, y: w.add("Transpose", w.add(
        "Reshape", y, w.constant([2, 3, 25, 9])), perm=[0, 1, 3, 2])),
    "flattened by groups": windows(None, lead=(2, 4), after=lambda w, y: w.add("Transpose", w.add(
        "Reshape", y, w.constant([2, 2, 2, 25, 9])), perm=[0, 1, 2, 4, 3])),
    "used twice": windows(None, after=lambda w, y: w.add("Add", y, w.add("Neg", y))),
    "of open sizes, flattened": windows((4, 5, 2, 3), is_open=True, after=lambda w, y: w.add(
        "Reshape", y, w.constant([2, 27, -1]))),
}  # fmt: skip
NO_WINDOWS = {
    "strides that leave something over": (windows(None, (2, 2), size=8), "blocks instead of"),
    "open sizes": (windows((4, 5, 2, 3), is_open=True), "more than one of its sizes is open"),
    "open sizes, blocks first": (windows(None, is_open=True), "the size of the kernel is open"),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name):
    nodes, (finding,) = compare(WINDOWS[name], {"h": 7, "w": 8})
    assert finding.operator == "Im2Col"
    assert "Gather" not in nodes
    assert ("Transpose" in nodes) == (name in ("positions in another order", "positions between blocks"))


@pytest.mark.parametrize("name", NO_WINDOWS)
def test_no_windows(name):
    proto, expected = NO_WINDOWS[name]
    (reason,) = near_miss(proto, {"h": 7, "w": 7})
    assert expected in reason


@pytest.mark.parametrize("name", AFFINE_GRIDS)
def test_affine_grid(name):
    case = AFFINE_GRIDS[name]
    # In 16 bits twice the rounding of sums of three terms, else exact.
    tolerance = 2**-8 if case.get("dtype") == "float16" else 0
    nodes, (finding,) = compare(affine_grid(**case), sizes={"n": 2}, tolerance=tolerance)
    assert nodes == ["AffineGrid"]
    assert finding.operator == "AffineGrid"


ATTENTION = "MultiScaleDeformableAttention"


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention(name):
    case = ATTENTIONS[name]
    tolerance = {"float16": 0.1, "float64": 1e-13}.get(case.get("dtype"), 1e-5)
    nodes, (finding,) = compare(attention(**case), tolerance=tolerance)
    assert nodes == [*["Reshape"] * 2 * ("merged" in case), ATTENTION]
    assert (finding.operator, finding.reason) == (ATTENTION, None)


OTHER_ENDS = {
    "channels before queries": {"perm": [0, 1, 2]},
    "axes backwards": {"perm": [2, 1, 0]},
    "queries first": {"perm": [2, 0, 1]},
    "an image used twice": {"after": used_twice("image_0", "y")},
    "heads and channels on one axis": {"levels": [(4, 5)], "value": [2, 20, 12]},
    "heads and channels on one axis, several levels": {"value": [2, 26, 12]},
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_ENDS)
def test_attention_that_ends_in_another_way(name):
    """The result's axes may be in another order, as BEVFormer's; layers that share a value move it only once."""
    nodes, (finding, *_) = compare(attention(**OTHER_ENDS[name]), tolerance=1e-4)
    assert ATTENTION in nodes
    assert finding.operator == ATTENTION


@pytest.mark.parametrize("opset", [16, 20, NEWEST])
@pytest.mark.parametrize("name", [*list(ATTENTIONS)[:7], "one head"])
def test_attention_of_open_sizes(name, opset):
    mode = {"sampling": {"mode": "bilinear" if opset < 20 else "linear"}}
    proto = attention(open_sizes=True, opset=opset, **ATTENTIONS[name], **mode)
    no_images = [{"n": 0, "q": 7}] if "merged" in ATTENTIONS[name] else []  # which ONNX Runtime refuses of the others
    for sizes in ({"n": 2, "q": 7}, {"n": 1, "q": 1}, {"n": 3, "q": 40}, *no_images):
        assert compare(proto, sizes=sizes, tolerance=1e-5)[0][-1] == ATTENTION


def make_constant(proto, inputs, names):
    """Make constants of inputs with these values."""
    for name in names:
        proto.graph.input.remove(next(v for v in proto.graph.input if v.name == name))
        proto.graph.initializer.append(numpy_helper.from_array(inputs[name], name))


@pytest.mark.parametrize("name", ["two levels", "slices", "one axis for levels and points", "one image"])
@pytest.mark.parametrize("constants", [
    None, [], ["attention_weights"], ["sampling_locations"], ["sampling_locations", "attention_weights"],
], ids=str)  # fmt: skip
def test_attention_that_onnx_runtime_has_optimized(constants, name, tmp_path):
    """It joins the last Transpose and the next MatMul, states no shapes, and computes what constants make.

    constants: inputs that are constant; None if batch and queries are open
    """
    weights = np.random.default_rng(0).random((12, 5), np.float32)
    proto = attention(
        constants is None, after=lambda w: w.add("MatMul", "y", w.constant(weights, "float32")), **ATTENTIONS[name]
    )
    inputs = feeds(proto, {"n": 2, "q": 7})
    constants = constants or []
    make_constant(proto, inputs, constants)
    options = quiet()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "m.onnx")
    ort.InferenceSession(proto.SerializeToString(), options)
    before = onnx.load(tmp_path / "m.onnx")
    assert "FusedMatMul" in [n.op_type for n in before.graph.node]
    optimized, (finding, *_) = rewritten(before)
    assert finding.operator == ATTENTION
    assert "GridSample" not in [n.op_type for n in optimized.graph.node]
    inputs = {name: array for name, array in inputs.items() if name not in constants}
    expected, got = results(before, inputs)[0], results(optimized, inputs, True)[0]
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


def test_attention_at_places_in_float64(kernels_made):
    """TorchScript's exporter makes such places of PyTorch's `linspace`; ONNX Runtime has no GridSample for them."""
    proto = attention(places="float64")
    inputs = feeds(proto)
    (expected,) = onnx_ops.InferenceSession(proto.SerializeToString(), quiet()).run(None, inputs)
    assert kernels_made == ["GridSample", "GridSample"]
    (got,) = onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), optimize=True).run(None, inputs)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", NO_ATTENTIONS)
def test_no_attention(name):
    sizes = {"s": 26, "m": 3, "a": 2, "b": 26, "c": 3, "d": 4}
    reason, *_ = near_miss(attention(**NO_ATTENTIONS[name]), sizes, also=SAMPLERS)
    assert reason


def test_attention_of_constants():
    """Some inputs may be constant. If all are, nothing is replaced: ONNX Runtime computes the result once."""
    for constant in (["value"], ["sampling_locations"], ["value", "sampling_locations", "attention_weights"]):
        proto = attention()
        make_constant(proto, feeds(proto), constant)
        if len(constant) < 3:
            assert compare(proto, tolerance=1e-5)[0] == [ATTENTION]
        else:
            assert all("constant" in reason for reason in near_miss(proto))


def test_shapes_of_values_in_between_are_no_other_use():
    """TorchScript's exporter computes shapes from them; nodes stay that are needed for another purpose."""
    proto = attention(after=lambda w: w.add("Mul", "y", w.add("Cast", w.add("Shape", "samples", end=1), to=1)))
    nodes, (finding, *_) = compare(proto, tolerance=1e-4)
    assert finding.operator == ATTENTION
    assert {ATTENTION, *SAMPLERS, "Shape"} <= set(nodes)


@pytest.mark.parametrize("name", NO_AFFINE_GRIDS)
def test_no_affine_grid(name):
    reasons = near_miss(affine_grid(**NO_AFFINE_GRIDS[name]), {"n": 2, "rows": 2})
    assert all(reasons)


STANDARD = ("two axes", "two axes, corners", "three axes", "three axes, corners", "one row", "one column", "float64")


@pytest.mark.parametrize("name", STANDARD)
def test_affine_grid_by_operators_of_onnx_alone(name):
    optimized = onnx_ops.optimize(affine_grid(opset=20, **AFFINE_GRIDS[name]), standard=True)
    assert [(n.domain, n.op_type) for n in optimized.graph.node] == [("", "AffineGrid")]
    compare(affine_grid(opset=20, **AFFINE_GRIDS[name]), tolerance=2e-6, standard=True)


@pytest.mark.parametrize(
    ("proto", "reason"),
    [
        (affine_grid(opset=19), "from version 20 on"),
        (affine_grid(opset=20, sample="nearest"), "nearest"),
        (affine_grid(opset=20, dtype="float16"), "float16"),
        (affine_grid(opset=20, base=lambda base: base * np.float32([3, 1, 1])), "not what AffineGrid"),
        (affine_grid(opset=20, open_batch=True), "batch size is open"),
        (unfold(), "no operator"),
        (attention(), "no operator"),
    ],
)
def test_what_operators_of_onnx_alone_do_not_do(proto, reason):
    (finding,) = near_miss(proto, {"n": 2}, standard=True)
    assert reason in finding


SAMPLE = helper.make_node("GridSample", ["image", "grid"], ["y"], mode="nearest")


def sampled_in_a_branch(proto):
    branch = helper.make_graph([SAMPLE], "branch", [], [onnx.ValueInfoProto(name="y")])
    return helper.make_node("If", ["c"], ["sampled"], then_branch=branch, else_branch=branch)


def sampled_in_a_loop(proto):
    """Sample in a Loop, in which the grid has another name."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go_on"], ["going_on"]), helper.make_node("Identity", ["carried"], ["passed"]),
         helper.make_node("GridSample", ["image", "carried"], ["y"], mode="nearest")],
        "body", [helper.make_tensor_value_info("k", 7, []), helper.make_tensor_value_info("go_on", 9, []),
                 onnx.ValueInfoProto(name="carried")],
        [onnx.ValueInfoProto(name=name) for name in ("going_on", "passed", "y")],
    )  # fmt: skip
    proto.graph.initializer.append(numpy_helper.from_array(np.array(1), "trips"))
    return helper.make_node("Loop", ["trips", "", "grid"], ["last", "sampled"], body=body)


def sampled_in_a_function(proto):
    imports = [helper.make_opsetid("", 20)]
    proto.functions.append(helper.make_function("local", "Sample", ["image", "grid"], ["y"], [SAMPLE], imports))
    proto.opset_import.append(helper.make_opsetid("local", 1))
    return helper.make_node("Sample", ["image", "grid"], ["sampled"], domain="local")


@pytest.mark.parametrize("sampled", [sampled_in_a_branch, sampled_in_a_loop, sampled_in_a_function])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_nearest_sampling_out_of_sight(sampled, dtype):
    """The grid stays if its rounding would matter to a nearest sampling, wherever that is."""
    inputs = {"image": (dtype, [2, 3, 5, 7]), "c": ("bool", [])}
    proto = affine_grid(opset=20, dtype=dtype, inputs=inputs)
    proto.graph.node.append(sampled(proto))
    proto.graph.output[0].name = "sampled"
    finding, *_ = rewritten(proto)[1]
    assert (finding.operator is None) == (dtype == "float16")
    for standard in [False, True] if dtype == "float16" else [True]:
        optimized, (finding, *_) = rewritten(proto, standard)
        assert optimized == proto
        assert "nearest" in finding.reason


def test_the_model_given_is_not_modified():
    for proto in (unfold(), affine_grid(), attention()):
        before = proto.SerializeToString()
        assert onnx_ops.optimize(proto) != proto
        assert proto.SerializeToString() == before


@pytest.mark.parametrize("make", [unfold, affine_grid, attention])
def test_constants_that_callers_may_replace(make):
    """An initializer that is an input, too, is only a default."""
    proto = make()
    tensor = max(proto.graph.initializer, key=lambda t: t.ByteSize())
    kind = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
    proto.graph.input.append(kind)
    near_miss(proto, runs=False, also=SAMPLERS)


@pytest.mark.parametrize(("make", "name"), [(unfold, "x"), (affine_grid, "theta")])
def test_what_is_constant_is_left_to_onnx_runtime(make, name):
    proto = make()
    inputs = feeds(proto)
    (value,) = (v for v in proto.graph.input if v.name == name)
    proto.graph.input.remove(value)
    proto.graph.initializer.append(numpy_helper.from_array(inputs[name], name))
    assert all("constant" in reason for reason in near_miss(proto))


@pytest.mark.parametrize("make", [unfold, affine_grid, attention])
def test_values_in_between_that_are_outputs_stay(make):
    proto = make()
    between = proto.graph.node[-2].output[0]
    proto.graph.output.append(next(v for v in proto.graph.value_info if v.name == between))
    near_miss(proto, also=[*SAMPLERS, "Im2Col"])  # which makes such a value


def in_a_branch(proto):
    """Move a model's nodes into a branch of an If; its constants and input stay outside."""
    graph, name = proto.graph, proto.graph.output[0].name
    branch = onnx.GraphProto(name="then", node=graph.node, output=graph.output, value_info=graph.value_info)
    other = helper.make_graph(
        [helper.make_node("Identity", ["otherwise"], ["else_y"])], "else", [],
        [helper.make_tensor_value_info("else_y", graph.output[0].type.tensor_type.elem_type, None)],
    )  # fmt: skip
    outer = onnx.ModelProto()
    outer.CopyFrom(proto)
    del outer.graph.node[:], outer.graph.value_info[:]
    dims = [d.dim_value for d in graph.output[0].type.tensor_type.shape.dim]
    kind = graph.output[0].type.tensor_type.elem_type
    outer.graph.input.extend(
        [helper.make_tensor_value_info("otherwise", kind, dims), helper.make_tensor_value_info("c", 9, [])]
    )
    outer.graph.node.append(helper.make_node("If", ["c"], [f"{name}_out"], then_branch=branch, else_branch=other))
    outer.graph.output[0].name = f"{name}_out"
    return outer


@pytest.mark.parametrize(("make", "name"), [(unfold, "Im2Col"), (affine_grid, "AffineGrid"), (attention, ATTENTION)])
def test_in_a_branch(make, name):
    proto = in_a_branch(make())
    optimized, findings = rewritten(proto)
    assert [f.operator for f in findings] == [name]
    assert [n.op_type for n in all_nodes(optimized.graph) if n.op_type != "Identity"] == ["If", name]
    assert not {t.name for t in optimized.graph.initializer} & {t.name for t in proto.graph.initializer}
    inputs = feeds(proto)
    for chosen in (True, False):
        inputs["c"] = np.array(chosen)
        got, expected = results(optimized, inputs, True)[0], results(proto, inputs)[0]
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5 if make is attention else 0)


@pytest.mark.parametrize(("make", "name"), [(unfold, "Im2Col")])
def test_in_a_local_function(make, name):
    """Its constants are nodes, and it states no shapes: open sizes are inferred nevertheless."""
    proto = make(open_sizes=True)
    nodes = [
        *(helper.make_node("Constant", [], [t.name], value=t) for t in proto.graph.initializer),
        *proto.graph.node,
    ]
    function = helper.make_function("local", "Unfold", ["x"], ["y"], nodes, proto.opset_import)
    function.value_info.append(helper.make_tensor_value_info("x", 1, ["n", "c", "h", "w"]))
    del proto.graph.node[:], proto.graph.initializer[:], proto.graph.value_info[:]
    proto.graph.node.append(helper.make_node("Unfold", ["x"], ["y"], domain="local"))
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("local", 1))
    optimized, (finding,) = rewritten(proto)
    assert (finding.graph, finding.operator) == ("main", name)  # where functions are inlined
    assert [n.op_type for n in optimized.graph.node] == [name]
    inputs = feeds(proto, {"n": 2, "size_0": 11, "size_1": 13})
    np.testing.assert_array_equal(results(optimized, inputs, True)[0], results(proto, inputs)[0])


def test_two_that_share_their_constants():
    """Constants stay until the second pattern is replaced, too."""
    proto = unfold()
    again = [onnx.NodeProto.FromString(n.SerializeToString()) for n in proto.graph.node]
    for node in again:
        node.name += "_2"
        node.output[0] += "_2"
        if node.op_type != "Pad":
            node.input[0] += "_2"
    proto.graph.node.extend(again)
    proto.graph.output.append(proto.graph.output[0])
    proto.graph.output[1].name = "y_2"
    nodes, findings = compare(proto)
    assert nodes == ["Im2Col", "Im2Col"]
    assert len(findings) == 2


def test_external_data_is_read_where_it_is_needed_and_stays(tmp_path):
    proto = affine_grid(size=(20, 30))
    weights = numpy_helper.from_array(np.ones(5000, np.float32), "weights")
    proto.graph.initializer.append(weights)
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="data", size_threshold=100)
    stored = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    assert any("base grid" in (f.reason or "") or f.reason for f in rewritten(stored)[1]) or not rewritten(stored)[1]
    assert rewritten(stored)[0] == stored
    optimized, (finding,) = rewritten(stored, folder=tmp_path)
    assert finding.operator == "AffineGrid"
    (left,) = [t for t in optimized.graph.initializer if t.name == "weights"]
    assert left.data_location == onnx.TensorProto.EXTERNAL
    assert not left.raw_data


def test_time_on_a_large_model():
    """5,000 nodes take a fraction of a second; the limit is generous for the sake of slow machines."""
    import time

    proto = unfold(after=None)
    source = "y"
    for k in range(5000):
        proto.graph.node.append(helper.make_node("Relu", [source], [f"relu_{k}"]))
        source = f"relu_{k}"
    proto.graph.output[0].name = source
    del proto.graph.value_info[:]
    begin = time.process_time()
    _, findings = rewritten(proto)
    assert time.process_time() - begin < 4
    assert [f.operator for f in findings] == ["Im2Col"]
