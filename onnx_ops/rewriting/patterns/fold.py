"""`torch.nn.functional.fold` written by other nodes, as one Col2Im.

    y[n, c, p] = sum over k, l with p = stride * l + dilation * k - begin of x[n, c, k, l]

The overlap-add of an inverse STFT is one: a transposed convolution with an identity as its kernel,
or an addition at constant places.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from ..arranging import Chain
from ..finding import NearMiss
from ..graph import Graph
from ..reading.affine import Dimension, Index, Position, Variable, digits_of
from ..reading.digits import joined
from ..reading.forms import Condition, Form, Guard, Sum
from ..reading.reader import Reader, axes_of
from ..reshapes import vector
from ..windows import (
    Window,
    between,
    columns_index,
    factors_of,
    flipped,
    kernel_size,
    occurrences_of,
    spacings,
    types_of,
    window,
)

NAME = "fold"
# Types of nodes that a fold is written with.
ADDERS = {
    "ConvTranspose",
    "ScatterElements",
    "ScatterND",
}
VERSION = 18  # of ai.onnx, the first with Col2Im


@dataclass(frozen=True)
class Fold:
    """A Col2Im.

    value       what is added up
    index       that of its element, over the axes of the result and what is summed
    axes        those of the result along which there are windows
    windows     one for each of these
    scale       by which the sum is multiplied
    dimensions  of the result
    """

    value: str
    index: Index
    axes: list[int]
    windows: list[Window]
    scale: float
    dimensions: tuple[Dimension, ...]

    operator = "Col2Im"

    @property
    def sources(self) -> tuple[str]:
        return (self.value,)

    def replacement(self, graph: Graph, node: onnx.NodeProto) -> dict[str, Any]:
        if not graph.can_import(VERSION):
            raise NearMiss(f"Col2Im needs version {VERSION} of ai.onnx")
        variables = axes_of(self.dimensions)
        lead = [axis for axis in range(len(variables)) if axis not in self.axes]
        n = joined((variables[axis], self.dimensions[axis]) for axis in lead[:-1])
        c = joined((variables[axis], self.dimensions[axis]) for axis in lead[-1:])
        chain = Chain(graph, node, self.value)
        target = columns_index(n, c, self.windows)
        chain.arrange(self.index, target, flipped(self.windows))
        image = [self.dimensions[axis] for axis in self.axes]
        channels = chain.dimensions[1]
        block_shape = [axis_window.kernel_size for axis_window in self.windows]
        if isinstance(channels, int):
            channels //= kernel_size(self.windows)
        chain.then(
            self.operator,
            [
                vector(graph, node, "image_shape", image, self.sources),
                graph.add_integers("block_shape", *block_shape),
            ],
            [chain.dimensions[0], self.dimensions[lead[-1]] if lead else 1, *image],
            version=VERSION,
            **spacings(self.windows),
        )
        if self.scale != 1:
            scale = np.array(self.scale, graph.type(self.value).dtype)
            chain.then("Mul", [graph.add_constant("scale", scale)], chain.dimensions)
        chain.arrange((n, c, *(variables[axis] for axis in self.axes)), variables)
        return chain.last()


def match(reader: Reader, name: str, form: Form) -> Fold | None:
    """Return the Col2Im that a value is."""
    scale, factors = factors_of(form)
    match factors:
        case [Sum(over, Guard(conditions, body))]:
            pass
        case _:
            return None
    if all(condition.relation != "==" for condition in conditions):
        return None
    outer_factors, addends = factors_of(body)
    if len(addends) != 1 or any(condition.relation != "==" for condition in conditions):
        raise NearMiss("what it adds up is not moved alone, or only a part of it")
    dimensions = reader.shape(name)
    occurrences = occurrences_of(reader, addends[0], name, over)
    if not occurrences:
        raise NearMiss("what it adds up is no value of the graph")
    value, index = next(iter(occurrences.items()))
    if ADDERS.isdisjoint(types_of(reader.graph, between(reader.graph, name, {value}))):
        return None
    sources = dict(sorted(_sources(conditions, over, len(dimensions))))
    windows = [
        _window_along(position, dimensions[axis], index) for axis, position in sources.items()
    ]
    summed = [digit for digit in digits_of(index) if digit.variable in over]
    if any(pad < 0 for axis_window in windows for pad in (axis_window.begin, axis_window.end)):
        raise NearMiss("it leaves out elements, or adds to a part of its result only")
    used = {digit for axis_window in windows for digit in (*axis_window.kernel, *axis_window.block)}
    if {*summed} != used or len(summed) != len({*summed}):
        raise NearMiss("it also adds up over what is no position of a block")
    return Fold(value, index, [*sources], windows, scale * outer_factors, dimensions)


def _sources(
    conditions: frozenset[Condition], over: tuple[Variable, ...], rank: int
) -> Iterator[tuple[int, Position]]:
    """Yield (axis of the result, the position along it to which an element is added)."""
    for condition in conditions:
        free = [term for term in condition.position.terms if term.variable not in over]
        if len(free) > 1 or any(not t.is_whole or t.step not in (1, -1) for t in free):
            raise NearMiss("where it adds up isn't an axis of the output")
        axis = int(free[0].variable.name) if free else rank - 1
        position = condition.position - Position(0, tuple(free))
        yield axis, position.times(-1) if free and free[0].step == 1 else position


def _window_along(position: Position, size: Dimension, index: Index) -> Window:
    """Return the window of a position along an axis of the result, for whichever digit may be the
    kernel's.
    """
    digits = [digit for digit in digits_of(index) if digit in digits_of([position])]
    reason = NearMiss("where it adds up depends on nothing that it adds up")
    for count in range(1, len(digits)) if len(digits) > 1 else (1, 0):
        try:
            return window(position, size, digits[:count])
        except NearMiss as miss:
            reason = miss
    raise reason
