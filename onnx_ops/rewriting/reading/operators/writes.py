"""Rules of operators that write updates into data: ScatterElements and ScatterND, where indices are known."""

from collections.abc import Iterable, Mapping, Sequence

from ..affine import Index, Position, Variable, along, as_int, is_at_least, number
from ..forms import Condition, Form, inside
from ..reader import Made, Site, whole_position
from .moves import replaced
from .table import operator


@operator("ScatterElements", moves=True)
def scatter_elements(site: Site) -> Made:
    axis = site.axis(len(site.index))
    sizes = site.shape_of(1)
    own = site.fresh(sizes[axis])
    places = replaced(site.index, axis, along(own))
    written = {axis: whole_position(site.read(1, places, bare=False))}
    return _scattered(site, written, places, [own], inside(places, sizes))


@operator("ScatterND", moves=True)
def scatter_nd(site: Site) -> Made:
    *sizes, size = site.shape_of(1)
    depth = as_int(size)
    own = [site.fresh(size, k) for k, size in enumerate(sizes)]
    places = tuple(map(along, own))
    is_overwriting = _reduction(site) == b"none"
    written: dict[int, Position] = {}
    for k in range(depth):
        written[k] = whole_position(site.read(1, (*places, number(k)), bare=False))
        is_one_place = not written[k].terms and not site.index[k].terms
        if is_overwriting and is_one_place and written[k] != site.index[k]:
            return site.move(0, site.index)  # as most are in a chain of writes
    return _scattered(site, written, (*places, *site.index[depth:]), own, ())


def _reduction(site: Site) -> bytes:
    return site.attributes.get("reduction", b"none")


def _scattered(
    site: Site,
    written: Mapping[int, Position],
    places: Index,
    own: Sequence[Variable],
    limits: Iterable[Condition],
) -> Made:
    """Return what an element is that an update may be written to.

    written  {axis of the output: the position to which the update at `places` is written}
    own      the variables along which updates run, those of `places` that aren't in the index
    limits   conditions that `places` lie inside of the updates
    """
    reduction = _reduction(site)
    if reduction == b"add":
        return _added(site, written, places, own, limits)
    if reduction != b"none":
        return None
    solutions: dict[Variable, Position] = {}
    for axis, at in written.items():
        terms = [t for t in at.terms if t.variable in own and t.variable not in solutions]
        rest = site.index[axis] - at
        if terms:
            if not terms[0].is_whole or terms[0].step != 1:
                return None
            solutions[terms[0].variable] = rest + along(terms[0].variable)
        elif rest.terms and not is_at_least(rest, 1) and not is_at_least(rest.times(-1), 1):
            return site.one_by_one(axis)
        elif rest != number(0):
            return site.move(0, site.index)
    if any(variable.size != 1 and variable not in solutions for variable in own):
        return None  # several updates are written to one element: it isn't said which one remains
    found = [solutions.get(variable, number(0)) for variable in own]
    by = {along(variable): at for variable, at in zip(own, found, strict=True)}
    needs = [*inside(found, [variable.size for variable in own])]
    needs += () if solutions else limits
    return _overwritten(site, tuple(by.get(at, at) for at in places), needs)


def _added(
    site: Site,
    written: Mapping[int, Position],
    places: Index,
    own: Sequence[Variable],
    limits: Iterable[Condition],
) -> Form:
    """Return an element to which all updates are added that are written there."""
    equal = [Condition("==", at - site.index[axis]) for axis, at in written.items()]
    update = site.forms.guard([*equal, *limits], site.read(2, places, bare=True))
    return site.forms.op("Add", site.read(0, site.index), site.forms.total(own, update))


def _overwritten(site: Site, places: Index, needs: Sequence[Condition]) -> Form:
    """Return the update at `places` where all needs hold, else the data."""
    forms = site.forms
    needs = [need for need in needs if not is_at_least(need.at)]
    total = forms.number(0)
    for k, need in enumerate(needs):  # where this is the first one that doesn't hold
        missed = Condition(">=", number(-1) - need.at)
        data = forms.guard([*needs[:k], missed], site.read(0, site.index))
        total = forms.op("Add", total, data)
    return forms.op("Add", forms.guard(needs, site.read(2, places)), total)
