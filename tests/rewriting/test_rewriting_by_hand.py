"""optimize() finds bilinear sampling and deformable convolution that are written by hand, and
leaves what differs.
"""

import numpy as np
import onnx
import pytest
from support.backends import ORT_VERSION
from support.by_hand import GATHERS, OUTSIDE, PLACES, SAMPLERS, SIZES, deform_conv, sampler
from support.rewriting import compare, near_miss, ours
from support.selection import by_type, few, in_turn, long_unless, of_names, some_of
from support.written import feeds

import onnx_ops
from onnx_ops.rewriting import rewritten, trial
from onnx_ops.rewriting.finding import NearMiss
from onnx_ops.rewriting.graph import graphs_of
from onnx_ops.rewriting.models import Model
from onnx_ops.rewriting.search import search

# What tests of other forms have, too, or what is rare.
OFTEN = {"batch", "channels", "out", "first", "size", "is_open", "opset", "swapped"}
# Cases with a dtype don't stand for others, since only the long run has them.
FEW = few(
    {name: edits for name, edits in SAMPLERS.items() if not {"dtype", *OFTEN} & {*edits}},
    together=1,
)


@pytest.mark.parametrize("name", by_type(of_names(SAMPLERS, FEW)))
def test_sampler(name):
    edits = SAMPLERS[name]
    proto = sampler(**edits)
    nodes, (finding,) = compare(
        proto, SIZES, alone="dtype" not in edits
    )  # it has no GridSample of float64
    is_grid = edits.get("places", "corners") in ("corners", "edges") and not edits.get("swapped")
    operator, casts = "GridSample" if is_grid else "ComputedGridSample", []
    if edits.get("dtype") == "float16" and not is_grid:
        casts = ["Cast"]  # of the places, which are sources
    assert (finding.operator, nodes, finding.untried) == (operator, [*casts, operator], None)


ARRANGED = {
    "channels last": ({"last": True}, ["Transpose"]),
    "channels last, in planes": ({"last": True, "flat": False}, ["Transpose"]),
    "points in one axis": ({"joined": True}, ["Reshape"]),
    "points in one axis, channels last": ({"last": True, "joined": True}, ["Transpose", "Reshape"]),
    "points in one axis, open sizes": ({"joined": True, "is_open": True}, ["Reshape"]),
    "one image, channels last": (
        {"last": True, "joined": True, "batch": 1}, ["Reshape", "Transpose", "Reshape"]
    ),
}  # fmt: skip


# Of samplers in planes test_sampler has one.
FEW_ARRANGED = few(
    {name: edits for name, (edits, _) in ARRANGED.items() if "flat" not in edits}, together=1
)


@pytest.mark.parametrize(("name", "outside"), of_names(in_turn(ARRANGED, OUTSIDE), FEW_ARRANGED))
def test_samples_in_another_order(name, outside):
    """Points in one axis are those of the grid's two."""
    edits, other_nodes = ARRANGED[name]
    nodes, (finding,) = compare(sampler(gather="GatherND", outside=outside, **edits), SIZES)
    assert (nodes, finding.untried) == (["GridSample", *other_nodes], None)


@pytest.mark.parametrize("places", ["pixels", "flow"])
def test_an_axis_with_two_sizes_is_left(places, monkeypatch):
    """A Reshape states a number for an axis of open size. Nothing is run that could tell."""
    monkeypatch.setattr(trial, "SECONDS", 0)
    proto = sampler(places=places, outside="border", batch=2)
    proto.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "m"
    (reason, *others) = near_miss(proto, {"m": 2})
    assert "an axis has two sizes" in reason
    assert {*others} <= {reason}


HIDDEN = {
    **{" ".join(setting): dict(zip(("hidden", "gather", "places"), setting, strict=True))
       for setting in [*zip(("And", "Mul", "And"), GATHERS, PLACES[:3], strict=True),
           ("Mul", "GatherND", "flow")]},
    "factor first": {"first": True}, "lerp": {"form": "lerp"}, "open sizes": {"is_open": True},
    "float16": {"dtype": "float16"}, "float64": {"dtype": "float64"},
    "one pixel earlier": {"end": 1},
    "channels last": {"last": True, "gather": "GatherND"}, "one channel": {"channels": 1},
    "opset 12": {"opset": 12},
    "not flat": {"flat": False, "gather": "Gather"}, "one row": {"size": (1, 12)},
    **{f"by {how}": {"hidden": how, "places": "flow"} for how in ("Where", "Sub", "Cast")},
}  # fmt: skip


# By comparisons and by indices; the other options are those of a sampler that isn't hidden.
FEW_HIDDEN = ("one pixel earlier", "by Cast")


@pytest.mark.parametrize("name", of_names(HIDDEN, FEW_HIDDEN))
def test_a_sampler_that_is_hidden_outside(name):
    """The program asks for a pixel far outside where the factor is 0; of an image of one row all
    pixels are hidden.
    """
    edits = {"hidden": "And", "outside": "inside", "places": "pixels"} | HIDDEN[name]
    nodes, (finding,) = compare(sampler(**edits), SIZES)
    assert (finding.operator, finding.untried, "Mul" in nodes) == (
        "ComputedGridSample",
        None,
        False,
    )


@pytest.mark.long
def test_a_sampler_that_is_moved_and_then_hidden():
    """The sum and what moves it are no near misses."""
    proto = sampler(
        hidden="And", outside="inside", places="pixels", gather="GatherND", flat=False, out=(5, 5)
    )
    (hide,) = [node for node in proto.graph.node if node.output[0] == proto.graph.output[0].name]
    moves = [
        onnx.helper.make_node("Transpose", [hide.input[0]], ["moved"], perm=[0, 1, 3, 2]),
        # Fmt: skip.
        onnx.helper.make_node("Transpose", [hide.input[1]], ["moved mask"], perm=[0, 1, 3, 2]),
    ]
    hide.input[:] = ["moved", "moved mask"]
    proto.graph.node.remove(hide)
    proto.graph.node.extend([*moves, hide])
    nodes, (finding,) = compare(proto)
    assert (nodes, finding.operator) == (["ComputedGridSample"], "ComputedGridSample")


@pytest.mark.long
def test_a_sampler_that_is_multiplied_by_a_pixel():
    """The first factor moves what is gathered, as a sum does, and isn't one."""

    def multiplied(w, y):
        tap = next(node.output[0] for node in w.nodes if node.op_type == "GatherND")
        return w.add("Mul", w.add("Transpose", tap, perm=[0, 2, 1]), y)

    nodes, (finding,) = compare(sampler(multiplied, gather="GatherND"), SIZES)
    assert (finding.operator, nodes.count("Mul") > 0) == ("GridSample", True)


NOT_HIDDEN = {
    "by a factor that is 0 or 2": {"scale": 2}, "along one axis": {"covers": 1},
    "one pixel later": {"end": -1},
    "in a sliver": {"hidden": "Or"},
}  # fmt: skip


@pytest.mark.parametrize("name", of_names(NOT_HIDDEN, ["one pixel later"]))
def test_a_sampler_that_is_not_hidden_outside(name):
    edits = {
        "hidden": "And",
        "outside": "inside",
        "places": "pixels",
        "size": (9, 12),
    } | NOT_HIDDEN[name]
    (reason,) = near_miss(sampler(**edits))
    assert reason == IS_NO_SAMPLER


@pytest.mark.parametrize(
    ("places", "outside", "size"), some_of(PLACES[:3], OUTSIDE, [(1, 12), (9, 1), (1, 1)]), ids=str
)
def test_a_sampler_of_open_sizes_that_turn_out_to_be_one(places, outside, size):
    nodes, _ = compare(
        sampler(places=places, outside=outside, is_open=True),
        SIZES | dict(zip("HW", size, strict=True)),
    )
    assert nodes == ["ComputedGridSample" if places == "pixels" else "GridSample"]


@pytest.mark.long  # as ONNX Runtime's own GridSample in test_sampler
def test_a_sampler_is_what_torch_gives():
    torch = pytest.importorskip("torch")
    for k, corners in enumerate(("edges", "corners")):
        proto = sampler(places=corners)
        inputs = feeds(proto)
        expected = torch.nn.functional.grid_sample(
            *map(torch.from_numpy, inputs.values()), align_corners=bool(k)
        )
        (y,) = ours(onnx_ops.optimize(proto)).run(None, inputs)
        np.testing.assert_allclose(y, expected.numpy(), 1e-4, 1e-4)


IS_NO_SAMPLER = (
    "it isn't linear or nearest interpolation with zeros or the border's pixels "
    "outside of the image"
)
NO_SAMPLERS = {
    "a limit that is one pixel less": ({"high": -1}, IS_NO_SAMPLER),
    "a limit that is one pixel more": ({"high": 1}, "it may read outside of"),
    "a first pixel that is left out": ({"low": 1}, IS_NO_SAMPLER),
    "a mask that ends one pixel earlier": ({"outside": "mask", "high": -1}, IS_NO_SAMPLER),
    "a mask that begins one pixel later": ({"outside": "mask", "low": 1}, IS_NO_SAMPLER),
    "a border that ends one pixel earlier": ({"outside": "border", "high": -1}, IS_NO_SAMPLER),
    "one other weight": ({"factor": 1.01}, IS_NO_SAMPLER),
    "one other weight of a lerp": ({"factor": 1.01, "form": "lerp"}, IS_NO_SAMPLER),
    "weights that don't add up to 1": ({"one": 1.01}, IS_NO_SAMPLER),
    "the pixel after the next one": ({"next": 2}, IS_NO_SAMPLER),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "size"),
    of_names(
        in_turn(
            [name for name, (edits, _) in NO_SAMPLERS.items() if edits.keys() & {"factor", "one"}],
            [(1, 12), (9, 1), (1, 1)],
        ),
        ["one other weight"],
    ),
    ids=str,
)
def test_no_sampler_of_one_row_or_column(name, size):
    edits, expected = NO_SAMPLERS[name]
    (reason,) = near_miss(sampler(places="pixels", outside="mask", size=size, **edits))
    assert reason.startswith(expected)


# Of each reason.
FEW_NO_SAMPLERS = ("a limit that is one pixel more", "the pixel after the next one")


@pytest.mark.parametrize(
    ("places", "name"), of_names(in_turn(PLACES[:3], NO_SAMPLERS, every=9), FEW_NO_SAMPLERS)
)
def test_no_sampler(name, places):
    edits, expected = NO_SAMPLERS[name]
    (reason,) = near_miss(sampler(places=places, **edits), runs="more" not in name)
    assert reason.startswith(expected)


def channels_last(size, out):
    """A sampler of an image [N, H, W, C]."""
    proto = sampler(
        gather="GatherND", last=True, outside="mask", size=size, out=out, batch=2, channels=3
    )
    for turn in [node for node in proto.graph.node if node.op_type == "Transpose"]:
        turn.op_type = "Identity"
        del turn.attribute[:]
    for dim, length in zip(
        proto.graph.input[0].type.tensor_type.shape.dim, (2, *size, 3), strict=True
    ):
        dim.dim_value = length
    return proto


def test_a_sampler_of_channels_last():
    nodes, (finding,) = compare(channels_last((9, 12), (7, 8)))
    assert (nodes, finding.untried) == (["Transpose", "GridSample", "Transpose"], None)


def test_few_samples_of_channels_last():
    """The whole image would be transposed for a few of its pixels."""
    (reason,) = near_miss(channels_last((40, 50), (2, 3)))
    assert reason == "transposing its image would take longer than gathering its pixels"


@pytest.mark.parametrize("places", of_names(PLACES[:3], ["corners"]))
def test_a_sampler_of_what_is_padded_by_ones(places):
    """It is one with the border's pixels outside, of the padded image."""
    nodes, (finding,) = compare(sampler(places=places, pad_value=1), SIZES)
    assert (nodes, finding.untried) == (["Pad", "ComputedGridSample"], None)


@pytest.mark.parametrize("make", [sampler, long_unless(False, deform_conv)])
def test_weights_that_divide_by_zero(make):
    """It isn't reported as a warning."""
    proto = make()
    producers = {node.output[0]: node for node in proto.graph.node}
    is_weight = lambda name: name in producers and producers[name].op_type in ("Sub", "Slice")
    for node in proto.graph.node:
        if node.op_type == "Mul" and all(map(is_weight, node.input)):
            node.op_type = "Div"
    assert IS_NO_SAMPLER in near_miss(proto)


def test_a_sampler_with_another_scale_is_sampled_at_pixels():
    """Coordinates that aren't those of GridSample become steps of the program."""
    proto = sampler(places="corners", size=(9, 12))
    size = next(t for t in proto.graph.initializer if onnx.numpy_helper.to_array(t).tolist() == 2.0)
    size.CopyFrom(onnx.numpy_helper.from_array(np.array(2.5, np.float32), size.name))
    (node,), _ = compare(proto)
    assert node == "ComputedGridSample"


DEFORMS = {
    "as it is": {}, "no mask": {"mask": False}, "no bias": {"bias": False},
    "opset 12": {"opset": 12},
    "groups": {"group": 2, "offset_group": 3}, "strides": {"strides": (2, 1), "dilations": (1, 2)},
    "no pads": {"pads": (0, 0)}, "other pads": {"pads": (0, 3)},
    "a point": {"kernel": (1, 1), "pads": (0, 0)},
    "a row of blocks": {"size": (2, 8), "kernel": (4, 3), "pads": (1, 0)},
    "opset 19": {"opset": 19},
    "one image": {"batch": 1}, "sums of sums": {"sum": "Add"},
    "one channel": {"channels": 1}, "large": {"kernel": (7, 7), "pads": (3, 3)},
    "float16": {"dtype": "float16"},
    "in plain PyTorch": {"module": True},
    "in plain PyTorch, groups": {"module": True, "offset_group": 2},
    "attributes of the default exporter": {"conv": {"auto_pad": "NOTSET", "pads": [0] * 4,
            "dilations": [1, 1]}},
}  # fmt: skip


FEW_DEFORMS = ("groups", "strides", "in plain PyTorch, groups")


@pytest.mark.parametrize(
    ("gather", "name"), by_type(of_names(in_turn(GATHERS[::2], DEFORMS), FEW_DEFORMS))
)
def test_deform_conv(gather, name):
    proto = deform_conv(gather=gather, **DEFORMS[name])
    nodes, (finding,) = compare(proto, alone=ORT_VERSION >= (1, 25))  # before, it has no DeformConv
    assert (finding.operator, finding.untried) == ("DeformConv", None)
    assert nodes == ["DeformConv"]


@pytest.mark.long  # FEW_DEFORMS has such a module
@pytest.mark.parametrize("groups", [1, 3])
def test_offsets_in_another_order_are_transposed(groups):
    """All rows before all columns, as modules in plain PyTorch have them."""
    proto = deform_conv(
        offset=[2, groups, 2, 6, 7, 8], turned=[0, 1, 3, 2, 4, 5], size=(7, 7), offset_group=groups
    )
    nodes, (finding,) = compare(proto, alone=ORT_VERSION >= (1, 25))
    assert (nodes, finding.untried) == (["Reshape", "Transpose", "Reshape", "DeformConv"], None)


TRANSPOSED = {
    "positions in another order": ({"perm": [0, 1, 5, 2, 4, 3], "size": (7, 7), "kernel": (3, 3)},
        "weights"),
    "rows and columns of pixels swapped": (
        {"offset": [2, 1, 6, 2, 7, 7], "turned": [0, 1, 2, 3, 5, 4], "size": (7, 6),
            "kernel": (3, 2)}, "offsets"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("gather", "name"), in_turn(GATHERS[::2], TRANSPOSED))
def test_deform_conv_of_what_is_transposed(gather, name):
    edits, transposed = TRANSPOSED[name]
    nodes, (finding,) = compare(deform_conv(gather=gather, **edits), alone=ORT_VERSION >= (1, 25))
    assert (finding.operator, finding.untried) == ("DeformConv", None)
    before = ["Reshape", "Transpose", "Reshape", "DeformConv"]
    assert nodes == (["DeformConv", "Transpose"] if transposed == "weights" else before)


@pytest.mark.long
def test_deform_conv_before_another_convolution():
    proto = deform_conv(bias=False)
    weight = onnx.numpy_helper.from_array(np.ones((4, 4, 1, 1), np.float32), "next weight")
    proto.graph.initializer.append(weight)
    proto.graph.node.append(
        onnx.helper.make_node("Conv", [proto.graph.output[0].name, weight.name], ["next"])
    )
    proto.graph.output[0].name = "next"
    nodes, (finding,) = compare(proto, alone=ORT_VERSION >= (1, 25))
    assert (nodes, finding.untried) == (["DeformConv", "Conv"], None)


@pytest.mark.parametrize("make", [sampler, long_unless(False, deform_conv)])
def test_bfloat16(make):
    """ONNX Runtime has no kernels for its nodes."""
    optimized, (finding,) = rewritten(make(dtype="bfloat16"))
    assert (finding.reason, finding.untried) == (None, None)
    assert len(optimized.graph.node) == 1


def test_deform_conv_is_of_ai_onnx():
    """ONNX Runtime alone runs it."""
    optimized = onnx_ops.optimize(deform_conv(opset=17))
    assert [(i.domain, i.version) for i in optimized.opset_import] == [("", 19)]


BESIDE = {  # {name: (opset, a node beside the convolution, the domain of the DeformConv)}
    "Softmax over several axes": (12, ("Softmax", {"axis": 1}), "onnx_ops"),
    "Softmax": (13, ("Softmax", {"axis": 1}), ""),
    "Split in equal parts": (17, ("Split", {"axis": 1}), "onnx_ops"),
    "ReduceMean, with axes in an attribute": (17, ("ReduceMean", {"axes": [1]}), "onnx_ops"),
    "ReduceMean": (17, ("ReduceMean", {}), ""),
    "Relu": (12, ("Relu", {}), ""),
    "MaxPool that rounds up": (12, ("MaxPool", {"kernel_shape": [2, 2], "ceil_mode": 1}), ""),
    "AveragePool that rounds up": (12, ("AveragePool", {"kernel_shape": [2, 2], "ceil_mode": 1}),
        "onnx_ops"),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    of_names(
        BESIDE,
        [
            "Softmax over several axes",
            "MaxPool that rounds up",
        ],
    ),
)
def test_deform_conv_beside_nodes_that_may_mean_something_else(name):
    """The model imports a newer version only if they don't."""
    opset, (op_type, attributes), domain = BESIDE[name]
    proto = deform_conv(opset=opset)
    proto.graph.node.append(
        onnx.helper.make_node(op_type, [proto.graph.output[0].name], ["beside"], **attributes)
    )
    proto.graph.output.append(onnx.helper.make_tensor_value_info("beside", 1, None))
    optimized, (finding,) = rewritten(proto)
    assert [
        n.domain for n in optimized.graph.node if n.op_type == finding.operator == "DeformConv"
    ] == [domain]
    versions = {i.domain: i.version for i in optimized.opset_import}
    assert versions == ({"": 19} if domain == "" else {"": opset, "onnx_ops": 1})
    inputs = feeds(proto)
    for a, b in zip(ours(proto).run(None, inputs), ours(optimized).run(None, inputs), strict=True):
        np.testing.assert_allclose(a, b, 1e-3, 1e-4)


def test_a_convolution_that_stays_leaves_the_version(monkeypatch):
    """The model imports a newer one only with the DeformConv."""
    model = Model(deform_conv(opset=17, bias=False))
    (graph,) = graphs_of(model)

    def refuse(*arguments):
        raise NearMiss("another result")

    monkeypatch.setattr(trial, "tried_out", refuse)
    reasons = [finding.reason for finding in search(graph) if finding.pattern == "deform_conv2d"]
    assert reasons == ["another result"]
    assert [(i.domain, i.version) for i in model.proto.opset_import] == [("", 17)]


NO_DEFORMS = {
    "a limit that is one pixel less": ({"high": -1, "pads": (0, 0), "kernel": (4, 4)}, None),
    "weights that don't add up to 1": ({"one": 1.01}, IS_NO_SAMPLER),
    "one place that isn't regular": ({"step": 1}, "its places are not those of a regular grid"),
    "one place between pixels": ({"step": 0.5}, "its places are not those of a regular grid"),
    "places that begin inside": ({"shift": 2}, "its first place is pixel 1, inside of the image"),
    "places that begin between pixels": ({"shift": 0.5}, "its places are not those of a regular "
                                                         "grid"),
    "a larger output than padding makes": ({"shift": -9}, None),
    "a product that is no mask": (
        {"after": lambda w, y: w.add("Mul", y, w.add("Sigmoid", "more")),
            "inputs": {"more": ("float32", [1])}},
        "its pixels are multiplied by 2 values, instead of a mask",
    ),
}  # fmt: skip


EACH_REASON = {  # that isn't also one of test_no_sampler
    reason: name for name, (_, reason) in NO_DEFORMS.items() if reason not in (None, IS_NO_SAMPLER)
}.values()


@pytest.mark.parametrize(
    ("gather", "name"), of_names(in_turn(GATHERS[::2], NO_DEFORMS), EACH_REASON)
)
def test_no_deform_conv(name, gather):
    """Its pixels may be sampled by hand all the same."""
    edits, expected = NO_DEFORMS[name]
    reasons = near_miss(deform_conv(gather=gather, **edits), also=("ComputedGridSample",))
    assert expected is None or any(reason.startswith(expected) for reason in reasons)


def test_sizes_as_single_numbers_are_not_drawn_when_it_is_tried_out(monkeypatch):
    """Coordinates that were multiplied by a number at random would be outside of the image nearly
    everywhere.
    """
    drawn, run = [], trial.run_onnx_runtime
    monkeypatch.setattr(trial, "run_onnx_runtime", lambda proto, feeds, name: (
        drawn.append({*feeds}), run(proto, feeds, name))[1])  # fmt: skip
    proto = sampler(is_open=True)
    for node in proto.graph.node:
        if (
            node.op_type == "Div"
        ):  # then coordinates are not in [-1, 1], and a program computes with the sizes
            node.op_type = "Mul"
    _, (finding,) = rewritten(proto)
    assert (finding.operator, finding.untried) == ("ComputedGridSample", None)
    assert drawn
    assert all(names == {"image", "grid"} for names in drawn)


def test_what_is_large_is_not_tried_out():
    _, (finding,) = rewritten(deform_conv(size=(96, 96), channels=12, kernel=(3, 3)))
    assert finding.operator == "DeformConv"
    assert finding.untried.startswith("it needs some ")


@pytest.mark.parametrize("make", [sampler, long_unless(False, deform_conv)])
def test_what_differs_when_it_is_tried_out_stays(make, monkeypatch):
    """A pattern that is wrong is found out by running both."""
    monkeypatch.setattr(trial, "run_reference", lambda proto, feeds, name: np.float32(0))
    reasons = near_miss(make())
    assert any(reason.startswith("run side by side, the results differ by ") for reason in reasons)
