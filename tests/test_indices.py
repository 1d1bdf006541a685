"""Indices agree with the nodes, which are run on numbered elements."""

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from support.written import Writer
from test_sizes import filled_position

from onnx_ops.rewriting.graph import Model
from onnx_ops.rewriting.indices import followed, path, shape
from onnx_ops.rewriting.positions import reshaped, variable, variables
from onnx_ops.rewriting.sizes import named

SIZES = 2, 6, 4, 3


def elements(index, dimensions, source, **opened):
    """For each element of a value with these dimensions the number of the source's element at an index of variables.

    opened: the values of open sizes
    """
    return np.ravel_multi_index([filled_position(at, dimensions, opened) for at in index], source)


def add_move(rng, w, name, shape):
    """Add a node that moves elements of a value of this shape, or leaves some out; return its output."""
    rank = len(shape)
    axis = int(rng.integers(max(rank, 1)))
    kind = rng.choice(["Transpose", "Reshape", "Reshape", "Unsqueeze", *["Slice", "Split", "Gather"][: 3 * (rank > 1)]])
    if kind == "Transpose":
        return w.add(kind, name, perm=rng.permutation(rank).tolist())
    if kind == "Unsqueeze":
        return w.add(kind, name, w.constant([rng.integers(-rank - 1, rank + 1)]))
    if kind == "Gather":
        return w.add(kind, name, w.constant(rng.integers(-shape[axis], shape[axis])), axis=axis - rank)
    if kind == "Slice":
        start, end = np.sort(rng.choice(shape[axis] + 1, 2, replace=False))
        return w.add(kind, name, *(w.constant([v]) for v in (start, end, axis)))
    if kind == "Split":
        first, second = f"first_{len(w.nodes)}", f"second_{len(w.nodes)}"
        sizes = w.constant([shape[axis] // 2, shape[axis] - shape[axis] // 2])
        w.nodes.append(helper.make_node(kind, [name, sizes], [first, second], axis=axis))
        return second
    target, left = [], int(np.prod(shape))
    for factor in rng.permutation([2, 2, 2, 3, 3, 4, 6]).tolist():
        if left % factor == 0 and rng.random() < 0.6:
            target, left = [*target, factor], left // factor
    target.insert(int(rng.integers(len(target) + 1)), left if rng.random() < 0.5 else -1)
    return w.add(kind, name, w.constant(target))


@pytest.mark.parametrize("seed", range(4))
def test_indices_are_what_nodes_move(seed):
    """Known indices are right. Some are unknown, since a reshape may cut axes where there is no digit to cut."""
    rng, known_count, count = np.random.default_rng(seed), 0, 0
    numbered = np.arange(np.prod(SIZES)).reshape(SIZES)
    for _ in range(40):
        w, name, value = Writer(), "x", numbered
        for _ in range(5):
            name = add_move(rng, w, name, value.shape)
            proto = w.model({"x": ("int64", numbered.shape)}, (name, "int64", None))
            (value,) = ReferenceEvaluator(proto).run(None, {"x": numbered})
            graph = next(Model(proto).graphs())
            assert shape(graph, name) == value.shape
            index = followed(graph, path(graph, name)[0], variables(value.shape))
            count += 1
            if index is not None:
                known_count += 1
                np.testing.assert_array_equal(elements(index, value.shape, SIZES), value)
    assert known_count > count / 3


@pytest.mark.parametrize(
    "target", [["n", 4, 6, 3], ["n", 4, -1], [-1, 4, 2, 9], ["4n", 6, 3], [0, -1], [0, 0, 0, 0]], ids=str
)
def test_open_sizes(target):
    """A batch of any size is merged with another axis and separated again."""
    w = Writer()
    batch = w.add("Gather", w.add("Shape", "x"), w.constant([0]), axis=0)
    sizes = {"n": batch, "4n": w.add("Mul", batch, w.constant(4))}
    y = w.add("Transpose", "x", perm=[0, 2, 1, 3])
    if 0 not in target:
        y = w.add("Reshape", y, w.constant([-1, 18]))
    y = w.add("Reshape", y, w.add("Concat", *(sizes[t] if t in sizes else w.constant([t]) for t in target), axis=0))
    proto = w.model({"x": ("int64", ["n", 6, 4, 3])}, (y, "int64", [None] * len(target)))
    graph = next(Model(proto).graphs())
    dimensions = shape(graph, y)
    index = followed(graph, path(graph, y)[0], variables(dimensions))
    for n in (1, 2, 5):
        numbered = np.arange(n * 72).reshape(n, 6, 4, 3)
        (value,) = ReferenceEvaluator(proto).run(None, {"x": numbered})
        np.testing.assert_array_equal(elements(index, dimensions, numbered.shape, n=n), value)


def test_two_names_of_one_size():
    """A Reshape that gives a batch the size of another value's does so in every run that it permits."""
    w = Writer()
    y = w.add("Reshape", "x", w.add("Concat", w.add("Shape", "other", end=1), w.constant([4, 6, 3]), axis=0))
    proto = w.model({"x": ("int64", ["n", 24, 3]), "other": ("int64", ["m"])}, (y, "int64", [None] * 4))
    graph = next(Model(proto).graphs())
    m, *sizes = shape(graph, y)
    index = variables((m, *sizes))
    assert (repr(m), sizes) == ("m", [4, 6, 3])
    n, pixel, channel = followed(graph, path(graph, y)[0], index)
    assert (n, pixel, channel) == (variable("0", named("n")), index[1].times(6) + index[2], index[3])
    batch, *others = variables([m, 4, 6])
    with pytest.raises((ValueError, IndexError)):
        reshaped((batch, *others), (m, 4, 6), (named("n"), 12))
