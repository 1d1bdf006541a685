"""Integers that are known up to the sizes which a model leaves open: polynomials in these with
integer factors.

A constant is a plain int: arithmetic on `Size`s gives ints where the unknowns cancel. Sums,
products, and divisions by constants that round down, are kept in one normal form: sizes that
compare equal are equal in every run.
"""

import ast
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, ValuesView
from hashlib import sha256
from typing import TYPE_CHECKING, Any

LONGEST = 1000  # characters of a name
MOST_TERMS = 32  # of a polynomial; a longer one becomes an unknown size
MOST_FACTORS = 16  # of a product in it


class Unknown(str):
    """The name of an unknown number.

    least   its lower bound, or None if it has none
    of      the sizes from which it is computed
    by      the number by which the first of these is divided, rounding down; 0 if it isn't
    origin  (a value, an axis) of which nothing is known: its own, or the first one it depends on
    """

    least: int | None
    of: "tuple[Dimension, ...]"
    by: int
    origin: tuple[str, int] | None


class Size:
    """A polynomial that is no constant."""

    __slots__ = ("hash", "terms")

    def __init__(self, terms: "Terms"):
        self.terms = terms
        self.hash = hash(frozenset(terms.items()))  # sizes are keys of many dictionaries

    def __add__(self, other: "Dimension") -> "Dimension":
        terms = dict(self.terms)
        for names, factor in _terms(other).items():
            terms[names] = terms.get(names, 0) + factor
        return _simplify(terms)

    def __mul__(self, other: "Dimension") -> "Dimension":
        if isinstance(other, int):
            return _simplify({names: factor * other for names, factor in self.terms.items()})
        count = len(self.terms) * len(_terms(other))
        if count > MOST_TERMS or _degree(self) + _degree(other) > MOST_FACTORS:
            bounds = [
                bound for bound in map(least, (self, other)) if bound is not None and bound >= 0
            ]
            name = "*".join(sorted(f"({size})" for size in (self, other)))
            return unknown(
                f"({name})", math.prod(bounds) if len(bounds) == 2 else None, (self, other)
            )
        terms: Terms = {}
        for names, factor in self.terms.items():
            for other_names, by in _terms(other).items():
                product = tuple(sorted(names + other_names))
                terms[product] = terms.get(product, 0) + factor * by
        return _simplify(terms)

    def __floordiv__(self, other: "Dimension") -> "Dimension":
        if not isinstance(other, int) or other < 1:
            return unknown(f"(({self})//({other}))", None, (self,))
        result = _simplify({names: factor // other for names, factor in self.terms.items()})
        rest = _simplify({names: factor % other for names, factor in self.terms.items()})
        if isinstance(rest, int):
            return result + rest // other
        rounded = [
            names
            for names, factor in rest.terms.items()
            if factor == 1 and len(names) == 1 and names[0].by
        ]
        if len(rounded) == 1:  # (a // b + c) // d = (a + b * c) // (b * d)
            ((name,),) = rounded
            return result + (name.of[0] + (rest - Size({(name,): 1})) * name.by) // (
                name.by * other
            )
        smallest = least(rest)
        smallest = None if smallest is None else smallest // other
        return result + unknown(f"(({rest})//{other})", smallest, (rest,), other)

    def __sub__(self, other: "Dimension") -> "Dimension":
        return self + -other

    def __rsub__(self, other: int) -> "Dimension":
        return -self + other

    def __neg__(self) -> "Dimension":
        return self * -1

    __radd__ = __add__
    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Size) and self.terms == other.terms

    def __hash__(self) -> int:
        return self.hash

    def __repr__(self) -> str:
        """Return a text, which is the same for equal sizes."""
        terms = sorted(self.terms.items())
        return " + ".join(
            "*".join([*([str(factor)] if factor != 1 or not names else []), *names])
            for names, factor in terms
        )


Dimension = int | Size

if TYPE_CHECKING:
    from typing import TypeGuard, TypeVar

    # {sorted names of the unknowns in a product: its factor}.
    Terms = dict[tuple[Unknown, ...], int]
    T = TypeVar("T")


def _degree(size: Dimension) -> int:
    """Return how many unknowns the longest product in a polynomial has."""
    return max(map(len, _terms(size)), default=0)


def _terms(size: Dimension) -> "Terms":
    return size.terms if isinstance(size, Size) else {(): int(size)}


def are_numbers(sizes: Iterable[object]) -> "TypeGuard[Sequence[int]]":
    """Return whether none of the sizes depends on unknowns, or is None."""
    return all(isinstance(size, int) for size in sizes)


def as_target(sizes: Iterable[Dimension | None]) -> list[int]:
    """Return sizes as a Reshape states them: -1 for those that are open."""
    return [size if isinstance(size, int) else -1 for size in sizes]


def factors(size: Dimension) -> ValuesView[int]:
    """Return the factors in a polynomial; of a constant, itself."""
    return _terms(size).values()


def _simplify(terms: "Terms") -> Dimension:
    terms = {names: factor for names, factor in terms.items() if factor}
    if not terms.keys() - {()}:
        return terms.get((), 0)
    size = Size(terms)
    return size if len(terms) <= MOST_TERMS else unknown(f"({size})", least(size), (size,))


def unknown(
    name: str,
    least: int | None = 0,
    of: tuple[Dimension, ...] = (),
    by: int = 0,
    origin: tuple[str, int] | None = None,
) -> Size:
    """Return an unknown size with a name and a least value. Of a long name a digest stays."""
    number = Unknown(name if len(name) < LONGEST else f"size_{sha256(name.encode()).hexdigest()}")
    number.least = least
    number.of = of
    number.by = by
    number.origin = origin or next((first for operand in of for first in origins(operand)), None)
    return Size({(number,): 1})


def size_of(value: str, axis: int) -> Size:
    """Return the unknown size of a value along an axis."""
    return unknown(f"{value}[{axis}]", origin=(value, axis))


def origins(size: Dimension) -> Iterator[tuple[str, int]]:
    """Yield the origins of the unknowns in a polynomial."""
    return (name.origin for names in sorted(_terms(size)) for name in names if name.origin)


def named(text: str) -> Size:
    """Return the size of a dimension with this name, which is no formula, whatever it looks
    like.
    """
    is_plain = text.isascii() and text.isidentifier()
    # Names that are made here have no quotation marks.
    return unknown(text if is_plain else repr(text))


def name_of(size: Size) -> str | None:
    """Return the name of a dimension with this size; None if it has none."""
    text = repr(size)
    if len(size.terms) > 1 or "*" in text or "[" in text:
        return None
    return ast.literal_eval(text) if text.startswith(("'", '"')) else text


def least(size: Dimension) -> int | None:
    """Return a lower bound of a size, or None if none is known."""
    total = 0
    for names, factor in _terms(size).items():
        product = factor
        for name in names:
            if name.least is None or (name.least < 0 and len(names) > 1) or product < 0:
                return None
            product *= name.least
        total += product
    return total


def never_negative(size: Dimension) -> bool:
    """Return whether a size is certain not to be negative."""
    smallest = least(size)
    return smallest is not None and smallest >= 0


def at_least_zero(size: Dimension) -> Dimension:
    """Return max(size, 0)."""
    if isinstance(size, int):
        return max(size, 0)
    return size if never_negative(size) else unknown(f"max({size},0)", of=(size,))


def truncated(size: Dimension, by: int) -> Dimension:
    """Return a size that is divided by a number, rounding to zero, as pools do of images smaller
    than a window.
    """
    exact = quotient(size, by)
    if exact is not None or never_negative(size):
        return size // by if exact is None else exact
    if isinstance(size, int):
        return -(-size // by)
    smallest = least(size)
    return unknown(
        f"trunc(({size})/{by})", None if smallest is None else -(-smallest // by), (size,)
    )


def broadcast_size(column: Sequence[Dimension | None]) -> Dimension | None:
    """Return the broadcast size of sizes, where None stands for an unknown one; None if it is
    unknown.

    Of several open sizes it is one that can't be 1; else each of them is that size, or 1.
    """
    candidates = {
        candidate for d in column if d is not None and d != 1 for candidate in parts_of_broadcast(d)
    }
    numbers = {d for d in candidates if isinstance(d, int)}
    if len(numbers) == 1 and numbers != {0}:
        return numbers.pop()
    if None in column or numbers or len(candidates) < 2:
        return (
            None if None in column or len(candidates) > 1 else candidates.pop() if candidates else 1
        )
    larger = [d for d in candidates if math.gcd(*factors(d)) > 1 or (least(d) or 0) > 1]
    if larger:
        return simplest(larger)
    operands = sorted(candidates, key=repr)
    name = f"broadcast({','.join(map(repr, operands))})"
    return unknown(name, 0, (*operands,)) if len(name) < LONGEST else None


def parts_of_broadcast(size: Dimension) -> tuple[Dimension, ...]:
    """Return the sizes that are broadcast to an open size; itself if it is no result of
    `broadcast_size`.
    """
    ((names, factor), *further) = _terms(size).items() or [((), 0)]
    is_one = not further and factor == 1 and len(names) == 1 and names[0].startswith("broadcast(")
    return names[0].of if is_one else (size,)


def simplest(equal: Iterable[Dimension]) -> Dimension:
    """Return one of several sizes that are equal."""
    return min(equal, key=lambda size: (len(factors(size)), len(repr(size)), repr(size)))


def block_count(size: Dimension, kernel: int, dilation: int, stride: int) -> Dimension:
    """Return how many blocks of so many positions fit along an axis of this size."""
    return at_least_zero((size - dilation * (kernel - 1) - 1) // stride + 1)


def im2col_blocks(attributes: Mapping[str, Any], image: Sequence[Dimension]) -> list[Dimension]:
    """Return how many blocks an Im2Col with these attributes finds along each axis of an image."""
    axes = len(image)
    strides, dilations = (attributes.get(name, [1] * axes) for name in ("strides", "dilations"))
    pads = attributes.get("pads", [0] * 2 * axes)
    padded = [size + pads[a] + pads[axes + a] for a, size in enumerate(image)]
    spacings = zip(padded, attributes["kernel_shape"], dilations, strides, strict=True)
    return [block_count(*spacing) for spacing in spacings]


def parts_of_product(size: Dimension) -> list[Dimension]:
    """Return the factors of a size: a number and unknowns, or the size itself if it is a sum."""
    if isinstance(size, int) or len(size.terms) > 1:
        return [size]
    ((names, factor),) = size.terms.items()
    return [*([factor] if factor != 1 else []), *(Size({(name,): 1}) for name in names)]


def quotient(size: Dimension, by: Dimension) -> Dimension | None:
    """Return q with q * by = size for certain, or None if no such q is known: long division of
    polynomials.
    """
    if size == by:
        return 1
    if by == 0:
        return None
    total: Dimension = 0
    names, factor = _leading(by)
    while size != 0:
        product, coefficient = _leading(size)
        remaining = list(product)
        for name in names:
            if name not in remaining:
                return None
            remaining.remove(name)
        if coefficient % factor:
            return None
        term = _simplify({tuple(remaining): coefficient // factor})
        total = total + term
        size = size - term * by
    return total


def known(value: "T | None") -> "T":
    """Return a value. Raises ValueError if it is None, as it isn't known."""
    if value is None:
        raise ValueError("not known")
    return value


def exact(size: Dimension, by: Dimension) -> Dimension:
    """Return the `quotient`. Raises ValueError if it isn't known."""
    result = quotient(size, by)
    if result is None:
        raise ValueError("not known")
    return result


def _leading(size: Dimension) -> tuple[tuple[Unknown, ...], int]:
    """Return (names, factor) of the term of a polynomial that comes last by degree and names."""
    return max(_terms(size).items(), key=lambda term: (len(term[0]), term[0]))


def evaluated(size: Dimension, number_of: Callable[[Unknown], int]) -> int:
    """Return a size as a number. number_of: a function that returns the number for an unknown."""
    return sum(factor * math.prod(map(number_of, names)) for names, factor in _terms(size).items())
