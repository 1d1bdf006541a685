"""Callers allocate the memory that kernels work in: it is enough, bounded, and lasts as long as it
is used.
"""

import math
import os
import threading
import time

import numpy as np
import pytest
from support.backends import python_counts
from support.cases import CASES, COL2IM, assert_close, case_named, expected_of, reference_of
from support.processes import python
from support.selection import few, long_unless

import onnx_ops
from onnx_ops import system
from onnx_ops.declaration import calls, plain
from onnx_ops.declaration.limits import MAX_TILES
from onnx_ops.declaration.operator import Record
from onnx_ops.fold import col2im_kernels as col2im
from onnx_ops.native import threads
from onnx_ops.sampling import grid_sample_kernels as grid_sample

OVERLAPPING = case_named("overlapping")
PATIENCE = 600  # seconds: longer than a busy machine needs
SMALL = [c for c in CASES if sum(int(np.prod(s)) for s in c.shapes) < 4000]
# Infinite inputs change no plan.
FEW = few({c.name: c.axes for c in SMALL if c.extent < np.inf}, together=1)
LONGEST = ("affine_large_volumes_bicubic", "rotated_many_regions_of_many_samples")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy warns of overflows and infinities
@pytest.mark.parametrize(
    "case", [long_unless(c.name in FEW and c.name not in LONGEST, c) for c in SMALL], ids=str
)
def test_the_plan_states_enough(case):
    """A kernel runs as plain Python in exactly the workspace that its plan states, which is full of
    garbage.
    """
    inputs = case.inputs("float64")
    operator, values = case.operator, case.operator.values(case.attributes)
    kernel = operator.kernels[operator.choice(values)]
    sizes = [
        np.array(each, np.int64) for each in calls.plan_inputs(operator, operator.padded(inputs))
    ]
    g = plain.plan(operator, values, sizes)[1][0]
    expected = expected_of(case, inputs)
    out = np.full(expected.size, np.nan)
    tensors = [inputs[k].ravel() if k < len(inputs) else np.empty(0) for k in operator.inputs_read]
    for tile in range(g["tiles"]):
        workspace = np.full(g["workspace"], 0xA5, np.uint8)
        with python_counts():
            kernel.function(*kernel.grouped(tensors), Record(g), tile, workspace, out)
    assert_close(out.reshape(expected.shape), expected, "float64")


@pytest.mark.parametrize("rounds", [500, long_unless(False, 2000)])
def test_the_workspace_is_bounded(rounds):
    """Whatever sizes the model states, a tile gets a few megabytes at most.

    Col2Im gets 8 bytes more for each hit of a pixel along leading axes. These are at most the root
    of the input's size.
    """
    rng, most = np.random.default_rng(0), 0
    operator = OVERLAPPING.operator
    for _ in range(rounds):
        axes = rng.integers(1, 4)
        image, block, strides, dilations = (
            2 ** rng.integers(0, 20, axes) + rng.integers(0, 5, axes) for _ in range(4)
        )
        padded = dilations * (block - 1) + 1 + rng.integers(0, 5, axes) * strides
        pads = np.maximum(0, padded - image)
        attributes = {
            "strides": strides,
            "dilations": dilations,
            "pads": [*np.zeros(axes, int), *pads],
        }
        counts = (image + pads - dilations * (block - 1) - 1) // strides + 1
        x = np.array([1, np.prod(block), np.prod(counts)])
        try:
            g = plain.plan(operator, operator.values(attributes), [x, image, block])[1][0]
        except onnx_ops.OpError:  # a product is too large
            continue
        most = max(most, g["workspace"] - 8 * math.prod(np.minimum(block, counts)[:-2].tolist()))
    assert col2im.PIECE < most < 2**22
    assert 0 < grid_sample.workspace_size(3, 4, grid_sample.BLOCK) < 2**20


LONG_BLOCK = """
import resource
import numpy as np, onnx_ops
size = 2**27
onnx_ops.col2im(np.ones((1, 3, 1), np.uint8), [1], [3], pads=[0, 2])  # compiles
x = np.zeros((1, size, 1), np.uint8)
x[0, 0, 0] = 7
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, used + 2**30))
print(onnx_ops.col2im(x, [1], [size], pads=[0, size - 1]).ravel())
"""


@pytest.mark.long
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="the limit is Linux's")
def test_a_block_of_2_27_pixels_in_little_memory():
    done = python(LONG_BLOCK)
    assert done.stdout == "[7]\n"
    assert all("compiling" in line for line in done.stderr.splitlines()), done.stderr


@pytest.mark.parametrize("block", [1, 511, 512, 513, 1500])
@pytest.mark.parametrize("stride", [1, 3])
def test_blocks_longer_than_the_runs_found_at_once(block, stride):
    case = COL2IM[0]
    x = (
        np.random.default_rng(0)
        .standard_normal((1, 2 * block, 40 // stride + 1))
        .astype(np.float32)
    )
    attributes = {"strides": [1, stride], "pads": [0, 2, 0, 0]}
    inputs = [x, np.array([1, block + 40 // stride * stride - 2]), np.array([1, block])]
    got = onnx_ops.col2im(*inputs, **attributes)
    assert_close(got, reference_of(case.operator, attributes, inputs), "float32")


def test_tiles_side_by_side_have_workspaces_of_their_own(monkeypatch):
    """64 threads give the same result as one, with a kernel that needs its workspace."""
    x = np.random.default_rng(0).standard_normal((4, 64 * 9, 64 * 64)).astype(np.float32)
    sizes, attributes = ([128, 128], [3, 3]), {"strides": [2, 2], "pads": [1, 1, 0, 0]}
    expected = onnx_ops.col2im(x, *sizes, threads=1, **attributes)
    monkeypatch.setattr(system, "available_cpus", lambda: range(64))
    monkeypatch.setattr(threads, "_requests", threads.SimpleQueue())
    monkeypatch.setattr(threads, "_helpers", 0)
    for _ in range(5):
        np.testing.assert_array_equal(
            onnx_ops.col2im(x, *sizes, threads=64, **attributes), expected
        )
    assert threads._helpers == 64


@pytest.mark.parametrize("ending", [KeyboardInterrupt, long_unless(False, ZeroDivisionError)])
def test_no_tile_runs_after_a_call_was_interrupted(ending):
    """The caller's memory may be released after the interrupt."""
    main, helping, begun, ended = threading.current_thread(), threading.Event(), [], []

    def tile(index):
        if threading.current_thread() is main:
            assert helping.wait(PATIENCE)
            raise ending
        begun.append(index)
        helping.set()
        time.sleep(0.2)
        ended.append(index)

    with pytest.raises(ending):
        threads.on_threads(tile, 1000, 2)
    assert begun == ended
    time.sleep(0.3)
    assert len(begun) == len(ended) == 1


def test_an_interrupt_while_helpers_are_waited_for(monkeypatch):
    """The interrupt is raised once the helpers have ended."""
    main, helping, ended = threading.current_thread(), threading.Event(), []
    interrupts = iter([KeyboardInterrupt, KeyboardInterrupt])

    class Interrupted(threads.SimpleQueue):
        def get(self):
            for interrupt in interrupts:
                raise interrupt
            return super().get()

    def tile(index):
        if threading.current_thread() is main:
            assert helping.wait(PATIENCE)
        else:
            helping.set()
            time.sleep(0.2)
            ended.append(index)

    monkeypatch.setattr(threads, "SimpleQueue", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        threads.on_threads(tile, 2, 2)
    assert len(ended) == 1


def test_an_error_in_a_helper_is_raised():
    main, helped = threading.current_thread(), threading.Event()

    def tile(index):
        if threading.current_thread() is main:
            assert helped.wait(PATIENCE)
        else:
            helped.set()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        threads.on_threads(tile, 2, 2)


def test_every_tile_runs_once():
    for tiles, workers in ((1, 4), (2, 2), (64, 4), (200, 3)):
        ran = []
        threads.on_threads(ran.append, tiles, workers)
        assert sorted(ran) == list(range(tiles))


def test_no_more_tiles_at_a_time_than_parts_of_the_workspace():
    running, most = [], []

    def tile(index):
        running.append(index)
        time.sleep(0.005)
        most.append(len(running))
        running.remove(index)

    threads.on_threads(tile, 300, 100)
    assert 1 < max(most) <= MAX_TILES
