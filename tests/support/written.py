"""Models as PyTorch 2.13 exports them: the nodes for `unfold`, `affine_grid`, deformable attention
and warps.

Each entry of `edits` replaces one step, so that a test can build nearly the same model.
"""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from .cases import parsed


class Writer:
    """Builds a graph. `add` and `constant` return the name of a value."""

    def __init__(self):
        self.nodes, self.initializers = [], []

    def add(self, op_type, *inputs, name=None, **attributes):
        name = name or f"{op_type.lower()}_{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op_type, list(inputs), [name], name=f"node_{name}", **attributes)
        )
        return name

    def constant(self, value, dtype=np.int64):
        name = f"constant_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def model(self, inputs, output, opset=18, **more):
        """Return the model. inputs: {name: (dtype, dims)}; output: (name, dtype, dims)."""
        element_type = helper.np_dtype_to_tensor_dtype
        input_infos = [
            helper.make_tensor_value_info(n, element_type(np.dtype(d)), dims)
            for n, (d, dims) in inputs.items()
        ]
        result = helper.make_tensor_value_info(
            output[0], element_type(np.dtype(output[1])), output[2]
        )
        graph = helper.make_graph(self.nodes, "written", input_infos, [result], self.initializers)
        domains = {"": opset, **{node.domain: 1 for node in self.nodes if node.domain}}
        imports = [helper.make_opsetid(*domain) for domain in domains.items()]
        proto = helper.make_model(graph, opset_imports=imports, ir_version=9)
        return onnx.shape_inference.infer_shapes(proto)


def counts(image, kernel, dilations, pads, strides):
    """The number of blocks along each axis."""
    axes = range(len(image))
    padded = [image[a] + pads[a] + pads[len(image) + a] for a in axes]
    return [(padded[a] - dilations[a] * (kernel[a] - 1) - 1) // strides[a] + 1 for a in axes]


UNFOLD = {
    "image": (11, 13), "kernel": (3, 2), "dilations": (1, 2), "pads": (1, 0, 2, 1),
    "strides": (2, 1), "batch": 2,
    "channels": 3, "dtype": "float32",
}  # fmt: skip


def unfold(open_sizes=False, opset=18, after=None, **edits):
    """F.unfold of "x" to "y". after: a function that adds nodes to the Writer at the end and
    returns the output.
    """
    s = UNFOLD | edits
    axes = len(s["image"])
    w = Writer()
    dims = (
        ["n", s["channels"], *(f"size_{a}" for a in range(axes))]
        if open_sizes
        else [s["batch"], s["channels"], *s["image"]]
    )
    if open_sizes:
        indices = _open_indices(w, s)
        target = _open_target(w, s)
    else:
        blocks = counts(s["image"], s["kernel"], s["dilations"], s["pads"], s["strides"])
        indices = [
            np.add.outer(np.arange(k) * d, np.arange(c) * t)
            for k, d, c, t in zip(s["kernel"], s["dilations"], blocks, s["strides"], strict=True)
        ]
        indices = [w.constant(i) for i in edits.get("indices", lambda i: i)(indices)]
        target = w.constant(
            edits.get("target", [s["batch"], s["channels"] * int(np.prod(s["kernel"])), -1])
        )
    pads = edits.get("all_pads", [0, 0, *s["pads"][:axes], 0, 0, *s["pads"][axes:]])
    pads = pads(w) if callable(pads) else w.constant(pads)
    padding = [w.constant(edits["pad_value"], s["dtype"])] if "pad_value" in edits else []
    if padded_axes := edits.get("pad_axes"):
        padding = [
            *(padding or [""]),
            padded_axes(w) if callable(padded_axes) else w.constant(padded_axes),
        ]
    y = w.add("Pad", "x", pads, *padding, mode=edits.get("mode", "constant"), name="padded")
    for a, index in enumerate(indices):
        y = w.add("Gather", y, index, axis=2 + 2 * a, name=f"gathered_{a}")
    order = edits.get("perm", [0, 1, *range(2, 2 + 2 * axes, 2), *range(3, 3 + 2 * axes, 2)])
    y = w.add("Transpose", y, perm=order, name="transposed")
    y = w.add("Reshape", y, target, allowzero=edits.get("allowzero", 0), name="y")
    rank = len(edits.get("target", "NKL"))
    if after:
        y, rank = after(w), edits.get("rank", 3)
    return w.model(
        {"x": (s["dtype"], dims), **edits.get("inputs", {})}, (y, s["dtype"], [None] * rank), opset
    )


def divided_fold(
    kernel=(2, 2), image=(5, 6), strides=(1, 1), pads=(0, 0, 0, 0), batch=2, channels=3, opset=18
):
    """F.fold of "columns", divided by that of ones, which says of how many blocks each pixel is the
    sum.
    """
    w, positions = Writer(), int(np.prod(kernel))
    blocks = int(np.prod(counts(image, kernel, [1, 1], pads, strides)))
    ones = w.add("Expand", w.constant(1, "float32"), w.constant([1, channels * positions, blocks]))
    sums = [w.add("Col2Im", x, w.constant(image), w.constant(kernel), strides=[*strides],
            pads=[*pads])
            for x in ("columns", ones)]  # fmt: skip
    y = w.add("Div", *sums, name="y")
    return w.model(
        {"columns": ("float32", [batch, channels * positions, blocks])}, (y, "float32", None), opset
    )


def _open_indices(w, s):
    axes = len(s["image"])
    shape = w.add("Shape", "x")
    for a in range(axes):
        size = w.add("Gather", shape, w.constant(2 + a), axis=0)
        fixed = s["pads"][a] + s["pads"][axes + a] - s["dilations"][a] * (s["kernel"][a] - 1)
        limit = w.add("Add", size, w.constant(fixed))
        blocks = w.add("Range", w.constant(0), limit, w.constant(s["strides"][a]))
        positions = w.constant(np.arange(s["kernel"][a])[:, None] * s["dilations"][a])
        yield w.add("Add", w.add("Unsqueeze", blocks, w.constant([0])), positions)


def _open_target(w, s):
    shape = w.add("Shape", "x")
    batch, channels = (w.add("Gather", shape, w.constant(k), axis=0) for k in (0, 1))
    rows = w.add("Mul", channels, w.constant(int(np.prod(s["kernel"]))))
    sizes = (w.add("Unsqueeze", size_of_part, w.constant([0])) for size_of_part in (batch, rows))
    return w.add("Concat", *sizes, w.constant([-1]), axis=0)


PRODUCT = {
    "image": (6, 5), "kernel": (3, 2), "dilations": (1, 1), "pads": (1, 0, 1, 1), "strides": (1, 1),
    "channels": 6,
    "groups": 2,
}  # fmt: skip


def unfold_product(
    columns="ngdkl", factors="ngdl", summed="d", how="ReduceSum", order=None, after=None, **edits
):
    """An unfold that is multiplied by "factors" and added up over some axes.

    Letters stand for axes: n (batch), g (group), d (channel of a group) or both as c; k (position
    in the kernel) or i, j, or with c together as x; l (block) or h, w.

    columns  the axes of the columns, which have these in this order
    factors  those of the factors
    summed   those over which products are added up
    order    of the columns' axes in their product
    after    a function that adds nodes to the Writer at the end and returns the output
    """
    s = UNFOLD | PRODUCT | edits
    channels, (kernel_i, kernel_j) = s["channels"], s["kernel"]
    height, width = counts(s["image"], s["kernel"], s["dilations"], s["pads"], s["strides"])
    size = {
        "n": s["batch"], "g": s["groups"], "d": channels // s["groups"], "c": channels,
        "i": kernel_i, "j": kernel_j,
        "k": kernel_i * kernel_j, "x": channels * kernel_i * kernel_j, "h": height, "w": width,
        "l": height * width,
    }  # fmt: skip
    order, open_names = order or columns, {"n": 0, "h": 2, "w": 3} if s.get("open_sizes") else {}
    result = "".join(a for a in order if a not in summed)

    def target(w, axes):
        """The sizes of axes, 1 for a point; of open ones those that x has."""
        shape = w.add("Shape", "x") if open_names else None
        sizes = [
            w.add("Gather", shape, w.constant([open_names[a]])) if a in open_names
            else w.constant([-1 if a == "l" else size.get(a, 1)]) for a in axes
        ]  # fmt: skip
        return w.add("Concat", *sizes, axis=0)

    def add_up(w):
        allowzero = {"allowzero": 1} if open_names else {}
        y = w.add("Reshape", "y", target(w, columns), **allowzero, name="columns")
        if order != columns:
            y = w.add("Transpose", y, perm=[columns.index(a) for a in order])
        if how == "Einsum":
            equation = edits.pop("equation", f"{factors},{order}->{result}")
            return w.add("Einsum", "factors", y, equation=equation, name="summed")
        has = factors + "l" * ("h" in factors and "h" not in order)
        f = w.add(
            "Reshape", "factors", target(w, [a if a in has else "." for a in order]), **allowzero
        )
        if how == "MatMul":
            f = w.add("Transpose", f, perm=[*range(len(order) - 2), len(order) - 1, len(order) - 2])
            return w.add("MatMul", f, y, name="summed")
        y = w.add(
            edits.get("product", "Mul"),
            *(y, f)[:: -1 if edits.get("swapped") else 1],
            name="product",
        )
        axes = [order.index(a) - len(order) * edits.get("from_the_end", False) for a in summed]
        keeps = {"keepdims": edits.get("keepdims", 0)}
        if how == "ReduceSum" or s.get("opset", 18) >= 18:
            return w.add(how, y, w.constant(axes), **keeps, name="summed")
        return w.add(how, y, axes=axes, **keeps, name="summed")

    if open_names:
        factors = factors.replace("l", "hw")
    names = {"n": "n", "h": "size_0", "w": "size_1"} if open_names else {}
    dims = [names.get(a, size[a]) for a in factors]
    keeps_rank = edits.get("keepdims") or how == "MatMul"
    rank = edits.pop("rank", len(order) if keeps_rank else len(result))
    factors_and_rank = {
        "inputs": {"factors": (s["dtype"], dims), **edits.pop("inputs", {})},
        "rank": rank,
    }
    return unfold(
        after=lambda w: after(w, add_up(w)) if after else add_up(w),
        **{**PRODUCT, **edits, **factors_and_rank},
    )


def windows(
    order=None,
    steps=(1, 1),
    size=7,
    kernel=3,
    lead=(2, 3),
    is_open=False,
    after=None,
    opset=18,
    blocks=None,
):
    """Tensor.unfold of "x" along its last two axes, as PyTorch's default exporter writes it.

    order   of the result's last axes, by their numbers; None for the result itself
    kernel  the size of windows, or the sizes along the two axes
    after   a function of the Writer and the result that adds nodes and returns another result
    blocks  a function of the blocks' starts along an axis, which may change them, if the result is
            made of Slices, as the exporter for TorchScript writes them
    """
    w, y, rank = Writer(), "x", len(lead) + 2
    kernels = [kernel] * 2 if isinstance(kernel, int) else kernel
    for axis, (step, kernel) in enumerate(zip(steps, kernels, strict=False), len(lead)):
        if blocks:
            slices = []
            for start in blocks(range(0, size - kernel + 1, step)):
                block = w.add(
                    "Slice",
                    y,
                    w.constant([start]),
                    w.constant([start + kernel]),
                    w.constant([axis]),
                )
                block = w.add("Transpose", block, perm=[*range(axis), *range(axis + 1, rank), axis])
                slices.append(w.add("Unsqueeze", block, w.constant([axis])))
            y, rank = w.add("Concat", *slices, axis=axis), rank + 1
            continue
        table = np.arange(0, size - kernel + 1, step)[:, None] + np.arange(kernel)
        if is_open:
            count = w.add(
                "Sub", w.add("Gather", w.add("Shape", y), w.constant(axis)), w.constant(kernel - 1)
            )
            starts = w.add("Range", w.constant(0), count, w.constant(step))
            table = w.add(
                "Add", w.add("Unsqueeze", starts, w.constant([1])), w.constant(np.arange(kernel))
            )
        else:
            table = w.constant(table)
        y = w.add("Gather", y, table, axis=axis)
        order_now = [*range(axis + 1), *range(axis + 2, rank + 1), axis + 1]
        y, rank = w.add("Transpose", y, perm=order_now), rank + 1
    if order is not None:
        y = w.add("Transpose", y, perm=[*range(len(lead)), *order])
    y = after(w, y) if after else y
    dims = [*lead, *(["h", "w"] if is_open else [size] * 2)]
    return w.model({"x": ("float32", dims)}, (y, "float32", None), opset)


def frames(
    length=40,
    step=4,
    lead=(2,),
    kernel=8,
    is_open=False,
    after=None,
    blocks=None,
    indices=None,
    trail=(),
    along=0,
):
    """Tensor.unfold of "x" along its last axis, as PyTorch's exporters write it; arguments as those
    of `windows`.

    is_open  whether the length and the first of the lead are open
    indices  a function of the matrix of indices that returns another one
    trail    sizes of axes behind the one that is unfolded
    along    1 if blocks are put side by side along the last axis, as the exporter for TorchScript
             does by mistake if the axis is -1
    """
    w, axis = Writer(), len(lead)
    starts = np.arange(0, length - kernel + 1, step)
    if blocks:
        cut = lambda start: w.add(
            "Slice", "x", *(w.constant([k]) for k in (start, start + kernel, axis))
        )
        y = w.add(
            "Concat",
            *(w.add("Unsqueeze", cut(k), w.constant([axis + along])) for k in blocks(starts)),
            axis=axis + along,
        )
    else:
        table = starts[:, None] + np.arange(kernel)
        table = w.constant(indices(table) if indices else table)
        if is_open:
            size = w.add("Gather", w.add("Shape", "x"), w.constant(axis))
            each = w.add(
                "Range", w.constant(0), w.add("Sub", size, w.constant(kernel - 1)), w.constant(step)
            )
            table = w.add(
                "Add",
                w.add("Unsqueeze", each, w.constant([1])),
                w.constant(np.arange(kernel)[None]),
            )
        y = w.add("Gather", "x", table, axis=axis)
    y = after(w, y) if after else y
    dims = [*["n"][: len(lead)], *lead[1:], "length"] if is_open else [*lead, length, *trail]
    return w.model({"x": ("float32", dims)}, (y, "float32", None), 18)


def convolved(
    image=(9,), kernel=(3,), groups=False, weights=None, is_open=False, bias=(), **attributes
):
    """An unfold of "x" by a Conv, each of whose kernels has a single 1.

    groups   whether each channel is a group, or kernels are of all channels
    weights  a function of the kernels, [3 * positions, channels of a group, *kernel], that returns
             others
    """
    w, count = Writer(), int(np.prod(kernel))
    kernels = np.eye(3 * count).reshape(-1, 3, *kernel)
    if groups:
        kernels = np.tile(np.eye(count).reshape(-1, 1, *kernel), (3, *[1] * (1 + len(kernel))))
        attributes["group"] = 3
    kernels = weights(kernels) if weights else kernels
    inputs = ["x", *(w.constant(a, "float32") for a in (kernels, *bias))]
    y = w.add("Conv", *inputs, **attributes)
    dims = ["n", 3, *("length", "w")[: len(image)]] if is_open else [2, 3, *image]
    return w.model({"x": ("float32", dims)}, (y, "float32", None), 18)


def coordinates(size, align_corners, dtype="float32"):
    """The base coordinates of an axis, as PyTorch computes them."""
    if align_corners:
        return (np.linspace(-1, 1, size) if size > 1 else np.zeros(1)).astype(dtype)
    return (np.linspace(-1, 1, size) * (size - 1) / size if size > 1 else np.zeros(1)).astype(dtype)


AFFINE_GRID = {"size": (5, 7), "batch": 2, "align_corners": False, "dtype": "float32"}


def base_grid(size, align_corners, dtype):
    """The base grid [*size, axes + 1] of x, y (and z), 1."""
    vectors = [coordinates(s, align_corners, dtype) for s in size]
    return np.stack([*np.meshgrid(*vectors, indexing="ij")[::-1], np.ones(size, dtype)], -1).astype(
        dtype
    )


def affine_grid(open_batch=False, opset=18, after=None, sample=None, **edits):
    """F.affine_grid of "theta" to "grid".

    sample   the mode of a GridSample of "image" that follows
    by_rows  whether the last axis is summed, as in (base * theta[:, None]).sum(-1)
    """
    s = AFFINE_GRID | edits
    axes, w = len(s["size"]), Writer()
    base = edits.get("base", lambda base: base)(
        base_grid(s["size"], s["align_corners"], s["dtype"])
    )
    rows = edits.get("by_rows")
    base = w.constant(base.reshape((-1, 1, axes + 1) if rows else (-1, axes + 1, 1)), s["dtype"])
    if "factor" in edits:
        base = w.add("Mul", base, w.add(edits["factor"], base, low=1.0, high=1.0))
    theta = w.add(
        "Transpose",
        "theta",
        perm=edits.get("perm", [0, 1, 2] if rows else [0, 2, 1]),
        name="transposed",
    )
    for axis, indices in edits.get("picked", {}).items():
        theta = w.add("Gather", theta, w.constant(indices), axis=axis)
    theta = w.add("Unsqueeze", theta, w.constant([1]), name="unsqueezed")
    factors = (theta, base) if edits.get("swapped") else (base, theta)
    y = w.add(edits.get("product", "Mul"), *factors, name="product")
    over = w.constant(edits.get("over", [-1 if rows else -2]))
    y = w.add("ReduceSum", y, over, keepdims=edits.get("keepdims", 0), name="summed")
    target = edits.get("target", [-1 if open_batch else s["batch"], *s["size"], axes])
    y = w.add("Reshape", y, w.constant(target), name="grid")
    batch = "n" if open_batch else s["batch"]
    inputs = {"theta": (s["dtype"], edits.get("theta", [batch, axes, axes + 1]))}
    if sample:
        inputs["image"] = (s["dtype"], [batch, 3, *s["size"]])
        y = w.add("GridSample", "image", "grid", mode=sample, name="sampled")
    if after:
        y = after(w)
    return w.model(inputs, (y, s["dtype"], None), opset)


ATTENTION = {
    "levels": ((4, 5), (2, 3)), "batch": 2, "queries": 7, "heads": 3, "channels": 4, "points": 2,
    "dtype": "float32",
    "sampling": {"mode": "linear", "padding_mode": "zeros", "align_corners": 0},
}  # fmt: skip


def attention(open_sizes=False, opset=20, after=None, **edits):
    """Deformable attention of "value", "sampling_locations" and "attention_weights" to "y".

    open_sizes  whether the sizes of batch and queries are open
    cut         the operator that separates levels: "Split", "Slice" as the TorchScript exporter
                writes, or "SplitToSequence" as the other one of PyTorch 2.5 writes, which casts
                constants, too
    merged      whether levels and points share an axis, as in RT-DETRv2
    weights     a function of the Writer that returns what stands for "attention_weights"
    wide        what is computed in float32, between Casts: "sum", as the default exporter writes of
                16-bit floats, and "samples", which "kept" doesn't cast back
    total       the operator that adds up
    weighed     a function of the Writer, the samples and their weights that returns others
    bare        whether the model states no shapes of values in between
    """
    s = ATTENTION | edits
    pixels, count = [h * w for h, w in s["levels"]], len(s["levels"])
    batch, queries, heads, channels, points = (
        s[k] for k in ("batch", "queries", "heads", "channels", "points")
    )
    w, merged, images, cut = (
        Writer(),
        s.get("merged"),
        -1 if open_sizes else batch * heads,
        s.get("cut", "Split"),
    )
    q = (
        w.add("Gather", w.add("Shape", "sampling_locations"), w.constant([1]), axis=0)
        if open_sizes
        else queries
    )

    def reshaped(source, *target, **options):
        if open_sizes:
            target = w.add(
                "Concat", *(t if isinstance(t, str) else w.constant([t]) for t in target), axis=0
            )
        return w.add("Reshape", source, target if open_sizes else w.constant(target), **options)

    def parts(name, sizes, axis):
        if cut == "SplitToSequence":
            sequence = w.add(
                cut, name, w.constant(sizes if len(set(sizes)) > 1 else sizes[0]), axis=axis
            )
            return [w.add("SequenceAt", sequence, w.constant(level)) for level in range(len(sizes))]
        if cut == "Split":
            names = [f"{name}_{level}" for level in range(len(sizes))]
            w.nodes.append(helper.make_node(cut, [name, w.constant(sizes)], names, axis=axis))
            return names
        ends = np.cumsum(sizes)
        bounds = (
            (w.constant([end - size]), w.constant([end]))
            for end, size in zip(ends, sizes, strict=True)
        )
        return [w.add(cut, name, *ends, w.constant([axis]), w.constant([1])) for ends in bounds]

    def constant(value):
        if cut != "SplitToSequence":
            return w.constant(value, locations_dtype)
        return w.add(
            "Cast", w.constant(value), to=helper.np_dtype_to_tensor_dtype(np.dtype(locations_dtype))
        )

    wide, narrow = s.get("wide", ()), helper.np_dtype_to_tensor_dtype(np.dtype(s["dtype"]))
    locations_dtype = s.get("places", s["dtype"])
    factors = ["sampling_locations", constant(s.get("factor", 2))][:: -1 if s.get("swapped") else 1]
    grid = w.add(s.get("shift", "Sub"), w.add("Mul", *factors), constant(1), name="grid")
    if merged:
        value = w.add("Transpose", "value", perm=[0, 2, 3, 1])
        value = reshaped(value, images, channels, sum(pixels), name="flat_value")
        flat = w.add("Transpose", grid, perm=[0, 2, 1, 3, 4])
        flat = reshaped(flat, images, q, count * points, 2, name="flat_grid")
        values, grids = parts(value, pixels, -1), parts(flat, [points] * count, -2)
    else:
        values = parts("value", s.get("pixels", pixels), 1)
        grids = [w.add("Gather", grid if level == 0 else s.get("second_grid", grid),
                w.constant(level), axis=3)
                 for level in s.get("order", range(count))]  # fmt: skip
    samples = []
    for level, ((height, width), image, locations) in enumerate(
        zip(s["levels"], values, grids, strict=False)
    ):
        if not merged:
            image = w.add(
                "Transpose", reshaped(image, 0, 0, -1), perm=[0, 2, 1], name=f"image_{level}"
            )
            locations = w.add("Transpose", locations, perm=[0, 2, 1, 3, 4])
            locations = reshaped(locations, images, q, points, 2)
        image = reshaped(image, images, channels, height, width)
        if s.get("turned"):
            image = reshaped(image, images, channels, width, height)
            image = w.add("Transpose", image, perm=[0, 1, 3, 2])
        if "samples" in wide:
            image, locations = (w.add("Cast", value, to=1) for value in (image, locations))
        sample = w.add("GridSample", image, locations, name=f"sample_{level}", **s["sampling"])
        sample = (
            w.add("Cast", sample, to=narrow) if "samples" in wide and "kept" not in wide else sample
        )
        axis = s.get("axis", -1 if merged else -2)
        samples.append(sample if merged else w.add("Unsqueeze", sample, w.constant([axis])))
    y = w.add("Concat", *samples, axis=s.get("axis", -1 if merged else -2), name="samples")
    if not merged:
        y = reshaped(y, 0, 0, 0, -1)
    order = [0, 2, 1, 3, 4][: 4 if merged else 5]
    weights = s["weights"](w) if "weights" in s else "attention_weights"
    weights = w.add("Transpose", weights, perm=s.get("weights_perm", order))
    weights = reshaped(weights, images, 1, q, count * points, name="weights")
    weights = w.add("Cast", weights, to=1) if "kept" in wide else weights
    y, weights = s["weighed"](w, y, weights) if "weighed" in s else (y, weights)
    y = w.add("Mul", *[y, weights][:: -1 if s.get("swapped") else 1], name="product")
    keeps, y = s.get("keepdims", 0), w.add("Cast", y, to=1) if "sum" in wide else y
    y = w.add(
        s.get("total", "ReduceSum"),
        y,
        w.constant(s.get("over", [-1])),
        keepdims=keeps,
        name="summed",
    )
    y = w.add("Cast", y, to=narrow) if "sum" in wide else y
    target = s.get("target", (-1 if open_sizes else batch, heads * channels, q))
    y = w.add(
        "Transpose", reshaped(y, *target, name="result"), perm=s.get("perm", [0, 2, 1]), name="y"
    )
    n, q = ("n", "q") if open_sizes else (batch, queries)
    ends = (count * points,) if merged else (count, points)
    inputs = {
        "value": (s["dtype"], s.get("value", [n, sum(s.get("pixels", pixels)), heads, channels])),
        "sampling_locations": (locations_dtype, [n, q, heads, *ends, 2]),
        "attention_weights": (s["dtype"], [n, q, heads, *ends]),
        **s.get("inputs", {}),
    }
    proto = w.model(
        inputs, (after(w) if after else y, "float32" if "kept" in wide else s["dtype"], None), opset
    )
    if cut == "SplitToSequence" or s.get(
        "bare"
    ):  # onnx infers that all of a sequence are as large as the first one
        del proto.graph.value_info[:]
    return proto


def in_a_branch(proto, first=0):
    """Move nodes from a position on into a branch of an If; the other branch returns the input
    `otherwise`.
    """
    graph, (y,) = proto.graph, [*proto.graph.output]
    element_type, dims = y.type.tensor_type.elem_type, y.type.tensor_type.shape.dim
    branches = onnx.GraphProto(name="then", node=graph.node[first:], output=[y]), helper.make_graph(
        [helper.make_node("Identity", ["otherwise"], ["other"])], "else", [],
        [helper.make_tensor_value_info("other", element_type, None)],
    )  # fmt: skip
    del graph.node[first:], graph.output[:], graph.value_info[:]
    graph.node.append(
        helper.make_node("If", ["c"], ["chosen"], then_branch=branches[0], else_branch=branches[1])
    )
    graph.output.append(helper.make_tensor_value_info("chosen", element_type, None))
    graph.input.append(
        helper.make_tensor_value_info(
            "otherwise", element_type, [d.dim_param or d.dim_value for d in dims]
        )
    )
    graph.input.append(helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, []))


def in_a_function(proto, *constants):
    """Move all nodes into a local function, whose parameters are the inputs and initializers, but
    for its constants.
    """
    graph = proto.graph
    inside = [t for t in graph.initializer if t.name in constants]
    names = [v.name for v in (*graph.input, *graph.initializer) if v.name not in constants]
    nodes = [*(helper.make_node("Constant", [], [t.name], value=t) for t in inside), *graph.node]
    outputs = [value.name for value in graph.output]
    proto.functions.append(
        helper.make_function("local", "Inner", names, outputs, nodes, proto.opset_import)
    )
    proto.opset_import.append(helper.make_opsetid("local", 1))
    for tensor in inside:
        graph.initializer.remove(tensor)
    del graph.node[:], graph.value_info[:]
    graph.node.append(helper.make_node("Inner", names, outputs, domain="local"))


def feeds(proto, sizes=(), seed=0):
    """Return random inputs {name: array} for a model; sizes: {name of an open dimension: its size}.

    Inputs with a default are left out.
    """
    rng, sizes = np.random.default_rng(seed), dict(sizes)
    arrays, defaults = {}, {tensor.name for tensor in proto.graph.initializer}
    for value in (value for value in proto.graph.input if value.name not in defaults):
        dims = [
            sizes[d.dim_param] if d.dim_param else d.dim_value
            for d in value.type.tensor_type.shape.dim
        ]
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        drawn = rng.standard_normal(dims) * 3
        arrays[value.name] = np.asarray(drawn > 0 if dtype.kind == "b" else drawn, dtype)
        if value.name == "sampling_locations":
            arrays[value.name] = rng.uniform(-0.2, 1.2, dims).astype(dtype)
    return arrays


def mesh(size, dtype="float32"):
    """The coordinates of all pixels of an image of this size: an array for each coordinate, x
    first.
    """
    return [v.astype(dtype) for v in np.meshgrid(*map(np.arange, size), indexing="ij")[::-1]]


WARP = {
    "size": (9, 12), "batch": 2, "dtype": "float32", "mode": "linear", "opset": 20,
    "channels": None, "layout": "first",
    "sampling": {},
}  # fmt: skip


def in_pixels(size):
    """The steps that turn a flow in pixels into a grid."""
    return [("Add", mesh(size)), ("Mul", 2), ("Div", [n - 1 for n in size[::-1]]), ("Sub", 1)]


def warp(steps=None, whole=False, after=None, **edits):
    """A GridSample of "image" on the grid that `steps` compute from "flow".

    steps   [(operator, its constant for each coordinate or for all)]; "rSub" subtracts from the
            constant
    whole   whether the steps apply to all coordinates together, which are then transposed
    layout  "first": flow is [N, 2, H, W]; "last": [N, H, W, 2]; "maps": [N, H, W] for each
            coordinate, "flow_x" ...
    """
    s = WARP | edits
    size, axes, w = s["size"], len(s["size"]), Writer()
    steps = in_pixels(size) if steps is None else steps
    flow = s.get("flow") or (
        [s["batch"], axes, *size] if s["layout"] == "first" else [s["batch"], *size, axes]
    )
    image = s.get("image", s["dtype"])
    inputs = {"image": (image, [s["batch"], 3, *[n + 2 for n in size]]), "flow": (s["dtype"], flow)}
    if s["layout"] == "maps":
        inputs |= {f"flow_{axis}": (s["dtype"], [s["batch"], *size]) for axis in "xyz"[:axes]}
        del inputs["flow"]
    inputs |= s.get("inputs", {})
    if whole:
        constants = [
            (
                op,
                np.stack(c)[None]
                if op == "Add" and isinstance(c, list)
                # Fmt: skip.
                else None
                if c is None
                else np.reshape(c, (1, -1, *[1] * axes)),
            )
            for op, c in steps
        ]
        grid = with_steps(w, "flow", constants, s["dtype"])
        grid = w.add("Transpose", grid, perm=[0, *range(2, axes + 2), 1], name="grid")
    else:
        unsqueezed = []
        for i, channel in enumerate(s["channels"] or range(axes)):
            axis = 1 if s["layout"] == "first" else axes + 1
            v = (
                f"flow_{'xyz'[i]}"
                if s["layout"] == "maps"
                else w.add("Gather", "flow", w.constant(channel), axis=axis)
            )
            own_steps = [
                (op, c[i] if isinstance(c, list) else c)
                for op, c in s.get("by_coordinate", {}).get(i, steps)
            ]
            coordinate = with_steps(w, v, own_steps, s["dtype"])
            is_old_opset = s["opset"] < 13
            unsqueezed.append(
                w.add("Unsqueeze", coordinate, axes=[-1])
                if is_old_opset
                else w.add("Unsqueeze", coordinate, w.constant([-1]))
            )
        grid = w.add("Concat", *unsqueezed, axis=-1, name="grid")
    if s.get("expanded"):
        grid = w.add("Expand", grid, w.constant([s["batch"], *[1] * (axes + 1)]))
    w.add("GridSample", "image", grid, mode=s["mode"], name="y", **s["sampling"])
    w.nodes[-1].domain = s.get("domain", "")
    dims = [s["batch"], 3, *size] if s.get("domain") else None
    return w.model(inputs, (after(w) if after else "y", image, dims), s["opset"])


def with_steps(w, v, steps, dtype):
    for op, c in steps:
        if c is None:
            v = w.add(op, v)
            continue
        c = c if isinstance(c, str) else w.constant(c, dtype)
        v = w.add("Sub", c, v) if op == "rSub" else w.add(op, v, c)
    return v


def flow_network(layers, pixels="image", resized=False, opset=20, scales=(0.2, 0.3), **sampling):
    """A GridSample of "image" [n, 3, h, w] at pixels that a flow moves, which a network computes
    from it.

    layers   [(operator, argument, attributes)]: the argument is the number of channels that a
             convolution makes, the scales of a Resize, or the position of an earlier value, 0 for
             the image, that an Add or Concat takes
    pixels   the value of whose size these are: "image" or "flow"
    resized  whether the flow gets the size of the image by a Resize
    scales   by which the pixels' places become coordinates
    """
    w, rng, values = Writer(), np.random.default_rng(0), [("image", 3)]

    def convolved(op_type, count, kernel_shape=(3, 3), **attributes):
        value, channels = values[-1]
        shape = (channels, count) if op_type == "ConvTranspose" else (count, channels)
        weights = rng.standard_normal((*shape, *kernel_shape)) / np.prod(kernel_shape)
        return w.add(op_type, value, w.constant(weights, "float32"), **attributes), count

    for op_type, argument, attributes in (*layers, ("Conv", 2, {"pads": [1] * 4})):
        value, channels = values[-1]
        if op_type in ("Conv", "ConvTranspose"):
            values.append(convolved(op_type, argument, **attributes))
        elif op_type in ("Add", "Concat"):
            other, second_input = values[argument]
            values.append(
                (
                    w.add(op_type, value, other, **attributes),
                    channels + second_input * (op_type == "Concat"),
                )
            )
        elif op_type == "Resize":
            resize = w.add(
                op_type, value, "", w.constant([1, 1, *argument], "float32"), **attributes
            )
            values.append((resize, channels))
        else:
            values.append((w.add(op_type, value, **attributes), channels))
    flow, size = (
        values[-1][0],
        lambda value, axis: w.add("Gather", w.add("Shape", value), w.constant(axis)),
    )
    if resized:
        sizes = w.add(
            "Concat", w.add("Shape", flow, end=2), w.add("Shape", "image", start=2), axis=0
        )
        flow = w.add("Resize", flow, "", "", sizes, mode="linear")
    rows = []
    for i, (axis, scale) in enumerate(zip((3, 2), scales, strict=True)):
        limit = size("image" if pixels == "image" else flow, axis)
        along = w.add("Cast", w.add("Range", w.constant(0), limit, w.constant(1)), to=1)
        along = along if axis == 3 else w.add("Unsqueeze", along, w.constant([1]))
        moved = w.add("Add", along, w.add("Gather", flow, w.constant(i), axis=1))
        coordinate = w.add(
            "Sub", w.add("Mul", moved, w.constant(scale, "float32")), w.constant(1, "float32")
        )
        rows.append(w.add("Unsqueeze", coordinate, w.constant([-1])))
    w.add("GridSample", "image", w.add("Concat", *rows, axis=-1, name="grid"), name="y", **sampling)
    return w.model({"image": ("float32", ["n", 3, "h", "w"])}, ("y", "float32", None), opset)


PERSPECTIVE = {
    "size": (9, 12), "batch": 2, "dtype": "float32", "mode": "linear", "opset": 20, "theta": 3,
    "order": lambda a, b, c: (a, b, c), "rows": (0, 1, 2), "last": None, "base": lambda base: base,
}  # fmt: skip


def perspective(divided=True, **edits):
    """kornia's warp_perspective: a GridSample of "image" on a grid that "theta" transforms and its
    last row divides.
    """
    s = PERSPECTIVE | edits
    w, base = Writer(), s["base"](base_grid(s["size"], False, s["dtype"]))
    x, y = w.constant(base[..., 0], s["dtype"]), w.constant(base[..., 1], s["dtype"])

    def element(i, j):
        row = w.add("Gather", w.add("Slice", "theta", *map(w.constant, ([0], [1])))
            if s.get("first") else "theta",
                    w.constant(i), axis=1)  # fmt: skip
        return w.add("Unsqueeze", w.add("Gather", row, w.constant(j), axis=1), w.constant([1, 2]))

    def summed(i):
        last = element(i, 2)
        last = (
            w.add("Mul", last, w.constant(s["last"], s["dtype"])) if s["last"] is not None else last
        )
        a, b, c = s["order"](w.add("Mul", element(i, 0), x), w.add("Mul", y, element(i, 1)), last)
        return w.add("Add", w.add("Add", a, b), c)

    rows = [summed(i) for i in s["rows"]]
    if divided:
        rows = [w.add("Div", row, rows[2]) for row in rows[:2]]
    coordinates = [w.add("Unsqueeze", row, w.constant([-1])) for row in rows[:2]]
    grid = w.add("Concat", *coordinates, axis=-1, name="grid")
    if "thetas" in s or "first" in s:
        grid = w.add("Expand", grid, w.constant([s["batch"], 1, 1, 1]))
    w.add("GridSample", "image", grid, mode=s["mode"], name="y")
    inputs = {
        "image": (s["dtype"], [s["batch"], 3, 8, 7]),
        "theta": (s["dtype"], [s.get("thetas", s["batch"]), s["theta"], s.get("columns", 3)]),
    }  # fmt: skip
    return w.model(inputs, ("y", s["dtype"], None), s["opset"])


def written_in_place(
    steps=None,
    how="ScatterElements",
    layout="last",
    whole=(),
    size=(9, 12),
    opset=20,
    mode="linear",
    **edits,
):
    """A GridSample of "image" on a grid of "flow", of which each coordinate is written in place.

    steps   [(operator, its constant for each coordinate)] of what is written
    how     "ScatterElements", as PyTorch's default exporter writes it; "ScatterND", as the other
            one does; or "rows"
    layout  "last": flow is [N, H, W, 2]; "first": [N, 2, H, W]
    whole   steps that then apply to all coordinates
    edits   "order" of the coordinates, which are then put into this one; "reduction" of the
            scatters; "written": which coordinates are; "batch"
    """
    w, batch, axes = Writer(), edits.get("batch", 2), len(size)
    steps = (
        [("Mul", [2 / (s - 1) for s in size[::-1]]), ("Sub", [1] * axes)]
        if steps is None
        else steps
    )
    axis = axes + 1 if layout == "last" else 1
    dims = [batch, *size, axes] if layout == "last" else [batch, axes, *size]
    grid, attributes = "flow", {"reduction": edits["reduction"]} if "reduction" in edits else {}
    for k in edits.get("written", range(axes)):
        component = w.add("Gather", grid, w.constant(k), axis=axis)
        component = with_steps(
            w, component, [(op, c if c is None else c[k]) for op, c in steps], "float32"
        )
        dims_of_component = [1 if a == axis else d for a, d in enumerate(dims)]
        if how == "ScatterElements":
            component = w.add("Unsqueeze", component, w.constant([axis]))
            grid = w.add(
                how,
                grid,
                w.constant(np.full(dims_of_component, k)),
                component,
                axis=axis,
                **attributes,
            )
        elif how == "ScatterND":
            component = w.add("Reshape", component, w.constant(dims_of_component))
            indices = [w.add("Unsqueeze", w.add("Expand", w.constant(
                [[k]] if a == axis else np.arange(d).reshape([-1, *[1] * (len(dims) - 1 - a)])),
                w.constant(dims_of_component)), w.constant([-1]))
                       for a, d in enumerate(dims)]  # fmt: skip
            grid = w.add(how, grid, w.add("Concat", *indices, axis=-1), component, **attributes)
        else:  # whole rows of the first axes
            component = w.add("Reshape", component, w.constant([batch, 1, *size]))
            indices = np.stack(np.meshgrid(np.arange(batch), [k], indexing="ij"), -1)
            grid = w.add("ScatterND", grid, w.constant(indices), component, **attributes)
    if layout == "first":
        grid = w.add("Transpose", grid, perm=[0, *range(2, axes + 2), 1])
    if "order" in edits:
        turned = w.add("Transpose", grid, perm=[axes + 1, *range(axes + 1)])
        turned = w.add("GatherND", turned, w.constant(np.array(edits["order"])[:, None]))
        grid = w.add("Transpose", turned, perm=[*range(1, axes + 2), 0])
    for op, c in whole:
        grid = w.add(op, grid, w.constant(c, "float32"))
    w.add("GridSample", "image", grid, mode=mode, name="y", padding_mode="border")
    inputs = {"image": ("float32", [batch, 3, *[s + 2 for s in size]]), "flow": ("float32", dims)}
    return w.model(inputs, ("y", "float32", None), opset)


def node_in_a_function(proto, how):
    """Move a model's node into a function, which gets its attributes from the caller or as
    defaults.
    """
    (node,) = proto.graph.node
    attributes, defaults = list(node.attribute), how == "by default"
    inner = helper.make_node(node.op_type, node.input, node.output, domain=node.domain)
    for a in attributes:
        inner.attribute.add(name=a.name, type=a.type, ref_attr_name=a.name)
    function = helper.make_function(
        "local", "Called", node.input, node.output, [inner], proto.opset_import,
        [] if defaults else [a.name for a in attributes], attributes if defaults else [],
    )  # fmt: skip
    node.op_type, node.domain = "Called", "local"
    if defaults:
        del node.attribute[:]
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("local", 1))
    return proto


def conv_relu_col2im_sigmoid(sampled=False):
    """Return a model of which ONNX Runtime fuses two nodes to one of com.microsoft, and its inputs.

    sampled: whether a GridSample of com.microsoft follows
    """
    rng = np.random.default_rng(0)
    text = """(float[N, 3, L] x GRID)
        => (float[A, B, C, D] OUTPUT) <int64[2] image = {8, 9}, int64[2] block = {3, 2}> {
        convolved = Conv (x, weight)
        positive = Relu (convolved)
        folded = Col2Im (positive, image, block)
        y = Sigmoid (folded) LAST
    }"""
    for name, attributes in (
        ("GRID", ", float[2, H, W, 2] grid"),
        ("LAST", "z = com.microsoft.GridSample (y, grid)"),
    ):
        text = text.replace(name, attributes if sampled else "")
    domains = ["com.microsoft"] if sampled else []
    weight = rng.standard_normal((12, 3, 1)).astype(np.float32)
    proto = parsed(text.replace("OUTPUT", "z" if sampled else "y"), 21, *domains, weight=weight)
    grid = rng.uniform(-1, 1, (2, 5, 6, 2)).astype(np.float32)
    return proto, [rng.standard_normal((2, 3, 48)).astype(np.float32), *[grid] * sampled]
