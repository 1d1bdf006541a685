"""Draw calls of operators at random, decide whether they are allowed, and verify their results.

The rules that allow a call are written here in Python's integers, independently of the operators' plans; expected
results come from the references. The text of a call shows all that is needed to make it again.
"""

import math
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec

import ml_dtypes
import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

import onnx_ops
from onnx_ops import dtypes, functions
from onnx_ops.operators.computed_grid_sample import OPERATIONS, operand_count, program
from support.backends import quiet, run_session
from support.cases import TOLERANCE, block_counts, drawn, model, operator

from .cases import reference_of

LIMIT, ELEMENTS = 2**40, 2**58
TOO_LARGE = 2**16  # elements: larger tensors take too long
MODES = {"com.microsoft": ["nearest", "bilinear", "bicubic"], "": ["nearest", "linear", "cubic", "bilinear", "bicubic"]}
PADDING_MODES = ["zeros", "border", "reflection"]
# Element types of images and grids that need few kernels to be compiled.
FEW_TYPES = ["float32", "float64", "float16", "uint8", "bool", "string"]
FEW_GRIDS = ["float32", "float64"]
SPECIAL = [
    np.nan,
    np.inf,
    -np.inf,
    0.0,
    -0.0,
    5e-324,
    1e-45,
    6e-8,
    3.4e38,
    -3.4e38,
    1e38,
    65504.0,
    1e19,
    2.0**31,
    -1e10,
]


@dataclass(frozen=True)
class Call:
    """One call. shapes: one per input, or its values; values: how elements are drawn, see `image`."""

    domain: str
    op_type: str
    shapes: tuple
    dtypes: tuple
    attributes: dict = field(default_factory=dict)
    values: str = "normal"
    seed: int = 0

    @property
    def operator(self):
        return operator(self.domain, self.op_type)

    def inputs(self):
        rng, arrays = np.random.default_rng(self.seed), []
        for i, shape, dtype in zip(self.operator.inputs, self.shapes, self.dtypes, strict=False):
            if i.values:
                arrays.append(np.array(shape, dtype))
            elif i.name in PLACES:
                with np.errstate(over="ignore"):  # far out is infinite in 16 bits
                    arrays.append(PLACES[i.name](rng, self, shape).astype(dtypes.TABLE[dtype].numpy))
            else:
                # NumPy's arithmetic returns scalars in place of arrays of rank 0.
                arrays.append(np.asarray(image(rng, shape, dtype, self.values)))
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
    """np.finfo of an element type of onnx_ops.dtypes, including bfloat16; for complex types that of their parts."""
    return ml_dtypes.finfo(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.finfo(dtype)


def grid(rng, call, shape):
    """Coordinates in and around the image, some of them on ties between pixels, far outside, infinite or NaN."""
    g = rng.uniform(-1.4, 1.4, shape)
    if call.values == "normal" or not g.size or len(call.shapes[0]) != len(shape):
        return g
    sizes = np.resize(np.maximum(call.shapes[0][2:], 1), g.shape[-1:])[::-1]
    halves = rng.integers(-3, 2 * sizes + 3, shape) / 2
    corners = call.attributes.get("align_corners") == 1
    ties = halves * 2 / np.maximum(sizes - 1, 1) - 1 if corners else (2 * halves + 1) / sizes - 1
    special = np.array(SPECIAL)[rng.integers(0, len(SPECIAL), shape)]
    far_out = g * 10.0 ** rng.integers(0, 38, shape)
    return np.choose(rng.choice(4, shape, p=[0.3, 0.4, 0.15, 0.15]), [g, ties, special, far_out])


def locations(rng, call, shape):
    """Locations, for which the image is [0, 1], some of them on ties between the pixels of a level, infinite or NaN."""
    x = rng.uniform(-0.2, 1.2, shape)
    if call.values == "normal" or not x.size:
        return x
    levels = np.maximum(np.resize(np.array(call.shapes[1], np.float64), 2 * shape[3] if len(shape) > 3 else 2), 1)
    size = rng.choice(levels, shape)
    ties = np.floor(rng.uniform(-1.5, 2 * size + 2)) / 2 / size
    special = np.array(SPECIAL)[rng.integers(0, len(SPECIAL), shape)]
    return np.choose(rng.choice(3, shape, p=[0.4, 0.5, 0.1]), [x, ties, special])


def offsets(rng, call, shape):
    """Offsets of whole and half pixels, which lead out of the image or not, some of them infinite or NaN."""
    x = rng.uniform(-3, 3, shape)
    if call.values == "normal" or not x.size:
        return x
    special = np.array(SPECIAL)[rng.integers(0, len(SPECIAL), shape)]
    return np.choose(rng.choice(3, shape, p=[0.4, 0.5, 0.1]), [x, np.rint(2 * x) / 2, special])


PLACES = {"Grid": grid, "offset": offsets, "sampling_locations": locations}  # {input: what draws it}


def sizes(least, most, seldom):
    return st.one_of(*[st.integers(least, most)] * 7, st.integers(least, seldom))


def optional(name, values):
    """A strategy for {name: value} or {}."""
    return st.one_of(st.just({}), values.map(lambda v: {name: v}), values.map(lambda v: {name: v}))


def merged(*parts):
    return st.tuples(*parts).map(lambda dicts: {k: v for part in dicts for k, v in part.items()})


@st.composite
def col2im_calls(draw, types=dtypes.ALL):
    openvino = draw(st.integers(0, 3)) == 0
    axes = 2 if openvino else draw(st.sampled_from([1, 2, 2, 2, 3, 3, 4, 6, 14]))
    most = 9 if axes < 4 else 3
    per_axis = lambda values, count=axes: st.lists(values, min_size=count, max_size=count)
    size = sizes(1, most, 300 if axes < 3 else most) if axes < 6 else st.sampled_from([1, 1, 1, 2])
    image_shape = draw(per_axis(size))
    block_shape = draw(per_axis(st.integers(1, 4 if axes < 4 else 2) if axes < 6 else st.sampled_from([1, 1, 1, 2])))
    few = [optional("strides", per_axis(st.integers(1, 5))), optional("dilations", per_axis(st.integers(1, 3)))]
    if openvino:
        pads = merged(*(optional(f"pads_{end}", per_axis(st.integers(0, 4))) for end in ("begin", "end")))
    else:
        pads = optional("pads", per_axis(st.integers(0, 4 if axes < 4 else 1) if axes < 6 else st.just(0), 2 * axes))
    attributes = draw(merged(*few, pads))
    counts = block_counts(image_shape, block_shape, attributes.get("dilations"), pads_of(attributes, axes),
                          attributes.get("strides"))  # fmt: skip
    n, c = draw(st.integers(0, 3)), draw(st.sampled_from([1, 1, 2, 3, 0]))
    x = (n, c * math.prod(block_shape), math.prod(max(count, 0) for count in counts))
    assume(math.prod(x) <= TOO_LARGE and math.prod(image_shape) <= TOO_LARGE)
    batched = not openvino or draw(st.booleans())
    return Call(
        "org.openvinotoolkit" if openvino else "", "Col2Im",
        (x if batched else x[1:], tuple(image_shape), tuple(block_shape)),
        (draw(st.sampled_from(types)), *[draw(st.sampled_from(["int64", "int32"])) if openvino else "int64"] * 2),
        attributes, draw(st.sampled_from(["normal", "normal", "special", "denormal"])), draw(st.integers(0, 2**32 - 1)),
    )  # fmt: skip


@st.composite
def im2col_calls(draw, types=dtypes.ALL):
    axes = draw(st.sampled_from([1, 2, 2, 2, 3, 3, 4, 6, 14]))
    most = 9 if axes < 4 else 3
    per_axis = lambda values, count=axes: st.lists(values, min_size=count, max_size=count)
    size = sizes(0, most, 300 if axes < 3 else most) if axes < 6 else st.sampled_from([1, 1, 1, 2])
    kernel = sizes(1, 4, 40 if axes < 3 else 4) if axes < 6 else st.sampled_from([1, 1, 1, 2])
    image = draw(per_axis(size))
    attributes = {"kernel_shape": draw(per_axis(kernel))} | draw(merged(
        optional("strides", per_axis(sizes(1, 5, 17))), optional("dilations", per_axis(st.integers(1, 3))),
        optional("pads", per_axis(st.integers(0, 4 if axes < 4 else 1) if axes < 6 else st.just(0), 2 * axes)),
    ))  # fmt: skip
    call = Call(
        "onnx_ops", "Im2Col", ((draw(st.integers(0, 3)), draw(st.sampled_from([1, 1, 2, 3, 0, 40])), *image),),
        (draw(st.sampled_from(types)),), attributes, draw(st.sampled_from(["normal", "special", "denormal"])),
        draw(st.integers(0, 2**32 - 1)),
    )  # fmt: skip
    assume(math.prod(call.shapes[0]) <= TOO_LARGE and math.prod(output_shape(call) or ()) <= TOO_LARGE)
    return call


def pads_of(attributes, axes):
    if "pads" in attributes:
        return attributes["pads"]
    return [*attributes.get("pads_begin", [0] * axes), *attributes.get("pads_end", [0] * axes)]


@st.composite
def grid_sample_calls(draw, types=dtypes.ALL, grids=dtypes.FLOATS):
    domain = draw(st.sampled_from(["", "", "com.microsoft"]))
    axes = 2 if domain else draw(st.sampled_from([2, 3]))
    attributes = draw(merged(
        optional("mode", st.sampled_from(MODES[domain])), optional("padding_mode", st.sampled_from(PADDING_MODES)),
        optional("align_corners", st.integers(0, 1)),
    ))  # fmt: skip
    n, c = draw(st.integers(0, 3)), draw(st.sampled_from([1, 1, 2, 3, 0]))
    image_sizes = draw(st.lists(sizes(1, 6, 60 if axes < 3 else 9), min_size=axes, max_size=axes))
    out = draw(st.lists(sizes(0, 6, 60 if axes < 3 else 9), min_size=axes, max_size=axes))
    copies = attributes.get("mode") == "nearest" and not domain
    x_type = draw(st.sampled_from([t for t in types if copies or t in dtypes.FLOATS]))
    grid_types = [g for g in grids if (x_type, g) != ("string", "bfloat16")]  # ONNX Runtime's Python can't take both
    return Call(
        domain, "GridSample", ((n, c, *image_sizes), (n, *out, axes)), (x_type, draw(st.sampled_from(grid_types))),
        attributes, draw(st.sampled_from(["normal", "special", "special", "denormal"])),
        draw(st.integers(0, 2**32 - 1)),
    )  # fmt: skip


@st.composite
def affine_grid_calls(draw, types=dtypes.FLOATS):
    axes = draw(st.sampled_from([2, 3]))
    lengths = draw(st.lists(sizes(0, 9, 70 if axes < 3 else 20), min_size=axes, max_size=axes))
    assume(math.prod(lengths) <= TOO_LARGE // 8)
    return Call(
        "onnx_ops", "AffineGrid", ((draw(st.integers(0, 3)), axes, axes + 1), *((n,) for n in (*lengths, 0)[:3])),
        (draw(st.sampled_from([t for t in types if t in dtypes.FLOATS])),) * 4, {},
        draw(st.sampled_from(["normal", "normal", "special", "denormal"])), draw(st.integers(0, 2**32 - 1)),
    )  # fmt: skip


@st.composite
def computed_calls(draw, types=dtypes.FLOATS):
    """Draw a call of ComputedGridSample, with a program of any steps."""
    axes = draw(st.sampled_from([2, 2, 3]))
    names, n = "nhw" if axes == 2 else "ndhw", draw(st.integers(0, 3))
    image = draw(st.lists(sizes(1, 6, 60 if axes < 3 else 9), min_size=axes, max_size=axes))
    out = draw(st.lists(sizes(0, 6, 60 if axes < 3 else 9), min_size=axes, max_size=axes))
    size, shapes, sources = dict(zip(names, (n, *out), strict=True)), [], {}
    for k in range(draw(st.integers(1, 4))):
        index = draw(st.lists(st.sampled_from([*names, *names, 0, 2]), min_size=1, max_size=5))
        lengths = [[at + 1, at + 2] if isinstance(at, int) else [size[at], size[at], 1] for at in index]
        shapes.append(tuple(draw(st.sampled_from(each)) for each in lengths))
        for more in range(draw(st.integers(1, 3))):
            sources[k, more] = (k, *(min(at, more) if isinstance(at, int) else at for at in index))
    values, steps = [*sources], {}
    for k in range(draw(st.integers(0, 12))):
        operation = draw(st.sampled_from(OPERATIONS))
        operands = [draw(st.sampled_from(values)) for _ in range(operand_count(OPERATIONS.index(operation)))]
        steps[k] = operation, *operands
        values.append(k)
    coordinates = [draw(st.sampled_from(values[-4:])) for _ in range(axes)]
    attributes = draw(merged(
        optional("mode", st.sampled_from(MODES["com.microsoft"])),
        optional("padding_mode", st.sampled_from(PADDING_MODES)), optional("align_corners", st.integers(0, 1)),
    ))  # fmt: skip
    kind = draw(st.sampled_from(["float32", "float64"]))
    return Call(
        "onnx_ops", "ComputedGridSample", ((n, draw(st.sampled_from([1, 1, 2, 3, 0])), *image), *shapes),
        (draw(st.sampled_from([t for t in types if t in dtypes.FLOATS])), *[kind] * len(shapes)),
        {**attributes, **program(sources, steps, coordinates)},
        draw(st.sampled_from(["normal", "normal", "special", "denormal"])), draw(st.integers(0, 2**32 - 1)),
    )  # fmt: skip


@st.composite
def attention_calls(draw, types=dtypes.FLOATS, places=dtypes.FLOATS):
    levels = draw(st.lists(sizes(1, 5, 20), min_size=2, max_size=16).filter(lambda v: len(v) % 2 == 0))
    batch, heads, queries = draw(st.integers(0, 2)), draw(sizes(0, 3, 9)), draw(sizes(0, 5, 60))
    channels, points = draw(st.one_of(sizes(0, 9, 70), st.sampled_from([16, 32, 300]))), draw(sizes(0, 4, 300))
    pixels = sum(math.prod(levels[k : k + 2]) for k in range(0, len(levels), 2))
    value, weights_shape = (batch, pixels, heads, channels), (batch, queries, heads, len(levels) // 2, points)
    assume(max(math.prod(value), math.prod(weights_shape) * 2 * min(max(channels, 1), 32)) <= TOO_LARGE)
    dtype = draw(st.sampled_from([t for t in types if t in dtypes.FLOATS]))
    dtypes_of_inputs = dtype, "int64", draw(st.sampled_from(places)), dtype
    return Call(
        "onnx_ops", "MultiScaleDeformableAttention", (value, tuple(levels), (*weights_shape, 2), weights_shape),
        dtypes_of_inputs, {}, draw(st.sampled_from(["normal", "normal", "special", "denormal"])),
        draw(st.integers(0, 2**32 - 1)),
    )  # fmt: skip


@st.composite
def deform_conv_calls(draw, types=dtypes.FLOATS):
    op_type = draw(st.sampled_from(["DeformConv", "DeformConv", *MMCV_CONVOLUTIONS]))
    is_mmcv = op_type in MMCV_CONVOLUTIONS
    axes = 2 if is_mmcv else draw(st.sampled_from([1, 2, 2, 2, 3]))
    per_axis = lambda values, count=axes: st.lists(values, min_size=count, max_size=count)
    image = draw(per_axis(sizes(1, 6, 30 if axes < 3 else 8)))
    kernel = draw(per_axis(sizes(1, 3, 9 if axes < 3 else 4)))
    both = lambda values: st.one_of(per_axis(values), values)  # mmcv's lists may be written as one integer
    if is_mmcv:
        pads = st.one_of(per_axis(st.integers(0, 3)).map(lambda v: [v[0]] * 2 + [v[1]] * 2), both(st.integers(0, 3)))
        attributes = {
            "stride": draw(both(st.integers(1, 3))), "padding": draw(pads), "dilation": draw(both(st.integers(1, 3))),
        }  # fmt: skip
    else:
        pads = per_axis(st.integers(0, 3), 2 * axes)
        attributes = draw(merged(
            optional("strides", per_axis(st.integers(1, 3))), optional("dilations", per_axis(st.integers(1, 3))),
            optional("pads", pads), optional("kernel_shape", st.just(kernel)),
        ))  # fmt: skip
    counts = convolution_counts(image, kernel, attributes)
    assume(min(counts) >= 1)
    group, offset_group = draw(sizes(1, 3, 4)), draw(sizes(1, 3, 4))
    of_group = draw(sizes(1, 3, 9)) * math.lcm(group, offset_group) // group if draw(st.integers(0, 9)) else 0
    names = "group", "offset_group"
    if is_mmcv:
        names = "groups", draw(st.sampled_from(["deform_groups", "deformable_groups"]))
    for name, value in zip(names, (group, offset_group), strict=True):
        attributes |= {name: value} if is_mmcv or value > 1 else {}
    outputs, n = group * draw(sizes(0, 3, 9)), draw(st.integers(0, 2))
    places = offset_group * math.prod(kernel)
    x, w, bias = (n, group * of_group, *image), (outputs, of_group, *kernel), (outputs,)
    offset, mask = (n, places * axes, *counts), (n, places, *counts)
    assume(max(math.prod(s) for s in (x, w, offset)) * max(1, outputs) <= TOO_LARGE)
    shapes = (x, w, offset, bias, mask)[: draw(st.sampled_from([3, 4, 5]))]
    if op_type == "MMCVDeformConv2d":
        shapes = x, offset, w
    elif is_mmcv:
        shapes = (x, offset, mask, w, bias)[: draw(st.integers(4, 5))]
    domain = draw(st.sampled_from(["mmcv", "mmdeploy"])) if is_mmcv else ""
    dtype = draw(st.sampled_from([t for t in types if t in dtypes.FLOATS]))
    return Call(
        domain, op_type, shapes, (dtype,) * len(shapes), attributes,
        draw(st.sampled_from(["normal", "special", "special", "denormal"])), draw(st.integers(0, 2**32 - 1)),
    )  # fmt: skip


MMCV_CONVOLUTIONS = "MMCVModulatedDeformConv2d", "MMCVDeformConv2d"
ORDERS = {"DeformConv": "xwobm", "MMCVModulatedDeformConv2d": "xomwb", "MMCVDeformConv2d": "xow"}  # of the inputs


def groups_of(attributes):
    """The numbers of groups and of offset groups, by either naming of the attributes."""
    names = "offset_group", "deform_groups", "deformable_groups"
    offset_group = next((attributes[name] for name in names if name in attributes), 1)
    return attributes.get("group", attributes.get("groups", 1)), offset_group


def convolution_counts(image, kernel, attributes):
    """The sizes of a deformable convolution's output, by either naming of the attributes."""
    axes = len(image)

    def numbers(name, default):
        given = attributes.get(name, attributes.get(name.removesuffix("s"), default))
        return [given] * axes if isinstance(given, int) else given

    pads = attributes.get("pads", [0] * 2 * axes)
    if "padding" in attributes:
        padding = numbers("padding", 0)
        pads = 2 * padding[:: max(1, len(padding) // 2)]
    return block_counts(image, kernel, numbers("dilations", 1), pads, numbers("strides", 1))


ODD_NUMBERS = [0, -1, 1, 2, 3, 5, 17, 2**31, 2**40, 2**40 + 1, 2**62, 2**63 - 1, -(2**63)]


@st.composite
def broken(draw, call):
    """Draw a variant of the call with one change, which is mostly not allowed."""
    has_attributes = bool(call.operator.attributes)
    change = draw(st.sampled_from(["shape", "shape", "rank", *["attribute"] * 2 * has_attributes]))
    if change == "attribute":
        declared = draw(st.sampled_from(call.operator.attributes))
        length = draw(st.integers(1, 7))
        wrong = {
            "ints": st.one_of(st.lists(st.sampled_from(ODD_NUMBERS), min_size=length, max_size=length), st.just(2)),
            "int": st.one_of(st.sampled_from(ODD_NUMBERS), st.just("no")),
            "string": st.one_of(st.sampled_from(["", "wrap", "bilinear ", "CUBIC", "linear", "cubic"]), st.just(1)),
        }
        return replace(call, attributes={**call.attributes, declared.name: draw(wrong[declared.kind])})
    k = draw(st.integers(0, len(call.shapes) - 1))
    shape, values = list(call.shapes[k]), call.operator.inputs[k].values
    if change == "rank" or not shape:
        position = draw(st.integers(0, len(shape)))
        shorter, longer = shape[:position] + shape[position + 1 :], [*shape[:position], 1, *shape[position:]]
        shape = shorter if draw(st.booleans()) else longer
    else:
        position = draw(st.integers(0, len(shape) - 1))
        narrow = call.dtypes[k] == "int32" or not values
        value = draw(st.one_of(st.sampled_from([o for o in ODD_NUMBERS if abs(o) < (18 if narrow else 2**64)])))
        shape[position] = value if values else max(value, 0)
    return replace(call, shapes=(*call.shapes[:k], tuple(shape), *call.shapes[k + 1 :]))


def calls(types=dtypes.ALL, grids=dtypes.FLOATS):
    """A strategy for (a call, None or a broken variant of it)."""
    good = st.one_of(
        col2im_calls(types),
        grid_sample_calls(types, grids),
        im2col_calls(types),
        affine_grid_calls(types),
        attention_calls(types, grids),
        computed_calls(types),
        deform_conv_calls(types),
    )
    return good.flatmap(lambda call: st.tuples(st.just(call), st.one_of(st.none(), broken(call))))


def output_shape(call):
    """The shape of the call's output; None if the call is not allowed."""
    attributes = dict(call.attributes)
    if any(len(shape) > 16 for shape in call.shapes):
        return None
    return SHAPES[call.op_type](call, attributes)


def im2col_shape(call, attributes):
    (x,) = call.shapes
    if not all(isinstance(v, list) for v in attributes.values()):
        return None
    kernel = attributes["kernel_shape"]
    axes = len(kernel)
    if not 1 <= axes <= 14 or len(x) != 2 + axes:
        return None
    for name, v in attributes.items():
        least = 0 if name == "pads" else 1
        if len(v) != axes * (2 if name == "pads" else 1) or not all(least <= e <= LIMIT for e in v):
            return None
    image = x[2:]
    if not all(0 <= v <= LIMIT for v in image):
        return None
    counts = block_counts(image, kernel, attributes.get("dilations"), attributes.get("pads"), attributes.get("strides"))
    counts = [max(count, 0) for count in counts]
    if math.prod(max(v, 1) for v in image) > ELEMENTS or math.prod(kernel) > ELEMENTS:
        return None
    if max(x[0], 1) * max(x[1], 1) * math.prod(kernel) * max(math.prod(counts), 1) > ELEMENTS:
        return None
    return x[0], x[1] * math.prod(kernel), math.prod(counts)


def col2im_shape(call, attributes):
    x, image_shape, block_shape = call.shapes
    axes = len(image_shape)
    unbatched = call.domain and len(x) == 2
    x = (1, *x) if unbatched else x
    if not all(isinstance(v, list) for v in attributes.values()) or len(x) != 3 or not 1 <= axes <= 14:
        return None
    if (call.domain and axes != 2) or len(block_shape) != axes:
        return None
    lengths = {"strides": axes, "dilations": axes, "pads": 2 * axes, "pads_begin": axes, "pads_end": axes}
    for name, v in attributes.items():
        least = 0 if name.startswith("pads") else 1
        if len(v) != lengths[name] or not all(least <= e <= LIMIT for e in v):
            return None
    if not all(1 <= v <= LIMIT for v in (*image_shape, *block_shape)):
        return None
    counts = block_counts(
        image_shape, block_shape, attributes.get("dilations"), pads_of(attributes, axes), attributes.get("strides")
    )
    block, pixels = math.prod(block_shape), math.prod(image_shape)
    if min(counts) < 1 or max(block, pixels) > ELEMENTS or x[1] % block or x[2] != math.prod(counts):
        return None
    if x[0] * max(x[1] // block, 1) * pixels > ELEMENTS:
        return None
    return (x[1] // block, *image_shape) if unbatched else (x[0], x[1] // block, *image_shape)


def grid_sample_shape(call, attributes):
    x, grid_shape = call.shapes
    mode, padding_mode = attributes.get("mode", "bilinear"), attributes.get("padding_mode", "zeros")
    if (
        mode not in MODES[call.domain]
        or padding_mode not in PADDING_MODES
        or attributes.get("align_corners", 0) not in (0, 1)
    ):
        return None
    if mode != "nearest" and call.dtypes[0] not in dtypes.FLOATS:
        return None
    axes = len(x) - 2
    if axes not in ((2,) if call.domain else (2, 3)) or len(grid_shape) != len(x) or grid_shape[-1] != axes:
        return None
    if min(x[2:]) < 1 or grid_shape[0] != x[0]:
        return None
    if max(x[0], 1) * max(x[1], 1) * math.prod(grid_shape[1:-1]) > ELEMENTS:
        return None
    return (*x[:2], *grid_shape[1:-1])


def affine_grid_shape(call, attributes):
    theta, *places = call.shapes
    if len(theta) != 3 or theta[1] not in (2, 3) or theta[2] != theta[1] + 1 or any(len(p) != 1 for p in places):
        return None
    lengths = [p[0] for p in places]
    if theta[1] == 2 and lengths.pop() != 0:
        return None
    return (theta[0], *reversed(lengths), theta[1])


def computed_shape(call, attributes):
    """The shape of ComputedGridSample's output, by broadcasting its sources."""
    x, *shapes = call.shapes
    numbers, steps, coordinates = (attributes.get(name) for name in ("sources", "steps", "coordinates"))
    steps = [] if steps is None else steps
    if not all(isinstance(v, list) for v in (numbers, steps, coordinates)) or not 2 <= len(coordinates) <= 3:
        return None
    axes, size, count = len(coordinates), {}, 0
    if len(x) != axes + 2 or min(x[2:]) < 1 or attributes.get("mode", "bilinear") not in MODES["com.microsoft"]:
        return None
    while numbers:
        if len(numbers) < 2 or not 0 <= numbers[0] < len(shapes) or not 1 <= numbers[1] <= 8:
            return None
        shape, index = shapes[numbers[0]], numbers[2 : 2 + numbers[1]]
        if len(shape) != numbers[1] or len(index) != len(shape):
            return None
        for length, at in zip(shape, index, strict=True):
            if at < -4 or (at == -3 and axes == 2) or at >= length:
                return None
            if at < 0 and length != 1 and size.setdefault(at, length) != length:
                return None
        numbers, count = numbers[2 + len(index) :], count + 1
    if size.get(-4, x[0]) != x[0] or count > 48 or (not steps and attributes.get("steps") is not None):
        return None
    for k in range(0, len(steps), 4):
        step = steps[k : k + 4]
        if len(step) < 4 or not 0 <= step[0] < len(OPERATIONS) or k >= 256:
            return None
        taken = operand_count(step[0])
        if not all(0 <= v < count + k // 4 for v in step[1 : 1 + taken]) or any(step[1 + taken :]):
            return None
    if not all(0 <= v < count + len(steps) // 4 for v in coordinates):
        return None
    grid = (x[0], *(size.get(k, 1) for k in range(-axes, 0)), axes)
    return grid_sample_shape(replace(call, domain="", shapes=(x, grid)), attributes)


def attention_shape(call, attributes):
    value, levels, places, weights = call.shapes
    if len(value) != 4 or len(levels) % 2 or not 2 <= len(levels) <= 16:
        return None
    if (
        places != (*weights, 2)
        or len(weights) != 5
        or weights[0] != value[0]
        or weights[2:4] != (value[2], len(levels) // 2)
    ):
        return None
    pixels = sum(h * w for h, w in zip(levels[::2], levels[1::2], strict=True))
    if min(levels) < 1 or max(*levels, pixels) > 2**29 or value[1] != pixels:
        return None
    shape = value[0], weights[1], value[2], value[3]
    if max(math.prod(max(size, 1) for size in sizes) for sizes in (shape, weights)) > ELEMENTS:
        return None
    return value[0], weights[1], value[2] * value[3]


def deform_conv_shape(call, attributes):
    """The shape of a deformable convolution's output."""
    is_mmcv = call.op_type in MMCV_CONVOLUTIONS
    shapes = dict(zip(ORDERS[call.op_type], call.shapes, strict=False))
    x, w, offset, bias, mask = (shapes.get(name) for name in "xwobm")
    axes = len(x) - 2
    if not 1 <= axes <= 3 or len(w) != len(x):
        return None
    for name, v in attributes.items():
        if name in ("group", "groups", "offset_group", "deform_groups", "deformable_groups"):
            if not isinstance(v, int) or not 1 <= v <= LIMIT:
                return None
        elif name in ("bias", "im2col_step"):
            if not isinstance(v, int) or (name == "bias" and v != 0):
                return None
        else:
            v = [v] * 2 if is_mmcv and isinstance(v, int) else v
            least = 0 if name.startswith("pad") else 1
            lengths = {"pads": (2 * axes,), "padding": (2, 4)}.get(name, (axes,))
            if not isinstance(v, list) or len(v) not in lengths or not all(least <= e <= LIMIT for e in v):
                return None
            if name == "padding" and len(v) == 4 and (v[0] != v[1] or v[2] != v[3]):
                return None
    if is_mmcv and axes != 2:
        return None
    group, offset_group = groups_of(attributes)
    image, kernel = x[2:], w[2:]
    if not all(1 <= v <= LIMIT for v in (*image, *kernel)) or max(math.prod(image), math.prod(kernel)) > ELEMENTS:
        return None
    if list(kernel) != list(attributes.get("kernel_shape", kernel)):
        return None
    if x[1] % group or w[0] % group or w[1] != x[1] // group or x[1] % offset_group:
        return None
    counts, places = convolution_counts(image, kernel, attributes), offset_group * math.prod(kernel)
    if min(counts) < 1 or max(x[0], 1) * max(w[0], 1) * math.prod(counts) > ELEMENTS:
        return None
    if offset != (x[0], places * axes, *counts) or (mask is not None and mask != (x[0], places, *counts)):
        return None
    return None if bias is not None and bias != (w[0],) else (x[0], w[0], *counts)


def deform_conv_scale(call, inputs, shape):
    """The scale of the tolerance of a deformable convolution's outputs."""
    arrays = dict(zip(ORDERS[call.op_type], map(finite, inputs), strict=False))
    x, w, attributes = arrays["x"], arrays["w"], call.attributes
    info = finfo("float64" if call.dtypes[0] == "float64" else "float32")
    # The error of a tap's share is a rounding of 1, however small the share is: assume that all of a channel's pixels
    # are as large as the largest one, and are read in full. What is read is rounded to multiples of a smallest number.
    smallest = 4 * float(info.smallest_subnormal) / TOLERANCE[call.dtypes[0]]
    (group, offset_group), taps, pixels = groups_of(attributes), math.prod(w.shape[2:]), math.prod(shape[2:])
    largest = x.max(axis=tuple(range(2, x.ndim)), initial=0)
    largest = largest.reshape(len(x), offset_group, x.shape[1] // offset_group, 1, 1)
    mask = arrays.get("m", np.ones((len(x), offset_group * taps * pixels)))
    columns = largest * mask.reshape(len(x), offset_group, 1, taps, pixels) + smallest
    if columns.max(initial=0) > float(info.max) / 4:
        return np.full(shape, float(finfo(call.dtypes[0]).max))  # they may overflow
    columns = columns.reshape(len(x), group, w.shape[1], taps, pixels)
    weights = w.reshape(group, len(w) // group, w.shape[1], taps)
    scale = np.einsum("gmck,ngckl->ngml", weights, columns).reshape(shape)
    return scale + arrays["b"].reshape(-1, *[1] * (len(shape) - 2)) if "b" in arrays else scale


def reference(call, inputs):
    """Return (expected result, scale of its tolerance), both of the output's shape; a scale of None means exact."""
    with np.errstate(all="ignore"):
        expected = reference_of(call.operator, call.attributes, inputs)
        if call.dtypes[0] not in TOLERANCE or call.op_type == "Im2Col":
            return expected, None
        if call.op_type == "Col2Im":  # the error of a sum is that of its rounded terms
            return expected, reference_of(call.operator, call.attributes, [abs(inputs[0]), *inputs[1:]])
        if call.op_type == "AffineGrid":  # the same holds here
            return expected, reference_of(call.operator, call.attributes, map(abs, inputs))
        if call.op_type in ORDERS:
            return expected, deform_conv_scale(call, inputs, expected.shape)
        if call.op_type == "MultiScaleDeformableAttention":
            value, _, _, weights = inputs
            # The error of a tap's share is a rounding of 1, however small the share is: assume that all taps are large.
            # Products of the smallest weights are rounded to multiples of this number.
            smallest = np.finfo("float64" if call.dtypes[0] == "float64" else "float32").smallest_subnormal
            weights = finite(weights) + 4 * float(smallest) / TOLERANCE[call.dtypes[0]]
            largest = finite(value).max(axis=1, initial=0)
            scale = weights.sum(axis=(-2, -1))[..., None] * largest[:, None]
            return expected, scale.reshape(expected.shape)
        x = finite(inputs[0])
        largest = x.max(axis=tuple(range(2, x.ndim)), keepdims=True, initial=0)
    # The absolute values of cubic's weights add up to at most 1.375 on each axis.
    return expected, np.broadcast_to(largest * 1.375 ** (x.ndim - 2), expected.shape)


def finite(array):
    """The absolute values of an array in float64, with 0 in place of infinities and NaN."""
    array = abs(array.astype(np.float64))
    return np.where(np.isfinite(array), array, 0)


def assert_result(call, got, expected, scale):
    dtype = call.dtypes[0]
    kind = dtypes.TABLE[dtype].numpy
    assert got.dtype == kind, got.dtype
    assert got.shape == expected.shape
    if scale is None or call.attributes.get("mode") == "nearest":
        np.testing.assert_array_equal(got.astype(expected.dtype), expected)
        return
    wide = got.astype(expected.dtype)
    info = finfo(dtype)
    # Where an intermediate sum may overflow, any result is allowed.
    may_overflow = np.isfinite(scale) & (scale > float(info.max) / 4)
    same_kind = np.isfinite(wide) == np.isfinite(expected)
    assert (same_kind | may_overflow).all(), f"finite or not: {wide[~same_kind]} for {expected[~same_kind]}"
    checked = np.isfinite(expected) & ~may_overflow
    error = abs(wide[checked] - expected[checked])
    # A fraction of a coordinate is rounded to the coordinates' type, whatever the image's.
    is_coarse = "GridSample" in call.op_type and dtype == "float64" != call.dtypes[1]
    allowed = TOLERANCE["float32" if is_coarse else dtype] * scale[checked] + 8 * float(info.smallest_subnormal)
    assert (error <= allowed).all(), f"off by {(error / allowed).max()} tolerances"


def has_lists(call):
    """Return whether all inputs whose values the plan reads are vectors: to PyTorch's operator, these are lists."""
    pairs = zip(call.operator.inputs, call.inputs(), strict=False)
    return all(array.ndim == 1 for declared, array in pairs if declared.values)


def run_by_torch(call, inputs, shape):
    from onnx_ops.torch_operators import compute_by_torch

    (output,) = compute_by_torch(call.operator, [functions.as_array(v) for v in inputs], call.attributes)
    return output


def runners(call):
    """Return {name: runner}; a backend's session is made by its first run and used by all."""
    sessions = {}

    def in_session(backend):
        def run(inputs, shape):
            if backend not in sessions:
                proto = model(call.domain, call.op_type, call.inputs(), call.attributes, dims="none")
                sessions[backend] = onnx_ops.InferenceSession(
                    proto.SerializeToString(), quiet(intra_op_num_threads=2), backend=backend
                )
            return run_session(sessions[backend], inputs, shape)

        return run

    runners_by_name = {"function": lambda inputs, shape: functions.call(call.operator, *inputs, **call.attributes)}
    if find_spec("torch") and "string" not in call.dtypes and has_lists(call):
        runners_by_name["pytorch"] = partial(run_by_torch, call)
    return runners_by_name if any("complex" in t for t in call.dtypes) else {
        **runners_by_name, "native": in_session("native"), "extensions": in_session("extensions")
    }  # fmt: skip


def verify(call, runners_by_name):
    """Verify the call with each runner; return how many ran it."""
    shape = output_shape(call)
    if shape is not None and math.prod(shape) > TOO_LARGE:
        return 0
    inputs = call.inputs()
    expected = None if shape is None else reference(call, inputs)
    before, results = [v.tobytes() for v in inputs if not v.dtype.hasobject], []
    for name, run in runners_by_name.items():
        if shape is None and name == "extensions" and "bfloat16" in call.dtypes:
            continue  # it needs an output to bind, and a refused call has no shape of it: see docs/robustness.md
        try:
            got = run(inputs, shape)
        except onnx_ops.OpError as error:
            if shape is not None or not error.argument:  # an error without an argument is an unforeseen failure
                raise AssertionError(f"{name} refuses what is allowed: {error}") from error
            results.append((error.argument, error.rule))
        else:
            assert shape is not None, f"{name} takes what is not allowed"
            assert got.shape == shape
            assert_result(call, got, *expected)
            results.append(bits(got))
    assert [v.tobytes() for v in inputs if not v.dtype.hasobject] == before, "an input was written to"
    assert all(r == results[0] for r in results), "backends differ"
    return len(results)


def bits(array):
    """The bits that all backends must agree on; the payloads of NaN may differ."""
    if array.dtype.hasobject:
        return array.tolist()
    nan = array != array
    return np.where(nan, array.dtype.type(np.nan), array).tobytes() if nan.any() else array.tobytes()


def verify_with_variant(call, variant=None):
    """Verify the call, then a broken variant, if given, and that sessions still work; return the number of cases."""
    runners_of_call = runners(call)
    count = verify(call, runners_of_call)
    if variant is not None:
        has_same_sessions = variant.attributes == call.attributes
        count += verify(variant, runners_of_call if has_same_sessions else runners(variant))
        count += verify(call, runners_of_call) if has_same_sessions else 0
    return count


SHAPES = {
    "AffineGrid": affine_grid_shape,
    "Col2Im": col2im_shape,
    "ComputedGridSample": computed_shape,
    **dict.fromkeys(ORDERS, deform_conv_shape),
    "GridSample": grid_sample_shape,
    "Im2Col": im2col_shape,
    "MultiScaleDeformableAttention": attention_shape,
}
