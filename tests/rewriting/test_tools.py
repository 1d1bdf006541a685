"""Tools that change models, before optimize() and after it: it finds the same, or says why not, and
results stay.
"""

from importlib import import_module

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from support.backends import ORT_VERSION, quiet
from support.selection import but_names, by_type, in_turn
from support.written import (
    affine_grid,
    attention,
    feeds,
    in_pixels,
    unfold,
    unfold_product,
    warp,
    windows,
    written_in_place,
)

import onnx_ops
from onnx_ops.rewriting import rewritten

try:
    from onnxruntime import quantization
except ImportError as error:  # an old one needs what a newer onnx no longer has
    pytest.skip(str(error), allow_module_level=True)
LEVELS = ort.GraphOptimizationLevel
WEIGHTED = ["Conv", "MatMul", "Gemm"]  # operators that are quantized for speed
# Weights of 7 bits. On CPUs without VNNI, ONNX Runtime adds pairs of products of 8 bits in int16,
# where they saturate. Which products it computes so depends on the nodes around them, so that
# optimize() changes results there.
EXACT = {"reduce_range": True}


def weights(*dims):
    return numpy_helper.from_array(
        np.random.default_rng(0).standard_normal(dims).astype("float32") / 4, f"w{len(dims)}"
    )


def after_a_convolution(proto, name):
    """Put a Conv between an input of images and what reads it."""
    graph = proto.graph
    channels = (
        next(v for v in graph.input if v.name == name).type.tensor_type.shape.dim[1].dim_value
    )
    for node in graph.node:
        for k, operand in enumerate(node.input):
            node.input[k] = "convolved" if operand == name else operand
    graph.node.insert(0, helper.make_node("Conv", [name, "w4"], ["convolved"], name="convolution"))
    graph.initializer.append(weights(channels, channels, 1, 1))
    del graph.value_info[:]
    return onnx.shape_inference.infer_shapes(proto)


def before_a_product(proto, size):
    """Multiply the output, whose last axis has this size, by a matrix."""
    graph = proto.graph
    graph.node.append(
        helper.make_node(
            "MatMul", [graph.output[0].name, "w2"], ["multiplied"], name="multiplication"
        )
    )
    graph.initializer.append(weights(size, 8))
    del graph.value_info[:]
    graph.output[0].name = "multiplied"
    graph.output[0].type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(proto)


def rectified(w, y):
    return w.add("Relu", y)


NETWORKS = {  # with the operator that optimize makes
    "unfold": (before_a_product(after_a_convolution(unfold(), "x"), 72), "Im2Col"),
    "unfold, open sizes": (after_a_convolution(unfold(open_sizes=True), "x"), "Im2Col"),
    "Tensor.unfold": (after_a_convolution(windows(after=rectified), "x"), "Im2Col"),
    "affine_grid": (before_a_product(affine_grid(sample="linear", opset=20), 7),
        "ComputedGridSample"),
    "flow": (before_a_product(after_a_convolution(warp(), "flow"), 12), "ComputedGridSample"),
    "limited flow": (warp([*in_pixels((9, 12)), ("Min", 0.5)]), "ComputedGridSample"),
    "written in place": (after_a_convolution(written_in_place(layout="first"), "flow"),
        "ComputedGridSample"),
    "attention": (before_a_product(attention(), 12), "MultiScaleDeformableAttention"),
}  # fmt: skip
SIZES = {"n": 2, "size_0": 11, "size_1": 13}
TOOLS = {}  # {name: function of a model and a folder for files, which returns a model}


def tool(name, **how):
    def register(function):
        TOOLS[name] = lambda proto, folder: function(proto, folder, **how)
        return function

    return register


class Reader(quantization.CalibrationDataReader):
    def __init__(self, proto):
        self.feeds = iter([feeds(proto, SIZES, seed) for seed in range(3)])

    def get_next(self):
        return next(self.feeds, None)


QUANTIZED = {"op_types_to_quantize": WEIGHTED}
BY_OPERATORS = {"quant_format": quantization.QuantFormat.QOperator}
UNSIGNED = {"activation_type": quantization.QuantType.QUInt8, "per_channel": True}


@tool("quantize_static", **QUANTIZED)
@tool("quantize_static, uint8, a step for each channel", **QUANTIZED, **UNSIGNED)
@tool("quantize_static, QOperator", **QUANTIZED, **BY_OPERATORS)
@tool("quantize_static of all")
@tool("quantize_static of all, uint8", **UNSIGNED)
@tool("quantize_static of all, QOperator", **BY_OPERATORS)
def quantize_static(proto, folder, **how):
    onnx.save(proto, folder / "m.onnx")
    quantization.quantize_static(
        folder / "m.onnx", folder / "q.onnx", Reader(proto), **EXACT, **how
    )
    return onnx.load(folder / "q.onnx")


@tool("quantize_dynamic")
def quantize_dynamic(proto, folder):
    onnx.save(proto, folder / "m.onnx")
    if ORT_VERSION < (1, 21):
        pytest.skip("ONNX Runtime has no kernel of the ConvInteger that it writes")
    quantization.quantize_dynamic(folder / "m.onnx", folder / "q.onnx", **EXACT)
    return onnx.load(folder / "q.onnx")


@tool("quant_pre_process")
def quant_pre_process(proto, folder):
    pytest.importorskip("sympy")
    quantization.quant_pre_process(proto, folder / "q.onnx")
    return onnx.load(folder / "q.onnx")


@tool("onnxsim")
def onnxsim(proto, folder):
    return pytest.importorskip("onnxsim").simplify(proto)[0]


@tool("onnxslim")
def onnxslim(proto, folder):
    return pytest.importorskip("onnxslim").slim(copy(proto))


@tool("ONNX Runtime, basic", level=LEVELS.ORT_ENABLE_BASIC)
@tool("ONNX Runtime, extended", level=LEVELS.ORT_ENABLE_EXTENDED)
@tool("ONNX Runtime, all", level=LEVELS.ORT_ENABLE_ALL)
def onnx_runtime(proto, folder, level):
    options = quiet(graph_optimization_level=level, optimized_model_filepath=str(folder / "o.onnx"))
    ort.InferenceSession(proto.SerializeToString(), options)
    return onnx.load(folder / "o.onnx")


CONVERTERS = {
    "onnxconverter-common": "onnxconverter_common.float16",
    "onnxruntime.transformers": "onnxruntime.transformers.float16",
}


def import_or_skip(module):
    return pytest.importorskip(module) if "common" in module else import_module(module)


ARITHMETIC = ["Add", "Div", "GridSample", "Mul", "ReduceSum", "Sub"]
for name, module in CONVERTERS.items():

    @tool(f"{name}, float16", module=module)
    @tool(f"{name}, float16 inside", module=module, keep_io_types=True)
    @tool(
        f"{name}, float16 but for arithmetic", module=module, keep_io_types=True, blocked=ARITHMETIC
    )
    def convert_float_to_float16(proto, folder, module, blocked=(), **how):
        float16 = import_or_skip(module)
        blocked = [*float16.DEFAULT_OP_BLOCK_LIST, *blocked]
        return float16.convert_float_to_float16(copy(proto), op_block_list=blocked, **how)


def copy(proto):
    return onnx.ModelProto.FromString(proto.SerializeToString())


# {tool: {network: a part of the reason why not}}
IN_8_BITS = dict.fromkeys(("flow", "limited flow"), "its coordinates are rounded to")
REASONS = {
    "quantize_static of all": IN_8_BITS,
    "quantize_static of all, uint8": IN_8_BITS,
    # Of com.microsoft, whose QLinearMul and so on are no operators of ONNX.
    "quantize_static of all, QOperator": {
        **dict.fromkeys(("affine_grid", "attention"), "isn't known"),
        **dict.fromkeys(("flow", "limited flow"), "the number of its coordinates is not known"),
    },
}
# Of the attention's products quantizing leaves the samplers, and so do conversions of a part.
INSTEAD = {
    **{(f"{name}, float16 but for arithmetic",
            "attention"): "ComputedGridSample" for name in CONVERTERS},
    ("quantize_static of all", "attention"): "ComputedGridSample",
    ("quantize_static of all, uint8", "attention"): "ComputedGridSample",
}  # fmt: skip


def outputs(proto, inputs):
    return onnx_ops.InferenceSession(proto.SerializeToString(), quiet()).run(None, inputs)


@pytest.mark.parametrize(("tool", "name"), by_type(in_turn(TOOLS, NETWORKS)))
def test_a_tool_before(tool, name, tmp_path):
    """Sums are rounded otherwise; so does ONNX Runtime in 16 bits, where it casts elsewhere."""
    proto, operator = NETWORKS[name]
    changed = TOOLS[tool](proto, tmp_path)
    optimized, findings = rewritten(changed)
    reason = REASONS.get(tool, {}).get(name)
    operators = {n.op_type for n in optimized.graph.node}
    if reason:
        assert optimized == changed
        assert findings
        assert all(reason in finding.reason for finding in findings)
    else:
        assert INSTEAD.get((tool, name), operator) in operators
    inputs = feeds(changed, SIZES)
    for got, expected in zip(outputs(optimized, inputs), outputs(changed, inputs), strict=True):
        assert np.unique(expected).size > 9
        bound = 0.02 if "16" in tool else 0 if "unfold" in name else 1e-5
        np.testing.assert_allclose(got, expected, rtol=0, atol=bound * np.abs(expected).max())


AFTER = {  # tools, by how far results may be off, relative to the largest one
    "quantize_static": 0.05,
    "quantize_static of all": 0.05,
    "quantize_static of all, uint8": 0.05,
    "quantize_dynamic": 0.05,
    "onnxsim": 1e-5,
    "onnxslim": 1e-5,
    **{f"{name}, float16": 0.05 for name in CONVERTERS},
}


@pytest.mark.parametrize(("tool", "name"), by_type(in_turn(AFTER, NETWORKS)))
def test_a_tool_after(tool, name, tmp_path, monkeypatch):
    """Calibration makes a session of ONNX Runtime's, which must know our operators; programs
    compute no float16.
    """
    proto, operator = NETWORKS[name]
    optimized = onnx_ops.optimize(proto)
    monkeypatch.setattr(ort, "InferenceSession", onnx_ops.InferenceSession)
    if "float16" in tool:
        convert = import_or_skip(CONVERTERS[tool.partition(",")[0]])
        blocked = [*convert.DEFAULT_OP_BLOCK_LIST, "ComputedGridSample"]
        changed = convert.convert_float_to_float16(
            copy(optimized), op_block_list=blocked, keep_io_types=True
        )
    else:
        changed = TOOLS[tool](optimized, tmp_path)
    assert operator in {n.op_type for n in changed.graph.node}
    inputs = feeds(proto, SIZES)
    for got, expected in zip(outputs(changed, inputs), outputs(optimized, inputs), strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=AFTER[tool] * np.abs(expected).max())


def test_onnxslim_of_known_shapes(tmp_path):
    """It calls the sizes that it makes of a Reshape those of its output, "_shape", even if a value
    has that name.
    """
    onnx_ops.register_schemas()
    proto = unfold_product(
        how="MatMul", order="ngldk", factors="ngld", after=lambda w, y: w.add("Transpose", y)
    )
    optimized = onnx_ops.optimize(proto)
    changed = TOOLS["onnxslim"](optimized, tmp_path)
    inputs = feeds(proto)
    for got, expected in zip(outputs(changed, inputs), outputs(optimized, inputs), strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


def rounded(proto, edits):
    """Quantize and dequantize the input and what each node makes. edits: {value: its own scale and
    zero}
    """
    graph, nodes = proto.graph, []
    for node in [helper.make_node("Identity", ["x"], ["source"]), *graph.node]:
        name = node.output[0]
        scale, zero = edits.get(name, (np.float32(0.05), np.uint8(117)))
        for part, array in (("scale", scale), ("zero", zero)):
            if not isinstance(array, str):
                graph.initializer.append(
                    numpy_helper.from_array(np.asarray(array), f"{name}_{part}")
                )
        parameters = [part if isinstance(part, str) else f"{name}_{kind}"
                      for kind, part in (("scale", scale), ("zero", zero))]  # fmt: skip
        axis = {"axis": 1} if np.ndim(scale) else {}
        node.input[:] = ["source_rounded" if each == "x" and name != "source" else
                         f"{each}_rounded" if each in ("padded", "gathered_0", "gathered_1",
                             "transposed") else each
                         for each in node.input]  # fmt: skip
        nodes += [
            node,
            helper.make_node("QuantizeLinear", [name, *parameters], [f"{name}_quantized"], **axis),
            helper.make_node(
                "DequantizeLinear", [f"{name}_quantized", *parameters], [f"{name}_rounded"], **axis
            ),
        ]
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    graph.output[0].name = f"{name}_rounded"
    return proto


ANOTHER = np.float32(0.04), np.uint8(117)
STEP = {"inputs": {"step": ("float32", [])}}
ROUNDED = {  # the operator, or None, and how a model differs from one that is quantized by one step
    "by one step": ("Im2Col", {}, {}),
    "by another step at the end": ("Im2Col", {"y": ANOTHER}, {}),
    "by another step at the source": (None, {"source": ANOTHER}, {}),
    "by another step on the way": (None, {"gathered_0": ANOTHER}, {}),
    "to another zero on the way": (None, {"gathered_0": (np.float32(0.05), np.uint8(116))}, {}),
    "to another type on the way": (None, {"gathered_0": (np.float32(0.05), np.int8(117))}, {}),
    "by a step for each channel": (None,
        {"gathered_0": (np.full(3, 0.05, "f"), np.full(3, 117, "B"))}, {}),
    "by a step that is an input": (None, {"gathered_0": ("step", np.uint8(117))}, STEP),
    "by an infinite step": (None, {"gathered_0": (np.float32(np.inf), np.uint8(117))}, {}),
    "padded with 1": (None, {}, {"pad_value": 1}),
    "padded by reflection": ("Pad", {}, {"mode": "reflect"}),
}  # fmt: skip


LIKE_OTHERS = {
    "by another step at the source",
    "to another type on the way",
    "by an infinite step",
    "padded by reflection",
}


@pytest.mark.parametrize("name", but_names(ROUNDED, LIKE_OTHERS))
def test_roundings_on_the_way(name):
    """What is rounded again by the step by which it was rounded stays the same; all other roundings
    stay nodes.
    """
    operator, edits, more = ROUNDED[name]
    proto = rounded(unfold(**more), edits)
    optimized, _ = rewritten(proto)
    operators = [n.op_type for n in optimized.graph.node]
    inputs = feeds(proto)
    inputs |= {"step": np.array(0.07, "f")} if "inputs" in more else {}
    np.testing.assert_array_equal(outputs(optimized, inputs)[0], outputs(proto, inputs)[0])
    if operator:
        assert {operator, "Im2Col"} <= set(operators)
        assert not {"Gather", "Transpose"} & set(operators)
    else:
        assert operators.count("QuantizeLinear") > 2
