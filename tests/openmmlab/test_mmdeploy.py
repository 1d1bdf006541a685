"""What mmcv and mmdeploy export, apart from what test_roi_align.py has: suppression, running
extremes, features.

Most of these operators have several outputs, or outputs of which only a bound is known.
"""

import itertools
from fractions import Fraction

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from support.backends import BACKENDS, quiet, run_session, uncompiled_outputs
from support.cases import CORNER_POOL, FEATURE_ALIGN, GRID_SAMPLER, OTHERS, Case, parsed
from support.commands import call_json, saved, sentences
from support.detector import plainly_kept, rotated_detector, turned_boxes
from support.selection import long_unless
from support.several_outputs import (
    BATCH,
    CASES,
    NUMBERS,
    ROTATED,
    SOFT,
    UPRIGHT_BATCH,
    f32,
    scores,
    upright_boxes,
)

import onnx_ops
from onnx_ops.arrays import functions
from onnx_ops.declaration import plain
from onnx_ops.native.execute import specialization_of

NAN, INF = np.nan, np.inf


def call(name, *inputs, **attributes):
    """Call one of the OTHERS by its name."""
    (operator,) = (o for o in OTHERS if o.name == name)
    return functions.call(operator, *inputs, **attributes)


LONG = 10_000  # elements along an axis: the references of cummax and cummin take a step for each


def is_long(case):
    return max(case[0].shape) >= LONG


@pytest.mark.parametrize("function", OTHERS, ids=lambda o: o.title)
def test_all_ways_agree(function):
    cases = [case for case in CASES[function.name] if not is_long(case)]
    assert onnx_ops.check(function, cases) > 20


@pytest.mark.long
@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_all_ways_agree_along_a_long_axis(name):
    (function,) = (o for o in OTHERS if o.name == name)
    assert onnx_ops.check(function, filter(is_long, CASES[name])) > 5


@pytest.mark.parametrize("function", OTHERS, ids=lambda o: o.title)
def test_kernels_as_plain_python(function):
    """As tests/arrays/test_uncompiled.py has it, which runs operators with one output."""
    for case in CASES[function.name]:
        *inputs, attributes = case if isinstance(case[-1], dict) else (*case, {})
        if sum(array.size for array in inputs) < 2500:
            values = function.values(attributes)
            with np.errstate(all="ignore"):
                outputs = uncompiled_outputs(function, inputs, attributes)
                expected = plain.compute(
                    function, values, inputs, specialization_of(function, values, inputs).types
                )
            assert [(a.dtype, a.tolist()) for a in outputs] == [
                (a.dtype, a.tolist()) for a in expected
            ]


@pytest.mark.parametrize(
    "function",
    [long_unless(o.name in ("cummax", "NMSRotated"), o) for o in OTHERS],
    ids=lambda o: o.title,
)
def test_what_pytorch_checks(function):
    torch = pytest.importorskip("torch")
    from onnx_ops.export.torch_operators import torch_operator

    *arrays, attributes = [*CASES[function.name][0], {}][: len(function.inputs) + 1]
    torch.library.opcheck(
        torch_operator(function), [torch.from_numpy(a) for a in arrays], attributes
    )


# Non-maximum suppression


def overlap_of(a, b):
    """The overlap of two turned boxes."""
    shapely = pytest.importorskip("shapely")
    area, other_area = (
        shapely.affinity.translate(
            shapely.affinity.rotate(
                shapely.box(-w / 2, -h / 2, w / 2, h / 2), angle, (0, 0), use_radians=True
            ),
            x,
            y,
        )
        for x, y, w, h, angle in np.float64([a, b])
    )
    common = area.intersection(other_area).area
    return common / (area.area + other_area.area - common)


def are_both_kept(boxes, threshold):
    kept = call(
        "NMSRotated", boxes[None], f32([[[0.9, 0.8]]]), iou_threshold=threshold, score_threshold=0
    )
    assert kept[0].tolist() == [0, 0, 0]
    return len(kept) == 2


def assert_overlap(boxes, expected):
    """Assert that two boxes have this overlap, up to 1e-5, by what suppression with a little more
    or less keeps.
    """
    assert are_both_kept(boxes, expected + 1e-5), boxes
    assert not are_both_kept(boxes, expected - 1e-5), boxes


def test_overlaps_are_those_of_shapely():
    for seed in range(300):
        boxes = turned_boxes(2, size=15, seed=seed)
        expected = overlap_of(*boxes)
        if expected > 1e-4:
            assert_overlap(boxes, expected)
        else:
            assert are_both_kept(boxes, 1e-3)


OVERLAPS = {
    "crossing": ([10, 10, 8, 4, 0], [10, 10, 8, 4, np.pi / 2], 16 / 48),
    "inside": ([0, 0, 8, 4, 0.3], [0, 0, 4, 2, 0.3], 8 / 32),
    "half": ([40, 40, 2, 1, 0], [40, 40, 1, 1, 0], 0.5),
    "octagon": ([5, 5, 2, 2, 0.7], [5, 5, 2, 2, 0.7 + np.pi / 4],
        8 * (2**0.5 - 1) / (8 - 8 * (2**0.5 - 1))),
    "half a turn": ([5, 5, 7, 3, 0.7], [5, 5, 7, 3, 0.7 + np.pi], 1),
    "sides swapped": (
        [191.45703, 5.996043, 80.185547, 107.283424, 0.38785487],
        [191.45703, 5.996043, 107.283424, 80.185547, 1.9586513], 1,
    ),
    "far from 0": ([1e6, 1e6, 8, 4, 0], [1e6 + 4, 1e6, 8, 4, 0], 1 / 3),
    "triangle": ([0, 0, 2, 2, 0], [2, 1, 2, 2, np.pi / 4], None),
}  # fmt: skip


@pytest.mark.parametrize("name", OVERLAPS)
def test_overlaps_that_are_known(name):
    a, b, expected = OVERLAPS[name]
    assert_overlap(f32([a, b]), overlap_of(a, b) if expected is None else expected)
    assert_overlap(f32([b, a]), overlap_of(a, b) if expected is None else expected)


def test_the_threshold_itself_suppresses_nothing():
    assert are_both_kept(f32([OVERLAPS["half"][0], OVERLAPS["half"][1]]), 0.5)
    assert are_both_kept(f32([[0, 0, 1, 1, 0]] * 2), 1)


NEARLY = [1 + 1e-6, 1 - 1e-6, 1 + 3e-7]


def test_nearly_the_same_boxes_suppress_each_other():
    """mmcv's and mmdeploy's float32 arithmetic lost corners of such boxes, and kept duplicates."""
    for seed, factors in itertools.product(range(100), itertools.product(NEARLY, repeat=2)):
        (box,) = turned_boxes(1, seed=seed)
        smaller = box * f32([factors[0], 1, factors[1], 1, 1])
        assert not are_both_kept(np.stack([box, smaller]), 0.99), (box, smaller)


NO_AREA = [
    [NAN, 0, 1, 1, 0], [0, 0, NAN, 1, 0], [0, 0, 1, 1, NAN], [INF, 0, 1, 1, 0], [0, 0, INF, 1, 0],
    [0, 0, 1, 1, INF],
    [0, 0, 0, 0, 0], [3e38, 3e38, 3e38, 3e38, 1],
]  # fmt: skip


@pytest.mark.parametrize("box", NO_AREA)
def test_boxes_without_an_area_suppress_only_what_is_sure(box):
    """An overlap that is NaN suppresses nothing."""
    boxes = f32([[box, box, [0, 0, 2, 2, 0]]])
    kept = call("NMSRotated", boxes, f32([[[0.9, 0.8, 0.7]]]), iou_threshold=0.5, score_threshold=0)
    assert [0, 0, 0] in kept.tolist()
    assert [0, 0, 2] in kept.tolist()


def test_rotated_suppression_is_greedy():
    """Boxes that a low score drops anyway do not matter to the others."""
    rows, s = [], scores(2, 3, 40)
    for n, k in np.ndindex(2, 3):
        kept, _ = plainly_kept(BATCH[n], s[n, k], overlap_of, lambda v: v > 0.3)
        rows += [[n, k, c] for c in kept if s[n, k, c] > np.float32(0.1)]
    assert call("NMSRotated", BATCH, s, **ROTATED).tolist() == rows
    assert 20 < len(rows) < 200


def upright_overlap(a, b, offset=0, more=0):
    """In rational numbers."""
    (l, t, r, d), (u, v, w, z) = ([Fraction(float(e)) for e in box] for box in (a, b))
    common = max(min(r, w) - max(l, u) + offset, 0) * max(min(d, z) - max(t, v) + offset, 0)
    areas = (r - l + offset) * (d - t + offset) + (w - u + offset) * (z - v + offset)
    return common / (areas - common + more)


def test_match_names_what_each_box_suppresses():
    rows, s = [], scores(2, 3, 40)
    for n, k in np.ndindex(2, 3):
        kept, suppressor = plainly_kept(
            UPRIGHT_BATCH[n], s[n, k], upright_overlap, lambda v: v >= 0.3
        )
        order = sorted(suppressor, key=lambda c: (-s[n, k, c], c))
        rows += [
            [n, k, c, d] for c in kept if s[n, k,
                c] > np.float32(0.2) for d in order if suppressor[d] == c
        ]  # fmt: skip
    assert call("NMSMatch", UPRIGHT_BATCH, s, f32([0.3]), f32([0.2])).tolist() == rows
    assert len(rows) > 50


@pytest.mark.parametrize("offset", [0, 1])
def test_plain_suppression_is_greedy(offset):
    boxes, s = upright_boxes(60).round(), scores(60)
    kept, _ = plainly_kept(
        boxes, s, lambda a, b: upright_overlap(a, b, offset), lambda v: v > np.float32(0.3)
    )
    assert call("NonMaxSuppression", boxes, s, iou_threshold=0.3, offset=offset).tolist() == kept


def test_onnxruntime_keeps_the_same():
    """Its operator of ai.onnx has the same overlap without offset; equal scores come in an order of
    their own there.
    """
    boxes, s = upright_boxes(200, 100), np.random.default_rng(0).permutation(200).astype(np.float32)
    text = """(float[1, B, 4] boxes, float[1, 1, B] scores) => (int64[S, 3] kept) {
        kept = NonMaxSuppression (boxes, scores, most, threshold)
    }"""
    proto = parsed(text, most=np.array([1000]), threshold=f32([0.4]))
    session = ort.InferenceSession(proto.SerializeToString(), quiet())
    expected = run_session(session, [boxes[None], s[None, None]])[:, 2]
    assert (
        call("NonMaxSuppression", boxes, s, iou_threshold=0.4, offset=0).tolist()
        == expected.tolist()
    )


# Three boxes of width 1: the second one overlaps with both others by one third.
CHAIN = f32([[0, 0, 1, 1], [0.5, 0, 1.5, 1], [1, 0, 2, 1]])


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (0, [(0, 0.9), (2, 0.7)]),
        (1, [(0, 0.9), (2, 0.7), (1, 0.8 * (2 / 3) * (2 / 3))]),
        (2, [(0, 0.9), (2, 0.7), (1, 0.8 * np.exp(-1 / 9 / 0.5) ** 2)]),
    ],
)
def test_scores_decay(method, expected):
    dets, inds = call(
        "SoftNonMaxSuppression", CHAIN, f32([0.9, 0.8, 0.7]), **{**SOFT, "method": method}
    )
    assert inds.tolist() == [k for k, _ in expected]
    np.testing.assert_array_equal(dets[:, :4], CHAIN[inds])
    np.testing.assert_allclose(dets[:, 4], [score for _, score in expected], rtol=1e-6)


def test_the_first_box_is_not_compared_with_min_score():
    """The others are, even where nothing overlaps with them."""
    far = CHAIN + f32([[0], [10], [20]])
    _, inds = call("SoftNonMaxSuppression", far, f32([0.1, 0.3, 0.2]), **{**SOFT, "min_score": 0.5})
    assert inds.tolist() == [1]


# Running extremes


@pytest.mark.parametrize("dim", range(-3, 3))
@pytest.mark.parametrize(("name", "extreme"), [("cummax", np.maximum), ("cummin", np.minimum)])
def test_running_extremes(name, extreme, dim):
    values, indices = call(name, NUMBERS, dim=dim)
    np.testing.assert_array_equal(values, extreme.accumulate(NUMBERS, dim))
    np.testing.assert_array_equal(np.take_along_axis(NUMBERS, indices, dim), values)
    x, positions = np.moveaxis(NUMBERS, dim, 0), np.moveaxis(indices, dim, 0)
    for k in range(len(x)):  # of equal ones the last
        at_end = np.where(
            x[: k + 1] == np.moveaxis(values, dim, 0)[k], np.arange(k + 1)[:, None, None], -1
        )
        np.testing.assert_array_equal(positions[k], at_end.max(axis=0))


@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_nan_replaces_nothing(name):
    values, indices = call(name, f32([1, NAN, 1, NAN]), dim=0)
    assert (values.tolist(), indices.tolist()) == ([1] * 4, [0, 0, 2, 2])
    values, indices = call(name, f32([NAN, 1, INF]), dim=0)
    assert (np.isnan(values).all(), indices.tolist()) == (True, [0] * 3)


@pytest.mark.parametrize("case", [c for c in CORNER_POOL if 0 not in c.shapes[0]], ids=str)
def test_corner_pools_are_running_maxima(run, case):
    (x,) = case.inputs("float32")
    axis, is_forwards = 2 + case.attributes["mode"] // 2, case.attributes["mode"] % 2
    order = (slice(None),) * axis + (slice(None, None, 1 if is_forwards else -1),)
    np.testing.assert_array_equal(run(case, [x]), np.maximum.accumulate(x[order], axis)[order])


# Features and samples


@pytest.mark.parametrize("case", GRID_SAMPLER, ids=str)
def test_grid_sampler_is_grid_sample(case):
    x, grid = case.inputs("float32")
    modes, padding_modes = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")
    a = case.attributes
    expected = onnx_ops.grid_sample(
        x, grid, mode=modes[a["interpolation_mode"]], padding_mode=padding_modes[a["padding_mode"]],
        align_corners=bool(a["align_corners"]),
    )  # fmt: skip
    np.testing.assert_array_equal(BACKENDS["native"](case, [x, grid]), expected)


def boxes_at_pixels(height, width, box):
    """A box at each pixel: y, x, and the other three numbers."""
    centres = np.stack(np.mgrid[:height, :width], -1)
    return np.concatenate([centres, np.broadcast_to(box, (height, width, 3))], -1)[None].astype(
        np.float32
    )


def test_features_at_the_centre_are_doubled(run):
    case = FEATURE_ALIGN[0]
    x = case.inputs("float32")[0][:1]
    one_point = Case(
        "one", case.domain, case.op_type, (x.shape, ()), {"points": 1, "spatial_scale": 1.0}
    )
    np.testing.assert_array_equal(
        run(one_point, [x, boxes_at_pixels(*x.shape[2:], (3, 5, 0.7))]), 2 * x
    )


@pytest.mark.parametrize(("angle", "turned"), [(0, (2, 4)), (np.pi / 2, (4, 2))])
def test_features_at_corners(run, angle, turned):
    """A box of width 4 and height 2, upright or lying: its corners lie on pixels. y comes first in
    it.
    """
    x = np.random.default_rng(0).standard_normal((1, 2, 9, 11)).astype(np.float32)
    case = Case(
        "corners",
        "mmcv",
        "MMCVRotatedFeatureAlign",
        (x.shape, ()),
        {"points": 5, "spatial_scale": 1.0},
    )
    y = run(case, [x, boxes_at_pixels(9, 11, (4, 2, angle))])
    down, right = (size // 2 for size in turned)
    i, j = slice(down, 9 - down), slice(right, 11 - right)
    expected = 2 * x.astype(np.float64)[:, :, i, j]
    for v, u in itertools.product((0, 2 * down), (0, 2 * right)):
        expected += x[:, :, v : v + expected.shape[2], u : u + expected.shape[3]]
    np.testing.assert_allclose(y[:, :, i, j], expected, atol=1e-5)


# Models


def test_a_model_of_mmdeploy_on_the_command_line(tmp_path):
    """As its parts say, one by one; plain ONNX Runtime refuses it."""
    proto, inputs, expected = rotated_detector()
    onnx.save(proto, tmp_path / "model.onnx")
    with pytest.raises(Exception, match="mmdeploy"):
        ort.InferenceSession(proto.SerializeToString(), quiet())
    files = []
    for name, value in inputs.items():
        np.save(tmp_path / f"{name}.npy", value)
        files += ["-i", f"{name}={tmp_path / name}.npy"]
    sentences("run", tmp_path / "model.onnx", *files, "--output", tmp_path, exit_code=0)
    for name, value in expected.items():
        np.testing.assert_allclose(
            np.load(tmp_path / f"{name}.npy"), value, rtol=1e-5, err_msg=name
        )
    assert "onnx_ops runs 3 of 3 without problems" in sentences(
        "inspect", saved(proto, tmp_path), exit_code=0
    )


@pytest.mark.parametrize("backend", ["native", "extensions"])
def test_a_model_of_mmdeploy_that_finds_nothing(backend):
    """No row comes out of NMSRotated, or no region goes in."""
    proto, inputs, _ = rotated_detector()
    (suppression,) = (n for n in proto.graph.node if n.op_type == "NMSRotated")
    next(a for a in suppression.attribute if a.name == "score_threshold").f = 2.0
    session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), backend=backend)
    for rois in (inputs["rois"], inputs["rois"][:0]):
        boxes, best = session.run(None, {**inputs, "rois": rois})
        assert (boxes == 0).all()
        assert (best == 0).all()


UNKNOWN_ELSEWHERE = """(float[1, 3, 20, 20] x, float[R, 4] rois, int64[R] images,
    float[1, R, 5] boxes,
                        float[1, 2, R] scores) => (float[R, 3, 7, 7] y, int64[S, 3] kept%s) {
    y = RoiAlign <output_height = 7, output_width = 7, sampling_ratio = 2> (x, rois, images)
    kept = mmdeploy.NMSRotated <iou_threshold = 0.5, score_threshold = 0.05> (boxes, scores)%s
}"""


def test_inspect_names_what_nobody_has(tmp_path):
    of_mmcv = (
        "p = mmcv.MMCVCARAFE <kernel_size = 3> (x, x) q = mmcv.MMCVPSAMask (x) r = "
        "mmcv.MMCVPSAMask (x)"
    )
    proto = parsed(
        UNKNOWN_ELSEWHERE % (", float p, float q, float r", of_mmcv), 22, "mmdeploy", "mmcv"
    )
    text = sentences("inspect", saved(proto, tmp_path), exit_code=1)
    assert (
        "neither ONNX Runtime nor onnx_ops has mmcv.MMCVCARAFE (1 node), mmcv.MMCVPSAMask (2 nodes)"
        in text
    )
    proto = parsed(UNKNOWN_ELSEWHERE % ("", ""), 22, "mmdeploy")
    text = sentences("inspect", saved(proto, tmp_path), exit_code=0)
    assert "neither" not in text
    assert "has no kernel for version 22" in text
    assert "has no such operator" in text


def test_inspect_leaves_out_what_onnxruntime_runs_of_older_versions(tmp_path):
    proto = parsed(UNKNOWN_ELSEWHERE % ("", ""), 13, "mmdeploy")
    text = sentences("inspect", saved(proto, tmp_path), exit_code=0)
    assert "RoiAlign" not in text
    assert "NMSRotated" in text


def test_inspect_completes_types_by_the_declaration(tmp_path):
    """Nothing is known about the regions, whose operator nobody has, but RoiAlign takes them in the
    type of images.
    """
    text = """(float[1, 3, 20, 20] x) => (float[R, 3, 1, 1] y) {
        rois, images = mmcv.MMCVRegions (x)
        y = RoiAlign (x, rois, images)
    }"""
    (node,) = call_json("inspect", saved(parsed(text, 22, "mmcv"), tmp_path), exit_code=1)["nodes"]
    assert [i["type"] for i in node["inputs"]] == ["float32", "float32", "int64"]
    assert node["builtin"] == "has no kernel for version 22"


def test_the_cases_cover_all_operators():
    assert {o.name for o in OTHERS} == set(CASES)
