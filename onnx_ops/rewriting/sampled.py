"""Images that are sampled by hand: linear or nearest, with zeros or the border's pixels outside.

    y = sum over pixels of  weight(x - pixel) * image[.., pixel]

x is what is rounded to pixels, one coordinate for each axis of the image. The form is evaluated as
a whole: in cells of an image, on edges, beyond, beside numbers that coordinates are compared with,
and for several sizes where these are open; and is compared with what GridSample computes. Between
these numbers weights are polynomials: so nothing else agrees everywhere.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from .finding import NearMiss
from .once import once
from .probing import Draw, Sizes
from .reading.affine import (
    Array,
    Index,
    Position,
    Term,
    Unknown,
    Variable,
    along,
    number,
    variables_of,
)
from .reading.constructors import Forms
from .reading.digits import single
from .reading.evaluation import Evaluation, constant_of, interpolated, pixel_of
from .reading.forms import ROUNDINGS, Element, Form, Op, Sample, positions_in
from .reading.reader import Reader

DRAWS = 3  # of open sizes
FEW, MANY = 400, 4000  # points at which most guesses are refuted, and all others are compared
LINEAR = "Add", "Sub", "Mul", "Div", "Neg"
PLACES = np.array([-1.0, 0.0, 0.5, 3.0])  # at which linear functions are compared
LIMITS = "Clip", "Max", "Min", "Relu"  # which don't make another coordinate of one
NO_SAMPLER = (
    "it isn't linear or nearest interpolation with zeros or the border's pixels outside "
    "of the image"
)


@dataclass(frozen=True)
class Sampled:
    """What a sum of weighted pixels is.

    image         the value that is sampled
    index         that of its elements, over `pixel` along the axes that are sampled
    pixel         the variables of these axes
    coordinates   pixels along these axes, after a number is added
    shifts        these numbers
    mode          "linear" or "nearest"
    padding_mode  "zeros" or "border"
    masks         forms that are 1, or 0 where the result is 0
    factors       other forms that all pixels are multiplied by
    """

    image: str
    index: Index
    pixel: tuple[Variable, ...]
    coordinates: tuple[Form, ...]
    shifts: tuple[int, ...]
    mode: str
    padding_mode: str
    masks: tuple[Form, ...]
    factors: tuple[Form, ...]


@dataclass(frozen=True)
class Taps:
    """A sum of weighted pixels.

    total        its form
    factors      forms that it is multiplied by
    pixels       the elements of the image in it
    coordinates  what is rounded to pixels
    index        of the image's elements, over own variables along the axes that are sampled
    axes         these
    """

    total: Form
    factors: list[Form]
    pixels: list[Element]
    coordinates: list[Form]
    index: Index
    axes: list[int]

    @property
    def root(self) -> str:
        return self.pixels[0].root

    @property
    def pixel(self) -> tuple[Variable, ...]:
        """The variables of the axes that are sampled."""
        return tuple(self.index[axis].terms[0].variable for axis in self.axes)


def sampled(reader: Reader, form: Form) -> Sampled | None:
    """Return the Sampled that a form is; None if it is nothing like one. Raises NearMiss."""
    total, factors = _split(form, partial(_has_pixels, reader))
    coordinates = _coordinates(reader, total)
    elements = [*elements_in(reader, total, coordinates)] if coordinates else []
    are_picked = any(_is_picked_by(reader, element, coordinates) for element in elements)
    if not are_picked and len(coordinates) < 2:
        return None
    try:
        _check(reader, elements)
        index, axes = _image_index(reader, elements, coordinates)
        return _decided(reader, Taps(total, factors, elements, coordinates, index, axes))
    except NearMiss as miss:
        if not are_picked and str(miss) != NO_SAMPLER:
            return None  # it is nothing like pixels of an image of a single one
        values = (value for form in coordinates for value in reader.forms.occurrences[form])
        raise NearMiss(str(miss), {*values, *(e.root for e in elements)}) from None


def _split(form: Form, is_part: Callable[[Form], bool]) -> tuple[Form, list[Form]]:
    """Return the innermost product's only factor that is a part, and the other factors."""
    factors: list[Form] = []
    while isinstance(form, Op) and form.op == "Mul":
        inner = [operand for operand in form.operands if is_part(operand)]
        if len(inner) != 1:
            break
        factors += [operand for operand in form.operands if operand is not inner[0]]
        (form,) = inner
    return form, factors


def _has_pixels(reader: Reader, form: Form) -> bool:
    return any(_is_picked(reader, element) for element in elements_in(reader, form))


def elements_in(reader: Reader, form: Form, known: Collection[Form] = ()) -> Iterator[Element]:
    """Yield the elements in a form of values that aren't constant, but not those in known forms."""
    for inner in reader.forms.walk(form, dict.fromkeys(known)):
        if not isinstance(inner, Element) or inner in known:
            continue
        if constant_of(reader, inner.root) is None:
            yield inner


def _is_picked(reader: Reader, element: Element) -> bool:
    return not variables_of(element.index).isdisjoint(reader.forms.picks)


def _is_picked_by(reader: Reader, element: Element, coordinates: Collection[Form]) -> bool:
    """Return whether coordinates say which element of a value it is."""
    picks = reader.forms.picks
    chosen = (picks[v] for v in variables_of(element.index) if v in picks)
    return any(inner in coordinates for form in chosen for inner in reader.forms.walk(form))


def _check(reader: Reader, elements: Sequence[Element]) -> None:
    """Raise NearMiss unless elements are of one image."""
    picked = {element.root for element in elements if _is_picked(reader, element)}
    roots = picked or {element.root for element in elements}
    if len(roots) != 1:
        raise NearMiss(f"it reads pixels of {len(roots)} images")
    other_roots = [element.root for element in elements if element.root not in roots]
    if other_roots:
        raise NearMiss(f"its weights or indices depend on {other_roots[0]}, beside the coordinates")


def _coordinates(reader: Reader, form: Form) -> list[Form]:
    """Return what is rounded to pixels, without limits; not what is rounded inside of these."""
    known: list[Form] = []
    for _ in range(2 if reader.forms.has(form, ROUNDINGS) else 0):
        inside = reader.forms.walk(form, dict.fromkeys(known))
        rounded = [f for f in inside if isinstance(f, Op) and f.op in ROUNDINGS]
        best = [f for f in rounded if f.op != "Trunc"] or rounded
        known = [*dict.fromkeys(_without_limits(reader.forms, f.operands[0]) for f in best)]
        inner = {
            f for coordinate in known for f in reader.forms.walk(coordinate) if f is not coordinate
        }
        known = [coordinate for coordinate in known if coordinate not in inner]
    return known


def _without_limits(forms: Forms, form: Form) -> Form:
    while isinstance(form, Op) and form.op in LIMITS:
        inner = varying(forms, form)
        if len(inner) != 1:
            break
        (form,) = inner
    return form


def varying(forms: Forms, form: Op) -> list[Form]:
    """Return the operands that aren't made of numbers and sizes alone."""
    return [operand for operand in form.operands if not forms.is_fixed(operand)]


def _image_index(
    reader: Reader, pixels: Sequence[Element], coordinates: Sequence[Form]
) -> tuple[Index, list[int]]:
    """Return the index of an image's elements, over own variables along sampled axes, and these.

    Axes of one pixel, the last ones, may be such axes, too.
    """
    sizes = reader.shape(pixels[0].root)
    fixed = _fixed(reader, pixels, coordinates)
    axes = [axis for axis in range(len(sizes)) if axis not in fixed]
    first = pixels[0].index
    picked = [not variables_of([position]).isdisjoint(reader.forms.picks) for position in first]
    candidates = [
        axis
        for axis, position in fixed.items()
        if position == number(0) and (sizes[axis] == 1 or picked[axis])
    ]
    candidates.sort(key=lambda axis: (picked[axis], axis))
    missing = len(coordinates) - len(axes)
    if not 0 <= missing <= len(candidates):
        raise NearMiss(f"{len(coordinates)} values are rounded to pixels of {len(axes)} axes")
    axes = sorted([*axes, *candidates[len(candidates) - missing :]])
    own = [Position(0, (Term(Variable(f"image {k}", n), 1, n, 1),)) for k, n in enumerate(sizes)]
    return tuple(own[k] if k in axes else fixed[k] for k in range(len(sizes))), axes


def _fixed(
    reader: Reader, pixels: Sequence[Element], coordinates: Sequence[Form]
) -> dict[int, Position]:
    """Return {axis: position} of axes along which all taps are at one place for all coordinates."""
    draw = Draw(reader, pixels, coordinates, 0, FEW)
    evaluation = draw.evaluation({form: draw.coordinates([40])[0] for form in coordinates})
    digits = {
        term.digit
        for form in draw.inside
        for position in positions_in(form)
        for term in position.terms
    }
    positions = [number(0), *map(along, draw.free)]
    positions += [
        single(digit) for digit in sorted(digits, key=repr) if digit.variable in draw.free
    ]
    fixed: dict[int, Position] = {}
    for axis, ats in enumerate(zip(*(tap.index for tap in pixels), strict=True)):
        if variables_of(ats).isdisjoint(reader.forms.picks):
            fixed[axis] = ats[0]
            if any(position != ats[0] for position in ats):
                raise NearMiss("its pixels are of several images or channels")
            continue
        with suppress(Unknown):
            indices = {
                np.broadcast_to(evaluation.position(position), FEW).tobytes() for position in ats
            }
            for candidate in positions:
                expected = np.broadcast_to(evaluation.position(candidate), FEW)
                if indices == {expected.tobytes()}:
                    fixed[axis] = candidate
                    break
    return fixed


def sample_of(reader: Reader, form: Form) -> Sampled | None:
    """Return the Sampled that a GridSample or its product with other forms is, or None."""
    form, factors = _split(form, partial(_has_sample, reader))
    if not isinstance(form, Sample) or not isinstance(form.body, Element):
        return None
    mode, padding_mode, align_corners = form.settings
    pixels = []
    for coordinate, pixel in zip(form.coordinates, form.over, strict=True):
        shifted = _pixels(reader, coordinate, pixel, align_corners == "1")
        if shifted is None:
            return None
        pixels.append(shifted)
    coordinates, shifts = zip(*pixels, strict=True)
    mode = mode.replace("bilinear", "linear")
    image = form.body
    return Sampled(
        image.root,
        image.index,
        form.over,
        coordinates,
        shifts,
        mode,
        padding_mode,
        (),
        tuple(factors),
    )


def _has_sample(reader: Reader, form: Form) -> bool:
    return reader.forms.has(form, ["Sample"])


def _pixels(
    reader: Reader, coordinate: Form, pixel: Variable, align_corners: bool
) -> tuple[Form, int] | None:
    """Return (form, shift) of a pixel, form + shift, that makes a place in [-1, 1]; or None."""
    for inner in linear_chain(reader.forms, coordinate):
        differences = []
        for seed in range(DRAWS):
            sizes = Sizes(seed)
            values = linear_values(reader, coordinate, inner, sizes)
            computed = pixel_of(values, sizes.size(pixel.size), align_corners)
            differences.append(computed - PLACES)
        shift = round(float(differences[0][0]))
        if np.allclose(differences, shift, atol=1e-5):
            return inner, shift
    return None


def linear_chain(forms: Forms, form: Form) -> list[Form]:
    """Return [a form, what it is a linear function of, what that is a linear function of, ...]."""
    chain = [form]
    while isinstance(form, Op) and form.op in LINEAR:
        inner = varying(forms, form)
        if len(inner) != 1 or (form.op == "Div" and inner[0] is not form.operands[0]):
            break
        (form,) = inner
        chain.append(form)
    return chain


def linear_values(reader: Reader, outer: Form, inner: Form, sizes: Sizes) -> Array:
    """Return what a form of a chain is where an inner one is each of PLACES."""
    count = len(PLACES)
    evaluation = Evaluation(reader, {}, _no_element, sizes.unknown, count, {inner: PLACES})
    return evaluation.value(outer)


def _no_element(root: str, index: list[Array]) -> Array:
    raise Unknown(f"the elements of {root}")


Guess = tuple[tuple[Form, ...], str, str]  # coordinates, mode, padding_mode


def _decided(reader: Reader, taps: Taps) -> Sampled:
    """Return what a sum of taps is. Raises NearMiss."""
    known = [*taps.coordinates]
    masks = [f for f in taps.factors if not any(elements_in(reader, f, known))]
    orders = sorted(
        itertools.permutations(taps.coordinates),
        key=lambda order: [_last_number(reader, coordinate) for coordinate in order],
        reverse=True,
    )
    modes = itertools.product(("linear", "nearest"), ("zeros", "border"))
    guesses: list[Guess] = [(order, *mode) for order, mode in itertools.product(orders, [*modes])]
    hiding: set[Form] = set()
    try:
        for seed in range(1 + DRAWS):
            probe = Probe(reader, taps, masks, seed)
            guesses = [guess for guess in guesses if probe.agrees(*guess)]
            masks = probe.masks
            hiding |= probe.hiding
            if not guesses or (seed and not probe.has_open_sizes):
                break
    except Unknown as reason:
        raise NearMiss(f"{reason} of {taps.root}") from None
    if hiding:  # what they hide is read outside of the image
        guesses = [guess for guess in guesses if guess[2] == "zeros"]
    if not guesses:
        raise NearMiss(NO_SAMPLER)
    return Sampled(
        taps.root,
        taps.index,
        taps.pixel,
        guesses[0][0],
        probe.shifts(guesses[0][0]),
        *guesses[0][1:],
        masks=tuple(mask for mask in masks if mask in hiding),
        factors=tuple(factor for factor in taps.factors if factor not in masks),
    )


def _last_number(reader: Reader, form: Form) -> int:
    """Return the last number in the index of an element of a form: 0 of a grid's x, 1 of its y."""
    numbers = [element.index[-1].start for element in elements_in(reader, form) if element.index]
    return max((number for number in numbers if isinstance(number, int)), default=0)


class Probe(Draw):
    """Evaluates a sum of taps and what it may be, at the same points.

    masks   of the given ones those that are 0 or 1 everywhere
    hiding  those that are 0 somewhere
    """

    def __init__(self, reader: Reader, taps: Taps, masks: list[Form], seed: int):
        super().__init__(reader, [taps.total, *masks], (), seed, MANY if seed else FEW)
        self.taps = taps
        self.masks = masks
        self.hiding: set[Form] = set()
        self.lengths = [self.size(variable.size) for variable in taps.pixel]
        self.points = self.coordinates(self.lengths)
        self.known: dict[Hashable, Any] = {}  # results of methods

    def agrees(self, coordinates: tuple[Form, ...], mode: str, padding_mode: str) -> bool:
        """Return whether the sum is what GridSample computes, where masks show it."""
        total, is_shown, shifts = self._sum(coordinates)
        points = [p + shift for p, shift in zip(self.points, shifts, strict=True)]
        expected = interpolated(self._image, points, self.lengths, mode, padding_mode)
        return np.allclose(np.where(is_shown, total - expected, 0), 0, atol=1e-7)

    def _image(self, pixel: list[Array]) -> Array:
        """Return the image at pixels, with the numbers of the other variables."""
        evaluation = self.evaluation({})
        own = dict(zip(self.taps.axes, pixel, strict=True))
        index = [
            own[axis] if axis in own else evaluation.position(position)
            for axis, position in enumerate(self.taps.index)
        ]
        return self.picture(self.taps.root, index)

    def shifts(self, coordinates: tuple[Form, ...]) -> tuple[int, ...]:
        """Return what is added to coordinates so that they are pixels of the image."""
        return self._sum(coordinates)[2]

    @once
    def _sum(self, coordinates: tuple[Form, ...]) -> tuple[Array, Array, tuple[int, ...]]:
        """Return the sum, whether it is shown, and the shifts."""
        evaluation = self.evaluation(dict(zip(coordinates, self.points, strict=True)))
        total = evaluation.value(self.taps.total)
        numbers = {mask: np.broadcast_to(evaluation.value(mask), self.count) for mask in self.masks}
        self.masks = [mask for mask in self.masks if np.isin(numbers[mask], (0, 1)).all()]
        is_shown = np.ones(self.count, bool)
        for mask in self.masks:
            is_shown &= numbers[mask] != 0
        self.hiding |= {mask for mask in self.masks if not numbers[mask].all()}
        shifts = []
        for axis, points, length in zip(self.taps.axes, self.points, self.lengths, strict=True):
            pixels = [evaluation.position(tap.index[axis]) for tap in self.taps.pixels]
            first = np.broadcast_to(reduce(np.minimum, pixels), self.count)
            shifts.append(_shift(first[is_shown], points[is_shown], length))
        return total, is_shown, tuple(shifts)


def _shift(first: Array, points: Array, length: int) -> int:
    """Return the first pixel that is read less the coordinate, as it is in most cells."""
    cells = np.floor(points)
    is_near = (cells >= -2) & (cells <= length + 1) & (points - cells < 0.4)
    pairs = {*zip(cells[is_near].astype(int), first[is_near].astype(int), strict=True)}
    counts = Counter(int(pixel - cell) for cell, pixel in pairs)
    return max(counts, key=lambda shift: (counts[shift], -abs(shift)), default=0)
