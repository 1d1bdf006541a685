"""Reads what the element of a value is by the table of operators: lazily, each once, within a
budget.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper

from ...declaration.dtypes import HALVES
from ...model.nodes import domain_of, graphs_in
from .affine import (
    Array,
    Digit,
    Dimension,
    Index,
    Position,
    Term,
    Unknown,
    Variable,
    along,
    as_int,
    fitted,
    number,
    substituted,
)
from .arithmetic import NARROW, fits
from .constructors import Forms
from .forms import Budget, Condition, Form, Whole
from .rolling import rolled

PER_NODE, AT_LEAST = 10, 5_000  # steps of reading that a model may take in all, some 50 us each
FEW = 8  # terms of sizes
LONG_SIZES = 20
USUAL = 16  # parts of an index, beyond which reading takes longer
WORK = 3  # forms that are made or looked at for a step
DEEPEST = 80  # values that are read within each other; Python's stack has room for 1,000 calls
MOST_ROLLED = 256  # numbers at which a variable is read one by one
LARGEST = 2**22  # elements of a constant that is fitted
# What rules fail with for a node whose inputs aren't known, or aren't valid.
FAILURES = (
    Unknown, ValueError, IndexError, KeyError, TypeError, AttributeError, ZeroDivisionError,
    RecursionError
)  # fmt: skip


if TYPE_CHECKING:
    from typing import Protocol, TypeAlias

    from ..tensor_types import Type

    # What a constant's elements are, if simple.
    Fit: TypeAlias = "float | Position | OneEach | None"

    class GraphView(Protocol):
        """What a reader sees of a graph: rewriting.graph.Graph, which makes a reader of itself."""

        owner: onnx.GraphProto
        producers: dict[str, onnx.NodeProto]
        users: Counter[str]
        measured: Counter[str]
        reader: "Reader"

        @property
        def outer(self) -> "GraphView | None": ...
        @property
        def consumers(self) -> Mapping[str, list[tuple[onnx.NodeProto, int]]]: ...

        def type(self, name: str) -> Type: ...
        def home(self, name: str) -> "GraphView | None": ...
        def array(self, name: str) -> Array | None: ...
        def folded(self, name: str) -> Array | None: ...
        def is_constant(self, name: str) -> bool: ...
        def is_sound(self, node: onnx.NodeProto) -> bool: ...
        def producer(self, name: str, *op_types: str) -> onnx.NodeProto | None: ...


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Return a node's attributes as {name: value}."""
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


@dataclass(frozen=True)
class Query:
    """An element of a value.

    bare  whether only moves are followed from it on: what is computed there would be computed once
          for each window
    """

    name: str
    index: Index
    bare: bool


# What a rule returns: a form, the element that it was moved from, or None.
Result = Form | Query | None


@dataclass(frozen=True)
class Rule:
    """How elements of an operator's output are made. moves: whether it only moves them."""

    function: "Callable[[Site], Result]"
    moves: bool


@dataclass(frozen=True)
class OneEach:
    """A constant with one value at one place for each number of an axis, and zeros elsewhere."""

    value: float
    zeros: tuple[Position, ...]  # what is 0 at these places


class Reader:
    """Reads values of a graph.

    budget  what reading may still take, in all graphs of the model
    order   {value: the number of its node}
    starts  {output of a Concat, or first one of a Split: where its parts begin, and where the last
            one ends}
    failed  {value: why the rule of its node failed}
    """

    def __init__(self, graph: "GraphView", table: Mapping[str, Rule], is_exact: bool = False):
        self.graph = graph
        self.table = table
        self.budget: Budget = (
            _budget(graph.owner) if graph.outer is None else graph.outer.reader.budget
        )
        self.forms = Forms(self.shape, self.budget, is_exact)
        self.failed: dict[str, str] = {}
        self.order = {name: k for k, node in enumerate(graph.owner.node) for name in node.output}
        self.starts: dict[str, list[Dimension]] = {}
        self._memo: dict[Query, Form] = {}
        self._fits: dict[tuple[str, tuple[int | None, ...]], Fit] = {}
        self._depth = 0

    def shape(self, name: str) -> tuple[Dimension, ...]:
        """Return the shape of a root. Raises Unknown."""
        if name in self.forms.tables:
            return self.forms.tables[name].shape
        dimensions = self.graph.type(name).shape
        if dimensions is None:
            raise Unknown(f"the rank of {name}")
        return dimensions

    def site(self, name: str, index: Index = (), bare: bool = False) -> "Site":
        """Return the site of an element of a value. Raises Unknown if no node makes it."""
        node = self.node(name)
        if node is None:
            raise Unknown(f"what makes {name}")
        return Site(self, node, Query(name, index, bare))

    def node(self, name: str) -> onnx.NodeProto | None:
        """Return the valid node that makes a value, in this graph or one around it; or None."""
        home = self.graph.home(name)
        if home is None:
            return None
        node = home.producers.get(name)
        return node if node is not None and home.is_sound(node) else None

    def whole(self, name: str) -> Form:
        """Return the form of all of a value: at an index of variables 0, 1, 2, ..."""
        return self.read(name, axes_of(self.shape(name)))

    def read(self, name: str, index: Index, bare: bool = False) -> Form:
        """Return the form of a value's element. Raises Exhausted, Unknown."""
        trail = []
        query = Query(name, index, bare)
        while query not in self._memo:
            if self._depth > DEEPEST:  # not kept: who asks for this value itself gets to know more
                return self.forms.element(query.name, query.index)
            trail.append(query)
            result = self._step(query)
            if isinstance(result, Query):
                query = result
            else:
                self._memo[query] = result
        form = self._memo[query]
        for passed in reversed(trail):
            self._memo[passed] = form
            self.forms.occurrences[form].setdefault(passed.name, passed.index)
        return form

    def _step(self, query: Query) -> Form | Query:
        self.budget.step(1 + sum(map(_length, query.index)) // USUAL)
        root = self.forms.element(query.name, query.index)
        if query.name in self.forms.tables:
            return root
        array = None if query.bare else self.array(query.name)
        if array is not None:
            return self.constant(query.name, array, query.index)
        node = self.node(query.name)
        rule = None if node is None else self.rule_of(node)
        if node is None:
            return root
        result = None
        if rule is not None and self.follows(node, rule, query):
            result = self._by_rule(rule, node, query)
        if result is not None and result is not root:
            return result
        array = self.graph.folded(query.name) if node.input and not query.bare else None
        return root if array is None else self.constant(query.name, array, query.index)

    def array(self, name: str) -> Array | None:
        """Return a constant that is read before the node that makes it."""
        return self.graph.array(name)

    def rule_of(self, node: onnx.NodeProto) -> Rule | None:
        """Return the rule of a node's operator."""
        return self.table.get(title_of(node))

    def follows(self, node: onnx.NodeProto, rule: Rule, query: Query) -> bool:
        """Return whether an element is followed through the node that makes it."""
        return rule.moves or not query.bare

    def _by_rule(self, rule: Rule, node: onnx.NodeProto, query: Query) -> Result:
        self._depth += 1
        try:
            result = rule.function(Site(self, node, query))
            return (
                result
                if rule.moves or result is None or self._is_exact(result, query.name)
                else None
            )
        except FAILURES as failure:
            self.failed.setdefault(query.name, str(failure) if isinstance(failure, Unknown) else "")
            return None
        finally:
            self._depth -= 1

    def _is_exact(self, result: Form | Query, name: str) -> bool:
        """Return whether what is computed is certain not to overflow.

        Indices that data state are small.
        """
        elements = self.graph.type(name).elements
        return (
            fits(result.position, elements) if isinstance(result, Whole) else elements not in NARROW
        )

    def constant(self, name: str, array: Array, index: Index) -> Form:
        """Return the form of a constant's element: a number, a sum of digits, one value at some
        places, or itself.
        """
        numbers = tuple(None if position.terms else as_int(position.start) for position in index)
        sized = zip(array.shape, index, strict=True)
        by = {
            Variable(f"axis {axis}", size): position for axis, (size, position) in enumerate(sized)
        }
        with suppress(Unknown, IndexError):  # a session refuses an index outside of the constant
            match self._fitted(name, array, numbers):
                case float() as value:
                    return self.forms.number(value)
                case Position() as position:
                    return self.forms.whole(substituted(position, by))
                case OneEach(value, zeros):
                    conditions = [Condition("==", substituted(position, by)) for position in zeros]
                    return self.forms.guard(conditions, self.forms.number(value))
        return self.forms.element(name, index)

    def _fitted(self, name: str, array: Array, numbers: tuple[int | None, ...]) -> "Fit":
        """Return what `_fit` finds in a constant at these numbers; None stands for all of an axis.

        Raises IndexError.
        """
        key = name, numbers
        if key not in self._fits:
            picked = array[
                tuple(slice(None) if position is None else position for position in numbers)
            ]
            if picked.dtype.name in HALVES:
                # NumPy's own arithmetic lacks some of these types.
                picked = picked.astype(np.float32)
            self._fits[key] = _fit(
                picked, [axis for axis, position in enumerate(numbers) if position is None]
            )
        return self._fits[key]


def _length(position: Position) -> int:
    """Return the number of parts of a position. Terms of long sizes count several times."""
    start, terms = position.start, position.terms
    count = 0 if isinstance(start, int) else len(start.terms)
    for _, _, size, step in terms:  # most sizes are numbers, and this runs for each step
        if not isinstance(size, int):
            count += len(size.terms)
        if not isinstance(step, int):
            count += len(step.terms)
    return 1 + len(terms) + count * (LONG_SIZES if count > FEW else 4)


def _budget(graph: onnx.GraphProto) -> Budget:
    """Return what reading may take in a graph and in its subgraphs, which also read values around
    them.
    """
    steps = PER_NODE * sum(len(inner.node) for inner in graphs_in(graph)) + AT_LEAST
    return Budget(steps, WORK * steps)


def title_of(node: onnx.NodeProto) -> str:
    """Return the name of a node's operator in the table: with the domain, unless it is ai.onnx."""
    domain = domain_of(node)
    return f"{domain}.{node.op_type}" if domain else node.op_type


def axes_of(dimensions: Sequence[Dimension]) -> Index:
    """Return the index of variables 0, 1, 2, ..., one for each axis of a shape."""
    return tuple(along(Variable(str(axis), size)) for axis, size in enumerate(dimensions))


def _fit(array: Array, axes: Sequence[int]) -> "Fit":
    """Return what the elements of a constant are, over the variables of these axes; None if they
    are nothing simple.
    """
    if not 0 < array.size <= LARGEST or array.dtype.kind not in "biuf":
        return None
    variables = [Variable(f"axis {k}", size) for k, size in zip(axes, array.shape, strict=True)]
    if (array == array.flat[0]).all():
        return float(array.flat[0])
    if _are_whole(array):
        position = fitted(array, variables)
        if position is not None:
            return position
    return _one_each(array, variables)


def _are_whole(array: Array) -> bool:
    """Return whether all elements are whole numbers, and none is large."""
    if array.dtype.kind == "f" and not (
        np.isfinite(array).all() and (array == np.rint(array)).all()
    ):
        return False
    return max(-int(array.min()), int(array.max())) < 2**31


def _one_each(array: Array, variables: Sequence[Variable]) -> OneEach | None:
    indices = np.argwhere(array)
    values = array[tuple(indices.T)]
    if len(indices) not in array.shape or not (values == values[0]).all():
        return None
    for axis in range(array.ndim):
        if not np.array_equal(indices[:, axis], np.arange(array.shape[axis])):
            continue
        other_axes = [k for k in range(array.ndim) if k != axis]
        ats = [fitted(indices[:, k], [variables[axis]]) for k in other_axes]
        zeros = [
            position - along(variables[k])
            for k, position in zip(other_axes, ats, strict=True)
            if position
        ]
        if len(zeros) == len(other_axes):
            return OneEach(float(values[0]), tuple(zeros))
    return None


@dataclass(frozen=True)
class Site:
    """What a rule of the table sees: a node, and the element of its output that is asked for."""

    reader: Reader
    node: onnx.NodeProto
    query: Query

    @cached_property
    def attributes(self) -> dict[str, Any]:
        return attributes_of(self.node)

    @property
    def forms(self) -> Forms:
        return self.reader.forms

    @property
    def elements(self) -> int:
        """The data type of the output, by its number in ONNX."""
        return self.reader.graph.type(self.query.name).elements

    @property
    def index(self) -> Index:
        return self.query.index

    @property
    def shape(self) -> tuple[Dimension, ...]:
        return self.reader.shape(self.query.name)

    def shape_of(self, k: int) -> tuple[Dimension, ...]:
        """Return the shape of the k-th input."""
        return self.reader.shape(self.node.input[k])

    def has(self, k: int) -> bool:
        """Return whether there is a k-th input."""
        return k < len(self.node.input) and bool(self.node.input[k])

    def axis(self, rank: int = 0) -> int:
        """Return the axis that the node states, of so many; by default, of those of the output."""
        return range(rank or len(self.index))[self.attributes.get("axis", 0)]

    def move(self, k: int, index: Sequence[Position], bare: bool = False) -> Query:
        """Return the element of an input that this one is."""
        return Query(self.node.input[k], tuple(index), bare or self.query.bare)

    def read(self, k: int, index: Sequence[Position], bare: bool | None = None) -> Form:
        """Return the form of an input's element."""
        is_bare = self.query.bare if bare is None else bare
        return self.reader.read(self.node.input[k], tuple(index), is_bare)

    def integers(self, k: int) -> list[Dimension]:
        """Return the numbers that a vector or a single number holds, as an input.

        Raises Unknown.
        """
        array = self.reader.graph.array(self.node.input[k])
        if array is not None and array.dtype.kind in "iu":
            return [*map(int, array.ravel())]
        dimensions = self.shape_of(k)
        (size,) = dimensions or (1,)
        if not isinstance(size, int):
            raise Unknown(f"the size of {self.node.input[k]}")
        indices = [(number(j),) if dimensions else () for j in range(size)]
        return [whole_number(self.read(k, index, bare=False)) for index in indices]

    def fresh(self, size: Dimension, count: int = 0) -> Variable:
        """Return a variable that isn't in the index: the count-th one."""
        names = self.forms.unused(self.index)
        return Variable(next(itertools.islice(names, count, None)), size)

    def rolled(self, forms: Sequence[Form], position: Position) -> Form:
        """Return the form that is each of the parts where a position is 0, 1, 2, ...

        Raises Unknown.
        """
        variable = Variable("roll", len(forms))
        return self.forms.substituted(rolled(self.forms, forms, variable), {variable: position})

    def one_by_one(self, axis: int) -> Form:
        """Return the form of this very element, read at each number of a variable of an axis.

        Raises Unknown.
        """
        counted = [
            (term.size, term)
            for term in self.index[axis].terms
            if isinstance(term.size, int) and term.size <= MOST_ROLLED
        ]
        if not counted:
            raise Unknown("an open number of cases")
        count, term = min(counted, key=lambda pair: pair[0])
        digits = {
            t.digit
            for position in self.index
            for t in position.terms
            if t.variable == term.variable
        }
        if len(digits) > 1:
            raise Unknown("other digits of the same variable")
        elements = []
        for k in range(count):
            index = tuple(_at_number(position, term.digit, k) for position in self.index)
            elements.append(self.reader.read(self.query.name, index, self.query.bare))
        return self.rolled(elements, Position(0, (Term(*term.digit, 1),)))


def _at_number(position: Position, digit: Digit, value: int) -> Position:
    """Return a position with a number in place of a digit."""
    kept = tuple(term for term in position.terms if term.digit != digit)
    steps = [term.step for term in position.terms if term.digit == digit]
    return Position(position.start + sum(steps) * value, kept)


def whole_position(form: Form) -> Position:
    """Return the position that a form of whole numbers is. Raises Unknown."""
    if not isinstance(form, Whole):
        raise Unknown("an integer")
    return form.position


def whole_number(form: Form) -> Dimension:
    """Return the one number that a form is. Raises Unknown."""
    position = whole_position(form)
    if position.terms:
        raise Unknown("an integer")
    return position.start
