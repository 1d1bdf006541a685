"""Deformable attention: weighted sums of samples of one or several levels, as one
MultiScaleDeformableAttention.

    y[n, q, m, d] = scale * sum over l, p of  weights[n, q, m, l, p] * sample[n, m, d, l, p]
    where sample is that of level l of value[n, :, m, d] at 2 * locations[n, q, m, l, p] - 1

n (batch), q (queries), m (heads), d (channels), l (levels) and p (points) are digits of the axes of
what is summed, in any order and whichever nodes move the elements. The levels are parts of one axis
of a value, or one is a whole image.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx

from ..arranging import Chain
from ..finding import NearMiss
from ..graph import FLOATS, Graph
from ..reading.affine import (
    Array,
    Dimension,
    Index,
    Position,
    Unknown,
    Variable,
    along,
    digits_of,
    number,
    variables_of,
)
from ..reading.digits import (
    digits_along,
    digits_in,
    is_plain,
    joined,
    joined_digits,
    refined,
    size_along,
)
from ..reading.evaluation import Evaluation
from ..reading.forms import (
    Element,
    Form,
    Op,
    Sample,
    is_number,
    positions_in,
)
from ..reading.reader import Reader, axes_of
from ..reading.rolling import rolled_index
from ..shapes import UNKNOWN
from ..weighted_samples import Term, weighted_samples
from ..windows import occurrences_before

DOMAIN, OPERATOR = "onnx_ops", "MultiScaleDeformableAttention"
NAME = "deformable_attention"
LEVELS = 8  # the most that the operator takes
SUMS = "ReduceSum", "ReduceMean"
SETTINGS = {
    "mode": ("linear", "bilinear"),
    "padding_mode": ("zeros",),
    "align_corners": ("0",),
}
MOST_NUMBERS = 2**22  # of a constant that is worked out
Rows = Sequence[Sequence[Form]]  # of levels, for each of these one form or two
COORDINATE = Variable("coordinate", 2)


@dataclass(frozen=True)
class Stored:
    """Elements of a value of the graph, or of a constant that is made."""

    name: str
    index: Index
    array: Array | None = None

    def value(
        self, graph: Graph, node: onnx.NodeProto, target: Index, sources: Collection[str]
    ) -> str:
        """Return the name of a value with these elements at an index."""
        if self.array is not None:
            return graph.add_constant(self.name, self.array)
        chain = Chain(graph, node, self.name, sources)
        chain.arrange(self.index, target)
        return chain.value()


@dataclass(frozen=True)
class Axes:
    """The axes of the operator's tensors, as positions along digits."""

    n: Position
    q: Position
    m: Position
    d: Position
    levels: Position
    points: Position

    @property
    def over(self) -> Index:
        """The index of a weight."""
        return self.n, self.q, self.m, self.levels, self.points


@dataclass(frozen=True)
class Attention:
    """A MultiScaleDeformableAttention.

    levels  heights and widths
    pixels  the position along the pixels of all levels
    divisor  of the weights
    result  the index into the value that it computes
    """

    image: Stored
    locations: Stored
    weights: Stored
    levels: tuple[int, ...]
    pixels: Position
    axes: Axes
    divisor: float
    result: Index

    operator = OPERATOR

    @property
    def sources(self) -> Collection[str]:
        stored = self.image, self.locations, self.weights
        return [tensor.name for tensor in stored if tensor.array is None]

    def replacement(self, graph: Graph, node: onnx.NodeProto) -> dict[str, Any]:
        """Return the arguments of `Graph.replace`. Raises NearMiss."""
        axes = self.axes
        image = Chain(graph, node, self.image.name, self.sources)
        image.arrange(self.image.index, (axes.n, self.pixels, axes.m, axes.d))
        locations = self.locations.value(graph, node, (*axes.over, along(COORDINATE)), self.sources)
        weights = self.weights.value(graph, node, axes.over, self.sources)
        if self.divisor != 1:
            dtype = graph.type(weights).dtype
            is_mean = abs(self.divisor) >= 1  # as many divide by: its reciprocal may be rounded
            by = self.divisor if is_mean else 1 / self.divisor
            factor = graph.add_constant("factor", np.array(by, dtype))
            weights = graph.add_node(node, "Div" if is_mean else "Mul", [weights, factor])
        result_index = (
            axes.n,
            axes.q,
            joined((position, size_along(position)) for position in (axes.m, axes.d)),
        )
        chain = Chain(graph, node, image.value(), self.sources)
        shapes = graph.add_integers(f"{node.output[0]}_spatial_shapes", *self.levels)
        sizes = [*map(size_along, result_index)]
        chain.then(self.operator, [shapes, locations, weights], sizes, domain=DOMAIN)
        chain.arrange(result_index, self.result)
        return chain.last()


def match(reader: Reader, name: str, form: Form) -> Attention | None:
    """Return the attention that a value is. Raises NearMiss."""
    terms = weighted_samples(reader, form)
    if not terms:
        return None
    try:
        return _attention(reader, name, terms)
    except NearMiss:
        if any(term.points for term in terms):
            raise
        return None  # samples that are added up, as by many networks


def _attention(reader: Reader, name: str, terms: Sequence[Term]) -> Attention:
    """Return the attention that a sum of terms is. Raises NearMiss."""
    if len(terms) > LEVELS:
        raise NearMiss(f"it has {len(terms)} levels, {OPERATOR} at most {LEVELS}")
    for term in terms:
        for (setting, values), value in zip(SETTINGS.items(), term.sample.settings, strict=True):
            if value not in values:
                raise NearMiss(f"the {setting} of its samples is {value}")
    return _Recognition(reader, name, terms).attention()


class _Recognition:
    """What the tensors of an attention are.

    known  variables that their indices may have
    """

    def __init__(self, reader: Reader, name: str, terms: Sequence[Term]):
        self.reader = reader
        self.graph = reader.graph
        self.name = name
        self.terms = terms
        self.result = axes_of(reader.shape(name))
        self.level = Variable("level", len(terms))
        self.points = terms[0].points
        images = {variable for term in terms for variable in term.sample.over}
        self.known = {*variables_of(self.result), *self.points, *images}

    def attention(self) -> Attention:
        """Return the attention. Raises NearMiss."""
        if len({(term.points, term.scale) for term in self.terms}) > 1:
            raise NearMiss("its levels have different numbers of points")
        self._check_sum()
        image, levels, pixels = self._image()
        coordinates = [
            [self._undoubled(form) for form in term.sample.coordinates[::-1]] for term in self.terms
        ]
        weights = [[self._product(term.weights)] for term in self.terms]
        axes = self._axes(image.index, pixels, weights, coordinates)
        locations = self._stored("sampling_locations", coordinates, (*axes.over, along(COORDINATE)))
        stored = self._stored("attention_weights", weights, axes.over)
        self._check_types([image, stored])
        divisor = 1 / self.terms[0].scale
        attention = Attention(image, locations, stored, levels, pixels, axes, divisor, self.result)
        self._check_uses(attention.sources)
        return attention

    def _check_sum(self) -> None:
        """Raise NearMiss if it adds up over what isn't levels and points."""
        for term in self.terms:
            weights = self._variables(term.weights)
            coordinate_variables = self._variables(term.sample.coordinates)
            for point in term.points:
                if (
                    point in self._variables([term.sample.body])
                    or point not in weights | coordinate_variables
                ):
                    raise NearMiss("it adds up over other axes than levels and points")
                if point not in coordinate_variables:
                    raise NearMiss("how its samples are put together with the others is not known")

    def _variables(self, forms: Iterable[Form]) -> set[Variable]:
        """Return the variables that forms depend on."""
        inner_forms = {inner for form in forms for inner in self.reader.forms.walk(form)}
        return {variable for inner in inner_forms for variable in variables_of(positions_in(inner))}

    def _product(self, factors: Sequence[Form]) -> Form:
        """Return the product of what samples are multiplied by."""
        total = self.reader.forms.number(1)
        for factor in factors:
            total = self.reader.forms.op("Mul", total, factor)
        return total

    def _undoubled(self, coordinate: Form) -> Form:
        """Return what a place is, in [0, 1] instead of [-1, 1]."""
        if self._is_constant(coordinate):
            op = self.reader.forms.op
            return op(
                "Div",
                op("Add", coordinate, self.reader.forms.number(1)),
                self.reader.forms.number(2),
            )
        match coordinate:
            case Op("Sub", (Op("Mul", (one, other)), subtrahend)) if is_number(subtrahend, 1):
                for factor, location in ((one, other), (other, one)):
                    if is_number(factor, 2):
                        return location
        raise NearMiss(f"{self._name_of(coordinate)} is not 2 * x - 1")

    def _is_constant(self, form: Form) -> bool:
        """Return whether a form depends on constants alone."""
        inner_forms = [*self.reader.forms.walk(form)]
        roots = [inner.root for inner in inner_forms if isinstance(inner, Element)]
        tables = self.reader.forms.tables
        return not any(isinstance(inner, Sample) for inner in inner_forms) and all(
            root in tables or self.graph.array(root) is not None for root in roots
        )

    # The value.

    def _image(self) -> tuple[Stored, tuple[int, ...], Position]:
        """Return (value, heights and widths of its levels, the position along their pixels)."""
        sizes = [variable.size for term in self.terms for variable in term.sample.over]
        levels = tuple(size for size in sizes if isinstance(size, int))
        if len(levels) < len(sizes):
            raise NearMiss("the height and width of its levels are open")
        bodies = [term.sample.body for term in self.terms]
        candidates: list[tuple[bool, Stored, Position]] = []
        for name in self._common(bodies):
            stored = self._pixels(name, [self._places(body)[name] for body in bodies])
            if stored is not None:
                index, pixels = stored
                is_turned = index[-1] == pixels or not self._is_all(name, index)
                candidates.append((is_turned, Stored(name, index), pixels))
        if not candidates:
            text = "and the other levels are not known to be parts of one value [N, S, M, D]"
            raise NearMiss(f"{self._name_of(bodies[0])} {text}")
        _, image, pixels = min(candidates, key=lambda stored: stored[0])
        return image, levels, pixels

    def _pixels(self, name: str, indices: Sequence[Index]) -> tuple[Index, Position] | None:
        """Return an index into a value with all levels, and the position along their pixels; or
        None.
        """
        sizes = self.reader.shape(name)
        for axis in range(len(sizes)):
            start: Dimension = 0
            other_axes: set[Index | None] = set()
            for index, term in zip(indices, self.terms, strict=True):
                height, width = term.sample.over
                position = number(start) + along(height).times(width.size) + along(width)
                other_axes.add(
                    (*index[:axis], *index[axis + 1 :]) if index[axis] == position else None
                )
                start = start + height.size * width.size
            if len(other_axes) == 1 and None not in other_axes and start == sizes[axis]:
                pixels = along(Variable("pixel", start))
                return (*indices[0][:axis], pixels, *indices[0][axis + 1 :]), pixels
        height_at, width_at = map(along, self.terms[0].sample.over)
        if len(self.terms) == 1 and height_at in indices[0] and width_at in indices[0]:
            return indices[0], joined(
                (position, size_along(position)) for position in (height_at, width_at)
            )
        return None

    def _is_all(self, name: str, index: Index) -> bool:
        """Return whether an index runs along all of a value."""
        pairs = zip(index, self.reader.shape(name), strict=True)
        return all(is_plain(position) and size_along(position) == size for position, size in pairs)

    # Places of forms.

    def _places(self, form: Form) -> dict[str, Index]:
        """Return {value: index} of elements that a form is, of values that are computed before."""
        tables = self.reader.forms.tables
        return {
            value: index
            for value, index in occurrences_before(self.reader, form, self.name).items()
            if variables_of(index) <= self.known and value not in tables
        }

    def _common(self, forms: Iterable[Form]) -> list[str]:
        """Return the values of which all forms are elements."""
        first, *rest = map(self._places, forms)
        return [name for name in first if all(name in occurrences for occurrences in rest)]

    def _name_of(self, form: Form) -> str:
        """Return the name of a value that has elements of a form, for people."""
        return next(iter(self._places(form)), "what it reads")

    def _indices(self, forms: Sequence[Sequence[Form]]) -> dict[str, Index]:
        """Return {value: index} of values that have forms of all levels and coordinates, which are
        variables then.
        """
        result: dict[str, Index] = {}
        rolled = partial(rolled_index, self.reader.forms)
        for name in self._common([form for row in forms for form in row]):
            with suppress(Unknown, ValueError):
                rows = [[self._places(form)[name] for form in row] for row in forms]
                index = rolled([rolled(row, COORDINATE) for row in rows], self.level)
                if [*map(digits_along, index)]:
                    result[name] = index
        return result

    # The other tensors.

    def _axes(self, image: Index, pixels: Position, weights: Rows, locations: Rows) -> Axes:
        """Return the axes of the tensors."""
        forms = [form for rows in (weights, locations) for row in rows for form in row]
        inner_forms = [inner for form in forms for inner in self.reader.forms.walk(form)]
        used = tuple(position for inner in inner_forms for position in positions_in(inner))
        stored = [*self._indices(weights).values(), *self._indices(locations).values()]
        image, result, used, *stored = refined(image, self.result, used, *stored)
        of_image = digits_in(image)
        of_places = {*digits_of(used), *(digit for index in stored for digit in digits_of(index))}
        queries = [digit for digit in digits_in(result) if digit not in of_image]
        shared = [digit for digit in digits_in(result) if digit in {*of_image} & of_places]
        channels = [
            digit for digit in digits_in(result) if digit in of_image and digit not in of_places
        ]
        first = of_image
        middle = {*digits_in((pixels,))}
        for index in stored[:1]:
            if not {*queries}.isdisjoint(digits_in(index)):
                first = digits_in(index)
                middle = {*queries}
        end = next((k for k, digit in enumerate(first) if digit in middle), len(first))
        images = [digit for digit in shared if digit in first[:end]]
        heads = [digit for digit in shared if digit not in images]
        n, q, m, d = map(joined_digits, (images, queries, heads, channels))
        points = joined((along(point), point.size) for point in self.points)
        return Axes(n, q, m, d, along(self.level), points)

    def _stored(self, name: str, rows: Rows, target: Index) -> Stored:
        """Return a value, or a constant, with elements of these forms at a target.

        Raises NearMiss.
        """
        if all(self._is_constant(form) for row in rows for form in row):
            return Stored(name, target, self._constant(rows, target))
        candidates = []
        for value, index in self._indices(rows).items():
            index, wanted = refined(index, target)
            if {*digits_of(index)} == {*digits_of(wanted)}:
                is_turned = digits_in(index) != digits_in(wanted)
                candidates.append((not self._is_all(value, index), is_turned, Stored(value, index)))
        if not candidates:
            shape = "weights [N, Q, M, L, P], in the order of the samples"
            if len(rows[0]) > 1:
                shape = "places [N, Q, M, L, P, 2]"
            raise NearMiss(f"{self._name_of(rows[0][0])} is not known to be made of {shape}")
        *_, stored = min(candidates, key=lambda candidate: candidate[:2])
        return stored

    def _constant(self, rows: Rows, target: Index) -> Array:
        """Return the elements of constants at a target. Raises NearMiss."""
        n, q, m, _, points, *_ = target
        axes = (n, q, m, points)
        digits = digits_in(axes)
        lengths = [digit.size for digit in digits if isinstance(digit.size, int)]
        count = math.prod(lengths)
        if len(lengths) < len(digits) or count * len(self.terms) > MOST_NUMBERS:
            name = self._name_of(rows[0][0])
            raise NearMiss(
                f"{name} is not known to be made of weights [N, Q, M, L, P], of open sizes"
            )
        numbers = {variable.name: np.asarray(0) for variable in self.known}
        for digit, along_it in zip(digits, np.indices(lengths), strict=True):
            name = digit.variable.name
            numbers[name] = numbers[name] + along_it.ravel() * digit.inner
        evaluation = Evaluation(self.reader, numbers, _no_source, _no_size, count)
        arrays = [[np.broadcast_to(evaluation.value(form), count) for form in row] for row in rows]
        stacked = np.array(arrays).reshape(len(rows), len(rows[0]), *map(size_along, axes))
        moved = np.moveaxis(stacked, (0, 1), (3, 5))  # [N, Q, M, L, P, coordinates]
        moved = moved if len(rows[0]) > 1 else moved[..., 0]
        return np.ascontiguousarray(moved, self.graph.type(self.name).dtype)

    # Checks.

    def _check_types(self, stored: Iterable[Stored]) -> None:
        names = [self.name, *(tensor.name for tensor in stored if tensor.array is None)]
        element_types = {self.graph.type(name).elements for name in names} - {UNKNOWN.elements}
        # Of nodes between which there are Casts.
        if len(element_types) > 1 or not element_types <= FLOATS:
            raise NearMiss(f"{', '.join(names)} are not of one type")

    def _check_uses(self, sources: Collection[str]) -> None:
        """Raise NearMiss if a value between the sources and the result is used elsewhere, except
        for its shape.

        Images may be: layers that share a value move its elements only once.
        """
        graph = self.graph
        grids = {name for term in self.terms for name in self._places(term.sample.coordinates[0])}
        between: set[str] = set()
        pending = [self.name]
        while pending:
            name = pending.pop()
            node = graph.producers.get(name)
            if node is None or name in between or name in sources or graph.folded(name) is not None:
                continue
            between.add(name)
            rule = self.reader.rule_of(node)
            if node.op_type == "GridSample":
                pending.append(node.input[1])
            elif (
                rule is not None
                and (rule.moves or node.op_type in SUMS)
                and node.op_type != "Concat"
            ):
                pending.append(node.input[0])
            else:
                pending += [operand for operand in node.input if operand]
        for name in between - {self.name} - grids:
            users = [user for user, _ in graph.consumers[name]]
            is_internal = all(
                user.op_type == "Shape" or not between.isdisjoint(user.output) for user in users
            )
            if graph.users[name] > len(users) or not is_internal:
                raise NearMiss(f"{name} is used elsewhere, too")


def _no_source(root: str, index: list[Array]) -> Array:
    raise Unknown(f"the elements of {root}")


def _no_size(name: str) -> int:
    raise Unknown(f"the size {name}")
