"""Edited models: small models that `optimize` rewrites, changed at random.

An edited model is the name of a seed and a list of edits, each with a number from which it draws:
so an edit can be left out, and the others stay as they are.
"""

import contextlib
import functools
import warnings
from functools import partial
from importlib.util import find_spec

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

import onnx_ops

from . import model_edits
from .backends import NEWEST_OPSET, quiet
from .by_hand import FORMS, GATHERS, OUTSIDE, PLACES, deform_conv, sampler
from .model_edits import EDITS, MODES, NEWER, PADDING, Inapplicable, chance, described, one_of
from .written import (
    Writer,
    affine_grid,
    attention,
    counts,
    divided_fold,
    feeds,
    flow_network,
    frames,
    perspective,
    unfold,
    unfold_product,
    warp,
    windows,
    written_in_place,
)

# Seeds: each returns (model, {name of an open dimension: its size}).


def _opset(rng, least=16):
    return int(rng.integers(least, min(22, NEWEST_OPSET) + 1))


def _sampling(rng, opset, modes=MODES):
    mode = one_of(rng, modes)
    settings = {"padding_mode": one_of(rng, PADDING), "align_corners": int(rng.integers(2))}
    settings = {name: value for name, value in settings.items() if chance(rng)}
    return {"mode": NEWER.get(mode, mode) if opset >= 20 else mode, **settings}


def _kind(rng, count=3):
    return one_of(rng, ["float32", *model_edits.FLOATS[:count]])


def _ints(rng, least, most, count):
    return tuple(map(int, rng.integers(least, most + 1, count)))


def _unfold(rng, open_sizes=False):
    axes = one_of(rng, [1, 2, 2, 2, 3])
    kernel, dilations, strides = (
        _ints(rng, 1, 3, axes),
        _ints(rng, 1, 2, axes),
        _ints(rng, 1, 2, axes),
    )
    pads = _ints(rng, 0, chance(rng), 2 * axes)
    image = tuple(
        d * (k - 1) + 1 + int(rng.integers(4)) for k, d in zip(kernel, dilations, strict=True)
    )
    batch, channels, target = int(rng.integers(1, 4)), int(rng.integers(1, 3)), {}
    if chance(rng, 0.3):
        target = {"target": one_of(rng, [[0, channels * int(np.prod(kernel)), -1], [-1]])}
    settings = {
        "kernel": kernel,
        "dilations": dilations,
        "strides": strides,
        "pads": pads,
        "image": image,
    }
    dtype = one_of(rng, ["float32", "float32", "uint8"])
    proto = unfold(
        open_sizes, _opset(rng), batch=batch, channels=channels, dtype=dtype, **settings, **target
    )
    return proto, {"n": batch, **{f"size_{k}": size for k, size in enumerate(image)}}


def _windows(rng):
    """Tensor.unfold, of which some nodes turn or flatten the result."""
    lead, kernel, steps = (
        _ints(rng, 1, 3, one_of(rng, [1, 2, 2])),
        int(rng.integers(1, 4)),
        _ints(rng, 1, 2, 2),
    )
    size, order = kernel + int(rng.integers(4)), one_of(rng, [None, (2, 3, 0, 1), (2, 0, 1, 3)])
    order = order and tuple(len(lead) + k for k in order)
    blocks = [(size - kernel) // step + 1 for step in steps]

    def flattened(w, y):
        sizes = [*blocks, kernel, kernel] if order is None else [kernel, kernel, *blocks]
        y = w.add("Reshape", y, w.constant([*lead, sizes[0] * sizes[1], sizes[2] * sizes[3]]))
        return (
            w.add("Transpose", y, perm=[*range(len(lead)), len(lead) + 1, len(lead)])
            if chance(rng)
            else y
        )

    after = (
        flattened
        if chance(rng) and order in (None, tuple(len(lead) + k for k in (2, 3, 0, 1)))
        else None
    )
    is_open = chance(rng, 0.2)
    proto = windows(
        order, steps, size, kernel, lead, is_open, None if is_open else after, _opset(rng)
    )
    return proto, {"h": size, "w": size}


def _frames(rng):
    """Tensor.unfold along the last axis."""
    lead, kernel, step, count = (
        _ints(rng, 1, 3, int(rng.integers(3))),
        *(int(rng.integers(2, 6)) for _ in range(3)),
    )
    length, is_open = kernel + step * (count - 1) + int(rng.integers(step)), chance(rng)
    after = one_of(
        rng, [None, lambda w, y: w.add("Mul", y, w.constant(np.hanning(kernel), "float32"))]
    )
    proto = frames(
        length, step, lead, kernel, is_open, after, None if is_open or chance(rng) else list
    )
    return proto, {"n": (*lead, 1)[0], "length": length}


def _unfold_product(rng):
    """An unfold that is multiplied and added up, over channels, positions or something else."""
    columns, factors, summed = one_of(rng, [
        ("ngdkl", "ngdl", "d"), ("ngdijhw", "ngdhw", "d"), ("ncijl", "ncl", "c"),
        ("ngdkl", "ngkl", "k"),
        ("ngdijhw", "ngijhw", "ij"), ("nckl", "nckl", "k"), ("ngdkl", "ngdl", "gd"),
        ("nxl", "nxl", "x"),
        ("ngdkl", "ngdkl", "dk"), ("ngdkl", "gdl", "d"),
    ])  # fmt: skip
    how = one_of(rng, ["ReduceSum", "ReduceMean", "Einsum"])
    order = "".join(rng.permutation([*columns])) if chance(rng) else None
    kernel, strides, batch, groups = _ints(rng, 1, 3, 2), _ints(rng, 1, 2, 2), *_ints(rng, 1, 2, 2)
    image, pads = tuple(k + int(rng.integers(3)) for k in kernel), _ints(rng, 0, chance(rng), 4)
    settings = {
        "kernel": kernel,
        "image": image,
        "pads": pads,
        "batch": batch,
        "groups": groups,
        "strides": strides,
    }
    sizes = {"channels": groups * int(rng.integers(1, 3)), "keepdims": int(chance(rng, 0.3))}
    # Of an empty batch, ONNX Runtime's Einsum ends the process.
    if chance(rng, 0.3) and "n" in factors and how != "Einsum":
        settings |= {
            "open_sizes": True,
            "kernel": (3, 3),
            "pads": (1,) * 4,
            "strides": (1, 1),
            "image": image,
        }
    proto = unfold_product(
        columns, factors, summed, how, order, opset=_opset(rng), **settings, **sizes
    )
    return proto, {"n": batch, "size_0": image[0], "size_1": image[1]}


def _divided_fold(rng):
    kernel, strides, pads = _ints(rng, 1, 3, 2), _ints(rng, 1, 2, 2), _ints(rng, 0, chance(rng), 4)
    image, sizes = tuple(k + int(rng.integers(4)) for k in kernel), _ints(rng, 1, 3, 2)
    return divided_fold(kernel, image, strides, pads, *sizes, opset=_opset(rng, 18)), {}


def _written_in_place(rng):
    size, opset = _ints(rng, 1, 4, one_of(rng, [2, 2, 3])), _opset(rng)
    settings = {"layout": one_of(rng, ["last", "first"]), "batch": int(rng.integers(1, 3))}
    settings["how"] = one_of(
        rng, ["ScatterElements", "ScatterND", *["rows"] * (settings["layout"] == "first")]
    )
    settings["steps"] = [("Mul", [0.5, 0.25, 2]), ("Sub", [1, 0, 1])]
    if chance(rng):
        settings["order"] = tuple(rng.permutation(len(size)) - one_of(rng, [0, len(size)]))
    if chance(rng):
        settings["written"] = rng.permutation(len(size))[: int(rng.integers(1, 4))].tolist()
    mode = "linear" if len(size) == 3 else _sampling(rng, 20)["mode"]
    opset = max(opset, 20) if len(size) == 3 else opset
    mode = mode if opset >= 20 else {new: old for old, new in NEWER.items()}.get(mode, mode)
    return written_in_place(size=size, opset=opset, mode=mode, **settings), {}


def _affine_grid(rng, **settings):
    size, batch = _ints(rng, 1, 4, one_of(rng, [2, 2, 3])), int(rng.integers(1, 4))
    opset = _opset(rng, 16 if len(size) == 2 else 20)
    sample = {"sample": _sampling(rng, opset)["mode"]} if chance(rng, 0.8) else {}
    is_open, corners = chance(rng, 0.4), chance(rng)
    return affine_grid(
        is_open, opset, size=size, batch=batch, align_corners=corners, **sample, **settings
    ), {"n": batch}


def _affine_grid_of_onnx(rng):
    """GridSample after AffineGrid of ai.onnx, of a constant size or of that of the image."""
    w, opset, (batch, *size) = Writer(), _opset(rng, 20), _ints(rng, 1, 4, one_of(rng, [3, 3, 4]))
    corners, axes = {"align_corners": int(rng.integers(2))} if chance(rng, 0.7) else {}, len(size)
    is_open, sampling = chance(rng), _sampling(rng, opset)
    if axes == 3:
        sampling["mode"] = one_of(rng, ["linear", "nearest"])
    w.add("AffineGrid", "theta", w.add("Shape", "image") if is_open
        else w.constant([batch, 2, *size]), name="grid",
          **corners)  # fmt: skip
    w.add("GridSample", "image", "grid", name="y", **sampling)
    image = ["n", 2, *"dhw"[-axes:]] if is_open else [batch, 2, *(4, 3, 2)[:axes]]
    inputs = {
        "theta": ("float32", ["n" if is_open else batch, axes, axes + 1]),
        "image": ("float32", image),
    }
    return w.model(inputs, ("y", "float32", None), opset), {
        "n": batch,
        **dict(zip("dhw"[-axes:], size, strict=True)),
    }


def _perspective(rng):
    opset, batch, divided = _opset(rng), int(rng.integers(1, 3)), chance(rng, 0.6)
    mode = _sampling(rng, opset)["mode"]
    settings = {"opset": opset, "mode": mode, "dtype": _kind(rng, 2)}
    return perspective(divided, size=_ints(rng, 1, 3, 2), batch=batch, **settings), {}


def _flow(rng):
    opset, size, layout = _opset(rng), _ints(rng, 2, 4, 2), one_of(rng, ["first", "last", "maps"])
    steps = one_of(
        rng,
        [None, [("Mul", 2), ("Sub", 1)], [("Mul", [2, 3]), ("Sub", [0.5, 1])], [("Neg", None)], []],
    )
    sampling = _sampling(rng, opset)
    settings = {
        "size": size,
        "opset": opset,
        "layout": layout,
        "mode": sampling.pop("mode"),
        "sampling": sampling,
    }
    settings["dtype"] = _kind(rng, 2)
    return warp(
        steps, layout == "first" and chance(rng), batch=int(rng.integers(1, 3)), **settings
    ), {}


# Operators before a flow: {name: a function that draws (argument, attributes)}, see `flow_network`.
LAYERS = {
    "Conv": lambda rng: (int(rng.integers(1, 4)), _windows_over(rng)),
    "ConvTranspose": lambda rng: (int(rng.integers(1, 4)), _windows_over(rng)),
    "MaxPool": lambda rng: (None, {**_windows_over(rng), "ceil_mode": int(rng.integers(2))}),
    "AveragePool": lambda rng: (
        None,
        {**_windows_over(rng, most=1), "ceil_mode": int(rng.integers(2))},
    ),
    "Resize": lambda rng: (
        one_of(rng, [(2, 2), (0.5, 2), (1.5, 1.3)]),
        {"mode": one_of(rng, ["linear", "nearest"])},
    ),
    "Add": lambda rng: (0, {}),
    "Concat": lambda rng: (-int(rng.integers(2)), {"axis": 1}),
    "Relu": lambda rng: (None, {}),
    "DepthToSpace": lambda rng: (None, {"blocksize": 1}),
}


def _windows_over(rng, most=2):
    """Draw attributes of a convolution or pool, such that most images are larger than a window."""
    kernel = _ints(rng, 1, 4, 2)
    settings = {
        "kernel_shape": kernel,
        "strides": _ints(rng, 1, 2, 2),
        "dilations": _ints(rng, 1, most, 2),
    }
    if chance(rng, 0.2):
        return {
            **settings,
            "dilations": (1, 1),
            "auto_pad": one_of(rng, ["SAME_UPPER", "SAME_LOWER", "VALID"]),
        }
    return {
        **settings,
        "pads": [int(rng.integers(k)) for k in kernel] + [int(rng.integers(k)) for k in kernel],
    }


def _flow_network(rng):
    """A flow that a network of a few layers computes, of open sizes.

    What doesn't fit is drawn anew.
    """
    while True:
        layers = [
            (name, *LAYERS[name](rng))
            for name in (one_of(rng, LAYERS) for _ in range(rng.integers(1, 4)))
        ]
        opset, sizes = (
            _opset(rng, 19),
            dict(zip("nhw", (*_ints(rng, 1, 2, 1), *_ints(rng, 1, 7, 2)), strict=True)),
        )
        settings = {
            "pixels": one_of(rng, ["flow", "image"]),
            "resized": chance(rng, 0.3),
            "opset": opset,
        }
        with contextlib.suppress(Exception):  # onnx has one for each kind of refusal, too
            proto = flow_network(layers, **settings, **_sampling(rng, opset))
            if _runs(proto, sizes):
                return proto, sizes


def _places(rng):
    """GridSample at 2 * p - 1, with the coordinates on the last or on the second axis of p."""
    w, opset, interleaved, size = Writer(), _opset(rng), chance(rng, 0.6), [*_ints(rng, 1, 5, 3)]
    grid = w.add("Mul", *["p", w.constant(2, "float32")][:: one_of(rng, [1, -1])])
    grid = w.add("Sub", grid, w.constant(1, "float32"))
    grid = grid if interleaved else w.add("Transpose", grid, perm=[0, 2, 3, 1])
    w.add("GridSample", "image", grid, name="y", **_sampling(rng, opset))
    p = [*size, 2] if interleaved else [size[0], 2, *size[1:]]
    return w.model(
        {"p": ("float32", p), "image": ("float32", [size[0], 1, 4, 3])},
        ("y", "float32", None),
        opset,
    ), {}


def _attention(rng, open_sizes=False):
    opset, levels = _opset(rng), tuple(_ints(rng, 1, 3, 2) for _ in range(rng.integers(1, 3)))
    sizes = {
        name: int(rng.integers(1, 4))
        for name in ("batch", "queries", "heads", "channels", "points")
    }
    cut, merged = one_of(rng, ["Split", "Split", "Slice", "SplitToSequence"]), chance(rng, 0.4)
    mode = {"mode": _sampling(rng, opset, ["bilinear"])["mode"]}
    proto = attention(
        open_sizes, opset, levels=levels, cut=cut, merged=merged, sampling=mode, **sizes
    )
    return proto, {"n": sizes["batch"], "q": sizes["queries"]}


def _sampler(rng):
    """Bilinear sampling by hand; in some one step is another one."""
    choices = {
        "places": PLACES,
        "outside": OUTSIDE,
        "gather": GATHERS,
        "form": FORMS,
        "flat": (True, False),
    }
    settings = {name: one_of(rng, choices_of_name) for name, choices_of_name in choices.items()} | {
        "first": chance(rng)
    }
    settings |= {
        "is_open": chance(rng, 0.3) and settings["places"] != "flow",
        "swapped": chance(rng, 0.2),
    }
    other_settings = {
        "high": [-1, 1],
        "low": [-1, 1],
        "factor": [1.5],
        "one": [0.5],
        "next": [0, 2],
        "pad_value": [1],
    }
    settings["hidden"] = one_of(rng, [None, None, "And", "Mul"])
    other_settings |= {"end": [1, -1], "scale": [2], "covers": [1]} if settings["hidden"] else {}
    _change_one(rng, settings, other_settings)
    size, out, (batch, channels) = (
        _ints(rng, 1 + chance(rng, 0.8), 5, 2),
        _ints(rng, 1, 4, 2),
        _ints(rng, 1, 2, 2),
    )
    settings |= {"dtype": _kind(rng), "batch": batch, "channels": channels}
    sizes = dict(zip("HWhw", (*size, *out), strict=True))
    proto = sampler(size=size, out=out, opset=_opset(rng, one_of(rng, [11, 16])), **settings)
    # ONNX Runtime refuses indices outside of the image, which some steps make.
    return (proto, sizes) if _runs(proto, sizes) else _sampler(rng)


def _deform_conv(rng, module=False):
    """Deformable convolution by hand; in some one step is another one."""
    kernel, pads, strides = _ints(rng, 1, 3, 2), _ints(rng, 0, 2, 2), _ints(rng, 1, 2, 2)
    group, groups, (batch,) = one_of(rng, [1, 2]), one_of(rng, [1, 2, 4]), _ints(rng, 1, 2, 1)
    settings = {
        "kernel": kernel,
        "pads": pads,
        "strides": strides,
        "dilations": _ints(rng, 1, 2, 2),
        "group": group,
    }
    settings |= {
        "mask": chance(rng),
        "bias": chance(rng),
        "gather": one_of(rng, GATHERS[::2]),
        "batch": batch,
    }
    settings |= {"sum": one_of(rng, ["Sum", "Add"]), "offset_group": groups, "module": module}
    settings["dtype"] = _kind(rng)
    size = tuple(5 + int(rng.integers(3)) for _ in range(2))
    if module and chance(rng):  # all rows before all columns
        out = counts(size, kernel, settings["dilations"], pads * 2, strides)
        settings |= {
            "offset": [batch, groups, 2, kernel[0] * kernel[1], *out],
            "turned": [0, 1, 3, 2, 4, 5],
        }
    _change_one(rng, settings, {"high": [-1, 1], "one": [0.5], "step": [1, -1], "shift": [1, -1]})
    proto = deform_conv(
        size=size, channels=4, outputs=2, opset=_opset(rng, one_of(rng, [12, 16])), **settings
    )
    return (proto, {}) if _runs(proto, {}) else _deform_conv(rng, module)


def _exported_sampler(rng):
    from . import exported_by_hand as by_torch

    (height, width), out, (batch, channels) = _ints(rng, 2, 4, 2), (2, 3), _ints(rng, 1, 2, 2)
    settings = (
        one_of(rng, by_torch.PICKS),
        one_of(rng, OUTSIDE),
        int(chance(rng)),
        one_of(rng, by_torch.FORMS),
    )
    inputs = ("image", (batch, channels, height, width)), ("grid", (batch, *out, 2))
    return _exported(rng, by_torch.sampler, settings, inputs, chance(rng, 0.4)), {
        "H": height,
        "W": width,
    }


def _exported_deform_conv(rng):
    from . import exported_by_hand as by_torch

    kernel, stride, pad, (batch,) = *_ints(rng, 1, 2, 2), one_of(rng, [1, 2]), _ints(rng, 1, 2, 1)
    out = counts((5, 4), [kernel] * 2, [1, 1], [pad] * 4, [stride] * 2)
    inputs = [
        ("x", (batch, 2, 5, 4)),
        ("offset", (batch, 2 * kernel**2, *out)),
        ("mask", (batch, kernel**2, *out)),
    ]
    settings = kernel, pad, stride, chance(rng)
    return _exported(rng, by_torch.module, settings, tuple(inputs[: 2 + settings[-1]])), {}


def _exported(rng, function, settings, inputs, *options):
    from . import exported_by_hand as by_torch

    dtype, exporter = _kind(rng, 2), one_of(rng, by_torch.EXPORTERS)
    return onnx.ModelProto.FromString(
        by_torch.exported(function, settings, inputs, dtype, exporter, *options)
    )


def _change_one(rng, settings, other_settings, probability=0.2):
    """Replace one step, most often none. other_settings: {name of an option: its values}"""
    if chance(rng, probability):
        name = one_of(rng, other_settings)
        settings[name] = one_of(rng, other_settings[name])


def _runs(proto, sizes):
    """Return whether ONNX Runtime runs a model; it has an exception for each kind of refusal."""
    try:
        return Draft(onnx.ModelProto.FromString(proto.SerializeToString()), sizes).runs
    except Exception:
        return False


BY_HAND = {
    "sampling by hand": _sampler,
    "deformable convolution by hand": _deform_conv,
    "deformable convolution in plain PyTorch": partial(_deform_conv, module=True),
}
BY_TORCH = {
    "sampling by hand, exported by PyTorch": _exported_sampler,
    "deformable convolution, exported by PyTorch": _exported_deform_conv,
}
BY_HAND |= BY_TORCH if find_spec("torch") and find_spec("onnxscript") else {}
SEEDS = {
    **BY_HAND,
    "unfold": _unfold,
    "frames": _frames,
    "unfold of open sizes": partial(_unfold, open_sizes=True),
    "Tensor.unfold": _windows,
    "products of an unfold": _unfold_product,
    "fold of ones": _divided_fold,
    "written in place": _written_in_place,
    "affine_grid": _affine_grid,
    "affine_grid by rows": partial(_affine_grid, by_rows=True),
    "affine_grid of ai.onnx": _affine_grid_of_onnx,
    "perspective": _perspective,
    "flow": _flow,
    "flow of a network": _flow_network,
    "places": _places,
    "attention": _attention,
    "attention of open sizes": partial(_attention, open_sizes=True),
}


@functools.cache
def options(level, *domains):
    """Return options for sessions, with our operators. level: which optimizations ONNX Runtime
    does.
    """
    level = getattr(ort.GraphOptimizationLevel, level)
    return onnx_ops.register(
        quiet(intra_op_num_threads=1, graph_optimization_level=level), domains=domains
    )


def opened(proto, level):
    """Return a session of ONNX Runtime with our operators."""
    imported = {i.domain for owner in (proto, *proto.functions) for i in owner.opset_import}
    domains = sorted(imported & {"", "com.microsoft", "onnx_ops"})
    return ort.InferenceSession(proto.SerializeToString(), options(level, *domains))


def with_all_outputs(proto, count=None):
    """Return a copy of a model in which all values of the main graph are outputs; or only those of
    its first nodes.
    """
    copy = onnx.ModelProto.FromString(proto.SerializeToString())
    if count is not None:
        del copy.graph.node[count:], copy.graph.output[:]
    names_of_outputs = {output.name for output in copy.graph.output}
    names = dict.fromkeys(
        name
        for node in copy.graph.node
        for name in node.output
        if name and name not in names_of_outputs
    )
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return copy


def run_all(proto, feeds, count=None):
    """Run a model, or its first nodes; returns {name: array} of all values of the main graph that
    they make.
    """
    session = opened(with_all_outputs(proto, count), "ORT_DISABLE_ALL")
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))


class Draft:
    """A model that is being changed.

    sizes         {name of an open dimension: its size}
    values        {name: array} of the values in the main graph, for random inputs of these sizes
    runs          whether ONNX Runtime runs it
    at, position  the node, and the input of it, that an edit has picked: new nodes are inserted
                  before it
    """

    def __init__(self, proto, sizes):
        self.proto, self.sizes, self.runs, self.count, self.at, self.position = (
            proto,
            sizes,
            True,
            0,
            0,
            0,
        )
        self.values: dict = {}
        del self.graph.value_info[:]
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
        return [value for value in self.graph.input if value.name not in defaults]

    def dimensions(self):
        """The dimensions of inputs, as [(input, axis, dimension)]."""
        return [
            (value, axis, d)
            for value in self.inputs
            for axis, d in enumerate(value.type.tensor_type.shape.dim)
        ]

    def evaluate(self):
        """Run the model; raises what ONNX Runtime raises."""
        feeds, constants = (
            self.feeds(self.sizes),
            {t.name: numpy_helper.to_array(t) for t in self.graph.initializer},
        )
        for count, node in enumerate(self.graph.node):
            # What ends ONNX Runtime's process: an Einsum of an empty value, a Slice of an
            # AffineGrid of negative size.
            values = run_all(self.proto, feeds, count) if node.op_type == "Einsum" and count else {}
            sizes = (
                constants.get(node.input[1])
                if (node.domain, node.op_type) == ("", "AffineGrid")
                else None
            )
            is_negative = sizes is not None and np.any(sizes < 0)
            if is_negative or not all(values[name].size for name in node.input if name in values):
                raise Inapplicable
        arrays = feeds | run_all(self.proto, feeds) | constants
        self.values = {
            name: array for name, array in arrays.items() if isinstance(array, np.ndarray)
        }
        for output in self.graph.output:
            array = self.values[output.name]
            output.CopyFrom(described(output.name, array, [None] * array.ndim))

    def feeds(self, sizes, seed=0):
        # Tools give dimensions of inputs names of their own.
        shapes = {name: array.shape for name, array in self.values.items()}
        named = {
            d.dim_param: shapes[v.name][axis]
            for v, axis, d in self.dimensions()
            if v.name in shapes
        }
        return feeds(self.proto, named | sizes, seed)

    def apply(self, edit, number, may_break=False):
        """Apply an edit; returns whether the model has changed. It doesn't if the edit finds
        nothing to change.

        may_break  whether it also changes if ONNX Runtime then refuses it
        """
        if not self.runs:
            return False
        before, sizes = self.proto.SerializeToString(), dict(self.sizes)
        with contextlib.suppress(Inapplicable):
            EDITS[edit](self, np.random.default_rng(number))
            try:
                self.evaluate()
                return True
            except Exception:  # ONNX Runtime has one for each kind of refusal
                self.runs = not may_break
                if may_break:
                    return True
        self.proto.ParseFromString(before)
        self.sizes = sizes
        return False

    # What edits use.

    def name(self, like):
        self.count += 1
        return f"{like}_m{self.count}"

    def constant(self, value, dtype="int64"):
        self.graph.initializer.append(
            numpy_helper.from_array(np.asarray(value, dtype), self.name("constant"))
        )
        return self.graph.initializer[-1].name

    def add(self, op_type, *inputs, outputs=1, **attributes):
        """Insert a node; returns the name of its output, or a list of them."""
        names = [self.name(op_type.lower()) for _ in range(outputs)]
        self.graph.node.insert(
            self.at, helper.make_node(op_type, list(inputs), names, **attributes)
        )
        self.at += 1
        return names if outputs > 1 else names[0]

    def output(self, name):
        self.graph.output.append(onnx.ValueInfoProto(name=name))

    def pick(self, rng, wanted=lambda array: True, op_types=()):
        """Pick an input of a node, or an output of the graph, whose value is wanted; returns the
        value's name.
        """
        users = [(node.op_type, node.input) for node in self.graph.node]
        users.append(("", [output.name for output in self.graph.output]))
        edges = [
            (k, p, name)
            for k, (op_type, names) in enumerate(users)
            if op_type in op_types or not op_types
            # Fmt: skip.
            for p, name in enumerate(names)
            if name in self.values and wanted(self.values[name])
        ]
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


def plan(seed, case, without=()):
    """Draw an edited model: (name of a seed, its number), [(name of an edit, its number)], and a
    number for its checks.

    Successive cases have all seeds in turn. Models written by hand have many nodes, and most
    edits of them leave no pattern: they get fewer, and near misses.
    """
    rng, starts = (
        np.random.default_rng([seed, case]),
        [name for name in SEEDS if name not in without],
    )
    drawn, start = (
        lambda edits, count: [one_of(rng, edits).__name__ for _ in range(count)],
        starts[case % len(starts)],
    )
    by_hand = start in BY_HAND
    names = drawn(model_edits.NEAR, rng.integers(3) if by_hand else 0)
    names += drawn(model_edits.COMMON, rng.geometric(0.6) - 1 if by_hand else rng.geometric(0.4))
    names += drawn(model_edits.USES, rng.integers(2))
    names += drawn(model_edits.WRAPS, max(0, rng.integers(-2, 3)))
    names += ["versions"] * chance(rng, 0.4) + ["inference"] * chance(rng, 0.4)
    names += drawn(model_edits.TOOLS, chance(rng, 0.05))
    first, *numbers, last = rng.integers(2**32, size=len(names) + 2).tolist()
    return (
        (start, first),
        [step for step in zip(names, numbers, strict=True) if step[0] not in without],
        last,
    )


def made(start, steps):
    """Return (Draft, the steps that changed it) of a plan."""
    name, number = start
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        draft = Draft(*SEEDS[name](np.random.default_rng(number)))
        return draft, [step for step in steps if draft.apply(*step, may_break=step[1] % 8 == 0)]
