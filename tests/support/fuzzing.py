"""Draw calls of operators at random, decide whether they are allowed, and verify their results.

Attributes and element types are drawn as the operators declare them. The rules that allow a call
are written here in Python's integers, independently of the operators' plans; expected results come
from the references. The text of a call shows all that is needed to make it again.
"""

import logging
import math
import sys
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec

import hypothesis
import ml_dtypes
import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

import onnx_ops
from onnx_ops.arrays import functions
from onnx_ops.declaration import dtypes
from onnx_ops.native.execute import as_array, compute
from onnx_ops.registry import OPERATORS
from onnx_ops.sampling.computed_grid_sample import OPERATIONS, operand_count, program

from .backends import IN_SESSIONS, ORT_VERSION, outputs_of_session, quiet
from .cases import TOLERANCE, block_counts, drawn, model, operator, reference_of, regions

LIMIT, ELEMENTS = 2**40, 2**58
TOO_LARGE = 2**16  # elements: larger tensors take too long
OPSETS = [21, 22] if ORT_VERSION >= (1, 22) else [21]  # which ONNX Runtime knows
# Element types of images and grids that need few kernels to be compiled.
FEW_TYPES = ["float32", "float64", "float16", "uint8", "bool", "string"]
FEW_GRIDS = ["float32", "float64"]
ODD_NUMBERS = [0, -1, 1, 2, 3, 5, 17, 2**31, 2**40, 2**40 + 1, 2**62, 2**63 - 1, -(2**63)]
SPECIAL = [
    np.nan, np.inf, -np.inf, 0.0, -0.0, 5e-324, 1e-45, 6e-8, 3.4e38, -3.4e38, 1e38, 65504.0, 1e19,
    2.0**31, -1e10,
]  # fmt: skip


@dataclass(frozen=True)
class Call:
    """One call. shapes: one per input, or its values; values: how elements are drawn, see
    `image`.
    """

    domain: str
    op_type: str
    shapes: tuple
    dtypes: tuple
    attributes: dict = field(default_factory=dict)
    values: str = "normal"
    seed: int = 0
    opset: int = 21

    extent = 1.2  # see `regions`

    @property
    def operator(self):
        return operator(self.domain, self.op_type)

    def inputs(self):
        rng, arrays = np.random.default_rng(self.seed), []
        for i, shape, dtype in zip(self.operator.inputs, self.shapes, self.dtypes, strict=False):
            if i.values:
                array = np.array(shape, dtype)
            elif i.name in PLACES:
                with np.errstate(all="ignore"):  # far out is infinite in 16 bits
                    array = PLACES[i.name](rng, self, shape).astype(dtypes.TABLE[dtype].numpy)
            else:
                array = image(rng, shape, dtype, self.values)
            arrays.append(
                np.asarray(array)
            )  # NumPy's arithmetic returns scalars in place of arrays of rank 0
        return arrays


def image(rng, shape, dtype, values):
    x = drawn(rng, shape, dtype)
    if dtype not in dtypes.FLOATS or values == "normal":
        return x
    if values == "denormal":
        return (x.astype(np.float64) * float(finfo(dtype).tiny)).astype(x.dtype)
    with np.errstate(over="ignore"):
        special = np.array(SPECIAL).astype(x.dtype)[rng.integers(0, len(SPECIAL), shape)]
    return np.where(rng.random(shape) < 0.15, special, x)


def finfo(dtype):
    """np.finfo of an element type in dtypes.py, including bfloat16; for complex types that of their
    parts.
    """
    return ml_dtypes.finfo(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.finfo(dtype)


def hostile(rng, call, x, ties):
    """Coordinates x, many of them on ties between pixels, some far outside, infinite or NaN."""
    special = np.array(SPECIAL)[rng.integers(0, len(SPECIAL), x.shape)]
    far_out = x * 10.0 ** rng.integers(0, 38, x.shape)
    changed = np.choose(rng.choice(4, x.shape, p=[0.3, 0.5, 0.1, 0.1]), [x, ties, special, far_out])
    return x if call.values == "normal" else changed


def grid(rng, call, shape):
    """Coordinates in and around the image."""
    g = rng.uniform(-1.4, 1.4, shape)
    if not g.size or len(call.shapes[0]) != len(shape):
        return g
    sizes = np.resize(np.maximum(call.shapes[0][2:], 1), g.shape[-1:])[::-1]
    halves = rng.integers(-3, 2 * sizes + 3, shape) / 2
    corners = call.attributes.get("align_corners") == 1
    return hostile(
        rng,
        call,
        g,
        halves * 2 / np.maximum(sizes - 1, 1) - 1 if corners else (2 * halves + 1) / sizes - 1,
    )


def locations(rng, call, shape):
    """Locations, for which the image is [0, 1]; ties are those of a level."""
    x = rng.uniform(-0.2, 1.2, shape)
    levels = np.maximum(
        np.resize(np.array(call.shapes[1], np.float64), 2 * shape[3] if len(shape) > 3 else 2), 1
    )
    size = rng.choice(levels, shape) if x.size else np.ones(shape)
    return hostile(rng, call, x, np.floor(rng.uniform(-1.5, 2 * size + 2)) / 2 / size)


def on_halves(rng, call, x):
    return hostile(rng, call, x, np.rint(2 * x) / 2)


def offsets(rng, call, shape):
    """Offsets of whole and half pixels, which lead out of the image or not."""
    return on_halves(rng, call, rng.uniform(-3, 3, shape))


def images(rng, call, shape):
    """Positions of images in the batch; in some calls there are others."""
    x = rng.integers(0, max((*call.shapes[0], 1)[0], 1), shape)
    are_odd = call.values != "normal" and rng.random() < 0.1
    return np.where(rng.random(shape) < 0.3, rng.choice(ODD_NUMBERS, shape), x) if are_odd else x


def boxes(rng, call, shape):
    """Regions in and around an image, or boxes that overlap, some of them without a size, or with a
    negative one.
    """
    if shape[-1:] != (COLUMNS[call.op_type],) or not are_declared(call):
        return rng.uniform(-1, 9, shape)
    x, has_image = regions(rng, call, shape), call.op_type in ROI_ALIGNS[1:]
    x[..., has_image:] = on_halves(rng, call, x[..., has_image:])
    if has_image:
        x[..., 0] = images(rng, call, shape[:-1]) + rng.choice([-0.5, 0, 0, 0.25], shape[:-1])
    most, has_pixels = (
        np.inf,
        call.op_type in ROI_ALIGNS and call.attributes.get("sampling_ratio", 0) <= 0,
    )
    if call.op_type == "NMSRotated":
        most, x = (
            2.0**20,
            np.rint(x * 2**10) / 2**10,
        )  # else corners are rounded by more than sides are long
    elif (
        has_pixels
        and math.prod(shape) * bins_of(call.attributes) * math.prod(call.shapes[0][1:2]) > 8
    ):
        # There are as many samples as a region has pixels: let there be few, but for a single
        # region.
        most = 4 * max(call.shapes[0]) / abs(np.float64(call.attributes.get("spatial_scale", 1)))
    x[..., has_image:] = np.where(np.isfinite(x), np.clip(x, -most, most), x)[..., has_image:]
    return x


def bins_of(attributes):
    return attributes.get("output_height", 1) * attributes.get("output_width", 1)


def scores(rng, call, shape):
    """Scores, and thresholds of them, many of which are equal."""
    return on_halves(rng, call, rng.integers(0, 9, shape) / 8)


ROI_ALIGNS = "RoiAlign", "MMCVRoiAlign", "MMCVRoIAlignRotated"
SUPPRESSIONS = "NMSRotated", "NMSMatch", "NonMaxSuppression", "SoftNonMaxSuppression"
PLACES = {  # {input: what draws it}
    "Grid": grid, "grid": grid, "offset": offsets, "sampling_locations": locations,
    "batch_indices": images,
    "rois": boxes, "boxes": boxes, **dict.fromkeys(("scores", "iou_threshold", "score_threshold"),
        scores),
}  # fmt: skip
COLUMNS = {  # the numbers of a region or box
    "RoiAlign": 4, "MMCVRoiAlign": 5, "MMCVRoIAlignRotated": 6, "MMCVRotatedFeatureAlign": 5,
    "NMSRotated": 5,
    "NMSMatch": 4, "NonMaxSuppression": 4, "SoftNonMaxSuppression": 4,
}  # fmt: skip


# Draws of calls of an operator, by its declaration: each returns the shapes of the inputs, and
# attributes.


def sizes(least, most, seldom):
    """Numbers from `least` to `most`, seldom up to `seldom`.

    0 is seldom, too, since nothing is computed then.
    """
    return st.one_of(*[st.integers(max(least, min(1, most)), most)] * 7, st.integers(least, seldom))


def lists(values, count):
    return st.lists(values, min_size=count, max_size=count)


def declared_values(attribute):
    """A strategy for the values that an attribute is declared to have; None for lists, whose
    lengths differ.
    """
    if attribute.choices:
        return st.sampled_from(attribute.choices)
    if attribute.kind == "float":
        return st.sampled_from([0.25, 0.5, 0.3, 1.0] * 3 + [2.0, 0.0, -0.5, 1e30, np.inf, np.nan])
    least, most = max(attribute.bounds[0], -1), attribute.bounds[1]
    few = (
        st.integers(least, most)
        if most < least + 4
        else sizes(least, least + 4, min(least + 40, most))
    )
    return few if attribute.kind == "int" else None


@st.composite
def attributes_of(draw, declared, **strategies):
    """Draw attributes as they are declared, but by `strategies` where these are given; some may be
    left out.
    """
    attributes = {}
    for a in declared.attributes:
        values = strategies.get(a.name, declared_values(a))
        if values is not None and (a.required or draw(st.integers(0, 2))):
            attributes[draw(st.sampled_from(a.names))] = draw(values)
    return attributes


def spacing(axes):
    """Strategies for the attributes that have numbers for each image axis."""
    pads = st.integers(0, 4 if axes < 4 else 1 if axes < 6 else 0)
    return {
        "strides": lists(sizes(1, 5, 17), axes), "dilations": lists(st.integers(1, 3), axes),
        "pads": lists(pads, 2 * axes), "pads_begin": lists(pads, axes),
        "pads_end": lists(pads, axes),
    }  # fmt: skip


UNITS = st.sampled_from([1, 1, 1, 2])  # sizes of many axes
BATCH, CHANNELS = sizes(0, 3, 3), sizes(0, 4, 40)


def image_sizes(axes, least=1):
    return lists(sizes(least, 6, 60 if axes < 3 else 9), axes)


@st.composite
def col2im(draw, declared):
    axes = 2 if declared.domain else draw(st.sampled_from([1, 2, 2, 2, 3, 3, 4, 6, 14]))
    most = 9 if axes < 4 else 3
    image = draw(lists(sizes(1, most, 300 if axes < 3 else most) if axes < 6 else UNITS, axes))
    block = draw(lists(st.integers(1, 4 if axes < 4 else 2) if axes < 6 else UNITS, axes))
    attributes = draw(attributes_of(declared, **spacing(axes)))
    counts = blocks_of(attributes, image, block)
    x = draw(BATCH), draw(CHANNELS) * math.prod(block), math.prod(max(count, 0) for count in counts)
    assume(math.prod(x) <= TOO_LARGE and math.prod(image) <= TOO_LARGE)
    batched = not declared.domain or draw(st.booleans())
    return (x if batched else x[1:], tuple(image), tuple(block)), attributes


def blocks_of(attributes, image, block):
    """The number of blocks along each axis."""
    none = [0] * len(image)
    pads = attributes.get(
        "pads", attributes.get("pads_begin", none) + attributes.get("pads_end", none)
    )
    return block_counts(image, block, attributes.get("dilations"), pads, attributes.get("strides"))


@st.composite
def im2col(draw, declared):
    axes = draw(st.sampled_from([1, 2, 2, 2, 3, 3, 4, 6, 14]))
    most = 9 if axes < 4 else 3
    image = draw(lists(sizes(0, most, 300 if axes < 3 else most) if axes < 6 else UNITS, axes))
    kernel = lists(sizes(1, 4, 40 if axes < 3 else 4) if axes < 6 else UNITS, axes)
    attributes = draw(attributes_of(declared, kernel_shape=kernel, **spacing(axes)))
    x = draw(BATCH), draw(CHANNELS), *image
    assume(math.prod(x) <= TOO_LARGE)
    return (x,), attributes


@st.composite
def im2col_product(draw, declared):
    (x,), attributes = draw(im2col(declared))
    group, kernel = attributes.get("group", 1), attributes["kernel_shape"]
    x = (x[0], x[1] * group if draw(st.integers(0, 9)) else x[1], *x[2:])
    rows = x[1] if attributes["sum_over"] == "channels" else max(group, 0) * math.prod(kernel)
    blocks = math.prod(max(count, 0) for count in blocks_of(attributes, x[2:], kernel))
    assume(max(math.prod(x), x[0] * rows * blocks) <= TOO_LARGE // 4 and min(x) >= 0)
    assume(x[0] * x[1] * math.prod(kernel) * blocks <= TOO_LARGE)
    return (x, (x[0], rows, blocks)), attributes


@st.composite
def grid_sample(draw, declared):
    axes = max(declared.ranks) - 2 - draw(st.integers(0, len(declared.ranks) - 1))
    n = draw(BATCH)
    shapes = (n, draw(CHANNELS), *draw(image_sizes(axes))), (n, *draw(image_sizes(axes, 0)), axes)
    return shapes, draw(attributes_of(declared))


@st.composite
def computed_grid_sample(draw, declared):
    """Draw a program of any steps, too."""
    axes = draw(st.sampled_from([2, 2, 3]))
    names, n = "nhw" if axes == 2 else "ndhw", draw(BATCH)
    size = dict(zip(names, (n, *draw(image_sizes(axes, 0))), strict=True))
    shapes, sources = [(n, draw(CHANNELS), *draw(image_sizes(axes)))], {}
    for k in range(draw(st.integers(1, 4))):
        index = draw(st.lists(st.sampled_from([*names, *names, 0, 2]), min_size=1, max_size=5))
        lengths = [
            [axis + 1, axis + 2] if isinstance(axis, int) else [size[axis], size[axis], 1]
            for axis in index
        ]
        shapes.append(tuple(draw(st.sampled_from(choices)) for choices in lengths))
        for number in range(draw(st.integers(1, 3))):
            sources[k, number] = (
                k,
                *(min(axis, number) if isinstance(axis, int) else axis for axis in index),
            )
    values, steps = [*sources], {}
    for k in range(draw(st.integers(0, 12))):
        operation = draw(st.sampled_from(OPERATIONS))
        operands = [
            draw(st.sampled_from(values)) for _ in range(operand_count(OPERATIONS.index(operation)))
        ]
        steps[k] = operation, *operands
        values.append(k)
    coordinates = [draw(st.sampled_from(values[-4:])) for _ in range(axes)]
    return tuple(shapes), draw(attributes_of(declared)) | program(sources, steps, coordinates)


@st.composite
def attention(draw, declared):
    levels = draw(
        st.lists(sizes(1, 5, 20), min_size=2, max_size=16).filter(lambda v: len(v) % 2 == 0)
    )
    batch, heads, queries = draw(BATCH), draw(sizes(0, 3, 9)), draw(sizes(0, 5, 60))
    channels, points = (
        draw(st.one_of(sizes(0, 9, 70), st.sampled_from([16, 32, 300]))),
        draw(sizes(0, 4, 300)),
    )
    pixels = sum(math.prod(levels[k : k + 2]) for k in range(0, len(levels), 2))
    value, weights = (
        (batch, pixels, heads, channels),
        (batch, queries, heads, len(levels) // 2, points),
    )
    assume(max(math.prod(value), math.prod(weights) * 2 * min(max(channels, 1), 32)) <= TOO_LARGE)
    return (value, tuple(levels), (*weights, 2), weights), {}


@st.composite
def deform_conv(draw, declared):
    axes = 2 if declared.domain else draw(st.sampled_from([1, 2, 2, 2, 3]))
    image = draw(lists(sizes(1, 6, 30 if axes < 3 else 8), axes))
    kernel = draw(lists(sizes(1, 3, 9 if axes < 3 else 4), axes))
    both = lambda values: st.one_of(
        lists(values, 2), values
    )  # mmcv's lists may be written as one integer
    twice = lists(st.integers(0, 3), 2).map(lambda v: [v[0]] * 2 + [v[1]] * 2)
    of_mmcv = {
        "stride": both(st.integers(1, 3)), "dilation": both(st.integers(1, 3)),
        "padding": st.one_of(twice, both(st.integers(0, 3))),
    }  # fmt: skip
    groups = dict.fromkeys(("group", "groups", "offset_group", "deform_groups"), sizes(1, 3, 4))
    attributes = draw(
        attributes_of(declared, kernel_shape=st.just(kernel), **spacing(axes), **of_mmcv, **groups)
    )
    counts = convolution_counts(image, kernel, attributes)
    assume(min(counts) >= 1)
    group, offset_group = groups_of(attributes)
    of_group = (
        draw(sizes(1, 3, 9)) * math.lcm(group, offset_group) // group
        if draw(st.integers(0, 9))
        else 0
    )
    outputs, n = group * draw(sizes(0, 3, 9)), draw(BATCH)
    offset_count = offset_group * math.prod(kernel)
    shapes = {
        "x": (n, group * of_group, *image), "w": (outputs, of_group, *kernel), "b": (outputs,),
        "o": (n, offset_count * axes, *counts), "m": (n, offset_count, *counts),
    }  # fmt: skip
    assume(max(math.prod(shapes[name]) for name in "xwo") * max(1, outputs) <= TOO_LARGE)
    required = [i for i in declared.inputs if i.presence == "required"]
    order = ORDERS[declared.name][: draw(st.integers(len(required), len(declared.inputs)))]
    return tuple(shapes[name] for name in order), attributes


ORDERS = {
    "DeformConv": "xwobm",
    "MMCVModulatedDeformConv2d": "xomwb",
    "MMCVDeformConv2d": "xow",
}  # of the inputs


def groups_of(attributes):
    """The numbers of groups and of offset groups, by either naming of the attributes."""
    names = "offset_group", "deform_groups", "deformable_groups"
    offset_group = next((attributes[name] for name in names if name in attributes), 1)
    return attributes.get("group", attributes.get("groups", 1)), offset_group


def convolution_counts(image, kernel, attributes):
    """The sizes of a deformable convolution's output, by either naming of the attributes."""
    axes = len(image)

    def numbers(name, default):
        stated = attributes.get(name, attributes.get(name.removesuffix("s"), default))
        return [stated] * axes if isinstance(stated, int) else stated

    pads = attributes.get("pads", [0] * 2 * axes)
    if "padding" in attributes:
        padding = numbers("padding", 0)
        pads = 2 * padding[:: max(1, len(padding) // 2)]
    return block_counts(image, kernel, numbers("dilations", 1), pads, numbers("strides", 1))


@st.composite
def roi_align(draw, declared):
    n, attributes = draw(BATCH), draw(attributes_of(declared))
    x, count = (n, draw(sizes(0, 5, 70)), *draw(image_sizes(2))), draw(sizes(0, 5, 40)) if n else 0
    shapes = x, (count, COLUMNS[declared.name]), (count,)
    samples = bins_of(attributes) * max(attributes.get("sampling_ratio", 0), 1) ** 2
    assume(max(math.prod(x), count * x[1] * samples) <= TOO_LARGE)
    return shapes[: len(declared.inputs)], attributes


@st.composite
def feature_align(draw, declared):
    n, height, width = draw(BATCH), *draw(image_sizes(2))
    attributes = draw(attributes_of(declared, points=st.sampled_from([1, 5])))
    return ((n, draw(CHANNELS), height, width), (n, height, width, 5)), attributes


@st.composite
def suppression(draw, declared):
    n, k, count = draw(BATCH), draw(BATCH), draw(sizes(0, 9, 60))
    boxes, scores = (count, COLUMNS[declared.name]), (count,)
    if declared.domain == "mmdeploy":
        boxes, scores = (n, *boxes), (n, k, *scores)
    return (boxes, scores, (1,), (1,))[: len(declared.inputs)], draw(
        attributes_of(declared, method=sizes(0, 2, 3))
    )


@st.composite
def running_extremes(draw, declared):
    axes = 4 if declared.ranks == (4,) else draw(sizes(1, 4, 16))
    x = draw(lists(sizes(0, 5, 90 if axes < 3 else 12) if axes < 6 else UNITS, axes))
    assume(math.prod(x) <= TOO_LARGE)
    return (tuple(x),), draw(attributes_of(declared, dim=st.integers(-axes, axes - 1)))


@st.composite
def calls_of(draw, declared, types, grids):
    """Draw a call of an operator; see `calls`."""
    shapes, attributes = draw(FAMILIES[declared.name][0](declared))
    kernel = declared.kernels[declared.choice(declared.values(attributes))]
    signature = {}
    for variable, names in {**declared.types, **kernel.types}.items():
        wanted = types if variable == declared.inputs[0].type else grids
        signature[variable] = draw(
            st.sampled_from([name for name in names if name in wanted] or names)
        )
    input_types = tuple(signature[i.type] for i in declared.each_input(len(shapes)))
    assume(not {"string", "bfloat16"} <= {*input_types})  # ONNX Runtime's Python can't take both
    return Call(
        declared.domain, declared.name, shapes, input_types, attributes,
        draw(st.sampled_from(["normal", "special", "special", "denormal"])),
        draw(st.integers(0, 2**32 - 1)),
        draw(st.sampled_from(OPSETS)),
    )  # fmt: skip


@st.composite
def broken(draw, call):
    """Draw a variant of the call with one change, which is mostly not allowed."""
    has_attributes = bool(call.operator.attributes)
    change = draw(st.sampled_from(["shape", "shape", "rank", *["attribute"] * 2 * has_attributes]))
    if change == "attribute":
        declared = draw(st.sampled_from(call.operator.attributes))
        length = draw(st.integers(1, 7))
        wrong = {
            "ints": st.one_of(lists(st.sampled_from(ODD_NUMBERS), length), st.just(2)),
            "int": st.one_of(st.sampled_from(ODD_NUMBERS), st.just("no")),
            "string": st.one_of(
                st.sampled_from(["", "wrap", "bilinear ", "CUBIC", "linear", "cubic"]), st.just(1)
            ),
            "float": st.sampled_from([-1.0, 3e38, -np.inf, "no"]),
        }
        return replace(
            call, attributes={**call.attributes, declared.name: draw(wrong[declared.kind])}
        )
    k = draw(st.integers(0, len(call.shapes) - 1))
    shape, values = list(call.shapes[k]), call.operator.inputs[k].values
    if change == "rank" or not shape:
        position = draw(st.integers(0, len(shape)))
        shorter, longer = (
            shape[:position] + shape[position + 1 :],
            [*shape[:position], 1, *shape[position:]],
        )
        shape = shorter if draw(st.booleans()) else longer
    else:
        position = draw(st.integers(0, len(shape) - 1))
        narrow = call.dtypes[k] == "int32" or not values
        value = draw(
            st.one_of(
                st.sampled_from([o for o in ODD_NUMBERS if abs(o) < (18 if narrow else 2**64)])
            )
        )
        shape[position] = value if values else max(value, 0)
    return replace(call, shapes=(*call.shapes[:k], tuple(shape), *call.shapes[k + 1 :]))


def calls(types=dtypes.ALL, grids=dtypes.FLOATS, operators=OPERATORS):
    """A strategy for (a call, None or a broken variant of it).

    types, grids  the element types of the first input, and of those that have another type variable
    """
    drawn = [
        o for o in operators if o.name in FAMILIES
    ]  # the others are MMCVModulatedDeformConv2d by other names
    good = st.sampled_from(drawn).flatmap(lambda declared: calls_of(declared, types, grids))
    return good.flatmap(lambda call: st.tuples(st.just(call), st.one_of(st.none(), broken(call))))


# Rules: the shape of a call's first output, or the most that it may have; None if the call is not
# allowed.


def output_shape(call):
    if any(len(shape) > 16 for shape in call.shapes) or not are_declared(call):
        return None
    return FAMILIES[call.op_type][1](call, call.attributes)


def are_declared(call):
    """Whether the attributes have the kinds and the limits that are declared."""
    python_types = {"int": int, "string": str, "float": float}
    for a in call.operator.attributes:
        value = next((call.attributes[name] for name in a.names if name in call.attributes), None)
        if value is None and not a.required:
            continue
        if not isinstance(value, list) and a.is_list and a.repeats:
            value = [value] * a.repeats
        numbers = value if isinstance(value, list) else [value]
        least, most = a.length_bounds if a.is_list else (1, 1)
        if isinstance(value, list) != a.is_list or not least <= len(numbers) <= most:
            return False
        for number in numbers:
            if not isinstance(number, python_types[a.kind.removesuffix("s")]) or (
                a.choices and number not in a.choices
            ):
                return False
            if isinstance(number, int) and not a.bounds[0] <= number <= a.bounds[1]:
                return False
    return True


def lists_fit(attributes, axes):
    """Whether lists have a number for each axis, or two if they are pads."""
    return all(
        len(v) == axes * (2 if n == "pads" else 1)
        for n, v in attributes.items()
        if isinstance(v, list)
    )


def im2col_shape(call, attributes):
    (x,), kernel = call.shapes, attributes["kernel_shape"]
    axes, image = len(kernel), x[2:]
    if (
        len(x) != 2 + axes
        or not lists_fit(attributes, axes)
        or not all(0 <= v <= LIMIT for v in image)
    ):
        return None
    counts = [max(count, 0) for count in blocks_of(attributes, image, kernel)]
    if math.prod(max(v, 1) for v in image) > ELEMENTS or math.prod(kernel) > ELEMENTS:
        return None
    if max(x[0], 1) * max(x[1], 1) * math.prod(kernel) * max(math.prod(counts), 1) > ELEMENTS:
        return None
    return x[0], x[1] * math.prod(kernel), math.prod(counts)


def im2col_product_shape(call, attributes):
    (x, factors), kernel, group = (
        call.shapes,
        attributes["kernel_shape"],
        attributes.get("group", 1),
    )
    columns = im2col_shape(replace(call, shapes=(x,)), attributes)
    if columns is None or x[1] % group:
        return None
    positions, blocks = math.prod(kernel), columns[2]
    if max(x[0], 1) * max(x[1], group) * positions * max(blocks, 1) > ELEMENTS:
        return None
    rows = [x[1], group * positions][:: 1 if attributes["sum_over"] == "channels" else -1]
    return (x[0], rows[1], blocks) if factors == (x[0], rows[0], blocks) else None


def col2im_shape(call, attributes):
    x, image, block = call.shapes
    unbatched = call.domain and len(x) == 2
    x = (1, *x) if unbatched else x
    if (
        len(x) != 3
        or not 1 <= len(image) <= 14
        or len(block) != len(image)
        or (call.domain and len(image) != 2)
    ):
        return None
    if not lists_fit(attributes, len(image)) or not all(1 <= v <= LIMIT for v in (*image, *block)):
        return None
    counts, positions, pixels = (
        blocks_of(attributes, image, block),
        math.prod(block),
        math.prod(image),
    )
    if (
        min(counts) < 1
        or max(positions, pixels) > ELEMENTS
        or x[1] % positions
        or x[2] != math.prod(counts)
    ):
        return None
    if x[0] * max(x[1] // positions, 1) * pixels > ELEMENTS:
        return None
    return (x[1] // positions, *image) if unbatched else (x[0], x[1] // positions, *image)


def grid_sample_shape(call, attributes):
    x, grid = call.shapes
    axes = len(x) - 2
    if not is_nearest(call) and call.dtypes[0] not in dtypes.FLOATS:
        return None
    if axes not in ((2,) if call.domain else (2, 3)) or len(grid) != len(x) or grid[-1] != axes:
        return None
    if min(x[2:]) < 1 or grid[0] != x[0]:
        return None
    if max(x[0], 1) * max(x[1], 1) * math.prod(grid[1:-1]) > ELEMENTS:
        return None
    return (*x[:2], *grid[1:-1])


def is_nearest(call):
    return (
        call.attributes.get("mode") == "nearest" or call.attributes.get("interpolation_mode") == 1
    )


def computed_shape(call, attributes):
    """The shape of ComputedGridSample's output, by broadcasting its sources."""
    x, *shapes = call.shapes
    numbers, coordinates, steps = (
        attributes["sources"],
        attributes["coordinates"],
        attributes.get("steps", []),
    )
    axes, size, count = len(coordinates), {}, 0
    if len(x) != axes + 2 or min(x[2:]) < 1:
        return None
    while numbers:
        if len(numbers) < 2 or not 0 <= numbers[0] < len(shapes) or not 1 <= numbers[1] <= 8:
            return None
        shape, index = shapes[numbers[0]], numbers[2 : 2 + numbers[1]]
        if len(shape) != numbers[1] or len(index) != len(shape):
            return None
        for length, axis in zip(shape, index, strict=True):
            if axis < -4 or (axis == -3 and axes == 2) or axis >= length:
                return None
            if axis < 0 and length != 1 and size.setdefault(axis, length) != length:
                return None
        numbers, count = numbers[2 + len(index) :], count + 1
    if size.get(-4, x[0]) != x[0] or count > 48:
        return None
    for k in range(0, len(steps), 4):
        step = steps[k : k + 4]
        if len(step) < 4 or not 0 <= step[0] < len(OPERATIONS):
            return None
        taken = operand_count(step[0])
        if not all(0 <= v < count + k // 4 for v in step[1 : 1 + taken]) or any(step[1 + taken :]):
            return None
    if not all(0 <= v < count + len(steps) // 4 for v in coordinates):
        return None
    grid = (x[0], *(size.get(k, 1) for k in range(-axes, 0)), axes)
    return grid_sample_shape(replace(call, domain="", shapes=(x, grid)), attributes)


def attention_shape(call, attributes):
    value, levels, locations, weights = call.shapes
    if (
        len(value) != 4
        or len(levels) % 2
        or not 2 <= len(levels) <= 16
        or locations != (*weights, 2)
        or len(weights) != 5
    ):
        return None
    if weights[0] != value[0] or weights[2:4] != (value[2], len(levels) // 2):
        return None
    pixels = sum(h * w for h, w in zip(levels[::2], levels[1::2], strict=True))
    if min(levels) < 1 or max(*levels, pixels) > 2**29 or value[1] != pixels:
        return None
    shape = value[0], weights[1], value[2], value[3]
    if max(math.prod(max(size, 1) for size in sizes) for sizes in (shape, weights)) > ELEMENTS:
        return None
    return value[0], weights[1], value[2] * value[3]


def deform_conv_shape(call, attributes):
    shapes = dict(zip(ORDERS[call.op_type], call.shapes, strict=False))
    x, w, offset, bias, mask = (shapes.get(name) for name in "xwobm")
    axes, padding = len(x) - 2, attributes.get("padding", [0])
    if not 1 <= axes <= 3 or len(w) != len(x) or (call.domain and axes != 2):
        return None
    if isinstance(padding, list) and len(padding) > 2 and padding[::2] != padding[1::2]:
        return None
    if not lists_fit({name: v for name, v in attributes.items() if name != "padding"}, axes):
        return None
    group, offset_group = groups_of(attributes)
    image, kernel = x[2:], w[2:]
    if (
        not all(1 <= v <= LIMIT for v in (*image, *kernel))
        or max(math.prod(image), math.prod(kernel)) > ELEMENTS
    ):
        return None
    if list(kernel) != list(attributes.get("kernel_shape", kernel)):
        return None
    if x[1] % group or w[0] % group or w[1] != x[1] // group or x[1] % offset_group:
        return None
    counts, offset_count = (
        convolution_counts(image, kernel, attributes),
        offset_group * math.prod(kernel),
    )
    if min(counts) < 1 or max(x[0], 1) * max(w[0], 1) * math.prod(counts) > ELEMENTS:
        return None
    if offset != (x[0], offset_count * axes, *counts) or (
        mask is not None and mask != (x[0], offset_count, *counts)
    ):
        return None
    return None if bias is not None and bias != (w[0],) else (x[0], w[0], *counts)


def roi_align_shape(call, attributes):
    """The images of regions must be there, too."""
    x, rois, *images = call.shapes
    if (
        len(x) != 4
        or not all(1 <= v < 2**31 for v in x[2:])
        or rois != (*rois[:1], COLUMNS[call.op_type])
    ):
        return None
    if (
        images not in ([], [rois[:1]])
        or max(rois[0], 1) * max(x[1], 1) * bins_of(call.attributes) > ELEMENTS
    ):
        return None
    numbers = images_of(call, call.inputs())
    if not all(0 <= n < x[0] for n in numbers.tolist()):
        return None
    return rois[0], x[1], attributes.get("output_height", 1), attributes.get("output_width", 1)


def images_of(call, inputs):
    """The positions of regions' images, which need not exist."""
    return inputs[2] if len(inputs) > 2 else np.trunc(inputs[1][:, 0].astype(np.float64))


def feature_align_shape(call, attributes):
    x, rois = call.shapes
    fits = len(x) == 4 and min(x[2:]) >= 1 and rois == (x[0], *x[2:], 5)
    return x if fits and attributes["points"] in (1, 5) else None


def suppression_shape(call, attributes):
    """The most boxes, or pairs of them, that may be kept."""
    boxes, scores, *thresholds = call.shapes
    if boxes[-1:] != (COLUMNS[call.op_type],) or not all(shape == (1,) for shape in thresholds):
        return None
    if call.domain == "mmdeploy":
        fits = (
            len(boxes) == len(scores) == 3
            and scores[::2] == boxes[:2]
            and attributes.get("iou_threshold", 0) >= 0
        )
        return (math.prod(scores), 3 if call.op_type == "NMSRotated" else 4) if fits else None
    method, fits = attributes.get("method"), len(scores) == 1 and scores == boxes[:-1]
    if method is None:
        return scores if fits else None
    return (
        (*scores, 5)
        if fits and (method in (0, 1) or (method == 2 and attributes["sigma"] > 0))
        else None
    )


def extremes_shape(call, attributes):
    (x,) = call.shapes
    return (
        x
        if (len(x) == 4 if "mode" in attributes else -len(x) <= attributes["dim"] < len(x))
        else None
    )


# Tolerances: the scale of the errors of a call's first output, of its shape; None where it must be
# exact.


def sum_scale(call, inputs, y):
    """The error of a sum is that of its rounded terms."""
    absolute = [
        a if i.values else abs(a) for i, a in zip(call.operator.inputs, inputs, strict=True)
    ]
    return reference_of(call.operator, call.attributes, absolute)


def product_scale(call, inputs, y):
    """Each of a sum's products may be rounded to a multiple of a smallest number."""
    return sum_scale(call, [*map(finite, inputs)], y) + 4 * math.prod(
        inputs[0].shape[1:]
    ) * smallest_of(call)


def sample_scale(call, inputs, y):
    """The absolute values of cubic's weights add up to at most 1.375 on each axis."""
    return (
        None
        if is_nearest(call)
        else np.broadcast_to(largest_of(inputs[0]) * 1.375 ** (y.ndim - 2), y.shape)
    )


def largest_of(images):
    """The largest finite pixel of each image's channel."""
    return finite(images).max(axis=tuple(range(2, images.ndim)), keepdims=True, initial=0)


def smallest_of(call):
    """What an error of the smallest number of the type in which sums are computed is a tolerance
    of.
    """
    dtype = "float64" if call.dtypes[0] == "float64" else "float32"
    return float(np.finfo(dtype).smallest_subnormal) / TOLERANCE[call.dtypes[0]]


def deform_conv_scale(call, inputs, y):
    arrays = dict(zip(ORDERS[call.op_type], map(finite, inputs), strict=False))
    x, w, attributes = arrays["x"], arrays["w"], call.attributes
    # The error of a tap's share is a rounding of 1, however small the share is: assume that all of
    # a channel's pixels are as large as the largest one, and are read in full. What is read is
    # rounded to multiples of a smallest number.
    (group, offset_group), taps, pixels = (
        groups_of(attributes),
        math.prod(w.shape[2:]),
        math.prod(y.shape[2:]),
    )
    largest = largest_of(x).reshape(len(x), offset_group, x.shape[1] // offset_group, 1, 1)
    mask = arrays.get("m", np.ones((len(x), offset_group * taps * pixels)))
    columns = largest * mask.reshape(len(x), offset_group, 1, taps, pixels) + 4 * smallest_of(call)
    if (
        columns.max(initial=0)
        > float(finfo("float64" if call.dtypes[0] == "float64" else "float32").max) / 4
    ):
        return np.full(y.shape, float(finfo(call.dtypes[0]).max))  # they may overflow
    columns = columns.reshape(len(x), group, w.shape[1], taps, pixels)
    weights = w.reshape(group, len(w) // group, w.shape[1], taps)
    scale = np.einsum("gmck,ngckl->ngml", weights, columns).reshape(y.shape)
    return scale + arrays["b"].reshape(-1, *[1] * (y.ndim - 2)) if "b" in arrays else scale


def attention_scale(call, inputs, y):
    value, _, _, weights = inputs
    # The error of a tap's share is a rounding of 1, however small the share is: assume that all
    # taps are large. Products of the smallest weights are rounded to multiples of a smallest
    # number.
    weights = finite(weights) + 4 * smallest_of(call)
    largest = finite(value).max(axis=1, initial=0)
    return (weights.sum(axis=(-2, -1))[..., None] * largest[:, None]).reshape(y.shape)


def region_scale(call, inputs, y):
    """Each of a bin's many products may be rounded to a multiple of a smallest number."""
    numbers = images_of(call, inputs).astype(np.int64)
    return np.broadcast_to(largest_of(inputs[0])[numbers] + 2**12 * smallest_of(call), y.shape)


def feature_scale(call, inputs, y):
    return np.broadcast_to(6 * (largest_of(inputs[0]) + 4 * smallest_of(call)), y.shape)


def reference(call, inputs):
    """Return a list of (expected result, scale of its tolerance) of the outputs; a scale of None
    means exact.
    """
    with np.errstate(all="ignore"):
        results = as_tuple(reference_of(call.operator, call.attributes, inputs))
        scale = FAMILIES[call.op_type][2] if call.dtypes[0] in TOLERANCE else None
        scales = [scale and scale(call, inputs, results[0]), *[None] * (len(results) - 1)]
    return list(zip(results, scales, strict=True))


def as_tuple(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)


def finite(array):
    """The absolute values of an array in float64, with 0 in place of infinities and NaN."""
    array = abs(array.astype(np.float64))
    return np.where(np.isfinite(array), array, 0)


# {operator: (what draws a call of it, the shape of its first output, the scale of its errors)}.
FAMILIES = {
    "Col2Im": (col2im, col2im_shape, sum_scale),
    "ComputedGridSample": (computed_grid_sample, computed_shape, sample_scale),
    **dict.fromkeys(ORDERS, (deform_conv, deform_conv_shape, deform_conv_scale)),
    **dict.fromkeys(("GridSample", "grid_sampler"), (grid_sample, grid_sample_shape, sample_scale)),
    "Im2Col": (im2col, im2col_shape, None),
    "Im2ColProduct": (im2col_product, im2col_product_shape, product_scale),
    "MMCVRotatedFeatureAlign": (feature_align, feature_align_shape, feature_scale),
    "MultiScaleDeformableAttention": (attention, attention_shape, attention_scale),
    **dict.fromkeys(ROI_ALIGNS, (roi_align, roi_align_shape, region_scale)),
    **dict.fromkeys(SUPPRESSIONS, (suppression, suppression_shape, None)),
    **dict.fromkeys(
        ("cummax", "cummin", "MMCVCornerPool"), (running_extremes, extremes_shape, None)
    ),
}


def assert_result(call, dtype, got, expected, scale):
    """Assert that `got` is a result of this element type. expected, scale: see `reference`."""
    assert got.dtype == dtypes.TABLE[dtype].numpy, got.dtype
    assert got.shape == expected.shape
    if scale is None:
        np.testing.assert_array_equal(
            dtypes.widest(got.astype(expected.dtype)), dtypes.widest(expected)
        )
        return
    wide = got.astype(expected.dtype)
    info = finfo(dtype)
    # Where an intermediate sum may overflow, any result is allowed.
    may_overflow = np.isfinite(scale) & (scale > float(info.max) / 4)
    same_kind = np.isfinite(wide) == np.isfinite(expected)
    assert (same_kind | may_overflow).all(), (
        f"finite or not: {wide[~same_kind]} for {expected[~same_kind]}"
    )
    checked = np.isfinite(expected) & ~may_overflow
    error = abs(wide[checked] - expected[checked])
    # A fraction of a coordinate is rounded to the coordinates' type, whatever the image's.
    is_coarse = "GridSample" in call.op_type and dtype == "float64" != call.dtypes[1]
    allowed = TOLERANCE["float32" if is_coarse else dtype] * scale[checked] + 8 * float(
        info.smallest_subnormal
    )
    assert (error <= allowed).all(), f"off by {(error / allowed).max()} tolerances"


def has_lists(call):
    """Return whether all inputs whose values the plan reads are vectors: to PyTorch's operator,
    these are lists.
    """
    pairs = zip(call.operator.inputs, call.inputs(), strict=False)
    return all(array.ndim == 1 for declared, array in pairs if declared.values)


def run_by_torch(call, inputs, shape):
    from onnx_ops.export.torch_operators import compute_by_torch

    return compute_by_torch(call.operator, [as_array(v) for v in inputs], call.attributes)


def run_function(call, inputs, shape):
    return as_tuple(functions.call(call.operator, *inputs, **call.attributes))


def run_beside_pages(guarded, call, inputs, shape):
    """Run the function with tensors and workspace that end, or begin, at pages that nothing may
    touch.
    """
    at_end = call.seed % 2 == 0
    try:
        placed = [guarded.readonly(as_array(v), at_end=at_end) for v in inputs]
        outputs = compute(
            call.operator,
            call.operator.values(call.attributes),
            placed,
            2,
            partial(guarded.empty, at_end=at_end),
        )
        return [y.copy() for y in outputs]
    finally:
        guarded.free()


def runners(call):
    """Return {name: runner of all outputs}; a backend's session is made by its first run and used
    by all.
    """
    sessions = {}

    def in_session(backend):
        def run(inputs, shape):
            if backend not in sessions:
                proto = model(
                    call.domain,
                    call.op_type,
                    call.inputs(),
                    call.attributes,
                    opset=call.opset,
                    dims="none",
                )
                sessions[backend] = onnx_ops.InferenceSession(
                    proto.SerializeToString(), quiet(intra_op_num_threads=2), backend=backend
                )
            return outputs_of_session(sessions[backend], inputs, shape)

        return run

    runners_by_name = {"function": partial(run_function, call)}
    if sys.platform == "linux" and "string" not in call.dtypes:
        from support import guarded

        runners_by_name["beside pages"] = partial(run_beside_pages, guarded, call)
    if find_spec("torch") and "string" not in call.dtypes and has_lists(call):
        runners_by_name["pytorch"] = partial(run_by_torch, call)
    return runners_by_name if any("complex" in t for t in call.dtypes) else {
        **runners_by_name, **{name: in_session(name) for name in IN_SESSIONS}
    }  # fmt: skip


def verify(call, runners_by_name):
    """Verify the call with each runner; return how many ran it."""
    shape = output_shape(call)
    if shape is not None and math.prod(shape) > TOO_LARGE:
        return 0
    inputs = call.inputs()
    expected, signature = (
        [],
        {variable: names[0] for variable, names in call.operator.types.items()},
    )
    signature |= {
        i.type: dtype for i, dtype in zip(call.operator.inputs, call.dtypes, strict=False)
    }
    if shape is not None:
        expected = reference(call, inputs)
        stated = expected[0][0].shape
        assert stated == shape or (call.operator.plan.is_bound and stated[0] <= shape[0]), (
            f"{stated} for {shape}"
        )
    before, results = [v.tobytes() for v in inputs if not v.dtype.hasobject], []
    for name, run in runners_by_name.items():
        has_outputs = name == "extensions" or (name == "native" and call.op_type in ROI_ALIGNS)
        if shape is None and has_outputs and "bfloat16" in call.dtypes:
            # It needs an output to bind, of a shape that a refused call hasn't: see
            # docs/limits.md.
            continue
        try:
            got = run(inputs, shape)
        except onnx_ops.OpError as error:
            if (
                shape is not None or not error.argument
            ):  # an error without an argument is an unforeseen failure
                raise AssertionError(f"{name} refuses what is allowed: {error}") from error
            results.append((error.argument, error.rule))
        else:
            assert shape is not None, f"{name} takes what is not allowed"
            for o, y, (result, scale) in zip(call.operator.outputs, got, expected, strict=True):
                assert_result(call, signature[o.type], y, result, scale)
            results.append([*map(bits, got)])
    assert [v.tobytes() for v in inputs if not v.dtype.hasobject] == before, (
        "an input was written to"
    )
    assert all(r == results[0] for r in results), "backends differ"
    return len(results)


def bits(array):
    """The bits that all backends must agree on; the payloads of NaN may differ."""
    if array.dtype.hasobject:
        return array.tolist()
    nan = array != array
    return (
        np.where(nan, array.dtype.type(np.nan), array).tobytes() if nan.any() else array.tobytes()
    )


def verify_with_variant(call, variant=None):
    """Verify the call, then a broken variant, if given, and that sessions still work; return the
    number of cases.
    """
    runners_of_call = runners(call)
    count = verify(call, runners_of_call)
    if variant is not None:
        has_same_sessions = variant.attributes == call.attributes
        count += verify(variant, runners_of_call if has_same_sessions else runners(variant))
        count += verify(call, runners_of_call) if has_same_sessions else 0
    return count


def verify_calls(seed, count, strategy, before=lambda pair: None):
    """Verify `count` pairs (see calls) and return the number of cases: each is one call on
    one backend.
    """
    case_count, unraisable = 0, []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count, deadline=None, database=None, print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    @hypothesis.given(strategy)
    def verify(pair):
        nonlocal case_count
        before(pair)
        case_count += verify_with_variant(*pair)
        # Python reports here what compiled code raises.
        assert not unraisable, f"{unraisable.pop()!r}"

    previous, sys.unraisablehook = (
        sys.unraisablehook,
        lambda raised: unraisable.append(raised.exc_value),
    )
    logging.disable()  # the extensions backend logs what it refuses
    try:
        verify()
    finally:
        logging.disable(logging.NOTSET)
        sys.unraisablehook = previous
    return case_count
