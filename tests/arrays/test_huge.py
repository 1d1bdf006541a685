"""More than 2**31 elements in every tensor. Needs 12 GB: `pytest -m huge`."""

import resource

import numpy as np
import pytest
from support.backends import ort_value, quiet
from support.cases import model, operator

import onnx_ops
from onnx_ops.native import execute

pytestmark = pytest.mark.huge
LARGEST = 12 * 2**30  # bytes of resident memory


def function(o, inputs, attributes, y):
    def empty(shape, kind):
        return y if shape == y.shape else np.empty(shape, kind)  # np.empty makes workspaces

    execute.compute(o, o.values(attributes), inputs, empty=empty)


def native(o, inputs, attributes, y):
    proto = model(o.domain, o.name, inputs, attributes, dims="none")
    session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet())
    binding, values = session.io_binding(), [ort_value(v) for v in (*inputs, y)]
    for input_info, value in zip(session.get_inputs(), values, strict=False):
        binding.bind_ortvalue_input(input_info.name, value)
    binding.bind_ortvalue_output("y", values[-1])
    session.run_with_iobinding(binding)


@pytest.fixture(autouse=True)
def peak():
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < LARGEST


@pytest.mark.parametrize("route", [function, native])
def test_grid_sample(route):
    """Every point reads the image's centre, except for some that are far apart in grid, image and
    output.
    """
    image, out = (26757, 26757), (32769, 32769)
    x, grid = np.zeros((1, 3, *image), np.uint8), np.zeros((1, *out, 2), np.float16)
    y = np.empty((1, 3, *out), np.uint8)
    assert min(x.size, grid.size, y.size) > 2**31
    x[0, :, 13378, 13378] = 11, 12, 13
    corners = [(-1, -1), (-1, 1), (1, -1), (1, 1)]  # y, x
    x[0, :, [0, 0, -1, -1], [0, -1, 0, -1]] = np.arange(20, 32).reshape(4, 3)
    points = np.array([0, 1, 2**20, 2**29, 2**30, out[0] * out[1] - 2, out[0] * out[1] - 1])
    which = np.array([3, 0, 1, 2, 3, 1, 3])
    grid.reshape(-1, 2)[points] = np.array(corners)[which][:, ::-1]
    route(operator("", "GridSample"), [x, grid], {"mode": "nearest", "align_corners": 1}, y)
    for c in range(3):
        plane = y[0, c].reshape(-1)
        np.testing.assert_array_equal(plane[points], 20 + 3 * which + c)
        assert np.count_nonzero(plane == 11 + c) == plane.size - points.size


@pytest.mark.parametrize("route", [function, native])
@pytest.mark.parametrize("name", ["Im2Col", "Col2Im"])
def test_blocks_of_one_pixel(name, route):
    """The output's elements are those of the input."""
    image = (32769, 32771)
    folded, unfolded = (1, 2, *image), (1, 2, image[0] * image[1])
    x = np.zeros(folded if name == "Im2Col" else unfolded, np.uint8)
    y = np.empty(unfolded if name == "Im2Col" else folded, np.uint8)
    assert min(x.size, y.size) > 2**31
    places = np.array([0, 1, 2**20, 2**31 - 1, 2**31, x.size - 2, x.size - 1])
    x.reshape(-1)[places] = 1 + np.arange(places.size)
    if name == "Im2Col":
        route(operator("onnx_ops", name), [x], {"kernel_shape": [1, 1]}, y)
    else:
        route(operator("", name), [x, np.array(image), np.array([1, 1])], {}, y)
    np.testing.assert_array_equal(y.reshape(-1)[places], 1 + np.arange(places.size))
    assert np.count_nonzero(y) == places.size


@pytest.mark.parametrize("route", [function, native])
def test_attention(route):
    """Each query reads one pixel."""
    h, w, heads, channels = 1024, 1031, 2, 1025
    value = np.zeros((1, h * w, heads, channels), np.float16)
    assert value.size > 2**31
    pixels = np.array([0, 1, 2**19, 2**20 - 1, 2**20, h * w - 2, h * w - 1])
    value[0, pixels] = 1 + np.arange(pixels.size)[:, None, None] + np.arange(heads)[:, None] * 16
    places = np.stack([(pixels % w + 0.5) / w, (pixels // w + 0.5) / h], -1)
    locations = np.broadcast_to(
        places[:, None, None, None], (1, pixels.size, heads, 1, 1, 2)
    ).copy()
    weights, y = (
        np.ones(locations.shape[:-1], np.float16),
        np.empty((1, pixels.size, heads * channels), np.float16),
    )
    route(
        operator("onnx_ops", "MultiScaleDeformableAttention"),
        [value, np.array([h, w]), locations, weights],
        {},
        y,
    )
    expected = 1 + np.arange(pixels.size)[:, None] + np.repeat([0, 16], channels)
    np.testing.assert_allclose(y[0], expected, rtol=2**-10)
