"""GridSample at points anywhere, in numbers around those at which its plan changes."""

import itertools

import numpy as np
import pytest
from support import guarded
from support.backends import function, uncompiled
from support.cases import Case, assert_close, expected_of
from support.selection import few, in_turn, long_unless

import onnx_ops
from onnx_ops.declaration.operator import Record
from onnx_ops.declaration.plain import plan
from onnx_ops.native import execute, library
from onnx_ops.sampling import grid_sample as operator
from onnx_ops.sampling.grid_sample import LONGEST, LONGEST_NEAREST
from onnx_ops.sampling.grid_sample_kernels import BLOCK

IMAGE = (64, 128)
VOLUME = (16, 32, 16)
MODES = ("nearest", "linear", "cubic")


# So many channels that one image gives FEW_UNITS units, without cutting its points.
ENOUGH_CHANNELS = operator.PART * operator.FEW_UNITS


def case(
    points, channels=ENOUGH_CHANNELS, image=IMAGE, batch=1, mode="linear", padding_mode="zeros"
):
    shapes = (batch, channels, *image), (batch, *(1,) * (len(image) - 1), points, len(image))
    return Case("scattered", "", "GridSample", shapes, {"mode": mode, "padding_mode": padding_mode})


CASES = [
    *(case(n, mode=m) for n in (BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 17) for m in MODES),
    *(
        case(longest + more, ENOUGH_CHANNELS + 2, (128, 256), mode=m)
        for longest, m in ((LONGEST, "linear"), (LONGEST_NEAREST, "nearest"))
        for more in (-1, 0, 1, longest + 19)
    ),
    *(
        case(4 * BLOCK + 33, channels, mode="linear")
        for channels in (operator.FEW_CHANNELS - 1, 64, 65, 67, 131)
    ),
    *(case(BLOCK + 33, image=VOLUME, mode=m) for m in MODES),
    *(
        case(2 * BLOCK + 5, batch=3, mode=m, padding_mode=p)
        for m in MODES
        for p in ("border", "reflection")
    ),
    case(BLOCK + 1, image=(63, 130), mode="cubic"),
]


def inputs_of(case, dtype="float32", seed=0):
    """Pixels, and points some of which are outside; the second half of them lies close together."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(case.shapes[0]).astype(dtype)
    grid = rng.uniform(-1.1, 1.1, case.shapes[1]).astype(dtype)
    grid[..., case.shapes[1][-2] // 2 :, :] *= grid.dtype.type(0.1)
    return x, grid


def geometry(case):
    values = case.operator.values(case.attributes)
    return Record(plan(case.operator, values, [np.array(shape) for shape in case.shapes])[1][0])


def name_of(case):
    return f"{case.attributes['mode']}-{case.shapes[0]}-{case.shapes[1]}"


# Those of the short run, which have each number of points and channels, each image and each option.
FEW = few(
    {
        k: {"x": c.shapes[0], "grid": c.shapes[1], **c.attributes}
        for k, c in enumerate(CASES)
        if c.shapes[1][-2] < LONGEST - 1
    },
    together=1,
)


@pytest.mark.parametrize(
    "case", [long_unless(k in FEW, c) for k, c in enumerate(CASES)], ids=name_of
)
@pytest.mark.parametrize("dtype", ["float32", long_unless(library.is_complete(), "float16")])
def test_sums(case, dtype):
    """Results are those of the formula, and of the same points one by one, to the last bit on any
    number of threads.
    """
    x, grid = inputs_of(case, dtype)
    expected = expected_of(case, (x, grid))
    y = onnx_ops.grid_sample(x, grid, **case.attributes)
    assert_close(y, expected, dtype)
    for threads in (1, 2, 3):
        np.testing.assert_array_equal(
            onnx_ops.grid_sample(x, grid, **case.attributes, threads=threads), y
        )
    some = slice(BLOCK // 2, BLOCK // 2 + 40)
    alone = onnx_ops.grid_sample(x, np.ascontiguousarray(grid[..., some, :]), **case.attributes)
    np.testing.assert_array_equal(alone, y[..., some])


@pytest.mark.parametrize("mode", MODES)
def test_infinite_pixels(mode):
    """A pixel that isn't finite changes nothing in other channels: not even in those that are read
    with its own.
    """
    one = case(BLOCK + 40, 67, mode=mode)
    x, grid = inputs_of(one)
    finite = onnx_ops.grid_sample(x, grid, **one.attributes)
    x[0, 33, 10, 20], x[0, 66, 30, 40] = np.inf, np.nan
    y = onnx_ops.grid_sample(x, grid, **one.attributes)
    assert_close(y, expected_of(one, (x, grid)), "float32")
    others = [c for c in range(67) if c not in (33, 66)]
    np.testing.assert_array_equal(y[:, others], finite[:, others])


@pytest.mark.parametrize(
    ("case", "at_end"),
    [
        long_unless(c.shapes[1][-2] < LONGEST - 1 and k % 4 == 3 * at_end, c, at_end)
        for k, c in enumerate(CASES[::3])
        for at_end in (True, False)
    ],
    ids=lambda each: name_of(each) if isinstance(each, Case) else str(each),
)
def test_nothing_outside_is_touched(case, at_end):
    placed = [guarded.readonly(v, at_end=at_end) for v in inputs_of(case)]
    empty = lambda shape, kind: guarded.empty(shape, kind, at_end=at_end)
    y = execute.compute(case.operator, case.operator.values(case.attributes), placed, 1, empty)
    y = np.array(y[0] if isinstance(y, list | tuple) else y)
    expected = onnx_ops.grid_sample(*(np.array(v) for v in placed), **case.attributes)
    np.testing.assert_array_equal(y, expected)
    guarded.free()


def test_units():
    """Units are as the comments in the operator say: from the shapes alone."""
    for mode, longest in (("linear", LONGEST), ("nearest", LONGEST_NEAREST)):
        assert geometry(case(10**6, 256, (128, 256), mode=mode)).span == longest
    assert geometry(case(10**6, operator.FEW_CHANNELS - 1, (1024, 512))).span == BLOCK
    assert geometry(case(8 * BLOCK, operator.PART, (64, 64))).span == BLOCK  # FEW_UNITS of them
    cut = geometry(case(300, 128, (100, 136)))
    assert (cut.span, cut.units, cut.tiles) == (BLOCK, cut.parts, cut.parts)
    assert cut.parts > 1
    for channels in range(1, 300):
        g = geometry(case(300, channels, (100, 136)))
        assert g.part * (g.parts - 1) < channels <= g.part * g.parts
        assert g.parts == 1 or g.part >= operator.PART


LEAST_TILES = {  # of shapes with work for many threads
    "PointRend": (case(8096, 256, (128, 256)), operator.FEW_UNITS),
    "windows": (case(2000 * 49, 128, (128, 128)), 12),
    "few channels": (case(8096, 32, (256, 256)), 2),
    "a photo": (case(1080 * 1920, 3, (1080, 1920)), 64),
    "small images": (case(81, 1, (46, 62), batch=4096), 64),
}


@pytest.mark.parametrize(("case", "least"), LEAST_TILES.values(), ids=LEAST_TILES)
def test_tiles_for_many_threads(case, least):
    assert geometry(case).tiles >= least


def test_workspaces_stay_small():
    for mode, image in (("cubic", (512, 512)), ("cubic", (64, 64, 64)), ("linear", (2048, 2048))):
        assert 2**18 < geometry(case(10**6, 256, image, mode=mode)).workspace <= 2**21


@pytest.mark.parametrize(
    ("image", "padding_mode"),
    in_turn([(6, 7), (5, 6, 7)], ["zeros", "border", "reflection"]),
    ids=str,
)
def test_one_point_of_many_with_taps_outside(image, padding_mode):
    """Weights of cubic's taps are moved if any point of a block has taps outside of the image,
    along any axis.
    """
    axes, x = (
        len(image),
        np.random.default_rng(0).standard_normal((1, 2, *image)).astype(np.float32),
    )
    for axis, place, k in itertools.product(range(axes), (-0.95, 0.99), (0, 7, 19)):
        grid = np.zeros((1, *[1] * (axes - 1), 20, axes), np.float32)
        grid[0, ..., k, axis] = place
        one = Case(
            "one",
            "",
            "GridSample",
            (x.shape, grid.shape),
            {"mode": "cubic", "padding_mode": padding_mode},
        )
        expected = expected_of(one, [x, grid])
        assert_close(function(one, [x, grid]), expected, "float32", f"{axis} {place} {k}")
        assert_close(
            uncompiled(one, [x, grid]), expected, "float32", f"{axis} {place} {k}, uncompiled"
        )
