"""The numbers that forms are, for numbers in place of variables, open sizes and roots."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from ..sizes import evaluated
from .affine import Array, Dimension, Position, Unknown, Variable
from .forms import FORMULAS, Element, Form, Guard, Number, Op, Sample, Sum, Whole
from .reader import Reader

MOST_TERMS = 20_000  # of a sum
MOST_STEPS = 100_000  # forms that are evaluated


class Evaluation:
    """Evaluates forms at many points.

    values   {name of a variable: its numbers at the points}
    source   (root, index) -> elements of a value that is no constant
    unknown  an open size's name -> a number
    count    the number of points
    known    {form: its numbers}, of what isn't evaluated
    """

    def __init__(
        self,
        reader: Reader,
        values: Mapping[str, Array],
        source: Callable[[str, list[Array]], Array],
        unknown: Callable[[str], int],
        count: int,
        known: Mapping[Form, Array] | None = None,
    ):
        self.reader = reader
        self.values = dict(values)
        self.source = source
        self.unknown = unknown
        self.count = count
        self.memo: dict[Form, Array] = dict(known or {})
        self.steps = [MOST_STEPS]  # that are left, also to what is evaluated within it

    def size(self, size: Dimension) -> int:
        """Return a size as a number."""
        return evaluated(size, self.unknown)

    def value(self, form: Form) -> Array:
        """Return the numbers that a form is. Raises Unknown."""
        if form not in self.memo:
            self.steps[0] -= 1
            if self.steps[0] < 0:
                raise Unknown("it takes too long to evaluate: the indices")
            with np.errstate(all="ignore"):
                self.memo[form] = self._value(form)
        return self.memo[form]

    def _value(self, form: Form) -> Array:
        match form:
            case Number(value):
                return np.asarray(value)
            case Whole(position):
                return self.position(position)
            case Element(root, index):
                return self.element(root, [self.position(position) for position in index])
            case Op(op, operands):
                return FORMULAS[op](*map(self.value, operands)) * 1.0
            case Guard():
                return np.where(self._holds(form), self.value(form.body), 0)
            case Sum(over, body):
                return self._sum(over, body)
            case Sample():
                return self._sample(form)
        raise Unknown("a form")

    def _holds(self, guard: Guard) -> Array:
        holds = np.asarray(True)
        for relation, position in guard.conditions:
            numbers = self.position(position)
            holds = holds & (numbers >= 0 if relation == ">=" else numbers == 0)
        return holds

    def _sum(self, over: tuple[Variable, ...], body: Form) -> Array:
        sizes = [self.size(variable.size) for variable in over]
        if math.prod(sizes) > MOST_TERMS:
            raise Unknown("a sum of too many terms")
        names = [variable.name for variable in over]
        total = np.zeros(self.count)
        for numbers in itertools.product(*map(range, sizes)):
            total = total + self._within(dict(zip(names, numbers, strict=True))).value(body)
        return total

    def _within(self, values: Mapping[str, Array | int]) -> "Evaluation":
        """Return the evaluation with numbers for more variables."""
        inner_values = self.values | {name: np.asarray(numbers) for name, numbers in values.items()}
        inner = Evaluation(self.reader, inner_values, self.source, self.unknown, self.count)
        inner.steps = self.steps
        return inner

    def _sample(self, form: Sample) -> Array:
        mode, padding_mode, align_corners = form.settings
        if mode not in ("bilinear", "linear", "nearest") or padding_mode not in ("zeros", "border"):
            raise Unknown("a mode")
        sizes = [self.size(variable.size) for variable in form.over]
        points = [
            pixel_of(
                np.broadcast_to(self.value(coordinate), self.count), size, align_corners == "1"
            )
            for coordinate, size in zip(form.coordinates, sizes, strict=True)
        ]
        names = [variable.name for variable in form.over]

        def image(pixels: list[Array]) -> Array:
            inside = are_inside(pixels, sizes)
            own = [np.where(inside, i, 0) for i in pixels]
            inner = self._within(dict(zip(names, own, strict=True)))
            return np.where(inside, inner.value(form.body), 0)

        return interpolated(image, points, sizes, mode, padding_mode)

    def element(self, root: str, index: list[Array]) -> Array:
        """Return elements of a root."""
        array = constant_of(self.reader, root)
        return self.source(root, index) if array is None else looked_up(array, index)

    def position(self, position: Position) -> Array:
        """Return the numbers that a position is. Raises Unknown."""
        total = np.asarray(self.size(position.start))
        for variable, inner, size, step in position.terms:
            digit = self.variable(variable) // self.size(inner) % self.size(size)
            total = total + digit * self.size(step)
        return total

    def variable(self, variable: Variable) -> Array:
        """Return the numbers of a variable.

        Raises Unknown if a picked one may lie outside of its axis.
        """
        if variable not in self.reader.forms.picks:
            return self.values[variable.name]
        numbers = self.value(self.reader.forms.picks[variable])
        size = self.size(variable.size)
        if not np.isfinite(numbers).all() or numbers.min() < -size or numbers.max() >= size:
            raise Unknown("it may read outside")
        return np.where(numbers < 0, numbers + size, numbers).astype(np.int64)


def constant_of(reader: Reader, root: str) -> Array | None:
    """Return the elements of a root that is a constant."""
    table = reader.forms.tables.get(root)
    return reader.graph.array(root) if table is None else table


def looked_up(array: Array, index: Sequence[Array]) -> Array:
    """Return elements of an array, 0 outside."""
    limited = [
        np.clip(position, 0, max(size - 1, 0))
        for position, size in zip(index, array.shape, strict=True)
    ]
    return np.where(are_inside(index, array.shape), array[tuple(limited)], 0)


def are_inside(index: Sequence[Array], sizes: Iterable[int]) -> Array | int:
    """Return where an index lies inside of a shape; 1 if that has no axes."""
    return math.prod(
        [(position >= 0) & (position < size) for position, size in zip(index, sizes, strict=True)]
    )


def pixel_of(coordinate: Array, size: int, align_corners: bool) -> Array:
    """Return the pixel coordinate of a coordinate in [-1, 1]."""
    return (coordinate + 1) / 2 * (size - 1) if align_corners else ((coordinate + 1) * size - 1) / 2


def interpolated(
    image: Callable[[list[Array]], Array],
    points: Sequence[Array],
    sizes: Sequence[int],
    mode: str,
    padding_mode: str,
) -> Array:
    """Return an image at points. image: pixels -> elements, 0 outside."""
    if padding_mode == "border":
        points = [np.clip(p, 0, size - 1) for p, size in zip(points, sizes, strict=True)]
    if mode == "nearest":
        return image([np.rint(p).astype(np.int64) for p in points])
    floors = [np.floor(p).astype(np.int64) for p in points]
    total = np.zeros(())
    for corner in itertools.product((0, 1), repeat=len(points)):
        pixels = [floor + c for floor, c in zip(floors, corner, strict=True)]
        weights = [1 - np.abs(p - k) for p, k in zip(points, pixels, strict=True)]
        if padding_mode == "border":
            pixels = [np.clip(k, 0, size - 1) for k, size in zip(pixels, sizes, strict=True)]
        total = total + math.prod(weights) * image(pixels)
    return total
