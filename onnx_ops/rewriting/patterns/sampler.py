"""`grid_sample` that is written by hand, as one GridSample, or ComputedGridSample.

Before opset 16, and for runtimes without GridSample, models gather pixels, weigh and add them up
(sampled.py). If nodes compute the coordinates, the operator computes them, too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from ..arranging import Chain
from ..finding import NearMiss
from ..gain import share
from ..graph import FLOATS, Graph
from ..probing import Sizes
from ..programs import Program
from ..reading.affine import (
    Digit,
    Dimension,
    Index,
    Position,
    Term,
    Variable,
    along,
    digits_of,
    normal_position,
    number,
    substituted,
    variables_of,
)
from ..reading.digits import digits_in, joined_digits, refined
from ..reading.evaluation import pixel_of
from ..reading.forms import Form, Whole, positions_in, value_of
from ..reading.reader import Reader, axes_of
from ..sampled import PLACES, Sampled, elements_in, linear_chain, linear_values, sampled
from ..windows import occurrences_before

NAME = "grid_sample by hand"
DRAWS = 3
FAR_AWAY = -1e6  # pixels
# Nanoseconds for each element: gathered and weighed; sampled; of an image that is transposed.
TAP, SAMPLE, TRANSPOSED = 1.6, 1.0, 2.0


@dataclass(frozen=True)
class Layout:
    """The axes [N, C, (D,) H, W] of samples.

    digits     of a result's axes, along each of these
    variables  one along each of these
    """

    digits: list[list[Digit]]
    variables: list[Variable]

    @property
    def sizes(self) -> list[Dimension]:
        return [variable.size for variable in self.variables]

    @property
    def points(self) -> list[Variable]:
        return self.variables[2:]

    def of(self, index: Index) -> dict[Variable, Position]:
        """Return positions over the own variables for the variables of an index of digits."""
        ats: dict[Digit, Position] = {}
        for digits, variable in zip(self.digits, self.variables, strict=True):
            inner: Dimension = 1
            for digit in reversed(digits):
                ats[digit] = normal_position(0, [Term(variable, inner, digit.size, 1)])
                inner = inner * digit.size
        by: dict[Variable, Position] = {}
        for position in index:
            for term in position.terms:
                digit_position = ats.get(term.digit, number(0)).times(term.step)
                by[term.variable] = by.get(term.variable, number(0)) + digit_position
        return by


@dataclass(frozen=True)
class Sampler:
    """A GridSample or a ComputedGridSample.

    dimensions  of the result
    sampled     what it is, over the axes of the result
    layout      of the samples
    index       that of the image's elements, over the layout's variables
    settings    attributes that say what coordinates are
    coordinates  the coordinates, over the layout's variables, rows first
    masks       forms that are 0 where the result is 0, over these
    grid        a value that holds the coordinates as a GridSample takes them; None if there is none
    """

    reader: Reader
    dimensions: tuple[Dimension, ...]
    sampled: Sampled
    layout: Layout
    index: Index
    settings: dict[str, int]
    coordinates: list[Form]
    masks: list[Form]
    grid: str | None

    @property
    def operator(self) -> str:
        return "ComputedGridSample" if self.grid is None else "GridSample"

    @property
    def sources(self) -> list[str]:
        inner = [
            e.root
            for form in (*self.coordinates, *self.masks)
            for e in elements_in(self.reader, form)
        ]
        return [*dict.fromkeys((self.sampled.image, *inner))]

    def replacement(self, graph: Graph, node: onnx.NodeProto) -> dict[str, Any]:
        elements = graph.type(self.sampled.image).elements
        target = graph.type(node.output[0]).elements
        if not {elements, target} <= FLOATS:
            raise NearMiss("its image and its result are not known to be floats")
        chain = Chain(graph, node, self.sampled.image, self.sources)
        n, c, *points = map(along, self.layout.variables)
        rows = [number(0)] * (len(points) - len(self.sampled.pixel))
        chain.arrange(self.index, (n, c, *rows, *map(along, self.sampled.pixel)))
        if chain.cost and not self._pays(share(graph, self.sampled.image, node.output[0])):
            raise NearMiss("transposing its image would take longer than gathering its pixels")
        operator, inputs, attributes = self._sampling(graph, node)
        chain.then(operator, inputs, self.layout.sizes, **attributes)
        chain.arrange(tuple(map(joined_digits, self.layout.digits)), axes_of(self.dimensions))
        if target != elements:
            chain.then("Cast", [], self.dimensions, to=target)
        return chain.last()

    def _pays(self, image_share: float) -> bool:
        """Return whether to transpose an image before, so many times as large as the result."""
        moving = [form for form in self.sampled.coordinates if not isinstance(form, Whole)]
        taps = 1 if self.sampled.mode == "nearest" else 2 ** len(moving)
        return TAP * taps > SAMPLE + TRANSPOSED * image_share

    def _sampling(
        self, graph: Graph, node: onnx.NodeProto
    ) -> tuple[str, list[str], dict[str, Any]]:
        """Return the operator, the inputs after the image, and the attributes."""
        mode = self.sampled.mode
        settings: dict[str, Any] = {"padding_mode": self.sampled.padding_mode, **self.settings}
        if self.grid is None:
            inputs, attributes = self._program(graph, node)
            settings |= {"domain": "onnx_ops", "mode": mode.replace("linear", "bilinear")}
            return self.operator, inputs, settings | attributes
        settings["domain"] = "" if graph.opset >= 16 else "com.microsoft"
        settings["mode"] = mode if graph.opset >= 20 else mode.replace("linear", "bilinear")
        return self.operator, [self.grid], settings

    def _program(self, graph: Graph, node: onnx.NodeProto) -> tuple[list[str], dict[str, Any]]:
        """Return the inputs and attributes of a ComputedGridSample."""
        forms = [*self.coordinates, *self.masks]
        try:
            program, values = _program_of(self.reader, graph, node, forms, self.layout, False)
        except NearMiss:  # it can't take their elements as they lie in other values
            program, values = _program_of(self.reader, graph, node, forms, self.layout, True)
        coordinates = values[: len(self.coordinates)]
        for k, shift in enumerate(self.sampled.shifts if self.settings.get("pixels") else ()):
            if shift:
                coordinates[k] = program.step("Add", coordinates[k], program.number(shift))
        for mask in values[len(self.coordinates) :]:  # what it hides is read where the image is 0
            far = program.number(FAR_AWAY)
            coordinates[-1] = program.step("Where", mask, coordinates[-1], far)
        while len(coordinates) < len(self.layout.points):  # the row of an image of one row
            coordinates.insert(0, program.number(0))
        _, _, *points = self.layout.sizes
        program.state_sizes(points)
        return program.finished(coordinates[::-1])


def match(reader: Reader, name: str, form: Form) -> Sampler | None:
    """Return the sampler that a value is."""
    samples = sampled(reader, form)
    if samples is None or samples.factors:  # what is multiplied is another value
        return None
    if len(samples.pixel) > 3:
        raise NearMiss(f"it samples along {len(samples.pixel)} axes")
    dimensions = reader.shape(name)
    if 0 in dimensions:
        return None
    samples = _with_rows(reader, samples)
    settings, coordinates = _normalized(reader, samples)
    index, *_ = refined(
        axes_of(dimensions), samples.index, _positions(reader, [*coordinates, *samples.masks])
    )
    layout = _layout(reader, index, samples, [*coordinates, *samples.masks])
    by = layout.of(index)
    image = tuple(substituted(position, by) for position in samples.index)
    coordinates, masks = (
        [reader.forms.substituted(f, by) for f in forms] for forms in (coordinates, samples.masks)
    )
    grid = None if "pixels" in settings else _grid(reader, name, layout, coordinates)
    return Sampler(reader, dimensions, samples, layout, image, settings, coordinates, masks, grid)


def _with_rows(reader: Reader, samples: Sampled) -> Sampled:
    """Return what is sampled along one axis as sampled along two: each row at its own place.

    This is faster than transposing an image of which coordinates differ for each row.
    """
    moving = frozenset[Variable]().union(*map(reader.forms.free, samples.coordinates))
    rows = [
        axis
        for axis, position in enumerate(samples.index)
        if axis > 0 and len(position.terms) == 1 and position == along(position.terms[0].variable)
        if position.terms[0].variable in moving
    ]
    if len(samples.pixel) != 1 or not rows:
        return samples
    axis = rows[-1]
    row = Variable("image rows", reader.shape(samples.image)[axis])
    index = (*samples.index[:axis], along(row), *samples.index[axis + 1 :])
    coordinates = {
        row: reader.forms.whole(samples.index[axis]),
        samples.pixel[0]: samples.coordinates[0],
    }
    shifts = {row: 0, samples.pixel[0]: samples.shifts[0]}
    pixel = [
        position.terms[0].variable
        for position in index
        if position.terms and position.terms[0].variable in coordinates
    ]
    return replace(
        samples,
        index=index,
        pixel=tuple(pixel),
        coordinates=tuple(map(coordinates.__getitem__, pixel)),
        shifts=tuple(map(shifts.__getitem__, pixel)),
    )


def _positions(reader: Reader, forms: Sequence[Form]) -> Index:
    """Return all positions in forms."""
    inside = (inner for form in forms for inner in reader.forms.walk(form))
    return tuple(dict.fromkeys(position for inner in inside for position in positions_in(inner)))


def _layout(reader: Reader, index: Index, samples: Sampled, coordinates: Sequence[Form]) -> Layout:
    """Return the layout of samples whose axes are digits of an index.

    Images are those that coordinates differ for, or else the first ones. The others are channels.
    """
    _, image, read = refined(index, samples.index, _positions(reader, coordinates))
    own = digits_in(index)
    of_points = {*digits_of(read)}
    fixed = [digit for digit in digits_in(image) if digit in own]
    images = [digit for digit in fixed if digit in of_points]
    channels = [digit for digit in fixed if digit not in of_points]
    if not images and len(channels) > 1:
        images = [channels.pop(0)]
    points = [[digit] for digit in own if digit in of_points and digit not in images]
    rank = max(2, len(samples.pixel))
    surplus = len(points) - rank + 1
    if surplus > 1:
        points = [[digit for group in points[:surplus] for digit in group], *points[surplus:]]
    points = [*([] for _ in range(rank - len(points))), *points]
    digits = [images, channels, *points]
    sizes = [math.prod(digit.size for digit in group) for group in digits]
    names = "ncdhw" if rank == 3 else "nchw"
    return Layout(digits, [*map(Variable, names, sizes)])


def _grid(reader: Reader, name: str, layout: Layout, coordinates: Sequence[Form]) -> str | None:
    """Return a value whose elements the coordinates are, as a GridSample takes them."""
    n, _, *points = layout.variables
    index = along(n), *map(along, points)
    dimensions = n.size, *(variable.size for variable in points), len(points)
    expected = [(*index, number(k)) for k in reversed(range(len(points)))]
    occurrences = [_occurrences(reader, coordinate, name) for coordinate in coordinates]
    for value in occurrences[0]:
        indices = [indices_by_value.get(value) for indices_by_value in occurrences]
        if indices == expected and reader.shape(value) == dimensions:
            return value
    return None


def _normalized(reader: Reader, samples: Sampled) -> tuple[dict[str, int], list[Form]]:
    """Return ({attribute: value}, coordinates): in [-1, 1] if possible, else in pixels."""
    pixels = [*zip(samples.coordinates, samples.pixel, samples.shifts, strict=True)]
    for align_corners in () if samples.masks else (1, 0):
        coordinates = [_in_chain(reader, *pixel, align_corners == 1) for pixel in pixels]
        if None not in coordinates:
            return {"align_corners": align_corners}, [
                coordinate for coordinate in coordinates if coordinate is not None
            ]
    return {"pixels": 1}, [*samples.coordinates]


def _in_chain(
    reader: Reader, form: Form, pixel: Variable, shift: int, align_corners: bool
) -> Form | None:
    """Return the place in [-1, 1] of which a pixel is a linear function; None if there is none."""
    for inner in reversed(linear_chain(reader.forms, form)):
        are_normal = []
        for seed in range(DRAWS):
            sizes = Sizes(seed)
            computed = linear_values(reader, form, inner, sizes) + shift
            expected = pixel_of(PLACES, sizes.size(pixel.size), align_corners)
            are_normal.append(np.allclose(computed, expected, 2e-7, 2e-7))
        if all(are_normal):
            return inner
    return None


def _program_of(
    reader: Reader,
    graph: Graph,
    node: onnx.NodeProto,
    forms: Sequence[Form],
    layout: Layout,
    arranges: bool,
) -> tuple[Program, list[int]]:
    """Return a program of coordinates, and its values that are these forms.

    arranges  whether coordinates are brought into the axes of the samples before
    """
    occurrences = [
        next(iter(_occurrences(reader, form, node.output[0]).items()), None) for form in forms
    ]
    element_types = {
        graph.type(occurrence[0]).elements for occurrence in occurrences if occurrence is not None
    }
    elements = max(element_types & {TensorProto.DOUBLE}, default=TensorProto.FLOAT)
    program = Program(reader, graph, node, elements)
    n, _, *points = map(along, layout.variables)
    values = []
    for form, occurrence in zip(forms, occurrences, strict=True):
        if isinstance(form, Whole):
            values.append(program.whole(form.position))
            continue
        if occurrence is None:
            value = value_of(form)
            if value is None:
                raise NearMiss("its coordinates are computed in an unknown way")
            values.append(program.number(value))
            continue
        name, index = occurrence
        if arranges:
            chain = Chain(graph, node, name)
            chain.arrange(index, (n, *points))
            values.append(program.source_of(chain.value(), (n, *points)))
        else:
            values.append(program.element(name, index))
    return program, values


def _occurrences(reader: Reader, form: Form, name: str) -> dict[str, Index]:
    """Return {value: index} of elements that a form is, of values that are known before another.

    Along axes of channels, for which coordinates are repeated, the first ones are taken.
    """
    free = reader.forms.free(form)
    firsts: dict[str, Index] = {}
    for value, index in occurrences_before(reader, form, name).items():
        repeated = {variable: number(0) for variable in variables_of(index) - free}
        position = tuple(substituted(position, repeated) for position in index)
        if all(variable.name in "ndhw" for variable in variables_of(position)):
            firsts[value] = position
    return firsts
