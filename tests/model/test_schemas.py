"""onnx's checker and shape inference know the operators that onnx lacks."""

import time

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from support.cases import ATTENTION, GRID_SAMPLE_OPTIONS, IM2COL, case_named, model
from support.processes import python, together

import onnx_ops
from onnx_ops.declaration import plain
from onnx_ops.model import schemas as schemas_of_onnx

pytestmark = pytest.mark.any_library

BILINEAR = case_named("bilinear_zeros_edges")


@pytest.fixture(autouse=True)
def schemas():
    onnx_ops.register_schemas()
    onnx_ops.register_schemas()


def inferred(proto):
    proto = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
    described = proto.graph.output[0].type.tensor_type
    return described.elem_type, [d.dim_value or d.dim_param or None for d in described.shape.dim]


def with_output_rank(proto, rank):
    """Give the output a rank, which the checker requires."""
    for _ in range(rank):
        proto.graph.output[0].type.tensor_type.shape.dim.add()
    return proto


@pytest.mark.parametrize("case", GRID_SAMPLE_OPTIONS, ids=str)
def test_checker_takes_every_mode(case):
    proto = model(case.domain, case.op_type, case.inputs("float64"), case.attributes)
    onnx.checker.check_model(with_output_rank(proto, 4), full_check=True)
    assert inferred(proto) == (onnx.TensorProto.DOUBLE, [2, 3, 12, 13])


@pytest.mark.parametrize(
    ("case", "shape"),
    [(ATTENTION[0], [2, 5, 12]), (case_named("unfold_everything"), [2, 36, 154])],
    ids=str,
)
def test_checker_takes_what_onnx_lacks(case, shape):
    proto = model(case.domain, case.op_type, case.inputs("float16"), case.attributes)
    onnx.checker.check_model(with_output_rank(proto, len(shape)), full_check=True)
    assert inferred(proto) == (onnx.TensorProto.FLOAT16, shape)


def test_checker_refuses_what_the_schema_does_not_know():
    proto = model("com.microsoft", "GridSample", BILINEAR.inputs("float32"), {"modus": "bilinear"})
    with pytest.raises(onnx.checker.ValidationError, match="modus"):
        onnx.checker.check_model(with_output_rank(proto, 4), full_check=True)


def test_checker_wants_what_is_required():
    proto = model("onnx_ops", "Im2Col", IM2COL[0].inputs("float32"), {"strides": [1, 1]})
    with pytest.raises(onnx.checker.ValidationError, match="kernel_shape"):
        onnx.checker.check_model(with_output_rank(proto, 3), full_check=True)


@pytest.mark.parametrize(
    ("kernel_shape", "shape"),
    [
        ([0, 3], []),
        ([3] * 15, []),
        ([3], [2, "unk__0", "unk__1"]),
        ([2**40] * 2, [2, "unk__0", None]),
    ],
)
def test_shape_inference_of_what_is_refused(kernel_shape, shape):
    """What isn't known is not inferred; the operator raises the error. None stands for 0 blocks."""
    proto = model(
        "onnx_ops", "Im2Col", [np.zeros((2, 3, 5, 5), np.float32)], {"kernel_shape": kernel_shape}
    )
    assert inferred(proto) == (onnx.TensorProto.FLOAT, shape)


def test_constants_in_other_files(tmp_path, monkeypatch):
    """onnx has no folder for them when it infers shapes."""
    case = ATTENTION[0]
    inputs = case.inputs("float32")
    proto = model(case.domain, case.op_type, inputs, {}, constants=["spatial_shapes"])
    onnx.save(
        proto, tmp_path / "m.onnx", save_as_external_data=True, location="data", size_threshold=0
    )
    monkeypatch.chdir("/")
    assert inferred(onnx.load(tmp_path / "m.onnx", load_external_data=False))[1] == [2, 5, 12]


def test_our_col2im_shape_agrees_with_onnx():
    """onnx has a schema for Col2Im, with which the rule must agree that our other schemas derive
    from.
    """
    case = case_named("overlapping")
    inputs = case.inputs("float32")
    proto = model("", "Col2Im", inputs, case.attributes, constants=["image_shape", "block_shape"])
    known, values = [None, *(v.tolist() for v in inputs[1:])], case.operator.values(case.attributes)
    assert plain.infer(case.operator, values, [list(v.shape) for v in inputs], known) == [
        inferred(proto)[1]
    ]


@pytest.mark.long  # as does that of the next test
def test_the_process_ends_well():
    """onnx keeps registered schemas until after the interpreter's end; before 1.23 that hung or
    crashed.
    """
    script = "import onnx_ops; onnx_ops.register_schemas(); onnx_ops.register_schemas()"
    python(script)


def test_onnx_can_be_imported_further_after_registration():
    """onnx.reference builds a table of all operators at its import; none may be in two domains."""
    script = "import onnx_ops; onnx_ops.register_schemas(); import onnx.reference"
    python(script)


def test_threads_that_register_another_declaration_at_once(monkeypatch):
    """One of them replaces the schema of the first declaration, not both."""
    has = schemas_of_onnx._has

    def slowly(operator):
        found = has(operator)
        time.sleep(0.1)
        return found

    def declared():
        @onnx_ops.operator("tests::Replaced", inputs="x: float32", outputs="y: float32")
        def replaced(x):
            return 2 * x

        return replaced

    first, second = declared(), declared()
    onnx_ops.register_schemas([first])
    monkeypatch.setattr(schemas_of_onnx, "_has", slowly)
    together(lambda _: onnx_ops.register_schemas([second]), 2)
    assert onnx.defs.has("Replaced", domain="tests")


def test_the_reference_of_an_operator_that_was_another_one_before():
    """RoiAlign of version 10 has no coordinate_transformation_mode, and another meaning."""
    text = """<ir_version: 8, opset_import: ["" : 15]>
    roi_align (float[1, 1, 4, 4] x, float[1, 4] rois, int64[1] images) => (float[1, 1, 2, 2] y) {
        y = RoiAlign <output_height = 2, output_width = 2> (x, rois, images)
    }"""
    inputs = {
        "x": np.ones((1, 1, 4, 4), np.float32),
        "rois": np.ones((1, 4), np.float32),
        "images": np.zeros(1, int),
    }
    evaluator = ReferenceEvaluator(onnx.parser.parse_model(text), new_ops=onnx_ops.reference_ops())
    with pytest.raises(
        onnx_ops.OpError, match="RoiAlign: version of the domain = 15: must be at least 16"
    ):
        evaluator.run(None, inputs)
