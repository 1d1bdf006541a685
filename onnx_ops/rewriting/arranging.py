"""Nodes that bring the elements of a value into other axes.

Where an element is in a value, and where it shall be, are indices of digits of the same variables.
All operators that are found get their inputs, and give their results, by this one way.
"""

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import onnx

from .finding import NearMiss
from .gain import COSTS, FLIP
from .graph import Graph
from .reading.affine import Digit, Dimension, Index, Position, digits_of
from .reading.digits import digits_along, digits_in, refined, single, size_along
from .reshapes import reshape, vector

BEFORE_FIRST = -(2**31)  # an end of a Slice that takes the first element, too


class Chain:
    """Nodes one after the other before a node of the graph. The last one isn't added yet: it may
    replace that node.

    name        the value that the chain begins with, and after `value` the one that it makes
    dimensions  the sizes of what it makes
    cost        of the nodes after the first value, in nanoseconds for each element of what it makes
    open_in     values that may have axes of open sizes
    """

    def __init__(
        self, graph: Graph, node: onnx.NodeProto, name: str, open_in: Collection[str] = ()
    ):
        self.graph = graph
        self.node = node
        self.name = name
        self.dimensions: tuple[Dimension, ...] = graph.type(name).shape or ()
        self.open_in = open_in
        self.cost = 0.0
        self._pending: dict[str, Any] | None = None

    def then(
        self,
        op_type: str,
        inputs: Sequence[str],
        dimensions: Sequence[Dimension],
        **arguments: Any,
    ) -> None:
        """Add a node that makes a value of these dimensions; `inputs` follow what the chain has
        made.
        """
        name = self.value()
        self._pending = {"op_type": op_type, "inputs": [name, *inputs], **arguments}
        self.dimensions = tuple(dimensions)
        self.cost += COSTS.get(op_type, 0.0)

    def value(self) -> str:
        """Return the name of the value that the chain makes, with all nodes added."""
        if self._pending is not None:
            self.name = self.graph.add_node(self.node, **self._pending)
            self._pending = None
        return self.name

    def last(self) -> dict[str, Any]:
        """Return the arguments of `Graph.replace` that make the last node of the chain."""
        if self._pending is None:
            self.then("Identity", [], self.dimensions)
        return self._pending or {}

    def arrange(self, source: Index, target: Index, flipped: Collection[Digit] = ()) -> None:
        """Bring the element at each index `source` to the index `target`.

        source, target  numbers or digits of variables, along each axis
        flipped         digits that run backwards in the source

        Raises NearMiss if the source's axes have other elements, too, that can't be cut off.
        """
        *indices, extra = refined(source, target, tuple(map(single, flipped)))
        source, target = indices
        source = self._cut(source)
        has = digits_of(source)
        wanted = digits_in(target)
        if len({*has}) < len(has):
            raise NearMiss("an index occurs twice, as on a diagonal")
        if not {*has} <= {*wanted}:
            raise NearMiss("it is added up, or has axes that its result lacks")
        apart = digits_in(source)
        missing = [digit for digit in wanted if digit not in apart]
        order = [[*apart, *missing].index(digit) for digit in wanted]
        backwards = [apart.index(digit) for digit in digits_of(extra) if digit in apart]
        if missing or backwards or order != sorted(order):
            self.reshape([digit.size for digit in apart] + [1] * len(missing))
            self._flip(backwards)
            self.transpose(order)
        if missing:
            self._expand([digit.size for digit in wanted], [*map(missing.__contains__, wanted)])
        self.reshape([tuple(digit.size for digit in digits_along(position)) for position in target])

    def _cut(self, source: Index) -> Index:
        """Take the elements of the source out of the value along axes that have more of them."""
        kept: list[Position] = []
        for axis in reversed(range(len(source))):
            position = source[axis]
            size = size_along(position)
            if not position.terms and self.dimensions[axis] != 1:
                self._gather(axis, position.start)
                continue
            if position.terms and (position.start != 0 or self.dimensions[axis] != size):
                self._slice(axis, position.start, size)
            kept.insert(0, Position(0, position.terms))
        return tuple(kept)

    def _gather(self, axis: int, position: Dimension) -> None:
        if not isinstance(position, int):
            raise NearMiss("where an element is read depends on an open size")
        rest = (*self.dimensions[:axis], *self.dimensions[axis + 1 :])
        self.then(
            "Gather", [self.graph.add_constant("position", np.array(position))], rest, axis=axis
        )

    def crop(self, first: int, cuts: Sequence[tuple[int, int]]) -> None:
        """Cut off so many elements at the begins and ends of axes, from the first one on."""
        for axis, (begin, end) in enumerate(cuts, first):
            if begin or end:
                self._slice(axis, begin, self.dimensions[axis] - begin - end)

    def _slice(self, axis: int, start: Dimension, size: Dimension) -> None:
        if not (isinstance(start, int) and isinstance(size, int)):
            raise NearMiss("the part of an axis that is read depends on an open size")
        rest = (*self.dimensions[:axis], size, *self.dimensions[axis + 1 :])
        self.then("Slice", self._integers(start, start + size, axis), rest)

    def _flip(self, axes: Sequence[int]) -> None:
        for axis in axes:
            self.then("Slice", self._integers(-1, BEFORE_FIRST, axis, -1), self.dimensions)
            self.cost += FLIP

    def _integers(self, *integers: int) -> list[str]:
        """Return the names of constants, vectors of one integer each."""
        return [self.graph.add_integers("cut", integer) for integer in integers]

    def as_images(self, axes: Sequence[int], is_batch: bool = False) -> None:
        """Bring these axes last, and the others before them into two: images and channels.

        is_batch  whether a single other axis is that of images
        """
        rest = [axis for axis in range(len(self.dimensions)) if axis not in axes]
        self.transpose([*rest, *axes])
        if len(rest) < 2:
            added = [1] if is_batch and rest else [*range(2 - len(rest))]
            self.name = self.graph.add_axes(self.node, self.value(), *added)
            dimensions = [*self.dimensions]
            for axis in added:
                dimensions.insert(axis, 1)
            self.dimensions = tuple(dimensions)
        else:
            images, channels = self.dimensions[: len(rest) - 1], self.dimensions[len(rest) - 1]
            self.reshape([images, channels, *self.dimensions[len(rest) :]])

    def transpose(self, order: Sequence[int]) -> None:
        """Bring axes into another order."""
        if [*order] != sorted(order):
            dimensions = [self.dimensions[axis] for axis in order]
            self.then("Transpose", [], dimensions, perm=[*order])

    def _expand(self, dimensions: Sequence[Dimension], repeated: Sequence[bool]) -> None:
        """Repeat the elements along axes of one element."""
        sizes = [
            size if is_repeated else 1
            for size, is_repeated in zip(dimensions, repeated, strict=True)
        ]
        target = vector(self.graph, self.node, "sizes", sizes, self._open_in())
        self.then("Expand", [target], dimensions)

    def reshape(self, dimensions: Sequence[Dimension | tuple[Dimension, ...]]) -> None:
        """Give the value other dimensions. A tuple is the product of its sizes."""
        sizes = [math.prod(d) if isinstance(d, tuple) else d for d in dimensions]
        if self.dimensions == tuple(sizes):
            return
        arguments = reshape(self.graph, self.node, self.value(), dimensions, self._open_in())
        self._pending = {"op_type": "Reshape", **arguments}
        self.dimensions = tuple(sizes)

    def _open_in(self) -> tuple[str, ...]:
        return (self.name, *self.open_in)
