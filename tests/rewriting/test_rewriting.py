"""optimize(): its replacements give the same results, and it leaves models alone that differ a
little.
"""

import numpy as np
import onnx
import onnx.inliner
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from support.backends import NEWEST_OPSET, ORT_VERSION, quiet
from support.cases import CASES, DEFORM_CONV, ROI_ALIGN, assert_close, expected_of, model
from support.growth import assert_linear
from support.rewriting import compare, near_miss, ours, results
from support.rewriting_cases import (
    ATTENTIONS,
    BLOCKS,
    FRAMES,
    NO_ATTENTIONS,
    NO_UNFOLDS,
    OPEN,
    OTHER_ENDS,
    UNFOLDS,
    WINDOWS,
    folds_of_ones,
    used_twice,
)
from support.selection import (
    REPRESENTATIVE,
    but_names,
    by_type,
    few,
    in_turn,
    long_unless,
    of_names,
    some_of,
)
from support.written import (
    Writer,
    affine_grid,
    attention,
    convolved,
    feeds,
    frames,
    in_a_function,
    unfold,
    windows,
)

import onnx_ops
from onnx_ops.declaration import dtypes
from onnx_ops.model import external_data
from onnx_ops.native import library
from onnx_ops.rewriting import folding, rewritten, trial
from onnx_ops.rewriting.graph import graphs_of
from onnx_ops.rewriting.models import Model

pytestmark = pytest.mark.any_library

NOTHING_TO_GAIN = {  # of one block, or one position, which moves each element once
    "one block": unfold(image=(3, 2), pads=(0,) * 4, dilations=(1, 1)),
    "one block that leaves pixels over": unfold(
        image=(9, 8), kernel=(2, 3), pads=(0, 1, 2, 0), dilations=(3, 2), strides=(9, 7)),
    "one block of one pixel": unfold(
        image=(3, 4), kernel=(1, 1), pads=(0,) * 4, dilations=(1, 1), strides=(3, 5)),
    "one block along the only axis": unfold(
        image=(7,), kernel=(4,), pads=(0, 0), dilations=(1,), strides=(4,)),
    "pixels": unfold(kernel=(1, 1), pads=(0,) * 4, dilations=(1, 1), strides=(1, 1)),
    "one block of Tensor.unfold": windows(None, (5, 5)),
    "blocks of one position": windows(kernel=1, blocks=list),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTHING_TO_GAIN)
def test_unfold_without_windows(name):
    assert near_miss(NOTHING_TO_GAIN[name]) == []


RESHAPED = {  # by nodes after an unfold, and the nodes that are left
    "flattened": (
        unfold(target=[-1, 72], after=lambda w: w.add("Reshape", "y", w.constant([2, 18, 72]))),
        ["Im2Col"]
    ),
    "flat": (unfold(target=[-1], after=lambda w: w.add("Reshape", "y", w.constant([2, 18, -1]))),
        ["Im2Col"]),
    "sizes copied": (unfold(target=[0, 0, 0, 0, -1]), ["Im2Col", "Reshape"]),
}  # fmt: skip


@pytest.mark.parametrize("name", RESHAPED)
def test_unfold_that_is_reshaped(name):
    proto, nodes = RESHAPED[name]
    assert compare(proto)[0] == nodes


def test_unfold_of_an_open_batch_whose_size_is_copied_from_another_axis():
    """Of no images, the Reshape makes as many as the kernel has positions: it stays as it is."""
    row = {
        "image": (5,), "kernel": (2,), "pads": (0, 0), "dilations": (1,), "strides": (1,),
        "channels": 1,
    }  # fmt: skip
    proto = unfold(open_sizes=True, perm=[2, 0, 3, 1], **row)
    nodes, _ = compare(proto, *({"n": n, "size_0": 5} for n in (0, 2)))
    assert ("Im2Col" in nodes, nodes[-2:]) == (True, ["Reshape", "Reshape"])
    assert "Im2Col" in compare(unfold(open_sizes=True, **row), {"n": 2, "size_0": 5})[0]


def test_blocks_of_one_axis_and_positions_of_the_other():
    """The tables are [block, position], and their axes transposed so that [4, 4, 1, 2] has as many
    elements.
    """
    w = Writer()
    y = w.add("Gather", "x", w.constant(np.arange(4)[:, None]), axis=2)
    y = w.add("Gather", y, w.constant(np.add.outer(np.arange(4), np.arange(2))), axis=4)
    y = w.add("Transpose", y, perm=[0, 1, 2, 3, 5, 4])
    proto = w.model({"x": ("float32", [2, 3, 4, 5])}, (y, "float32", [2, 3, 4, 1, 2, 4]))
    assert compare(proto)[0] == ["Im2Col", "Reshape", "Transpose", "Reshape"]


FURTHER = {  # unfolds of other indices, of a part of the image, or along one axis alone
    "an index off by one": {"indices": lambda i: [i[0] + (i[0] > 3), i[1]]},
    "indices from 1 on": {"indices": lambda i: [i[0] + 1, i[1]]},
    "an irregular index": {"indices": lambda i: [np.minimum(i[0] * i[0], 13), i[1]]},
    "indices from the end": {"indices": lambda i: [i[0] - 3, i[1]]},
    "indices that repeat": {"indices": lambda i: [i[0][:, :1].repeat(3, 1), i[1]]},
    "a block less": {"indices": lambda i: [i[0][:, :-1], i[1]]},
    "another axis order": {"perm": [0, 1, 4, 2, 3, 5]},
    "channels last": {"perm": [0, 2, 4, 1, 3, 5]},
    "a value further up used twice": {"after": used_twice("gathered_0", "y")},
    "batch and channels flattened": {"target": [1, 36, 72], "allowzero": 1,
        "perm": [0, 1, 4, 2, 3, 5]},
    "padded axes plus 0 times an input": {
        "all_pads": [1, 0, 2, 1], "inputs": {"more": ("int64", [2])}, "pad_axes": lambda w: w.add(
            "Add", w.add("Mul", "more", w.constant(0)), w.constant([2, 3])),
    },
}  # fmt: skip


LIKE_OTHER_UNFOLDS = {
    "indices from 1 on",
    "indices from the end",
    "indices that repeat",
    "another axis order",
    "a block less",
}


@pytest.mark.parametrize("name", but_names(FURTHER, LIKE_OTHER_UNFOLDS))
def test_unfold_of_others(name):
    nodes, findings = compare(unfold(**FURTHER[name]))
    assert "Im2Col" in nodes
    assert not {finding.reason for finding in findings} - {None}


PADDED = {  # in another way than Im2Col pads
    "with 1": {"pad_value": 1},
    "with -0": {"pad_value": -0.0},
    "by reflection": {"mode": "reflect"},
    "along channels": {"all_pads": [0, 1, 1, 0, 0, 0, 2, 1], "target": [2, 24, -1]},
    "along some axes by 1": {"all_pads": [1, 0, 2, 1], "pad_axes": [2, 3], "pad_value": 1},
    "along an axis of channels": {"all_pads": [1, 1, 0, 0, 2, 1], "pad_axes": [1, 2, 3],
        "target": [2, 24, -1]},
    "and cropped": {"all_pads": [0, 0, -1, 0, 0, 0, -1, 1], "pads": (-1, 0, -1, 1)},
}  # fmt: skip


@pytest.mark.parametrize("name", by_type(UNFOLDS))
def test_unfold(name):
    nodes, (finding,) = compare(unfold(**UNFOLDS[name]))
    assert nodes == ["Im2Col", "Reshape"] if name in ("another shape", "flat") else ["Im2Col"]
    assert (finding.operator, finding.reason) == ("Im2Col", None)


@pytest.mark.parametrize(
    ("name", "opset"),
    in_turn(
        ["two axes", "one axis", "three axes", "no overlap", "a row of pixels"],
        [16, 18, 20, NEWEST_OPSET],
        every=8,
    ),
)
def test_unfold_of_open_sizes(name, opset):
    case = UNFOLDS[name]
    proto = unfold(open_sizes=True, opset=opset, **case)
    image = case.get("image", (11, 13))
    sizes = [{f"size_{a}": s + more for a, s in enumerate(image)} for more in (0, 1, 6)]
    assert compare(proto, *({"n": 2, **each} for each in sizes))[0] == ["Im2Col"]


def by_a_size(w):
    """Add a Reshape to the number of blocks, which would mean another thing if it were 0."""
    sizes = w.add("Concat", w.constant([-1]), w.add("Shape", "y", start=2), w.constant([1]), axis=0)
    return w.add("Reshape", "y", sizes, name="z")


def test_an_unfold_before_another_reshape():
    """Where what follows can't be the end, what precedes it is."""
    nodes, _ = compare(
        unfold(open_sizes=True, after=by_a_size), {"n": 2, "size_0": 11, "size_1": 13}
    )
    assert nodes == ["Im2Col", "Shape", "Concat", "Reshape"]


SAMPLERS = ["ComputedGridSample"]  # that the grids of a near miss become


@pytest.mark.parametrize("name", PADDED)
def test_unfold_of_what_is_padded(name):
    nodes, (finding,) = compare(unfold(**PADDED[name]))
    assert nodes == ["Slice" if name == "and cropped" else "Pad", "Im2Col"]
    assert finding.operator == "Im2Col"


NO_WINDOWS = {
    "open sizes": (windows((4, 5, 2, 3), is_open=True), "is not known to be that of an input"),
    "open sizes, blocks first": (
        windows(None, is_open=True),
        "is not known to be that of an input",
    ),
    "open sizes before opset 14": (
        windows(None, is_open=True, opset=13),
        "more than one of its sizes is open",
    ),
}


FURTHER_BLOCKS = {
    "one left out": windows(blocks=lambda starts: starts[:-1]),
    "one left out along the last axis": windows(lead=(2,), blocks=lambda starts: starts[:-1]),
    "from the second on": windows(blocks=lambda starts: starts[1:]),
}
NO_BLOCKS = {
    "backwards": (windows(blocks=lambda starts: starts[::-1]), "copy elements as fast"),
    "one twice": (windows(blocks=lambda starts: [0, *starts[:-1]]), None),
    "the same again": (windows(blocks=lambda starts: [0] * len(starts)), None),
    "at irregular places": (
        windows(blocks=lambda starts: [0, 1, 3, 4]),
        "axis it moves by more than a position",
    ),
}


@pytest.mark.parametrize("name", FURTHER_BLOCKS)
def test_blocks_of_a_part(name):
    nodes, (finding,) = compare(FURTHER_BLOCKS[name])
    assert finding.operator == "Im2Col"
    assert nodes.count("Slice") == 2  # of the image


@pytest.mark.parametrize(
    "name", but_names(BLOCKS, ["of no batch", "positions before blocks", "used twice"])
)
def test_blocks(name):
    """TorchScript's exporter writes a Slice for each block of Tensor.unfold."""
    nodes, (finding,) = compare(BLOCKS[name])
    assert finding.operator == "Im2Col"
    assert not {"Slice", "Concat"} & set(nodes)


@pytest.mark.parametrize("name", NO_BLOCKS)
def test_no_blocks(name):
    proto, expected = NO_BLOCKS[name]
    (reason,) = near_miss(proto) or [None]
    assert reason == expected or expected in reason


@pytest.mark.parametrize(
    ("name", "how", "lead"),
    some_of(FRAMES, ["Gather", "open", "Concat", "Concat, positions first"], [(), (2,), (2, 3)]),
    ids=str,
)
def test_frames(name, how, lead):
    """Of speech, by both exporters, with open batch and length by the default one."""
    edits = {"lead": lead, "is_open": how == "open"} | FRAMES[name]
    if "Concat" in how:
        edits |= {"blocks": list, "along": int(how != "Concat")}
    if name.startswith("before a") and edits.get("along"):
        edits["length"] = 36  # as many frames as positions
    nodes, (finding,) = compare(frames(**edits), {"n": 2, "length": edits.get("length", 40)})
    assert finding.operator == "Im2Col"
    assert not {"Range", "Slice"} & {*nodes}
    assert not {"Gather", "Concat"} & {*nodes} or (
        how == "open" and len(lead) == 2
    )  # for the sizes of a Reshape


FURTHER_FRAMES = {
    "the last one left out": frames(indices=lambda table: table[:-1]),
    "from the second element on": frames(length=42, indices=lambda table: table + 1),
    "backwards": frames(indices=lambda table: table[:, ::-1]),
}
NO_FRAMES = {
    "of channels last": (frames(trail=(3,)), "copy elements as fast"),
    "irregular": (frames(indices=lambda table: table * table % 40), None),
    "one": (frames(length=8), None),
}  # fmt: skip


@pytest.mark.parametrize("name", FURTHER_FRAMES)
def test_frames_of_others(name):
    nodes, (finding,) = compare(FURTHER_FRAMES[name])
    assert finding.operator == "Im2Col"
    assert "Gather" not in nodes


@pytest.mark.parametrize("name", NO_FRAMES)
def test_no_frames(name):
    proto, expected = NO_FRAMES[name]
    reasons = near_miss(proto)
    assert reasons == [] if expected is None else expected in reasons[0]


PLANE = {"image": (7, 8), "kernel": (3, 2)}
CONVOLVED = {  # {name: (arguments of `convolved`, the nodes that are left)}
    "a row": ({}, ["Im2Col"]),
    "strides": ({"strides": [2]}, ["Im2Col"]),
    "dilations and pads": ({"dilations": [2], "pads": [2, 1]}, ["Im2Col"]),
    "no pads by their name": ({"auto_pad": "VALID", "strides": [3]}, ["Im2Col"]),
    "two axes": (PLANE | {"strides": [2, 1], "pads": [1, 0, 0, 2]}, ["Im2Col", "Reshape"]),
    "three axes": ({"image": (4, 5, 6), "kernel": (2, 3, 2)}, ["Im2Col", "Reshape"]),
    "positions before channels": (
        {"weights": lambda k: k.reshape(3, 3, 3, 3).swapaxes(0, 1).reshape(9, 3, 3)},
        ["Im2Col", "Reshape", "Transpose", "Reshape"],
    ),
    "an open length": ({"is_open": True, "pads": [1, 0]}, ["Im2Col"]),
    "groups": ({"groups": True, "strides": [2], "dilations": [2], "pads": [0, 3]}, ["Im2Col"]),
    "groups, two axes": (PLANE | {"groups": True}, ["Im2Col", "Reshape"]),
    "groups, an open length": ({"groups": True, "is_open": True, "pads": [1, 1]}, ["Im2Col"]),
}  # fmt: skip
NOT_CONVOLVED = {
    "weights of 2": {"weights": lambda k: 2 * k},
    "one weight of 2": {"weights": lambda k: np.where(k.cumsum().reshape(k.shape) == 4, 2 * k, k)},
    "two weights of a kernel": {"weights": lambda k: k + np.roll(k, 1, axis=2)},
    "any weights": {"weights": lambda k: k + 0.5},
    "a kernel less": {"weights": lambda k: k[:6]},
    "kernels in no order": {"weights": lambda k: k[[0, 1, 2, 4, 3, 5, 6, 7, 8]]},
    "a kernel twice": {"weights": lambda k: k[[0, 1, 2, 3, 3, 5, 6, 7, 8]]},
    "a bias": {"bias": [np.ones(9)]},
    "pads that ONNX Runtime chooses": {"auto_pad": "SAME_UPPER"},
    "one position": {"kernel": (1,)},
    "each group at positions of its own": {
        "groups": True, "weights": lambda k: np.concatenate([k[:3], k[[1, 2, 0]], k[6:]])},
    "groups, any weights": {"groups": True, "weights": lambda k: k + 0.5},
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    but_names(CONVOLVED, ["a row", "strides", "no pads by their name", "groups, two axes"]),
)
def test_unfold_by_convolution(name):
    edits, expected = CONVOLVED[name]
    nodes, (finding,) = compare(convolved(**edits), {"n": 2, "length": 9})
    assert (nodes, finding.operator, finding.untried) == (expected, "Im2Col", None)


@pytest.mark.parametrize("name", NOT_CONVOLVED)
def test_no_unfold_by_convolution(name):
    assert near_miss(convolved(**NOT_CONVOLVED[name])) == []


def test_other_convolutions_are_no_near_misses():
    """Nor is it said why they stay."""
    proto = convolved((2**16,), groups=True, weights=lambda k: k + 0.5)
    assert rewritten(proto, runs_nodes=False)[1] == []


def test_embeddings_are_no_frames():
    """Nothing is reported of a Gather by other indices, or of a constant, of which a model may have
    many.
    """
    w = Writer()
    table = w.constant(np.ones((50, 8)), "float32")
    y = w.add(
        "Add", w.add("Gather", table, "words"), w.add("Gather", table, w.constant([[0, 1, 2]]))
    )
    assert near_miss(w.model({"words": ("int64", [2, 3])}, (y, "float32", None), 18)) == []


def test_blocks_of_several_values():
    proto = windows(blocks=list, steps=(1,), lead=(2, 3, 1))
    proto.graph.input.append(
        onnx.ValueInfoProto.FromString(proto.graph.input[0].SerializeToString())
    )
    proto.graph.input[1].name = "other"
    proto.graph.node[3].input[0] = "other"
    assert not near_miss(proto)


LIKE_OTHER_WINDOWS = {
    "of no batch",
    "positions in another order",
    "strides that leave nothing over",
    "strides that leave something over, no batch",
    "strides that leave something over, flattened",
    "flattened, then turned",
    "one block along an axis, positions before blocks",
}


@pytest.mark.parametrize("name", but_names(WINDOWS, LIKE_OTHER_WINDOWS))
def test_windows(name):
    nodes, (finding,) = compare(WINDOWS[name], {"h": 7, "w": 8})
    assert finding.operator == "Im2Col"
    assert "Gather" not in nodes
    turned = "positions in another order", "positions between blocks", "one block along an axis"
    assert ("Transpose" in nodes) == (name in turned or "something over" in name)


ATTENTION = "MultiScaleDeformableAttention"


# Forms that test_attention_of_open_sizes has, too, or whose options others have.
LIKE_OTHER_ATTENTIONS = {
    "slices, one axis for levels and points",
    "sequences, one axis for levels and points",
    "sequences",
    "one image",
    "one image, one head",
    "one head",
    "one channel",
    "one axis for levels and points",
    "slices",
    "settings left out",
    "one point",
    "one query",
    "as many of all",
    "eight levels",
    "factors swapped",
    "the axis of the sum kept",
    "opset 16",
    "newest opset",
}


@pytest.mark.parametrize("name", by_type(but_names(ATTENTIONS, LIKE_OTHER_ATTENTIONS)))
def test_attention(name):
    case = ATTENTIONS[name]
    nodes, (finding,) = compare(attention(**case))
    assert nodes == [*["Reshape"] * 2 * ("merged" in case), ATTENTION]
    assert (finding.operator, finding.reason) == (ATTENTION, None)


@pytest.mark.long
@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("name", ["two levels", "one axis for levels and points", "one level"])
def test_attention_by_means(name, is_open):
    proto = attention(is_open, total="ReduceMean", **ATTENTIONS[name])
    nodes, (finding,) = compare(proto, {"n": 2, "q": 7})
    assert finding.operator == ATTENTION
    assert not {"GridSample", "ReduceMean"} & {*nodes}


def by_reference(proto, inputs, optimize=False):
    proto = onnx_ops.optimize(proto) if optimize else proto
    return ReferenceEvaluator(proto, new_ops=onnx_ops.reference_ops()).run(None, inputs)


def by_kernels(proto, inputs, **how):
    return ours(proto, **how).run(None, inputs)


@pytest.mark.parametrize("run", [by_reference, long_unless(library.is_complete(), by_kernels)])
@pytest.mark.parametrize(
    ("name", "wide", "is_open"),
    some_of(
        ["two levels", "one axis for levels and points"],
        [("sum",), ("sum", "samples"), ()],
        [False, True],
    ),
    ids=str,
)
def test_attention_in_float16(name, wide, is_open, run):
    """PyTorch's default exporter adds up in float32, between Casts."""
    proto = attention(is_open, dtype="float16", wide=wide, **ATTENTIONS[name])
    optimized, (finding, *_) = rewritten(proto)
    assert (finding.operator, finding.reason) == (ATTENTION, None)
    assert not {"GridSample", "Cast", "ReduceSum"} & {n.op_type for n in optimized.graph.node}
    inputs = feeds(proto, {"n": 2, "q": 7})
    (exact,) = run(
        attention(is_open, **ATTENTIONS[name]), {n: a.astype(np.float32) for n, a in inputs.items()}
    )
    before, after = (np.abs(run(proto, inputs, optimize=o)[0] - exact).max() for o in (False, True))
    assert after <= 2 * before
    assert after < 4e-3 * np.abs(exact).max()


def test_attention_in_bfloat16():
    proto = attention(wide=("sum",), **ATTENTIONS["two levels"])
    bfloat16 = TensorProto.BFLOAT16
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = bfloat16
    for node in proto.graph.node:
        if node.op_type == "Cast" and node.output[0] != proto.graph.node[-4].output[0]:
            node.attribute[0].i = bfloat16 if node.input[0] == "summed" else TensorProto.FLOAT
    for tensor in proto.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(
                helper.make_tensor(
                    tensor.name, bfloat16, tensor.dims, numpy_helper.to_array(tensor).ravel()
                )
            )
    del proto.graph.value_info[:]
    _, (finding, *_) = rewritten(proto)
    assert (finding.operator, finding.reason) == (ATTENTION, None)


def test_attention_whose_sum_is_wider_than_its_values():
    """MultiScaleDeformableAttention would round it to the values' type."""
    proto = attention(dtype="float16", wide=("samples", "kept"), **ATTENTIONS["two levels"])
    reasons = [f.reason for f in rewritten(proto)[1] if f.pattern == "deformable_attention"]
    assert "not of one type" in reasons[0]


ELSEWHERE = {
    *list(OTHER_ENDS)[:3],
    "channels before queries",
    "queries first",
    "images and heads mixed",
    "heads and queries mixed",
    "an image used twice",
    "heads and channels on one axis",
}


# The first of them are in test_rewriting_places.py, too.
@pytest.mark.parametrize("name", but_names(OTHER_ENDS, ELSEWHERE))
def test_attention_that_ends_in_another_way(name):
    """Axes may be in another order, as the result's of BEVFormer; layers that share a value move it
    only once.
    """
    nodes, (finding, *_) = compare(attention(**OTHER_ENDS[name]))
    assert ATTENTION in nodes
    assert finding.operator == ATTENTION


OF_OPEN_SIZES = [
    "two levels",
    "slices, one axis for levels and points",
    "sequences, one axis for levels and points",
    "slices",
    "sequences",
    "one axis for levels and points",
    "one level",
    "one head",
]


@pytest.mark.parametrize(
    ("name", "opset"),
    of_names(in_turn(OF_OPEN_SIZES, [16, 20, NEWEST_OPSET], every=8), OF_OPEN_SIZES[:2]),
)
def test_attention_of_open_sizes(name, opset):
    mode = {"sampling": {"mode": "bilinear" if opset < 20 else "linear"}}
    proto = attention(open_sizes=True, opset=opset, **ATTENTIONS[name], **mode)
    # Which ONNX Runtime refuses of the others.
    no_images = [{"n": 0, "q": 7}] if "merged" in ATTENTIONS[name] else []
    sizes = {"n": 2, "q": 7}, {"n": 1, "q": 1}, {"n": 3, "q": 40}, *no_images
    assert compare(proto, *sizes)[0][-1] == ATTENTION


def make_constant(proto, inputs, names):
    """Make constants of inputs with these values."""
    for name in names:
        proto.graph.input.remove(next(v for v in proto.graph.input if v.name == name))
        proto.graph.initializer.append(numpy_helper.from_array(inputs[name], name))


@pytest.mark.parametrize(
    ("name", "constants"),
    in_turn(
        ["two levels", "slices", "one axis for levels and points", "one image"],
        [
            None, [], ["attention_weights"], ["sampling_locations"],
            ["sampling_locations", "attention_weights"],
        ],
    ),
    ids=str,
)  # fmt: skip
def test_attention_that_onnx_runtime_has_optimized(constants, name, tmp_path):
    """It joins the last Transpose and the next MatMul, states no shapes, and computes what
    constants make.

    constants: inputs that are constant; None if batch and queries are open
    """
    weights = np.random.default_rng(0).random((12, 5), np.float32)
    proto = attention(
        constants is None,
        after=lambda w: w.add("MatMul", "y", w.constant(weights, "float32")),
        **ATTENTIONS[name],
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


@pytest.mark.long
def test_attention_at_places_in_float64(kernels_made):
    """TorchScript's exporter makes such places of PyTorch's `linspace`; ONNX Runtime has no
    GridSample for them.
    """
    proto = attention(places="float64")
    inputs = feeds(proto)
    (expected,) = ours(proto).run(None, inputs)
    assert kernels_made == ["GridSample", "GridSample"]
    (got,) = ours(proto, optimize=True).run(None, inputs)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


NEAR_MISSES = {
    f"{make.__name__}: {name}": make(**{k: v for k, v in edits.items() if k != "reason"})
    for make, table in ((unfold, NO_UNFOLDS), (attention, NO_ATTENTIONS))
    for name, edits in table.items()
} | {f"windows: {name}": proto for name, (proto, _) in NO_WINDOWS.items()}
REASONS = {f"windows: {name}": reason for name, (_, reason) in NO_WINDOWS.items()}
REASONS |= {
    f"attention: {name}": edits["reason"]
    for name, edits in NO_ATTENTIONS.items()
    if "reason" in edits
}


# For whose reason there are other near misses, here or in test_rewriting_places.py.
LIKE_OTHERS = {
    f"attention: {name}"
    for name in (
        "border",
        "corners",
        "places plus 1",
        "grids of several sources",
        "levels in another order",
        "images on their side",
        "a mean over channels",
        "an unknown number of pixels",
        "an unknown number of heads",
        "a value of unknown shape",
        "nine levels",
        "one level twice",
        "the product used twice",
        "pixels left over",
        "one constant weight, in a batch of open size",
        "a sample used twice",
        "the samples used twice",
        "weights of none of the samples",
        "three weights for one sample",
    )
}


@pytest.mark.parametrize("name", but_names(NEAR_MISSES, LIKE_OTHERS))
def test_near_misses(name):
    runs = ORT_VERSION > (1, 20) or "weights of none" not in name  # which ONNX Runtime 1.20 refuses
    reasons = near_miss(
        NEAR_MISSES[name], OPEN, runs, SAMPLERS if name.startswith("attention") else ()
    )
    assert all(reasons)
    assert reasons or "used twice" in name
    assert any(REASONS.get(name, "") in reason for reason in reasons) or name not in REASONS


OF_ONE_TYPE = """
    <ir_version: 8, opset_import: ["" : 16]>
    unfold (float[1, 2, 8] x) => (float[1, 2, 3, 4] y)
    <int64[3, 4] windows = {0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7}>
    {
        halves = Cast <to = 10> (x)
        floats = Cast <to = 1> (halves)
        y = Gather <axis = 2> (floats, windows)
    }
"""
WITHOUT_ELEMENTS = """
    <ir_version: 8, opset_import: ["" : 16]>
    unfold (float[2, 4, 4] x) => (float[2, 3, 0, 2, 2] y)
    <int64[3, 2] rows = {0, 1, 1, 2, 2, 3}, int64[2, 2] pairs = {0, 1, 2, 3},
     int64[1] begin = {-1}, int64[1] end = {1}, int64[1] first = {0}, int64[1] step = {2}>
    {
        columns = Slice (pairs, begin, end, first, step)
        moved = Gather <axis = 1> (x, rows)
        turned = Transpose <perm = [0, 1, 3, 2]> (moved)
        windows = Gather <axis = 2> (turned, columns)
        y = Transpose <perm = [0, 1, 2, 4, 3]> (windows)
    }
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [(OF_ONE_TYPE, ["Cast", "Cast", "Im2Col"]), (WITHOUT_ELEMENTS, [])],
    ids=["of one type", "without elements"],
)
def test_unfolds_of_another_type_or_without_elements(text, expected, monkeypatch):
    """Also if nothing is run that could tell."""
    monkeypatch.setattr(trial, "SECONDS", 0)
    nodes, _ = compare(onnx.parser.parse_model(text))
    assert nodes[: len(expected)] == expected


@pytest.mark.parametrize("names", [
    ["value"], long_unless(False, ["sampling_locations"]), ["value", "sampling_locations"],
    long_unless(False, ["value", "sampling_locations", "attention_weights"]),
])  # fmt: skip
def test_attention_of_constants(names):
    """If values and locations are constant, so is each sample."""
    proto = attention()
    make_constant(proto, feeds(proto), names)
    nodes, _ = compare(proto)
    counts = [nodes.count(op_type) for op_type in (ATTENTION, "Constant", "GridSample")]
    assert nodes == [ATTENTION] if len(names) == 1 else counts == [0, 2, 0]


FOLDED = [
    (case, dtype)
    for case in CASES + DEFORM_CONV + ROI_ALIGN
    for dtype in (
        *dtypes.FLOATS,
        *(("int32", "uint8", "bool", "string") if case.op_type == "Col2Im" else ()),
    )
    if not case.domain
    and case.extent < np.inf
    and dtype in case.operator.types[case.operator.outputs[0].type]
]


FEW_FOLDED = few(
    {(case.name, t): {"dtype": t} | case.axes for case, t in FOLDED if t in REPRESENTATIVE},
    together=1,
)


@pytest.mark.parametrize(
    ("case", "dtype"), [long_unless((c.name, t) in FEW_FOLDED, c, t) for c, t in FOLDED], ids=str
)
def test_constants_are_computed_once(case, dtype):
    """ONNX Runtime would, by its own kernels; other models' nodes would run again and again."""
    onnx_ops.register_schemas()  # of operators of ai.onnx's domain that onnx doesn't have
    inputs = case.inputs(dtype)
    proto = model(
        case.domain,
        case.op_type,
        inputs,
        case.attributes,
        constants=[i.name for i in case.operator.inputs],
    )
    optimized, (finding,) = rewritten(proto)
    (node,) = optimized.graph.node
    assert (finding.operator, node.op_type, len(optimized.graph.initializer)) == (
        "Constant",
        "Constant",
        0,
    )
    assert_close(numpy_helper.to_array(node.attribute[0].t), expected_of(case, inputs), dtype)


def test_large_constants_are_not_computed(monkeypatch):
    """NumPy would need three times the memory that ONNX Runtime needs, and a model has less than
    2**31 bytes.
    """
    computed = []
    run = folding.run_reference
    monkeypatch.setattr(folding, "LARGEST", 4 * 100**2 * folding.REFERENCE)
    monkeypatch.setattr("onnx_ops.rewriting.models.LARGEST", 4 * 100**2)
    monkeypatch.setattr(
        folding, "run_reference", lambda *arguments: computed.append(1) or run(*arguments)
    )
    made = lambda proto: (
        len([f for f in rewritten(proto)[1] if f.operator == "Constant"]),
        len(computed),
    )
    assert made(folds_of_ones(100)) == (1, 1)
    assert made(folds_of_ones(101)) == (0, 1)
    assert made(folds_of_ones(70, 70, 70)) == (2, 4)  # the third one would be too much
    proto = folds_of_ones(100)
    proto.graph.initializer.append(
        TensorProto(name="weights", data_type=TensorProto.FLOAT, dims=[2**29 - 2000])
    )
    assert made(proto)[0] == 0
    assert made(folds_of_ones(100))[0] == 1


def few_bytes(op_type, inputs, *constants, opset=20, **attributes):
    """A model of few bytes: a node of constants, of which a node makes the first one from
    `constants`.
    """
    w = Writer()
    names = [w.constant(array, array.dtype) for array in inputs]
    for before, *operands in constants:
        names.append(w.add(before, *(w.constant(array, array.dtype) for array in operands)))
    y = w.add(
        "Gather",
        w.add(op_type, *names, **attributes),
        w.constant(np.arange(3)[:, None] + np.arange(2)),
        axis=0,
    )
    return w.model({"x": ("float32", [1])}, (w.add("Mul", y, "x"), "float32", None), opset)


SMALL = np.ones((1, 1, 2, 2), np.float32)
GREEDY = {
    "samples of large regions": few_bytes(
        "RoiAlign",
        [SMALL, np.array([[0, 0, 5000, 5000]], np.float32), np.zeros(1, np.int64)],
        opset=16,
    ),
    "a size that is known when it runs": few_bytes(
        "Expand", [np.ones(1, np.float32)], ("Unique", np.array([2**14, 2**13]))
    ),
    "a large product": few_bytes("MatMul", [np.ones((2000, 2000), np.float32)] * 2),
    "a convolution with a bias": few_bytes(
        "Conv",
        [
            np.ones((5, 1, 500, 500), np.float32),
            np.ones((1, 1, 128, 128), np.float32),
            np.ones(1, np.float32),
        ],
    ),
    "windows that overlap": few_bytes(
        "MaxPool", [np.ones((1, 1, 999, 999), np.float32)], kernel_shape=[499, 499]
    ),
    "a transform of a length that is prime": few_bytes(
        "DFT", [np.ones((1, 200_003, 1), np.float32)]
    ),
    "steps one after another": few_bytes(
        "RNN", [np.ones((9, 1, 9), np.float32)] * 3, hidden_size=9
    ),
    "a text twice as long": few_bytes("StringConcat", [np.array(["text"], object)] * 2),
    "numbers as texts": few_bytes("Cast", [np.ones(9, np.float32)], to=TensorProto.STRING),
}


@pytest.mark.parametrize("name", GREEDY)
def test_few_bytes_are_not_computed_for_long(name, monkeypatch):
    """Neither is what has no stated size.

    An estimate decides, for what a node reads and makes, and for a model.
    """
    run = []
    monkeypatch.setattr(
        folding, "run_reference", lambda proto, *_: run.append(proto.graph.node[0].op_type)
    )
    monkeypatch.setattr(
        folding, "run_onnx_runtime", lambda proto, *_: run.append(proto.graph.node[0].op_type)
    )
    (main,) = graphs_of(Model(GREEDY[name]))
    assert all(main.folded(node.output[0]) is None for node in GREEDY[name].graph.node)
    assert {*run} <= {"Unique"}


def test_the_last_import_of_a_domain_counts():
    """So it does in ONNX Runtime."""
    proto = unfold(opset=18)
    proto.opset_import.insert(0, helper.make_opsetid("ai.onnx", 9))
    (main,) = graphs_of(Model(proto))
    assert main.opset == 18


def test_a_model_has_one_account_of_what_is_computed():
    few, many = (
        len([f for f in rewritten(folds_of_ones(*[300] * count))[1] if f.operator])
        for count in (2, 100)
    )
    assert few == 2
    assert 2 < many < 100


def test_shapes_of_values_in_between_are_no_other_use():
    """TorchScript's exporter computes shapes from them; nodes stay that are needed for another
    purpose.
    """
    proto = attention(
        after=lambda w: w.add("Add", "y", w.add("Cast", w.add("Shape", "samples", end=1), to=1))
    )
    nodes, (finding, *_) = compare(proto)
    assert finding.operator == ATTENTION
    assert {ATTENTION, *SAMPLERS, "Shape"} <= set(nodes)


def test_the_model_given_is_not_modified():
    for proto in (unfold(), affine_grid(opset=20, sample="linear"), attention()):
        before = proto.SerializeToString()
        assert onnx_ops.optimize(proto) != proto
        assert proto.SerializeToString() == before


def test_what_is_constant_is_left_to_onnx_runtime():
    proto = unfold()
    (value,) = proto.graph.input
    proto.graph.initializer.append(numpy_helper.from_array(feeds(proto)[value.name], value.name))
    proto.graph.input.remove(value)
    assert all("constant" in reason for reason in near_miss(proto))


def test_weights_do_not_pass_through_the_inliner(monkeypatch):
    """They may be more than the 2**31 bytes of a protobuf, which the inliner reads."""
    proto, sizes, inline = unfold(), [], onnx.inliner.inline_local_functions
    in_a_function(proto, *(t.name for t in proto.graph.initializer))
    weights = numpy_helper.from_array(np.arange(5000, dtype=np.float32), "weights")
    proto.graph.initializer.append(weights)
    monkeypatch.setattr(
        onnx.inliner,
        "inline_local_functions",
        lambda model: sizes.append(model.ByteSize()) or inline(model),
    )
    optimized, (finding,) = rewritten(proto)
    assert finding.operator == "Im2Col"
    assert sizes[0] < 10_000
    assert [*optimized.graph.initializer] == [weights]


@pytest.mark.parametrize("is_large", [False, True])
def test_external_data_are_not_read_in_vain(is_large, tmp_path, monkeypatch):
    """A plane of features, sampled at an input, or at a constant if it is too large to be computed
    in NumPy.
    """
    w, read = Writer(), []
    if is_large:
        monkeypatch.setattr(folding, "LARGEST", 10_000)
    places = w.constant(np.zeros([1, 1, 1, 2]), "float32") if is_large else "places"
    w.add(
        "GridSample",
        w.constant(np.ones([1, 3, 40, 50]), "float32"),
        w.add("Neg", places),
        name="sample",
    )
    y = w.add("Add", "sample", w.add("ReduceSum", "places", keepdims=0))
    proto = w.model({"places": ("float32", [1, 1, 7, 2])}, (y, "float32", None), 20)
    onnx.save(
        proto, tmp_path / "m.onnx", save_as_external_data=True, location="data", size_threshold=100
    )
    monkeypatch.setattr(external_data, "read_data", lambda tensor, origin: read.append(tensor.name))
    rewritten(onnx.load(tmp_path / "m.onnx", load_external_data=False), folder=tmp_path)
    assert not read


def unfold_and_nodes(count):
    """A model of an unfold, and of so many nodes after it."""
    proto = unfold(after=None)
    source = "y"
    for k in range(count):
        proto.graph.node.append(helper.make_node("Relu", [source], [f"relu_{k}"]))
        source = f"relu_{k}"
    proto.graph.output[0].name = source
    del proto.graph.value_info[:]
    return proto


def test_time_grows_with_the_number_of_nodes():
    def prepare(count):
        proto = unfold_and_nodes(count)
        return lambda: rewritten(proto)

    assert_linear(prepare, 1_000)
    _, findings = rewritten(unfold_and_nodes(500))
    assert [f.operator for f in findings] == ["Im2Col"]


def test_what_lacks_a_pattern_costs_little(monkeypatch):
    """A model without the types of nodes that patterns need isn't copied; no shape of one with them
    is worked out.
    """
    asked = []
    monkeypatch.setattr("onnx_ops.rewriting.graph.type_of", lambda graph, name: asked.append(name))
    relu = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 20]>
    main (float[n, 6] x) => (float[6, n] y) { z = Relu (x) y = Transpose (z) }""")
    assert rewritten(relu)[0] is relu
    halves = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 20]>
    main (float[n, 6] x) => (float[2, n, 6] y)
    <int64[1] zero = {0}, int64[1] one = {1}, int64[1] three = {3}, int64[1] six = {6},
        int64[3] sizes = {2, -1, 6}> {
        left = Slice (x, zero, three, one)
        right = Slice (x, three, six, one)
        turned = Concat <axis: int = 1> (right, left)
        doubled = Concat <axis: int = 0> (turned, x)
        y = Reshape (doubled, sizes)
    }""")
    assert rewritten(halves) == (halves, [])
    assert not asked


SOURCES = {"path": lambda path: path, "text": str, "bytes": lambda path: path.read_bytes()}


@pytest.mark.parametrize("source", SOURCES)
def test_models_are_optimized_and_lowered_from_paths_and_bytes(source, tmp_path):
    """As a session takes them, also where nothing matches."""
    relu = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 20]>
    main (float[n, 6] x) => (float[n, 6] y) { y = Relu (x) }""")
    path = tmp_path / "model.onnx"
    for proto in (unfold(), relu):
        onnx.save(proto, path)
        assert onnx_ops.optimize(SOURCES[source](path)) == onnx_ops.optimize(proto)
    onnx.save(model("", "Col2Im", CASES[0].inputs("float32"), CASES[0].attributes), path)
    lowered = onnx_ops.lower(SOURCES[source](path))
    assert [node.op_type for node in lowered.graph.node if node.domain] == ["ai_onnx_Col2Im"]


def test_a_path_is_where_external_data_are_found(tmp_path):
    """The weights stay in their file; constants in it that state sizes are known."""
    proto, path = unfold(), tmp_path / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="data", size_threshold=0)
    optimized = onnx_ops.optimize(path)
    assert "Im2Col" in [node.op_type for node in optimized.graph.node]
    content = onnx.load(path, load_external_data=False).SerializeToString()
    assert "Im2Col" not in [node.op_type for node in onnx_ops.optimize(content).graph.node]


@pytest.mark.parametrize("function", [onnx_ops.optimize, onnx_ops.lower])
def test_models_in_onnxruntimes_own_format_are_refused(function, tmp_path):
    path = tmp_path / "model.ort"
    path.write_bytes(b"\0\0\0\0ORTM")
    for source, value in ((path, str(path)), (path.read_bytes(), "bytes")):
        with pytest.raises(onnx_ops.OpError, match="own format") as caught:
            function(source)
        assert (caught.value.argument, caught.value.value) == ("model", value)
