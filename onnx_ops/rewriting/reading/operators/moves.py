"""Rules of operators that move elements, also by indices that data state."""

import bisect
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto

from ...sizes import im2col_blocks, quotient
from ..affine import (
    Dimension,
    Index,
    Position,
    Unknown,
    Variable,
    along,
    as_int,
    divided,
    is_at_least,
    is_within,
    number,
    reshaped,
    variables_of,
)
from ..arithmetic import INTEGERS, fits
from ..constructors import MOST_PARTS
from ..forms import CASTS, Element, Form, Guard, Whole, inside
from ..integers import cuts, part_of_sequence, sliced
from ..reader import Query, Result, Site, attributes_of, whole_position
from .table import operator

if TYPE_CHECKING:
    from ..reader import GraphView

FLOATS = TensorProto.FLOAT, TensorProto.DOUBLE
INDICES = TensorProto.INT64, TensorProto.INT32
NUMBERS = {*INTEGERS, *FLOATS, *CASTS}
NEAREST = {
    "mode": b"nearest",
    "coordinate_transformation_mode": b"asymmetric",
    "nearest_mode": b"floor",
}
QUANTIZED = TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16


@operator("Identity", moves=True)
def identity(site: Site) -> Result:
    return site.move(0, site.index)


@operator("Transpose", moves=True)
def transpose(site: Site) -> Result:
    order = site.attributes.get("perm", [*range(len(site.index))][::-1])
    return site.move(0, [site.index[order.index(axis)] for axis in range(len(order))])


@operator("Reshape", "Flatten", "Squeeze", "Unsqueeze", moves=True)
def reshape(site: Site) -> Result:
    return site.move(0, reshaped(site.index, site.shape, site.shape_of(0)))


@operator("Expand", moves=True)
def expand(site: Site) -> Result:
    return site.move(0, broadcast(site.index, site.shape, site.shape_of(0)))


def broadcast(
    index: Sequence[Position], target: Sequence[Dimension], dimensions: Sequence[Dimension]
) -> list[Position]:
    """Return the index into a value that is broadcast to a shape with the index. Raises Unknown."""
    added_axes = len(target) - len(dimensions)
    result = []
    for position, wanted, size in zip(
        index[added_axes:], target[added_axes:], dimensions, strict=True
    ):
        if size != wanted and not isinstance(size, int):
            raise Unknown(f"whether {size} is 1")
        result.append(number(0) if size == 1 else position)
    return result


def operand_index(site: Site, k: int) -> list[Position]:
    """Return the index into an input that is broadcast to the output. Raises Unknown.

    Where each rounding counts, open sizes may be other ones than the output's: who reads the
    elements repeats those along an axis that turns out to have one element, and the index runs
    along the axis as if there were no others.
    """
    sizes = site.shape_of(k)
    shape = site.shape
    if not site.forms.is_exact:
        return broadcast(site.index, shape, sizes)
    added_axes = len(shape) - len(sizes)
    index = renamed(site.index[added_axes:], sizes, shape[added_axes:])
    return [
        number(0) if size == 1 else position for position, size in zip(index, sizes, strict=True)
    ]


def renamed(
    index: Sequence[Position], sizes: Sequence[Dimension], targets: Sequence[Dimension]
) -> list[Position]:
    """Return an index with variables of an input's sizes where the output's are other names of
    them. Raises Unknown.
    """
    result = []
    for position, size, target in zip(index, sizes, targets, strict=True):
        if size == target or isinstance(size, int):
            result.append(position)
            continue
        variable = position.terms[0].variable if position.terms else Variable("", 1)
        if position != along(variable._replace(size=target)):
            raise Unknown("whether two sizes are equal")
        result.append(along(variable._replace(size=size)))
    return result


@operator("Tile", moves=True)
def tile(site: Site) -> Result:
    sizes = zip(site.index, site.shape_of(0), site.shape, strict=True)
    return site.move(
        0,
        [
            position if before == after else divided(position, before)[1]
            for position, before, after in sizes
        ],
    )


@operator("Slice", moves=True)
def slices(site: Site) -> Result:
    stated = cuts(site.reader.graph, site.node)
    if stated is None:
        return None
    index = [*site.index]
    dimensions = site.shape_of(0)
    for axis, start, end, step in stated:
        if (start, step) == (0, 1):
            continue
        first, _ = sliced(dimensions[axis], start, end, step)
        index[axis] = number(first) + index[axis].times(step or 1)
    return site.move(0, index)


@operator("ReverseSequence", moves=True)
def reverse_sequence(site: Site) -> Result:
    """Of sequences as long as their axis, which tf2onnx makes of tf.reverse."""
    time = site.attributes.get("time_axis", 0)
    size = site.shape[time]
    length = site.read(1, [site.index[1 - time]], bare=False)
    if whole_position(length) != number(size):
        return None
    return site.move(0, replaced(site.index, time, number(size - 1) - site.index[time]))


@operator("Split", moves=True)
def split(site: Site) -> Result:
    axis = site.axis()
    outputs = [*site.node.output]
    starts = _starts(site, outputs[0], (site.reader.shape(output)[axis] for output in outputs))
    start = number(starts[outputs.index(site.query.name)])
    return site.move(0, replaced(site.index, axis, site.index[axis] + start))


@operator("SequenceAt", moves=True)
def sequence_at(site: Site) -> Result:
    graph, sequence = site.reader.graph, site.node.input[0]
    axis, start, _ = part_of_sequence(graph, site.node)
    split = site.reader.site(sequence, bare=site.query.bare)
    return split.move(0, replaced(site.index, axis, site.index[axis] + number(start)))


@operator("Resize", moves=True)
def resize(site: Site) -> Result:
    """Of the nearest elements, where all are repeated equally often."""
    attributes = site.attributes
    is_stretched = attributes.get("keep_aspect_ratio_policy", b"stretch") == b"stretch"
    if (
        not is_stretched
        or attributes.get("axes")
        or any(attributes.get(k) != v for k, v in NEAREST.items())
    ):
        return None
    sizes = zip(site.shape, site.shape_of(0), strict=True)
    times = [quotient(after, before) for after, before in sizes]
    # Of sizes, ONNX Runtime makes the scales itself.
    if not site.has(3) and site.integers(2) != times:
        return None
    pairs = zip(site.index, times, strict=True)
    return site.move(
        0, [position if n == 1 else divided(position, as_int(n))[0] for position, n in pairs]
    )


@operator("DepthToSpace", moves=True)
def depth_to_space(site: Site) -> Result:
    split_sizes, order = _blocks(site, site.shape)
    apart = reshaped(site.index, site.shape, split_sizes)
    moved = tuple(apart[k] for k in order)
    return site.move(0, reshaped(moved, [split_sizes[k] for k in order], site.shape_of(0)))


@operator("SpaceToDepth", moves=True)
def space_to_depth(site: Site) -> Result:
    split_sizes, order = _blocks(site, site.shape_of(0))
    apart = reshaped(site.index, site.shape, [split_sizes[k] for k in order])
    moved = tuple(apart[order.index(k)] for k in range(len(order)))
    return site.move(0, reshaped(moved, split_sizes, site.shape_of(0)))


def _blocks(site: Site, image: Sequence[Dimension]) -> tuple[list[Dimension], list[int]]:
    """Return the sizes of an image's axes with its blocks apart, and the order in which they become
    channels.
    """
    block = site.attributes["blocksize"]
    is_column_first = site.attributes.get("mode", b"DCR") == b"DCR"
    n, c, h, w = image
    order = [0, 3, 5, 1, 2, 4] if is_column_first else [0, 1, 3, 5, 2, 4]
    return [n, c, quotient(h, block), block, quotient(w, block), block], order


@operator("Gather", moves=True)
def gather(site: Site) -> Result:
    dimensions = site.shape_of(0)
    axis = site.axis(len(dimensions))
    end = axis + len(site.shape_of(1))
    position = _picked(site, site.index[axis:end], dimensions[axis])
    return _by_index(site, (*site.index[:axis], position, *site.index[end:]))


@operator("GatherElements", moves=True)
def gather_elements(site: Site) -> Result:
    axis = site.axis()
    position = _picked(site, site.index, site.shape_of(0)[axis])
    return _by_index(site, replaced(site.index, axis, position))


@operator("GatherND", moves=True)
def gather_nd(site: Site) -> Result:
    *sizes, depth = site.shape_of(1)
    first = site.attributes.get("batch_dims", 0)
    before = site.index[: len(sizes)]
    dimensions = site.shape_of(0)[first:]
    picks = [_picked(site, (*before, number(k)), dimensions[k]) for k in range(as_int(depth))]
    return _by_index(site, (*site.index[:first], *picks, *site.index[len(sizes) :]))


def _picked(site: Site, index: Index, size: Dimension) -> Position:
    """Return the position along an axis that the second input states at an index."""
    return site.forms.picked(site.read(1, index, bare=False), size)


def _by_index(site: Site, index: Index) -> Query:
    """Return the place that an index leads to: bare if it is a window, or data state it."""
    is_by_data = any(variable in site.forms.picks for variable in variables_of(index))
    is_window = any(len(variables_of([position])) > 1 for position in index)
    return site.move(0, index, bare=is_by_data or is_window)


def pads_with_zeros(graph: "GraphView", node: onnx.NodeProto) -> bool:
    """Return whether a Pad with one value pads with zeros, all bits of which are 0, or doesn't
    pad.
    """
    if attributes_of(node).get("value"):  # before version 11
        return False
    if len(node.input) < 3 or not node.input[2]:
        return True
    value = graph.array(node.input[2])
    is_zero = value is not None and value.size == 1 and value.item() in (0, "", b"", False)
    return is_zero and value is not None and not value.tobytes().strip(b"\0")


@operator("Pad", moves=True)
def pad(site: Site) -> Result:
    mode = site.attributes.get("mode", b"constant")
    if mode != b"constant" or not pads_with_zeros(site.reader.graph, site.node):
        return None
    rank = len(site.index)
    axes = [*map(as_int, site.integers(3))] if site.has(3) else range(rank)
    pads = site.attributes["pads"] if "pads" in site.attributes else site.integers(1)
    index = [*site.index]
    for axis, begin in zip(axes, pads, strict=False):
        index[axis % rank] = index[axis % rank] - number(begin)
    return padded(site, index, bare=any(pads))


def padded(site: Site, index: Sequence[Position], bare: bool) -> Form:
    """Return the element of the first input at an index, or 0 outside of it."""
    conditions = frozenset(inside(index, site.shape_of(0)))
    form = site.forms.guard(conditions, site.read(0, index, bare=bare or site.query.bare))
    if not isinstance(form, Guard):
        return form
    # Elements that aren't 0 by themselves outside, such as those of a flattened image: the input is
    # the root.
    return site.forms.guard(conditions, site.forms.element(site.node.input[0], tuple(index)))


def window_positions(
    site: Site, blocks: Sequence[Position], offsets: Sequence[Position]
) -> list[Position]:
    """Return the position of an offset in a block along each axis of a node's image.

    Raises Unknown.
    """
    attributes, axes = site.attributes, len(blocks)
    strides = attributes.get("strides", [1] * axes)
    dilations = attributes.get("dilations", [1] * axes)
    pads = attributes.get("pads", [0] * 2 * axes)
    auto_pad = attributes.get("auto_pad", b"NOTSET")
    if auto_pad != b"NOTSET" and (auto_pad != b"VALID" or any(pads)):
        raise Unknown("pads that the operator chooses")
    return [
        block.times(stride) + offset.times(dilation) - number(begin)
        for block, offset, stride, dilation, begin in zip(
            blocks, offsets, strides, dilations, pads[:axes], strict=True
        )
    ]


@operator("Im2Col", domain="onnx_ops", moves=True)
def im2col(site: Site) -> Result:
    n, row, column = site.index
    kernel = site.attributes["kernel_shape"]
    sizes = site.shape_of(0)
    channel, *offsets = reshaped((row,), site.shape[1:2], (sizes[1], *kernel))
    blocks = reshaped((column,), site.shape[2:], im2col_blocks(site.attributes, sizes[2:]))
    return padded(site, (n, channel, *window_positions(site, blocks, offsets)), bare=True)


# Steps of the reader that a part of a Concat costs, where the position is open.
OPEN_PART = 6


@operator("Concat", moves=True)
def concat(site: Site) -> Result:
    axis = site.axis()
    position = site.index[axis]
    starts = _starts(
        site, site.query.name, (site.shape_of(k)[axis] for k in range(len(site.node.input)))
    )
    for k in _candidates(position, starts):
        if is_within(position - number(starts[k]), starts[k + 1] - starts[k]):
            index = replaced(site.index, axis, position - number(starts[k]))
            if site.forms.is_exact:
                sizes = site.shape_of(k)
                index = tuple(renamed(index, sizes, replaced(site.shape, axis, sizes[axis])))
            return site.move(k, index)
    lengths = [end - start for start, end in itertools.pairwise(starts)]
    if len({*lengths}) == 1:
        try:
            return _stacked(site, axis, lengths[0])
        except Unknown:
            pass
    if len(lengths) > MOST_PARTS:
        raise Unknown("its parts differ")
    total = site.forms.number(0)
    for k, (start, length) in enumerate(zip(starts, lengths, strict=False)):
        within = position - number(start)
        if is_at_least(within, length) or is_at_least(within.times(-1), 1):
            continue
        site.reader.budget.step(OPEN_PART)
        element = site.read(k, replaced(site.index, axis, within))
        total = site.forms.op("Add", total, site.forms.guard(inside([within], [length]), element))
    return total


def _starts(site: Site, name: str, lengths: Iterable[Dimension]) -> list[Dimension]:
    """Return where parts begin, and where the last one ends.

    They are worked out once, for a value of this name.
    """
    starts = site.reader.starts
    if name not in starts:
        starts[name] = [0, *itertools.accumulate(lengths)]
    return starts[name]


def _candidates(position: Position, starts: Sequence[Dimension]) -> Sequence[int]:
    """Return the numbers of the parts in which a position may lie."""
    numbers = [start for start in starts if isinstance(start, int)]
    if position.terms or not isinstance(position.start, int) or len(numbers) < len(starts):
        return range(len(starts) - 1)
    k = bisect.bisect_right(numbers, position.start) - 1
    return [k] if 0 <= k < len(starts) - 1 else []


def _stacked(site: Site, axis: int, length: Dimension) -> Form:
    """Return the form of a Concat of equally long parts, rolled over the parts."""
    which, within = divided(site.index[axis], length)
    index = replaced(site.index, axis, within)
    return site.rolled([site.read(k, index) for k in range(len(site.node.input))], which)


def replaced(index: tuple[Any, ...], axis: int, position: Any) -> tuple[Any, ...]:
    """Return an index, or sizes, with another one along an axis."""
    return *index[:axis], position, *index[axis + 1 :]


@operator("Cast", moves=True)
def cast(site: Site) -> Result:
    """A cast to 16 bits makes steps that can be seen. Rounding between wide floats is left out, as
    that of results.

    Where each rounding counts, what was computed in 16 bits is rounded when it becomes wider, and
    casts that change more than that stay.
    """
    before = site.reader.graph.type(site.node.input[0]).elements
    after = site.attributes["to"]
    if site.forms.is_exact and after in FLOATS and before not in (after, TensorProto.BOOL):
        return (
            _widened(site, CASTS[before])
            if before in CASTS and after == TensorProto.FLOAT
            else None
        )
    is_wider = after in FLOATS or (
        before in INTEGERS - {TensorProto.UINT64} and after == TensorProto.INT64
    )
    if before == after or before == TensorProto.BOOL or (before in NUMBERS and is_wider):
        return site.move(0, site.index)
    if site.query.bare or before not in NUMBERS:
        return None
    form = site.read(0, site.index)
    rounded = FLOATS[:1] if site.forms.is_exact else (*FLOATS, *INDICES)
    if after in CASTS and before in rounded:
        return site.forms.op(CASTS[after], form)
    if after == TensorProto.BOOL:
        return site.forms.op("Bool", form)
    if after not in INTEGERS:
        return None
    form = form if before in INTEGERS else site.forms.op("Trunc", form)
    if isinstance(form, Whole):
        return form if fits(form.position, after) else None
    # Indices that data state are small; large numbers of uint64 become negative ones.
    return form if after in INDICES and before != TensorProto.UINT64 else None


def _widened(site: Site, rounding: str) -> Form:
    """Return a 16-bit float as a wider one: rounded, unless it is read as it is."""
    form = site.read(0, site.index)
    return form if isinstance(form, Element) else site.forms.op(rounding, form)


@operator("DequantizeLinear", moves=True)
def dequantize(site: Site) -> Result:
    """Of what was dequantized by an equal step, or is 0, and moved, quantizing and dequantizing
    changes nothing.
    """
    quantizer = site.reader.site(site.node.input[0])
    step = _step(site)
    if quantizer.node.op_type != "QuantizeLinear" or step is None or step != _step(quantizer):
        return None
    form = site.reader.read(quantizer.node.input[0], site.index, site.query.bare)
    element = form.body if isinstance(form, Guard) else form
    if not isinstance(element, Element):
        return None
    before = site.reader.site(element.root)
    return form if before.node.op_type == "DequantizeLinear" and _step(before) == step else None


def _step(site: Site) -> tuple[float, ...] | None:
    """Return all that decides what a QuantizeLinear or DequantizeLinear makes of an element, by one
    step for all.

    None unless dequantized integers certainly become the same ones when they are quantized.
    """
    graph = site.reader.graph
    quantized = site.query.name if site.node.op_type == "QuantizeLinear" else site.node.input[0]
    types = graph.type(site.node.input[1]).elements, graph.type(quantized).elements
    arrays = [graph.folded(site.node.input[k]) if site.has(k) else np.zeros(1) for k in (1, 2)]
    scale, zero = (math.nan if array is None else float(array.item()) for array in arrays)
    is_exact = types[0] == TensorProto.FLOAT and types[1] in QUANTIZED and 1e-30 < scale < 1e30
    is_plain = site.attributes.keys() <= {"axis", "saturate"}
    return (scale, zero, *types) if is_exact and is_plain and math.isfinite(zero) else None
