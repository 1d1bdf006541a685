"""Rules for the shapes of nodes, by operator, where onnx's own inference isn't exact for open
sizes.

A rule returns the type of a node's output, or only its shape if its elements are of the first
input's type. It fails for an unknown rank and for an invalid node, with one of the exceptions that
`tried` suppresses.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto

from .finding import tried
from .inference import Operation
from .reading.integers import axes_of, cuts, integer_list, part_of_sequence, sliced, whole_number
from .reading.reader import attributes_of
from .sizes import (
    Dimension,
    are_numbers,
    at_least_zero,
    broadcast_size,
    im2col_blocks,
    known,
    quotient,
    simplest,
)
from .tensor_types import Inferred, Misread, Sizes, Type
from .window_shapes import (
    channels_second,
    infer_conv,
    infer_conv_transpose,
    infer_global_pool,
    infer_pool,
)

if TYPE_CHECKING:
    from .inference import TypedGraph

    # Of an Operation and the types of its inputs, None for those left out.
    Rule = Callable[..., Inferred | Sizes]

# Product of numerator and denominator of a scale, for which float32 scales any image's size
# exactly.
EXACT = 2**8


def by_rule(
    rule: "Rule", graph: "TypedGraph", node: onnx.NodeProto, inputs: Sequence[Type]
) -> Inferred:
    """Return the type of a node's first output by a rule.

    It may not look at inputs that are left out.
    """
    inferred = rule(Operation(graph, node, attributes_of(node)), *inputs)
    return Inferred(inputs[0].elements, inferred) if isinstance(inferred, tuple) else inferred


def broadcast(*shapes: Sizes) -> Sizes:
    """Return the shape to which shapes are broadcast; None for a size that is not known."""
    rank = max(map(len, shapes))
    columns = zip(*((1,) * (rank - len(shape)) + (*shape,) for shape in shapes), strict=True)
    return tuple(map(broadcast_size, columns))


def _infer_elementwise(op: Operation, *inputs: Type | None) -> Inferred:
    element_types = [i.elements for i in inputs if i]
    element_type = (
        TensorProto.BOOL
        if op.node.op_type in COMPARISONS
        else element_types[op.node.op_type == "Where"]
    )
    return Inferred(element_type, tried(broadcast, *(i.shape for i in inputs if i)))


def _infer_reshape(op: Operation, x: Type, shape: Type | None = None) -> Inferred | Sizes:
    """Of a value without elements, an open size that is 0 may be another one: Reshape then copies
    the input's.
    """
    target = op.integers(1)
    dimensions = x.shape
    if target is None:
        return Inferred(x.elements)
    if not op.get("allowzero"):
        copied = (None,) * len(target) if dimensions is None else dimensions
        target = [copied[k] if isinstance(d, int) and d == 0 else d for k, d in enumerate(target)]
    if target.count(-1) == 1:
        stated = [d for d in target if d is not None and d != -1]
        is_known = len(stated) == len(target) - 1 and math.prod(stated) != 0
        is_known = dimensions is not None and is_known
        target[target.index(-1)] = (
            quotient(math.prod(x.sizes), math.prod(stated)) if is_known else None
        )
    return tuple(target)


def _infer_resize(op: Operation, x: Type, *parameters: Type | None) -> Sizes:
    """Return the shape that Resize or Upsample makes.

    Before version 11 the scales are the second input, and before version 9 an attribute.
    """
    names = op.node.input
    axes = op.get("axes") or range(len(x.sizes))
    stated = None
    if op.get("keep_aspect_ratio_policy", b"stretch") != b"stretch":
        pass
    elif names[3:]:
        stated = op.integers(3)
    else:
        factors = (
            op.attributes["scales"]
            if "scales" in op.attributes
            else op.graph.folded(names[1:3][-1])
        )
        if factors is not None:
            stated = [
                _scaled(x.sizes[axis], factor) for axis, factor in zip(axes, factors, strict=True)
            ]
    dimensions: list[Dimension | None] = [*x.sizes]
    for axis, size in zip(axes, [None] * len(axes) if stated is None else stated, strict=True):
        dimensions[axis] = size
    return tuple(dimensions)


def _scaled(size: Dimension, factor: float) -> Dimension | None:
    """Leave open what float32 rounds up, as 5 * 1.4: ONNX Runtime makes 7 elements, and replaces a
    Shape by 6.
    """
    if isinstance(size, int):
        exact = math.floor(size * float(factor))
        return exact if exact == math.floor(np.float32(size) * np.float32(factor)) else None
    times, by = float(factor).as_integer_ratio()
    return size * times // by if times * by <= EXACT or by == 1 else None


def _infer_expand(op: Operation, x: Type, target: Type) -> Inferred:
    return Inferred(x.elements, tried(broadcast, x.shape, op.integers(1)))


def _infer_tile(op: Operation, x: Type, _: Type) -> Sizes:
    repeats = op.integers(1) or [None] * len(x.sizes)
    return tuple(None if r is None else d * r for d, r in zip(x.sizes, repeats, strict=True))


def _infer_constant_of_shape(op: Operation, target: Type) -> Inferred:
    value = op.get("value")
    dimensions = op.integers(0)
    return Inferred(
        value.data_type if value is not None else TensorProto.FLOAT,
        None if dimensions is None else tuple(dimensions),
    )


def _infer_range(op: Operation, start: Type, limit: Type, delta: Type) -> Sizes:
    """Of floats, too: exporters write those of a whole number of steps."""
    first, last, step = (whole_number(op.graph, name) for name in op.node.input)
    if isinstance(step, int) and step < 0:
        first, last, step = last, first, -step
    if first is None or last is None or not isinstance(step, int) or step == 0:
        return (None,)
    return (at_least_zero((last - first + step - 1) // step),)


def _infer_shape(op: Operation, x: Type) -> Inferred:
    rank = None if x.shape is None else len(x.shape[op.get("start", 0) : op.get("end")])
    return Inferred(TensorProto.INT64, (rank,))


def _infer_concat(op: Operation, *inputs: Type) -> Sizes:
    shapes = [i.shape for i in inputs]
    rank = max(len(shape) for shape in shapes if shape is not None)
    axis = op.attributes["axis"] % rank
    dimensions: list[Dimension | None] = []
    for k in range(rank):
        lengths = [shape[k] for shape in shapes if shape is not None]
        if len(lengths) < len(shapes):
            dimensions.append(None)
        elif k == axis:
            dimensions.append(sum(lengths))
        else:  # ONNX Runtime ignores the sizes of an input without elements
            numbers = {d for d in lengths if isinstance(d, int)}
            open_lengths = {*lengths} - numbers
            is_certain = len(numbers) < 2 and not (open_lengths and 0 in numbers)
            dimensions.append(simplest(numbers or open_lengths) if is_certain else None)
    return tuple(dimensions)


def _infer_slice(op: Operation, x: Type, *parameters: Type | None) -> Sizes:
    stated = cuts(op.graph, op.node)
    if stated is None:
        return (None,) * len(x.sizes)
    dimensions: list[Dimension | None] = [*x.sizes]
    for axis, *cut in stated:
        counted = tried(sliced, dimensions[axis], *cut)
        dimensions[axis] = counted and counted[1]
    return tuple(dimensions)


def _infer_gather(op: Operation, x: Type, index: Type) -> Sizes:
    axis = range(len(x.sizes))[op.get("axis", 0)]
    return *x.sizes[:axis], *index.sizes, *x.sizes[axis + 1 :]


def _infer_pad(op: Operation, x: Type, *parameters: Type | None) -> Sizes:
    names = op.node.input
    axes = integer_list(op.graph, names[3]) if names[3:] and names[3] else range(len(x.sizes))
    pads = op.attributes["pads"] if "pads" in op.attributes else op.integers(1)
    if pads is None or axes is None:
        return (None,) * len(x.sizes)
    dimensions: list[Dimension | None] = [*x.sizes]
    for axis, begin, end in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        dimensions[axis] = None if None in (begin, end) else x.sizes[axis] + begin + end
    return tuple(dimensions)


def _infer_flatten(op: Operation, x: Type) -> Sizes:
    axis = op.get("axis", 1)
    axis += len(x.sizes) if axis < 0 else 0
    return math.prod(x.sizes[:axis]), math.prod(x.sizes[axis:])


def _infer_squeeze(op: Operation, x: Type, *parameters: Type | None) -> Sizes:
    """onnx takes the axes to be in order before version 13."""
    axes = axes_of(op.graph, op.node)
    if axes is None:
        axes = [k for k, d in enumerate(x.sizes) if d == 1]
        if len(op.node.input) > 1 or not are_numbers(x.sizes):
            raise ValueError("not known")
    elif not axes:
        # ONNX Runtime leaves out all of size 1, and onnx says that it leaves out none.
        raise ValueError("no axes")
    left_out = {range(len(x.sizes))[axis] for axis in axes}
    return tuple(d for k, d in enumerate(x.sizes) if k not in left_out)


def _infer_unsqueeze(op: Operation, x: Type, *parameters: Type | None) -> Sizes:
    axes = known(axes_of(op.graph, op.node))
    dimensions = [*x.sizes]
    rank = len(dimensions) + len(axes)
    for axis in sorted(range(rank)[axis] for axis in axes):
        dimensions.insert(axis, 1)
    return tuple(dimensions)


def _infer_depth_to_space(op: Operation, x: Type) -> Sizes:
    n, channels, *image = x.sizes
    by = op.attributes["blocksize"]
    return n, channels // (by * by), *(size * by for size in image)


def _infer_space_to_depth(op: Operation, x: Type) -> Sizes:
    n, channels, *image = x.sizes
    by = op.attributes["blocksize"]
    return n, channels * by * by, *(size // by for size in image)


def _infer_attention(
    op: Operation, q: Type, k: Type, v: Type, *rest: Type | None
) -> Inferred | Sizes:
    """Of three axes, the last one is the heads' together; where its size is open, onnx makes it
    0.
    """
    inferred = op.by_onnx(q, k, v, *rest)
    if q.shape is None or len(q.shape) != 3:
        return inferred
    return *q.shape[:2], None


def _infer_einsum(op: Operation, *inputs: Type) -> Inferred:
    """onnx takes each letter's size from one input, although it may be 1 there, and broadcast to
    that of others.
    """
    inferred = op.by_onnx(*inputs)
    equation = op.attributes["equation"].decode().replace(" ", "")
    terms = [] if "." in equation else equation.split("->")[0].split(",")
    pairs = {
        pair
        for term, x in zip(terms, inputs, strict=False)
        for pair in zip(term, x.sizes, strict=True)
    }
    is_certain = terms and len(pairs) == len({letter for letter, _ in pairs})
    return inferred if is_certain else Inferred(inferred.elements, (None,) * len(inferred.sizes))


def _infer_stft(op: Operation, signal: Type, *rest: Type | None) -> Inferred:
    """Without the attribute onesided, onnx takes it for 0, and its default is 1."""
    inferred = op.by_onnx(signal, *rest)
    return (
        inferred
        if "onesided" in op.attributes
        else Inferred(inferred.elements, (*inferred.sizes[:2], None, 2))
    )


def _infer_non_zero(op: Operation, x: Type) -> Inferred:
    """ONNX Runtime takes a scalar for a vector."""
    return Inferred(TensorProto.INT64, (None if x.shape is None else max(len(x.shape), 1), None))


def _infer_affine_grid(op: Operation, theta: Type, size: Type) -> Sizes:
    n, _, *image = known(op.integers(1))
    return n, *image, len(image)


def _infer_fused_matmul(op: Operation, a: Type, b: Type) -> Sizes:
    first, second = (
        (*i.sizes[1:-1], i.sizes[0], i.sizes[-1]) if op.get(f"transBatch{name}") else i.sizes
        for name, i in (("A", a), ("B", b))
    )
    rows = first[-1 if op.get("transA") else -2]
    columns = second[-2 if op.get("transB") else -1]
    return *broadcast(first[:-2], second[:-2]), rows, columns


def _infer_into_blocks(op: Operation, x: Type) -> Sizes:
    """Return the shape in blocks of channels. The size of a block depends on the CPU."""
    n, *rest = x.sizes
    return n, None, *(rest[:-1] if op.get("channels_last") else rest[1:])


def _infer_out_of_blocks(op: Operation, x: Type) -> Sizes:
    n, _, *image = x.sizes
    channels = op.attributes["channels"]
    return (n, *image, channels) if op.get("channels_last") else (n, channels, *image)


def _infer_upsample_blocks(op: Operation, x: Type) -> Sizes:
    factors = op.get("scales", [1] * len(x.sizes))
    return tuple(size * factor for size, factor in zip(x.sizes, factors, strict=True))


def _infer_like_the_first(op: Operation, x: Type, *rest: Type | None) -> Inferred:
    return x


def _infer_in_a_sequence(op: Operation, x: Type, *rest: Type | None) -> Inferred:
    return Inferred(x.elements)


def _infer_gemm(op: Operation, a: Type, b: Type, *rest: Type | None) -> Sizes:
    rows = a.sizes[-1 if op.get("transA") else 0]
    columns = b.sizes[0 if op.get("transB") else -1]
    return rows, columns


def _infer_sequence_empty(op: Operation) -> Inferred:
    return Inferred(op.get("dtype", TensorProto.FLOAT))


def _infer_sequence_at(op: Operation, sequence: Type, position: Type) -> Inferred:
    element = tried(part_of_sequence, op.graph, op.node)
    if element is None:
        return Misread(sequence.elements)
    axis, _, size = element
    split = op.graph.producer(op.node.input[0])
    if split is None:
        raise ValueError("not known")
    x = op.graph.type(split.input[0])
    return Inferred(x.elements, (*x.sizes[:axis], size, *x.sizes[axis + 1 :]))


def _infer_col2im(op: Operation, x: Type, image_shape: Type, block_shape: Type) -> Sizes:
    """The declaration states only sizes of an image that are numbers."""
    n, channels, _ = x.sizes
    positions = math.prod(known(integer_list(op.graph, op.node.input[2])))
    return n, channels // positions, *known(op.integers(1))


def _infer_im2col(op: Operation, x: Type) -> Sizes:
    blocks = im2col_blocks(op.attributes, x.sizes[2:])
    return x.sizes[0], x.sizes[1] * math.prod(op.attributes["kernel_shape"]), math.prod(blocks)


COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
ELEMENTWISE = (
    "Add", "And", "Div", "Max", "Mean", "Min", "Mod", "Mul", "Or", "Pow", "PRelu", "Sub", "Sum",
    "Where", "Xor",
)  # fmt: skip
OF_SEQUENCES = ("ConcatFromSequence", "Optional", "OptionalGetElement", "SequenceConstruct",
    "SequenceErase",
                "SequenceInsert", "SplitToSequence")  # fmt: skip
ON_IMAGES: "dict[str, Callable[..., Inferred]]" = {
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), infer_pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"), infer_global_pool),
    **dict.fromkeys(("Conv", "ConvInteger", "QLinearConv"), infer_conv),
}
# What ONNX Runtime's optimizer makes of others. Where channels are in blocks, there are as many of
# them as the weights have, which are filled up to whole blocks.
BLOCKS = "com.microsoft.nchwc"
FUSED: "dict[str, Rule]" = {
    **dict.fromkeys(("FusedConv", "NhwcFusedConv", "QLinearConv"), channels_second(infer_conv)),
    **dict.fromkeys(("NhwcMaxPool", "QLinearAveragePool"), channels_second(infer_pool)),
    **dict.fromkeys(("BiasGelu", "BiasSoftmax", "FastGelu", "Gelu", "QuickGelu",
            "SkipLayerNormalization",
                     "SkipSimplifiedLayerNormalization"), _infer_like_the_first),
    "FusedGemm": _infer_gemm,
    "FusedMatMul": _infer_fused_matmul,
    "QLinearGlobalAveragePool": channels_second(infer_global_pool),
}  # fmt: skip
# {domain: {type of node: rule}}
RULES: "dict[str, dict[str, Rule]]" = {
    "ai.onnx": {
        **dict.fromkeys((*ELEMENTWISE, *COMPARISONS), _infer_elementwise),
        **dict.fromkeys(OF_SEQUENCES, _infer_in_a_sequence),
        **ON_IMAGES,
        "AffineGrid": _infer_affine_grid,
        "Attention": _infer_attention,
        "Col2Im": _infer_col2im,
        "Concat": _infer_concat,
        "ConstantOfShape": _infer_constant_of_shape,
        "ConvTranspose": infer_conv_transpose,
        "DepthToSpace": _infer_depth_to_space,
        "Einsum": _infer_einsum,
        "Expand": _infer_expand,
        "Flatten": _infer_flatten,
        "Gather": _infer_gather,
        "NonZero": _infer_non_zero,
        "Pad": _infer_pad,
        "Range": _infer_range,
        "Reshape": _infer_reshape,
        "Resize": _infer_resize,
        "SequenceAt": _infer_sequence_at,
        "SequenceEmpty": _infer_sequence_empty,
        "Shape": _infer_shape,
        "Slice": _infer_slice,
        "SpaceToDepth": _infer_space_to_depth,
        "Squeeze": _infer_squeeze,
        "STFT": _infer_stft,
        "Tile": _infer_tile,
        "Unsqueeze": _infer_unsqueeze,
        "Upsample": _infer_resize,
    },
    "com.microsoft": FUSED,
    BLOCKS: {
        **ON_IMAGES,
        "ReorderInput": _infer_into_blocks,
        "ReorderOutput": _infer_out_of_blocks,
        "Upsample": _infer_upsample_blocks,
    },
    "onnx_ops": {"Im2Col": _infer_im2col},
}
