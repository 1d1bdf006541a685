"""The oracle for `optimize` (support/exact.py) finds planted errors, and leaves out only what
roundings decide.
"""

import re

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from support.backends import quiet
from support.exact import FACTORS, Oracle, assert_as_near
from support.processes import TESTS
from support.selection import of_names
from support.written import affine_grid, attention, feeds, perspective, unfold_product, warp

import onnx_ops
from onnx_ops.rewriting import rewritten

pytestmark = pytest.mark.any_library

DOCS = TESTS.parent / "docs"


def run(proto, inputs):
    return onnx_ops.InferenceSession(proto.SerializeToString(), quiet()).run(None, inputs)


def operator_of(proto):
    return next(node for node in proto.graph.node if node.domain == "onnx_ops")


def change(proto, wanted, function):
    """Change the first constant input of the operator that is wanted."""
    names = [*operator_of(proto).input]
    for tensor in sorted(
        proto.graph.initializer, key=lambda t: names.index(t.name) if t.name in names else 99
    ):
        array = numpy_helper.to_array(tensor)
        if tensor.name in names and wanted(array):
            tensor.CopyFrom(
                numpy_helper.from_array(function(array).astype(array.dtype), tensor.name)
            )
            return
    raise AssertionError("nothing is changed")


def swap_coordinates(proto):
    attribute = next(a for a in operator_of(proto).attribute if a.name == "coordinates")
    attribute.ints[:] = attribute.ints[::-1]


def swap_pads(proto):
    attribute = next(a for a in operator_of(proto).attribute if a.name == "pads")
    attribute.ints[:] = [*attribute.ints[2:], *attribute.ints[:2]]


def move_by_a_pixel(proto):
    change(
        proto,
        lambda a: a.size > 9,
        lambda a: a + np.median(np.abs(np.diff(np.sort(a.ravel()), prepend=0))) + 1e-9,
    )


def scale(factor):
    return lambda proto: change(proto, lambda a: a.dtype.kind == "f", lambda a: a * factor)


def swap_heights_and_widths(proto):
    change(
        proto,
        lambda a: a.dtype == np.int64 and a.ndim == 1,
        lambda a: a.reshape(-1, 2)[:, ::-1].ravel(),
    )


MISTAKES = {
    "another pixel": (warp(), move_by_a_pixel),
    "a wrong factor": (warp(), scale(1 + 1e-5)),
    "a wrong factor, float64": (warp(dtype="float64"), scale(1 + 1e-13)),
    "a wrong factor, 16 bits": (warp(dtype="float16"), scale(1.05)),
    "a wrong factor, nearest": (warp(mode="nearest"), scale(1.03)),
    "swapped axes": (warp(), swap_coordinates),
    "swapped axes, nearest": (warp(mode="nearest"), swap_coordinates),
    "swapped axes, 16 bits": (warp(dtype="float16"), swap_coordinates),
    "a wrong place of a matrix": (perspective(), scale(1 + 1e-5)),
    "swapped axes of a matrix": (perspective(mode="nearest"), swap_coordinates),
    "levels that are turned": (attention(), swap_heights_and_widths),
    "positions that are moved": (unfold_product(), swap_pads),
    "positions that are moved, 16 bits": (unfold_product(dtype="float16"), swap_pads),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    of_names(
        MISTAKES,
        ["another pixel", "a wrong factor", "swapped axes of a matrix", "positions that are moved"],
    ),
)
def test_mistakes_are_found(name):
    proto, plant = MISTAKES[name]
    optimized, findings = rewritten(proto)
    operators, inputs = [f.operator for f in findings], feeds(proto)
    plain = run(proto, inputs)
    assert_as_near(proto, inputs, plain, run(optimized, inputs), operators)
    plant(optimized)
    with pytest.raises(AssertionError, match="Verdict"):
        assert_as_near(proto, inputs, plain, run(optimized, inputs), operators)


JUMPS = {  # what computes y of x, and x where rounding decides
    "Floor": ("y = Floor (x)", [1, 2]),
    "Round": ("y = Round (x)", [0.5, 1.5]),
    "a comparison": ("c = Less (x, one)  d = Cast <to: int = 1> (c)  y = Mul (d, one)", [1]),
    "a division by zero": (
        "c = Sub (x, x)  d = Div (one, c)  y = Clip (d, zero, one)",
        [0.5, 1, 1.5, 2, 2.25],
    ),
}


@pytest.mark.parametrize("name", JUMPS)
def test_jumps_are_left_out(name):
    """And only these."""
    body, jumps = JUMPS[name]
    x = np.array([0.5, 1, 1.5, 2, 2.25], np.float32)
    proto = parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 20]>
        main (float[5] x) => (float[5] y) <float one = {{1}}, float zero = {{0}}> {{ {body} }}""")
    plain = run(proto, {"x": x})
    (verdict,) = Oracle(proto, {"x": x}).judge(plain, plain, 1)
    assert verdict.left_out == pytest.approx(len(jumps) / 5)
    if len(jumps) < 5:
        other = [np.where(np.isin(x, jumps), 99, plain[0]).astype(np.float32)]
        assert Oracle(proto, {"x": x}).judge(plain, other, 1)[0].holds
        assert not Oracle(proto, {"x": x}).judge(plain, [plain[0] + 1], 1)[0].holds
    with pytest.raises(AssertionError, match="left_out"):
        assert_as_near(proto, {"x": x}, plain, plain, ["Constant"])


def test_casts_to_16_bits_are_exact_in_the_oracle():
    proto = parser.parse_model("""<ir_version: 9, opset_import: ["" : 20]>
        main (float[2] x) => (float[2] y) {
            a = Cast <to: int = 10> (x)  b = Add (a, a)  y = Cast <to: int = 1> (b)
        }""")
    x = np.array([0.1, 1e5], np.float32)
    oracle = Oracle(proto, {"x": x})
    assert oracle.unit == 2.0**-10
    assert oracle.exact[0].tolist() == (2 * x.astype(np.float64)).tolist()


def test_the_oracle_runs_what_the_model_states():
    """Its own references, not onnx's GridSample, also in functions."""
    proto = affine_grid(sample="linear", opset=20)
    inputs = feeds(proto)
    np.testing.assert_allclose(
        Oracle(proto, inputs).exact[0], run(proto, inputs)[0], rtol=0, atol=1e-4
    )
    assert all(o.type.tensor_type.elem_type == onnx.TensorProto.FLOAT for o in proto.graph.output)


SPECIFIED = {  # what computes y of x, which onnx's evaluator gets wrong
    "a step back from before the first element": "y = Slice (x, before, before, axis, back)",
    "steps along two axes": "y = Slice (x, both, both, axes, steps)",
    "a step back along the first axis": "z = Squeeze (before)  y = Slice (x, before, before, , "
    "back)",
    "a Loop without a condition": """z = Loop (twice, "") <body: graph = body (int64 k, bool c)
        => (bool d, float[2, 3] b) {
        d = Identity (c)  a = Cast <to: int = 1> (k)  b = Add (x, a) }>  y = ReduceSum (z, axis)""",
    "a Loop with a condition": """z, y = Loop (, yes, x) <body:
        graph = body (int64 k, bool c, float[2, 3] a)
        => (bool d, float[2, 3] b, int64 e) { d = Less (k, twice)  b = Add (a, x)
            e = Add (k, k) }>""",
}


@pytest.mark.parametrize("name", SPECIFIED)
def test_the_oracle_follows_the_specification(name):
    proto = parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 20]> main (float[2, 3] x)
        => (y)
        <int64[1] before = {{-4}}, int64[1] axis = {{0}}, int64[1] back = {{-2}},
            int64[2] both = {{-3, 0}},
         int64[2] axes = {{0, 1}}, int64[2] steps = {{-1, 2}}, int64 twice = {{2}},
             bool yes = {{1}}> {{
            {SPECIFIED[name]} }}""")
    proto.graph.output[0].ClearField("type")
    inputs = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    (exact,), (expected,) = Oracle(proto, inputs).exact, run(proto, inputs)
    np.testing.assert_array_equal(exact, expected)


def test_the_factors_that_the_documentation_states():
    text = (DOCS / "optimize.md").read_text("utf-8")
    text = text.replace("; a result stored as a constant", ", Constant")
    rows = re.findall(
        r"^\| ([\w, ]+) \| (?:(?:(\d) times )?(the nodes' error)|none: the same bits) \|$",
        text,
        re.M,
    )
    stated = {
        name: int(factor or 1) if error else 0
        for names, factor, error in rows
        for name in names.split(", ")
    }
    assert stated == FACTORS
