"""Models that sample images without GridSample and DeformConv: four pixels are gathered, weighed
and added up.

Each option replaces one step, so that a test can build nearly the same model.
"""

import functools
import itertools

import ml_dtypes  # noqa: F401  teaches NumPy the name bfloat16
import numpy as np
import onnx

from .backends import NEWEST_OPSET
from .written import Writer, counts

SAMPLER = {
    "size": (9, 12), "out": (5, 7), "batch": 2, "channels": 3, "dtype": "float32", "opset": 17,
    "places": "corners",
    "outside": "pad", "gather": "GatherElements", "form": "weights", "is_open": False,
    "swapped": False,
    "high": 0, "low": 0, "one": 1, "next": 1, "factor": 1, "inputs": {}, "first": False,
    "flat": True,
    "last": False, "joined": False, "hidden": None, "end": 0, "scale": 1, "covers": 2,
}  # fmt: skip
FORMS = "weights", "lerp"
OUTSIDE = "pad", "mask", "border", "inside"
GATHERS = "GatherElements", "Gather", "GatherND"
PLACES = "corners", "edges", "pixels", "flow"


def sampler(after=None, **edits):
    """Bilinear sampling of "image" [N, C, H, W] at the places "grid" [N, h, w, 2] to "y" [N, C, h,
    w].

    places   "corners": in [-1, 1], as with align_corners; "edges": without; "pixels": numbers of
             pixels; "flow": these, with each output pixel's own place added
    outside  what is read there: "pad": zeros that a Pad adds; "mask": zeros, by a mask; "border":
             the border's pixels, by limits of the coordinates; "inside": the same by limits of the
             indices, which the weights don't have
    gather   which operator picks pixels: of an image [N, C, H * W], of one [N * H * W, C], or of
             one [N, H, W, C]
    form     "weights": four products; "lerp": along rows, then between them
    is_open  whether the sizes of image and grid are open
    last     whether channels come last: "y" is [N, h, w, C], with a gather of pixels with all
             channels
    joined   whether h and w are one axis of "y"
    hidden   by what "y" is hidden, and indices are 0, outside of the image: "And" or "Mul" of
             comparisons, a "Where" of numbers, a "Sub" of what isn't seen, a "Cast" of indices, an
             "Or" with a sliver that is not hidden, None
    end, scale, covers   how many pixels earlier these end, what they are multiplied by, of how many
                         axes they are
    high, low, one, next, factor   what the limits of indices, the 1 of weights, the step to the
                                   next pixel and
             the last weight differ by or are
    """
    s = SAMPLER | edits
    w, dtype, opset = Writer(), s["dtype"], s["opset"]
    number = lambda value: w.constant(value, dtype)
    (height, width), n, c = s["size"], s["batch"], s["channels"]

    def unsqueezed(name, axis):
        if opset < 13:
            return w.add("Unsqueeze", name, axes=[axis])
        return w.add("Unsqueeze", name, w.constant([axis]))

    def size_of(axis):
        return w.add("Gather", w.add("Shape", "image"), w.constant(axis), axis=0)

    def as_number(name):
        return w.add("Cast", name, to=onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    if s["is_open"]:
        sizes = size_of(3), size_of(2)
        floats = [as_number(size) for size in sizes]
    else:
        sizes = w.constant(width), w.constant(height)
        floats = [number(width), number(height)]
    minus = lambda name, by: w.add("Sub", name, number(by) if name in floats else w.constant(by))
    last = [minus(size, 1) for size in floats]
    coordinates = []
    for k in (0, 1):
        v = w.add("Gather", "grid", w.constant(1 - k if s["swapped"] else k), axis=3)
        if s["places"] == "corners":
            v = w.add("Mul", w.add("Div", w.add("Add", v, number(1)), number(2)), last[k])
        elif s["places"] == "edges":
            v = w.add(
                "Div",
                w.add("Sub", w.add("Mul", w.add("Add", v, number(1)), floats[k]), number(1)),
                number(2),
            )
        elif s["places"] == "flow":
            own = np.arange(s["out"][1 - k])
            v = w.add("Add", number(own[None, None, :] if k == 0 else own[None, :, None]), v)
        if s["flat"] and not s["is_open"]:
            v = w.add("Reshape", v, w.constant([n, s["out"][0] * s["out"][1]]))
        elif s["flat"]:
            v = w.add("Reshape", v, w.constant([0, -1]))
        if s["outside"] == "border":
            v = (
                w.add("Max", w.add("Min", v, last[k]), number(0))
                if s["first"]
                else w.add("Clip", v, number(0), last[k])
            )
        coordinates.append(v)
    flat = s["flat"]
    floors = [w.add("Floor", v) for v in coordinates]
    wholes = [w.add("Cast", f, to=7) for f in floors]
    nexts = [w.add("Add", i, w.constant(s["next"])) for i in wholes]
    if s["hidden"]:
        above = lambda v: w.add("Not", w.add("Less", v, number(0)))
        pairs = zip(coordinates, [minus(size, 1 + s["end"]) for size in floats], strict=True)
        conditions = [
            condition for v, end in pairs for condition in (above(v), w.add("Less", v, end))
        ][: 2 * s["covers"]]
        all_of = lambda op, terms: functools.reduce(
            lambda left, right: w.add(op, left, right), terms
        )
        is_shown = all_of("And", conditions)
        shown = w.add("Cast", is_shown, to=7)
        wholes, nexts = ([w.add("Mul", i, shown) for i in indices] for indices in (wholes, nexts))
        if s["hidden"] == "Or":  # a sliver outside of the image is shown, too
            sliver = w.add("And", w.add("Less", coordinates[0], number(-0.07)),
                w.add("Not", above(w.add(
                "Sub", number(-0.12), coordinates[0]))))  # fmt: skip
            is_shown = w.add("Or", is_shown, sliver)
        if s["hidden"] == "Mul":
            factor = all_of("Mul", map(as_number, conditions))
        elif s["hidden"] == "Where":
            factor = w.add("Where", is_shown, number(1), number(0))
        elif s["hidden"] == "Sub":
            factor = w.add("Sub", number(1), as_number(w.add("Cast", w.add("Not", is_shown), to=7)))
        elif s["hidden"] == "Cast":  # of whole numbers to booleans: the first column is hidden, too
            factor = as_number(
                w.add("And", w.add("Cast", w.add("Cast", floors[0], to=7), to=9), is_shown)
            )
        else:
            factor = as_number(is_shown)
    fractions = [w.add("Sub", v, f) for v, f in zip(coordinates, floors, strict=True)]
    rests = [w.add("Sub", number(s["one"]), f) for f in fractions]
    image, pad = "image", int(s["outside"] == "pad")
    if pad:
        image = w.add(
            "Pad", "image", w.constant([0, 0, 1, 1, 0, 0, 1, 1]), number(s.get("pad_value", 0))
        )
    padded = [w.add("Add", size, w.constant(2)) for size in sizes] if pad else sizes

    def index(i, k):
        """An index along x (0) or y (1) that is inside of the image."""
        i = w.add("Add", i, w.constant(pad)) if pad else i
        high = w.add("Sub", padded[k], w.constant(1 - s["high"]))
        low = w.constant(s["low"])
        if opset < 12 or s["first"]:
            i = w.add("Where", w.add("Less", i, low), low, i)
            return w.add("Where", w.add("Greater", i, high), high, i)
        return w.add("Clip", i, low, high)

    def inside(i, k):
        low, high = w.constant(s["low"]), w.add("Sub", sizes[k], w.constant(1 - s["high"]))
        return w.add("Not", w.add("Or", w.add("Less", i, low), w.add("Greater", i, high)))

    axes = "flat" if flat else "plane"
    channel_axis = (2 if flat else 3) if s["last"] else 1
    cached = {}
    for name, values in (("0", wholes), ("1", nexts)):
        for k in (0, 1):
            cached[name, k] = (
                index(values[k], k),
                inside(values[k], k) if s["outside"] == "mask" else None,
            )

    def pixel(right, down):
        (x, in_x), (y, in_y) = cached[right, 0], cached[down, 1]
        if s["gather"] == "GatherElements":
            flat_index = w.add("Add", w.add("Mul", y, padded[0]), x)
            if not flat:
                flat_index = w.add("Reshape", flat_index, w.constant([0, -1]))
            source = w.add("Reshape", image, w.constant([0, c, -1]))
            many = w.add("Expand", unsqueezed(flat_index, 1), w.constant([1, c, 1]))
            v = w.add("GatherElements", source, many, axis=2)
        else:
            source = w.add("Transpose", image, perm=[0, 2, 3, 1])
            images = w.constant(np.arange(n).reshape((n, 1) if flat else (n, 1, 1)))
            if s["gather"] == "Gather":
                rows = w.add("Add", w.add("Mul", images, padded[1]), y)
                flat_index = w.add("Add", w.add("Mul", rows, padded[0]), x)
                v = w.add("Gather", w.add("Flatten", source, axis=3), flat_index, axis=0)
            else:
                images = w.add("Add", w.add("Mul", x, w.constant(0)), images)
                indices = [unsqueezed(i, 2 if flat else 3) for i in (images, y, x)]
                v = w.add("GatherND", source, w.add("Concat", *indices, axis=-1))
            v = v if s["last"] else w.add("Transpose", v, perm=[0, 2, 1] if flat else [0, 3, 1, 2])
        if in_x:
            mask = unsqueezed(w.add("And", in_x, in_y), channel_axis)
            if s["gather"] == "GatherElements" and not flat:
                mask = w.add("Reshape", mask, w.constant([0, 1, -1]))
            v = w.add("Mul", v, as_number(mask))
        return v

    def spread(weight):
        weight = unsqueezed(weight, channel_axis)
        if s["gather"] == "GatherElements" and not flat:
            return w.add("Reshape", weight, w.constant([0, 1, -1]))
        return weight

    corners = {(right, down): pixel(right, down) for right in "01" for down in "01"}
    if s["form"] == "lerp":
        rows = []
        for down in "01":
            difference = w.add("Sub", corners["1", down], corners["0", down])
            rows.append(
                w.add("Add", corners["0", down], w.add("Mul", difference, spread(fractions[0])))
            )
        difference = w.add("Mul", w.add("Sub", rows[1], rows[0]), spread(fractions[1]))
        if s["factor"] != 1:
            difference = w.add("Mul", difference, number(s["factor"]))
        y = w.add("Add", difference, rows[0])
    else:
        products = []
        for (right, down), v in corners.items():
            weight = w.add(
                "Mul", (rests, fractions)[int(right)][0], (rests, fractions)[int(down)][1]
            )
            products.append(w.add("Mul", *(v, spread(weight))[:: 1 if right == "0" else -1]))
        if s["factor"] != 1:
            products[-1] = w.add("Mul", products[-1], number(s["factor"]))
        y = products[0]
        for product in products[1:]:
            y = w.add("Add", y, product)
    if s["hidden"]:
        factor = (
            w.add("Mul", spread(factor), number(s["scale"])) if s["scale"] != 1 else spread(factor)
        )
        y = w.add("Mul", *(y, factor)[:: -1 if s["first"] else 1])
    y = after(w, y) if after else y
    if axes == "flat" or s["gather"] == "GatherElements":
        if s["is_open"]:
            out_sizes = [
                w.add(
                    "Slice",
                    w.add("Shape", "grid"),
                    w.constant([1]),
                    w.constant([3]),
                    w.constant([0]),
                )
            ]
            target = w.add("Concat", w.constant([n, c]), *out_sizes, axis=0)
        else:
            target = w.constant([n, *s["out"], c] if s["last"] else [n, c, *s["out"]])
        y = y if s["joined"] else w.add("Reshape", y, target)
    image_dims = [n, c, "H", "W"] if s["is_open"] else [n, c, height, width]
    grid_dims = [n, "h", "w", 2] if s["is_open"] else [n, *s["out"], 2]
    inputs = {"image": (dtype, image_dims), "grid": (dtype, grid_dims), **s["inputs"]}
    used = {y}
    for node in w.nodes[::-1]:
        used |= {*node.input} if used & {*node.output} else set()
    w.nodes = [node for node in w.nodes if used & {*node.output}]
    w.initializers = [tensor for tensor in w.initializers if tensor.name in used]
    return w.model(inputs, (y, dtype, [None] * (3 if s["joined"] else 4)), opset)


DEFORM = {
    "size": (7, 8), "batch": 2, "channels": 6, "outputs": 4, "kernel": (3, 2), "strides": (1, 1),
    "dilations": (1, 1),
    "pads": (1, 1), "group": 1, "offset_group": 1, "mask": True, "bias": True, "gather": "GatherND",
    "dtype": "float32",
    "opset": 17, "shift": 0, "one": 1, "high": 0, "step": 0, "sum": "Sum", "module": False,
    "conv": {},
}  # fmt: skip


def deform_conv(after=None, **edits):
    """Deformable convolution of "x" by "offset" and "mask" to "y", in the order of
    deform-conv2d-onnx-exporter.

    module  whether the mask is repeated, and rows of blocks are put side by side, as modules in
            plain PyTorch do
    conv    more attributes of the Conv
    shift, one, high, step   what the first place, the 1 of weights, the last index and one regular
                             place differ by
    """
    s = DEFORM | edits
    w, dtype, opset = Writer(), s["dtype"], s["opset"]
    number = lambda value: w.constant(value, dtype)
    rng = np.random.default_rng(0)
    (height, width), n, channels, groups = s["size"], s["batch"], s["channels"], s["offset_group"]
    kernel, (kh, kw) = s["kernel"], s["kernel"]
    margins = [pad or 1 for pad in s["pads"]]  # there are zeros around the image in any case
    padded = [size + 2 * margin for size, margin in zip(s["size"], margins, strict=True)]
    out = counts(s["size"], kernel, s["dilations"], s["pads"] * 2, s["strides"])
    k_count, per_group = kh * kw, channels // groups
    base = np.zeros((1, 1, k_count, 2, *out))
    for a in (0, 1):
        own = np.arange(out[a]) * s["strides"][a] + margins[a] - s["pads"][a] + s["shift"]
        within = np.repeat(np.arange(kh), kw) if a == 0 else np.tile(np.arange(kw), kh)
        base[:, :, :, a] = (within * s["dilations"][a])[:, None, None] + (
            own[:, None] if a == 0 else own[None, :]
        )
    base.flat[-1] += s["step"]
    offset = s.get("offset", [n, groups, k_count, 2, *out])
    offset = w.add("Reshape", "offset", w.constant(offset))
    if "turned" in s:
        offset = w.add("Transpose", offset, perm=s["turned"])
    coordinates = w.add("Add", number(base), offset)
    floors = w.add("Floor", coordinates)
    fraction_of = lambda name, a: w.add(
        "Slice", name, w.constant([a]), w.constant([a + 1]), w.constant([3])
    )
    integers = w.add("Cast", floors, to=7)
    indices = {}
    for a in (0, 1):
        first = fraction_of(integers, a)
        for k, i in enumerate((first, w.add("Add", first, w.constant(1)))):
            indices[k, a] = w.add("Clip", i, w.constant(0), w.constant(padded[a] - 1 + s["high"]))
    difference = w.add("Sub", coordinates, floors)
    fractions = [fraction_of(difference, a) for a in (0, 1)]
    rests = [w.add("Sub", number(s["one"]), f) for f in fractions]
    image = w.add("Pad", "x", w.constant([0, 0, *margins, 0, 0, *margins]), mode="constant")
    image = w.add("Reshape", image, w.constant([n, groups, per_group, *padded]))
    products = []
    for down in (0, 1):
        for right in (0, 1):
            weight = w.add("Mul", (rests, fractions)[right][1], (rests, fractions)[down][0])
            weight = w.add("Reshape", weight, w.constant([n, groups, 1, k_count, *out]))
            count = k_count * out[0] * out[1]
            if s["gather"] == "GatherND":
                pair = [w.add("Reshape", indices[k, a], w.constant([n, groups, count, 1]))
                        for a, k in enumerate((down, right))]  # fmt: skip
                source = w.add("Transpose", image, perm=[0, 1, 3, 4, 2])
                v = w.add("GatherND", source, w.add("Concat", *pair, axis=3), batch_dims=2)
                v = w.add("Transpose", v, perm=[0, 1, 3, 2])
            else:
                y, x = (w.add("Reshape", indices[k, a], w.constant([n, groups, 1, count]))
                        for a, k in enumerate((down, right)))  # fmt: skip
                index = w.add("Add", w.add("Mul", y, w.constant(padded[1])), x)
                index = w.add("Expand", index, w.constant([n, groups, per_group, count]))
                source = w.add(
                    "Reshape", image, w.constant([n, groups, per_group, padded[0] * padded[1]])
                )
                v = w.add("GatherElements", source, index, axis=3)
            v = w.add("Reshape", v, w.constant([n, groups, per_group, k_count, *out]))
            products.append(w.add("Mul", weight, v))
    if s["sum"] == "Sum":
        y = w.add("Sum", *products)
    else:
        y = w.add("Add", w.add("Add", *products[:2]), w.add("Add", *products[2:]))
    inputs = {
        "x": (dtype, [n, channels, height, width]),
        "offset": (dtype, [n, 2 * groups * k_count, *out]),
    }
    if s["mask"]:
        inputs["mask"] = (dtype, [n, groups * k_count, *out])
        mask = w.add("Reshape", "mask", w.constant([n, groups, 1, k_count, *out]))
        y = w.add("Mul", y, w.add("Concat", *[mask] * per_group, axis=2) if s["module"] else mask)
    y = after(w, y) if after else y
    if s["module"]:
        y = w.add(
            "Transpose",
            w.add("Reshape", y, w.constant([n, channels, k_count, *out])),
            perm=[0, 1, 3, 4, 2],
        )
        row = lambda k: w.add("Slice", y, w.constant([k]), w.constant([k + kw]), w.constant([4]))
        y = w.add("Concat",
            *(w.add("Reshape", row(k), w.constant([n, channels, out[0], out[1] * kw]))
                              for k in range(0, k_count, kw)), axis=3)  # fmt: skip
    else:
        y = w.add("Reshape", y, w.constant([n, channels, kh, kw, *out]))
        y = w.add("Transpose", y, perm=s.get("perm", [0, 1, 4, 2, 5, 3]))
    y = w.add("Reshape", y, w.constant([n, channels, out[0] * kh, out[1] * kw]))
    weight = number(rng.standard_normal((s["outputs"], channels // s["group"], kh, kw)))
    y = w.add(
        "Conv",
        y,
        weight,
        group=s["group"],
        kernel_shape=[*kernel],
        strides=s.get("block", [*kernel]),
        **s["conv"],
    )
    if s["bias"]:
        y = w.add("Add", y, number(rng.standard_normal((1, s["outputs"], 1, 1))))
    return w.model({**inputs, **s.get("inputs", {})}, (y, dtype, [None] * 4), opset)


SIZES = {"H": 9, "W": 12, "h": 5, "w": 7}


SAMPLERS = {
    **{" ".join(settings): dict(zip(("places", "outside", "gather", "form"), settings, strict=True))
       for settings in itertools.product(PLACES[:3], OUTSIDE, GATHERS, FORMS)},
    **{f"{name} not flat": {"outside": name, "flat": False, "places": "flow"} for name in OUTSIDE},
    **{f"{gather} of open sizes, {places}": {"is_open": True, "gather": gather, "places": places}
       for gather in GATHERS for places in PLACES[:3]},
    **{f"opset {opset}": {"opset": opset} for opset in (11, 13, 16, 20, min(22, NEWEST_OPSET))},
    "Where in place of Clip": {"first": True}, "Min and Max": {"first": True, "outside": "border"},
    "float64": {"dtype": "float64"}, "float64 in pixels": {"dtype": "float64", "places": "pixels"},
    **{f"float16, {outside}, {places}": {"dtype": "float16", "outside": outside, "places": places}
       for outside in OUTSIDE for places in PLACES[:3]},
    "one image": {"batch": 1}, "one channel": {"channels": 1},
    "one of both": {"batch": 1, "channels": 1},
    **{f"image of {size}, {places}, {outside}, {gather}": {
           "size": size, "places": places, "outside": outside, "gather": gather}
       for size in ((1, 12), (9, 1), (1, 1))
       for places, outside, gather in itertools.product(PLACES[1:], OUTSIDE,
           (GATHERS[0], GATHERS[2]))},
    **{f"open sizes in float16, {places}, {outside}": {
           "is_open": True, "places": places, "outside": outside, "dtype": "float16"}
       for places, outside in itertools.product(PLACES[:3], OUTSIDE[1:3])},
    "one row of points": {"out": (1, 7)}, "one point": {"out": (1, 1)},
    "x and y swapped": {"swapped": True},
}  # fmt: skip
