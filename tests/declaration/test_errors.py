"""Mistakes are refused with operator, argument, value and rule, and nothing else breaks."""

import ast
import copy
import math
import pickle
import sys
import unicodedata
from dataclasses import replace

import numpy as np
import pytest
from support.backends import quiet
from support.cases import COL2IM, GRID_SAMPLE, case_named, model, operator
from support.malformed import argument_value_rule

import onnx_ops
from onnx_ops.arrays import functions
from onnx_ops.declaration import plain
from onnx_ops.declaration.errors import escaped, quoted, require
from onnx_ops.declaration.limits import MAX_RANK
from onnx_ops.declaration.operator import Plan, Record
from onnx_ops.registry import OPERATORS


def test_attributes_of_wrong_length_are_refused_by_the_declared_shape():
    x, image, block = case_named("overlapping").inputs("float32")
    proto = model("", "Col2Im", [x, image, block], {"strides": [1, 1, 1]})
    with pytest.raises(
        Exception, match="length of image_shape = 2: attributes are for image axes: 3"
    ):
        onnx_ops.InferenceSession(proto.SerializeToString(), quiet())


def test_functions_name_what_they_do_not_know():
    x, grid = GRID_SAMPLE[0].inputs("float32")
    with pytest.raises(
        onnx_ops.OpError,
        match=r"dtype of X = complex64: must be one of float16, .* unless mode is n",
    ):
        onnx_ops.grid_sample(x.astype(np.complex64), grid)
    with pytest.raises(onnx_ops.OpError, match=r"dtype of X = float128: must be one of"):
        onnx_ops.grid_sample(x.astype(np.longdouble), grid)
    with pytest.raises(onnx_ops.OpError, match="dtype of Grid = int64: must be one of float16"):
        onnx_ops.grid_sample(x, grid.astype(np.int64))
    with pytest.raises(
        onnx_ops.OpError, match="dtype of image_shape = float64: must be one of int64"
    ):
        onnx_ops.col2im(np.zeros((1, 9, 9), np.float32), [5.0, 5.0], [3, 3])
    with pytest.raises(onnx_ops.OpError, match="dtype of input = object: must be of strings only"):
        onnx_ops.col2im(np.array([[["a", 1]]], object), [2], [1])
    with pytest.raises(onnx_ops.OpError, match="stride = 2: no such attribute"):
        functions.call(operator("", "Col2Im"), x, [5, 5], [3, 3], stride=2)
    with pytest.raises(onnx_ops.OpError, match=r"strides = .*: must be 1 to 14 numbers in"):
        onnx_ops.col2im(np.zeros((1, 9, 9), np.float32), [5, 5], [3, 3], strides=[2**70, 1])


SAME = onnx_ops.operator("my::Same", inputs="x: float32", outputs="y: float32")(lambda x: x)
WITH_COUNTS = {
    "function": lambda n: onnx_ops.grid_sample(*GRID_SAMPLE[0].inputs("float32"), threads=n),
    "operator": lambda n: functions.call(operator("", "Col2Im"), *COL2IM[0].inputs("float32"),
        threads=n),
    "user-defined operator": lambda n: SAME(np.ones(3, np.float32), threads=n),
    "Runner": lambda n: onnx_ops.Runner("model.onnx", threads=n),
    "warmup": lambda n: onnx_ops.warmup(jobs=n),
    "build": lambda n: onnx_ops.build("library.so", jobs=n),
}  # fmt: skip


@pytest.mark.parametrize("way", WITH_COUNTS)
@pytest.mark.parametrize("count", [0, -3, 2**31, 10**30, 1.5, math.nan, "2"], ids=str)
def test_numbers_of_threads_and_processes(way, count):
    with pytest.raises(
        onnx_ops.OpError, match=r" = .*: must be an integer in \[1, 2\*\*31 - 1\]$"
    ) as caught:
        WITH_COUNTS[way](count)
    assert caught.value.argument == ("jobs" if way in ("warmup", "build") else "threads")
    assert caught.value.value == repr(count)


def test_long_values_are_shown_in_part():
    """ONNX Runtime cuts messages at about 2,000 characters, and the rule must come before that."""
    with pytest.raises(
        onnx_ops.OpError, match=r"^GridSample: mode = 'aaa.*\.\.\. .*aaa': must be one of"
    ) as caught:
        onnx_ops.grid_sample(*GRID_SAMPLE[0].inputs("float32"), mode="a" * 10**6)
    assert len(str(caught.value)) < 1000
    assert f" = {caught.value.value}: " in str(caught.value)


def test_errors_survive_pickling_and_copies():
    """The value itself can't be pickled."""
    with pytest.raises(onnx_ops.OpError) as caught:
        onnx_ops.col2im(np.zeros((1, 9, 9), np.float32), [5, 5], [3, 3], strides=lambda: 0)
    for again in (
        pickle.loads(pickle.dumps(caught.value)),
        copy.copy(caught.value),
        copy.deepcopy(caught.value),
    ):
        assert type(again) is onnx_ops.OpError
        assert str(again) == str(caught.value)
        assert argument_value_rule(again) == argument_value_rule(caught.value)
    assert caught.value.value.startswith("<function")


DIRECTIONS = {
    "LRE",
    "RLE",
    "LRO",
    "RLO",
    "PDF",
    "LRI",
    "RLI",
    "FSI",
    "PDI",
}  # of Unicode: they reorder what follows
MARKS = "\u061c\u200e\u200f"
INVISIBLE = "".join(
    character
    for character in map(chr, range(sys.maxunicode + 1))
    if unicodedata.category(character) in ("Cc", "Cs", "Co", "Zl", "Zp")
    or unicodedata.bidirectional(character) in DIRECTIONS
    or character in MARKS
)


def test_characters_that_change_a_terminal_are_escaped():
    shown = escaped(INVISIBLE)
    assert shown.isascii()
    assert shown.isprintable()
    assert escaped(shown) == shown
    assert escaped("\x1b[2J\n\x9b\u202e") == r"\x1b[2J\n\x9b\u202e"
    assert escaped("a\n\tb\r", kept="\n\t") == "a\n\tb\\r"
    assert escaped(b"\x1b\xff") == "\\x1b\ufffd"
    assert escaped("é 中 \\ '") == "é 中 \\ '"


@pytest.mark.parametrize(
    "text", [INVISIBLE.encode(errors="ignore").decode(), "'", "\"'", "\\'\\", '" + f() + "', "{x}"]
)
def test_a_quoted_text_is_a_literal(text):
    assert ast.literal_eval(quoted(text)) == text


def test_errors_escape_names():
    name = "a\x1b[2J\r\nforged: line\u202e"
    before, after = str(onnx_ops.OpError(name, name, "must not be\nso\x1b", f"Op {name}")).split(
        "\n"
    )
    shown = r"a\x1b[2J\r\nforged: line\u202e"
    assert before == f"Op {shown}: {shown} = {shown}: must not be"
    assert after == r"so\x1b"  # a compiler's message has several lines


def test_a_failure_of_another_kind_has_no_value():
    error = onnx_ops.OpError(None, None, "there is no room", "onnx_ops")
    assert (error.argument, error.value, str(error)) == (None, None, "onnx_ops: there is no room")


OPENVINO_COL2IM = operator("org.openvinotoolkit", "Col2Im")
RULE = "of an ordinary input, and as long as {image_shape}, whose length is"


def test_only_names_in_braces_get_the_operators_terms():
    """Words of the rule and text of the user stay as they are."""

    def plan(attributes, inputs, outputs, geometry):
        require(False, "shape of {input}", inputs[0], RULE, 2)

    of_its_own = replace(OPENVINO_COL2IM, plan=Plan(OPENVINO_COL2IM.plan.shape, plan))
    x, size = np.zeros((1, 9, 9), np.float32), np.array([5, 5])
    with pytest.raises(onnx_ops.OpError) as caught:
        plain.plan(of_its_own, of_its_own.values({}), [np.array(x.shape), size, size])
    rule = "of an ordinary input, and as long as output_size, whose length is 2"
    assert argument_value_rule(caught.value) == ("shape of data", "[1, 9, 9]", rule)
    for name in ("input_shape", "{input}"):
        with pytest.raises(onnx_ops.OpError) as caught:
            functions.call(OPENVINO_COL2IM, x, size, size, **{name: "{image_shape}"})
        assert argument_value_rule(caught.value)[:2] == (name, "'{image_shape}'")


MMCV = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, "deform_groups": 1}
REQUIRED = {
    "Im2Col": {"kernel_shape": [1]}, "Im2ColProduct": {"kernel_shape": [1], "sum_over": "kernel"},
    "ComputedGridSample": {"sources": [0, 1, -1], "coordinates": [0, 0]},
    **dict.fromkeys(("MMCVModulatedDeformConv2d", "MMCVDeformConv2d", "_DCNv2", "DCNv2",
            "DeformConv2d"), MMCV),
}  # fmt: skip
SOME = {"int": 1, "float": 1.0, "string": "avg"}  # values of other attributes that are required


def test_a_plan_that_is_called_directly_shows_no_braces():
    for o in OPERATORS:
        if o.has_ranks or len(o.ranks) == MAX_RANK:
            continue
        inputs, outputs = (np.ones(9, np.int64),) * len(o.inputs), (np.zeros(MAX_RANK, np.int64),)
        others = {
            a.name: SOME[a.kind] for a in o.attributes if a.required and o.name not in REQUIRED
        }
        attributes = o.values(REQUIRED.get(o.name, others)).compiled
        with pytest.raises(onnx_ops.OpError) as caught:
            o.plan.plan(attributes, inputs, outputs, Record(np.zeros(1, o.geometry_dtype)[0]))
        first = o.inputs[0].name
        first = next(
            (name for name, term in o.terms.items() if term == first), first
        )  # where operators share a plan
        assert caught.value.argument == f"shape of {first}"
        assert not set("{}") & set(str(caught.value))


@pytest.mark.parametrize("begin", [2**40, 2**40 - 1, 2**40 - 2])
def test_attributes_at_their_limits(begin):
    """The definition holds: block l of 3 lies at l * 2**40 - begin."""
    x = np.arange(1, 82, dtype=np.float32).reshape(1, 9, 9)
    y = onnx_ops.col2im(x, [5, 5], [3, 3], strides=[2**40] * 2, pads=[begin] * 2 + [2**40] * 2)
    expected, first = np.zeros((10, 10), np.float32), 2**40 - begin
    expected[first : first + 3, first : first + 3] = x[0, :, 4].reshape(3, 3)
    np.testing.assert_array_equal(y[0, 0], expected[:5, :5])


def test_the_reference_pads_nothing():
    """Strings run the reference, and so does everything without Numba: pads must cost no memory."""
    x = np.full((1, 1, 2), "a", object)
    assert onnx_ops.col2im(x, [1], [1], strides=[2**40], pads=[0, 2**40]).tolist() == [[["a"]]]


def test_blocks_of_nothing_take_no_time():
    """The batch of strings is empty, its blocks have 2**40 positions."""
    x = np.empty((0, 2**40, 1), object)
    assert onnx_ops.col2im(x, [2**20, 2**20], [2**20, 2**20]).shape == (0, 1, 2**20, 2**20)


@pytest.mark.parametrize("grid", [(4,), (3, 2)])
@pytest.mark.parametrize("x", [(4,), (4, 4)])
def test_shape_inference_of_too_few_axes(x, grid):
    """Nothing is inferred; the plan refuses the shapes."""
    for o in (operator("", "GridSample"), operator("com.microsoft", "GridSample")):
        for shapes in ([list(x), list(grid)], [list(x), None], [None, list(grid)]):
            assert plain.infer(o, o.values({}), shapes, [None, None]) == [None]


def test_products_of_a_grid_shape_past_2_63():
    o, shapes = operator("", "GridSample"), [np.array([0, 1, 4, 4]), np.array([0, 2**40, 2**40, 2])]
    with pytest.raises(onnx_ops.OpError, match=r"shape of the output = .*: must have at most 2"):
        plain.plan(o, o.values({}), shapes)
