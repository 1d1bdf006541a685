"""What is known of integers agrees with ONNX Runtime, over random graphs of the nodes that are written for sizes."""

from contextlib import suppress

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.backends import quiet
from support.selection import long_unless
from support.written import Writer
from test_sizes import filled, filled_position

from onnx_ops.rewriting.graph import Model
from onnx_ops.rewriting.indices import integer_at, integers, shape
from onnx_ops.rewriting.positions import variables

SIZES = {"h": 6, "w": 4, "n": 3}
OTHERS = {"h": 12, "w": 1, "n": 2}
TYPES = TensorProto.INT64, TensorProto.INT32, TensorProto.UINT8, TensorProto.BOOL, TensorProto.FLOAT


def random_node(rng, w, values, array):
    """Add a node that takes some of the values; return its output. array: for each, what it is for SIZES."""

    def some():
        return values[-1 - int(min(rng.exponential(3), len(values) - 1))]

    def number(*choices):
        return w.constant(rng.choice(choices or (0, 1, 2, 3, -1, 6)))

    x = some()
    rank, size = array[x].ndim, array[x].size
    axis = int(rng.integers(-rank, rank)) if rank else 0
    kind = rng.choice([
        "Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Equal", "Where", "Cast", "Concat", "ConstantOfShape",
        "Expand", "Gather", "Range", "ReduceProd", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose",
        "Unsqueeze", "Shape",
    ])  # fmt: skip
    if kind in ("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min"):
        return w.add(kind, *rng.permutation([x, some() if rng.random() < 0.5 else number()]))
    if kind == "Equal":
        return w.add("Cast", w.add(kind, x, number()), to=TensorProto.INT64)
    if kind == "Where":
        return w.add(kind, w.add("Cast", some(), to=TensorProto.BOOL), x, some())
    if kind == "Cast":
        return w.add(kind, w.add(kind, x, to=rng.choice(TYPES).item()), to=TensorProto.INT64)
    if kind == "Concat":
        return w.add(kind, x, *([some()] if rng.random() < 0.5 else [x]), axis=axis)
    if kind == "ConstantOfShape":
        return w.add(kind, w.add("Shape", x), value=numpy_helper.from_array(rng.integers(-3, 3, 1)))
    if kind == "Expand":
        return w.add(kind, x, w.add("Concat", w.constant([2]), w.add("Shape", some()), axis=0))
    if kind == "Gather":
        index = w.constant(rng.integers(-2, 3, rng.choice([0, 1, 3]) or ())) if rng.random() < 0.7 else some()
        return w.add(kind, x, index, axis=axis)
    if kind == "Range":
        limits = [w.add("Reshape", each, w.constant(np.zeros(0))) for each in (some(), some())]
        return w.add(kind, *(number(0, 2) if rng.random() < 0.6 else each for each in limits[:1]), limits[1],
                     number(1, 2, -1))  # fmt: skip
    if kind == "Reshape":
        factors = [d for d in (1, 2, 3, 4, 6, size) if size and size % d == 0]
        first = int(rng.choice(factors or [0]))
        target = w.constant([[-1], [first, -1], [-1, first]][rng.integers(3)])
        return w.add(kind, x, target)
    if kind == "ReduceProd":
        return w.add(kind, x, *[w.constant([axis])][: int(rank and rng.integers(2))], keepdims=int(rng.integers(2)))
    if kind == "Slice":
        start, end, step = rng.choice([0, 0, 1, -2]), rng.choice([1, 2, 5, -1, 2**31 - 1]), rng.choice([1, 1, 2, -1])
        return w.add(kind, x, *(w.constant([v]) for v in (start, end, axis, step)))
    if kind == "Split":
        names = f"part_{len(w.nodes)}", f"rest_{len(w.nodes)}"
        length = array[x].shape[axis] if rank else 0
        w.nodes.append(helper.make_node(kind, [x, w.constant([1, length - 1])], names, axis=axis))
        return names[rng.integers(2)]
    if kind == "Squeeze":
        return w.add(kind, w.add("Unsqueeze", x, w.constant([0])), w.constant([0]))
    if kind == "Tile":
        return w.add(kind, x, w.constant(rng.integers(1, 3, rank)))
    if kind == "Transpose":
        return w.add(kind, x, **({"perm": rng.permutation(rank).tolist()} if rank else {}))
    if kind == "Unsqueeze":
        return w.add(kind, x, w.constant([rng.integers(-rank - 1, rank + 1)]))
    return w.add(kind, x)


def run(w, name, sizes, known, first):
    """Return what ONNX Runtime computes for these sizes; None if it refuses the model, or these.

    known, first  the results of earlier values, and the number of the first node behind these
    """
    known = known | {tensor.name: numpy_helper.to_array(tensor) for tensor in w.initializers}
    for node in w.nodes[first:]:
        operands = [known.get(value, ()) for value in node.input]
        # ONNX Runtime before 1.25 ends the process where newer versions refuse to divide.
        if any(o is None for o in operands) or (node.op_type in ("Div", "Mod") and not np.all(operands[1])):
            return None
    proto = w.model({"x": ("float32", [*SIZES])}, (name, "int64", None))
    try:
        # Optimized, a Gather at a Range becomes a Slice, which doesn't refuse indices outside.
        options = quiet(graph_optimization_level=ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
        session = ort.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
        (result,) = session.run(None, {"x": np.zeros([*sizes.values()], np.float32)})
    except Exception:
        return None
    return result if result.size <= 2000 else None


@pytest.mark.parametrize("seed", [long_unless(seed < 1, seed) for seed in range(6)])
def test_integers_of_random_graphs(seed):
    rng, counts = np.random.default_rng(seed), {"values": 0, "whole": 0, "lists": 0}
    for _ in range(12):
        w = Writer()
        sizes = w.add("Shape", "x")
        values = [sizes, w.constant([2, 3]), *(w.add("Gather", sizes, w.constant(k)) for k in range(3))]
        values.append(w.add("Range", w.constant(0), values[2], w.constant(1)))
        known, others = ({values[1]: np.array([2, 3])} for _ in range(2))  # for SIZES and OTHERS
        for name in (name for name in values if name not in known):
            known[name], others[name] = (run(w, name, sizes, {}, 0) for sizes in (SIZES, OTHERS))
        for _ in range(14):
            nodes = len(w.nodes)
            name = random_node(rng, w, values, known)
            result = run(w, name, SIZES, known, nodes)
            if result is None:
                del w.nodes[nodes:]
                continue
            values.append(name)
            known[name], others[name] = result, run(w, name, OTHERS, others, nodes)
            check(w, name, [(SIZES, result), (OTHERS, others[name])], counts)
    assert counts["whole"] > counts["values"] / 4
    assert counts["lists"] > counts["values"] / 6


def check(w, name, results, counts):
    graph = next(Model(w.model({"x": ("float32", [*SIZES])}, (name, "int64", None))).graphs())
    dimensions, one_by_one = shape(graph, name), integers(graph, name)
    whole = dimensions is not None and integer_at(graph, name, variables(dimensions))
    counts["values"] += 1
    counts["whole"] += bool(whole)
    counts["lists"] += bool(one_by_one) and None not in one_by_one
    for sizes, result in results:
        if result is None:
            continue
        assert dimensions is None or len(dimensions) == result.ndim
        with suppress(NameError):  # of a size that has nothing but a name
            stated = [filled(size, sizes) for size in dimensions or result.shape]
            assert tuple(stated) == result.shape
            if whole:
                np.testing.assert_array_equal(filled_position(whole, stated, sizes), result)
        for known, number in zip(one_by_one or (), result.ravel().tolist(), strict=one_by_one is not None):
            with suppress(NameError):
                assert known is None or filled(known, sizes) == number
