"""Rules of operators that move elements, also by indices that data state."""

from collections.abc import Sequence
from typing import Any

from onnx import TensorProto

from ...indices import pads_with_zeros
from ...sizes import are_numbers, at_least_zero, never_negative, quotient
from ..affine import (
    Dimension,
    Index,
    Position,
    Unknown,
    Variable,
    along,
    as_int,
    divided,
    is_within,
    number,
    reshaped,
    variables_of,
)
from ..constructors import MOST_PARTS
from ..forms import CASTS, Element, Form, Guard, inside
from ..reader import Made, Place, Site
from .table import operator

FLOATS = TensorProto.FLOAT, TensorProto.DOUBLE
INTEGERS = TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL
INT32_MAX = 2**31 - 1


@operator("Identity", moves=True)
def identity(site: Site) -> Made:
    return site.move(0, site.index)


@operator("Transpose", moves=True)
def transpose(site: Site) -> Made:
    order = site.attributes.get("perm", [*range(len(site.index))][::-1])
    return site.move(0, [site.index[order.index(axis)] for axis in range(len(order))])


@operator("Reshape", "Flatten", "Squeeze", "Unsqueeze", moves=True)
def reshape(site: Site) -> Made:
    return site.move(0, reshaped(site.index, site.shape, site.shape_of(0)))


@operator("Expand", moves=True)
def expand(site: Site) -> Made:
    sizes = site.shape_of(0)
    for size, target in zip(sizes[::-1], site.shape[::-1], strict=False):
        if size not in (1, target) and not isinstance(size, int):
            raise Unknown("whether an axis is repeated")
    return site.move(0, broadcast(site.index, sizes))


def broadcast(index: Index, dimensions: Sequence[Dimension]) -> list[Position]:
    """Return the index into a value of this shape that is broadcast to one with the index."""
    last = index[len(index) - len(dimensions) :]
    return [number(0) if size == 1 else at for size, at in zip(dimensions, last, strict=True)]


def operand_index(site: Site, k: int) -> list[Position]:
    """Return the index into an input that is broadcast to the output.

    Its open sizes may be other ones than the output's. Where each rounding counts, who reads the elements repeats those
    along an axis that turns out to have one element: there the index runs along the axis as if there were no others.
    """
    sizes = site.shape_of(k)
    index = broadcast(site.index, sizes)
    if not site.forms.is_exact:
        return index
    return renamed(index, sizes, site.shape[len(site.shape) - len(sizes) :])


def renamed(
    index: Sequence[Position], sizes: Sequence[Dimension], targets: Sequence[Dimension]
) -> list[Position]:
    """Return an index with variables of an input's sizes where the output's are other names of them. Raises Unknown."""
    result = []
    for at, size, target in zip(index, sizes, targets, strict=True):
        if size in (1, target) or are_numbers((size,)):
            result.append(at)
            continue
        variable = at.terms[0].variable if at.terms else Variable("", 1)
        if at != along(variable._replace(size=target)):
            raise Unknown("whether two sizes are equal")
        result.append(along(variable._replace(size=size)))
    return result


@operator("Tile", moves=True)
def tile(site: Site) -> Made:
    sizes = zip(site.index, site.shape_of(0), site.shape, strict=True)
    return site.move(
        0, [at if before == after else divided(at, before)[1] for at, before, after in sizes]
    )


@operator("Slice", moves=True)
def slices(site: Site) -> Made:
    index = [*site.index]
    dimensions = site.shape_of(0)
    for axis, start, end, step in cuts(site):
        first: Dimension = 0
        if (start, step) != (0, 1):
            first, _ = sliced(dimensions[axis], start, end, step)
        index[axis] = number(first) + index[axis].times(step)
    return site.move(0, index)


def cuts(site: Site) -> list[tuple[int, Dimension, Dimension, int]]:
    """Return [(axis, start, end, step)] of a Slice, whose starts and ends may be open sizes. Raises Unknown."""
    starts: Sequence[Dimension]
    ends: Sequence[Dimension]
    axes: Sequence[Dimension]
    steps: Sequence[Dimension] = ()
    if "starts" in site.attributes:
        starts, ends, axes = (site.attributes.get(name, ()) for name in ("starts", "ends", "axes"))
    else:
        starts, ends, axes, steps = (site.integers(k) if site.has(k) else () for k in range(1, 5))
    axes = axes or range(len(starts))
    steps = steps or [1] * len(starts)
    return [*zip(map(as_int, axes), starts, ends, map(as_int, steps), strict=True)]


def sliced(
    size: Dimension, start: Dimension, end: Dimension, step: int
) -> tuple[Dimension, Dimension]:
    """Return (first position, number of positions) that a Slice takes along an axis. Raises Unknown."""
    if step < 0 and isinstance(end, int) and end >= INT32_MAX:
        raise Unknown("ONNX Runtime reads such an end as the first element, onnx as the last one")
    low, high = (0, size) if step > 0 else (-1, size - 1)
    first = _clamped(start, size, 0, high)
    last = _clamped(end, size, low, high)
    span = last - first if step > 0 else first - last
    return first, at_least_zero((span + abs(step) - 1) // abs(step))


def _clamped(at: Dimension, size: Dimension, low: Dimension, high: Dimension) -> Dimension:
    """Return where a start or end that a Slice states lies on an axis. Raises Unknown."""
    if isinstance(at, int) and abs(at) >= INT32_MAX and not isinstance(size, int):  # far outside
        at = high if at > 0 else low
    elif never_negative(-1 - at):
        at = at + size
    if isinstance(at, int) and isinstance(high, int) and isinstance(low, int):
        return min(max(at, low), high)
    if at != high and not (never_negative(at - low) and never_negative(high - at)):
        raise Unknown("whether a slice begins or ends outside")
    return at


@operator("Split", moves=True)
def split(site: Site) -> Made:
    axis = site.axis(len(site.index))
    outputs = [*site.node.output]
    before = outputs[: outputs.index(site.place.name)]
    start = sum(site.reader.shape(output)[axis] for output in before)
    return site.move(0, replaced(site.index, axis, site.index[axis] + number(start)))


@operator("DepthToSpace", moves=True)
def depth_to_space(site: Site) -> Made:
    block = site.attributes["blocksize"]
    is_column_first = site.attributes.get("mode", b"DCR") == b"DCR"
    n, c, h, w = site.shape
    parts = [n, c, quotient(h, block), block, quotient(w, block), block]
    order = [0, 3, 5, 1, 2, 4] if is_column_first else [0, 1, 3, 5, 2, 4]
    apart = reshaped(site.index, site.shape, parts)
    moved = tuple(apart[k] for k in order)
    return site.move(0, reshaped(moved, [parts[k] for k in order], site.shape_of(0)))


@operator("SpaceToDepth", moves=True)
def space_to_depth(site: Site) -> Made:
    block = site.attributes["blocksize"]
    n, c, h, w = site.shape_of(0)
    parts = [n, c, quotient(h, block), block, quotient(w, block), block]
    order = [0, 3, 5, 1, 2, 4]
    apart = reshaped(site.index, site.shape, [parts[k] for k in order])
    moved = tuple(apart[order.index(k)] for k in range(len(order)))
    return site.move(0, reshaped(moved, parts, site.shape_of(0)))


@operator("Gather", moves=True)
def gather(site: Site) -> Made:
    dimensions = site.shape_of(0)
    axis = site.axis(len(dimensions))
    end = axis + len(site.shape_of(1))
    at = _picked(site, site.index[axis:end], dimensions[axis])
    return _by_index(site, (*site.index[:axis], at, *site.index[end:]))


@operator("GatherElements", moves=True)
def gather_elements(site: Site) -> Made:
    axis = site.axis(len(site.index))
    at = _picked(site, site.index, site.shape_of(0)[axis])
    return _by_index(site, replaced(site.index, axis, at))


@operator("GatherND", moves=True)
def gather_nd(site: Site) -> Made:
    *sizes, depth = site.shape_of(1)
    first = site.attributes.get("batch_dims", 0)
    before = site.index[: len(sizes)]
    dimensions = site.shape_of(0)[first:]
    picks = [_picked(site, (*before, number(k)), dimensions[k]) for k in range(as_int(depth))]
    return _by_index(site, (*site.index[:first], *picks, *site.index[len(sizes) :]))


def _picked(site: Site, index: Index, size: Dimension) -> Position:
    """Return the position along an axis that the second input states at an index."""
    return site.forms.picked(site.read(1, index, bare=False), size)


def _by_index(site: Site, index: Index) -> Place:
    """Return the place that an index leads to: bare if it is a window, or data state it."""
    is_by_data = not variables_of(index).isdisjoint(site.forms.picks)
    is_window = any(len(variables_of([at])) > 1 for at in index)
    return site.move(0, index, bare=is_by_data or is_window)


@operator("Pad", moves=True)
def pad(site: Site) -> Made:
    mode = site.attributes.get("mode", b"constant")
    if mode != b"constant" or not pads_with_zeros(site.reader.graph, site.node):
        return None
    rank = len(site.index)
    axes = [*map(as_int, site.integers(3))] if site.has(3) else range(rank)
    pads = site.attributes["pads"] if "pads" in site.attributes else site.integers(1)
    index = [*site.index]
    for axis, begin in zip(axes, pads, strict=False):
        index[axis % rank] = index[axis % rank] - number(begin)
    conditions = frozenset(inside(index, site.shape_of(0)))
    body = site.read(0, index, bare=any(pads) or site.place.bare)
    form = site.forms.guard(conditions, body)
    if not isinstance(form, Guard):
        return form
    # Elements that aren't 0 by themselves outside, such as those of a flattened image: the input is the root.
    return site.forms.guard(conditions, site.forms.element(site.node.input[0], tuple(index)))


@operator("Concat", moves=True)
def concat(site: Site) -> Made:
    axis = site.axis(len(site.index))
    at = site.index[axis]
    lengths = [site.shape_of(k)[axis] for k in range(len(site.node.input))]
    starts: list[Dimension] = [sum(lengths[:k]) for k in range(len(lengths))]
    for k, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        if is_within(at - number(start), length):
            index = replaced(site.index, axis, at - number(start))
            if site.forms.is_exact:
                sizes = site.shape_of(k)
                index = tuple(renamed(index, sizes, replaced(site.shape, axis, sizes[axis])))
            return site.move(k, index)
    if len({*lengths}) == 1:
        try:
            return _stacked(site, axis, lengths[0])
        except Unknown:
            pass
    if len(lengths) > MOST_PARTS:
        raise Unknown("its parts differ")
    total = site.forms.number(0)
    for k, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        within = at - number(start)
        part = site.read(k, replaced(site.index, axis, within))
        total = site.forms.op("Add", total, site.forms.guard(inside([within], [length]), part))
    return total


def _stacked(site: Site, axis: int, length: Dimension) -> Form:
    """Return the form of a Concat of equally long parts, rolled over the parts."""
    which, within = divided(site.index[axis], length)
    index = replaced(site.index, axis, within)
    return site.rolled([site.read(k, index) for k in range(len(site.node.input))], which)


def replaced(index: tuple[Any, ...], axis: int, at: Any) -> tuple[Any, ...]:
    """Return an index, or sizes, with another one along an axis."""
    return *index[:axis], at, *index[axis + 1 :]


@operator("Cast", moves=True)
def cast(site: Site) -> Made:
    """A cast to 16 bits makes steps that can be seen. Rounding between wide floats is left out, as that of results.

    Where each rounding counts, what was computed in 16 bits is rounded when it becomes wider, and casts that change
    more than that stay.
    """
    before = site.reader.graph.type(site.node.input[0]).elements
    after = site.attributes["to"]
    is_exact = site.forms.is_exact
    is_from_floats = before in (*FLOATS, *CASTS)
    if before == after or (is_from_floats and after in FLOATS and not is_exact):
        return site.move(0, site.index)
    if before in INTEGERS and after != TensorProto.BOOL:
        keeps = not is_exact or before == TensorProto.BOOL or after in INTEGERS
        return site.move(0, site.index) if keeps else None
    if is_exact and before in CASTS and after == TensorProto.FLOAT:
        form = site.read(0, site.index)
        is_rounded = isinstance(form, Element)
        return form if is_rounded else site.forms.op(CASTS[before], form)
    if site.place.bare:
        return None
    if after in CASTS and before in ((TensorProto.FLOAT,) if is_exact else FLOATS):
        return site.forms.op(CASTS[after], site.read(0, site.index))
    if after == TensorProto.BOOL:
        return site.forms.op("Bool", site.read(0, site.index))
    if is_from_floats and after in INTEGERS:
        return site.forms.op("Trunc", site.read(0, site.index))
    return None
