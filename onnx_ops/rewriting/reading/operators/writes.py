"""Rules of operators that write updates into data: ScatterElements and ScatterND, where indices are
known.

Exporters write a slice after the other into one value. Such a chain of writes, each at one number
of an axis, is walked once: from each of them an element leads to the last write before it at its
number.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from ..affine import (
    Dimension,
    Index,
    Position,
    Term,
    Unknown,
    Variable,
    along,
    as_int,
    from_the_start,
    is_at_least,
    number,
    substituted,
)
from ..constructors import MOST_PARTS
from ..forms import Condition, Form, inside
from ..reader import Query, Reader, Result, Site, axes_of, whole_position
from .moves import replaced
from .table import operator

SCATTERS = "ScatterElements", "ScatterND"


@operator("ScatterElements", moves=True)
def scatter_elements(site: Site) -> Result:
    axis = site.axis()
    sizes = site.shape_of(1)
    own = site.fresh(sizes[axis])
    update_index = replaced(site.index, axis, along(own))
    written = {axis: _written(site, update_index, site.shape[axis])}
    size_pairs = zip(sizes, site.shape, strict=True)
    limited = {k: size for k, (size, total) in enumerate(size_pairs) if k == axis or size != total}
    return _scattered(site, written, update_index, [own], limited)


@operator("ScatterND", moves=True)
def scatter_nd(site: Site) -> Result:
    *sizes, depth = site.shape_of(1)
    own = [site.fresh(size, k) for k, size in enumerate(sizes)]
    update_index = tuple(map(along, own))
    is_overwriting = _reduction(site) == b"none"
    written: dict[int, Position] = {}
    for axis in range(as_int(depth)):
        written[axis] = _written(site, (*update_index, number(axis)), site.shape[axis])
        if is_overwriting and _are_other_numbers(written[axis], site.index[axis]):
            return _before(site, axis)  # as for most elements of a chain
    limited = dict(enumerate(sizes))
    return _scattered(site, written, (*update_index, *site.index[as_int(depth) :]), own, limited)


def _reduction(site: Site) -> bytes:
    return site.attributes.get("reduction", b"none")


def _written(site: Site, index: Index, size: Dimension) -> Position:
    """Return the position along an axis of the output that the indices state. Raises Unknown."""
    return from_the_start(whole_position(site.read(1, index, bare=False)), size)


def _are_other_numbers(position: Position, wanted: Position) -> bool:
    return not position.terms and not wanted.terms and position != wanted


def _scattered(
    site: Site,
    written: Mapping[int, Position],
    update_index: Index,
    own: Sequence[Variable],
    limited: Mapping[int, Dimension],
) -> Result:
    """Return what an element is that an update may be written to.

    written  {axis of the output: the position to which the update at `update_index` is written}
    own      the variables along which updates run, those of `update_index` that aren't in the index
    limited  {axis of the updates: its size}, where the updates end before the index may
    """
    reduction = _reduction(site)
    if reduction == b"add":
        return _added(site, written, update_index, own, limited)
    if reduction != b"none":
        return None
    solved = _solved(site, written, own)
    if isinstance(solved, Query):
        return solved
    solutions, equal = solved
    if any(variable.size != 1 and variable not in solutions for variable in own):
        return None  # several updates are written to one element: it isn't said which one remains
    for axis in equal:
        with suppress(Unknown):
            return site.one_by_one(axis)
    if any(len(_chain(site.reader, site.query.name, axis)[0].names) > MOST_PARTS for axis in equal):
        raise Unknown("the writes differ")
    update_index = tuple(substituted(position, solutions) for position in update_index)
    needs = inside([update_index[axis] for axis in limited], [*limited.values()])
    return _overwritten(site, update_index, [*needs], [*equal.values()])


def _solved(
    site: Site, written: Mapping[int, Position], own: Sequence[Variable]
) -> tuple[dict[Variable, Position], dict[int, Position]] | Query:
    """Return which update is written to an element: ({variable: its position}, {axis: what must be
    0}).

    Or the element of the data, if it is certain that none is. Raises Unknown.
    """
    solutions: dict[Variable, Position] = {}
    equal: dict[int, Position] = {}
    for axis, position in written.items():
        position = substituted(position, solutions)
        rest = site.index[axis] - position
        terms = [term for term in position.terms if term.variable in own]
        if terms:
            (term,) = terms
            solution = _solution(rest + Position(0, (term,)), term)
            if solution is None:
                return site.move(0, site.index)
            solutions[term.variable] = solution
        elif is_at_least(rest, 1) or is_at_least(rest.times(-1), 1):
            return _before(site, axis)
        elif rest != number(0):
            equal[axis] = rest
    return solutions, equal


def _solution(wanted: Position, term: Term) -> Position | None:
    """Return where a term's variable makes it a wanted position; None if nowhere.

    Raises Unknown.
    """
    if not term.is_whole:
        raise Unknown("a part of a variable")
    if term.step in (1, -1):
        return wanted.times(term.step)
    if wanted.terms:
        raise Unknown("every so many")
    start, step = as_int(wanted.start), as_int(term.step)
    return None if start % step else number(start // step)


def _added(
    site: Site,
    written: Mapping[int, Position],
    update_index: Index,
    own: Sequence[Variable],
    limited: Mapping[int, Dimension],
) -> Form:
    """Return an element to which all updates are added that are written there."""
    limits = inside([update_index[axis] for axis in limited], [*limited.values()])
    equal = [Condition("==", position - site.index[axis]) for axis, position in written.items()]
    update = site.forms.guard([*equal, *limits], site.read(2, update_index, bare=True))
    return site.forms.op("Add", site.read(0, site.index), site.forms.total(own, update))


def _overwritten(
    site: Site, update_index: Index, needs: Iterable[Condition], equal: Iterable[Position]
) -> Form:
    """Return the update at `update_index` where all needs hold and others are 0, else the data."""
    forms = site.forms
    needs = [need for need in needs if not is_at_least(need.position)]
    needs += [Condition("==", position) for position in equal]
    if not needs:
        return site.read(2, update_index)
    data = site.read(0, site.index)
    total = forms.number(0)
    for k, need in enumerate(needs):  # where this is the first one that doesn't hold
        misses = [number(-1) - need.position] + [need.position - number(1)] * (
            need.relation == "=="
        )
        for miss in misses:
            rest = forms.guard([*needs[:k], Condition(">=", miss)], data)
            total = forms.op("Add", total, rest)
    return forms.op("Add", forms.guard(needs, site.read(2, update_index)), total)


@dataclass
class Chain:
    """Writes, each at one number of an axis, and each into what the one before it makes.

    base    the data of the first one
    names   what they make
    writes  {number: which of them are at it}
    """

    base: str
    names: list[str] = field(default_factory=list)
    writes: dict[Dimension, list[int]] = field(default_factory=lambda: defaultdict(list))


def _before(site: Site, axis: int) -> Query:
    """Return where an element is from that a write at another place leaves as it is."""
    position = site.index[axis]
    chain, k = _chain(site.reader, site.query.name, axis)
    if position.terms or k < 0:
        return site.move(0, site.index)
    before = chain.writes[position.start]
    last = bisect_left(before, k) - 1
    name = chain.base if last < 0 else chain.names[before[last]]
    return Query(name, site.index, site.query.bare)


def _chain(reader: Reader, name: str, axis: int) -> tuple[Chain, int]:
    """Return the chain of writes along an axis that a value is in, and which of them made it; -1 if
    it is in none.
    """
    known = reader.forms.known
    pending: list[tuple[str, Dimension]] = []
    while ("chain", name, axis) not in known and (position := _number_written(reader, name, axis)):
        pending.append((name, position.start))
        name = reader.site(name).node.input[0]
    chain, k = known.get(("chain", name, axis), (Chain(name), -1))
    if pending and k + 1 < len(chain.names):  # another one goes on from there
        chain, k = Chain(name), -1
    for name, at_number in reversed(pending):
        k += 1
        chain.names.append(name)
        chain.writes[at_number].append(k)
        known["chain", name, axis] = chain, k
    return chain, k


def _number_written(reader: Reader, name: str, axis: int) -> Position | None:
    """Return the one number of an axis at which a node overwrites data; None if it isn't one, or no
    such node.
    """
    node = reader.node(name)
    if node is None or node.op_type not in SCATTERS:
        return None
    site = reader.site(name)
    with suppress(Unknown, IndexError):
        index = axes_of(site.shape_of(1))
        if node.op_type == "ScatterND":
            *_, depth = site.shape_of(1)
            index = (*index[:-1], number(range(as_int(depth))[axis]))
        elif site.axis(len(site.shape)) != axis:
            return None
        position = _written(site, index, site.shape[axis])
        return None if position.terms or _reduction(site) != b"none" else position
    return None
