"""optimize() on an affine_grid before a GridSample: PyTorch's products and sums, and AffineGrid of
ai.onnx.
"""

from functools import reduce

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from support.backends import ORT_VERSION, quiet, run_session
from support.exact import assert_as_near
from support.selection import but_names, by_type, each_dtype, in_turn
from support.written import Writer, affine_grid, feeds

import onnx_ops
from onnx_ops.rewriting import rewritten
from onnx_ops.sampling import grid_sample

pytestmark = pytest.mark.any_library

EPSILON = {"float16": 2**-10, "bfloat16": 2**-7}
SIZES = {"n": 2, "rows": 2}  # of open axes
FORMS = {
    "two axes": {},
    "two axes, corners": {"align_corners": True},
    "three axes": {"size": (3, 4, 5)},
    "three axes, corners": {"size": (3, 4, 5), "align_corners": True},
    "open batch": {"open_batch": True},
    "one row": {"size": (1, 9)},
    "one column": {"size": (9, 1)},
    "float64": {"dtype": "float64"},
    "float16": {"dtype": "float16"},
    "opset 16": {"opset": 16, "sample": "bilinear"},
    "cubic": {"sample": "cubic"},
    "factors swapped": {"swapped": True},
    "the axis of the sum kept": {"keepdims": 1},
    "the axis of the sum from the front": {"over": [2]},
    "a sum of neighbouring values": {"by_rows": True},
    "other coordinates": {"base": lambda base: base * np.float32([3, 0.5, 1])},
    "one image": {"batch": 1},
    "every matrix, row and column": {"picked": {0: [0, 1], 1: [0, 1, 2], 2: [0, 1]}},
    "a base that is bent": {
        "base": lambda base: np.where(np.arange(7)[:, None] == 3, base[::-1], base)
    },
    "a base that is turned": {"base": lambda base: base[..., [1, 0, 2]]},
    "a last coordinate of 2": {"base": lambda base: base * np.float32([1, 1, 2])},
    "one pixel of the base moved": {
        "base": lambda base: base + (np.arange(base.size) == 50).reshape(base.shape)
    },
    "another shape": {"target": [2, 7, 5, 2]},
    "a batch that is not known to be theta's": {"target": [2, 5, 7, 2], "open_batch": True},
    "every second matrix": {"theta": [4, 2, 3], "picked": {0: [0, 2]}},
    "the first matrix twice": {"picked": {0: [0, 0]}},
    "the first row twice": {"picked": {2: [0, 0]}},
    "the first column only": {"picked": {1: [0, 0, 0]}},
    "a theta that broadcasts": {"theta": [2, 2, 1]},
    "theta not transposed": {"perm": [0, 1, 2], "theta": [2, 3, 2]},
    "a maximum instead of a product": {"product": "Max"},
    "the product used elsewhere": {
        "after": lambda w: w.add("Add", "sampled", w.add("ReduceMax", "product", keepdims=0))
    },
}
LEFT = {  # and which nodes are left before the ComputedGridSample
    "float16": ["Cast"],
    "every second matrix": ["Transpose", "Gather"],
    "the first matrix twice": ["Transpose", "Gather"],
}


def run(proto, inputs, shape=None):
    """Return a model's output. shape: of it, if it is of bfloat16."""
    session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet())
    return run_session(session, [inputs[value.name] for value in session.get_inputs()], shape)


LIKE_OTHERS = {  # in what is computed, or in why ONNX Runtime's nodes are left
    "two axes, corners",
    "three axes, corners",
    "one row",
    "cubic",
    "factors swapped",
    "the axis of the sum kept",
    "other coordinates",
    "a theta that broadcasts",
    "a base that is bent",
    "every matrix, row and column",
    "one column",
    "the axis of the sum from the front",
    "one image",
    "a base that is turned",
    "a last coordinate of 2",
    "one pixel of the base moved",
    "another shape",
    "every second matrix",
    "the first row twice",
    "the first column only",
}


@pytest.mark.parametrize("name", by_type(but_names(FORMS, LIKE_OTHERS)))
def test_forms_of_pytorch(name):
    edits = {"sample": "linear", "opset": 20, **FORMS[name]}
    proto = affine_grid(**edits)
    inputs = feeds(proto, SIZES)
    optimized, (finding,) = rewritten(proto)
    assert finding.operator == "ComputedGridSample"
    operators = [n.op_type for n in optimized.graph.node]
    if name != "the product used elsewhere":
        assert operators[-1] == "ComputedGridSample"
        assert set(operators[:-1]) <= {*LEFT.get(name, ()), "Concat"}
    assert_as_near(
        proto, inputs, [run(proto, inputs)], [run(optimized, inputs)], [finding.operator]
    )


@pytest.mark.parametrize("opset", [18, 20])
@pytest.mark.parametrize("name", by_type(["two axes", "three axes", "open batch", "float16"]))
def test_a_grid_that_is_not_sampled_stays(name, opset):
    proto = affine_grid(opset=opset, **FORMS[name])
    assert rewritten(proto) == (proto, [])
    of_onnx = one_of_onnx("float", "n, c, h, w", "Shape (x)", 0)
    of_onnx.graph.node.pop()
    of_onnx.graph.output[0].name = "grid"
    assert rewritten(of_onnx) == (of_onnx, [])


def test_a_grid_that_is_sampled_and_used():
    """It is computed in any case; reading it takes less time than computing it again."""
    proto = affine_grid(
        opset=20,
        sample="linear",
        after=lambda w: w.add("Add", "sampled", w.add("ReduceMax", "grid")),
    )
    optimized, (finding,) = rewritten(proto)
    assert (optimized, finding.operator) == (proto, None)
    assert "read by other nodes" in finding.reason


@pytest.mark.parametrize("samplers", [2, 8])
def test_a_grid_that_is_sampled_several_times(samplers):
    """Its ReduceSum takes much longer than as many programs."""
    add = lambda w, y: w.add("Add", y, w.add("GridSample", "image", "grid"))
    more = lambda w: reduce(lambda y, _: add(w, y), range(samplers - 1), "sampled")
    proto = affine_grid(opset=20, sample="linear", after=more)
    inputs = feeds(proto, SIZES)
    optimized, findings = rewritten(proto)
    assert [finding.operator for finding in findings] == ["ComputedGridSample"] * samplers
    assert "ReduceSum" not in [n.op_type for n in optimized.graph.node]
    assert_as_near(
        proto, inputs, [run(proto, inputs)], [run(optimized, inputs)], ["ComputedGridSample"]
    )


def test_a_theta_of_unknown_size_stays():
    proto = affine_grid(opset=20, sample="linear", theta=[2, "rows", 3])
    optimized, (finding,) = rewritten(proto)
    assert (finding.operator, optimized) == (None, proto)
    assert "is unknown, or not for certain" in finding.reason


def test_a_base_that_is_random():
    """Its node stays, and draws one value for all reads of the program."""
    optimized, (finding,) = rewritten(
        affine_grid(opset=20, sample="linear", factor="RandomUniformLike")
    )
    assert finding.operator == "ComputedGridSample"
    assert [n.op_type for n in optimized.graph.node] == [
        "RandomUniformLike",
        "Reshape",
        "ComputedGridSample",
    ]


@pytest.mark.parametrize("of_onnx", [False, True])
def test_a_constant_theta(of_onnx):
    """ONNX Runtime computes such a grid once."""
    theta = numpy_helper.from_array(
        np.random.default_rng(0).standard_normal((2, 2, 3)).astype(np.float32), "theta"
    )
    proto = one_of_onnx("float", "2, 3, 9, 12", "Identity (fixed)", 0) if of_onnx else affine_grid(
        opset=20, sample="linear")  # fmt: skip
    proto.graph.input.remove(next(v for v in proto.graph.input if v.name == "theta"))
    proto.graph.initializer.append(theta)
    optimized, (finding,) = rewritten(proto)
    assert (finding.operator, optimized) == (None, proto)
    assert "constant" in finding.reason


@pytest.mark.long
@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_the_form_of_pytorch_in_16_bits(narrow):
    """PyTorch computes the grid in float32, and rounds it once; so does the program."""
    w, to = Writer(), getattr(TensorProto, narrow.upper())
    base = np.stack(
        [*np.meshgrid(np.linspace(-1, 1, 7), np.linspace(-1, 1, 5)), np.ones((5, 7))], -1
    ).reshape(-1, 3, 1)
    columns = w.add("Transpose", w.add("Cast", "theta", to=TensorProto.FLOAT), perm=[0, 2, 1])
    products = w.add(
        "Mul", w.constant(base, "float32"), w.add("Unsqueeze", columns, w.constant([1]))
    )
    sums = w.add(
        "Reshape",
        w.add("ReduceSum", products, w.constant([-2]), keepdims=0),
        w.constant([2, 5, 7, 2]),
    )
    w.add(
        "GridSample",
        "image",
        w.add("Cast", sums, to=to),
        name="y",
        align_corners=1,
        padding_mode="border",
    )
    proto = w.model(
        {"image": (narrow, [2, 3, 6, 8]), "theta": (narrow, [2, 2, 3])}, ("y", narrow, None), 20
    )
    optimized, _ = rewritten(proto)
    assert [n.op_type for n in optimized.graph.node] == ["Cast", "ComputedGridSample"]
    inputs = feeds(proto)
    grid = np.einsum(
        "nij,pj->npi", inputs["theta"].astype(np.float32), base[..., 0].astype(np.float32)
    )
    kind = getattr(ml_dtypes, narrow, np.float16)
    grid = grid.reshape(2, 5, 7, 2).astype(kind).astype(np.float64)
    exact = sampled(inputs["image"].astype(np.float64), grid, "bilinear", 1)
    error = abs(run(optimized, inputs, exact.shape).astype(np.float64) - exact).max()
    assert error <= 2 * EPSILON[narrow] * abs(exact).max()


def sampled(image, grid, mode, align_corners):
    settings = {"mode": mode, "padding_mode": "border", "align_corners": align_corners}
    return grid_sample.reference(image, grid, **grid_sample.ONNX.values(settings).by_name)


SHAPES = {  # of the image and of the grid, from nodes of the model
    "of the image": ("n, c, h, w", "Shape (x)"),
    "twice the image's": ("n, c, h, w", "Mul (of_x, twice)"),
    "constant": ("2, 3, 9, 12", "Identity (fixed)"),
    "one row": ("n, c, 1, w", "Shape (x)"),
    "an input": ("n, c, h, w", "Identity (given)"),
    "of one constant axis": (
        "n, c, h, w",
        "Concat <axis: int = 0> (images, channels, rows, columns)",
    ),
    "known to ONNX Runtime alone": ("2, 3, 9, 12", "Shape (either)"),
    "of volumes": ("n, c, d, h, w", "Shape (x)"),
    "constant, of volumes": ("n, c, d, h, w", "Identity (fixed_3d)"),
}
OPEN = {"n": 2, "c": 3, "d": 5, "h": 9, "w": 12}


def one_of_onnx(kind, image, size, align_corners, mode="linear"):
    """A GridSample of AffineGrid."""
    axes = image.count(",") - 1
    proto = parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 20]>
    main ({kind}[{image}] x, {kind}[n, {axes}, {axes + 1}] theta, int64[4] given) => ({kind}[] y)
    <int64[4] twice = {{1, 1, 2, 2}}, int64[4] fixed = {{2, 3, 9, 12}},
        int64[5] fixed_3d = {{2, 3, 4, 5, 6}},
     int64[1] channels = {{3}}, int64[1] columns = {{7}},
     bool always = {{1}}, {kind}[{image}] either> {{
        of_x = Shape (x)
        images = Shape <end: int = 1> (x)
        rows = Shape <start: int = 2, end: int = 3> (x)
        either = If (always) <then_branch: graph = one () => ({kind} a) {{ a = Identity (x) }},
                              else_branch: graph = other () => ({kind} b) {{ b = Identity (x) }}>
        size = {size}
        grid = AffineGrid <align_corners: int = {align_corners}> (theta, size)
        y = GridSample <align_corners: int = {align_corners}, padding_mode: string = "border",
                        mode: string = "{mode}"> (x, grid)
    }}""")
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    used = {name for node in proto.graph.node for name in node.input}
    for value in [v for v in proto.graph.input if v.name not in used]:
        proto.graph.input.remove(value)
    return proto


def places(size, align_corners):
    """The places of the pixels along an axis.

    With `align_corners` ONNX Runtime puts a single one at 1.
    """
    if align_corners:
        return np.linspace(-1, 1, size) if size > 1 else np.ones(1)
    return (2 * np.arange(size) + 1) / size - 1


KINDS = {"float32": "float", "float64": "double", "float16": "float16", "bfloat16": "bfloat16"}


@each_dtype(*KINDS)
@pytest.mark.parametrize(("name", "align_corners"), in_turn(SHAPES, [0, 1]))
def test_affine_grid_of_onnx(name, dtype, align_corners):
    """ONNX Runtime runs it in float32 and float64 only."""
    image, size = SHAPES[name]
    proto = one_of_onnx(KINDS[dtype], image, size, align_corners)
    optimized, (finding,) = rewritten(proto)
    assert finding.operator == "ComputedGridSample"
    inputs = feeds(proto, OPEN)
    inputs |= {"given": np.array([2, 3, 6, 4])} if "given" in inputs else {}
    x, theta = (inputs[k].astype(np.float64) for k in ("x", "theta"))
    (_, _, *of_image), given = x.shape, {"given": (6, 4), "twice": (18, 24), "columns": (9, 7)}
    given |= {"fixed_3d": (4, 5, 6), "fixed)": (9, 12)}
    sizes = next((sizes for key, sizes in given.items() if key in size), of_image)
    mesh = np.meshgrid(*(places(s, align_corners) for s in sizes), indexing="ij")
    base = np.stack([*mesh[::-1], np.ones(sizes)], -1)
    grid = np.einsum("nij,...j->n...i", theta, base)
    if dtype in ("float16", "bfloat16"):
        grid = grid.astype(getattr(ml_dtypes, dtype, np.float16)).astype(np.float64)
    exact = sampled(x, grid, "bilinear", align_corners)
    got = run(optimized, inputs, exact.shape)
    assert got.dtype == inputs["x"].dtype
    if dtype in ("float16", "bfloat16"):  # a grid may be rounded to the next number
        tolerance = 32 * EPSILON[dtype] * abs(exact).max()
        np.testing.assert_allclose(got.astype(np.float64), exact, rtol=0, atol=tolerance)
        assert abs(got.astype(np.float64) - exact).mean() < tolerance / 32
    else:
        # AffineGrid in float64 is as precise as float32 in ONNX Runtime before 1.25.
        plain = exact if dtype == "float64" and ORT_VERSION < (1, 25) else run(proto, inputs)
        assert_as_near(proto, inputs, [plain], [got], [finding.operator])


@pytest.mark.parametrize("align_corners", [0, 1])
def test_nearest_pixels_of_affine_grid(align_corners):
    """Points that aren't within roundings of an edge between pixels read the right ones."""
    proto = one_of_onnx("float", "n, c, h, w", "Shape (x)", align_corners, "nearest")
    optimized, (finding,) = rewritten(proto)
    assert finding.operator == "ComputedGridSample"
    inputs = feeds(proto, {**OPEN, "h": 40, "w": 50})
    assert_as_near(
        proto, inputs, [run(proto, inputs)], [run(optimized, inputs)], [finding.operator]
    )


def test_what_has_no_program():
    """A part of an AffineGrid of open sizes, one of no pixels, and one of one, which isn't worth a
    program.
    """
    part = one_of_onnx("float", "n, c, h, w", "Shape (x)", 0)
    part.graph.node[-1].input[1] = "part"
    half = helper.make_node("Slice", ["grid", *(f"part_{k}" for k in range(3))], ["part"])
    part.graph.node.insert(len(part.graph.node) - 1, half)
    for k, number in enumerate((1, 3, 1)):  # rows 1 and 2
        part.graph.initializer.append(numpy_helper.from_array(np.array([number]), f"part_{k}"))
    none, one = (one_of_onnx("float", "2, 3, 9, 12", "Identity (fixed)", 0) for _ in range(2))
    for proto, rows in ((none, 0), (one, 1)):
        sizes = next(t for t in proto.graph.initializer if t.name == "fixed")
        sizes.CopyFrom(numpy_helper.from_array(np.array([2, 3, rows, rows]), "fixed"))
    for proto in (part, none, one):
        optimized, (finding,) = rewritten(proto)
        assert (optimized, finding.operator) == (proto, None)
        assert "is unknown" in finding.reason


def test_many_sums():
    """A sum of sums of sums has more terms than a program, and is given up before they are
    counted.
    """
    w, axes = Writer(), 10
    y = "flow"
    for _ in range(axes):
        y = w.add("ReduceSum", y, w.constant([0]), keepdims=0)
    w.add("GridSample", "image", y, name="y")
    inputs = {"image": ("float32", [2, 3, 5, 6]), "flow": ("float32", [*[4] * axes, 2, 5, 6, 2])}
    proto = w.model(inputs, ("y", "float32", None), 20)
    optimized, (finding,) = rewritten(proto)
    assert (optimized, finding.operator) == (proto, None)
