"""`deform_conv2d` that is written by sampling pixels, as one DeformConv.

    y[n, o, h, w] = sum over c, i, j of
        W[o, c, i, j] * mask[n, g, i, j, h, w] * x[n, c, row, column]
    row = h * stride + i * dilation - pad + offset[n, g, i, j, 0, h, w]

g is the group of channel c, and a column is computed like a row.

deform-conv2d-onnx-exporter and modules in plain PyTorch sample by hand (sampled.py), arrange the
samples as an image of blocks, and convolve these with strides as large as the kernel. Others stack
the results of GridSamples, one for each position in the kernel, and multiply these by the weights.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx

from ..arranging import Chain
from ..finding import NearMiss
from ..graph import FLOATS, Graph
from ..reading.affine import (
    Array,
    Digit,
    Index,
    Position,
    Unknown,
    Variable,
    along,
    as_int,
    number,
    variables_of,
)
from ..reading.digits import digits_in, joined_digits, refined, size_along
from ..reading.forms import Form, Op, Sum, Whole
from ..reading.reader import Reader, attributes_of, axes_of
from ..reading.rolling import rolled
from ..sampled import Sampled, sample_of, sampled
from ..sizes import are_numbers
from ..windows import Window, occurrences_of, spacings, window

if TYPE_CHECKING:
    from ..reading.reader import GraphView

NAME = "deform_conv2d"
VERSION = 19  # of ai.onnx, the first with DeformConv
OFFSET = Variable("offset", 2)  # along rows or columns
MOST_ADDENDS = 16  # of a coordinate

Occurrences = dict[str, Index]  # {value: index of its elements}


@dataclass(frozen=True)
class Product:
    """A sum of products of samples and weights.

    name    the value that may be a convolution
    over    the variables that are summed
    sample  what is sampled
    masks   other factors
    weight  where the weights are
    outer   the position along the result's channels
    group   of a Conv
    bias    a value or a constant that is added
    """

    name: str
    over: tuple[Variable, ...]
    sample: Sampled
    masks: Sequence[Form]
    weight: Occurrences
    outer: Position
    group: int = 1
    bias: Array | str | None = None


@dataclass(frozen=True)
class Input:
    """A value whose elements at `source` an operator takes at `target`."""

    name: str
    source: Index
    target: Index


@dataclass(frozen=True)
class DeformConv:
    """A DeformConv.

    inputs          x, weights, offsets, and a mask if there is one
    bias            a value or a constant, or None
    made, result    the indices of what it makes, and of what that is in the model
    windows         along rows and columns
    group, offset_group
    """

    inputs: list[Input]
    bias: Array | str | None
    result_index: Index
    result: Index
    windows: list[Window]
    group: int
    offset_group: int

    operator = "DeformConv"

    @property
    def sources(self) -> list[str]:
        bias = [self.bias] if isinstance(self.bias, str) else []
        return [*(tensor.name for tensor in self.inputs), *bias]

    def replacement(self, graph: Graph, node: onnx.NodeProto) -> dict[str, Any]:
        types = {graph.type(name).elements for name in self.sources}
        if len(types) > 1 or not types <= FLOATS:
            raise NearMiss("its inputs are not known to be floats of one type")
        chains = [Chain(graph, node, tensor.name, self.sources) for tensor in self.inputs]
        for chain, tensor in zip(chains, self.inputs, strict=True):
            chain.arrange(tensor.source, tensor.target)
        weight, offset, *mask = [chain.value() for chain in chains[1:]]
        bias = self.bias
        if bias is not None and not isinstance(bias, str):
            bias = graph.add_constant("bias", bias) if bias.any() else None
        absent = [""] if mask and bias is None else []
        domain, version = ("", VERSION) if graph.can_import(VERSION) else ("onnx_ops", 1)
        result = chains[0]
        result.then(
            self.operator,
            [weight, offset, *([] if bias is None else [bias]), *absent, *mask],
            [*map(size_along, self.result_index)],
            domain=domain,
            version=version,
            kernel_shape=[tensor.kernel_size for tensor in self.windows],
            group=self.group,
            offset_group=self.offset_group,
            **spacings(self.windows),
        )
        result.arrange(self.result_index, self.result)
        return result.last()


def match(reader: Reader, name: str, form: Form) -> DeformConv | None:
    """Return the deformable convolution that a value is."""
    conv, bias = _conv(reader.graph, name)
    if conv is None:
        product = _of_sum(reader, name, form) if isinstance(form, Sum) else None
    else:
        product = _of_conv(reader, name, conv, bias)
    if product is None:
        return None
    sample = product.sample
    if (sample.mode, sample.padding_mode, sample.masks) != ("linear", "zeros", ()):
        raise NearMiss("it samples with another mode or border than DeformConv")
    return _deform_conv(reader, product)


def _conv(graph: "GraphView", name: str) -> tuple[onnx.NodeProto | None, Array | str | None]:
    """Return the Conv that makes a value, and its bias: a value, or a constant that is added."""
    add = graph.producer(name, "Add")
    for result, addend in () if add is None else (add.input, add.input[::-1]):
        conv = graph.producer(result, "Conv")
        bias = None if conv is None or len(conv.input) > 2 else graph.folded(addend)
        if conv is not None and bias is not None and graph.users[result] == 1:
            channels = (graph.type(conv.input[1]).shape or (None,))[0]
            if bias.shape in ((1, channels, 1, 1), (channels, 1, 1)):
                return conv, bias.reshape(-1)
    conv = graph.producer(name, "Conv")
    has_bias = conv is not None and len(conv.input) > 2
    return conv, conv.input[2] or None if conv is not None and has_bias else None


def _of_conv(
    reader: Reader, name: str, conv: onnx.NodeProto, bias: Array | str | None
) -> Product | None:
    """Return the product that a Conv computes of the samples in blocks that don't overlap."""
    attributes = attributes_of(conv)
    image, weights, *_ = conv.input
    outputs, per_group, *kernel = reader.shape(weights)
    is_plain = (
        not any(attributes.get("pads", ())) and attributes.get("auto_pad", b"NOTSET") == b"NOTSET"
    )
    is_dilated = {*attributes.get("dilations", [1])} != {1}
    if (
        len(kernel) != 2
        or attributes.get("strides", [1, 1]) != kernel
        or not is_plain
        or is_dilated
    ):
        return None
    channels = reader.shape(image)[1]
    if not are_numbers((outputs, channels)):
        raise NearMiss("the number of its channels is open")
    over = tuple(map(Variable, ("sum c", "sum i", "sum j"), (channels, *kernel)))
    n, o, *pixel = axes_of(reader.shape(name))
    c, *within = map(along, over)
    pixel = [
        position.times(size) + k for position, size, k in zip(pixel, kernel, within, strict=True)
    ]
    sample = _sample(reader, reader.read(image, (n, c, *pixel)))
    if sample is None:
        return None
    group = attributes.get("group", 1)
    weight_index = (o, c if group == 1 else along(Variable("within group", per_group)), *within)
    return Product(name, over, sample, sample.factors, {weights: weight_index}, o, group, bias)


def _of_sum(reader: Reader, name: str, form: Sum) -> Product | None:
    """Return the product that a sum is, of which one factor are the weights."""
    sample = _sample(reader, form.body)
    if sample is None:
        return None
    result = axes_of(reader.shape(name))
    free = map(reader.forms.free, sample.coordinates)
    sampled_at = reader.forms.variables(sample.index).union(*free)
    outer = [
        position
        for position in result
        if position.terms and variables_of([position]).isdisjoint(sampled_at)
    ]
    if len(outer) != 1:
        return None
    for factor in sample.factors:
        occurrences = occurrences_of(reader, factor, name, form.over)
        if any(variables_of(outer) & variables_of(index) for index in occurrences.values()):
            masks = [mask for mask in sample.factors if mask is not factor]
            return Product(name, form.over, sample, masks, occurrences, outer[0])
    return None


def _sample(reader: Reader, form: Form) -> Sampled | None:
    """Return what is sampled along two axes; near misses are reported at their own nodes."""
    try:
        sample = sample_of(reader, form) or sampled(reader, form)
    except (NearMiss, Unknown):
        return None
    return sample if sample is not None and len(sample.pixel) == 2 else None


def _deform_conv(reader: Reader, product: Product) -> DeformConv:
    sample = product.sample
    windows, offsets = _windows_and_offsets(product)
    if len(product.masks) > 1:
        count = len(product.masks)
        raise NearMiss(f"its pixels are multiplied by {count} values, instead of a mask")
    tensors = [_occurrences(reader, product, _rolled(reader, offsets), "offsets", " * 2")]
    tensors += [_occurrences(reader, product, mask, "mask", "") for mask in product.masks]
    index, *tensor_indices = refined(
        sample.index, *(next(iter(occurrences.values())) for occurrences in tensors)
    )
    fixed = [digit for digit in digits_in(index) if digit.variable not in sample.pixel]
    channels = [digit for digit in fixed if digit.variable in product.over]
    groups = _groups(channels, tensor_indices)
    n = joined_digits(digit for digit in fixed if digit not in channels)
    c = joined_digits(channels)
    kernel = [joined_digits(axis_window.kernel) for axis_window in windows]
    points = [joined_digits(axis_window.block) for axis_window in windows]
    own = [*groups, *(digit for axis_window in windows for digit in axis_window.kernel)]
    targets = [joined_digits([*own, Digit(OFFSET, 1, 2)]), joined_digits(own)]
    return DeformConv(
        [
            Input(sample.image, sample.index, (n, c, *map(along, sample.pixel))),
            _input(product.weight, _weight_target(product, (c, *kernel))),
            *(
                _input(occurrences, (n, position, *points))
                for occurrences, position in zip(tensors, targets, strict=False)
            ),
        ],
        product.bias,
        (n, product.outer, *points),
        axes_of(reader.shape(product.name)),
        windows,
        product.group,
        math.prod(as_int(digit.size) for digit in groups),
    )


def _weight_target(product: Product, summed: Index) -> Index:
    """Return the index of the weights: the output's channels, then what is summed."""
    if product.group == 1:
        return (product.outer, *summed)
    if summed != tuple(map(along, product.over)):
        raise NearMiss("the channels of its groups have another order")
    return next(iter(product.weight.values()))


def _windows_and_offsets(product: Product) -> tuple[list[Window], list[Form]]:
    """Return the windows and the offsets along rows and columns."""
    sample = product.sample
    windows = []
    offsets = []
    for coordinate, shift, pixel in zip(
        sample.coordinates, sample.shifts, sample.pixel, strict=True
    ):
        regular, offset = _taken_apart(coordinate)
        position = regular + number(shift)
        summed = {term.digit for term in position.terms if term.variable in product.over}
        windows.append(window(position, pixel.size, summed))
        offsets.append(offset)
    if any(axis_window.is_flipped for axis_window in windows):
        raise NearMiss("its kernel runs backwards")
    for axis_window in windows:
        if axis_window.begin < 0:
            raise NearMiss(f"its first place is pixel {-axis_window.begin}, inside of the image")
        if axis_window.end < 0:
            raise NearMiss(
                f"its output has {axis_window.block_count} pixels along an axis, fewer than fit"
            )
    return windows, offsets


def _groups(channels: Sequence[Digit], indices: Sequence[Index]) -> list[Digit]:
    """Return the digits of channels that offsets or a mask differ for: the most significant."""
    in_parts = {
        term.digit for index in indices for position in index for term in position.terms
    } & {*channels}
    groups = [*channels[: len(in_parts)]]
    if {*groups} != in_parts:
        raise NearMiss("its offsets or its mask differ within groups of channels")
    return groups


def _taken_apart(coordinate: Form) -> tuple[Position, Form]:
    """Return (place in a regular grid, offset), of which a coordinate is the sum."""
    regular = number(0)
    rest: list[Form] = []
    pending = [coordinate]
    while pending and len(rest) + len(pending) < MOST_ADDENDS:
        match pending.pop():
            case Op("Add", operands):
                pending += operands
            case Op("Sub", (first, Whole(position))):
                regular = regular - position
                pending.append(first)
            case Whole(position):
                regular = regular + position
            case other:
                rest.append(other)
    rest.extend(pending)
    if len(rest) != 1:
        raise NearMiss(
            f"its places are not those of a regular grid and one offset, but {len(rest)} values"
        )
    return regular, rest[0]


def _rolled(reader: Reader, offsets: Sequence[Form]) -> Form:
    """Return the offsets along rows and columns as one form."""
    try:
        return rolled(reader.forms, offsets, OFFSET)
    except Unknown:
        raise NearMiss("its offsets along rows and columns are not of one value") from None


def _occurrences(
    reader: Reader, product: Product, form: Form, title: str, factor: str
) -> Occurrences:
    occurrences = occurrences_of(reader, form, product.name, (OFFSET, *product.over))
    if not occurrences:
        raise NearMiss(
            f"its {title} are not known to be a value [N, groups * kernel{factor}, height, width]"
        )
    return occurrences


def _input(occurrences: Occurrences, target: Index) -> Input:
    """Return the input of which the fewest elements must be moved."""
    exact = [name for name, index in occurrences.items() if index == target]
    name = (exact or [*occurrences])[0]
    return Input(name, occurrences[name], target)
