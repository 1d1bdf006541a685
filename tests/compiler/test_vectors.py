"""Loops at full vector width agree with loops over single elements."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from numba import njit
from support import guarded
from support.processes import python

from onnx_ops.compiler import compilation
from onnx_ops.compiler.target import current
from onnx_ops.declaration import dtypes
from onnx_ops.declaration.jit import FLAGS
from onnx_ops.kernels import vectors
from onnx_ops.kernels.vectors import Corners, Neighbours, RunRows, Runs, View

# It compiles these loops alone; other tests run them within kernels.
pytestmark = [pytest.mark.compiler, pytest.mark.long]

compilation.tell_numba()
TAPS = {"two taps": (0, 1), "four taps": (-1, 0, 1, 2)}
PITCH, ROWS = 37, 9
STARTS = tuple(PITCH * r for r in range(4))  # of rows


def storage(values, dtype):
    """Convert values to the storage in which kernels see an array of this dtype."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    return values.astype(kind).view(dtypes.TABLE[dtype].storage)


def values_of(stored, dtype):
    return stored.view(getattr(ml_dtypes, dtype, dtype)).astype(
        np.float32 if "float16" in dtype else dtype
    )


def both(loop):
    """A loop as compiled code has it, with vectors where it can, and as it is written."""
    return njit(**FLAGS)(lambda *arguments: loop(*arguments)), njit(**FLAGS)(loop)


taken, taken_plainly = both(vectors.take)
together, plainly = both(vectors.blend)
interleaved, interleaved_plainly = both(vectors.interleave)
copied, copied_plainly = both(vectors.copy_box)
summed, summed_plainly = both(vectors.sum_runs)
added, added_plainly = both(vectors.add_planes)
attended, attended_plainly = both(vectors.add_points)


INTERLEAVED = ("float16", "bfloat16", "float32", "float64", "uint8", "int64", "bool")


@pytest.mark.parametrize("gap", [0, 2])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", INTERLEAVED)
def test_interleave(dtype, wide, gap):
    rng, values = (
        np.random.default_rng(0),
        np.array([np.nan, np.inf, -0.0, 65519, 65520, 6e-8, 3.4e38, 1.00390625]),
    )
    size, pitch, rows, row_pitch, out_pitch = 100, 160, 3, 52, 105
    for stride, count in itertools.product(
        (2, 3, 4, 5, 6, 7, 8, 9, 16), (1, 3, 4, 5, 7, 8, 9, 16, 33, 50)
    ):
        step = stride + gap
        if step * count > size:
            continue
        source = rng.standard_normal(5 + stride * pitch).astype(np.float32) * (
            100 if "int" in dtype else 1
        )
        if not (wide and dtype in ("float16", "bfloat16")):
            source = storage(source.clip(0, 200), dtype)
        else:
            source[: values.size] = values
        got, expected = storage(np.zeros((2, 7 + 2 * out_pitch + step * count)), dtype)
        matrices = View(source, 5, (row_pitch, pitch)), rows, stride, count
        interleaved(*matrices, View(got, 7, (out_pitch, step)))
        interleaved_plainly(*matrices, View(expected, 7, (out_pitch, step)))
        assert got.tobytes() == expected.tobytes()
        assert got.tobytes() != storage(np.zeros(got.size), dtype).tobytes()


ADDED = "float16", "bfloat16", "float32", "float64", "int8", "bool"


def random_numbers(count, dtype):
    """Random numbers as storage, and the type in which they are summed."""
    rng = np.random.default_rng(0)
    x = storage(
        rng.integers(0, 2, count) if dtype == "bool" else rng.standard_normal(count) * 9, dtype
    )
    return x, np.float32 if dtype in ("float16", "bfloat16") else x.dtype


# 6 * times runs: one group, or more. What is fetched ahead need not exist.
@pytest.mark.parametrize(("times", "ahead"), [(1, 0), (6, 1000), (12, 10**9)])
@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("dtype", ADDED)
def test_sum_runs(dtype, at_end, times, ahead):
    """Runs that begin before the first block of a row, or end after its last one: pages beside them
    can't be read.
    """
    rows = (99, 999, 1), (1, 3, 1), (-2, 2, 1), (5, 4, 2), (20, 7, 3)  # all exist, or some
    for blocks, count, of_rows in itertools.product(
        (1, 3, 7, 8, 9, 15, 40, 100), (1, 2, 7, 8, 9, 31, 33, 44, 103), rows
    ):
        values, kind = random_numbers(6 * blocks, dtype)
        x = guarded.readonly(values, at_end=at_end)
        block = np.array([0, 2, -1, -blocks, blocks + 9, 1 - count])
        first = np.arange(3).repeat(2) * blocks + block
        got, expected = np.ones((2, 2 + 4 * (count + 3)), kind)
        run_rows = RunRows(*of_rows, times, 6)
        runs = Runs(np.tile(first, times), np.tile(block, times), blocks, run_rows, ahead)
        summed(x, runs, 4, count, View(got, 2, (count + 3,)))
        summed_plainly(x, runs, 4, count, View(expected, 2, (count + 3,)))
        assert got.tobytes() == expected.tobytes()
        assert (got[-3:] == 1).all()
        guarded.free()


@pytest.mark.parametrize("ahead", [0, 10**9])
@pytest.mark.parametrize("dtype", ADDED)
def test_add_planes(dtype, ahead):
    for planes, size in itertools.product((1, 3, 7, 8), (1, 7, 8, 9, 24, 41)):
        values, kind = random_numbers(planes * size, dtype)
        x = guarded.readonly(values)
        places = np.random.default_rng(0).permutation(50)[:size].astype(np.int32)
        got, expected = np.zeros((2, 50, vectors.PLANES), kind)
        for add, sums in ((added, got), (added_plainly, expected)):
            add(View(x, 0, (size,)), ahead, planes, places, sums.reshape(-1))
        np.testing.assert_array_equal(got[:, :planes], expected[:, :planes])
        numbers = values_of(values, dtype).astype(kind)
        np.testing.assert_array_equal(got[places, :planes], numbers.reshape(planes, size).T)
        guarded.free()


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("dtype", dtypes.FLOATS)
def test_add_points(dtype, add):
    """Absent taps are not read: their pixels are outside of the image, their weights NaN."""
    rng, kind = np.random.default_rng(0), np.float64 if dtype == "float64" else np.float32
    height, width, pitch = 4, 5, 150
    source = storage(rng.standard_normal(height * width * pitch), dtype)
    row, column = rng.integers(-1, height, 40), rng.integers(-1, width, 40)
    exist, weight = np.zeros(40, np.int32), rng.standard_normal((4, 40)).astype(kind)
    for t, (i, j) in enumerate(np.ndindex(2, 2)):
        is_inside = (row + i >= 0) & (row + i < height) & (column + j >= 0) & (column + j < width)
        exist |= is_inside.astype(np.int32) << t
        weight[t, ~is_inside] = np.nan
    pixels, widths = (row * width + column).astype(np.int32), np.full(40, width, np.int32)
    for channels, count in itertools.product(
        (0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 33, 63, 64, 127, 150), (0, 1, 2, 40)
    ):
        got, expected = np.ones((2, channels + 1), kind)
        for function, target in ((attended, got), (attended_plainly, expected)):
            points = Corners(pixels[:count], widths, exist, weight)
            function(source, pitch, points, add, target[:-1])
        np.testing.assert_allclose(got, expected, atol=1e-13 if kind == np.float64 else 4e-5)
        assert got[-1] == 1


WIDTHS = "uint8", "uint16", "uint32", "uint64", "complex128"


@pytest.mark.parametrize("dtype", WIDTHS)
def test_copy_box(dtype):
    """Boxes of every length up to some vectors are written, and nothing else."""
    rng, pitch, planes = np.random.default_rng(0), 720, 9 * 720
    source = rng.integers(1, 200, 2 * planes).astype(dtype)
    for stride, box, count in itertools.product(
        (1, 2, 3, 4, 7), (1, 4, 9), (1, 2, 3, 5, 8, 15, 16, 31, 40, 67, 100)
    ):
        steps, sizes, out_steps = (planes, 1, pitch), (2, box, 3), (3 * box * 110, 3 * 110, 110)
        end = (
            (sizes[0] - 1) * steps[0]
            + (box - 1) * steps[1]
            + 2 * steps[2]
            + (count - 1) * stride
            + 1
        )
        got, expected = np.zeros((2, 6 * 9 * 110), dtype)
        x = source[source.size - end :]
        boxes = View(x, 0, steps), sizes, count, stride
        copied(*boxes, View(got, 3, out_steps))
        copied_plainly(*boxes, View(expected, 3, out_steps))
        np.testing.assert_array_equal(got, expected)
        assert np.count_nonzero(got) == np.prod(sizes) * count


@pytest.mark.parametrize("dtype", WIDTHS)
def test_take(dtype):
    """Every element of images of every small size is read, and nothing beside them: pages there
    can't be read.
    """
    rng = np.random.default_rng(0)
    for size, count, at_end in itertools.product(
        (1, 2, 3, 4, 5, 17, 300), (0, 1, 7, 16, 50), (False, True)
    ):
        source = guarded.readonly(rng.integers(1, 200, size).astype(dtype), at_end=at_end)
        pixel = rng.integers(0, size, count).astype(np.int32)
        pixel[:2] = [size - 1, 0][:count]
        for outside in (0, count // 3):
            pixel[rng.permutation(count)[:outside]] = vectors.OUTSIDE
            got, expected = np.ones((2, count + 1), dtype)
            taken(source, pixel, size * count, got[:-1])
            taken_plainly(source, pixel, size, expected[:-1])
            np.testing.assert_array_equal(got, expected)
            np.testing.assert_array_equal(got[:-1], np.where(pixel < 0, 0, source[pixel.clip(0)]))
            assert got[-1] == 1
        guarded.free()


DIGIT = {
    "float16": 2**-10,
    "bfloat16": 2**-7,
}  # the distance to the next number, relative to a number


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("taps", TAPS)
@pytest.mark.parametrize("dtype", dtypes.FLOATS)
def test_blend(dtype, taps, add):
    rng, offsets, pixels, count = (
        np.random.default_rng(0),
        TAPS[taps],
        PITCH * ROWS,
        3 * vectors.MOST_LANES,
    )
    sums = np.float64 if dtype == "float64" else np.float32
    source = guarded.readonly(storage(rng.standard_normal(pixels), dtype))
    rows, across = rng.standard_normal((2, len(offsets), count)).astype(sums)
    base = rng.integers(0, pixels - (len(offsets) - 1) * (PITCH + 1), count, np.int32)
    points = Neighbours(base, STARTS, rows, across, pixels)
    base[:2] = 0, pixels - (len(offsets) - 1) * (PITCH + 1) - 1
    for kind in {np.dtype(sums).name, dtype}:  # of the target
        results = storage(np.ones((2, count + 5)), kind)
        for blend, target in zip((together, plainly), results, strict=True):
            assert blend(source, points, offsets, add, target)
        got, expected = results.view(getattr(ml_dtypes, kind, kind)).astype(np.float64)
        np.testing.assert_allclose(
            got, expected, rtol=DIGIT.get(kind, 0), atol=1e-13 if kind == "float64" else 1e-5
        )
        assert got[:count].std() > 0.5
        assert (got[count:] == 1).all()
    for fault, b in ((np.nan, 0), (np.inf, count - 1), (-np.inf, count // 2)):
        faulty, target = storage(np.full(source.size, 0.5), dtype), np.ones(got.size, sums)
        faulty[base[b] + PITCH + 1] = storage(np.array([fault]), dtype)[0]
        for blend in (together, plainly):
            assert not blend(faulty, points, offsets, False, target)
    guarded.free()


@pytest.mark.skipif(
    current().gathers or current().vector_bytes < 64, reason="needs AVX-512 without FP16"
)
def test_gathers_that_are_slow_here():
    """Code for CPUs with fast gathers runs on others, too: loads take their place there."""
    script = f"""
        from onnx_ops.compiler import target
        target.Target.gathers = property(lambda self: True)
        import pytest
        raise SystemExit(pytest.main(["-q", "-m", "long", "-p", "no:cacheprovider", {__file__!r},
                                      "-k", "(take or points or blend) and not slow_here"]))
    """
    python(script)
