"""Rules of operators that add up, and of GridSample."""

import itertools
import math
from collections.abc import Mapping, Sequence

from ...sizes import exact, im2col_blocks
from ..affine import (
    Dimension,
    Index,
    Position,
    Unknown,
    Variable,
    along,
    as_int,
    divided,
    number,
    reshaped,
)
from ..forms import Condition, Sum, inside
from ..reader import Result, Site
from .moves import broadcast, window_positions
from .table import operator

MOST_FACTORS = 64  # of a product


@operator("ReduceSum", "ReduceMean")
def reduce(site: Site) -> Result:
    dimensions = site.shape_of(0)
    axes = _reduced_axes(site, len(dimensions))
    own = {axis: site.fresh(dimensions[axis], k) for k, axis in enumerate(axes)}
    index = _before_reduction(site, {axis: along(variable) for axis, variable in own.items()})
    total = site.forms.total([*own.values()], site.read(0, index))
    if site.node.op_type == "ReduceSum":
        return total
    count = site.forms.whole(number(math.prod(variable.size for variable in own.values())))
    return site.forms.op("Div", total, count)


def _before_reduction(site: Site, positions: Mapping[int, Position]) -> list[Position]:
    """Return the index into the input of a reduction. positions: {reduced axis: the position along
    it}, in order.
    """
    index = [*site.index]
    keeps = site.attributes.get("keepdims", 1) == 1  # as ONNX Runtime understands it
    for axis, position in positions.items():
        index[axis : axis + keeps] = [position]
    return index


def _reduced_axes(site: Site, rank: int) -> list[int]:
    axes: Sequence[Dimension] = site.attributes.get("axes", ())
    if site.has(1):
        axes = site.integers(1)
    if not axes and site.attributes.get("noop_with_empty_axes"):
        return []
    return sorted({axis % rank for axis in axes or range(rank) if isinstance(axis, int)})


@operator("ReduceProd")
def product(site: Site) -> Result:
    dimensions = site.shape_of(0)
    axes = _reduced_axes(site, len(dimensions))
    sizes = [as_int(dimensions[axis]) for axis in axes]
    if math.prod(sizes) > MOST_FACTORS:
        raise Unknown("a product of many factors")
    total = site.forms.number(1)
    for numbers in itertools.product(*map(range, sizes)):
        index = _before_reduction(site, dict(zip(axes, map(number, numbers), strict=True)))
        total = site.forms.op("Mul", total, site.read(0, index))
    return total


@operator("MatMul")
@operator("FusedMatMul", domain="com.microsoft")
def matmul(site: Site) -> Result:
    shapes = site.shape_of(0), site.shape_of(1)
    stated = site.attributes
    if min(map(len, shapes)) < 2 or stated.get("alpha", 1) != 1:
        return None
    if stated.get("transBatchA") or stated.get("transBatchB"):
        return None
    turned = [-1 if stated.get(name) else 1 for name in ("transA", "transB")]
    own = site.fresh(shapes[0][-2:][:: turned[0]][-1])
    *batch, row, column = site.index
    matrices = (row, along(own)), (along(own), column)
    factors = [
        site.read(k, [*broadcast(batch, site.shape[:-2], dimensions[:-2]), *matrix[:: turned[k]]])
        for k, (dimensions, matrix) in enumerate(zip(shapes, matrices, strict=True))
    ]
    return site.forms.total([own], site.forms.op("Mul", *factors))


@operator("Einsum")
def einsum(site: Site) -> Result:
    terms, result = _equation(site)
    lengths: dict[str, Dimension] = {}
    for k, term in enumerate(terms):
        for letter, length in zip(term, site.shape_of(k), strict=True):
            if lengths.get(letter, 1) == 1:
                lengths[letter] = length
    summed = [letter for letter in lengths if letter not in result]
    own = [site.fresh(lengths[letter], k) for k, letter in enumerate(summed)]
    positions = dict(zip(result, site.index, strict=True))
    positions |= dict(zip(summed, map(along, own), strict=True))
    product, *factors = [
        site.read(
            k, broadcast([positions[x] for x in term], [lengths[x] for x in term], site.shape_of(k))
        )
        for k, term in enumerate(terms)
    ]
    for factor in factors:
        product = site.forms.op("Mul", product, factor)
    return site.forms.total(own, product)


def _equation(site: Site) -> tuple[list[str], str]:
    """Return the letters of the axes of the inputs, and those of the output.

    Dots become digits as letters.
    """
    text = site.attributes["equation"].decode().replace(" ", "")
    left, arrow, result = text.partition("->")
    terms = left.split(",")
    if not arrow:
        letters = sorted({*left} - {*".,"})
        result = "..." * ("..." in left) + "".join(x for x in letters if left.count(x) == 1)
    hidden = [len(site.shape_of(k)) - len(term.replace("...", "")) for k, term in enumerate(terms)]
    dots = "".join(map(chr, range(0x30, 0x30 + max(hidden))))
    full = [
        term.replace("...", dots[len(dots) - count :]) if "..." in term else term
        for term, count in zip(terms, hidden, strict=True)
    ]
    return full, result.replace("...", dots)


@operator("Conv")
def conv(site: Site) -> Result:
    """Of kernels that may have a single 1 for each channel of the output: others are roots."""
    channels_out, channels_per_group, *kernel = site.shape_of(1)
    channels = site.shape_of(0)[1]
    if channels_out != channels * math.prod(kernel) or len(site.node.input) > 2:
        return None
    n, channel_out, *pixel = site.index
    own = [site.fresh(size, k) for k, size in enumerate((channels_per_group, *kernel))]
    channel, *offsets = map(along, own)
    image = window_positions(site, pixel, offsets)
    group, _ = divided(channel_out, exact(channels_out, site.attributes.get("group", 1)))
    index = (n, group.times(channels_per_group) + channel, *image)
    body = site.forms.guard(inside(index, site.shape_of(0)), site.read(0, index, bare=True))
    weight = site.read(1, (channel_out, channel, *offsets))
    total = site.forms.total(own, site.forms.op("Mul", weight, body))
    return None if isinstance(total, Sum) else total


def _reaching(
    site: Site, blocks: Sequence[Position], offsets: Sequence[Position], pixel: Sequence[Position]
) -> list[Condition]:
    """Return the conditions that positions in windows are those of a pixel."""
    positions = window_positions(site, blocks, offsets)
    return [Condition("==", a - b) for a, b in zip(positions, pixel, strict=True)]


@operator("Col2Im")
def col2im(site: Site) -> Result:
    n, channel, *pixel = site.index
    axes = len(pixel)
    kernel = [*map(as_int, site.integers(2))]
    counts = im2col_blocks({**site.attributes, "kernel_shape": kernel}, site.shape[2:])
    own = [site.fresh(size, k) for k, size in enumerate((*kernel, *counts))]
    offsets = [*map(along, own[:axes])]
    blocks = [*map(along, own[axes:])]
    conditions = _reaching(site, blocks, offsets, pixel)
    rows, columns = site.shape_of(0)[1:]
    (row,) = reshaped((channel, *offsets), (site.shape[1], *kernel), (rows,))
    (column,) = reshaped(tuple(blocks), counts, (columns,))
    body = site.forms.guard(conditions, site.read(0, (n, row, column), bare=True))
    return site.forms.total(own, body)


@operator("ConvTranspose")
def conv_transpose(site: Site) -> Result:
    """Of kernels that may have a single 1 for each channel of the input: others are roots."""
    channels, channels_per_group, *kernel = site.shape_of(1)
    groups = site.attributes.get("group", 1)
    if channels != groups * channels_per_group * math.prod(kernel) or len(site.node.input) > 2:
        return None
    n, channel_out, *pixel = site.index
    per_group = exact(channels, groups)
    sizes = (per_group, *kernel, *site.shape_of(0)[2:])
    own = [site.fresh(size, k) for k, size in enumerate(sizes)]
    channel, *rest = map(along, own)
    offsets, blocks = rest[: len(kernel)], rest[len(kernel) :]
    group, within = divided(channel_out, channels_per_group)
    conditions = _reaching(site, blocks, offsets, pixel)
    channel_in = group.times(per_group) + channel
    weight = site.read(1, (channel_in, within, *offsets))
    image = site.read(0, (n, channel_in, *blocks), bare=True)
    product = site.forms.op("Mul", weight, image)
    return site.forms.total(own, site.forms.guard(conditions, product))


@operator("GridSample")
@operator("GridSample", domain="com.microsoft")
def grid_sample(site: Site) -> Result:
    n, c, *pixel = site.index
    over = tuple(Variable(f"image {k}", size) for k, size in enumerate(site.shape_of(0)[2:]))
    image: Index = (n, c, *map(along, over))
    body = site.read(0, image, bare=True)
    first: Position = number(0) if site.shape_of(1)[0] == 1 else n
    rows_first = reversed(range(len(pixel)))
    coordinates = tuple(site.read(1, (first, *pixel, number(k))) for k in rows_first)
    defaults = {"mode": "linear", "padding_mode": "zeros", "align_corners": 0}
    settings = [site.attributes.get(name, default) for name, default in defaults.items()]
    texts = (s.decode() if isinstance(s, bytes) else str(s) for s in settings)
    return site.forms.sample(over, body, coordinates, tuple(texts))
