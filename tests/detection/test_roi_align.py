"""RoiAlign and its relatives against ONNX Runtime and each other; their edges; versions of
RoiAlign.
"""

import numpy as np
import onnxruntime as ort
import pytest
from support.backends import (
    ALL_BACKENDS,
    BACKENDS,
    ORT_VERSION,
    quiet,
    run_session,
    with_extensions,
)
from support.cases import (
    MMCV_ROI_ALIGN,
    MMCV_ROI_ALIGN_OPTIONS,
    ROI_ALIGN,
    assert_close,
    expected_of,
    mmcv_roi_align,
    model,
    operator,
    roi_align_case,
    rotated_roi_align,
)
from support.selection import each_dtype, each_on_backends, some_of

import onnx_ops
from onnx_ops.arrays import functions

NAN, INF = np.nan, np.inf
NOT_EMPTY = [c for c in ROI_ALIGN if all(0 not in shape for shape in c.shapes)]
# The largest difference between two ways to compute the same samples, in units of a pixel's
# values: their coordinates differ by a few roundings of numbers up to an image's size.
CLOSE = {"float32": 1e-4, "float64": 1e-12}


def f32(values):
    return np.array(values, np.float32)


def by_onnxruntime(case, inputs):
    """What ONNX Runtime's own RoiAlign of version 16 returns."""
    proto = model("", "RoiAlign", inputs, case.attributes, opset=16)
    return run_session(ort.InferenceSession(proto.SerializeToString(), quiet()), inputs)


def has_negative_count(case):
    """Return whether a region's number of samples, ceil(step) along x times that along y, is
    negative.
    """
    attributes = case.attributes
    if (
        attributes.get("coordinate_transformation_mode") == "output_half_pixel"
        or attributes.get("sampling_ratio", 0) > 0
    ):
        return False  # sizes are at least 1, or the number is given
    rois = case.inputs("float32")[1] * attributes.get("spatial_scale", 1.0)
    x_steps = (rois[:, 2] - rois[:, 0]) / attributes["output_width"]
    y_steps = (rois[:, 3] - rois[:, 1]) / attributes["output_height"]
    return bool((np.ceil(x_steps) * np.ceil(y_steps) < 0).any())


# ONNX Runtime 1.32 allocates memory for the samples, and fails if their number is negative.
COMPUTED_BY_ONNXRUNTIME = [c for c in NOT_EMPTY if not has_negative_count(c)]


@pytest.mark.parametrize("case", COMPUTED_BY_ONNXRUNTIME, ids=str)
@each_dtype("float32", "float64")
def test_onnxruntime_agrees(case, dtype):
    inputs = case.inputs(dtype)
    assert_close(
        BACKENDS["native"](case, inputs), by_onnxruntime(case, inputs).astype(np.float64), dtype
    )


@pytest.mark.parametrize(
    ("run", "mode", "ratio"),
    some_of(ALL_BACKENDS, ["avg", "max"], [0, 1, 2]),
    indirect=["run"],
)
def test_only_pixels_around_samples_are_read(run, mode, ratio):
    """All others are NaN, those with a weight of 0 among them.

    half_pixel moves the region to x from 1.5 to 3.5 and y from 0.5 to 2.5. With one sample a bin,
    samples are exactly on the pixels 2 and 3 along x, 1 and 2 along y. With two, they are between
    the pixels 1 to 4 along x, 0 to 3 along y.
    """
    case = roi_align_case("around", (1, 2, 7, 9), 1, (2, 2), mode=mode, sampling_ratio=ratio)
    x, _, images = case.inputs("float32")
    rois = f32([[2, 1, 4, 3]])
    is_read = np.zeros(x.shape, bool)
    if ratio == 2:
        is_read[..., :4, 1:5] = True
    else:
        is_read[..., 1:3, 2:4] = True
    got = run(case, [np.where(is_read, x, NAN), rois, images])
    assert_close(got, expected_of(case, [x, rois, images]), "float32")


NOWHERE = [
    (NAN, 0, 3, 3), (0, NAN, 3, 3), (0, 0, NAN, 3), (0, 0, 3, NAN), (INF, 0, 3, 3), (0, -INF, 3, 3),
    (0, 0, INF, 3),
    (-INF, -INF, INF, INF), (-100, 0, -50, 3), (50, 50, 90, 60), (3e38, 3e38, 3e38, 3e38),
    (-3e38, 0, 3e38, 3),
]  # fmt: skip


@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("mode", ["avg", "max"])
@each_dtype("float32", "float64")
def test_nothing_is_read_outside(run, mode, dtype, ratio):
    """The pixels are infinite, so that to read one with a weight of 0 would show."""
    case = roi_align_case("nowhere", (1, 2, 5, 6), len(NOWHERE), mode=mode, sampling_ratio=ratio)
    x, rois, images = case.inputs(dtype)
    x[:], rois[:] = INF, NOWHERE
    assert (run(case, [x, rois, images]) == 0).all()


def test_a_bin_has_at_most_1024_samples_along_an_axis():
    """One bin has 2**22 pixels: 2**10 samples, 2**12 pixels apart, of which one is in the image.

    Without the limit there would be a sample for each pixel, and seven of them in the image.
    """
    case = roi_align_case("huge", (1, 1, 5, 6), 1, (1, 1))
    x, images = np.ones((1, 1, 5, 6), np.float32), np.zeros(1, np.int64)
    left = 2 - 512.5 * 2**12 + 0.5  # sample 512 is at x = 2, after half_pixel has subtracted 0.5
    y = BACKENDS["native"](case, [x, f32([[left, 0, left + 2**22, 1]]), images])
    assert y.item() == 2**-10


# Relatives


@each_on_backends([c for c in MMCV_ROI_ALIGN if c.attributes["mode"] == "avg"])
def test_averages_of_mmcv_are_those_of_onnx(run, case):
    x, rois = case.inputs("float32")
    kept = ("output_height", "output_width", "spatial_scale", "sampling_ratio")
    attributes = {name: max(case.attributes[name], 0) for name in kept}
    transformation = "half_pixel" if case.attributes["aligned"] else "output_half_pixel"
    inputs = x, np.ascontiguousarray(rois[:, 1:]), rois[:, 0].astype(np.int64)
    expected = functions.call(
        operator("", "RoiAlign"),
        *inputs,
        coordinate_transformation_mode=transformation,
        **attributes,
    )
    got = run(case, [x, rois])
    if run is BACKENDS["reference"]:
        assert_close(got, expected.astype(np.float64), "float32")
    else:
        np.testing.assert_array_equal(got, expected)


def test_max_of_mmcv_is_the_largest_sample_and_of_onnx_the_largest_weighted_pixel(run):
    """One sample, halfway between the pixels 1 and 4.

    mmcv: 0.5 * 1 + 0.5 * 4 = 2.5. ONNX: max(0.5 * 1, 0.5 * 4) = 2. mmcv's maximum starts from
    -10000, so it is never less.
    """
    x, rois = f32([[[[1, 4]]]]), f32([[0, 0.5, 0, 1.5, 1]])
    case = mmcv_roi_align("largest", x.shape, 1, (1, 1), mode="max", sampling_ratio=1)
    assert run(case, [x, rois]).item() == 2.5
    assert run(case, [x - 5, rois]).item() == -2.5
    assert run(case, [x * -20_000, rois]).item() == -10_000
    of_onnx = roi_align_case("largest", x.shape, 1, (1, 1), mode="max", sampling_ratio=1)
    assert run(of_onnx, [x, rois[:, 1:], np.zeros(1, np.int64)]).item() == 2


def test_the_image_s_position_is_rounded_towards_0(run):
    x = np.arange(2, dtype=np.float32).reshape(2, 1, 1, 1)
    case = mmcv_roi_align("position", x.shape, 3, (1, 1), sampling_ratio=1, mode="avg")
    rois = f32([[0.9, 0, 0, 1, 1], [1.5, 0, 0, 1, 1], [-0.5, 0, 0, 1, 1]])
    assert run(case, [x, rois]).ravel().tolist() == [0, 1, 0]


def as_turned(rois, angle):
    """The upright boxes [image, x1, y1, x2, y2] as turned ones."""
    image, x1, y1, x2, y2 = rois.T.astype(np.float64)
    return np.stack(
        [image, (x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1, np.full(len(rois), angle)], 1
    )


AVERAGES_OF_MMCV = [
    c for c in MMCV_ROI_ALIGN_OPTIONS if c.domain == "mmcv" and c.attributes["mode"] == "avg"
]


@each_dtype("float32", "float64")
@pytest.mark.parametrize("case", AVERAGES_OF_MMCV, ids=str)
def test_boxes_that_are_not_turned(run, case, dtype):
    x, rois = case.inputs(dtype)
    # mmcv's boxes have no negative size.
    rois = np.concatenate([rois[:, :3], np.maximum(rois[:, 3:], rois[:, 1:3])], 1)
    kept = {name: case.attributes[name] for name in ("aligned", "sampling_ratio", "spatial_scale")}
    turned = rotated_roi_align("flat", x.shape, len(rois), clockwise=0, **kept)
    expected = functions.call(case.operator, x, rois, **case.attributes)
    got = run(turned, [x, as_turned(rois, 0).astype(dtype)])
    if not case.attributes["aligned"]:
        # Sizes below 1 grow from their begin there, but from their centre here.
        large = (rois[:, 3] - rois[:, 1] >= 1) & (rois[:, 4] - rois[:, 2] >= 1)
        assert large.any()
        got, expected = got[large], expected[large]
    np.testing.assert_allclose(got, expected, atol=CLOSE[dtype])


@each_dtype("float32", "float64")
@pytest.mark.parametrize("clockwise", [0, 1])
def test_a_quarter_of_a_turn_turns_bins(run, clockwise, dtype):
    """Clockwise, as y points down: a box's rows become its columns."""
    case = rotated_roi_align(
        "square", (2, 3, 19, 21), 2, (5, 5), clockwise=clockwise, sampling_ratio=2
    )
    x = case.inputs(dtype)[0]
    boxes = np.array([[0, 9, 8, 6, 6, 0], [1, 12, 9, 8, 8, 0]], dtype)
    quarter = np.add(boxes, [0, 0, 0, 0, 0, np.pi / 2]).astype(dtype)
    upright, turned = run(case, [x, boxes]), run(case, [x, quarter])
    expected = np.rot90(upright, 1 if clockwise else -1, (2, 3))
    np.testing.assert_allclose(turned, expected, atol=CLOSE[dtype])


def test_clockwise_negates_angles(run):
    clockwise, counterclockwise = (
        rotated_roi_align("turned", (2, 3, 19, 21), 12, (4, 6), clockwise=k, sampling_ratio=2)
        for k in (1, 0)
    )
    x, rois = clockwise.inputs("float32")
    mirrored = rois * f32([1, 1, 1, 1, 1, -1])
    np.testing.assert_array_equal(run(clockwise, [x, rois]), run(counterclockwise, [x, mirrored]))


NOWHERE_TURNED = [
    (2, 2, NAN, 2, 0.5), (2, 2, 2, INF, 0.5), (2, 2, INF, INF, 0), (2, 2, 3, 3, NAN),
    (2, 2, 3, 3, INF), (NAN, 2, 3, 3, 0), (2, -INF, 3, 3, 1), (3e38, 2, 3e38, 3, 1),
]  # fmt: skip


@pytest.mark.parametrize("ratio", [0, 2])
def test_turned_boxes_without_a_place(run, ratio):
    x = np.full((1, 2, 5, 6), INF, np.float32)
    case = rotated_roi_align(
        "nowhere", x.shape, len(NOWHERE_TURNED), (2, 2), clockwise=1, sampling_ratio=ratio
    )
    rois = f32([(0, *box) for box in NOWHERE_TURNED])
    assert (run(case, [x, rois]) == 0).all()


# Versions


def session_of(backend, proto):
    if backend == "registered":
        return ort.InferenceSession(proto.SerializeToString(), onnx_ops.register(quiet(), proto))
    if backend == "lowered":
        return ort.InferenceSession(
            onnx_ops.lower(proto).SerializeToString(), with_extensions(quiet())
        )
    return onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), backend=backend)


@pytest.mark.parametrize(
    ("opset", "is_constant", "backend"),
    some_of(
        [10, 13, 15, 16, 18, 21, 22, 23],
        [False, True],
        ["native", "extensions", "lowered", "registered"],
    ),
)
def test_without_coordinate_transformation_mode_each_version_has_its_default(
    backend, is_constant, opset, kernels_made
):
    """Version 10 lacks the attribute, and means output_half_pixel; later ones mean half_pixel.

    Nodes of version 10 are ONNX Runtime's.
    """
    if opset > 21 and ORT_VERSION < (1, 22) and backend in ("extensions", "lowered"):
        pytest.skip("ONNX Runtime doesn't know this version")
    if is_constant and ORT_VERSION < (1, 32):
        pytest.skip("ONNX Runtime finds its own kernel for constant nodes, and makes no session")
    inputs = roi_align_case("versions", (2, 3, 19, 21), 12).inputs("float32")
    sizes = {"output_height": 3, "output_width": 2}
    default = "output_half_pixel" if opset < 16 else "half_pixel"
    declared = operator("", "RoiAlign")
    expected = functions.call(declared, *inputs, coordinate_transformation_mode=default, **sizes)
    constants = [i.name for i in declared.inputs] if is_constant else []
    proto = model("", "RoiAlign", inputs, sizes, opset=opset, constants=constants)
    got = run_session(session_of(backend, proto), [] if constants else inputs)
    assert_close(got, expected.astype(np.float64), "float32")
    # The other backends run the node by onnxruntime-extensions, which makes no kernel here.
    is_ours = opset >= 16 and backend in ("native", "registered")
    assert len(kernels_made) == (1 if is_ours else 0)
