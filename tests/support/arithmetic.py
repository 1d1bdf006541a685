"""Random models that compute with sizes, move elements and write them, and what open sizes stand
for.
"""

import math

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnx_ops.rewriting.sizes import Size

from .backends import quiet

SIZES = {"h": 6, "w": 4, "n": 3}
OTHERS = {"h": 12, "w": 1, "n": 2}
TYPES = TensorProto.INT64, TensorProto.INT32, TensorProto.UINT8, TensorProto.BOOL, TensorProto.FLOAT
VALUES = {"h": 7, "w": 12, "n": 3}


def filled(size, sizes=None):
    """The value of a size for these values of open sizes."""
    if not isinstance(size, Size):
        return int(size)
    broadcast = lambda *sizes_to_fit: 0 if 0 in sizes_to_fit else max(sizes_to_fit)
    return eval(
        repr(size), {"trunc": math.trunc, "max": max, "broadcast": broadcast}, dict(sizes or VALUES)
    )


def expected(proto, sizes):
    return ReferenceEvaluator(proto).run(None, {"x": np.zeros(list(sizes.values()), np.float32)})[0]


def filled_position(position, dimensions, sizes=None):
    """The array of the numbers that a Position over the variables of these dimensions stands
    for.
    """
    shape = [filled(size, sizes) for size in dimensions]
    numbers = {str(k): numbers for k, numbers in enumerate(np.indices(shape))}
    total = np.full(shape, filled(position.start, sizes))
    for term in position.terms:
        inner, size, step = (filled(value, sizes) for value in (term.inner, term.size, term.step))
        total += numbers[term.variable.name] // inner % size * step
    return total


def random_node(rng, w, values, array):
    """Add a node that takes some of the values; return its output. array: for each, what it is for
    SIZES.
    """

    def some():
        return values[-1 - int(min(rng.exponential(3), len(values) - 1))]

    def number(*choices):
        return w.constant(rng.choice(choices or (0, 1, 2, 3, -1, 6)))

    x = some()
    rank, size = array[x].ndim, array[x].size
    axis = int(rng.integers(-rank, rank)) if rank else 0
    op_type = rng.choice([
        "Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Equal", "Where", "Cast", "Concat",
        "ConstantOfShape",
        "Expand", "Gather", "Range", "ReduceProd", "Reshape", "Slice", "Split", "Squeeze", "Tile",
        "Transpose",
        "Unsqueeze", "Shape",
    ])  # fmt: skip
    if op_type in ("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min"):
        return w.add(op_type, *rng.permutation([x, some() if rng.random() < 0.5 else number()]))
    if op_type == "Equal":
        return w.add("Cast", w.add(op_type, x, number()), to=TensorProto.INT64)
    if op_type == "Where":
        return w.add(op_type, w.add("Cast", some(), to=TensorProto.BOOL), x, some())
    if op_type == "Cast":
        return w.add(op_type, w.add(op_type, x, to=rng.choice(TYPES).item()), to=TensorProto.INT64)
    if op_type == "Concat":
        return w.add(op_type, x, *([some()] if rng.random() < 0.5 else [x]), axis=axis)
    if op_type == "ConstantOfShape":
        return w.add(
            op_type, w.add("Shape", x), value=numpy_helper.from_array(rng.integers(-3, 3, 1))
        )
    if op_type == "Expand":
        return w.add(op_type, x, w.add("Concat", w.constant([2]), w.add("Shape", some()), axis=0))
    if op_type == "Gather":
        index = (
            w.constant(rng.integers(-2, 3, rng.choice([0, 1, 3]) or ()))
            if rng.random() < 0.7
            else some()
        )
        return w.add(op_type, x, index, axis=axis)
    if op_type == "Range":
        limits = [w.add("Reshape", value, w.constant(np.zeros(0))) for value in (some(), some())]
        start = [number(0, 2) if rng.random() < 0.6 else value for value in limits[:1]]
        return w.add(op_type, *start, limits[1], number(1, 2, -1))
    if op_type == "Reshape":
        factors = [d for d in (1, 2, 3, 4, 6, size) if size and size % d == 0]
        first = int(rng.choice(factors or [0]))
        target = w.constant([[-1], [first, -1], [-1, first]][rng.integers(3)])
        return w.add(op_type, x, target)
    if op_type == "ReduceProd":
        return w.add(
            op_type,
            x,
            *[w.constant([axis])][: int(rank and rng.integers(2))],
            keepdims=int(rng.integers(2)),
        )
    if op_type == "Slice":
        start, end, step = (
            rng.choice([0, 0, 1, -2]),
            rng.choice([1, 2, 5, -1, 2**31 - 1]),
            rng.choice([1, 1, 2, -1]),
        )
        return w.add(op_type, x, *(w.constant([v]) for v in (start, end, axis, step)))
    if op_type == "Split":
        names = f"part_{len(w.nodes)}", f"rest_{len(w.nodes)}"
        length = array[x].shape[axis] if rank else 0
        w.nodes.append(
            helper.make_node(op_type, [x, w.constant([1, length - 1])], names, axis=axis)
        )
        return names[rng.integers(2)]
    if op_type == "Squeeze":
        return w.add(op_type, w.add("Unsqueeze", x, w.constant([0])), w.constant([0]))
    if op_type == "Tile":
        return w.add(op_type, x, w.constant(rng.integers(1, 3, rank)))
    if op_type == "Transpose":
        return w.add(op_type, x, **({"perm": rng.permutation(rank).tolist()} if rank else {}))
    if op_type == "Unsqueeze":
        return w.add(op_type, x, w.constant([rng.integers(-rank - 1, rank + 1)]))
    return w.add(op_type, x)


def run(w, name, sizes, known_values, first):
    """Return what ONNX Runtime computes for these sizes; None if it refuses the model, or these.

    known, first  the results of earlier values, and the number of the first node behind these
    """
    known_values = known_values | {
        tensor.name: numpy_helper.to_array(tensor) for tensor in w.initializers
    }
    for node in w.nodes[first:]:
        operands = [known_values.get(value, ()) for value in node.input]
        # ONNX Runtime before 1.25 ends the process where newer versions refuse to divide.
        if any(o is None for o in operands) or (
            node.op_type in ("Div", "Mod") and not np.all(operands[1])
        ):
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


def add_move(rng, w, name, shape):
    """Add a node that moves elements of a value of this shape, or leaves some out; return its
    output.
    """
    rank = len(shape)
    axis = int(rng.integers(max(rank, 1)))
    op_type = rng.choice(
        [
            "Transpose",
            "Reshape",
            "Reshape",
            "Unsqueeze",
            *["Slice", "Split", "Gather"][: 3 * (rank > 1)],
        ]
    )
    if op_type == "Transpose":
        return w.add(op_type, name, perm=rng.permutation(rank).tolist())
    if op_type == "Unsqueeze":
        return w.add(op_type, name, w.constant([rng.integers(-rank - 1, rank + 1)]))
    if op_type == "Gather":
        return w.add(
            op_type, name, w.constant(rng.integers(-shape[axis], shape[axis])), axis=axis - rank
        )
    if op_type == "Slice":
        start, end = np.sort(rng.choice(shape[axis] + 1, 2, replace=False))
        return w.add(op_type, name, *(w.constant([v]) for v in (start, end, axis)))
    if op_type == "Split":
        first, second = f"first_{len(w.nodes)}", f"second_{len(w.nodes)}"
        sizes = w.constant([shape[axis] // 2, shape[axis] - shape[axis] // 2])
        w.nodes.append(helper.make_node(op_type, [name, sizes], [first, second], axis=axis))
        return second
    target, left = [], int(np.prod(shape))
    for factor in rng.permutation([2, 2, 2, 3, 3, 4, 6]).tolist():
        if left % factor == 0 and rng.random() < 0.6:
            target, left = [*target, factor], left // factor
    target.insert(int(rng.integers(len(target) + 1)), left if rng.random() < 0.5 else -1)
    return w.add(op_type, name, w.constant(target))


def add_write(rng, w, shape):
    """Add a scatter that writes updates into a value of this shape, or a GatherND; return its
    output.
    """
    op_type, rank = rng.choice(["ScatterElements", "ScatterND", "GatherND"]), len(shape)
    if op_type == "ScatterElements":
        axis, sizes = int(rng.integers(rank)), [*shape]
        sizes[axis] = int(rng.integers(1, shape[axis] + 1))
        if rng.random() < 0.3:  # only the first elements of another axis
            sizes[axis - 1] = int(rng.integers(1, sizes[axis - 1] + 1))
        indices_of_axis = rng.permutation(shape[axis])[: sizes[axis]]
        if rng.random() < 0.7:
            step = rng.choice([-1, 1, 2])
            indices_of_axis = np.arange(0, shape[axis] * step, step)[: sizes[axis]] % shape[axis]
        indices_of_axis = indices_of_axis - rng.choice([0, 0, shape[axis]])
        indices = np.broadcast_to(
            indices_of_axis.reshape([-1 if k == axis else 1 for k in range(rank)]), sizes
        )
        attributes, dims = {"axis": axis - int(rng.choice([0, rank]))}, sizes
    else:
        depth = int(rng.integers(1, rank + 1))
        starts = [int(rng.integers(size)) for size in shape[:depth]]
        counts = [
            int(rng.integers(1, size - start + 1))
            for size, start in zip(shape, starts, strict=False)
        ]
        indices = np.stack(np.meshgrid(*map(np.arange, counts), indexing="ij"), -1) + starts
        if rng.random() < 0.3:
            indices = indices[tuple([slice(None)] * (depth - 1))][..., ::-1, :]
        if rng.random() < 0.2:  # a diagonal
            indices = np.stack([np.arange(min(shape[:depth]))] * depth, -1)
        if rng.random() < 0.3:
            indices = indices.reshape(-1, depth)
        attributes, dims = {}, [*indices.shape[:-1], *shape[depth:]]
    if op_type == "GatherND":
        return w.add(op_type, "x", w.constant(indices), name="y")
    updates = w.constant(-1 - np.arange(np.prod(dims)).reshape(dims))
    return w.add(op_type, "x", w.constant(indices), updates, name="y", **attributes)


def shape_arithmetic(w):
    """Yield values that are computed from the sizes of "x"."""
    shape = w.add("Shape", "x")
    h, wide, n = (w.add("Gather", shape, w.constant(k)) for k in range(3))
    yield shape
    yield w.add("Shape", "x", start=1)
    yield w.add("Shape", "x", start=-2, end=-1)
    yield w.add("Slice", shape, w.constant([1]), w.constant([3]))
    yield w.add(
        "Slice", shape, w.constant([-1]), w.constant([-5]), w.constant([0]), w.constant([-1])
    )
    yield w.add("Gather", shape, w.constant([[2, 0]]))
    yield w.add("Gather", shape, w.constant(-1))
    yield w.add("Concat", w.add("Unsqueeze", h, w.constant([0])), w.constant([-1, 4]), axis=0)
    yield w.add("Mul", w.add("Add", h, wide), n)
    yield w.add("Div", w.add("Add", h, w.constant(3)), w.constant(2))
    yield w.add("Div", w.constant([7, 9]), w.constant(2))
    yield w.add("Mod", w.add("Add", h, w.constant(3)), w.constant(2))
    yield w.add("Cast", w.add("Sub", h, wide), to=TensorProto.INT64)
    target = w.add("Concat", w.add("Unsqueeze", h, w.constant([0])), w.constant([-1, 4]), axis=0)
    ones = w.add(
        "ConstantOfShape", w.add("Shape", target), value=numpy_helper.from_array(np.array([1]))
    )
    yield w.add("Where", w.add("Equal", target, w.constant(-1)), ones, target)
    yield w.add("Expand", w.add("Unsqueeze", h, w.constant([0])), w.constant([2, 3]))
    w.nodes.append(helper.make_node("Split", [shape, w.constant([1, 2])], ["first", "others"]))
    yield "others"
    yield w.add("Reshape", shape, w.constant([3, 1]))
    yield w.add("Reshape", shape, w.constant([0, -1]))
    yield w.add("Transpose", w.add("Unsqueeze", shape, w.constant([1])))
    yield w.add("Squeeze", w.add("Unsqueeze", shape, w.constant([0, 2])), w.constant([0]))
    along = w.add("Range", w.constant(0), w.add("Add", h, w.constant(2)), w.constant(2))
    yield along
    yield w.add("Range", w.constant(2), wide, w.constant(3))
    yield w.add("Range", w.constant(9), w.constant(1), w.constant(-3))
    yield w.add("Gather", w.add("Range", w.constant(0), w.constant(9), h), w.constant(1))
    yield w.add(
        "Gather",
        w.add("Range", w.add("Add", h, w.constant(1)), w.constant(0), w.constant(-1)),
        w.constant(1),
    )
    column = w.add("Unsqueeze", w.add("Range", w.constant(0), wide, w.constant(1)), w.constant([1]))
    yield w.add("Add", along, column)
    yield w.add("Add", w.add("Mul", column, wide), along)
    yield w.add("Sub", w.add("Unsqueeze", along, w.constant([0])), w.constant([[1], [3], [5]]))
    yield w.add("Mul", w.constant(3), along)
    yield w.add("Transpose", column, perm=[1, 0])
    yield w.add("Squeeze", column, w.constant([1]))
    yield w.add("Reshape", along, w.constant([1, -1, 1]))
    all_rows = w.add("Range", w.constant(0), h, w.constant(1))
    yield w.add(
        "Slice",
        all_rows,
        w.constant([-1]),
        w.constant([-(2**63) + 1]),
        w.constant([0]),
        w.constant([-1]),
    )
    yield w.add(
        "Slice",
        all_rows,
        w.constant([0]),
        w.constant([2**63 - 1]),
        w.constant([0]),
        w.constant([2]),
    )
    grid = w.add(
        "Add", w.add("Mul", column, w.constant(10)), w.add("Range", w.constant(0), n, w.constant(1))
    )
    yield w.add("Reshape", grid, w.constant([-1]))
    count = w.add("Mul", wide, n)
    number = w.add("Range", w.constant(0), count, w.constant(1))
    yield w.add("Div", w.add("Reshape", number, w.constant([-1, 1])), w.constant(1))
    pairs = w.add("Range", w.constant(0), w.add("Mul", count, w.constant(2)), w.constant(1))
    yield w.add("Div", pairs, w.constant(2))
    yield w.add("Mod", pairs, w.constant(2))
    yield w.add("Div", w.add("Mul", count, h), wide)
    yield w.add("Mod", w.add("Mul", count, h), n)
    yield w.add("Div", w.add("Sub", h, w.constant(5)), w.constant(2))  # towards zero
    yield w.add("Div", w.add("Sub", w.add("Mul", h, w.constant(4)), w.constant(8)), w.constant(4))


def unknowable(w):
    """Yield values that the sizes do not determine, or not in a known form."""
    shape = w.add("Shape", "x")
    h = w.add("Gather", shape, w.constant(0))
    along = w.add("Range", w.constant(0), h, w.constant(1))
    yield w.add("Mul", along, along)
    yield w.add(
        "Div", w.add("Sub", along, w.constant(5)), w.constant(2)
    )  # towards zero, and it may be negative
    yield w.add("Div", h, w.constant(-2))
    yield w.add("Mod", h, w.constant(-2))
    yield w.add("Equal", h, w.constant(7))
    yield w.add("Where", w.add("Equal", h, w.constant(1)), h, w.constant(2))
    yield w.add("Cast", w.add("Cast", h, to=TensorProto.FLOAT), to=TensorProto.INT64)
    yield w.add("Gather", shape, h)
    yield w.add("Slice", shape, w.constant([0]), w.add("Unsqueeze", h, w.constant([0])))
    yield w.add("Concat", along, w.constant([1]), axis=0)
    yield w.add(
        "Add",
        along,
        w.add("Range", w.constant(0), w.add("Gather", shape, w.constant(1)), w.constant(1)),
    )
    yield w.add("NonZero", "x")
    yield w.add("Reshape", along, w.constant([2, -1]))
