"""Indices agree with the nodes, which are run on numbered elements."""

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from support.selection import long_unless
from support.written import Writer
from test_sizes import filled_position

from onnx_ops.rewriting.graph import Model
from onnx_ops.rewriting.indices import followed, moved, path, shape
from onnx_ops.rewriting.positions import Position, reshaped, variable, variables
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


@pytest.mark.parametrize("seed", [long_unless(seed < 1, seed) for seed in range(4)])
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


def add_write(rng, w, shape):
    """Add a scatter that writes updates into a value of this shape, or a GatherND; return its output."""
    kind, rank = rng.choice(["ScatterElements", "ScatterND", "GatherND"]), len(shape)
    if kind == "ScatterElements":
        axis, sizes = int(rng.integers(rank)), [*shape]
        sizes[axis] = int(rng.integers(1, shape[axis] + 1))
        if rng.random() < 0.3:  # only the first elements of another axis
            sizes[axis - 1] = int(rng.integers(1, sizes[axis - 1] + 1))
        places = rng.permutation(shape[axis])[: sizes[axis]]
        if rng.random() < 0.7:
            step = rng.choice([-1, 1, 2])
            places = np.arange(0, shape[axis] * step, step)[: sizes[axis]] % shape[axis]
        places = places - rng.choice([0, 0, shape[axis]])
        indices = np.broadcast_to(places.reshape([-1 if k == axis else 1 for k in range(rank)]), sizes)
        more, dims = {"axis": axis - int(rng.choice([0, rank]))}, sizes
    else:
        depth = int(rng.integers(1, rank + 1))
        starts = [int(rng.integers(size)) for size in shape[:depth]]
        counts = [int(rng.integers(1, size - start + 1)) for size, start in zip(shape, starts, strict=False)]
        indices = np.stack(np.meshgrid(*map(np.arange, counts), indexing="ij"), -1) + starts
        if rng.random() < 0.3:
            indices = indices[tuple([slice(None)] * (depth - 1))][..., ::-1, :]
        if rng.random() < 0.2:  # a diagonal
            indices = np.stack([np.arange(min(shape[:depth]))] * depth, -1)
        if rng.random() < 0.3:
            indices = indices.reshape(-1, depth)
        more, dims = {}, [*indices.shape[:-1], *shape[depth:]]
    if kind == "GatherND":
        return w.add(kind, "x", w.constant(indices), name="y")
    updates = w.constant(-1 - np.arange(np.prod(dims)).reshape(dims))
    return w.add(kind, "x", w.constant(indices), updates, name="y", **more)


@pytest.mark.parametrize("seed", [long_unless(seed < 1, seed) for seed in range(4)])
def test_elements_that_are_written(seed):
    """Each element that is known to be from the updates, or not, is from there, for one and for all along axes."""
    rng, known_count, count = np.random.default_rng(seed), 0, 0
    numbered = np.arange(np.prod(SIZES)).reshape(SIZES)
    for _ in range(60):
        w = Writer()
        proto = w.model({"x": ("int64", SIZES)}, (add_write(rng, w, SIZES), "int64", None))
        (value,) = ReferenceEvaluator(proto).run(None, {"x": numbered})
        graph = next(Model(proto).graphs())
        node = graph.producers["y"]
        assert shape(graph, "y") == value.shape
        for free in rng.random((6, value.ndim)) < rng.choice([0, 0.3, 0.7, 1], (6, 1)):
            fixed = [int(rng.integers(size)) for size in value.shape]
            index = [at if is_free else Position(number)
                     for at, number, is_free in zip(variables(value.shape), fixed, free, strict=True)]  # fmt: skip
            expected = value[tuple(slice(None) if is_free else slice(number, number + 1)
                                   for number, is_free in zip(fixed, free, strict=True))]  # fmt: skip
            found, count = moved(graph, node, "y", tuple(index)), count + 1
            if found is not None:
                known_count += 1
                name, at = found
                source = numbered if name == "x" else graph.array(name)
                sizes = [size if is_free else 1 for size, is_free in zip(value.shape, free, strict=True)]
                numbers = elements(at, sizes, source.shape)
                np.testing.assert_array_equal(source.ravel()[numbers], expected)
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
