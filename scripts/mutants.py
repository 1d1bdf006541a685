"""Small models that `optimize` rewrites, and mutations: most change what is computed, or only how it is written.

A mutant is the name of a seed and a list of mutations, each with a number from which it draws: so a mutation can be
left out, and the others stay as they are.
"""

import contextlib
import tempfile
from functools import partial

import numpy as np
import onnx
import onnxruntime as ort
from onnx import AttributeProto, helper, numpy_helper
from support.backends import quiet
from support.written import Writer, affine_grid, attention, feeds, perspective, unfold, warp

import onnx_ops
from onnx_ops.nodes import all_nodes, model_nodes, subgraphs  # noqa: F401

INTEGERS = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
MODES = ["bilinear", "nearest", "bicubic"]
NEWER = {"bilinear": "linear", "bicubic": "cubic"}  # names of modes from version 20 on
PADDING = ["zeros", "border", "reflection"]
DIMS = ["n", "h", "N", "a-b", "h*2", "h+1", "h-1", "2*n", "h//2", "h-0"]  # names that look like formulas, too
FIRST, LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class Inapplicable(Exception):  # noqa: N818  it is no error
    """A mutation finds nothing to change."""


def one_of(rng, values):
    values = list(values)
    if not values:
        raise Inapplicable
    return values[rng.integers(len(values))]


def chance(rng, probability=0.5):
    return rng.random() < probability


# Seeds: each returns (model, {name of an open dimension: its size}).


def _opset(rng, least=16):
    return int(rng.integers(least, 23))


def _sampling(rng, opset, modes=MODES):
    mode = one_of(rng, modes)
    settings = {"padding_mode": one_of(rng, PADDING), "align_corners": int(rng.integers(2))}
    settings = {name: value for name, value in settings.items() if chance(rng)}
    return {"mode": NEWER.get(mode, mode) if opset >= 20 else mode, **settings}


def _ints(rng, least, most, count):
    return tuple(map(int, rng.integers(least, most + 1, count)))


def _unfold(rng, open_sizes=False):
    axes = one_of(rng, [1, 2, 2, 2, 3])
    kernel, dilations, strides = _ints(rng, 1, 3, axes), _ints(rng, 1, 2, axes), _ints(rng, 1, 2, axes)
    pads = _ints(rng, 0, chance(rng), 2 * axes)
    image = tuple(d * (k - 1) + 1 + int(rng.integers(4)) for k, d in zip(kernel, dilations, strict=True))
    batch, channels, target = int(rng.integers(1, 4)), int(rng.integers(1, 3)), {}
    if chance(rng, 0.3):
        target = {"target": one_of(rng, [[0, channels * int(np.prod(kernel)), -1], [-1]])}
    edits = {"kernel": kernel, "dilations": dilations, "strides": strides, "pads": pads, "image": image}
    kind = one_of(rng, ["float32", "float32", "uint8"])
    proto = unfold(open_sizes, _opset(rng), batch=batch, channels=channels, dtype=kind, **edits, **target)
    return proto, {"n": batch, **{f"size_{k}": size for k, size in enumerate(image)}}


def _affine_grid(rng, **edits):
    size, batch = _ints(rng, 1, 4, one_of(rng, [2, 2, 3])), int(rng.integers(1, 4))
    opset = _opset(rng, 16 if len(size) == 2 else 20)
    sample = {"sample": _sampling(rng, opset)["mode"]} if chance(rng) else {}
    is_open, corners = chance(rng, 0.4), chance(rng)
    return affine_grid(is_open, opset, size=size, batch=batch, align_corners=corners, **sample, **edits), {"n": batch}


def _affine_grid_of_onnx(rng):
    """GridSample after AffineGrid of ai.onnx."""
    w, opset, (batch, height, width) = Writer(), _opset(rng, 20), _ints(rng, 1, 4, 3)
    corners = {"align_corners": int(rng.integers(2))} if chance(rng, 0.7) else {}
    w.add("AffineGrid", "theta", w.constant([batch, 2, height, width]), name="grid", **corners)
    w.add("GridSample", "image", "grid", name="y", **_sampling(rng, opset))
    inputs = {"theta": ("float32", [batch, 2, 3]), "image": ("float32", [batch, 2, 4, 3])}
    return w.model(inputs, ("y", "float32", None), opset), {}


def _perspective(rng):
    opset, batch, divided = _opset(rng), int(rng.integers(1, 3)), chance(rng, 0.6)
    mode = _sampling(rng, opset)["mode"]
    return perspective(divided, size=_ints(rng, 1, 3, 2), batch=batch, opset=opset, mode=mode), {}


def _flow(rng):
    opset, size, layout = _opset(rng), _ints(rng, 2, 4, 2), one_of(rng, ["first", "last", "maps"])
    steps = one_of(rng, [None, [("Mul", 2), ("Sub", 1)], [("Mul", [2, 3]), ("Sub", [0.5, 1])], [("Neg", 0)], []])
    sampling = _sampling(rng, opset)
    edits = {"size": size, "opset": opset, "layout": layout, "mode": sampling.pop("mode"), "sampling": sampling}
    return warp(steps, layout == "first" and chance(rng), batch=int(rng.integers(1, 3)), **edits), {}


def _places(rng):
    """GridSample at 2 * p - 1, with the coordinates on the last or on the second axis of p."""
    w, opset, interleaved, size = Writer(), _opset(rng), chance(rng, 0.6), [*_ints(rng, 1, 5, 3)]
    grid = w.add("Mul", *["p", w.constant(2, "float32")][:: one_of(rng, [1, -1])])
    grid = w.add("Sub", grid, w.constant(1, "float32"))
    grid = grid if interleaved else w.add("Transpose", grid, perm=[0, 2, 3, 1])
    w.add("GridSample", "image", grid, name="y", **_sampling(rng, opset))
    p = [*size, 2] if interleaved else [size[0], 2, *size[1:]]
    return w.model({"p": ("float32", p), "image": ("float32", [size[0], 1, 4, 3])}, ("y", "float32", None), opset), {}


def _attention(rng, open_sizes=False):
    opset, levels = _opset(rng), tuple(_ints(rng, 1, 3, 2) for _ in range(rng.integers(1, 3)))
    sizes = {name: int(rng.integers(1, 4)) for name in ("batch", "queries", "heads", "channels", "points")}
    cut, merged = one_of(rng, ["Split", "Split", "Slice", "SplitToSequence"]), chance(rng, 0.4)
    mode = {"mode": _sampling(rng, opset, ["bilinear"])["mode"]}
    proto = attention(open_sizes, opset, levels=levels, cut=cut, merged=merged, sampling=mode, **sizes)
    return proto, {"n": sizes["batch"], "q": sizes["queries"]}


SEEDS = {
    "unfold": _unfold,
    "unfold of open sizes": partial(_unfold, open_sizes=True),
    "affine_grid": _affine_grid,
    "affine_grid by rows": partial(_affine_grid, by_rows=True),
    "affine_grid of ai.onnx": _affine_grid_of_onnx,
    "perspective": _perspective,
    "flow": _flow,
    "places": _places,
    "attention": _attention,
    "attention of open sizes": partial(_attention, open_sizes=True),
}


def options(level):
    """Return options for a session; level: which of its optimizations ONNX Runtime does."""
    return quiet(intra_op_num_threads=1, graph_optimization_level=getattr(ort.GraphOptimizationLevel, level))


def opened(proto, level):
    """Return a session of ONNX Runtime with our operators."""
    return ort.InferenceSession(proto.SerializeToString(), onnx_ops.register(options(level), proto))


def with_all_outputs(proto):
    """Return a copy of a model in which all values of the main graph are outputs."""
    copy = onnx.ModelProto.FromString(proto.SerializeToString())
    known = {output.name for output in copy.graph.output}
    names = dict.fromkeys(name for node in copy.graph.node for name in node.output if name and name not in known)
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return copy


class Draft:
    """A model that is being changed.

    sizes         {name of an open dimension: its size}
    values        {name: array} of the values in the main graph, for random inputs of these sizes
    at, position  the node, and the input of it, that a mutation has picked: new nodes are inserted before it
    """

    def __init__(self, proto, sizes):
        self.proto, self.sizes, self.count, self.at, self.position = proto, sizes, 0, 0, 0
        del self.graph.value_info[:]
        for output in self.graph.output:
            output.type.tensor_type.ClearField("shape")
        self.evaluate()

    @property
    def graph(self):
        return self.proto.graph

    @property
    def opset(self):
        return next(i.version for i in self.proto.opset_import if not i.domain)

    @property
    def inputs(self):
        """The inputs without a default."""
        defaults = {tensor.name for tensor in self.graph.initializer}
        return [i for i in self.graph.input if i.name not in defaults]

    def evaluate(self):
        """Run the model; raises what ONNX Runtime raises."""
        session, arrays = opened(with_all_outputs(self.proto), "ORT_DISABLE_ALL"), self.feeds(self.sizes)
        arrays |= dict(zip([o.name for o in session.get_outputs()], session.run(None, arrays), strict=True))
        arrays |= {tensor.name: numpy_helper.to_array(tensor) for tensor in self.graph.initializer}
        self.values = {name: array for name, array in arrays.items() if isinstance(array, np.ndarray)}

    def feeds(self, sizes, seed=0):
        return feeds(self.proto, sizes, seed)

    def apply(self, mutation, number, may_break=False):
        """Apply a mutation; returns whether the model has changed. It doesn't if the mutation finds nothing to change.

        may_break  whether it also changes if ONNX Runtime then refuses it
        """
        before, sizes = self.proto.SerializeToString(), dict(self.sizes)
        with contextlib.suppress(Inapplicable):
            MUTATIONS[mutation](self, np.random.default_rng(number))
            try:
                self.evaluate()
                return True
            except Exception:  # ONNX Runtime has one for each kind of refusal
                if may_break:
                    return True
        self.proto.ParseFromString(before)
        self.sizes = sizes
        return False

    # What mutations use.

    def name(self, like):
        self.count += 1
        return f"{like}_m{self.count}"

    def constant(self, value, dtype="int64"):
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(value, dtype), self.name("constant")))
        return self.graph.initializer[-1].name

    def add(self, op_type, *inputs, outputs=1, **attributes):
        """Insert a node; returns the name of its output, or a list of them."""
        names = [self.name(op_type.lower()) for _ in range(outputs)]
        self.graph.node.insert(self.at, helper.make_node(op_type, list(inputs), names, **attributes))
        self.at += 1
        return names if outputs > 1 else names[0]

    def output(self, name):
        self.graph.output.append(onnx.ValueInfoProto(name=name))

    def pick(self, rng, wanted=lambda array: True):
        """Pick an input of a node, or an output of the graph, whose value is wanted; returns the value's name."""
        nodes, count = self.graph.node, len(self.graph.node)
        edges = [(k, p, name) for k, node in enumerate(nodes) for p, name in enumerate(node.input)]
        edges += [(count, p, output.name) for p, output in enumerate(self.graph.output)]
        edges = [edge for edge in edges if edge[2] in self.values and wanted(self.values[edge[2]])]
        self.at, self.position, name = one_of(rng, edges)
        return name

    def connect(self, name):
        """Let what is picked use another value."""
        if self.at < len(self.graph.node):
            self.graph.node[self.at].input[self.position] = name
        else:
            self.graph.output[self.position].name = name

    def known_before(self):
        """The names of values that exist where new nodes are inserted."""
        later = {name for node in self.graph.node[self.at :] for name in node.output}
        return [name for name in self.values if name not in later]


# Mutations that compute a value anew, by nodes between it and one that uses it: each returns the new value's name.


def _axis(rng, array):
    axis = int(rng.integers(array.ndim))
    return (axis - array.ndim if chance(rng, 0.3) else axis), array.shape[axis]


def _identity(draft, rng, name, array):
    return draft.add("Identity", name)


def _gather(draft, rng, name, array):
    axis, size = _axis(rng, array)
    count = size if chance(rng, 0.7) else int(rng.integers(1, size + 2))
    index = one_of(
        rng, [rng.permutation(size), rng.integers(-size, size, count), np.sort(rng.integers(0, size, count))]
    )
    return draft.add("Gather", name, draft.constant(index), axis=axis)


def _gather_one(draft, rng, name, array):
    axis, size = _axis(rng, array)
    picked = draft.add("Gather", name, draft.constant(rng.integers(-size, size)), axis=axis)
    return draft.add("Unsqueeze", picked, draft.constant([axis])) if chance(rng, 0.8) else picked


def _slice(draft, rng, name, array):
    axis, size = _axis(rng, array)
    wholes = [
        (0, size, 1),
        (0, LAST, 1),
        (-size, LAST, 1),
        (-1, FIRST, -1),
        (size - 1, -size - 1, -1),
        (LAST, FIRST, -1),
    ]
    part = (int(rng.integers(-size - 1, size + 1)), int(rng.integers(-size - 1, size + 2)), one_of(rng, [1, 2, -1, -2]))
    lists = [[v] for v in (*one_of(rng, [*wholes, part]), axis)]
    if array.ndim > 1 and chance(rng, 0.2):  # along two axes
        lists = [[*first, v] for first, v in zip(lists, [0, LAST, 1, (axis + 1) % array.ndim], strict=True)]
    start, end, step, axes = lists
    more = [axes, step] if step[0] != 1 or chance(rng) else [axes] if axis or chance(rng) else []
    return draft.add("Slice", name, *map(draft.constant, (start, end, *more)))


def _transpose(draft, rng, name, array):
    order = rng.permutation(array.ndim)
    turned = draft.add("Transpose", name, perm=order)
    return draft.add("Transpose", turned, perm=np.argsort(order)) if chance(rng, 0.6) else turned


def _unsqueeze(draft, rng, name, array):
    rank, count = array.ndim, int(rng.integers(1, 3))
    axes = sorted(rng.permutation(rank + count)[:count])
    axes = [k - rank - count for k in axes] if chance(rng, 0.3) else axes
    wider = draft.add("Unsqueeze", name, draft.constant(axes))
    return draft.add("Squeeze", wider, draft.constant(axes)) if chance(rng, 0.7) else wider


def _squeeze(draft, rng, name, array):
    axes = [draft.constant([one_of(rng, [k for k, size in enumerate(array.shape) if size == 1])])]
    return draft.add("Squeeze", name, *axes[: int(chance(rng, 0.7))])


def _reshape(draft, rng, name, array):
    target, flat = list(array.shape), draft.add("Reshape", name, draft.constant([-1]))
    for k in range(len(target)):
        target[k] = one_of(rng, [target[k], target[k], 0]) if chance(rng, 0.4) else target[k]
    target = [-1 if k == rng.integers(array.ndim) else size for k, size in enumerate(target)]
    if chance(rng, 0.3):
        return draft.add("Reshape", flat, draft.constant([-1, *array.shape[1:]]))
    return draft.add("Reshape", name, draft.constant(target if chance(rng, 0.8) else target[::-1]))


def _expand(draft, rng, name, array):
    target = one_of(rng, [array.shape, [1] * array.ndim, [1, *array.shape], [s + (s == 1) for s in array.shape]])
    return draft.add("Expand", name, draft.constant(target))


def _split(draft, rng, name, array):
    axis, size = _axis(rng, array)
    first = int(rng.integers(1, max(size, 2)))
    parts = draft.add("Split", name, draft.constant([first, size - first]), outputs=2, axis=axis)
    return draft.add("Concat", *one_of(rng, [parts, parts[::-1], parts[:1] * 2]), axis=axis)


def _double(draft, rng, name, array):
    axis, size = _axis(rng, array)
    double = draft.add("Concat", name, name, axis=axis)
    start = int(rng.integers(size + 1))
    return draft.add("Slice", double, *map(draft.constant, ([start], [start + size], [axis])))


def _tile(draft, rng, name, array):
    return draft.add("Tile", name, draft.constant([1 + chance(rng, 0.1) for _ in array.shape]))


def _cast(draft, rng, name, array, kind=None):
    kind = kind or one_of(rng, ["float64", "float32"] if array.dtype.kind == "f" else INTEGERS)
    return draft.add("Cast", name, to=helper.np_dtype_to_tensor_dtype(np.dtype(kind)))


def _cast_back(draft, rng, name, array):
    return _cast(draft, rng, _cast(draft, rng, name, array), array, array.dtype.name)


def _wrap_around(draft, rng, name, array):
    """Compute with integers of another type and undo it; for a constant, also without a Cast to this type."""
    kind = one_of(rng, INTEGERS)
    limits, is_constant = np.iinfo(kind), any(tensor.name == name for tensor in draft.graph.initializer)
    number = one_of(rng, [2, 3, 100, limits.max // 2, limits.max, int(rng.integers(1, 100))])
    do, undo = one_of(rng, [("Mul", "Div"), ("Sub", "Add"), ("Add", "Sub")])
    narrow = draft.constant(array.astype(kind), kind) if is_constant else _cast(draft, rng, name, array, kind)
    done = draft.add(do, narrow, draft.constant(number, kind))
    if chance(rng):
        done = _cast(draft, rng, done, array, array.dtype.name)
        return draft.add(undo, done, draft.constant(np.asarray(number, kind).astype(array.dtype), array.dtype))
    return _cast(draft, rng, draft.add(undo, done, draft.constant(number, kind)), array, array.dtype.name)


def _neutral(draft, rng, name, array):
    """Compute with floats what changes nothing, or not much."""
    if chance(rng, 0.2):
        return draft.add("Neg", draft.add("Neg", name))
    op_type, number = one_of(rng, [("Mul", 1), ("Div", 1), ("Sub", 0), ("Add", 0), ("Mul", 2), ("Add", 1), ("Mul", -1)])
    shape = one_of(rng, [[], [1], [1] * array.ndim, array.shape])
    return draft.add(op_type, name, draft.constant(np.full(shape, number), array.dtype))


def _times_size(draft, rng, name, array):
    """Multiply by a size of any value."""
    other = one_of(rng, [n for n in draft.known_before() if draft.values[n].ndim])
    if chance(rng, 0.3):
        size = draft.add("Size", other)
    else:
        size = draft.add(
            "Gather", draft.add("Shape", other), draft.constant(_axis(rng, draft.values[other])[0]), axis=0
        )
    return draft.add("Mul", name, _cast(draft, rng, size, array, array.dtype.name))


def _compute(draft, rng, name, array):
    """Compute integers from the size of an input: they are as before only for inputs of this size."""
    source = one_of(rng, [i.name for i in draft.inputs if draft.values[i.name].ndim])
    axis, size = _axis(rng, draft.values[source])
    size_name = draft.add("Gather", draft.add("Shape", source), draft.constant([axis][int(array.ndim == 0) :] or axis))
    flat = array.ravel()
    if array.ndim == 1 and chance(rng) and (np.diff(flat) == 1).all():
        scalar = draft.add("Squeeze", size_name)
        limit = draft.add("Add", scalar, draft.constant(flat[0] + len(flat) - size))
        return draft.add("Range", draft.constant(flat[0]), limit, draft.constant(1))
    if array.size == 1 and flat[0] == size:
        return size_name
    return draft.add("Add", size_name, draft.constant(array - size))


def _fold(draft, rng, name, array):
    return draft.constant(array, array.dtype)


def _other(draft, rng, name, array):
    same = [n for n in draft.known_before() if draft.values[n].shape == array.shape and n != name]
    return one_of(rng, [n for n in same if draft.values[n].dtype == array.dtype])


def _another_input(draft, rng, name, array):
    like, open_sizes = draft.name("like"), chance(rng)
    dims = [f"{like}_{k}" if open_sizes else size for k, size in enumerate(array.shape)]
    draft.sizes |= dict(zip(dims, array.shape, strict=True)) if open_sizes else {}
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    draft.graph.input.append(helper.make_tensor_value_info(like, kind, dims))
    return like


def _has_axes(array):
    return array.ndim > 0 and array.size > 0 and array.dtype.kind in "fiub"


def _is_integers(array):
    return array.dtype.kind in "iu" and array.size > 0


def _is_short(array):
    return array.dtype == np.int64 and 0 < array.size <= 8


def _is_float(array):
    return array.dtype.name in ("float32", "float64") and array.size > 0


MOVES = {
    function: wanted
    for wanted, functions in {
        _has_axes: (_gather, _gather_one, _slice, _transpose, _unsqueeze, _squeeze, _reshape, _expand, _split, _double,
                    _tile, _identity, _another_input),
        _is_integers: (_cast_back, _wrap_around),
        _is_float: (_neutral, _times_size),
        _is_short: (_compute,),
        np.any: (_fold, _other),
    }.items()
    for function in functions
}  # fmt: skip


def _moving(function, wanted):
    def mutation(draft, rng):
        name = draft.pick(rng, wanted)
        draft.connect(function(draft, rng, name, draft.values[name]))

    return mutation


# Mutations of the rest of a model.


def larger_input(draft, rng):
    """Let an input have more elements than are used, or fewer, some of them several times."""
    value = one_of(rng, [i for i in draft.inputs if len(i.type.tensor_type.shape.dim)])
    axis, used = int(rng.integers(len(value.type.tensor_type.shape.dim))), draft.values[value.name].shape
    dimension, size = value.type.tensor_type.shape.dim[axis], int(rng.integers(1, used[axis] + 3))
    dimension.dim_value = size
    draft.at, name = 0, value.name
    if size > used[axis] and chance(rng, 0.4):
        step = -1 if chance(rng) else 1
        first = int(rng.integers(size - used[axis] + 1))
        ends = [first, first + used[axis]] if step > 0 else [first - size + used[axis] - 1, first - size - 1]
        new = draft.add("Slice", name, *map(draft.constant, ([ends[0]], [ends[1]], [axis], [step])))
    else:
        index = one_of(rng, [np.sort(rng.integers(0, size, used[axis])), rng.integers(-size, size, used[axis])])
        new = draft.add("Gather", name, draft.constant(index), axis=axis)
    _rename(draft.graph.node[draft.at :], {name: new})


def _rename(nodes, names):
    for node in nodes:
        for inner in (node, *(n for graph in subgraphs(node) for n in all_nodes(graph))):
            for values in (inner.input, inner.output):
                values[:] = [names.get(name, name) for name in values]


def remove_node(draft, rng):
    node = one_of(rng, [n for n in draft.graph.node if n.input and n.input[0] and len(n.output) == 1])
    draft.graph.node.remove(node)
    _rename(draft.graph.node, {node.output[0]: node.input[0]})
    for output in draft.graph.output:
        output.name = node.input[0] if output.name == node.output[0] else output.name


def change_constant(draft, rng):
    tensor = one_of(rng, [t for t in draft.graph.initializer if np.prod(t.dims) > 0])
    array = numpy_helper.to_array(tensor).copy()
    if chance(rng, 0.3):
        array = one_of(rng, [array[::-1], array.ravel(), array.reshape(-1)[:1]]) if array.ndim else array[None]
    elif array.dtype.kind in "fiu":
        with np.errstate(all="ignore"):
            array.flat[rng.integers(array.size)] += np.asarray(one_of(rng, [-1, 1, 1, 2])).astype(array.dtype)
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))


def constant_by_node(draft, rng):
    tensor = one_of(rng, draft.graph.initializer)
    array, name, attributes = numpy_helper.to_array(tensor), tensor.name, {"value": tensor}
    if array.ndim < 2 and array.dtype in (np.int64, np.float32) and chance(rng):
        kind = {"i": "value_int", "f": "value_float"}[array.dtype.kind] + "s" * array.ndim
        attributes = {kind: array.tolist()} if array.size else attributes
    draft.graph.node.insert(0, helper.make_node("Constant", [], [name], **attributes))
    draft.graph.initializer.remove(tensor)


def constant_with_caller(draft, rng):
    """Let callers replace a constant: an initializer that is an input, too, is a default."""
    known = {i.name for i in draft.graph.input}
    tensor = one_of(rng, [t for t in draft.graph.initializer if t.name not in known])
    draft.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))


ATTRIBUTES = {"mode": [*MODES, *NEWER.values()], "padding_mode": PADDING, "align_corners": [0, 1], "keepdims": [0, 1],
              "allowzero": [0, 1], "axis": range(-4, 5), "start": range(-3, 3), "end": range(-3, 5)}  # fmt: skip


def change_attribute(draft, rng):
    node = one_of(rng, [n for n in draft.graph.node if n.attribute and n.op_type != "Constant"])
    attribute = one_of(rng, node.attribute)
    if chance(rng, 0.4):
        node.attribute.remove(attribute)
    elif attribute.name in ATTRIBUTES:
        attribute.CopyFrom(helper.make_attribute(attribute.name, one_of(rng, ATTRIBUTES[attribute.name])))
    elif attribute.ints:
        attribute.ints[:] = rng.permutation(attribute.ints)
    else:
        raise Inapplicable


def shape_output(draft, rng):
    name, draft.at = one_of(rng, draft.values), len(draft.graph.node)
    draft.output(draft.add("Shape", name, **({"start": int(rng.integers(-2, 3))} if chance(rng, 0.3) else {})))


def mean_output(draft, rng):
    """Divide the sum of a value by the product of its sizes, or the sum over some axes by their sizes."""
    name, draft.at = one_of(rng, [n for n, a in draft.values.items() if _is_float(a)]), len(draft.graph.node)
    sizes = draft.add("Shape", name, start=int(rng.integers(-3, 1)))
    count = draft.add("Cast", draft.add("ReduceProd", sizes, keepdims=0), to=1)
    total = draft.add("ReduceSum", draft.add("Cast", name, to=1), keepdims=0)
    draft.output(draft.add("Div", total, count))


def more_output(draft, rng):
    known = {output.name for output in draft.graph.output}
    draft.output(one_of(rng, [name for node in draft.graph.node for name in node.output if name not in known]))


def name_dimension(draft, rng):
    """Let the size of an input be open, or give an open one another name, here or everywhere, or its value."""
    value = one_of(rng, [i for i in draft.inputs if len(i.type.tensor_type.shape.dim)])
    axis = int(rng.integers(len(value.type.tensor_type.shape.dim)))
    dimension, size = value.type.tensor_type.shape.dim[axis], draft.values[value.name].shape[axis]
    old, new = dimension.dim_param, one_of(rng, [n for n in DIMS if draft.sizes.get(n, size) == size])
    draft.sizes[new] = size
    if old and chance(rng, 0.2):
        dimension.dim_value = size
        return
    dimension.dim_param = new
    for other in draft.graph.input if old and chance(rng, 0.7) else ():
        for d in other.type.tensor_type.shape.dim:
            d.dim_param = new if d.dim_param == old else d.dim_param


def duplicate(draft, rng):
    """Compute an output twice, from the same inputs and constants."""
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in draft.graph.node]
    _rename(nodes, {name: f"{name}_again" for node in nodes for name in node.output if name})
    draft.graph.node.extend(nodes)
    draft.output(f"{draft.graph.output[0].name}_again")


def damage(draft, rng):
    """Damage a node, most likely so that it no longer runs."""
    node, kind = one_of(rng, draft.graph.node), rng.integers(5)
    if kind == 0 and node.input:
        del node.input[rng.integers(len(node.input))]
    elif kind == 1:
        del node.output[:]
    elif kind == 2 and node.input:
        node.input[rng.integers(len(node.input))] = one_of(rng, ["", "nothing", *node.output])
    elif kind == 3:
        node.op_type = one_of(rng, [n.op_type for n in draft.graph.node])
    elif node.attribute:
        attribute = one_of(rng, node.attribute)
        attribute.i = int(rng.integers(-3, 6))
        attribute.ints[:] = rng.integers(-3, 6, len(attribute.ints))


# Mutations that put nodes into a function or a subgraph.


def _cut(draft, rng):
    """Take successive nodes out of the graph; returns (nodes, names that they use, names that others use of theirs)."""
    nodes = draft.graph.node
    start = int(rng.integers(len(nodes)))
    end = int(rng.integers(start, len(nodes))) + 1
    inside, after = [*nodes[start:end]], nodes[end:]
    names_used = lambda some: {name for n in some for i in (n, *_inner(n)) for name in i.input if name}
    made = {name for node in inside for name in node.output}
    users = names_used(after) | {output.name for output in draft.graph.output}
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in inside]
    used = names_used(inside) - made - {name for n in inside for i in _inner(n) for name in i.output}
    del nodes[start:end]
    draft.at = start
    if not users & made:
        raise Inapplicable
    return copies, sorted(used), sorted(users & made)


def _inner(node):
    return [inner for graph in subgraphs(node) for inner in all_nodes(graph)]


def function(draft, rng):
    """Put nodes into a local function, which may have constants, names of dimensions and attributes of its own."""
    nodes, used, made = _cut(draft, rng)
    tensors = {tensor.name: tensor for tensor in draft.graph.initializer}
    inside = [name for name in used if name in tensors and chance(rng, 0.8)]
    attributes, defaults, call = _references(rng, nodes)
    constants = [helper.make_node("Constant", [], [name], value=tensors[name]) for name in inside]
    inputs, name = [name for name in used if name not in inside], draft.name("Function")
    proto = helper.make_function("local", name, inputs, made, [*constants, *nodes], draft.proto.opset_import,
                                 attributes=attributes, attribute_protos=defaults)  # fmt: skip
    named = [n for n in (*inputs, *made) if n in draft.values and chance(rng, 0.7)] if chance(rng) else []
    for n in named:  # functions have names of dimensions of their own, which may be the same as another one's
        dims = [f"d{k}" if len(named) == 1 or [n] == inputs[:1] else f"{n}{k}" for k in range(draft.values[n].ndim)]
        kind = helper.np_dtype_to_tensor_dtype(draft.values[n].dtype)
        proto.value_info.append(helper.make_tensor_value_info(n, kind, dims))
    draft.proto.functions.append(proto)
    draft.graph.node.insert(draft.at, helper.make_node(name, inputs, made, domain="local", **call))
    if all(i.domain != "local" for i in draft.proto.opset_import):
        draft.proto.opset_import.append(helper.make_opsetid("local", 1))


def _references(rng, nodes):
    """Let attributes refer to the caller's; returns their names, those with defaults, and what the caller passes."""
    attributes, defaults, call = [], [], {}
    for k, attribute in enumerate([a for node in nodes for a in node.attribute if not (a.HasField("g") or a.graphs)]):
        if not chance(rng, 0.4):
            continue
        name, copy = f"{attribute.name}_{k}", AttributeProto.FromString(attribute.SerializeToString())
        copy.name = name
        value = helper.get_attribute_value(attribute)
        if chance(rng):
            defaults.append(copy)
            call |= {name: value} if chance(rng, 0.3) else {}
        else:
            attributes.append(name)
            call[name] = value
        attribute.CopyFrom(AttributeProto(name=attribute.name, type=attribute.type, ref_attr_name=name))
    return attributes, defaults, call


def branch(draft, rng):
    """Put nodes into a branch of an If."""
    nodes, _, made = _cut(draft, rng)
    inner = {name: draft.name(name) for name in made}
    other = {name: draft.name(name) for name in made}
    _rename(nodes, inner)
    values = {name: numpy_helper.from_array(draft.values[name]) for name in made if name in draft.values}
    if len(values) < len(made):
        raise Inapplicable
    constants = [helper.make_node("Constant", [], [other[name]], value=values[name]) for name in made]
    infos = lambda names: [onnx.ValueInfoProto(name=names[name]) for name in made]
    branches = [
        helper.make_graph(nodes, "one", [], infos(inner)),
        helper.make_graph(constants, "two", [], infos(other)),
    ]
    condition = draft.name("condition")
    draft.graph.input.append(helper.make_tensor_value_info(condition, onnx.TensorProto.BOOL, []))
    node = helper.make_node("If", [condition], made, then_branch=branches[0], else_branch=branches[1])
    draft.graph.node.insert(draft.at, node)
    _move_constants(draft, rng, draft.graph.node[draft.at].attribute[0].g)


def loop(draft, rng):
    """Put nodes into the body of a Loop that runs once; one of their inputs may be the value that is carried."""
    nodes, used, made = _cut(draft, rng)
    inner = {name: draft.name(name) for name in made}
    _rename(nodes, inner)
    carried = [one_of(rng, used)] if used and chance(rng) else []
    step, go_on, state = (draft.name(name) for name in ("step", "go_on", "state"))
    _rename(nodes, dict.fromkeys(carried, state))
    nodes.append(helper.make_node("Identity", [go_on], [draft.name("going_on")]))
    ends = [nodes[-1].output[0], *([draft.name("passed")] if carried else [])]
    nodes += [helper.make_node("Identity", [state], [ends[1]])] if carried else []
    inputs = [helper.make_tensor_value_info(step, 7, []), helper.make_tensor_value_info(go_on, 9, [])]
    inputs += [onnx.ValueInfoProto(name=state)] if carried else []
    outputs = [onnx.ValueInfoProto(name=name) for name in (*ends, *(inner[name] for name in made))]
    body, stacked = helper.make_graph(nodes, "body", inputs, outputs), [draft.name(name) for name in made]
    results = [*([draft.name("last")] if carried else []), *stacked]
    node = helper.make_node("Loop", [draft.constant(1), "", *carried], results, body=body)
    draft.graph.node.insert(draft.at, node)
    for name, several in zip(made, stacked, strict=True):
        squeeze = helper.make_node("Squeeze", [several, draft.constant([0])], [name])
        draft.graph.node.insert(draft.at + 1, squeeze)
    _move_constants(draft, rng, draft.graph.node[draft.at].attribute[0].g)


def _move_constants(draft, rng, graph):
    """Move some of the constants that only a subgraph uses into it."""
    used = {name for node in draft.graph.node for name in node.input} | {o.name for o in draft.graph.output}
    inside = {name for node in all_nodes(graph) for name in node.input}
    for tensor in [t for t in draft.graph.initializer if t.name in inside - used]:
        if chance(rng) and all(tensor.name != i.name for i in draft.graph.input):
            graph.initializer.append(tensor)
            draft.graph.initializer.remove(tensor)


# Mutations of the whole model: versions, descriptions, and tools that rewrite it.


def versions(draft, rng):
    """Let the model state other versions, which mean the same."""
    same = next(group for group in (range(16, 18), range(18, 20), range(20, 23)) if draft.opset in group)
    opset = one_of(rng, same)
    for owner in (draft.proto, *draft.proto.functions):
        next(i for i in owner.opset_import if not i.domain).version = opset
    draft.proto.ir_version = one_of(rng, [3, 3, *range(3, 12)])
    if draft.proto.ir_version == 3:  # all initializers are inputs, too
        known = {i.name for i in draft.graph.input}
        for tensor in draft.graph.initializer:
            if tensor.name not in known:
                draft.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))


def _by_inference(proto, rng):
    return onnx.shape_inference.infer_shapes(proto, data_prop=chance(rng))


def _by_onnx_runtime(proto, rng):
    offline = options(one_of(rng, ["ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED"]))
    with tempfile.NamedTemporaryFile() as file:
        offline.optimized_model_filepath = file.name
        ort.InferenceSession(proto.SerializeToString(), offline)
        return onnx.load(file.name)


def _by_onnxsim(proto, rng):
    import onnxsim

    return onnxsim.simplify(proto)[0]


def _by_onnxslim(proto, rng):
    import onnxslim

    return onnxslim.slim(proto)


def _by_inliner(proto, rng):
    import onnx.inliner

    return onnx.inliner.inline_local_functions(proto)


def tool(rewrite):
    def mutation(draft, rng):
        try:
            draft.proto.CopyFrom(rewrite(draft.proto, rng))
        except Exception as error:
            raise Inapplicable from error

    return mutation


EDITS = (larger_input, remove_node, change_constant, constant_by_node, constant_with_caller, change_attribute,
         name_dimension, duplicate, damage)  # fmt: skip
OBSERVERS = shape_output, mean_output, more_output
WRAPS = function, branch, loop
TOOLS = {f.__name__[1:]: tool(f) for f in (_by_inference, _by_onnx_runtime, _by_onnxsim, _by_onnxslim, _by_inliner)}
MUTATIONS = {
    **{f.__name__[1:]: _moving(f, wanted) for f, wanted in MOVES.items()},
    **{f.__name__: f for f in (*EDITS, *OBSERVERS, *WRAPS, versions)},
    **TOOLS,
}
EDITED = [*(f.__name__[1:] for f in MOVES), *(f.__name__ for f in (*EDITS, name_dimension, larger_input))]
OBSERVED = [f.__name__ for f in OBSERVERS]
WRAPPED = [f.__name__ for f in (*WRAPS, function)]
