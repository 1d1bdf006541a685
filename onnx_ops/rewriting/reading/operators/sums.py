"""Rules of operators that add up, and of GridSample."""

import math
from collections.abc import Sequence

from ...sizes import quotient
from ..affine import Dimension, Index, Position, Unknown, Variable, along, divided, number
from ..forms import Condition, Sum, inside
from ..reader import Made, Site
from .moves import broadcast
from .table import operator


@operator("ReduceSum", "ReduceMean")
def reduce(site: Site) -> Made:
    dimensions = site.shape_of(0)
    axes = _reduced_axes(site, len(dimensions))
    own = {axis: site.fresh(dimensions[axis], k) for k, axis in enumerate(axes)}
    index = [*site.index]
    keeps = site.attributes.get("keepdims", 1)
    for axis, variable in own.items():
        index[axis : axis + bool(keeps)] = [along(variable)]
    total = site.forms.total([*own.values()], site.read(0, index))
    if site.node.op_type == "ReduceSum":
        return total
    count = site.forms.whole(number(math.prod(variable.size for variable in own.values())))
    return site.forms.op("Div", total, count)


def _reduced_axes(site: Site, rank: int) -> list[int]:
    axes: Sequence[Dimension] = site.attributes.get("axes", ())
    if site.has(1):
        axes = site.integers(1)
    if not axes and site.attributes.get("noop_with_empty_axes"):
        return []
    return sorted({axis % rank for axis in axes or range(rank) if isinstance(axis, int)})


@operator("MatMul", "com.microsoft.FusedMatMul")
def matmul(site: Site) -> Made:
    stated = site.attributes
    if stated.get("alpha", 1) != 1 or stated.get("transBatchA") or stated.get("transBatchB"):
        return None
    turned = [bool(stated.get(name)) for name in ("transA", "transB")]
    own = site.fresh(site.shape_of(0)[-2 if turned[0] else -1])
    *batch, row, column = site.index
    factors = []
    for k, pair in enumerate([(row, along(own)), (along(own), column)]):
        last = pair[::-1] if turned[k] else pair
        factors.append(site.read(k, broadcast((*batch, *last), site.shape_of(k))))
    return site.forms.total([own], site.forms.op("Mul", *factors))


@operator("Einsum")
def einsum(site: Site) -> Made:
    terms, result = _equation(site)
    places = dict(zip(result, site.index, strict=True))
    own: list[Variable] = []
    for k, term in enumerate(terms):
        for letter, length in zip(term, site.shape_of(k), strict=True):
            if letter not in places:
                own.append(site.fresh(length, len(own)))
                places[letter] = along(own[-1])
    indices = [[places[letter] for letter in term] for term in terms]
    product, *factors = [
        site.read(k, broadcast(tuple(index), site.shape_of(k))) for k, index in enumerate(indices)
    ]
    for factor in factors:
        product = site.forms.op("Mul", product, factor)
    return site.forms.total(own, product)


def _equation(site: Site) -> tuple[list[str], str]:
    """Return the letters of the axes of the inputs, and those of the output. Dots become digits as letters."""
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
def conv(site: Site) -> Made:
    """Of kernels that may have a single 1 for each channel of the output: others are roots."""
    channels_out, channels_per_group, *kernel = site.shape_of(1)
    channels = site.shape_of(0)[1]
    if channels_out != channels * math.prod(kernel) or len(site.node.input) > 2:
        return None
    n, channel_out, *pixel = site.index
    own = [site.fresh(size, k) for k, size in enumerate((channels_per_group, *kernel))]
    channel, *offsets = map(along, own)
    image = [
        at.times(stride) + offset.times(dilation) - number(begin)
        for at, offset, (stride, dilation, begin) in zip(
            pixel, offsets, _windows(site, len(kernel)), strict=True
        )
    ]
    group, _ = divided(channel_out, quotient(channels_out, site.attributes.get("group", 1)))
    index = (n, group.times(channels_per_group) + channel, *image)
    body = site.forms.guard(inside(index, site.shape_of(0)), site.read(0, index, bare=True))
    weight = site.read(1, (channel_out, channel, *offsets))
    total = site.forms.total(own, site.forms.op("Mul", weight, body))
    return None if isinstance(total, Sum) else total


@operator("ConvTranspose")
def conv_transpose(site: Site) -> Made:
    """Of kernels that may have a single 1 for each channel of the input: others are roots."""
    channels, channels_per_group, *kernel = site.shape_of(1)
    groups = site.attributes.get("group", 1)
    if channels != groups * channels_per_group * math.prod(kernel) or len(site.node.input) > 2:
        return None
    n, channel_out, *pixel = site.index
    sizes = (quotient(channels, groups), *kernel, *site.shape_of(0)[2:])
    own = [site.fresh(size, k) for k, size in enumerate(sizes)]
    channel, *rest = map(along, own)
    offsets, blocks = rest[: len(kernel)], rest[len(kernel) :]
    group, within = divided(channel_out, channels_per_group)
    conditions = [
        Condition("==", block.times(stride) + offset.times(dilation) - number(begin) - at)
        for at, offset, block, (stride, dilation, begin) in zip(
            pixel, offsets, blocks, _windows(site, len(kernel)), strict=True
        )
    ]
    channel_in = group.times(quotient(channels, groups)) + channel
    weight = site.read(1, (channel_in, within, *offsets))
    image = site.read(0, (n, channel_in, *blocks), bare=True)
    product = site.forms.op("Mul", weight, image)
    return site.forms.total(own, site.forms.guard(conditions, product))


def _windows(site: Site, axes: int) -> list[tuple[int, int, int]]:
    """Return (stride, dilation, begin) along each axis. Raises Unknown."""
    if site.attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
        raise Unknown("pads that the operator chooses")
    strides = site.attributes.get("strides", [1] * axes)
    dilations = site.attributes.get("dilations", [1] * axes)
    pads = site.attributes.get("pads", [0] * 2 * axes)
    return [*zip(strides, dilations, pads[:axes], strict=True)]


@operator("GridSample", "com.microsoft.GridSample")
def grid_sample(site: Site) -> Made:
    n, c, *pixel = site.index
    over = tuple(Variable(f"image {k}", size) for k, size in enumerate(site.shape_of(0)[2:]))
    image: Index = (n, c, *map(along, over))
    body = site.read(0, image, bare=True)
    first: Position = number(0) if site.shape_of(1)[0] == 1 else n
    rows_first = reversed(range(len(pixel)))
    place = tuple(site.read(1, (first, *pixel, number(k))) for k in rows_first)
    given = {"mode": "linear", "padding_mode": "zeros", "align_corners": 0} | site.attributes
    settings = [given[name] for name in ("mode", "padding_mode", "align_corners")]
    texts = (s.decode() if isinstance(s, bytes) else str(s) for s in settings)
    return site.forms.sample(over, body, place, tuple(texts))
