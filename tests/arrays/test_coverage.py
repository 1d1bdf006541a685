"""Every combination that `onnx_ops.operators()` lists works."""

import itertools
from dataclasses import replace

import numpy as np
import onnxruntime as ort
import pytest
from support.backends import ALL_BACKENDS, BACKENDS, IN_SESSIONS, output_shape, quiet, run_session
from support.cases import (
    ATTENTION,
    CASES,
    COL2IM,
    DEFORM_CONV,
    EXTREME,
    FUSED,
    GRID_SAMPLE_OPTIONS,
    IM2COL,
    IM2COL_PRODUCT,
    OPENVINO,
    OTHERS,
    ROI_ALIGN,
    VOLUMES,
    VOLUMES_OPTIONS,
    Case,
    assert_close,
    case_named,
    expected_of,
    grid_sample,
    im2col,
    im2col_product,
    model,
    named,
)
from support.selection import (
    each_dtype,
    has_representative_types,
    in_turn,
    is_representative,
    long_unless,
    of_cases,
)

import onnx_ops
from onnx_ops.declaration import dtypes

FLOAT_32_64 = "float32", "float64"
MODES = {"": ("nearest", "linear", "cubic"), "com.microsoft": ("nearest", "bilinear", "bicubic")}


def cells():
    """Yield (domain, name, version, rank, {type variable: element type}) of all that the table
    lists.
    """
    others = [(o.domain, o.name) for o in OTHERS]
    for o in onnx_ops.operators():
        if (o["domain"], o["name"]) in others:
            continue
        for version, rank, names in itertools.product(
            o["versions"], o["ranks"], itertools.product(*o["dtypes"].values())
        ):
            if (o["name"], version, rank) != ("GridSample", 16, 5):  # ai.onnx had no volumes then
                yield (
                    o["domain"],
                    o["name"],
                    version,
                    rank,
                    dict(zip(o["dtypes"], names, strict=True)),
                )


def cases_of(domain, name, rank, types):
    """Yield the cases to run for a cell."""
    if name == "GridSample":
        out = (4, 5, 6)[: rank - 2]
        shapes = ((2, 3, 5, 6, 4)[:rank], (2, *out, len(out)))
        for mode in MODES[domain]:
            if mode == "nearest" or types["T1"] in dtypes.FLOATS:
                yield Case(
                    mode,
                    domain,
                    name,
                    shapes,
                    {"mode": mode, "padding_mode": "border", "align_corners": 1},
                    1.2,
                )
    elif name == "Im2Col":
        image, kernel, axes = (
            (5, 4, 3, *[1] * 11)[: rank - 2],
            (2, 3, *[1] * 12)[: rank - 2],
            rank - 2,
        )
        yield im2col(
            "unfold", (2, 3, *image), kernel, strides=[2] * axes, pads=[0] * axes + [1] * axes
        )
    elif name == "Im2ColProduct":
        image, kernel, axes = (
            (5, 4, 3, *[1] * 11)[: rank - 2],
            (2, 3, *[1] * 12)[: rank - 2],
            rank - 2,
        )
        for sum_over in ("channels", "kernel"):
            yield im2col_product(
                "product", (2, 6, *image), kernel, sum_over, 3, pads=[0] * axes + [1] * axes
            )
    elif name == "Col2Im":
        alike = (c for c in COL2IM + OPENVINO if c.domain == domain and len(c.shapes[0]) == rank)
        yield next(c for c in alike if len(c.attributes) > 2)
    elif name == "ComputedGridSample":
        alike = [
            c
            for c in FUSED
            if len(c.shapes[0]) == rank and c.attributes.get("padding_mode") == "border"
        ]
        yield from ({c.attributes["mode"]: c for c in alike}).values()
    elif "DeformConv" in name:
        alike = [
            c
            for c in DEFORM_CONV
            if c.op_type == name and len(c.shapes[0]) == rank and len(c.attributes) > 3
        ]
        yield replace(alike[0], domain=domain)
    else:
        alike = [
            c for c in CASES if (c.domain, c.op_type, len(c.shapes[0])) == (domain, name, rank)
        ]
        ordinary = [c for c in alike if np.isfinite(c.extent)]
        assert ordinary, (
            f"CASES of tests/support/cases.py has none of {name} with an input of rank {rank}"
        )
        yield ordinary[0]


def identity(cell):
    domain, name, version, rank, types = cell
    return f"{domain or 'ai.onnx'}-{name}-{version}-rank{rank}-{'-'.join(types.values())}"


# The short run has more axes than three of an image for Im2Col alone.
@pytest.mark.parametrize(
    "cell",
    [
        long_unless(
            has_representative_types(c[1], c[-1], c[1] == "GridSample" and "cubic")
            and (c[3] < 6 or c[1:4:2] == ("Im2Col", 16)),
            c,
        )
        for c in cells()
    ],
    ids=identity,
)
def test_cell(cell, kernels_made):
    domain, name, version, rank, types = cell
    for case in cases_of(domain, name, rank, types):
        first = types.get("T") or types["T1"]
        inputs = case.inputs(first, types.get("T2"), types.get("I") or "int64")
        opset = version if domain == "" else 21
        # ONNX Runtime's Python takes strings only as arrays and bfloat16 only as memory.
        constants = ["Grid"] if (first, types.get("T2")) == ("string", "bfloat16") else []
        proto = model(domain, name, inputs, case.attributes, opset=opset, constants=constants)
        session = onnx_ops.InferenceSession(proto.SerializeToString(), quiet())
        got = run_session(session, inputs[:1] if constants else inputs, output_shape(case, inputs))
        assert_close(got, expected_of(case, inputs), first)
        assert kernels_made == [case.operator.title]
        kernels_made.clear()


BUILTIN_LACKS = [
    *(
        (case_named("overlapping"), t)
        for t in dtypes.ALL
        if t != "float32" and "16" not in t and "complex" not in t
    ),
    *((case_named("bilinear_zeros_edges"), t) for t in ("float64",)),
    *((case_named("volume_cubic_zeros_edges"), t) for t in ("float32", "float64")),
    *((c, "float32") for c in named(DEFORM_CONV, "deform_1d", "deform_3d")),
    *((VOLUMES[0], t) for t in (*dtypes.INTEGERS, "bool", "string")),
]


@pytest.mark.parametrize(("case", "dtype"), of_cases(BUILTIN_LACKS), ids=str)
def test_the_builtin_kernels_lack_it(case, dtype):
    """If one of these fails, ONNX Runtime has a new kernel: say so in the docs."""
    inputs = case.inputs(dtype, dtype if dtype in dtypes.FLOATS else "float32")
    proto = model(case.domain, case.op_type, inputs, case.attributes).SerializeToString()
    with pytest.raises(
        Exception,
        match=r"(?i)not.implemented|invalid|type error|only support|not supported|must be 4D",
    ):
        run_session(ort.InferenceSession(proto, quiet()), inputs)
    got = run_session(onnx_ops.InferenceSession(proto, quiet()), inputs)
    assert_close(got, expected_of(case, inputs), dtype)


OF_ANY_TYPE = [
    *named(
        COL2IM, "overlapping", "strided", "tiling", "gaps", "everything", "stride_past_the_lanes",
        "stride_past_the_image", "one_pixel", "small_planes",
    ),
    *named(OPENVINO, "openvino_defaults", "openvino_unbatched"),
    *named(
        VOLUMES, "volume_nearest_zeros_edges", "volume_nearest_zeros_corners",
        "volume_nearest_border_edges", "volume_nearest_border_corners",
        "volume_of_one_plane_nearest", "volume_all_inside_nearest",
    ),
    *named(
        IM2COL, "unfold_same_size", "unfold_everything", "unfold_every_second",
        "unfold_every_third", "unfold_overlapping_patches", "unfold_patches",
        "unfold_small_patches", "unfold_one_block", "unfold_many_small_planes",
        "unfold_no_block_strided", "unfold_3d_no_pixels",
    ),
]  # fmt: skip


def of_other_types():
    """Yield parameter sets (run, case, dtype)."""
    for row in in_turn(ALL_BACKENDS, OF_ANY_TYPE):
        run, case = row.values
        for dtype in dtypes.ALL:
            if dtype not in FLOAT_32_64:
                is_short = is_representative(case.op_type, dtype, mode="nearest") and not row.marks
                yield long_unless(is_short, run, case, dtype)


@pytest.mark.parametrize(("run", "case", "dtype"), [*of_other_types()], indirect=["run"], ids=str)
def test_other_types_on_every_backend(run, case, dtype):
    """Col2Im, GridSample with mode nearest, and Im2Col."""
    if run not in (BACKENDS["function"], BACKENDS["reference"]) and "complex" in dtype:
        pytest.skip("ONNX Runtime has no complex tensors")
    if run is BACKENDS["reference"] and dtype == "bfloat16":
        pytest.skip("onnx's evaluator has its own idea of bfloat16 arrays")
    inputs = case.inputs(dtype, "float32")
    assert_close(run(case, inputs), expected_of(case, inputs), dtype)


ROUNDED_ONCE = [
    *COL2IM, *GRID_SAMPLE_OPTIONS, *VOLUMES_OPTIONS, *OPENVINO, *ATTENTION, *DEFORM_CONV,
    *IM2COL_PRODUCT, *ROI_ALIGN,
]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "dtype"), of_cases(itertools.product(ROUNDED_ONCE, ("float16", "bfloat16"))), ids=str
)
def test_16_bits_are_the_rounded_float32_result(case, dtype):
    """Both backends of sessions sum in float32 and round once, to nearest, ties to even."""
    narrow = dtypes.TABLE[dtype].numpy
    inputs = case.inputs(dtype, "float32")
    widened = [v.astype(np.float32) if v.dtype == narrow else v for v in inputs]
    with np.errstate(over="ignore"):
        expected = BACKENDS["function"](case, widened).astype(narrow)
    for name in ("function", *IN_SESSIONS):
        np.testing.assert_array_equal(
            BACKENDS[name](case, inputs).view(np.uint16), expected.view(np.uint16)
        )


IN_16_BITS = [
    *(replace(c, domain="") for c in GRID_SAMPLE_OPTIONS),
    *(replace(c, domain="") for c in EXTREME if c.domain == "com.microsoft"),
    *named(
        VOLUMES, "volume_nearest_zeros_edges", "volume_nearest_zeros_corners",
        "volume_nearest_border_edges",
    ),
    *named(CASES, "attention", "extreme_attention_of_a_network"),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("case", IN_16_BITS, ids=str)
def test_16_bit_places_are_the_float32_ones_of_their_values(case, dtype):
    inputs = case.inputs("float32", dtype)
    wide = [v.astype(np.float32) if v.dtype == dtypes.TABLE[dtype].numpy else v for v in inputs]
    expected = BACKENDS["function"](case, wide)
    for name in ("function", "native"):
        np.testing.assert_array_equal(BACKENDS[name](case, inputs), expected)


def test_strings_come_in_ascending_order():
    x = np.array([["a", "b"], ["c", "d"]], object).reshape(1, 2, 2)
    y = onnx_ops.col2im(x, [3], [2])
    assert y.tolist() == [[["a", "bc", "d"]]]
    assert onnx_ops.col2im(x.astype(str), [5], [2], strides=[3]).tolist() == [
        [["a", "c", "", "b", "d"]]
    ]


@pytest.mark.long
def test_booleans_add_up_to_or_however_many():
    x = np.ones((1, 32 * 32, 33 * 33), bool)
    assert onnx_ops.col2im(x, [64, 64], [32, 32]).all()
    x[:] = False
    x[0, 5, 7] = True
    assert onnx_ops.col2im(x, [64, 64], [32, 32]).sum() == 1


@pytest.mark.long
def test_5d_cubic_is_separable():
    """On a rectangular grid it equals one 4-D cubic interpolation along each axis after the
    other.
    """
    rng = np.random.default_rng(1)
    volume = rng.standard_normal((1, 1, 6, 7, 8))
    axes = [rng.uniform(-1.2, 1.2, n) for n in (3, 4, 5)]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1)[None, ..., ::-1]
    settings = {"mode": "cubic", "padding_mode": "reflection", "align_corners": True}
    got = onnx_ops.grid_sample(volume, np.ascontiguousarray(grid), **settings)
    for axis, places in enumerate(axes):
        lines = np.moveaxis(volume, 2 + axis, -1)
        rows = lines.reshape(1, -1, 1, lines.shape[-1])
        points = np.stack([places, np.zeros_like(places)], -1)[None, None]
        sampled = onnx_ops.grid_sample(rows, points, **settings)
        volume = np.moveaxis(sampled.reshape(*lines.shape[:-1], -1), -1, 2 + axis)
    np.testing.assert_allclose(got, volume, atol=1e-13)


@each_dtype("float32", "float16", "bfloat16")
def test_bits_are_copied(dtype):
    """Every bit is, even of the payload of a NaN, by Im2Col and by nearest sampling."""
    kind = np.dtype(dtypes.TABLE[dtype].numpy)
    most = 2 ** (8 * kind.itemsize)
    bits = np.arange(1, most, most // 700 + 1).astype(f"uint{8 * kind.itemsize}")
    at = ((np.arange(bits.size) * 2 + 1) / bits.size - 1)[None, None, :, None].astype(np.float32)
    grid = np.concatenate([at, np.zeros_like(at)], -1)
    nearest = grid_sample("bits", (1, 1, 1, bits.size), grid.shape[1:3], mode="nearest")
    x = bits.view(kind)
    assert np.isnan(x.astype(np.float32)).any()
    for name in ("function", "native"):
        unfolded = BACKENDS[name](im2col("bits", (1, 1, bits.size), (1,)), [x.reshape(1, 1, -1)])
        sampled = BACKENDS[name](nearest, [x.reshape(1, 1, 1, -1), grid])
        for y in (unfolded, sampled):
            np.testing.assert_array_equal(y.view(bits.dtype).ravel(), bits)


def test_strings_are_padded_with_the_empty_one():
    x = np.array(["a", "b"], object).reshape(1, 1, 2)
    assert onnx_ops.im2col(x, [2], pads=[1, 1]).tolist() == [[["", "a", "b"], ["a", "b", ""]]]
