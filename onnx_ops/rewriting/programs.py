"""Programs of ComputedGridSample, from the forms of coordinates."""

import math
from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from ..declaration import plain
from ..declaration.errors import OpError
from ..sampling.computed_grid_sample import (
    COMPUTED_GRID_SAMPLE,
    INPUTS,
    OPERATIONS,
    SOURCES,
    STEPS,
    Source,
    Step,
    program,
)
from .finding import NearMiss
from .graph import Graph
from .once import once
from .reading.affine import (
    Array,
    Dimension,
    Index,
    Position,
    Variable,
    as_int,
    number,
    variables_of,
)
from .reading.coordinates import AXES, coordinates
from .reading.forms import CASTS, Element, Form, Number, Op, Sum, Whole, children, value_of
from .reading.reader import Reader
from .reshapes import open_size, reshape
from .sizes import are_numbers, parts_of_broadcast
from .sources import LARGEST, Part, Reading, elements, numbers, reading_of

MOST_TERMS = 4  # of a sum
RENAMED = {"And": "Mul", "Or": "Max"}  # of values that are 0 or 1
SWAPPED = {"Greater": "Less", "GreaterOrEqual": "LessOrEqual"}
COMPUTED = {*OPERATIONS, *RENAMED, *SWAPPED, "Not", "Pow", "Reciprocal"}
READING = 5  # steps of the reader that it costs to find how elements are read
MANY = 10 * STEPS  # that are not counted further


class Program:
    """A program that grows. A value of it is the position of a source, or ~k for the result of step
    k.

    reader       reads its coordinates
    graph, node  the node that becomes ComputedGridSample
    dtype        in which it computes
    stated       the axes of the output whose sizes are those of sources made for them
    known        results of methods
    """

    def __init__(self, reader: Reader, graph: Graph, node: onnx.NodeProto, elements: int):
        self.reader = coordinates(reader, elements)
        self.graph = graph
        self.node = node
        self.dtype = np.dtype(helper.tensor_dtype_to_np_dtype(self.reader.elements))
        self.inputs: list[str] = []
        self.sources: list[Source] = []
        self.steps: list[Step] = []
        self.numbers: list[float] = []
        self.stated: set[str] = set()
        self.known: dict[tuple[Hashable, ...], Any] = {}

    # Forms.

    def element(self, name: str, index: Index) -> int:
        """Return the value of an element of the graph's value, at an index over AXES.

        Raises NearMiss.
        """
        return self.value(self.reader.read(name, index))

    @once
    def value(self, form: Form) -> int:
        """Return the value of a form, computed as far back as possible. Raises NearMiss."""
        occurrence = self.place(form)
        if occurrence is not None:
            return self.source_of(*occurrence)
        if not self.is_computed(form):
            names = ", ".join(self.reader.forms.occurrences[form]) or "a coordinate"
            raise NearMiss(f"how {names} is read is not known")
        return self._value(form)

    @once
    def place(self, form: Form) -> tuple[str, Index] | None:
        """Return the value of the graph, and the index, that a form is read from; None if it is
        computed.
        """
        if isinstance(form, Element) and self._is_readable(form.root, form.index):
            return form.root, form.index
        if self.is_computed(form):
            return None
        order = self.reader.order
        end = order[self.node.output[0]]
        for name, index in self.reader.forms.occurrences[form].items():
            if order.get(name, -1) < end and self._is_readable(name, index):
                return name, index
        return None

    def leaves(self, forms: Iterable[Form]) -> set[str]:
        """Return the values of the graph that forms are read from."""
        pending = [*forms]
        seen: set[Form] = set()
        names: set[str] = set()
        while pending:
            form = pending.pop()
            if form in seen:
                continue
            seen.add(form)
            occurrence = self.place(form)
            if occurrence is not None:
                names.add(occurrence[0])
            elif not self.is_computed(form):
                names |= self.reader.forms.occurrences[form].keys()
            elif isinstance(form, Sum):
                pending += self.terms(form)
            else:
                pending += children(form)
        return names - self.reader.forms.tables.keys()

    def is_rounded(self, form: Form, elements: int) -> bool:
        """Return whether a form is of a 16-bit type, by its number, without rounding."""
        occurrence = self.place(form)
        if occurrence is not None:
            return self.graph.type(occurrence[0]).elements == elements
        return isinstance(form, Op) and form.op == CASTS.get(elements)

    @once
    def is_computed(self, form: Form) -> bool:
        """Return whether a form is an operation of what is known, a number, or an element that can
        be read.
        """
        match form:
            case Number():
                return True
            case Whole(position):
                variables = variables_of([position])
                are_axes = {variable.name for variable in variables} <= {*AXES}
                are_whole = all(term.is_whole for term in position.terms)
                return are_axes and (are_whole or are_numbers([v.size for v in variables]))
            case Element(root, index):
                return self._is_readable(root, index)
            case Op("Pow", (base, exponent)):
                return self._constant(exponent) in (2, 3) and self._is_known(base)
            case Op(op, operands):
                return op in COMPUTED and all(map(self._is_known, operands))
            case Sum():
                return self._terms(form) <= STEPS and all(map(self._is_known, self.terms(form)))
        return False

    def _is_known(self, form: Form) -> bool:
        return self.is_computed(form) or self.place(form) is not None

    def _is_readable(self, name: str, index: Index) -> bool:
        try:
            self._array(name, index)
        except ValueError:
            return False
        return True

    @once
    def _array(self, name: str, index: Index) -> Array | Reading:
        """Return elements of a constant, or how those of another value are read.

        Raises ValueError.
        """
        tables = self.reader.forms.tables
        array = tables[name] if name in tables else self.graph.folded(name)
        if array is not None:
            with suppress(ValueError, IndexError):
                return elements(array, index)
        self.reader.budget.step(READING)
        element_type = self.graph.type(name).elements
        if element_type != TensorProto.BOOL and not self.reader.reads(element_type):
            raise ValueError("another type")
        return reading_of(index, self.reader.shape(name))

    def _constant(self, form: Form) -> float | None:
        """Return the number that a form is; None if it is none."""
        if isinstance(form, Element) and self._is_readable(form.root, form.index):
            array = self._array(form.root, form.index)
            return array.item() if isinstance(array, np.ndarray) and array.size == 1 else None
        return value_of(form)

    def _terms(self, form: Form) -> int:
        """Return the number of terms of a sum, with those of the sums in it."""
        match form:
            case Sum(over, body):
                sizes = [variable.size for variable in over]
                count = math.prod(map(as_int, sizes)) if are_numbers(sizes) else 0
                return count * self._terms(body) if 0 < count <= MOST_TERMS else STEPS + 1
            case Op(_, operands):
                return max(map(self._terms, operands))
        return 1

    @once
    def terms(self, form: Sum) -> list[Form]:
        """Return the terms of a sum."""
        terms = []
        for numbers_of_term in np.ndindex(*(as_int(variable.size) for variable in form.over)):
            by = dict(zip(form.over, map(number, map(int, numbers_of_term)), strict=True))
            terms.append(self.reader.forms.substituted(form.body, by))
        return terms

    def _value(self, form: Form) -> int:
        match form:
            case Number(value):
                return self.number(value)
            case Whole(position):
                return self.whole(position)
            case Sum():
                return self.total(self.terms(form))
            case Op("Pow", (base, exponent)):
                value = self.value(base)
                square = self.step("Mul", value, value)
                return square if self._constant(exponent) == 2 else self.step("Mul", square, value)
            case Op("Clip", (operand, low, high)):
                limits = [self.limit(low, -1), self.limit(high, 1)]
                return self.step("Clip", self.value(operand), *limits)
            case Op(op, operands):
                return self.operation(op, *map(self.value, operands))
        raise NearMiss("its coordinates are not known")

    def operation(self, op: str, *operands: int) -> int:
        """Return the value of an elementwise operation."""
        if op in SWAPPED:
            return self.step(SWAPPED[op], *operands[::-1])
        if op == "Not":
            return self.step("Sub", self.number(1), *operands)
        if op == "Reciprocal":
            return self.step("Div", self.number(1), *operands)
        return self.step(RENAMED.get(op, op), *operands)

    def limit(self, form: Form, sign: int) -> int:
        """Return the limit of a Clip.

        Without a limit, too, ONNX Runtime makes finite numbers of infinities.
        """
        if value_of(form) != sign * math.inf:
            return self.value(form)
        return self.number(sign * float(np.finfo(self.dtype).max))

    def total(self, terms: Sequence[Form]) -> int:
        """Return the value of a sum.

        A product that no node rounds, as in a product of matrices, isn't rounded.
        """
        total: int | None = None
        for term in terms:
            factors = self._unrounded(term)
            if total is None:
                total = self.value(term)
            elif factors:
                total = self.step("MulAdd", *map(self.value, factors), total)
            else:
                total = self.step("Add", total, self.value(term))
        assert total is not None  # a sum has terms
        return total

    def _unrounded(self, form: Form) -> tuple[Form, ...]:
        """Return the factors of a product that no node rounds."""
        if isinstance(form, Op) and form.op == "Mul" and self.is_computed(form):
            return () if self.reader.forms.occurrences[form] else form.operands
        return ()

    def whole(self, position: Position) -> int:
        """Return the value of a position."""
        with suppress(ValueError):
            return self.array(numbers(position))
        total = None if position.terms and position.start == 0 else self.size(position.start)
        for term in position.terms:
            pixels = self.range(term.variable)
            if term.step != 1:
                pixels = self.step("Mul", self.size(term.step), pixels)
            total = pixels if total is None else self.step("Add", pixels, total)
        assert total is not None  # a position has terms or a start
        return total

    def size(self, size: Dimension) -> int:
        """Return the value of a size, which may be open."""
        if isinstance(size, int):
            return self.number(size)
        addend = size.terms.get((), 0)
        if addend:
            return self.step("Add", self.size(size - addend), self.number(addend))
        name, index = self.size_element(size)
        return self.source(self.input(self.converted(name)), index)

    @once
    def size_element(self, size: Dimension) -> tuple[str, tuple[int, ...]]:
        """Return a vector of integers and a position at which it holds an open size."""
        forms = self.reader.forms
        for name, index in forms.occurrences[forms.whole(number(size))].items():
            if len(index) == 1 and not index[0].terms and isinstance(index[0].start, int):
                return name, (index[0].start,)
        return open_size(self.graph, self.node, size), (0,)

    @once
    def range(self, variable: Variable) -> int:
        """Return the value that is the number of a pixel along one of AXES, of an open size.

        The Range is of integers: ONNX Runtime refuses one of floats where it knows the sizes before
        their Cast.
        """
        self.stated.add(variable.name)
        name, (position,) = self.size_element(variable.size)
        size = self.add_node("Gather", name, position)
        zero, one = (
            self.constant(text, np.array(text == "one", np.int64)) for text in ("zero", "one")
        )
        pixels = self.graph.add_node(self.node, "Range", [zero, size, one])
        return self.source(self.input(self.converted(pixels)), (variable.name,))

    # Steps and sources.

    @once
    def step(self, op_type: str, *operands: int) -> int:
        """Return the result of an operation of the program."""
        if len(self.steps) > MANY:
            raise NearMiss(
                f"its coordinates need more than {MANY} steps, ComputedGridSample takes {STEPS}"
            )
        return ~_append(self.steps, Step(op_type, operands))

    @once
    def source(self, position: int | str, index: tuple[int | str, ...]) -> int:
        """Return the elements of an input at an index of positions and names of AXES."""
        return _append(self.sources, Source(position, index))

    def number(self, value: float) -> int:
        """Return a constant."""
        return self._number(value, str(value))  # 0 and -0 are equal

    @once
    def _number(self, value: float, text: str) -> int:
        return self.source("numbers", (_append(self.numbers, value),))

    def array(self, array: Array, name: str = "values") -> int:
        """Return a constant that varies along those of AXES along which it has more than one
        element.
        """
        if array.size == 1:
            return self.number(array.item())
        index = tuple(axis for axis, size in zip(AXES, array.shape, strict=True) if size != 1)
        lengths = tuple(size for size in array.shape if size != 1)
        content = np.ascontiguousarray(array, self.dtype).tobytes()
        return self.source(self.input(self._constant_of(content, lengths, name)), index)

    @once
    def _constant_of(self, content: bytes, lengths: tuple[int, ...], name: str) -> str:
        return self.constant(name, np.frombuffer(content, self.dtype).reshape(lengths))

    def source_of(self, name: str, index: Index) -> int:
        """Return the elements of a value of the graph at an index over AXES. Raises ValueError."""
        elements = self._array(name, index)
        if isinstance(elements, np.ndarray):
            return self.array(elements)
        name = self.converted(name)
        dimensions: tuple[Dimension, ...] | None = self.reader.shape(name)
        if any(part.is_repeated for part in elements.parts):
            name = self.repeated(name, elements.parts)
            dimensions = None
        if elements.sizes != dimensions:
            name = self.reshaped(name, elements.sizes)
        if not elements.index:  # a source has an axis at least
            name = self.vector(name)
        return self.source(self.input(name), elements.index or (0,))

    @once
    def vector(self, name: str) -> str:
        """Return a value of the graph without axes, with one."""
        return self.graph.add_axes(self.node, name, 0)

    @once
    def repeated(self, name: str, parts: tuple[Part, ...]) -> str:
        """Return a value of the graph with parts of its axes repeated."""
        apart = tuple(size for part in parts for size in (1, part.size, 1))
        longer = [size for part in parts for size in (part.around, part.size, part.each)]
        if not are_numbers(longer):
            raise NearMiss(f"the sizes of {name}, which is repeated, are open")
        return self.add_node("Expand", self.reshaped(name, apart), longer)

    @once
    def reshaped(self, name: str, target: tuple[Dimension, ...]) -> str:
        """Return a value of the graph with other sizes, as a value of it."""
        arguments = reshape(self.graph, self.node, name, target)
        return self.graph.add_node(self.node, "Reshape", **arguments)

    @once
    def converted(self, name: str) -> str:
        """Return a value of the program's type: the value itself, or a Cast of a boolean, a size or
        a 16-bit float.
        """
        if self.graph.type(name).elements == self.reader.elements:
            return name
        return self.add_node("Cast", name, to=self.reader.elements)

    @once
    def input(self, name: str) -> int:
        """Return the position of a value of the graph among the inputs."""
        return _append(self.inputs, name)

    def constant(self, name: str, array: Array) -> str:
        """Add a constant to the graph; returns its name."""
        return self.graph.add_constant(f"{self.node.output[0]}_{name}", array)

    def add_node(self, op_type: str, name: str, *lists: Any, **attributes: Any) -> str:
        """Add a node with a value and integers, or lists of these, as inputs; returns its output's
        name.
        """
        constants = [
            self.graph.add_constant(op_type, np.array(integers, np.int64)) for integers in lists
        ]
        return self.graph.add_node(self.node, op_type, [name, *constants], **attributes)

    # The whole.

    def state_sizes(self, dimensions: Sequence[Dimension]) -> None:
        """Have the sources state the sizes of the output's image.

        Raises NearMiss if one isn't known to be what they state.
        """
        for axis, size in zip(AXES[-len(dimensions) :], dimensions, strict=True):
            stated = [
                self._size_of(position, k)
                for position, index in self.sources
                for k, along in enumerate(index)
                if along == axis
            ]
            # A number may be that of a constant, to which pixels of an open size are broadcast.
            if size in stated or (axis in self.stated and not isinstance(size, int)):
                continue
            for operand_size in parts_of_broadcast(size):
                if operand_size not in (1, *stated):
                    self._state_size(axis, operand_size)

    def _state_size(self, axis: str, size: Dimension) -> None:
        if isinstance(size, int) and size > LARGEST:
            raise NearMiss(
                f"the size of its grid along {axis}, {size}, is large, and not that of a value"
            )
        if isinstance(size, int):
            self.array(np.zeros([size if axis == name else 1 for name in AXES]), axis)
            return
        zero = helper.make_tensor("", self.reader.elements, [1], [0])
        vector = open_size(self.graph, self.node, size)
        zeros = self.add_node("ConstantOfShape", vector, value=zero)
        self.source(self.input(zeros), (axis,))

    def _size_of(self, position: int, axis: int) -> Dimension | None:
        """Return the size of an input along one of its axes, or None."""
        dimensions = self.graph.type(self.inputs[position]).shape
        return None if dimensions is None else dimensions[axis]

    def finished(self, values: Sequence[int]) -> tuple[list[str], dict[str, Any]]:
        """Return (inputs, attributes) of the node, given the values that are the coordinates x, y
        (and z).
        """
        for title, most, count in (
            ("inputs", INPUTS, len(self.inputs) + bool(self.numbers)),
            ("sources", SOURCES, len(self.sources)),
            ("steps", STEPS, len(self.steps)),
        ):
            if count > most:
                raise NearMiss(
                    f"its coordinates need {count} {title}, ComputedGridSample takes {most}"
                )
        inputs = [*self.inputs]
        if self.numbers:
            inputs.append(self.constant("numbers", np.array(self.numbers, self.dtype)))
        sources = {
            k: (len(self.inputs) if source.input == "numbers" else source.input, *source.indices)
            for k, source in enumerate(self.sources)
        }
        steps = {~k: (step.operation, *step.operands) for k, step in enumerate(self.steps)}
        attributes = program(sources, steps, values)
        unknown = [None] * (1 + len(inputs))
        try:
            attribute_values = COMPUTED_GRID_SAMPLE.values(attributes)
            plain.infer(COMPUTED_GRID_SAMPLE, attribute_values, unknown, unknown)
        except OpError as error:
            raise NearMiss(str(error)) from None
        return inputs, attributes


def _append(items: list[Any], item: Any) -> int:
    """Append an item to a list; returns its position."""
    items.append(item)
    return len(items) - 1
