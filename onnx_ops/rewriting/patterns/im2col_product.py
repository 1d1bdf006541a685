"""Windows that are only multiplied and added up, as one Im2ColProduct: local attention, correlation
and cost volumes, CARAFE.

    y = scale * sum over channels, or over positions k, of
        factors[.., l] * x[n, c, stride * l + dilation * k - begin]

in any order of axes, and whichever nodes move the elements. The digits of all indices are what the
operator's axes consist of: images n, channels c, positions k in a block, blocks l; and e, those of
the factors alone, along which the image is repeated.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from ..arranging import Chain
from ..finding import NearMiss
from ..graph import FLOATS, Graph
from ..reading.affine import (
    Digit,
    Dimension,
    Index,
    Variable,
    as_int,
    digits_of,
    number,
    variables_of,
)
from ..reading.digits import digits_along, is_all, joined_digits, refined, size_along
from ..reading.forms import Form, Guard, Sum
from ..reading.reader import Reader, axes_of
from ..windows import (
    Window,
    are_written_out,
    between,
    blocks_position,
    check_uses,
    crops,
    factors_of,
    flipped,
    moving_axes,
    occurrences_of,
    spacings,
    types_of,
    window,
    windowed_axes,
)

if TYPE_CHECKING:
    from ..reading.reader import GraphView

NAME = "unfold_product"
MATRICES = {"Einsum", "FusedMatMul", "Gemm", "MatMul"}  # types of nodes that multiply matrices


@dataclass(frozen=True)
class Roles:
    """What digits are to an Im2ColProduct, the most significant ones first.

    sum_over  "channels" or "kernel"
    n         those of the images
    e         those of the factors alone
    c         those of the channels
    groups    those of the channels that are groups
    k         those of the positions in a block
    """

    sum_over: str
    n: list[Digit]
    e: list[Digit]
    c: list[Digit]
    groups: list[Digit]
    k: list[Digit]

    @property
    def factors(self) -> list[Digit]:
        """The digits of the second axis of the factors."""
        rest = self.c if self.sum_over == "channels" else [*self.groups, *self.k]
        return [*self.e, *rest]

    @property
    def result(self) -> list[Digit]:
        """The digits of the second axis of the result."""
        rest = self.c if self.sum_over == "kernel" else [*self.groups, *self.k]
        return [*self.e, *rest]


@dataclass(frozen=True)
class Product:
    """An Im2ColProduct.

    value, index            the image, and the index of its element
    factors, factors_index  the factors, and the index of their element
    axes, windows           the image's axes, and a window for each of these
    roles                   of the digits
    scale                   by which the sum is multiplied
    dimensions              of the result
    """

    value: str
    index: Index
    factors: str
    factors_index: Index
    axes: list[int]
    windows: list[Window]
    roles: Roles
    scale: float
    dimensions: tuple[Dimension, ...]

    operator = "Im2ColProduct"

    @property
    def sources(self) -> tuple[str, str]:
        return self.value, self.factors

    def replacement(self, graph: Graph, node: onnx.NodeProto) -> dict[str, Any]:
        group = math.prod(digit.size for digit in (*self.roles.e, *self.roles.groups))
        if not isinstance(group, int):
            raise NearMiss("the number of its groups is open")
        n, l = joined_digits(self.roles.n), blocks_position(self.windows)
        image = Chain(graph, node, self.value, self.sources)
        image.as_images(self.axes)
        image.crop(2, crops(self.windows))
        self._repeat(image)
        factors = Chain(graph, node, self.factors, self.sources)
        factors.arrange(
            self.factors_index, (n, joined_digits(self.roles.factors), l), self._flips("kernel")
        )
        self._scale(factors)
        chain = Chain(graph, node, image.value(), self.sources)
        result_index = (n, joined_digits(self.roles.result), l)
        chain.then(
            self.operator,
            [factors.value()],
            [*map(size_along, result_index)],
            domain="onnx_ops",
            kernel_shape=[axis_window.kernel_size for axis_window in self.windows],
            group=group,
            sum_over=self.roles.sum_over,
            **spacings(self.windows),
        )
        chain.arrange(result_index, axes_of(self.dimensions), self._flips("channels"))
        return chain.last()

    def _flips(self, sum_over: str) -> list[Digit]:
        """Return the digits of kernels that run backwards, for the tensor that has them."""
        return flipped(self.windows) if self.roles.sum_over == sum_over else []

    def _repeat(self, image: Chain) -> None:
        """Repeat the channels of the image for what the factors alone have."""
        times = math.prod(as_int(digit.size) for digit in self.roles.e)
        if times != 1:
            repeats = [1, times, *[1] * len(self.windows)]
            n, c, *rest = image.dimensions
            tiled = image.graph.add_integers("repeats", *repeats)
            image.then("Tile", [tiled], [n, c * times, *rest])

    def _scale(self, factors: Chain) -> None:
        """Multiply the factors by the scale."""
        if self.scale == 1:
            return
        dtype = factors.graph.type(self.factors).dtype
        is_exact = math.frexp(abs(self.scale))[0] == 0.5
        if dtype.itemsize == 2 and not is_exact:
            raise NearMiss("16-bit factors would be rounded by the number that it is multiplied by")
        scale = factors.graph.add_constant("scale", np.array(self.scale, dtype))
        factors.then("Mul", [scale], factors.dimensions)


def match(reader: Reader, name: str, form: Form) -> Product | None:
    """Return the Im2ColProduct that a value is."""
    scale, outer = factors_of(form)
    match outer:
        case [Sum(over, body)] if not isinstance(body, Guard):
            outer_factors, inner = factors_of(body)
        case _:
            return None
    occurrences = [occurrences_of(reader, factor, name, over) for factor in inner]
    is_convolution = len(inner) == 1 or any(
        values and all(map(reader.graph.is_constant, values)) for values in occurrences
    )
    if is_convolution or not any(map(partial(_is_copied, reader.graph, name), occurrences)):
        return None
    if len(inner) != 2:
        raise NearMiss(f"it adds up products of {len(inner)} factors instead of two")
    check_uses(reader.graph, name, {value for values in occurrences for value in values})
    reasons = []
    for images, weights in (occurrences, occurrences[::-1]):
        for image, factors in itertools.product(images.items(), weights.items()):
            if not _moving_axes(image[1]) or reader.graph.is_constant(image[0]):
                continue
            try:
                return _product_of(reader, name, image, factors, over, scale * outer_factors)
            except NearMiss as miss:
                reasons.append(miss)
    raise reasons[0] if reasons else NearMiss("the factors are no value of the graph")


def _is_copied(graph: "GraphView", name: str, occurrences: Mapping[str, Index]) -> bool:
    """Return whether elements of a factor are read several times, or blocks that tile an axis are
    written out.
    """
    for value, index in occurrences.items():
        values = between(graph, name, {value}) & occurrences.keys()
        is_written = are_written_out(graph, values) or "Im2Col" in types_of(graph, values)
        is_tiled = is_written and _moving_axes(index)
        if is_tiled or windowed_axes(index):
            return True
    return False


def _moving_axes(index: Index) -> list[int]:
    """Return the axes that may have windows, not those of images and channels."""
    return sorted({*windowed_axes(index)} | ({*moving_axes(index)} - {0, 1}))


def _product_of(
    reader: Reader,
    name: str,
    image: tuple[str, Index],
    factors: tuple[str, Index],
    over: tuple[Variable, ...],
    scale: float,
) -> Product:
    graph, value = reader.graph, image[0]
    types = {graph.type(operand).elements for operand in (value, factors[0], name)}
    if len(types) > 1 or not types <= FLOATS:
        raise NearMiss("its elements are not known to be floats of one type")
    index, factors_index, _ = refined(image[1], factors[1], axes_of(reader.shape(name)))
    if windowed_axes(factors_index):
        raise NearMiss("both factors are windows")
    repeats = {*digits_of(factors_index)} - {*digits_of(index)}
    values = between(graph, name, {value, factors[0]})
    if repeats and not MATRICES.isdisjoint(types_of(graph, values)):
        raise NearMiss("a product of matrices, which reads each block several times, is faster")
    reasons = []
    for lead in _leads(index, over):
        try:
            if not all(is_all(index[axis], reader.shape(value)[axis]) for axis in lead):
                raise NearMiss(
                    "it has other axes than batch, channels and the image's, or a part of these"
                )
            roles = _roles(index, lead, factors_index, over)
            axes = [axis for axis in range(len(index)) if axis not in lead]
            sizes = reader.shape(value)
            windows = [window(index[axis], sizes[axis], roles.k) for axis in axes]
            if not any(operand.kernel and operand.block for operand in windows):
                raise NearMiss("it has no positions in blocks along an axis")
        except NearMiss as miss:
            reasons.append(miss)
        else:
            roles = replace(roles, k=[digit for operand in windows for digit in operand.kernel])
            fields = (value, index, factors[0], factors_index, axes, windows, roles)
            return Product(*fields, scale, reader.shape(name))
    raise reasons[0]


def _leads(index: Index, over: Sequence[Variable]) -> list[list[int]]:
    """Return which axes may be those of images and channels: further ones are of blocks of one
    position.
    """
    lead = [axis for axis in range(len(index)) if axis not in _moving_axes(index)]
    if len(lead) < 3:
        return [lead]
    rest = sorted(lead[1:], key=lambda axis: variables_of([index[axis]]).isdisjoint(over))
    return [[lead[0], axis] for axis in rest]


def _roles(index: Index, lead: Sequence[int], factors: Index, over: tuple[Variable, ...]) -> Roles:
    """Return the roles of digits, for the axes of images and channels. Raises NearMiss."""
    image = [
        digit
        for axis, position in enumerate(index)
        if axis not in lead
        for digit in digits_of([position])
    ]
    positions = [number(0)] * (2 - len(lead)) + [index[axis] for axis in lead]
    n, c = map(digits_along, positions)
    factor_digits = digits_of(factors)
    e = [digit for digit in factor_digits if digit not in digits_of(index)]
    k = [digit for digit in image if digit.variable in over or digit not in factor_digits]
    l = [digit for digit in image if digit not in k]
    summed = {digit for digit in (*n, *c, *image, *factor_digits) if digit.variable in over}
    own = [digit for digit in c if digit in factor_digits]
    if summed == {*k}:
        roles = Roles("kernel", n, e, c, c[: len(own)], k)
        if own != roles.groups or not {*k, *l} <= {*factor_digits}:
            raise NearMiss("the factors have other axes than batch, groups, positions and blocks")
        return roles
    groups = [digit for digit in c if digit not in summed]
    if not summed <= {*c} or groups != c[: len(groups)]:
        raise NearMiss(
            "it adds up over other axes than the channels of a group, or the positions of a block"
        )
    if not {*l, *summed} <= {*factor_digits}:
        raise NearMiss("the factors have other axes than batch, channels and blocks")
    return Roles("channels", n, e, c, groups, k)
