"""`torch.nn.functional.unfold` and `torch.Tensor.unfold`, for which ONNX has no operator, as one
Im2Col.

    y[.., c, k, l] = x[n, c, stride * l + dilation * k - begin]

in any order of axes, and whichever nodes write it: a table of indices, slices that are stacked,
writes in place, or a convolution with an identity as its kernel.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from ..arranging import Chain
from ..finding import NearMiss
from ..gain import cost_of
from ..graph import Graph
from ..reading.affine import Digit, Dimension, Index, Position, digits_of
from ..reading.digits import is_all, joined
from ..reading.forms import Element, Form
from ..reading.reader import Reader, axes_of
from ..windows import (
    Window,
    are_written_out,
    between,
    check_uses,
    columns_index,
    crops,
    flipped,
    kernel_size,
    moving_axes,
    occurrences_of,
    reaches,
    spacings,
    window,
)

NAME = "unfold"


@dataclass(frozen=True)
class Unfold:
    """An Im2Col.

    value       the image
    index       that of its element, over the axes of the result
    axes        those of the image along which there are windows
    windows     one for each of these
    dimensions  of the result
    cost        of the nodes that make it
    """

    value: str
    index: Index
    axes: list[int]
    windows: list[Window]
    dimensions: tuple[Dimension, ...]
    cost: float

    operator = "Im2Col"

    @property
    def sources(self) -> tuple[str]:
        return (self.value,)

    def replacement(self, graph: Graph, node: onnx.NodeProto) -> dict[str, Any]:
        chain = Chain(graph, node, self.value)
        sizes = chain.dimensions
        chain.as_images(self.axes, is_batch=True)
        chain.crop(2, crops(self.windows))
        lead = [axis for axis in range(len(self.index)) if axis not in self.axes]
        n = joined((self.index[axis], sizes[axis]) for axis in lead[: max(len(lead) - 1, 1)])
        c = joined((self.index[axis], sizes[axis]) for axis in lead[1:][-1:])
        blocks = math.prod(axis_window.block_count for axis_window in self.windows)
        columns = [chain.dimensions[0], chain.dimensions[1] * kernel_size(self.windows), blocks]
        kernel_shape = [axis_window.kernel_size for axis_window in self.windows]
        chain.then(
            self.operator,
            [],
            columns,
            domain="onnx_ops",
            kernel_shape=kernel_shape,
            **spacings(self.windows),
        )
        index = columns_index(n, c, self.windows)
        chain.arrange(index, axes_of(self.dimensions), flipped(self.windows))
        if chain.cost >= self.cost:
            raise NearMiss("its nodes copy elements as fast as an Im2Col would")
        return chain.last()


def match(reader: Reader, name: str, form: Form) -> Unfold | None:
    """Return the Im2Col that a value is."""
    if not isinstance(form, Element):
        return None
    reasons = []
    occurrences = occurrences_of(reader, form, name)
    for value in sorted(occurrences, key=lambda value: reader.order.get(value, -1)):
        try:
            result = _unfold(reader, name, value, occurrences)
        except NearMiss as miss:
            reasons.append(miss)
        else:
            if result is not None:
                return result
    if reasons:
        raise reasons[0]
    return None


def _unfold(
    reader: Reader, name: str, value: str, occurrences: Mapping[str, Index]
) -> Unfold | None:
    """Return the Im2Col of an image that a value is. occurrences: {value: index} on the way between
    them, and others.
    """
    graph, index, dimensions = reader.graph, occurrences[value], reader.shape(name)
    axes = moving_axes(index)
    values = between(graph, name, {value})
    copied = {name, *(values & occurrences.keys())}
    if not axes or not are_written_out(graph, copied) or not reaches(graph, values, value):
        return None
    element_type = graph.type(name).elements
    if 0 in dimensions or graph.type(value).elements != element_type:
        return None
    if graph.is_constant(value):
        raise NearMiss(f"{value} is constant: ONNX Runtime computes it once")
    check_uses(graph, name, [value])
    cost = cost_of(
        graph, [operand for operand in values if graph.type(operand).elements == element_type], name
    )
    windows = _windows(reader.shape(value), index, axes)
    return Unfold(value, index, _image_axes(index, axes), windows, dimensions, cost)


def _image_axes(index: Index, axes: list[int]) -> list[int]:
    """Return the axes of an image: those with windows and, after two others, all."""
    return axes if len(index) - len(axes) < 3 else sorted({*axes, *range(2, len(index))})


def _windows(sizes: Sequence[Dimension], index: Index, moving: list[int]) -> list[Window]:
    """Return the windows along the axes of an image. Raises NearMiss."""
    axes = _image_axes(index, moving)
    digits = digits_of(index)
    if any(
        not is_all(position, sizes[axis]) for axis, position in enumerate(index) if axis not in axes
    ):
        raise NearMiss("it has other axes than batch, channels and the image's, or a part of these")
    if len({*digits}) < len(digits):
        raise NearMiss("an index occurs twice, as on a diagonal")
    reasons: list[NearMiss] = []
    choices = []
    for kernel_first in (True, False):
        try:
            pairs = ((axis, index[axis]) for axis in axes)
            choices.append(
                [_window(position, sizes[k], k in moving, kernel_first) for k, position in pairs]
            )
        except NearMiss as miss:
            reasons.append(miss)
    if not choices:
        raise reasons[0]
    return min(choices, key=lambda windows: [*map(sum, crops(windows))])


def _window(position: Position, size: Dimension, moves: bool, kernel_first: bool) -> Window:
    """Return the window along an axis, whichever digits are the kernel's. Raises NearMiss.

    moves         whether there are a kernel and blocks
    kernel_first  whether the kernel's digits are the earlier ones
    """
    digits = _in_order(digits_of([position]))
    reasons: list[NearMiss] = []
    choices = []
    for count in range(1, len(digits)) if moves else (0, len(digits)):
        try:
            choices.append(
                window(position, size, digits[:count] if kernel_first else digits[count:])
            )
        except NearMiss as miss:
            reasons.append(miss)
    if not choices:
        raise reasons[0]
    return min(choices, key=lambda choice: sum(*crops([choice])))


def _in_order(digits: Iterable[Digit]) -> list[Digit]:
    """Return digits in the order of the axes of the result, the most significant one of an axis
    first.
    """
    return sorted(digits, key=lambda d: (int(d.variable.name), -_as_number(d.inner)))


def _as_number(size: Dimension) -> float:
    return size if isinstance(size, int) else float("inf")
