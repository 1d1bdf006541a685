"""RoiAlign and its relatives against ONNX Runtime and each other; their edges; versions of
RoiAlign.
"""

import numpy as np
import onnxruntime as ort
import pytest
from support.backends import BACKENDS, ORT_VERSION, quiet, run_session, with_extensions
from support.cases import MMCV_ROI_ALIGN, ROI_ALIGN, assert_close, model, reference, roi_align
from support.selection import each_on_backends

import onnx_ops
from onnx_ops.arrays import functions

NAN, INF = np.nan, np.inf
WHOLE = [c for c in ROI_ALIGN if all(0 not in shape for shape in c.shapes)]


def by_onnxruntime(case, inputs):
    """What ONNX Runtime's own RoiAlign of version 16 returns."""
    proto = model("", "RoiAlign", inputs, case.attributes, opset=16)
    return run_session(ort.InferenceSession(proto.SerializeToString(), quiet()), inputs)


# A region that is inverted along one axis makes ONNX Runtime 1.32 fail if the samples' number
# depends on its size.
@pytest.mark.parametrize("case", [c for c in WHOLE if "far_out" not in c.name], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_onnxruntime_agrees(case, dtype):
    inputs = case.inputs(dtype)
    assert_close(
        BACKENDS["native"](case, inputs), by_onnxruntime(case, inputs).astype(np.float64), dtype
    )


def f32(values):
    return np.array(values, np.float32)


@pytest.mark.parametrize("ratio", [0, 1, 2])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_only_pixels_around_samples_are_read(backend, mode, ratio):
    """All others are NaN, those with a weight of 0 among them."""
    case = roi_align("around", (1, 2, 7, 9), 1, (2, 2), mode=mode, sampling_ratio=ratio)
    x, _, images = case.inputs("float32")
    rois = f32(
        [[2, 1, 4, 3]]
    )  # its samples are on the pixels 2 and 3, 1 and 2, unless there are two in a bin
    expected = reference(case, [x, rois, images])
    there = np.zeros(x.shape, bool)
    if ratio == 2:
        there[..., :4, 1:5] = True
    else:
        there[..., 1:3, 2:4] = True
    np.testing.assert_allclose(
        backend(case, [np.where(there, x, NAN), rois, images]), expected, rtol=1e-6
    )


NOWHERE = [
    (NAN, 0, 3, 3), (0, NAN, 3, 3), (0, 0, NAN, 3), (0, 0, 3, NAN), (INF, 0, 3, 3), (0, -INF, 3, 3),
    (0, 0, INF, 3),
    (-INF, -INF, INF, INF), (-100, 0, -50, 3), (50, 50, 90, 60), (3e38, 3e38, 3e38, 3e38),
    (-3e38, 0, 3e38, 3),
]  # fmt: skip


@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nothing_is_read_outside(backend, mode, dtype, ratio):
    """The pixels are infinite, so that to read one with a weight of 0 would show."""
    case = roi_align("nowhere", (1, 2, 5, 6), len(NOWHERE), mode=mode, sampling_ratio=ratio)
    x, rois, images = case.inputs(dtype)
    x[:], rois[:] = INF, NOWHERE
    assert (backend(case, [x, rois, images]) == 0).all()


def test_samples_past_the_limit():
    """A region of 10**8 pixels has 2**10 samples a bin along an axis; nearly all of them are
    outside.
    """
    case = roi_align("huge", (1, 1, 5, 6), 1, (1, 1))
    x, images = np.ones((1, 1, 5, 6), np.float32), np.zeros(1, np.int64)
    y = BACKENDS["native"](case, [x, f32([[-5e7, 0, 5e7, 1]]), images])
    assert 0 <= y.item() <= 2 / 2**10


# Relatives


@each_on_backends([c for c in MMCV_ROI_ALIGN if c.attributes["mode"] == "avg"])
def test_averages_of_mmcv_are_those_of_onnx(backend, case):
    x, rois = case.inputs("float32")
    kept = ("output_height", "output_width", "spatial_scale", "sampling_ratio")
    attributes = {name: max(case.attributes[name], 0) for name in kept}
    rounding = "half_pixel" if case.attributes["aligned"] else "output_half_pixel"
    inputs = x, np.ascontiguousarray(rois[:, 1:]), rois[:, 0].astype(np.int64)
    operator = ROI_ALIGN[0].operator
    expected = functions.call(
        operator, *inputs, coordinate_transformation_mode=rounding, **attributes
    )
    got = backend(case, [x, rois])
    if backend is BACKENDS["reference"]:
        assert_close(got, expected.astype(np.float64), "float32")
    else:
        np.testing.assert_array_equal(got, expected)


def mmcv(name, x, regions, out=(2, 2), op_type="MMCVRoiAlign", **attributes):
    return roi_align(name, x, regions, out, domain="mmcv", op_type=op_type, **attributes)


def test_the_largest_sample_of_mmcv(backend):
    """Between 1 and 4 there is 2.5, of which RoiAlign takes the largest part, 2.

    A search begins at -10000.
    """
    x, rois = f32([[[[1, 4]]]]), f32([[0, 0.5, 0, 1.5, 1]])
    case = mmcv("largest", x.shape, 1, (1, 1), mode="max", sampling_ratio=1)
    assert backend(case, [x, rois]).item() == 2.5
    assert backend(case, [x - 5, rois]).item() == -2.5
    assert backend(case, [x * -20_000, rois]).item() == -10_000
    of_onnx = roi_align("largest", x.shape, 1, (1, 1), mode="max", sampling_ratio=1)
    assert backend(of_onnx, [x, rois[:, 1:], np.zeros(1, np.int64)]).item() == 2


def test_the_image_s_position_is_rounded_towards_0(backend):
    x = np.arange(2, dtype=np.float32).reshape(2, 1, 1, 1)
    case = mmcv("position", x.shape, 3, (1, 1), sampling_ratio=1, mode="avg")
    rois = f32([[0.9, 0, 0, 1, 1], [1.5, 0, 0, 1, 1], [-0.5, 0, 0, 1, 1]])
    assert backend(case, [x, rois]).ravel().tolist() == [0, 1, 0]


TURNED = mmcv(
    "turned", (2, 3, 19, 21), 12, (4, 6), "MMCVRoIAlignRotated", clockwise=1, sampling_ratio=2
)


def turned_boxes(rois, angle):
    """The upright boxes [image, x1, y1, x2, y2] as turned ones."""
    image, x1, y1, x2, y2 = rois.T.astype(np.float64)
    return np.stack(
        [image, (x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1, np.full(len(rois), angle)], 1
    )


@pytest.mark.parametrize(("dtype", "close"), [("float32", 1e-4), ("float64", 1e-10)])
@pytest.mark.parametrize(
    "case", [c for c in MMCV_ROI_ALIGN if c.attributes["mode"] == "avg"][:4], ids=str
)
def test_boxes_that_are_not_turned(backend, case, dtype, close):
    x, rois = case.inputs(dtype)
    # mmcv's boxes have no negative size.
    rois = np.concatenate([rois[:, :3], np.maximum(rois[:, 3:], rois[:, 1:3])], 1)
    kept = {name: case.attributes[name] for name in ("aligned", "sampling_ratio", "spatial_scale")}
    turned = mmcv("flat", x.shape, len(rois), (4, 5), "MMCVRoIAlignRotated", clockwise=0, **kept)
    expected, boxes = (
        functions.call(case.operator, x, rois, **case.attributes),
        turned_boxes(rois, 0).astype(dtype),
    )
    if case.attributes["aligned"]:
        np.testing.assert_allclose(backend(turned, [x, boxes]), expected, atol=close)
    else:  # sizes below 1 grow from their begin there, but from their centre here
        large = (rois[:, 3] - rois[:, 1] >= 1) & (rois[:, 4] - rois[:, 2] >= 1)
        assert large.any()
        got = backend(turned, [x, boxes])
        np.testing.assert_allclose(got[large], expected[large], atol=close)


@pytest.mark.parametrize(("dtype", "close"), [("float32", 1e-4), ("float64", 1e-12)])
@pytest.mark.parametrize("clockwise", [0, 1])
def test_a_quarter_of_a_turn_turns_bins(backend, clockwise, dtype, close):
    """Clockwise, as y points down: a box's rows become its columns."""
    x = TURNED.inputs(dtype)[0]
    boxes = np.array([[0, 9, 8, 6, 6, 0], [1, 12, 9, 8, 8, 0]], dtype)
    quarter = np.add(boxes, [0, 0, 0, 0, 0, np.pi / 2]).astype(dtype)
    case = mmcv(
        "square", x.shape, 2, (5, 5), "MMCVRoIAlignRotated", clockwise=clockwise, sampling_ratio=2
    )
    upright, turned = backend(case, [x, boxes]), backend(case, [x, quarter])
    np.testing.assert_allclose(
        turned, np.rot90(upright, 1 if clockwise else -1, (2, 3)), atol=close
    )


def test_clockwise_negates_angles(backend):
    x, rois = TURNED.inputs("float32")
    mirrored = rois * f32([1, 1, 1, 1, 1, -1])
    other = mmcv("other", x.shape, 12, (4, 6), "MMCVRoIAlignRotated", clockwise=0, sampling_ratio=2)
    np.testing.assert_array_equal(backend(TURNED, [x, rois]), backend(other, [x, mirrored]))


@pytest.mark.parametrize("ratio", [0, 2])
def test_turned_boxes_without_a_place(backend, ratio):
    boxes = [(2, 2, NAN, 2, 0.5), (2, 2, 2, INF, 0.5), (2, 2, INF, INF, 0), (2, 2, 3, 3, NAN),
        (2, 2, 3, 3, INF),
             (NAN, 2, 3, 3, 0), (2, -INF, 3, 3, 1), (3e38, 2, 3e38, 3, 1)]  # fmt: skip
    case = mmcv(
        "nowhere",
        (1, 2, 5, 6),
        len(boxes),
        (2, 2),
        "MMCVRoIAlignRotated",
        clockwise=1,
        sampling_ratio=ratio,
    )
    numbered = f32([(0, *box) for box in boxes])
    assert (backend(case, [np.full((1, 2, 5, 6), INF, np.float32), numbered]) == 0).all()


# Versions


def session_of(way, proto):
    if way == "registered":
        return ort.InferenceSession(proto.SerializeToString(), onnx_ops.register(quiet(), proto))
    if way == "lowered":
        return ort.InferenceSession(
            onnx_ops.lower(proto).SerializeToString(), with_extensions(quiet())
        )
    return onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), backend=way)


@pytest.mark.parametrize("opset", [10, 13, 15, 16, 18, 21, 22, 23])
@pytest.mark.parametrize("is_constant", [False, True], ids=["inputs", "constants"])
@pytest.mark.parametrize("way", ["native", "extensions", "lowered", "registered"])
def test_what_the_attribute_s_absence_means(way, is_constant, opset, kernels_made):
    """Version 10 has no coordinate_transformation_mode, and means output_half_pixel; later ones
    mean half_pixel.

    Nodes of version 10 are ONNX Runtime's.
    """
    if opset > 21 and ORT_VERSION < (1, 22) and way in ("extensions", "lowered"):
        pytest.skip("ONNX Runtime doesn't know this version")
    if is_constant and ORT_VERSION < (1, 32):
        pytest.skip("ONNX Runtime finds its own kernel for constant nodes, and makes no session")
    case, sizes = ROI_ALIGN[0], {"output_height": 3, "output_width": 2}
    inputs, rounding = case.inputs("float32"), "output_half_pixel" if opset < 16 else "half_pixel"
    expected = functions.call(
        case.operator, *inputs, coordinate_transformation_mode=rounding, **sizes
    )
    constants = [i.name for i in case.operator.inputs] if is_constant else []
    proto = model("", "RoiAlign", inputs, sizes, opset=opset, constants=constants)
    got = run_session(session_of(way, proto), [] if constants else inputs)
    assert_close(got, expected.astype(np.float64), "float32")
    # Other ways run the node by onnxruntime-extensions, which makes no kernel here.
    is_ours = opset >= 16 and way in ("native", "registered")
    assert len(kernels_made) == (1 if is_ours else 0)
