"""Programs of ComputedGridSample, from the expressions of coordinates."""

import numpy as np
from onnx import TensorProto, helper

from ..declaration import plain
from ..declaration.errors import OpError
from ..sampling.computed_grid_sample import COMPUTED_GRID_SAMPLE, INPUTS, SOURCES, STEPS, Source, Step, program
from .expressions import AXES, LARGEST, NARROWING, Leaf, Operation, Pixels, as_source
from .finding import NearMiss
from .indices import shape
from .reshapes import open_size, reshape
from .sizes import are_numbers, parts_of_broadcast


class Program:
    """A program that grows. A value of it is the position of a source, or ~k for the result of step k.

    graph, node  the GridSample
    dtype        in which it computes, by name: that of the grid, float32 if it is of 16 bits
    """

    def __init__(self, graph, node, dtype):
        self.graph, self.node, self.dtype = graph, node, dtype
        self.inputs, self.sources, self.steps, self.numbers = [], [], [], []
        self.stated = set()  # axes of the output whose sizes are those of sources made for them
        self.values = {}  # {what it is: the value}

    def value(self, what):
        """Return the value of an expression."""
        if what is None:
            return None
        if isinstance(what, Operation):
            return self._once(what, lambda: self.operation(what.op_type, *map(self.value, what.operands)))
        if isinstance(what, Leaf):
            return self.leaf(self.converted(what.name), what.index)
        if isinstance(what, Pixels):
            self.stated.add(what.axis)
            return self.source(self.input(self._once(what, lambda: self.range(what))), (what.axis,))
        if what.array.dtype != self.dtype:  # what is compared may be of another type
            raise NearMiss(f"a constant is of {what.array.dtype}, and not of {self.dtype}, as its grid is")
        return self.array(what.array)

    def operation(self, op_type, *operands):
        """Return the value of a node of ai.onnx."""
        if op_type in ("Greater", "GreaterOrEqual"):
            return self.step(op_type.replace("Greater", "Less"), *operands[::-1])
        op_type = {"And": "Mul", "Or": "Max"}.get(op_type, op_type)  # of values that are 0 or 1
        if op_type == "Not":
            return self.step("Sub", self.number(1), *operands)
        if op_type == "Reciprocal":
            return self.step("Div", self.number(1), *operands)
        if op_type == "MatMul":
            total = self.step("Mul", *operands[:2])
            for pair in zip(operands[2::2], operands[3::2], strict=True):
                total = self.step("MulAdd", *pair, total)
            return total
        if op_type == "Cube":
            return self.step("Mul", self.step("Mul", *operands * 2), *operands)
        if op_type == "Clip":
            value, low, high = (*operands, None, None)[:3]
            ends = np.finfo(self.dtype)  # without a limit, too, ONNX Runtime makes finite numbers of infinities
            low, high = (self.number(end.item()) if limit is None else limit
                         for limit, end in ((low, ends.min), (high, ends.max)))  # fmt: skip
            return self.step("Clip", value, low, high)
        if op_type in ("Min", "Max", "Sum"):
            total, *others = operands
            for other in others:
                total = self.step(op_type.replace("Sum", "Add"), total, other)
            return total
        return self.step(op_type, *operands)

    def step(self, op_type, *operands):
        """Return the result of an operation of the program."""
        return self._once(("step", op_type, operands), lambda: ~self._append(self.steps, Step(op_type, operands)))

    def source(self, position, index):
        """Return the elements of an input at an index of positions and names of AXES."""
        index = tuple(index)
        return self._once(("source", position, index), lambda: self._append(self.sources, Source(position, index)))

    def number(self, number):
        """Return a constant."""
        key = number, str(number)  # 0 and -0 are equal
        return self._once(key, lambda: self.source("numbers", (self._append(self.numbers, number),)))

    def array(self, array, name="values"):
        """Return a constant that varies along those of AXES along which it has more than one element."""
        if array.size == 1:
            return self.number(array.item())
        index = [axis for axis, size in zip(AXES, array.shape, strict=True) if size != 1]
        array = np.ascontiguousarray(array.reshape([size for size in array.shape if size != 1]), self.dtype)
        key = "array", tuple(index), array.tobytes()
        return self._once(key, lambda: self.source(self.input(self.constant(name, array)), index))

    def leaf(self, name, index):
        """Return the elements of a value of the graph at an index, whose axes are taken apart or joined as needed."""
        try:
            dimensions = shape(self.graph, name)
            parts, target, names = as_source(index, dimensions)
        except (ValueError, TypeError):
            raise NearMiss(f"how {name} is read is not known") from None
        if any((around, each) != (1, 1) for around, _, each in parts):
            once = name
            name = self._once(("repeated", once, *parts), lambda: self.repeated(once, parts))
            dimensions = None
        if tuple(target) != dimensions:
            whole = name
            name = self._once(("apart", whole, *target), lambda: self.reshaped(whole, target))
        if not names:  # a source has an axis at least
            name = self._once(("vector", name), lambda: self.graph.add_axes(self.node, name, 0))
        return self.source(self.input(name), names or (0,))

    def repeated(self, name, parts):
        """Return a value of the graph with parts of its axes, (times around, size, times each), repeated."""
        apart, longer = [n for _, size, _ in parts for n in (1, size, 1)], [n for part in parts for n in part]
        if not are_numbers(longer):
            raise NearMiss(f"the sizes of {name}, which is repeated, are open")
        return self.add_node("Expand", self.reshaped(name, apart), longer)

    def reshaped(self, name, target):
        """Return a value of the graph with other sizes, as a value of it."""
        return self.graph.add_node(self.node, "Reshape", **reshape(self.graph, self.node, name, target))

    def range(self, pixels):
        """Return the name of a vector of Pixels.

        The Range is of integers: ONNX Runtime refuses one of floats where it knows the sizes before their Cast.
        """
        size = self.add_node("Gather", pixels.sizes, pixels.position)
        zero, one = (self.constant(name, np.array(name == "one", np.int64)) for name in ("zero", "one"))
        return self.converted(self.graph.add_node(self.node, "Range", [zero, size, one]))

    def converted(self, name):
        """Return a value of the program's type: the value itself, or a Cast of a boolean, a size or a 16-bit float."""
        kind = self.graph.type(name).elements
        target = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        if kind in (TensorProto.BOOL, TensorProto.INT64) or (kind in NARROWING and target == TensorProto.FLOAT):
            return self._once(("converted", name), lambda: self.add_node("Cast", name, to=target))
        if kind != target:
            raise NearMiss(f"{name} is not known to be of {self.dtype}, as its grid is")
        return name

    def input(self, name):
        """Return the position of a value of the graph among the inputs."""
        return self._once(("input", name), lambda: self._append(self.inputs, name))

    def constant(self, name, array):
        return self.graph.add_constant(f"{self.node.output[0]}_{name}", array)

    def add_node(self, op_type, name, *lists, **attributes):
        """Add a node with a value and integers, or lists of these, as inputs; returns its output's name."""
        constants = [self.graph.add_constant(op_type, np.array(integers, np.int64)) for integers in lists]
        return self.graph.add_node(self.node, op_type, [name, *constants], **attributes)

    def finished(self, coordinates):
        """Return (inputs, attributes) of the node, given the values that are the coordinates x, y (and z)."""
        for what, most, count in (
            ("inputs", INPUTS, len(self.inputs) + bool(self.numbers)), ("sources", SOURCES, len(self.sources)),
            ("steps", STEPS, len(self.steps)),
        ):  # fmt: skip
            if count > most:
                raise NearMiss(f"its coordinates need {count} {what}, ComputedGridSample takes {most}")
        inputs = [*self.inputs]
        if self.numbers:
            inputs.append(self.constant("numbers", np.array(self.numbers, self.dtype)))
        sources = {k: (len(self.inputs) if source.input == "numbers" else source.input, *source.index)
                   for k, source in enumerate(self.sources)}  # fmt: skip
        steps = {~k: (step.operation, *step.operands) for k, step in enumerate(self.steps)}
        attributes = program(sources, steps, coordinates)
        unknown = [None] * (1 + len(inputs))
        try:
            plain.infer(COMPUTED_GRID_SAMPLE, COMPUTED_GRID_SAMPLE.values(attributes), unknown, unknown)
        except OpError as error:
            raise NearMiss(str(error)) from None
        return inputs, attributes

    def _append(self, items, item):
        """Append an item to a list; returns its position."""
        items.append(item)
        return len(items) - 1

    def _once(self, key, make):
        if key not in self.values:
            self.values[key] = make()
        return self.values[key]


def axes_of(dimensions):
    """Return the names of the axes of a grid with these dimensions, except for the last one."""
    return "n" + AXES[-dimensions[-1] :]


def state_sizes(program, dimensions):
    """Have the sources state the sizes of the output. Raises NearMiss if one isn't known to be what they state."""
    for axis, size in zip(axes_of(dimensions)[1:], dimensions[1:-1], strict=True):
        stated = [size_of(program, position, at) for position, index in program.sources
                  for at, along in enumerate(index) if along == axis]  # fmt: skip
        # A number may be that of a constant, to which pixels of an open size are broadcast.
        is_stated = size in stated or (axis in program.stated and not isinstance(size, int))
        for part in () if is_stated else [each for each in parts_of_broadcast(size) if each not in (1, *stated)]:
            if not isinstance(part, int):
                zero = helper.make_tensor("", helper.np_dtype_to_tensor_dtype(np.dtype(program.dtype)), [1], [0])
                zeros = program.add_node("ConstantOfShape", open_size(program.graph, program.node, part), value=zero)
                program.source(program.input(zeros), (axis,))
            elif part > LARGEST:
                raise NearMiss(f"the size of its grid along {axis}, {part}, is large, and not that of a value")
            else:
                program.array(np.zeros([part if axis == other else 1 for other in AXES]), axis)


def size_of(program, position, axis):
    """Return the size of an input of a program along one of its axes, or None."""
    dimensions = shape(program.graph, program.inputs[position])
    return None if dimensions is None else dimensions[axis]
