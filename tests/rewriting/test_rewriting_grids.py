"""optimize() on a GridSample and the nodes of its grid: results are as near to the exact ones, or
stay.
"""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser
from support.backends import IN_SESSIONS, ORT_VERSION, quiet
from support.exact import assert_as_near
from support.rewriting import compare, near_miss, ours
from support.selection import but_names, by_type, long_unless, of_names
from support.written import (
    Writer,
    feeds,
    flow_network,
    in_a_branch,
    in_a_function,
    in_pixels,
    mesh,
    perspective,
    warp,
    written_in_place,
)

import onnx_ops
from onnx_ops.rewriting import rewritten

pytestmark = pytest.mark.any_library

SIZE = (9, 12)
ANY, EVEN, LARGE = ((7, 8), (1, 5), (3, 1)), ((8, 4), (12, 16)), ((7, 8), (5, 3))  # sizes of images
BASE = [
    np.linspace(-1, 1, 12)[None] + np.zeros(SIZE),
    np.linspace(-1, 1, 9)[:, None] + np.zeros(SIZE),
]
WARPS = {
    "by pixels": warp(),
    "by pixels, together": warp(whole=True),
    "by a displacement": warp([("Add", BASE)]),
    "by a scaled displacement": warp([("Mul", [2 / 12, 2 / 9]), ("Add", mesh(SIZE))]),
    "subtracted": warp([("rSub", mesh(SIZE)), ("Div", [5, 4])]),
    "negated": warp([("Neg", None), ("Mul", 0.5)]),
    "only transposed": warp([], whole=True),
    "channels backwards": warp(channels=[1, 0]),
    "one channel twice": warp(channels=[1, 1]),
    "channels last": warp(layout="last"),
    "maps": warp(layout="maps"),
    "channels of a larger value": warp(flow=[2, 5, 9, 12], channels=[4, 2]),
    "lookup": warp([("Add", mesh(SIZE)[::-1]), ("Div", 4), ("Sub", 1)], layout="last",
        flow=[2, 1, 1, 2]),
    "one flow for all images": warp(flow=[1, 2, 9, 12], expanded=True),
    "nearest": warp(mode="nearest"),
    "cubic": warp(mode="cubic", sampling={"padding_mode": "border", "align_corners": 1}),
    "opset 16": warp(mode="bilinear", opset=16),
    "of com.microsoft": warp(domain="com.microsoft", mode="bilinear", opset=11, whole=True),
    "reflected": warp(sampling={"padding_mode": "reflection"}),
    "float64": warp(dtype="float64"),
    "volumes": warp(size=(4, 5, 6)),
    "volumes together": warp(size=(4, 5, 6), whole=True, mode="nearest"),
    "one row": warp(size=(1, 12), steps=[("Add", mesh((1, 12))), ("Div", 6)]),
    "one image": warp(batch=1),
    "only a scale": warp([("Mul", 0.25)]),
    "open sizes": warp([("Mul", 2), ("Sub", 1)], flow=["n", 2, "h", "w"], batch="n"),
}  # fmt: skip
DYNAMIC = {"inputs": {"more": ("float32", [2, 9, 12])}}
WARPS |= {
    "two values": warp([("Add", "more")], **DYNAMIC),
    "times a value": warp([("Mul", "more")], **DYNAMIC),
    "times what varies": warp([("Mul", mesh(SIZE))]),
    "divided by what varies": warp([("Div", [m + 1 for m in mesh(SIZE)])]),
    "moved twice": warp([("Add", mesh(SIZE)), ("Mul", 2), ("Add", mesh(SIZE))]),
    "moved by image": warp([("Add", [np.arange(2).reshape(2, 1, 1)] * 2)]),
    "many steps": warp([("Add", 1), ("Mul", 0.25)] * 5),
    "steps in another order": warp(
        by_coordinate={1: [("Mul", 2), ("Add", 1), ("Div", 5), ("Sub", 1)]}
    ),
    "fewer steps": warp(by_coordinate={1: in_pixels(SIZE)[:1]}),
    "maps in an old version": warp(
        domain="com.microsoft", mode="bilinear", opset=12, layout="maps"
    ),
    "an image of float64": warp(image="float64"),
    "limited": warp([*in_pixels(SIZE), ("Min", 0.5), ("Max", -0.75)]),
    "rounded": warp(
        [("Floor", None), ("Mul", 0.19), ("Add", 0.01), ("Abs", None), ("Sqrt", None)],
        mode="nearest",
    ),
}


def of_many_axes(count):
    """A grid that is the half of a value with so many axes, of which all but the last three have
    one element.
    """
    w, axes = Writer(), [*range(count - 4)]
    grid = w.add("Squeeze", w.add("Mul", "flow", w.constant(0.5, "float32")), w.constant(axes))
    w.add("GridSample", "image", grid, name="y")
    inputs = {
        "image": ("float32", [1, 3, 9, 12]),
        "flow": ("float32", [*[1] * len(axes), 1, 5, 6, 2]),
    }
    return w.model(inputs, ("y", "float32", None), 20)


WARPS["a value of eight axes"] = of_many_axes(8)
NO_GRIDS = {
    "nine axes": (of_many_axes(9), "an index of that length"),
    "too many steps": (warp([("Add", 1), ("Mul", 0.5)] * 17), "ComputedGridSample takes 64"),
    "an unknown rank": (parser.parse_model("""<ir_version: 9, opset_import: ["" : 20]>
        main (float[2, 3, 9, 12] image, float[2, 9, 12, 2] a, float[1, 2, 9, 12, 2] b, bool yes)
            => (float[] y)
        <float half = {0.5}> {
            either = If (yes) <then_branch: graph = t () => (float[] c) { c = Identity (a) },
                               else_branch: graph = e () => (float[] d) { d = Identity (b) }>
            grid = Mul (either, half)
            y = GridSample (image, grid)
        }"""), "the rank of its grid is not known"),
}  # fmt: skip
PERSPECTIVES = {
    "quotients": perspective(),
    "nearest": perspective(mode="nearest"),
    "float64": perspective(dtype="float64"),
    "one image": perspective(batch=1),
    "products swapped": perspective(order=lambda a, b, c: (b, a, c)),
    "sums": perspective(divided=False, theta=2, rows=(0, 1)),
    "sums of a homogeneous matrix": perspective(divided=False),
    "a matrix with more columns": perspective(columns=4),
    "sums of a matrix with more columns": perspective(columns=4, divided=False),
    "summed in another order": perspective(order=lambda a, b, c: (c, b, a)),
    "rows in another order": perspective(rows=(1, 0, 2)),
    "divided by another row": perspective(rows=(0, 2, 1)),
    "a last column of 2": perspective(last=np.full(SIZE, 2)),
    "a base that is bent": perspective(
        base=lambda base: base + (np.arange(base.size) == 49).reshape(base.shape)
    ),
    "a base that is turned": perspective(base=lambda base: base[..., [1, 0, 2]]),
    "the first matrix for all": perspective(first=True),
    "one matrix for all": perspective(thetas=1),
    "one pixel, which isn't worth a program": warp(size=(1, 1), steps=[("Mul", 0.1)]),
}


WRITES = {
    "coordinates last": written_in_place(),
    "coordinates first": written_in_place(layout="first"),
    "by the TorchScript exporter": written_in_place(how="ScatterND"),
    "by the TorchScript exporter, coordinates first": written_in_place(how="ScatterND",
        layout="first"),
    "whole rows": written_in_place(how="rows", layout="first"),
    "only x": written_in_place(written=[0]),
    "only y": written_in_place(written=[1], how="ScatterND"),
    "x twice": written_in_place(written=[0, 0]),
    "then turned": written_in_place(order=[1, 0]),
    "then turned from the end": written_in_place(order=[-1, -2]),
    "volumes, then turned": written_in_place(size=(4, 5, 6), layout="first", order=[2, 1, 0]),
    "then moved": written_in_place(steps=[("Div", [11, 8])], whole=[("Sub", 0.5), ("Mul", 2)]),
    "one image": written_in_place(batch=1, how="ScatterND"),
    "added": written_in_place(reduction="add"),
    "nearest": written_in_place(mode="nearest"),
}  # fmt: skip
NO_WRITES = {
    "multiplied rows": written_in_place(how="rows", layout="first", reduction="mul"),
}


def compared(proto, **options):
    """Assert that the optimized model is as near as the model with our GridSample; return its
    operators.
    """
    return compare(proto, {"n": 2, "h": 9, "w": 12}, alone=False, **options)[0]


GRIDS = {f"{kind}: {name}": proto for kind,
    table in (("flow", WARPS), ("written", WRITES), ("matrix", PERSPECTIVES))
         for name, proto in table.items()}  # fmt: skip


LIKE_OTHERS = {  # which combine what others have one by one, or have it in another order
    *(f"flow: {name}" for name in (
        "by a displacement", "by a scaled displacement", "negated", "channels backwards",
        "channels of a larger value", "lookup", "volumes together", "one image", "only a scale",
        "times what varies", "divided by what varies", "moved twice", "moved by image",
        "steps in another order", "fewer steps", "maps in an old version",
        "by pixels, together", "one channel twice", "opset 16", "reflected", "one row",
        "two values", "limited", "rounded", "maps", "times a value", "many steps", "open sizes",
    )),
    *(f"written: {name}" for name in (
        "by the TorchScript exporter, coordinates first", "only y", "then turned from the end",
        "volumes, then turned", "one image", "nearest", "x twice", "then moved",
        "only x",
    )),
    *(f"matrix: {name}" for name in (
        "nearest", "one image", "products swapped", "sums of a homogeneous matrix",
        "sums of a matrix with more columns", "summed in another order", "rows in another order",
        "a base that is bent", "a base that is turned", "a matrix with more columns",
        "a last column of 2", "the first matrix for all",
    )),
}  # fmt: skip


@pytest.mark.parametrize("name", by_type(but_names(GRIDS, LIKE_OTHERS)))
def test_grids(name):
    operators = compared(GRIDS[name])
    assert operators[-1] == "ComputedGridSample"
    assert operators == ["ComputedGridSample"] or "matrix" in name


@pytest.mark.parametrize("how", ["Cast", "Where"])
@pytest.mark.parametrize(
    ("grid", "other", "casts"),
    [
        ("float32", "float32", 0),
        ("float32", "float16", 1),
        ("float32", "float64", 2),
        long_unless(
            False, "float64", "float32", 2
        ),  # needs a kernel that no other test of the short run needs
    ],
)
def test_comparisons_of_another_type(grid, other, casts, how):
    """A program compares numbers of its own type: it reads what a comparison of others gives."""
    w = Writer()
    condition = w.add("Not", w.add("Less", "other", w.constant(0.25, other)))
    if how == "Cast":
        compared_flow = w.add(
            "Mul", "flow", w.add("Cast", condition, to=11 if grid == "float64" else 1)
        )
    else:
        compared_flow = w.add("Where", condition, "flow", w.add("Neg", "flow"))
    w.add("GridSample", "image", compared_flow, align_corners=1, name="y")
    inputs = {
        "image": (grid, [2, 3, 9, 12]),
        "flow": (grid, [2, 7, 5, 2]),
        "other": (other, [2, 7, 5, 1]),
    }
    operators = compared(w.model(inputs, ("y", grid, [2, 3, 7, 5])))
    assert operators == [["ComputedGridSample"], ["Cast", "ComputedGridSample"],
                         ["Less", "Cast", "ComputedGridSample"]][casts]  # fmt: skip


@pytest.mark.parametrize("power", [2, 3])
def test_powers_of_a_distance(power):
    """The distance has one element along its last axis."""
    w = Writer()
    distance = w.add("ReduceL2", "flow", w.constant([-1]), keepdims=1)
    grid = w.add("Mul", "flow", w.add("Pow", distance, w.constant(power, "float32")))
    w.add("GridSample", "image", grid, align_corners=1, name="y")
    inputs = {"image": ("float32", [2, 3, 9, 12]), "flow": ("float32", [2, 90, 120, 2])}
    assert compared(w.model(inputs, ("y", "float32", None), 20)) == [
        "ReduceL2",
        "ComputedGridSample",
    ]


SHARED = """<ir_version: 9, opset_import: ["" : 20]>
main (float[2, 3, 9, 12] image, float[2, 2, 3] camera, float[2, 1, 108] depth,
    float[3, 108] pixels) =>
     (float[2, 3, 9, 12] y, float[2, 3, 9, 12] z)
<int64[4] size = {2, 9, 12, 2}> {
    rays = MatMul (camera, pixels)
    points = Mul (rays, depth)
    turned = Transpose <perm: ints = [0, 2, 1]> (points)
    grid = Reshape (turned, size)
    y = GridSample (image, grid)
    z = GridSample (image, grid)
}"""


@pytest.mark.parametrize(
    ("change", "count"), [(("y = ", "other = Neg (grid) y = "), 2), ((), 0)],
    ids=["of two grids", "of one that is sampled twice"],
)  # fmt: skip
def test_a_product_of_matrices(change, count):
    """It is computed once if several grids come from it, and so is a grid of it that is sampled
    several times.
    """
    text = (
        SHARED.replace("(image, grid)", "(image, other)", 1).replace(*change) if change else SHARED
    )
    operators = compared(parser.parse_model(text))
    assert ("MatMul" in operators, operators.count("ComputedGridSample")) == (True, count)


@pytest.mark.parametrize("name", NO_WRITES)
def test_no_writes(name):
    """What elements are multiplied by where they are is no part of a program."""
    _, findings = rewritten(NO_WRITES[name])
    assert not [f for f in findings if f.operator] or "ScatterND" in compared(NO_WRITES[name])


def test_writes_of_open_sizes():
    """The indices are computed from the flow's sizes; of what is written to some rows alone,
    nothing is known.
    """
    text = """<ir_version: 9, opset_import: ["" : 20]>
    main (float[n, 2, 9, 12] image, float[n, h, w, 2] flow) => (float[n, 2, h, w] y)
    <int64 first = {0}, int64[1] one = {1}, int64[1] three = {3}, int64[1] zero = {0},
    int64[1] last = {-1}, float half = {0.5}> {
        x = Gather <axis: int = 3> (flow, first)
        scaled = Mul (x, half)
        of_x = Shape (scaled)
        written = Unsqueeze (scaled, last)
        size = Shape (written)
        indices = Expand (zero, size)
        grid = ScatterElements <axis: int = 3> (flow, indices, written)
        y = GridSample (image, grid)
    }"""
    assert "ComputedGridSample" in compared(parser.parse_model(text))
    some_rows = "all = Mul (x, half) scaled = Slice (all, zero, three, one)"
    _, (finding,) = rewritten(parser.parse_model(text.replace("scaled = Mul (x, half)", some_rows)))
    assert finding.operator is None
    assert "isn't known" in finding.reason


@pytest.mark.parametrize("name", NO_GRIDS)
def test_no_grids(name):
    proto, reason = NO_GRIDS[name]
    (finding,) = near_miss(proto)
    assert reason in finding


SAME = {"pads": [1] * 4}
HALF = {**SAME, "strides": [2, 2]}
POOL, TWICE = (
    ("MaxPool", None, {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("Resize", (2, 2), {"mode": "linear"}),
)
NETWORKS = {  # arguments of `flow_network`, and sizes of images that it takes
    "of an image's size": ({"layers": [("Conv", 4, SAME),
                ("MaxPool", None, {"kernel_shape": [3, 3], **SAME})]}, ANY),
    "of one pixel": ({"layers": [("Conv", 4, {"kernel_shape": [1, 1]}), ("Tanh", None, {})]}, ANY),
    "of a smaller image": ({"layers": [("Conv", 4, HALF), ("Conv", 4, HALF)], "pixels": "flow"},
        ANY),
    "enlarged to an image": ({"layers": [("Conv", 4, HALF), ("Conv", 4, HALF)], "resized": True},
        ANY),
    "enlarged by a factor": ({"layers": [("Conv", 4, HALF), POOL, TWICE, TWICE]}, EVEN),
    "enlarged by a convolution": ({"layers": [
        ("Conv", 4, HALF), ("ConvTranspose", 3, {"kernel_shape": [4, 4], **HALF})]}, EVEN),
    "with a skip": ({"layers": [
        ("Conv", 4, SAME), POOL, ("Conv", 4, SAME), POOL, TWICE, ("Concat", 3, {"axis": 1}), TWICE,
        ("Concat", 1, {"axis": 1})]}, EVEN),
    "with a sum": ({"layers": [("Conv", 4, SAME), ("Conv", 4, HALF), TWICE, ("Add", 1, {})]}, EVEN),
    "rounded up": ({"layers": [("AveragePool", None,
                    {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1})],
                    "pixels": "flow"}, LARGE),
    "without a formula": ({"layers": [("Resize", (1.3, 0.7), TWICE[2]), TWICE], "pixels": "flow"},
        LARGE),
    "in sizes that fit by chance": ({"layers": [("Resize", (1.1, 1.1), TWICE[2])]},
        ((5, 6), (9, 1))),
}  # fmt: skip


FEW_NETWORKS = {"enlarged to an image", "enlarged by a convolution", "rounded up"}


@pytest.mark.parametrize("name", of_names(NETWORKS, FEW_NETWORKS))
def test_flows_of_open_sizes(name):
    """The nodes between a flow and its grid are gone, as of fixed sizes, and images of any size
    give what they gave.
    """
    edits, images = NETWORKS[name]
    proto = flow_network(mode="linear", padding_mode="border", align_corners=1, **edits)
    # To a Resize by 1.1, a rounding is a jump.
    left_out = {"left_out": 1} if "by chance" in name else {}
    sessions = [ours(proto, **how) for how in ({}, {"optimize": True})]
    for height, width in images:
        sizes = {"n": 2, "h": height, "w": width}
        nodes, (finding,) = compare(proto, sizes, alone=min(height, width) > 1, **left_out)
        inputs = feeds(proto, sizes)
        expected, got = (session.run(None, inputs)[0] for session in sessions)
        np.testing.assert_allclose(got, expected, atol=1e-4)
    assert finding.operator == "ComputedGridSample"
    after_flow = nodes[len(nodes) - 1 - nodes[::-1].index("Conv") + 1 :]
    assert not {"Add", "Mul", "Sub", "Concat"} & {
        *after_flow[after_flow.index("Resize") + 1 if "resized" in edits else 0 :]
    }


def test_images_that_a_network_refuses():
    """A flow of another size than the image's is refused, as an Add of it is."""
    edits, _ = NETWORKS["enlarged by a factor"]
    proto = flow_network(**edits)
    optimized, _ = rewritten(proto)
    image = np.zeros((1, 3, 6, 9), np.float32)
    for model in (proto, optimized):
        with pytest.raises(Exception, match=r"broadcast|shape of a source"):
            SESSIONS[0](model).run(None, {"image": image})


def test_reasons_that_name_the_size():
    proto = parser.parse_model("""<ir_version: 9, opset_import: ["" : 20]>
    main (float[n, 2, 5, 6] image, float[n, h, w, 2] places) => (float[n, 2, h, w] y)
    <float[4] scales = {1, 1.1, 1.1, 1}, int64[3] flat = {0, -1, 2}, float half = {0.5}> {
        size = Shape (places)
        flow = Resize (places, , scales)
        rows = Reshape (flow, flat)
        halves = Mul (rows, half)
        grid = Reshape (halves, size)
        y = GridSample (image, grid)
    }""")
    _, (finding,) = rewritten(proto)
    assert (
        finding.reason
        == "the effect of Reshape grid on coordinates is unknown: the size of axis 1 of Resize "
        "flow isn't known"
    )


FIRST, LAST = (f"perm: ints = {order}" for order in ([0, 3, 1, 2], [0, 2, 3, 1]))
CONV = "Conv <pads: ints = [1, 1, 1, 1]>"
# What ONNX Runtime computes in a Conv or MatMul, or by one node of its own; and the operators that
# are left.
FUSED = {
    "a product in a Conv": (f"a = {CONV} (x, w, b)  flow = Mul (a, scale)", ["Conv"]),
    "a sum in a Conv": (f"a = {CONV} (x, w, b)  c = Mul (a, each)  flow = Add (c, "
                        "pixels)", ["Conv"]),
    "a sum of two Convs": (f"""a = {CONV} (x, w, b)  c = {CONV} (x, w)  d = Transpose <{LAST}> (a)
        e = Transpose <{LAST}> (c)  moved = Add (d, e)""", ["Conv", "Conv"]),
    "a product after a normalization": (f"""a = {CONV} (x, w, b)
        c = BatchNormalization (a, each_1, b, b, each_1)  flow = Mul (c, scale)""",
        ["Conv", "BatchNormalization"]),
    "a product before a Transpose": (f"""a = {CONV} (x, w, b)  c = Transpose <{LAST}> (a)
        d = Mul (c, scale)
        flow = Transpose <{FIRST}> (d)""", ["Conv"]),
    "a sum in a MatMul": ("""a = Reshape (rows, flat)  c = MatMul (a, matrix)  d = Add (c, more)
        moved = Reshape (d, shape)""", ["Reshape", "MatMul", "Reshape"]),
    "a product in a MatMul": ("a = Mul (more_rows, scale)  c = MatMul (a, turn)  moved = Div (c, "
                              "scale)", []),
    "a MatMul of one column": ("""a = MatMul (more_rows, column)  c = MatMul (a, row)
        moved = Add (c, each_1)""", []),
    "a LayerNormalization": ("""m = ReduceMean (more_rows, axis)  a = Sub (more_rows, m)
        c = Pow (a, two)
        d = ReduceMean (c, axis)  e = Add (d, tiny)  f = Sqrt (e)  g = Div (a, f)
            h = Mul (g, each_1)
        moved = Add (h, each_1)""", ["ReduceMean", "Sub", "Pow", "ReduceMean"]),
    "a Gelu": ("""a = Div (more_rows, root)  c = Erf (a)  d = Add (c, one)  e = Mul (more_rows, d)
        moved = Mul (e, half)""", ["Div", "Erf"]),
    "a quotient": ("""a = Abs (more_rows)  c = ReduceMax (a)  d = Div (one, c)  e = Identity (d)
        moved = Mul (more_rows, e)""", ["Abs", "ReduceMax", "Div"]),
}  # fmt: skip


FEW_FUSED = {  # of each node that ONNX Runtime makes
    "a sum in a Conv",
    "a product after a normalization",
    "a sum in a MatMul",
    "a LayerNormalization",
    "a Gelu",
    "a quotient",
}


@pytest.mark.parametrize("name", of_names(FUSED, FEW_FUSED))
def test_what_onnx_runtime_fuses(name):
    text, left = FUSED[name]
    text += "" if "moved =" in text else f"  moved = Transpose <{LAST}> (flow)"
    proto = parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 20]>
        main (float[1, 3, 32, 48] image, float[1, 16, 32, 48] x, float[1, 32, 48, 64] rows,
            float[2] more,
              float[1, 32, 48, 2] more_rows, float[1, 2, 32, 48] pixels) => (float[1, 3, 32, 48] y)
        <float scale = {{0.3}}, float[1, 2, 1, 1] each = {{0.3, 0.7}},
            float[2] each_1 = {{0.3, 0.7}},
         int64[2] flat = {{1536, 64}}, int64[4] shape = {{1, 32, 48, 2}}, int64[1] axis = {{-1}},
             float half = {{0.5}},
         float one = {{1}}, float two = {{2}}, float root = {{{2**0.5}}}, float tiny = {{0.00001}},
         float[2, 1] column = {{0.3, 0.7}}, float[1, 2] row = {{0.7, 0.3}}> {{
            {text}
            grid = Add (moved, base)
            y = GridSample (image, grid)
        }}""")
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.normal(size=(2, 16, 3, 3)) / 50,
        "b": rng.uniform(0, 1, 2),
        "matrix": rng.normal(size=(64, 2)),
        # Fmt: skip.
        "turn": rng.normal(size=(2, 2)),
        "base": rng.uniform(-1, 1, (1, 32, 48, 2)),
    }
    proto.graph.initializer.extend(
        numpy_helper.from_array(a.astype("float32"), n) for n, a in arrays.items()
    )
    assert compared(proto) == [*left, "ComputedGridSample"]


ROUNDED = {  # coordinates that are rounded to 16 bits, and the operators that are left
    "and widened again": "a = Cast <to: int = 10> (places)  c = Cast <to: int = 1> (a)  grid = "
                         "Mul (c, scale)",
    "as bfloat16": "a = Cast <to: int = 16> (places)  c = Cast <to: int = 1> (a)  grid = Mul (c, "
                   "scale)",
    "and added up": """a = Cast <to: int = 10> (places)  c = Add (a, a)  d = Cast <to: int = 1> (c)
        grid = Mul (d, scale)""",
    "in the end": "a = Mul (places, scale)  grid = Cast <to: int = 10> (a)",
    "in the end, as bfloat16": "a = Mul (places, scale)  grid = Cast <to: int = 16> (a)",
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", ROUNDED)
def test_coordinates_that_are_rounded_to_16_bits(name):
    proto = parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 20]>
        main (float[1, 3, 9, 12] image, float[1, 9, 12, 2] places) => (float[1, 3, 9, 12] y)
        <float scale = {{0.3}}> {{
            {ROUNDED[name]}
            y = GridSample (image, grid)
        }}""")
    assert compared(proto) == ["ComputedGridSample"]


IN_16_BITS = {
    "a flow": warp(dtype="float16"),
    "a flow, nearest": warp(dtype="float16", mode="nearest"),
    "a flow that is only moved": warp([], dtype="float16"),
    "a matrix": perspective(dtype="float16"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", IN_16_BITS)
def test_grids_of_16_bits(name):
    """They are computed in float32 and rounded once, so that they are nearer than those of the
    nodes.
    """
    assert compared(IN_16_BITS[name], left_out=0.05)[-1] == "ComputedGridSample"


UNARY = "Abs", "Neg", "Reciprocal", "Round"
UNARY += ("Ceil", "Floor", "Sqrt") * (
    ORT_VERSION > (1, 20)
)  # which rounds otherwise, and makes 0 of -0
BINARY = ("Add", "Sub", "Mul", "Div", "Min", "Max")
COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")


def random_grid(rng, dtype, pixels):
    """A model whose grid random nodes make of planes, vectors, matrices, numbers; its output shows
    every bit of it if the pixels are of float64.
    """
    w, (n, h, v) = Writer(), (2, 5, 6)
    inputs = {
        "planes": (dtype, [n, 2, h, v]),
        "last": (dtype, [1, h, v, 2]),
        "theta": (dtype, [n, 2, 3]),
        "thetas": (dtype, [n, 3, 3]),
    }
    values = [
        w.constant(rng.standard_normal(shape), dtype)
        for shape in ((v,), (h, 1), (1, h, v), (), (n, 1, 1))
    ]
    values += [w.add("Gather", "planes", w.constant(k), axis=1) for k in (0, 1)]
    values += [w.add("Squeeze", w.add("Slice", "last", *map(w.constant, ([k], [k + 1], [-1]))),
            w.constant([-1]))
               for k in (0, 1)]  # fmt: skip
    for k in range(6):
        row = w.add(
            "Gather",
            w.add("Gather", "theta", w.constant(k % 2), axis=1),
            w.constant([k // 2]),
            axis=1,
        )
        values.append(w.add("Unsqueeze", row, w.constant([1])))
    points = w.add(
        "Reshape", w.constant(rng.standard_normal((1, h * v, 3)), dtype), w.constant([h, v, 3])
    )
    ends = (
        w.constant(rng.standard_normal((n, 3, 3)), dtype),
        w.add("Transpose", "thetas", perm=[0, 2, 1]),
    )
    moved = w.add(
        "MatMul", w.add("Reshape", points, w.constant([1, h * v, 3])), ends[rng.integers(2)]
    )
    moved = w.add("Reshape", moved, w.constant([n, h, v, 3]))
    values += [w.add("Gather", moved, w.constant(k), axis=3) for k in (0, 2)]
    for _ in range(rng.integers(1, 16)):
        step = rng.choice(
            ["unary", "unary", "binary", "binary", "clip", "where", "power", "quotient"]
        )
        a, b, c = (values[k] for k in rng.integers(0, len(values), 3))
        a, b = (values[-rng.integers(1, 4)], a)[
            :: rng.choice([1, -1])
        ]  # most steps matter in the end
        if step == "unary":
            new = w.add(rng.choice(UNARY), a)
        elif step == "binary":
            new = w.add(rng.choice(BINARY), a, b)
        elif step == "clip":
            new = w.add(
                "Clip", a, *[w.constant(rng.standard_normal(), dtype), ""][:: rng.choice([1, -1])]
            )
        elif step == "quotient":  # which ONNX Runtime divides
            new = w.add("Mul", w.add("Div", w.constant(1, dtype), a), b)
        elif step == "power":
            new = w.add("Pow", a, w.constant(rng.choice([2, 3]), dtype))
        else:
            flag = w.add(rng.choice(COMPARISONS), a, b)
            change = rng.choice(["And", "Or", "Not", ""])
            flag = (
                w.add(change, flag, *[w.add("Less", b, c)][: change != "Not"]) if change else flag
            )
            new = w.add("Where", flag, b, c)
        values.append(new)
    full = w.constant(np.zeros((n, h, v)), dtype)
    coordinates = [
        w.add("Unsqueeze", w.add("Add", values[-k], full), w.constant([-1]))
        for k in (1, rng.integers(1, 5))
    ]
    grid = w.add(
        "Mul", w.add("Concat", *coordinates, axis=-1), w.constant(1 / 8, dtype)
    )  # most are then in the image
    w.add(
        "GridSample", "image", grid, mode="linear", padding_mode="border", align_corners=1, name="y"
    )
    return w.model({"image": (pixels, [n, 2, 30, 20]), **inputs}, ("y", pixels, [n, 2, h, v]), 20)


RAMPS = {
    t: np.broadcast_to(np.stack(np.mgrid[:30, :20]).astype(t), (2, 2, 30, 20))
    for t in ("float32", "float64")
}


def with_more_outputs(graph, rng):
    """Have values in between be outputs, too."""
    element_type = next(v.type.tensor_type.elem_type for v in graph.input if v.name == "theta")
    values = [v for v in graph.value_info if v.type.tensor_type.elem_type == element_type]
    graph.output.extend(
        values[k] for k in rng.choice(len(values), min(3, len(values)), replace=False)
    )


def by_the_library(proto):
    """A session of ONNX Runtime alone, with the native library."""
    options = quiet()
    options.register_custom_ops_library(onnx_ops.get_library_path())
    return ort.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])


SESSIONS = [
    *(
        lambda proto, b=b: onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), backend=b)
        for b in IN_SESSIONS
    ),
    by_the_library,
]
PLACES = {
    "main": lambda proto, rng: None,
    "outputs": lambda proto, rng: with_more_outputs(proto.graph, rng),
    "branch": lambda proto, rng: in_a_branch(proto),
    "branch around the end": lambda proto, rng: in_a_branch(
        proto, rng.integers(len(proto.graph.node))
    ),
    "function": lambda proto, rng: in_a_function(proto),
}
# Inputs of a model in a branch.
TAKEN = {t: {"c": np.array(True), "otherwise": np.zeros((2, 2, 5, 6), t)} for t in RAMPS}


KINDS = {"float32": "float", "float64": "double"}
# Types of what the grid is made of, and of the image, of which float64 shows every bit of a place.
TYPES = pytest.mark.parametrize(
    ("dtype", "pixels"),
    by_type(
        [("float32", "float32"), long_unless(False, "float32", "float64"), ("float64", "float64")]
    ),
)
CLIPS = {"Clip": [-0.5, 1], "Clip from": [-0.5], "Clip by nothing": []}
SPECIAL = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, 1.0, -1.0, 1e-30, 3e30, np.inf, -np.inf, np.nan]


LIKE_OTHER_OPERATIONS = {"Greater", "GreaterOrEqual", "LessOrEqual", "Or", "Clip from", "Sub"}


@TYPES
@pytest.mark.parametrize(
    "operation",
    but_names(
        [*UNARY, *BINARY, *COMPARISONS, "And", "Or", "Not", *CLIPS, "Pow"], LIKE_OTHER_OPERATIONS
    ),
)
def test_special_numbers(operation, dtype, pixels):
    """Every pair of numbers at which an operation may be special; the result's reciprocal shows the
    sign of a zero.
    """
    w, count = Writer(), len(SPECIAL)
    operands = [w.add("Gather", "planes", w.constant(k), axis=1) for k in (0, 1)]
    truths = [w.add("Less", operand, w.constant(0.75, dtype)) for operand in operands]
    if operation in ("And", "Or"):
        value = w.add(operation, *truths)
    elif operation == "Not":
        value = w.add(operation, truths[0])
    elif (
        operation in CLIPS
    ):  # ONNX Runtime makes finite numbers of infinities where there is no limit
        limits = [v if isinstance(v, str) else w.constant(v, dtype) for v in CLIPS[operation]]
        value = w.add(
            "Mul", w.add("Clip", operands[0], *limits), w.constant(len(limits) > 1, dtype)
        )
    elif operation == "Pow":
        value = w.add("Pow", operands[0], w.constant(3, dtype))
    else:
        value = w.add(operation, *operands[: 1 if operation in UNARY else 2])
    if operation in (*COMPARISONS, "And", "Or", "Not"):
        value = w.add(
            "Where", value, w.constant(1, dtype), w.constant(-1, dtype)
        )  # not zeros, see the operator
    coordinates = w.add("Mul", value, w.constant(1 / 8, dtype)), w.add("Reciprocal", value)
    grid = w.add(
        "Concat",
        *(w.add("Unsqueeze", coordinate, w.constant([-1])) for coordinate in coordinates),
        axis=-1,
    )
    w.add(
        "GridSample", "image", grid, mode="linear", padding_mode="border", align_corners=1, name="y"
    )
    shape = [1, 2, count, count]
    proto = w.model(
        {"image": (pixels, [1, 2, 30, 20]), "planes": (dtype, shape)}, ("y", pixels, shape), 20
    )
    optimized, (finding,) = rewritten(proto)
    assert finding.operator == "ComputedGridSample"
    feeds = {
        "image": RAMPS[pixels][:1],
        "planes": np.stack(np.meshgrid(SPECIAL, SPECIAL))[None].astype(dtype),
    }
    expected, got = (SESSIONS[0](model).run(None, feeds)[0] for model in (proto, optimized))
    np.testing.assert_array_equal(got, expected)


OPEN = {
    "a view of a flat value": """flat = Flatten <axis: int = 2> (flow)
        curved = Tanh (flat)
        planes = Reshape <allowzero: int = 1> (curved, size)""",
    "no value along h": """row = Gather <axis: int = 2> (flow, zero)
        curved = Tanh (row)
        planes = Expand (curved, size)""",
}


@TYPES
@pytest.mark.parametrize("is_in_a_branch", [False, True])
@pytest.mark.parametrize("name", OPEN)
def test_sizes_of_inputs(name, is_in_a_branch, dtype, pixels):
    """Sizes that no value of the program has are those of an input of the model, when it runs."""
    type_name = KINDS[dtype]
    proto = parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 20]>
    main ({KINDS[pixels]}[n, 2, 30, 20] image, {type_name}[n, 2, h, w] flow)
        => ({KINDS[pixels]}[n, 2, h, w] y)
    <int64[1] zero = {{0}}, {type_name} half = {{0.5}}> {{
        size = Shape (flow)
        {OPEN[name]}
        scaled = Mul (planes, half)
        grid = Transpose <perm: ints = [0, 2, 3, 1]> (scaled)
        y = GridSample <padding_mode: string = "border"> (image, grid)
    }}""")
    if is_in_a_branch:
        in_a_branch(proto)
    optimized, (finding,) = rewritten(proto)
    assert finding.operator == "ComputedGridSample"
    before, after = (SESSIONS[0](model) for model in (proto, optimized))
    for count, height, width in ((2, 5, 6), (1, 1, 1), (2, 1, 7), (2, 4, 0), (0, 2, 3)):
        flow = (
            np.random.default_rng(height).standard_normal((count, 2, height, width)).astype(dtype)
        )
        inputs = {
            "image": RAMPS[pixels][:count],
            "flow": flow,
            **(TAKEN[pixels] if is_in_a_branch else {}),
        }
        expected, got = before.run(None, inputs)[0], after.run(None, inputs)[0]
        assert got.shape == (count, 2, height, width)
        np.testing.assert_array_equal(got, expected)


# Random models; the short run has one of each kind of session in the main graph, and one in each
# other place.
FEW_SEEDS = {"main": range(6, 9), "outputs": range(7, 8)}


@pytest.mark.parametrize(
    ("place", "seeds"),
    [
        row
        for place in PLACES
        for row in (
            (place, FEW_SEEDS.get(place, range(6, 7))),
            long_unless(False, place, range(12)),
        )
    ],
    ids=str,
)
@TYPES
def test_any_arithmetic(place, dtype, pixels, seeds):
    """Wherever the nodes are, and whoever runs them.

    All coordinates of one model may lie at jumps.
    """
    if ORT_VERSION < (1, 21) and dtype == "float64":
        pytest.skip("ONNX Runtime makes products that it has no kernels for")
    left_out = [left_out_of_arithmetic(seed, place, dtype, pixels) for seed in seeds]
    assert np.mean(left_out) <= 0.15


def left_out_of_arithmetic(seed, place, dtype, pixels):
    """Compare a random model; return the share of elements that are left out."""
    rng = np.random.default_rng([seed, [*PLACES].index(place)])
    proto = random_grid(rng, dtype, pixels)
    inputs = {v.name:
        rng.standard_normal([d.dim_value for d in v.type.tensor_type.shape.dim]).astype(dtype)
              for v in proto.graph.input if v.name != "image"}  # fmt: skip
    PLACES[place](proto, rng)
    optimized, findings = rewritten(proto)
    feeds = {"image": RAMPS[pixels], **inputs, **(TAKEN[pixels] if "branch" in place else {})}
    plain, fused = (
        SESSIONS[0](proto).run(None, feeds),
        SESSIONS[seed % len(SESSIONS)](optimized).run(None, feeds),
    )
    operators = [f.operator for f in findings]
    is_left = operators == [None] and any(
        why in findings[0].reason for why in ("constant", "read by other nodes")
    )
    assert operators == ["ComputedGridSample"] or is_left or place == "branch around the end"
    return assert_as_near(proto, feeds, plain, fused, [*filter(None, operators)], left_out=1)
