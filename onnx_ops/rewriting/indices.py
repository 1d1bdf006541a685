"""Which element of its input each element of a node's output is, for the nodes that only move elements.

An index has a `Position` for each axis of a value: a number, or a sum over variables that run from 0 to their sizes.
The rules go from a node's output to its input.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from .finding import tried
from .integers import attributes_of, cuts, integer_list, integers, lattice, part_of_sequence, shape, sliced
from .sizes import never_negative, quotient

LONGEST = 60  # nodes of a path


class Variable(NamedTuple):
    """A number v that runs from 0 to size - 1."""

    name: str
    size: object


@dataclass(frozen=True)
class Term:
    """step * (v // inner % size) for a variable v: all of it, or one of the digits that a Reshape makes of it."""

    variable: Variable
    inner: object
    size: object
    step: object


@dataclass(frozen=True)
class Position:
    """The sum of a number and of terms, which are sorted."""

    start: object = 0
    terms: tuple = ()

    def __add__(self, other):
        return position(self.start + other.start, (*self.terms, *other.terms))

    def times(self, factor):
        return position(self.start * factor, [replace(term, step=term.step * factor) for term in self.terms])

    def is_number(self):
        return not self.terms


def position(start, terms):
    """Return a Position, in which digits of one variable that are side by side are one digit."""
    terms = [term for term in terms if term.size != 1 and term.step != 0]
    pairs = [(outer, inner) for outer in terms for inner in terms if is_followed(outer, inner)]
    if pairs:
        (outer, inner), *_ = pairs
        others = [term for term in terms if term is not outer and term is not inner]
        return position(start, [*others, replace(inner, size=outer.size * inner.size)])
    return Position(start, tuple(sorted(terms, key=lambda term: (term.variable.name, repr(term)))))


def is_followed(outer, inner):
    return (outer.variable, outer.inner, outer.step) == (
        inner.variable,
        inner.inner * inner.size,
        inner.step * inner.size,
    )


def variable(name, size):
    """Return the Position that runs along an axis of this size."""
    return position(0, [Term(Variable(name, size), 1, size, 1)])


def variables(dimensions):
    """Return an index of a variable for each axis. Its name is the axis' number."""
    return tuple(variable(str(k), size) for k, size in enumerate(dimensions))


def joined(digits):
    """Return the Position of an axis that consists of digits, [(Position, size)], the most significant one first."""
    total = Position()
    for digit, size in digits:
        total = total.times(size) + digit
    return total


def layout(sizes, *axes, **fixed):
    """Return an index of axes that consist of variables. axes: texts of one-letter names; fixed: numbers for some."""
    digits = {name: Position(fixed[name]) if name in fixed else variable(name, size) for name, size in sizes.items()}
    return tuple(joined([(digits[name], sizes[name]) for name in axis]) for axis in axes)


def digits_of(at, size):
    """Return [(Position, size)] of the digits that an axis of this size consists of: at least itself."""
    remaining, digits, step = list(at.terms), [], 1
    while remaining and at.start == 0:
        term = next((term for term in remaining if term.step == step), None)
        if term is None:
            break
        remaining.remove(term)
        digits.insert(0, (Position(0, (replace(term, step=1),)), term.size))
        step = step * term.size
    return digits if digits and not remaining and step == size else [(at, size)]


def _divided(at, by):
    """Return (at // by, at % by) as Positions. Raises ValueError if that is unknown."""
    if at.is_number():
        return Position(at.start // by), Position(at.start % by)
    (term,) = at.terms
    size = quotient(term.size, by)
    if (at.start, term.step) != (0, 1) or size is None:
        raise ValueError("not a digit")
    outer, inner = replace(term, inner=term.inner * by, size=size), replace(term, size=by)
    return position(0, [outer]), position(0, [inner])


def reshaped(index, sizes, target):
    """Return the index into a value of shape `target` for one into the same elements with the shape `sizes`.

    Raises ValueError or IndexError if there is none for certain.
    """
    digits = [d for at, size in zip(index, sizes, strict=True) for d in digits_of(at, size) if d[1] != 1]
    result = []
    for size in target:
        taken, rest = [], size
        while rest != 1:
            at, digit_size = digits.pop(0)
            outer = quotient(rest, digit_size)
            if outer is None:  # the axis ends within the digit
                inner = quotient(digit_size, rest)
                at, remaining = _divided(at, inner)
                digits.insert(0, (remaining, inner))
                digit_size, outer = rest, 1
            taken.append((at, digit_size))
            rest = outer
        result.append(joined(taken))
    if digits:
        raise ValueError("sizes differ")
    return tuple(result)


def broadcast_index(dimensions, target, index):
    """Return the index into a value that is broadcast to another shape. Raises ValueError if it is uncertain."""
    more = len(index) - len(dimensions)
    if more < 0 or any(not isinstance(d, int) and d != w for d, w in zip(dimensions, target[more:], strict=True)):
        raise ValueError("dimensions differ, or are unknown")
    return tuple(Position() if d == 1 else at for d, at in zip(dimensions, index[more:], strict=True))


def moved(graph, node, name, index):
    """Return (input, index) of the elements that a node moves to an index of its output `name`; None if unknown."""
    return tried(MOVES[node.op_type], graph, node, attributes_of(node), name, index)


def path(graph, name, source=None, shared=True):
    """Go back from a value through nodes that only move elements; returns ([(node, its output), ...], where it ends).

    The path ends at the source, if one is given and the path leads there, and where several values are put together;
    unless `shared`, also at a value that has other users.
    """
    steps = []
    while name != source and len(steps) < LONGEST and (node := graph.producer(name, *MOVES)) is not None:
        if node.op_type == "Concat" or (node.op_type == "Cast" and not _keeps_type(graph, node)):
            break
        if graph.users[name] > 1 and not shared:
            break
        steps.append((node, name))
        name = node.input[0]
    return steps, name


def followed(graph, steps, index):
    """Return the index at which the steps of a path lead to the value where it ends; None if that is unknown."""
    for node, name in steps:
        target = moved(graph, node, name, index)
        if target is None:
            return None
        index = target[1]
    return index


# Rules: each returns (input, index) for an index of the node's output, or fails.


def _same(graph, node, attributes, name, index):
    return node.input[0], index


def _cast(graph, node, attributes, name, index):
    return (node.input[0], index) if _keeps_type(graph, node) else None


def _keeps_type(graph, node):
    return graph.type(node.input[0]).elements == attributes_of(node)["to"]


def _transpose(graph, node, attributes, name, index):
    order = attributes.get("perm", list(range(len(index)))[::-1])
    return node.input[0], tuple(index[order.index(k)] for k in range(len(index)))


def _reshape(graph, node, attributes, name, index):
    return node.input[0], reshaped(index, shape(graph, name), shape(graph, node.input[0]))


def _gather(graph, node, attributes, name, index):
    dimensions, picked = shape(graph, node.input[0]), integers(graph, node.input[1])
    if picked is None:
        return None
    axis, points = range(len(dimensions))[attributes.get("axis", 0)], lattice(picked)
    rank = len(picked.shape)
    ats = index[axis : axis + rank]
    if points is None:
        if not all(at.is_number() for at in ats):
            return None
        at = Position(int(picked[tuple(at.start for at in ats)]))
    else:
        at = Position(points.start)
        for step, each in zip(points.steps, ats, strict=True):
            at += each.times(step)
    if not all(map(never_negative, (at.start, *(term.step for term in at.terms)))):
        if at.terms or not isinstance(dimensions[axis], int):
            return None
        at = Position(at.start % dimensions[axis])
    return node.input[0], (*index[:axis], at, *index[axis + rank :])


def _slice(graph, node, attributes, name, index):
    dimensions, index = shape(graph, node.input[0]), list(index)
    for axis, start, end, step in cuts(graph, node):
        if (start, step) == (0, 1):
            continue
        positions = sliced(dimensions[axis], start, end, step)
        index[axis] = Position(positions.start) + index[axis].times(step)
    return node.input[0], tuple(index)


def _split(graph, node, attributes, name, index):
    axis = range(len(index))[attributes.get("axis", 0)]
    before = node.output[: list(node.output).index(name)]
    return node.input[0], _shifted(index, axis, sum(shape(graph, output)[axis] for output in before))


def _shifted(index, axis, start):
    return (*index[:axis], Position(start) + index[axis], *index[axis + 1 :])


def _sequence_at(graph, node, attributes, name, index):
    axis, start, _ = part_of_sequence(graph, node)
    return node.input[0], _shifted(index, axis, start)


def _concat(graph, node, attributes, name, index):
    """ONNX Runtime leaves out what has no elements, whatever its other sizes: they must be known to be equal."""
    axis, target = range(len(index))[attributes["axis"]], list(shape(graph, name))
    start = index[axis].start
    if not index[axis].is_number():
        return None
    for operand in node.input:
        target[axis] = shape(graph, operand)[axis]
        if shape(graph, operand) != tuple(target) or not isinstance(target[axis], int):
            return None
        if start < target[axis]:
            return operand, _shifted(index, axis, start - index[axis].start)
        start -= target[axis]
    return None


def _expand(graph, node, attributes, name, index):
    return node.input[0], broadcast_index(shape(graph, node.input[0]), shape(graph, name), index)


def _tile(graph, node, attributes, name, index):
    repeats, dimensions = integer_list(graph, node.input[1]), shape(graph, node.input[0])
    if any(r != 1 != d for r, d in zip(repeats, dimensions, strict=True)):
        return None
    return node.input[0], tuple(at if r == 1 else Position() for r, at in zip(repeats, index, strict=True))


MOVES = {
    "Cast": _cast,
    "Concat": _concat,
    "Expand": _expand,
    "Flatten": _reshape,
    "Gather": _gather,
    "Identity": _same,
    "Reshape": _reshape,
    "SequenceAt": _sequence_at,
    "Slice": _slice,
    "Split": _split,
    "SplitToSequence": _same,
    "Squeeze": _reshape,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _reshape,
}
