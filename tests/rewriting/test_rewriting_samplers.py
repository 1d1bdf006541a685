"""optimize() finds samplers along any axes, of nearest pixels, channel by channel, and samples that
are convolved.
"""

import functools
import itertools

import numpy as np
import pytest
from support.backends import ORT_VERSION
from support.rewriting import compare, near_miss
from support.selection import in_turn, long_unless
from support.written import Writer

pytestmark = pytest.mark.any_library

SAMPLER = {
    "size": (7, 9), "out": (5, 3), "batch": 2, "channels": 3, "mode": "linear", "outside": "zeros",
    "rows": False,
    "between": 1, "end": 0, "step": 1, "factor": 1,
}  # fmt: skip


def sampler(**edits):
    """A sampler of "image" [N, C, *size] at the pixels "x0", "x1", .. [N, *out] along its last
    axes.

    rows     whether it samples along the last axis alone, at other places for each row
    between  the type of elements in which it computes, of ONNX
    end, step, factor   what the last pixel, the next one, and the last weight differ by or are
    """
    s = SAMPLER | edits
    w, n, c = Writer(), s["batch"], s["channels"]
    own = [s["size"][0]] if s["rows"] else []
    size, out = s["size"][len(own) :], s["out"][len(own) :]
    points = int(np.prod(out))
    dtype = np.float64 if s["between"] == 11 else np.float32
    number = lambda value: w.constant(value, dtype)
    both = functools.partial(functools.reduce, lambda a, b: w.add("And", a, b))
    flat = w.add("Reshape", "image", w.constant([n, c, *own, -1]))
    places = [w.add("Cast", f"x{k}", to=s["between"]) for k in range(len(size))]
    if s["outside"] == "border":
        places = [
            w.add("Clip", x, number(0), number(count - 1))
            for x, count in zip(places, size, strict=True)
        ]
    firsts = [w.add("Floor" if s["mode"] == "linear" else "Round", x) for x in places]
    products = []
    for corner in itertools.product((0, 1) if s["mode"] == "linear" else (0,), repeat=len(size)):
        index, weights, conditions = w.constant(0), [], []
        for x, first, count, right in zip(places, firsts, size, corner, strict=True):
            pixel = w.add("Cast", first, to=7)
            pixel = w.add("Add", pixel, w.constant(s["step"])) if right else pixel
            end = w.constant(count - 1 + s["end"])
            conditions += [
                w.add("GreaterOrEqual", pixel, w.constant(0)),
                w.add("LessOrEqual", pixel, end),
            ]
            inside = w.add("Clip", pixel, w.constant(0), end)
            index = w.add("Add", w.add("Mul", index, w.constant(count)), inside)
            fraction = w.add("Sub", x, first)
            weights.append(fraction if right else w.add("Sub", number(1), fraction))
        factors = weights if s["mode"] == "linear" else []
        if s["outside"] == "zeros":
            factors = [*factors, w.add("Cast", both(conditions), to=s["between"])]
        index = w.add("Reshape", index, w.constant([n, 1, *own, points]))
        index = w.add("Expand", index, w.constant([n, c, *own, points]))
        value = w.add("Cast", w.add("GatherElements", flat, index, axis=-1), to=s["between"])
        for factor in factors:
            value = w.add("Mul", value, w.add("Reshape", factor, w.constant([n, 1, *own, points])))
        products.append(value)
    if s["factor"] != 1:
        products[-1] = w.add("Mul", products[-1], number(s["factor"]))
    total = w.add("Cast", functools.reduce(lambda a, b: w.add("Add", a, b), products), to=1)
    y = w.add("Reshape", total, w.constant([n, c, *own, *out]))
    inputs = {"image": ("float32", [n, c, *s["size"]])}
    inputs |= {f"x{k}": ("float32", [n, *own, *out]) for k in range(len(size))}
    return w.model(inputs, (y, "float32", [None] * (2 + len(s["size"]))), 17)


AXES = {
    "one axis": {"size": (9,), "out": (5,)},
    "two axes": {},
    "three axes": {"size": (4, 7, 5), "out": (2, 3, 4)},
    "rows": {"rows": True, "out": (7, 5)},
}  # fmt: skip
BORDERS = [(mode, outside) for mode in ("linear", "nearest") for outside in ("zeros", "border")]


@pytest.mark.parametrize(("axes", "border"), in_turn(AXES, BORDERS))
def test_sampler(axes, border):
    mode, outside = border
    nodes, (finding,) = compare(sampler(mode=mode, outside=outside, **AXES[axes]))
    assert (finding.operator, finding.untried) == ("ComputedGridSample", None)
    assert "Transpose" not in nodes
    assert nodes.count("ComputedGridSample") == 1


@pytest.mark.parametrize("axes", [long_unless(axes == "one axis", axes) for axes in AXES])
def test_a_sampler_that_computes_in_float64(axes):
    nodes, (finding,) = compare(sampler(between=11, **AXES[axes]))
    assert (finding.operator, finding.untried) == ("ComputedGridSample", None)
    assert "GatherElements" not in nodes


NO_SAMPLERS = {
    "a mask that ends one pixel earlier": {"end": -1}, "the pixel after the next one": {"step": 2},
    "one other weight": {"factor": 1.01},
}  # fmt: skip


@pytest.mark.parametrize("axes", [long_unless(axes == "one axis", axes) for axes in AXES])
@pytest.mark.parametrize("name", NO_SAMPLERS)
def test_no_sampler(axes, name):
    (reason,) = near_miss(sampler(**AXES[axes], **NO_SAMPLERS[name]))
    assert reason.startswith("it isn't linear or nearest interpolation")


def by_channels(channels=3, other=None):
    """Bilinear sampling of each channel of "image" [C, 7, 9] alone. other: the channel that is read
    last.
    """
    w = Writer()
    number = lambda value: w.constant(value, "float32")
    results = []
    for c in range(channels):
        channel = w.add(
            "Gather", "image", w.constant(other if other and c == channels - 1 else c), axis=0
        )
        flat = w.add("Reshape", channel, w.constant([-1]))
        firsts = [w.add("Floor", f"x{k}") for k in (0, 1)]
        products = []
        for corner in itertools.product((0, 1), repeat=2):
            index, product = w.constant(0), None
            for k, (first, count, right) in enumerate(zip(firsts, (7, 9), corner, strict=True)):
                pixel = w.add("Add", w.add("Cast", first, to=7), w.constant(right))
                inside = w.add("Clip", pixel, w.constant(0), w.constant(count - 1))
                index = w.add("Add", w.add("Mul", index, w.constant(count)), inside)
                fraction = w.add("Sub", f"x{k}", first)
                weight = fraction if right else w.add("Sub", number(1), fraction)
                product = weight if product is None else w.add("Mul", product, weight)
            products.append(w.add("Mul", product, w.add("Gather", flat, index, axis=0)))
        results.append(
            w.add(
                "Unsqueeze",
                functools.reduce(lambda a, b: w.add("Add", a, b), products),
                w.constant([0]),
            )
        )
    y = w.add("Concat", *results, axis=0)
    inputs = {
        "image": ("float32", [channels, 7, 9]),
        "x0": ("float32", [5, 6]),
        "x1": ("float32", [5, 6]),
    }
    return w.model(inputs, (y, "float32", [None] * 3), 17)


def test_channels_one_by_one():
    nodes, (finding,) = compare(by_channels())
    assert (finding.operator, finding.untried) == ("ComputedGridSample", None)
    assert nodes == ["Reshape", "ComputedGridSample", "Reshape"]


@pytest.mark.long
def test_channels_in_another_order():
    """Each one is sampled alone: no digits say which channel is the last one."""
    nodes, findings = compare(by_channels(4, other=1))
    assert {finding.operator for finding in findings} <= {"ComputedGridSample", None}
    assert "Concat" in nodes


CONV = {
    "kernel": (1, 3), "align_corners": 1, "mask": False, "product": "Einsum", "dilation": 1,
    "padding_mode": "zeros",
    "mode": "linear",
}  # fmt: skip
PRODUCTS = "Einsum", "Conv of [C, K]", "Conv of [K, C]"


def convolved(**edits):
    """A deformable convolution of "x" [2, 4, 8, 9] with a GridSample of opset 20 for each place in
    the kernel.
    """
    s = CONV | edits
    w = Writer()
    n, c, h, width, o = 2, 4, 8, 9, 5
    number = lambda value: w.constant(value, "float32")
    rows, columns = s["kernel"]
    count = rows * columns
    samples = []
    for k in range(count):
        grid = []
        for axis, size in ((1, width), (0, h)):
            inner = (k % columns - columns // 2) if axis else (k // columns - rows // 2)
            own = np.arange(size).reshape((1, size) if axis else (size, 1)) + inner * s["dilation"]
            at = w.add(
                "Add", w.add("Gather", "offset", w.constant(2 * k + axis), axis=1), number(own)
            )
            if s["align_corners"]:
                at = w.add(
                    "Sub", w.add("Mul", w.add("Div", at, number(size - 1)), number(2)), number(1)
                )
            else:
                twice = w.add("Add", w.add("Mul", at, number(2)), number(1))
                at = w.add("Sub", w.add("Div", twice, number(size)), number(1))
            grid.append(w.add("Unsqueeze", at, w.constant([-1])))
        settings = {name: s[name] for name in ("mode", "padding_mode", "align_corners")}
        sample = w.add("GridSample", "x", w.add("Concat", *grid, axis=-1), **settings)
        if s["mask"]:
            sample = w.add(
                "Mul",
                sample,
                w.add("Slice", "mask", w.constant([k]), w.constant([k + 1]), w.constant([1])),
            )
        samples.append(sample)
    weights = np.random.default_rng(0).standard_normal((o, c, count))
    if s["product"] == "Conv of [K, C]":
        together = w.add("Concat", *samples, axis=1)
        weight = number(weights.transpose(0, 2, 1).reshape(o, -1, 1, 1))
        y = w.add("Conv", together, weight, number(np.arange(o)), kernel_shape=[1, 1])
    else:
        together = w.add(
            "Concat", *(w.add("Unsqueeze", each, w.constant([2])) for each in samples), axis=2
        )
        if s["product"] == "Einsum":
            y = w.add("Einsum", together, number(weights), equation="nckhw,ock->nohw")
        else:
            together = w.add("Reshape", together, w.constant([n, c * count, h, width]))
            y = w.add("Conv", together, number(weights.reshape(o, -1, 1, 1)), kernel_shape=[1, 1])
    inputs = {"x": ("float32", [n, c, h, width]), "offset": ("float32", [n, 2 * count, h, width])}
    if s["mask"]:
        inputs["mask"] = ("float32", [n, count, h, width])
    return w.model(inputs, (y, "float32", [None] * 4), 20)


CONVOLVED = {
    "as it is": {}, "with a mask": {"mask": True}, "edges": {"align_corners": 0},
    "dilated": {"dilation": 2, "kernel": (3, 3)}, "three rows": {"kernel": (3, 3)},
    "three rows with a mask": {"kernel": (3, 3), "mask": True},
    "with a mask, edges": {"mask": True, "align_corners": 0},
}  # fmt: skip


@pytest.mark.parametrize(("name", "product"), in_turn(CONVOLVED, PRODUCTS, every=7))
def test_samples_that_are_convolved(name, product):
    nodes, (finding,) = compare(
        convolved(product=product, **CONVOLVED[name]), alone=ORT_VERSION >= (1, 25)
    )
    assert (finding.operator, finding.untried) == ("DeformConv", None)
    assert {*nodes} <= {"Reshape", "Transpose", "DeformConv"}


@pytest.mark.parametrize("edits", [{"mode": "nearest"}, {"padding_mode": "border"}], ids=str)
def test_samples_that_no_deform_conv_makes(edits):
    nodes, findings = compare(convolved(**edits))
    assert "DeformConv" not in nodes
    assert findings[0].operator is None
    assert "mode" in findings[0].reason
