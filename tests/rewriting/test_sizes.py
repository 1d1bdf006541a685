"""Integers that depend on open sizes agree with computations in which these sizes have values."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from support.written import Writer

from onnx_ops.rewriting.graph import Model
from onnx_ops.rewriting.indices import integer_at, integers, shape, sliced
from onnx_ops.rewriting.positions import Position, variables
from onnx_ops.rewriting.sizes import Size, named, never_negative, quotient

SIZES = {"h": 7, "w": 12, "n": 3}


def filled(size, sizes=None):
    """The value of a size for these values of open sizes."""
    if not isinstance(size, Size):
        return int(size)
    broadcast = lambda *each: 0 if 0 in each else max(each)  # sizes that fit together
    return eval(repr(size), {"trunc": math.trunc, "max": max, "broadcast": broadcast}, dict(sizes or SIZES))


def parse(text):
    """The size that a formula states."""
    return eval(text, {}, {name: named(name) for name in SIZES})


formulas = st.recursive(
    st.sampled_from(["h", "w", "n", "1", "3", "0"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(inner, st.sampled_from([1, 2, 5])).map(lambda t: f"({t[0]} // {t[1]})"),
        inner.map(lambda t: f"(-{t})"),
    ),
    max_leaves=8,
)


@given(formulas)
def test_formulas(text):
    assert filled(parse(text)) == eval(text, {}, dict(SIZES))


@given(formulas, formulas)
def test_equal_sizes_are_equal_numbers(one, other):
    a, b = parse(one), parse(other)
    if a == b:
        for sizes in (SIZES, {"h": 1, "w": 2, "n": 5}, {"h": 20, "w": 3, "n": 1}):
            assert filled(a, sizes) == filled(b, sizes)
    assert (a == b) == (repr(a) == repr(b))


@given(formulas, formulas)
def test_quotients(one, other):
    a, b = parse(one), parse(other)
    assert b == 0 or quotient(a * b, b) in (a, None)
    result = quotient(a, b)
    for sizes in (SIZES, {"h": 1, "w": 2, "n": 5}, {"h": 20, "w": 3, "n": 1}):
        assert result is None or filled(result, sizes) * filled(b, sizes) == filled(a, sizes)


def test_quotients_that_are_certain():
    assert quotient(parse("6*n*h*h + 4*h"), parse("2*h")) == parse("3*n*h + 2")
    assert quotient(parse("n*(h + 1)"), parse("n")) == parse("h + 1")
    assert (quotient(parse("n + 1"), parse("n + 1")), quotient(0, 4), quotient(12, 4)) == (1, 0, 3)


def test_quotients_that_are_none():
    for one, other in (("n", "2"), ("n", "h"), ("2*n", "n*h"), ("n + h", "n"), ("6", "4"), ("n", "0")):
        assert quotient(parse(one), parse(other)) is None


@given(formulas)
@example("(h - 2) // 2")
@example("h * ((h - 2) // 2) + h")
def test_what_is_never_negative(text):
    if never_negative(parse(text)):
        for sizes in ({"h": 1, "w": 1, "n": 1}, {"h": 9, "w": 1, "n": 1}, {"h": 1, "w": 1, "n": 9}):
            assert filled(parse(text), sizes) >= 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("(h - 1) // 2 + 1", "(h + 1) // 2"),
        ("(2*h + 4) // 2", "h + 2"),
        ("h*(w + 1) - h", "w*h"),
        ("((h + 2) - 2 - 1) // 2 + 1", "(h + 2 - 1*(3 - 1) - 1) // 2 + 1"),
        ("((h + 1) // 2 + 1) // 2", "(h + 3) // 4"),
        ("(4*n + (h*w - 1) // 3 + 2*w) // 5", "(h*w + 12*n + 6*w - 1) // 15"),
        ("((h + w) // 2 + h // 3) // 4", "(h // 3 + (h + w) // 2) // 4"),
    ],
)
def test_sizes_that_are_the_same(one, other):
    assert parse(one) == parse(other)


def expected(proto, sizes):
    return ReferenceEvaluator(proto).run(None, {"x": np.zeros(list(sizes.values()), np.float32)})[0]


def filled_position(at, dimensions, sizes=None):
    """The array of the numbers that a Position over the variables of these dimensions stands for."""
    shape = [filled(size, sizes) for size in dimensions]
    numbers = {str(k): numbers for k, numbers in enumerate(np.indices(shape))}
    total = np.full(shape, filled(at.start, sizes))
    for term in at.terms:
        inner, size, step = (filled(each, sizes) for each in (term.inner, term.size, term.step))
        total += numbers[term.variable.name] // inner % size * step
    return total


def known(graph, name):
    """Return ("whole", a Position over all axes) of a value of integers, or ("list", its integers); None if unknown."""
    dimensions = shape(graph, name)
    at = dimensions and integer_at(graph, name, variables(dimensions))
    if at:
        return "whole", at
    one_by_one = integers(graph, name)
    return None if one_by_one is None or None in one_by_one else ("list", one_by_one)


def shape_arithmetic(w):
    """Yield values that are computed from the sizes of "x"."""
    shape = w.add("Shape", "x")
    h, wide, n = (w.add("Gather", shape, w.constant(k)) for k in range(3))
    yield shape
    yield w.add("Shape", "x", start=1)
    yield w.add("Shape", "x", start=-2, end=-1)
    yield w.add("Slice", shape, w.constant([1]), w.constant([3]))
    yield w.add("Slice", shape, w.constant([-1]), w.constant([-5]), w.constant([0]), w.constant([-1]))
    yield w.add("Gather", shape, w.constant([[2, 0]]))
    yield w.add("Gather", shape, w.constant(-1))
    yield w.add("Concat", w.add("Unsqueeze", h, w.constant([0])), w.constant([-1, 4]), axis=0)
    yield w.add("Mul", w.add("Add", h, wide), n)
    yield w.add("Div", w.add("Add", h, w.constant(3)), w.constant(2))
    yield w.add("Div", w.constant([7, 9]), w.constant(2))
    yield w.add("Mod", w.add("Add", h, w.constant(3)), w.constant(2))
    yield w.add("Cast", w.add("Sub", h, wide), to=TensorProto.INT64)
    target = w.add("Concat", w.add("Unsqueeze", h, w.constant([0])), w.constant([-1, 4]), axis=0)
    ones = w.add("ConstantOfShape", w.add("Shape", target), value=numpy_helper.from_array(np.array([1])))
    yield w.add("Where", w.add("Equal", target, w.constant(-1)), ones, target)
    yield w.add("Expand", w.add("Unsqueeze", h, w.constant([0])), w.constant([2, 3]))
    w.nodes.append(helper.make_node("Split", [shape, w.constant([1, 2])], ["first", "others"]))
    yield "others"
    yield w.add("Reshape", shape, w.constant([3, 1]))
    yield w.add("Reshape", shape, w.constant([0, -1]))
    yield w.add("Transpose", w.add("Unsqueeze", shape, w.constant([1])))
    yield w.add("Squeeze", w.add("Unsqueeze", shape, w.constant([0, 2])), w.constant([0]))
    along = w.add("Range", w.constant(0), w.add("Add", h, w.constant(2)), w.constant(2))
    yield along
    yield w.add("Range", w.constant(2), wide, w.constant(3))
    yield w.add("Range", w.constant(9), w.constant(1), w.constant(-3))
    yield w.add("Gather", w.add("Range", w.constant(0), w.constant(9), h), w.constant(1))
    yield w.add("Gather", w.add("Range", w.add("Add", h, w.constant(1)), w.constant(0), w.constant(-1)), w.constant(1))
    column = w.add("Unsqueeze", w.add("Range", w.constant(0), wide, w.constant(1)), w.constant([1]))
    yield w.add("Add", along, column)
    yield w.add("Add", w.add("Mul", column, wide), along)
    yield w.add("Sub", w.add("Unsqueeze", along, w.constant([0])), w.constant([[1], [3], [5]]))
    yield w.add("Mul", w.constant(3), along)
    yield w.add("Transpose", column, perm=[1, 0])
    yield w.add("Squeeze", column, w.constant([1]))
    yield w.add("Reshape", along, w.constant([1, -1, 1]))
    whole = w.add("Range", w.constant(0), h, w.constant(1))
    yield w.add("Slice", whole, w.constant([-1]), w.constant([-(2**63) + 1]), w.constant([0]), w.constant([-1]))
    yield w.add("Slice", whole, w.constant([0]), w.constant([2**63 - 1]), w.constant([0]), w.constant([2]))
    grid = w.add("Add", w.add("Mul", column, w.constant(10)), w.add("Range", w.constant(0), n, w.constant(1)))
    yield w.add("Reshape", grid, w.constant([-1]))
    count = w.add("Mul", wide, n)
    number = w.add("Range", w.constant(0), count, w.constant(1))
    yield w.add("Div", w.add("Reshape", number, w.constant([-1, 1])), w.constant(1))
    pairs = w.add("Range", w.constant(0), w.add("Mul", count, w.constant(2)), w.constant(1))
    yield w.add("Div", pairs, w.constant(2))
    yield w.add("Mod", pairs, w.constant(2))
    yield w.add("Div", w.add("Mul", count, h), wide)
    yield w.add("Mod", w.add("Mul", count, h), n)
    yield w.add("Div", w.add("Sub", h, w.constant(5)), w.constant(2))  # towards zero
    yield w.add("Div", w.add("Sub", w.add("Mul", h, w.constant(4)), w.constant(8)), w.constant(4))


@pytest.mark.parametrize("k", range(len(list(shape_arithmetic(Writer())))))
def test_shape_arithmetic(k):
    writer = Writer()
    name = list(shape_arithmetic(writer))[k]
    proto = writer.model({"x": ("float32", ["h", "w", "n"])}, (name, "int64", None))
    graph = next(Model(proto).graphs())
    how, value = known(graph, name)
    for sizes in ({"h": 7, "w": 12, "n": 3}, {"h": 8, "w": 5, "n": 1}, {"h": 1, "w": 3, "n": 2}):
        result = expected(proto, sizes)
        if how == "whole":
            np.testing.assert_array_equal(filled_position(value, shape(graph, name), sizes), result)
        else:
            assert [filled(each, sizes) for each in value] == result.ravel().tolist()


FAR = 2**31 - 1


@given(
    st.sampled_from([-FAR - 1, -FAR, -5, -2, -1, 0, 1, 3, 9, FAR]),
    st.sampled_from([-(2**63), -FAR, -6, -2, -1, 0, 2, 8, FAR, 2**63 - 1]),
    st.sampled_from([-3, -2, -1, 1, 2, 3]),
    st.sampled_from(["h", "h + 2", "2*h", "h + 9", "7"]),
)
def test_a_slice_of_an_open_size(start, end, step, text):
    """What is known of it holds for each value of the size, for which test_rewriting_facts.py asks ONNX Runtime."""
    try:
        first, count = sliced(parse(text), start, end, step)
    except ValueError:
        return
    for h in (0, 1, 2, 3, 7, 12):
        its_first, its_count = sliced(eval(text, {}, {"h": h}), start, end, step)
        assert filled(count, {"h": h}) == its_count
        assert its_count == 0 or filled(first, {"h": h}) == its_first


@pytest.mark.parametrize(
    ("start", "end", "step", "expected"),
    [
        (-1, -(2**63) + 1, -1, ("h - 1", "h")),
        (0, 2**63 - 1, 2, ("0", "(h + 1) // 2")),
        (-1, -FAR, -2, ("h - 1", "(h + 1) // 2")),
        (0, -1, 1, None),
        (1, FAR, 1, None),
        (-2, -(2**63), -1, None),
        (-1, FAR, -1, None),
    ],
)
def test_slices_of_an_open_size_that_are_known(start, end, step, expected):
    if expected is None:  # of a size of 0 or 1 it would be another one
        with pytest.raises(ValueError, match=r"outside|the first element"):
            sliced(parse("h"), start, end, step)
    else:
        assert sliced(parse("h"), start, end, step) == tuple(map(parse, expected))


def unknowable(w):
    """Yield values that the sizes do not determine, or not in a known form."""
    shape = w.add("Shape", "x")
    h = w.add("Gather", shape, w.constant(0))
    along = w.add("Range", w.constant(0), h, w.constant(1))
    yield w.add("Mul", along, along)
    yield w.add("Div", w.add("Sub", along, w.constant(5)), w.constant(2))  # towards zero, and it may be negative
    yield w.add("Div", h, w.constant(-2))
    yield w.add("Mod", h, w.constant(-2))
    yield w.add("Equal", h, w.constant(7))
    yield w.add("Where", w.add("Equal", h, w.constant(1)), h, w.constant(2))
    yield w.add("Cast", w.add("Cast", h, to=TensorProto.FLOAT), to=TensorProto.INT64)
    yield w.add("Gather", shape, h)
    yield w.add("Slice", shape, w.constant([0]), w.add("Unsqueeze", h, w.constant([0])))
    yield w.add("Concat", along, w.constant([1]), axis=0)
    yield w.add("Add", along, w.add("Range", w.constant(0), w.add("Gather", shape, w.constant(1)), w.constant(1)))
    yield w.add("NonZero", "x")
    yield w.add("Reshape", along, w.constant([2, -1]))


@pytest.mark.parametrize("k", range(len(list(unknowable(Writer())))))
def test_what_is_unknown(k):
    writer = Writer()
    name = list(unknowable(writer))[k]
    proto = writer.model({"x": ("float32", ["h", "w", "n"])}, (name, "int64", None))
    assert known(next(Model(proto).graphs()), name) is None


def constant_at(array):
    w = Writer()
    graph = next(Model(w.model({}, (w.add("Identity", w.constant(array, array.dtype)), "int64", None))).graphs())
    return integer_at(graph, w.initializers[0].name, variables(array.shape))


def test_constants_of_other_types():
    """NumPy's integers wrap, and warn of it."""
    (k,) = variables([3])
    assert constant_at(np.array([5, 3, 1], np.uint8)) == Position(5) + k.times(-2)
    far = 2**63 - 1
    (k,) = variables([2])
    assert constant_at(np.array([2**63, 2**63 + 1], np.uint64)) == Position(2**63) + k
    assert constant_at(np.array([-far, far])) == Position(-far) + k.times(2 * far)
    assert constant_at(np.array([False, True])) == k
    assert constant_at(np.array([0.0, 1.0])) is None


@settings(max_examples=50)
@given(st.lists(st.integers(-3, 3), min_size=0, max_size=3), st.integers(-5, 5), st.data())
def test_constants_of_regular_steps(steps, start, data):
    shape = [data.draw(st.integers(1, 4)) for _ in steps]
    array = start + sum((s * i for s, i in zip(steps, np.indices(shape), strict=True)), np.zeros(shape, int))
    np.testing.assert_array_equal(filled_position(constant_at(array), shape), array)
    if array.size > 2:
        bent = array.copy()
        bent.flat[data.draw(st.integers(1, array.size - 1))] += 7
        at = constant_at(bent)
        assert at is None or np.array_equal(filled_position(at, shape), bent)
