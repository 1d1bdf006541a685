"""What the reader knows of integers and of moved elements is what nodes compute, also for open
sizes.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from support import arithmetic
from support.arithmetic import (
    add_move,
    add_write,
    filled,
    filled_position,
    shape_arithmetic,
    unknowable,
)
from support.backends import ORT_VERSION, quiet
from support.reading import compared
from support.rewriting_cases import INTEGERS
from support.selection import long_unless
from support.written import Writer, feeds

from onnx_ops.rewriting.graph import graphs_of
from onnx_ops.rewriting.models import Model
from onnx_ops.rewriting.reading import reader_of
from onnx_ops.rewriting.reading.affine import Array, Dimension, Position, Unknown, number
from onnx_ops.rewriting.reading.evaluation import Evaluation, looked_up
from onnx_ops.rewriting.reading.forms import Element, Form, Whole
from onnx_ops.rewriting.reading.reader import Reader, axes_of, whole_number
from onnx_ops.rewriting.sizes import Size, are_numbers, named

pytestmark = pytest.mark.any_library

SIZES = 2, 6, 4, 3
# Seeds, and how many models each of them makes.
FEW = [(0, 10), *(long_unless(False, seed, 50) for seed in range(4))]


def main_reader(proto: onnx.ModelProto) -> Reader:
    return reader_of(next(graphs_of(Model(proto))))


def whole(reader: Reader, name: str) -> Position | None:
    """Return the position over the axes of a value that it is; None if it isn't known to be one."""
    with suppress(Unknown):
        form = reader.whole(name)
        return form.position if isinstance(form, Whole) else None
    return None


def one_by_one(reader: Reader, name: str) -> list[Dimension | None] | None:
    """Return the integers that a value holds; None if it isn't known how many, or there are
    many.
    """
    dimensions = reader.graph.type(name).shape
    if dimensions is None or not are_numbers(dimensions) or np.prod(dimensions) > 2000:
        return None
    integers: list[Dimension | None] = []
    for index in np.ndindex(*dimensions):
        try:
            integers.append(whole_number(reader.read(name, tuple(map(number, index)))))
        except Unknown:
            integers.append(None)
    return integers


# Integers.


@pytest.mark.parametrize(
    ("seed", "models"), [(0, 6), *(long_unless(False, seed, 12) for seed in range(6))]
)
def test_integers_of_random_graphs(seed: int, models: int) -> None:
    rng = np.random.default_rng(seed)
    counts = {"values": 0, "whole": 0, "lists": 0}
    for _ in range(models):
        w = Writer()
        sizes = w.add("Shape", "x")
        values = [
            sizes,
            w.constant([2, 3]),
            *(w.add("Gather", sizes, w.constant(k)) for k in range(3)),
        ]
        values.append(w.add("Range", w.constant(0), values[2], w.constant(1)))
        known_values: dict[str, Any] = {values[1]: np.array([2, 3])}
        other_values = dict(known_values)
        for name in values:
            if name not in known_values:
                known_values[name] = arithmetic.run(w, name, arithmetic.SIZES, {}, 0)
                other_values[name] = arithmetic.run(w, name, arithmetic.OTHERS, {}, 0)
        for _ in range(14):
            nodes = len(w.nodes)
            name = arithmetic.random_node(rng, w, values, known_values)
            result = arithmetic.run(w, name, arithmetic.SIZES, known_values, nodes)
            if result is None:
                del w.nodes[nodes:]
                continue
            values.append(name)
            known_values[name] = result
            other_values[name] = arithmetic.run(w, name, arithmetic.OTHERS, other_values, nodes)
            proto = w.model({"x": ("float32", [*arithmetic.SIZES])}, (name, "int64", None))
            check(
                proto,
                [(arithmetic.SIZES, result), (arithmetic.OTHERS, other_values[name])],
                counts,
            )
    assert counts["whole"] > counts["values"] / 4
    assert counts["lists"] > counts["values"] / 6


def check(
    proto: onnx.ModelProto,
    results: list[tuple[Mapping[str, int], Array | None]],
    counts: dict[str, int],
) -> None:
    """Compare what is known of a model's output with its results for sizes."""
    name = proto.graph.output[0].name
    reader = main_reader(proto)
    index = whole(reader, name)
    integers = one_by_one(reader, name)
    counts["values"] += 1
    counts["whole"] += index is not None
    counts["lists"] += None not in (integers or [None])
    for sizes, result in results:
        if result is None:
            continue
        with suppress(NameError):  # of a size that has nothing but a name
            if index is not None:
                np.testing.assert_array_equal(filled_position(index, result.shape, sizes), result)
        for integer, value in zip(
            integers or (), result.ravel().tolist(), strict=integers is not None
        ):
            with suppress(NameError):
                assert integer is None or filled(integer, sizes) == value


@pytest.mark.parametrize("size", [0, 1, 7])
@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name: str, size: int) -> None:
    """What is known of an integer is what ONNX Runtime computes, or nothing."""
    if ORT_VERSION < (1, 21) and any(type_name in name for type_name in ("int8", "int16")):
        pytest.skip("ONNX Runtime has no such arithmetic")
    w = Writer()
    value = w.add("Cast", INTEGERS[name](w), to=TensorProto.INT64, name="value")
    proto = w.model({"x": ("float32", ["h"])}, (value, "int64", None))
    session = ort.InferenceSession(proto.SerializeToString(), quiet())
    (expected,) = session.run(None, {"x": np.zeros(size, np.float32)})
    integers = one_by_one(main_reader(proto), "value")
    if integers is not None and None not in integers and (are_numbers(integers) or size):
        assert [
            filled(k, {"h": size}) for k in integers if k is not None
        ] == expected.ravel().tolist()
    else:
        assert name in (
            "a size in uint8",
            "a size past int32",
            "a size past int64",
            "half of an empty axis",
        )


@pytest.mark.parametrize("k", range(len([*shape_arithmetic(Writer())])))
def test_shape_arithmetic(k: int) -> None:
    w = Writer()
    name = [*shape_arithmetic(w)][k]
    proto = w.model({"x": ("float32", ["h", "w", "n"])}, (name, "int64", None))
    reader = main_reader(proto)
    index = whole(reader, name)
    integers = one_by_one(reader, name)
    assert index is not None or None not in (integers or [None])
    for sizes in ({"h": 7, "w": 12, "n": 3}, {"h": 8, "w": 5, "n": 1}, {"h": 1, "w": 3, "n": 2}):
        result = arithmetic.expected(proto, sizes)
        if index is not None:
            np.testing.assert_array_equal(filled_position(index, reader.shape(name), sizes), result)
        for integer, value in zip(integers or (), result.ravel().tolist(), strict=bool(integers)):
            assert filled(integer, sizes) == value


@pytest.mark.parametrize("k", range(len([*unknowable(Writer())])))
def test_what_is_unknown(k: int) -> None:
    w = Writer()
    name = [*unknowable(w)][k]
    proto = w.model({"x": ("float32", ["h", "w", "n"])}, (name, "int64", None))
    reader = main_reader(proto)
    integers = one_by_one(reader, name)
    # Floats hold sizes: larger axes than 2**24 aren't made. And a Reshape keeps the number of
    # elements.
    is_known = reader.graph.producers[name].op_type in ("Cast", "Reshape")
    assert (whole(reader, name) is not None) == is_known
    if integers is not None:
        assert (None in integers) != is_known


@pytest.mark.parametrize(
    "array",
    [[5, 3, 1], [-(2**31), 0, 2**31], [2**40, 2**40], [-(2**62), 2**62], [True, False]],
    ids=str,
)
def test_constants(array: list[int]) -> None:
    """Those that are a sum of digits are known over their axes, and each of them as a number,
    unless it is large.
    """
    w = Writer()
    constant = w.constant(np.array(array), np.array(array).dtype)
    reader = main_reader(w.model({}, (w.add("Identity", constant), "int64", None)))
    index = whole(reader, constant)
    is_small = max(map(abs, array)) < 2**31
    assert (index is not None) == is_small
    if index is not None:
        np.testing.assert_array_equal(filled_position(index, [len(array)]), array)


# Moves.


def elements(
    reader: Reader, form: Form, source: Array, dimensions: tuple[Dimension, ...], **opened: int
) -> Array:
    """Return the elements of a source that a form is, over all axes of a value."""
    sizes = [filled(size, opened) for size in dimensions]
    indices = {str(k): numbers.ravel() for k, numbers in enumerate(np.indices(sizes))}
    evaluation = Evaluation(
        reader,
        indices,
        lambda root, index: looked_up(source, index),
        lambda name: opened[name],
        int(np.prod(sizes)),
    )
    return np.broadcast_to(evaluation.value(form), np.prod(sizes)).reshape(sizes)


@pytest.mark.parametrize(("seed", "models"), FEW)
def test_moves(seed: int, models: int) -> None:
    """Known elements are right.

    Some are unknown, since a reshape may cut axes where there is no digit to cut.
    """
    rng = np.random.default_rng(seed)
    known_count = count = 0
    numbered = np.arange(np.prod(SIZES)).reshape(SIZES)
    for _ in range(models):
        w = Writer()
        name = "x"
        value: Array = numbered
        for _ in range(5):
            name = add_move(rng, w, name, value.shape)
            proto = w.model({"x": ("int64", numbered.shape)}, (name, "int64", None))
            results: list[Any] = [*ReferenceEvaluator(proto).run(None, {"x": numbered})]
            value = results[0]
            reader = main_reader(proto)
            assert reader.shape(name) == value.shape
            form = reader.whole(name)
            count += 1
            if isinstance(form, Element) and form.root == "x":
                known_count += 1
                np.testing.assert_array_equal(elements(reader, form, numbered, value.shape), value)
    assert known_count > count / 3


@pytest.mark.parametrize(("seed", "models"), FEW)
def test_elements_that_are_written(seed: int, models: int) -> None:
    """Each element is from the updates or the data, as the reader says, for one and for all along
    axes.
    """
    rng = np.random.default_rng(seed)
    known_count = count = 0
    numbered = np.arange(np.prod(SIZES)).reshape(SIZES)
    for _ in range(models):
        w = Writer()
        proto = w.model({"x": ("int64", SIZES)}, (add_write(rng, w, SIZES), "int64", None))
        results: list[Any] = [*ReferenceEvaluator(proto).run(None, {"x": numbered})]
        value: Array = results[0]
        reader = main_reader(proto)
        assert reader.shape("y") == value.shape
        for free in rng.random((6, value.ndim)) < rng.choice([0, 0.3, 0.7, 1], (6, 1)):
            fixed = [int(rng.integers(size)) for size in value.shape]
            index = tuple(
                axis_index if is_free else number(k)
                for axis_index, k, is_free in zip(axes_of(value.shape), fixed, free, strict=True)
            )
            form = reader.read("y", index)
            count += 1
            if isinstance(form, Element) and form.root == "y":
                continue
            known_count += 1
            indices: list[Any] = [
                numbers if f else k
                for numbers, k, f in zip(np.indices(value.shape), fixed, free, strict=True)
            ]
            indices = [np.broadcast_to(p, value.shape) for p in indices]
            got = elements(reader, form, numbered, value.shape)
            np.testing.assert_array_equal(got, value[tuple(indices)])
    assert known_count > count / 3


TARGETS: list[list[Any]] = [
    ["n", 4, 6, 3],
    ["n", 4, -1],
    [-1, 4, 2, 9],
    ["4n", 6, 3],
    [0, -1],
    [0, 0, 0, 0],
]


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_open_sizes(target: list[Any]) -> None:
    """A batch of any size is merged with another axis and separated again."""
    w = Writer()
    batch = w.add("Gather", w.add("Shape", "x"), w.constant([0]), axis=0)
    sizes = {"n": batch, "4n": w.add("Mul", batch, w.constant(4))}
    y = w.add("Transpose", "x", perm=[0, 2, 1, 3])
    if 0 not in target:
        y = w.add("Reshape", y, w.constant([-1, 18]))
    sizes_of_target = [sizes[t] if t in sizes else w.constant([t]) for t in target]
    y = w.add("Reshape", y, w.add("Concat", *sizes_of_target, axis=0))
    proto = w.model({"x": ("int64", ["n", 6, 4, 3])}, (y, "int64", [None] * len(target)))
    reader = main_reader(proto)
    form = reader.whole(y)
    assert isinstance(form, Element)
    assert form.root == "x"
    for n in (1, 2, 5):
        numbered = np.arange(n * 72).reshape(n, 6, 4, 3)
        (value,) = ReferenceEvaluator(proto).run(None, {"x": numbered})
        np.testing.assert_array_equal(elements(reader, form, numbered, reader.shape(y), n=n), value)


def test_two_names_of_one_size() -> None:
    """A Reshape that gives a batch the size of another value's does so in every run that it
    permits.
    """
    w = Writer()
    y = w.add(
        "Reshape",
        "x",
        w.add("Concat", w.add("Shape", "other", end=1), w.constant([4, 6, 3]), axis=0),
    )
    proto = w.model(
        {"x": ("int64", ["n", 24, 3]), "other": ("int64", ["m"])}, (y, "int64", [None] * 4)
    )
    form = main_reader(proto).whole(y)
    n, row, column, channel = axes_of((named("n"), 4, 6, 3))
    assert isinstance(form, Element)
    assert (form.root, form.index) == ("x", (n, row.times(6) + column, channel))


# Subgraphs.


def in_branch(body: Callable[[Writer], str]) -> onnx.ModelProto:
    """Return a model with nodes in a branch, which read x and values of the graph around it."""
    w, inner = Writer(), Writer()
    w.add("Transpose", "x", perm=[1, 0], name="turned")
    w.add("Shape", "x", name="sizes")
    result = body(inner)
    info = helper.make_empty_tensor_value_info(result)
    branch = helper.make_graph(inner.nodes, "branch", [], [info], inner.initializers)
    unchanged = helper.make_graph([helper.make_node("Identity", ["x"], ["same"])], "other", [],
                              [helper.make_empty_tensor_value_info("same")])  # fmt: skip
    w.nodes.append(
        helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=unchanged)
    )
    return w.model({"x": ("float32", [3, 4]), "flag": ("bool", [])}, ("y", "float32", None))


def test_values_of_graphs_around() -> None:
    """Nodes, sizes and constants of the graph around a branch are read from within it."""
    proto = in_branch(
        lambda w: w.add(
            "Slice", "turned", w.constant([1]), w.constant([3]), w.constant([0]), name="part"
        )
    )
    branch = next(graph for graph in graphs_of(Model(proto)) if graph.title.endswith("branch"))
    form = reader_of(branch).whole("part")
    rows, columns = axes_of((2, 3))
    assert isinstance(form, Element)
    assert (form.root, form.index) == ("x", (columns, rows + number(1)))
    proto = in_branch(lambda w: w.add("Reshape", "turned", "sizes", name="part"))
    branch = next(graph for graph in graphs_of(Model(proto)) if graph.title.endswith("branch"))
    assert reader_of(branch).shape("part") == (3, 4)
    assert "turned" not in compared(proto, {**feeds(proto), "flag": np.array(True)}).roots


def test_a_value_of_a_loop_is_another_one_in_each_turn() -> None:
    """What a body is given isn't what the loop is given at first."""
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[4] x, int64 turns, bool go)
        => (float[4] y) {
        y = Loop <body = turn (int64 k, bool i, float[4] v) => (bool o, float[4] w) {
            o = Identity (i)
            twice = Add (v, v)
            outside = Neg (x)
            w = Mul (twice, outside)
        }> (turns, go, x)
    }"""
    proto = onnx.parser.parse_model(text)
    _, body = graphs_of(Model(proto))
    reader = reader_of(body)
    forms = reader.forms
    element = forms.element("v", axes_of(reader.shape("v")))
    assert reader.whole("twice") is forms.op("Add", element, element)
    assert reader.whole("outside") is forms.op("Neg", forms.element("x", axes_of((4,))))
    assert isinstance(reader.read("k", ()), Element)


def test_a_declared_operator_is_no_other() -> None:
    """Whoever declares an operator by the name of one of ONNX Runtime's knows what it computes."""
    w = Writer()
    proto = w.model({"x": ("float32", [3, 4])}, (w.add("Transpose", "x"), "float32", None))
    model = Model(proto)
    model.custom = {("", "Transpose")}
    form = reader_of(next(graphs_of(model))).whole("transpose_0")
    assert isinstance(form, Element)
    assert form.root == "transpose_0"


def test_sizes_are_no_elements() -> None:
    """An open size is a size, and not the element that holds it."""
    w = Writer()
    y = w.add("Gather", w.add("Shape", "x"), w.constant(0))
    reader = main_reader(w.model({"x": ("float32", ["n"])}, (y, "int64", None)))
    form = reader.read(y, ())
    assert isinstance(form, Whole)
    assert isinstance(form.position.start, Size)
