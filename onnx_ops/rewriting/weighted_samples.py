"""Weighted samples that are added up, one term for each level of an image."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .finding import NearMiss
from .reading.affine import Digit, Position, Variable, along, number, variables_of
from .reading.forms import CASTS, Element, Form, Guard, Op, Sample, Sum
from .reading.reader import Reader
from .windows import factors_of

MOST_LEVELS = 32  # that are told apart


@dataclass(frozen=True)
class Term:
    """What is added up over the points of a level: weights * sample."""

    scale: float
    points: tuple[Variable, ...]
    weights: tuple[Form, ...]
    sample: Sample


def _unrounded(form: Form) -> Form:
    """Return what a form is before it is rounded to 16 bits, as exporters write it around sums."""
    while isinstance(form, Op) and form.op in CASTS.values():
        (form,) = form.operands
    return form


def _factors(form: Form) -> tuple[float, list[Form]]:
    """Return (number, factors) of a product; these aren't rounded, but for elements that are read
    so.
    """
    scale, factors = factors_of(_unrounded(form))
    result = []
    for factor in factors:
        inner = _unrounded(factor)
        is_read = inner is factor or isinstance(inner, Element)
        multiplier, inner_factors = (1.0, [factor]) if is_read else _factors(inner)
        scale *= multiplier
        result += inner_factors
    return scale, result


def _addends(form: Form) -> list[Form]:
    """Return what a form is the sum of; nothing if it is of many."""
    addends: list[Form] = []
    pending = [form]
    while pending and len(pending) + len(addends) <= MOST_LEVELS:
        addend = _unrounded(pending.pop(0))
        if isinstance(addend, Op) and addend.op == "Add":
            pending = [*addend.operands, *pending]
        else:
            addends.append(addend)
    return [] if pending else addends


def weighted_samples(reader: Reader, form: Form) -> list[Term]:
    """Return the terms of a weighted sum of samples, one for each level; none if it isn't one."""
    scale, inner = _factors(form)
    terms: list[Term] = []
    is_sum = False
    is_partial = False
    for addend in _addends(inner[0]) if len(inner) == 1 else ():
        if isinstance(addend, Guard):
            is_partial = True
            addend = addend.body
        by, factors = _factors(addend)
        over: tuple[Variable, ...] = ()
        if len(factors) == 1 and isinstance(factors[0], Sum):
            over = factors[0].over
            multiplier, factors = _factors(factors[0].body)
            by *= multiplier
        samples = [factor for factor in factors if isinstance(factor, Sample)]
        if len(samples) != 1 or len(samples[0].over) != 2:
            return []
        is_sum = is_sum or bool(over)
        weights = tuple(factor for factor in factors if factor is not samples[0])
        terms += _levels_of(reader, Term(scale * by, over, weights, samples[0]))
    if is_partial and terms:
        raise NearMiss("it adds up over other axes than levels and points")
    return terms if is_sum or len(terms) > 1 else []


def _levels_of(reader: Reader, term: Term) -> Iterator[Term]:
    """Yield the term of each level, where one sum is over levels and points."""
    digit = _level_digit(term)
    if digit is None:
        yield _pointed(reader, term, {}, term.points)
        return
    variable, inner, count = digit
    if not isinstance(count, int) or not isinstance(inner, int) or variable.size != inner * count:
        raise NearMiss("the number of its levels is open")
    if count > MOST_LEVELS:
        raise NearMiss(f"it has {count} levels")
    rest = Variable(f"{variable.name} within", inner)
    points = tuple(rest if point == variable else point for point in term.points)
    for level in range(count):
        by = {variable: number(level * inner) + along(rest)}
        yield _pointed(reader, term, by, points)


def _level_digit(term: Term) -> Digit | None:
    """Return the summed digit along which the pixels of levels of one size follow each other."""
    if not isinstance(term.sample.body, Element):
        return None
    image = {*term.sample.over}
    for position in term.sample.body.index:
        own = [t for t in position.terms if t.variable in term.points]
        if own and image & variables_of([position]):
            return own[0].digit
    return None


def _pointed(
    reader: Reader, term: Term, by: Mapping[Variable, Position], points: Sequence[Variable]
) -> Term:
    """Return a term with positions in place of variables, and with points of the same names for all
    levels.
    """
    points = [point for point in points if point.size != 1]
    named = tuple(Variable(f"point {k}", point.size) for k, point in enumerate(points))
    renamed = dict(zip(points, map(along, named), strict=True))

    def moved(form: Form) -> Form:
        return reader.forms.substituted(reader.forms.substituted(form, by), renamed)

    sample = moved(term.sample)
    assert isinstance(sample, Sample)  # a substitution keeps its kind
    return Term(term.scale, named, tuple(map(moved, term.weights)), sample)
