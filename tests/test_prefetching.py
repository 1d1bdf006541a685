"""GridSample's guess at where the next block of points reads."""

from types import SimpleNamespace

import numpy as np
import pytest

from onnx_ops.kernels.grid_sample import BLOCK, distance_ahead

IMAGE = (600, 900)


def pixels(output, slope, step=1.0, jitter=0.0):
    """The pixels that a grid of this shape reads: along its rows, `slope` rows of the image for each of its columns."""
    row, column = np.indices(output)
    noise = np.random.default_rng(0).normal(0, jitter, (2, *output))
    y, x = 50 + row + slope * column + noise[0], 50 + step * column - slope * row + noise[1]
    return (np.floor(y).astype(np.int32) * IMAGE[1] + np.floor(x).astype(np.int32)).ravel()


def geometry(output, images=1):
    return SimpleNamespace(output=output, image=IMAGE, axes=2, images=images)


def guess(base, output, first):
    """The guess for the block that begins with the point `first`, and which points it is right for within two rows."""
    block, after = base[first:][:BLOCK], base[first + BLOCK :][:BLOCK]
    ahead = distance_ahead(block, first, geometry(output))
    return ahead, abs(after - block.astype(np.int64) - ahead) <= 2 * IMAGE[1] + 2


@pytest.mark.parametrize("slope", [0.34, -0.1, 1.0])
@pytest.mark.parametrize("output", [(40, 100), (20, 224), (12, 256)])
def test_blocks_of_whole_rows(output, slope):
    """The guess is right within two rows of the image, but for points that are one row further in the next block."""
    base, width = pixels(output, slope, step=0.2), output[1]
    for first in (0, BLOCK):
        ahead, is_right = guess(base, output, first)
        point = np.arange(first, first + BLOCK)
        as_many_rows = (point + BLOCK) // width - point // width == BLOCK // width
        assert ahead != 0
        assert as_many_rows.sum() > BLOCK // 4
        assert is_right[as_many_rows].all()


NO_GUESS = {
    "along rows": (pixels((4, 700), 0.0), geometry((4, 700))),
    "nearly along rows": (pixels((4, 700), 0.05), geometry((4, 700))),
    "jittered": (pixels((4, 700), 0.34, jitter=9.0), geometry((4, 700))),
    "a last, shorter block": (pixels((4, 700), 0.34)[: BLOCK - 1], geometry((4, 700))),
    "several images": (pixels((8, 64), 0.34), geometry((8, 64), images=2)),
    "rows of one point": (pixels((700, 1), 0.34), geometry((700, 1))),
    "rows as long as blocks": (pixels((2, BLOCK), 0.34), geometry((2, BLOCK))),
}


@pytest.mark.parametrize("name", NO_GUESS)
def test_no_guess(name):
    base, g = NO_GUESS[name]
    assert distance_ahead(base[:BLOCK], 0, g) == 0
