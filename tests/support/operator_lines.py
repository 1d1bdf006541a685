"""Small models for each operator that the reader has a rule for: one line each.

A line adds nodes to a Writer and returns the value that they make of the inputs:

    x, z  floats [2, 6, 4, 5], whose batch, height and width are open in half of the tests
    i     indices [3, 4] of any axis, from -2 to 1
    k     indices [2, 6, 4, 5] along the axis of height, from -4 to 3
    q     places [2, 3, 4, 2] in [-1, 1]
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from .written import Writer

SIZES = {"n": 2, "h": 4, "w": 5}
Operand = str | int | float | list[Any] | np.ndarray | np.generic | Callable[[Writer], str]
FLOAT, FLOAT16, DOUBLE, INT32, INT64, BOOL = (
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.DOUBLE,
    TensorProto.INT32,
    TensorProto.INT64,
    TensorProto.BOOL,
)


class Line(NamedTuple):
    """A value of a small model.

    add      adds the nodes
    opset    the version of ai.onnx
    is_open  whether it is known for open sizes, too
    """

    add: Callable[[Writer], str]
    opset: int = 18
    is_open: bool = True


def operand(w: Writer, given: Operand) -> str:
    """Return the name of an operand: a value, a constant that is added, or what a function adds."""
    if isinstance(given, str):
        return given
    if callable(given):
        return given(w)
    array = np.asarray(given)
    return w.constant(array, np.float32 if array.dtype.kind == "f" else array.dtype)


def node(
    op_type: str, *operands: Operand, domain: str = "", **attributes: Any
) -> Callable[[Writer], str]:
    """Return a function that adds a node."""

    def add(w: Writer) -> str:
        name = w.add(op_type, *(operand(w, given) for given in operands), **attributes)
        w.nodes[-1].domain = domain
        return name

    return add


def line(
    op_type: str,
    *operands: Operand,
    opset: int = 18,
    is_open: bool = True,
    **attributes: Any,
) -> Line:
    """Return a line with one node, or nodes behind its operands."""
    return Line(node(op_type, *operands, **attributes), opset, is_open)


def part(
    op_type: str, *operands: Operand, count: int, which: int, **attributes: Any
) -> Callable[[Writer], str]:
    """Return a function that adds a node with several outputs and returns one of them."""

    def add(w: Writer) -> str:
        names = [f"part_{len(w.nodes)}_{k}" for k in range(count)]
        inputs = [operand(w, given) for given in operands]
        w.nodes.append(helper.make_node(op_type, inputs, names, **attributes))
        return names[which]

    return add


def counted(*limits: int) -> Callable[[Writer], str]:
    """Return a function that adds whole numbers from one limit to another, by 1."""
    return node("Range", *limits, 1)


def is_true(op_type: str = "Greater") -> Callable[[Writer], str]:
    return node(op_type, "x", "z")


def rounded(name: str) -> Callable[[Writer], str]:
    return node("Round", name)


def size_along(axis: int) -> Callable[[Writer], str]:
    """Return a function that adds the size of x along an axis, as a vector."""
    return node("Shape", "x", start=axis, end=axis + 1)


def joined(*operands: Operand, axis: int = 0) -> Callable[[Writer], str]:
    return node("Concat", *operands, axis=axis)


def scattered(
    indices: Operand, updates: Operand, reduction: str = "none", data: Operand = "x"
) -> Callable[[Writer], str]:
    return node("ScatterND", data, indices, updates, reduction=reduction)


def quantized(*names: Operand, scale: float = 0.1) -> Callable[[Writer], str]:
    """Return a function that quantizes a value and dequantizes it."""

    def add(w: Writer) -> str:
        (name,) = (operand(w, given) for given in names)
        steps = w.constant(scale, np.float32), w.constant(3, np.int8)
        return w.add("DequantizeLinear", w.add("QuantizeLinear", name, *steps), *steps)

    return add


def one_hot(count: int, *sizes: int) -> np.ndarray:
    """Return kernels with a single 1 each, for each of so many channels."""
    kernel = np.eye(int(np.prod(sizes))).reshape(-1, 1, *sizes)
    return np.tile(kernel, (count, *[1] * (kernel.ndim - 1))).astype(np.float32)


UNARY = "Abs", "Ceil", "Cos", "Exp", "Floor", "Neg", "Reciprocal", "Relu", "Round", "Sign", "Sin"
BINARY = "Add", "Div", "Max", "Mean", "Min", "Mul", "Sub", "Sum"
COMPARISONS = "Greater", "GreaterOrEqual", "Less", "LessOrEqual"
ROWS = np.arange(3)[:, None] + np.arange(2)  # rows of windows
THETA = node("Reshape", node("Gather", node("Gather", "x", 0, axis=3), 0, axis=2), [0, 2, 3])
LINES: dict[str, list[Line]] = {
    **{op: [line(op, "x")] for op in UNARY},
    **{op: [line(op, "x", "z"), line(op, "x", [[[0.5]], [[2.0]]] * 3)] for op in BINARY},
    **{op: [line(op, rounded("x"), rounded("z"))] for op in (*COMPARISONS, "Equal")},
    **{op: [line(op, is_true(), is_true("Less"))] for op in ("And", "Or", "Xor")},
    "Not": [line("Not", is_true())],
    "Sqrt": [line("Sqrt", node("Abs", "x"))],
    "Pow": [line("Pow", "x", 2.0), line("Pow", node("Abs", "x"), "z"), line("Pow", "k", 3)],
    "Where": [line("Where", is_true(), "x", "z"), line("Where", is_true(), 0.0, "z")],
    "Clip": [
        line("Clip", "x", -1.0, 2.0),
        line("Clip", "x", "", 2.0),
        line("Clip", "x", -1.0),
        line("Clip", "x", min=-1.0, max=0.5, opset=10),
        line("Clip", counted(0, 9), 2, 5),
    ],
    "Cast": [
        line("Cast", "x", to=DOUBLE),
        line("Cast", "x", to=INT64),
        line("Cast", "x", to=INT32),
        line("Cast", "k", to=FLOAT),
        line("Cast", "k", to=BOOL),
        line("Cast", is_true(), to=INT64),
        line("Cast", "x", to=FLOAT16),
        line("Cast", node("Cast", "x", to=FLOAT16), to=FLOAT),
    ],
    "Identity": [line("Identity", "x"), line("Identity", "k")],
    "Transpose": [
        line("Transpose", "x"),
        line("Transpose", "x", perm=[0, 2, 3, 1]),
        line("Transpose", "k", perm=[3, 0, 1, 2]),
    ],
    "Reshape": [
        line("Reshape", "x", [0, 2, 3, -1]),
        line("Reshape", "x", joined([0, 6], node("Mul", size_along(2), size_along(3)))),
        line("Reshape", node("Transpose", "x", perm=[0, 2, 3, 1]), joined(size_along(0), [-1])),
        line("Reshape", "x", [4, 3, 2, 2, 5], is_open=False),
        line("Reshape", "x", joined(size_along(0), [3, 2, -1]), allowzero=1),
        line("Reshape", "k", [-1], is_open=True),
    ],
    "Flatten": [line("Flatten", "x"), line("Flatten", "x", axis=-1), line("Flatten", "x", axis=0)],
    "Squeeze": [
        line("Squeeze", node("Slice", "x", [2], [3], [1]), [1]),
        line("Squeeze", node("Slice", "x", [2], [3], [1]), [-3]),
        line("Squeeze", node("Slice", "x", starts=[2], ends=[3], axes=[1]), axes=[1], opset=9),
    ],
    "Unsqueeze": [
        line("Unsqueeze", "x", [-1, 0]),
        line("Unsqueeze", "x", axes=[1, 3], opset=11),
    ],
    "Expand": [
        line("Expand", "x", [3, 1, 1, 1, 1]),
        line("Expand", node("Slice", "x", [0], [1], [1]), [7, 1, 1]),
        line("Expand", node("Slice", "x", [0], [1], [0]), node("Shape", "z"), is_open=False),
    ],
    "Tile": [
        line("Tile", "x", [1, 2, 3, 1]),
        line("Tile", node("Slice", "x", [0], [1], [1]), [1, 4, 1, 2]),
    ],
    "Slice": [
        line("Slice", "x", [1], [3], [2], is_open=False),
        line("Slice", "x", [-3, 1], [-1, 2**63 - 1], [-1, 1], is_open=False),
        line("Slice", "x", [-4, 1], [-1, 2**63 - 1], [1, 2], is_open=False),
        line("Slice", "x", [4], [-7], [1], [-1]),
        line("Slice", "x", [0, 1], [6, 9], [1, 3], [2, 2], is_open=False),
        line("Slice", "x", [-1, 5], [-(2**63), 0], [3, 1], [-1, -2]),
        line("Slice", "x", [1], node("Sub", size_along(2), [1]), [2], is_open=False),
        line("Slice", "x", [0], size_along(2), [2]),
        line("Slice", "x", starts=[1, 0], ends=[3, -1], axes=[1, 2], opset=9),
    ],
    "ReverseSequence": [
        line("ReverseSequence", "x", [6, 6], time_axis=1, batch_axis=0, is_open=False),
        line("ReverseSequence", "x", node("Expand", size_along(0), [6])),
        line("ReverseSequence", "x", node("Expand", 6, size_along(0)), time_axis=1, batch_axis=0),
    ],
    "Split": [
        Line(part("Split", "x", [2, 1, 3], count=3, which=2, axis=1)),
        Line(part("Split", "x", [2, 4], count=2, which=1, axis=-3)),
        Line(part("Split", "x", count=3, which=1, axis=1), 12),
        Line(part("Split", "x", count=2, which=1, axis=1, split=[1, 5]), 11),
        Line(part("Split", "x", count=4, which=2, axis=1, num_outputs=4)),
    ],
    "DepthToSpace": [
        line("DepthToSpace", node("Slice", "x", [0], [4], [1]), blocksize=2),
        line("DepthToSpace", node("Slice", "x", [2], [6], [1]), blocksize=2, mode="CRD"),
    ],
    "SpaceToDepth": [line("SpaceToDepth", node("Tile", "x", [1, 1, 2, 2]), blocksize=2)],
    "Resize": [
        line(
            "Resize",
            "x",
            "",
            [1.0, 1.0, 2.0, 3.0],
            mode="nearest",
            nearest_mode="floor",
            coordinate_transformation_mode="asymmetric",
        ),
        line(
            "Resize",
            "x",
            "",
            "",
            [2, 6, 8, 15],
            mode="nearest",
            nearest_mode="floor",
            coordinate_transformation_mode="asymmetric",
            is_open=False,
        ),
        line(
            "Resize",
            "x",
            np.zeros(0, np.float32),
            [1.0, 1.0, 2.0, 2.0],
            mode="nearest",
            nearest_mode="floor",
            coordinate_transformation_mode="asymmetric",
            opset=11,
        ),
    ],
    "SequenceAt": [
        line("SequenceAt", node("SplitToSequence", "x", [2, 1, 3], axis=1), 2),
        line("SequenceAt", node("SplitToSequence", "x", [2, 4], axis=-3), -1),
        line("SequenceAt", node("SplitToSequence", "x", 4, axis=1), 1),
    ],
    "Gather": [
        line("Gather", "x", [4, -1, 0], axis=1),
        line("Gather", "x", -2, axis=1),
        line("Gather", "x", ROWS, axis=2),
        line("Gather", "x", ROWS[:, ::-1] - 4, axis=-3),
        line("Gather", "x", "i", axis=1),
        line("Gather", node("Reshape", "x", [0, 0, -1]), node("Add", node("Abs", "i"), 3), axis=2),
        line("Gather", node("Shape", "x"), 1),
        line("Gather", "k", [[3, 0], [1, 1]], axis=1),
    ],
    "GatherElements": [
        line("GatherElements", "x", "k", axis=2),
        line("GatherElements", "x", "k", axis=-2),
        line(
            "GatherElements",
            "x",
            np.tile(np.arange(4).reshape(4, 1), (2, 2, 1, 5)),
            axis=1,
            is_open=False,
        ),
    ],
    "GatherND": [
        line("GatherND", "x", node("Reshape", "i", joined([-1], [2]))),
        line("GatherND", "x", [[[1, 5], [0, -2]]]),
        line(
            "GatherND",
            "x",
            node("Tile", [[[1, -1], [0, 2]]], [2, 1, 1]),
            batch_dims=1,
            is_open=False,
        ),
    ],
    "Pad": [
        line("Pad", "x", [0, 0, 1, 2, 0, 0, 3, 0]),
        line("Pad", "x", [0, 0, -1, 1, 0, 0, 0, -2], 0.0),
        line("Pad", "x", [1, 2, 0, 1], "", [3, -2]),
        line("Pad", "x", pads=[0, 0, 1, 2, 0, 0, 3, 0], mode="constant", opset=10),
        line("Pad", node("Reshape", "x", [0, 0, -1]), [0, 0, 2, 0, 0, 1]),
    ],
    "Concat": [
        line("Concat", "x", "z", axis=1),
        line("Concat", "x", "z", "x", axis=-2, is_open=False),
        line("Concat", node("Slice", "x", [0], [2], [1]), "z", "x", axis=1),
        line(
            "Concat", node("Slice", "x", [1], [3], [1]), node("Slice", "x", [2], [4], [1]), axis=1
        ),
        line("Concat", *(node("Slice", "x", [k], [k + 1], [1]) for k in range(6)), axis=1),
    ],
    "ScatterElements": [
        line(
            "ScatterElements",
            "x",
            np.full((2, 6, 1, 5), 2),
            node("Slice", "z", [0], [1], [2]),
            axis=2,
            is_open=False,
        ),
        line(
            "ScatterElements",
            "x",
            np.full((2, 1, 4, 5), -2),
            node("Slice", "z", [0], [1], [1]),
            axis=1,
            is_open=False,
        ),
        line(
            "ScatterElements",
            "x",
            np.tile(np.arange(1, 3).reshape(2, 1, 1), (2, 1, 3, 4)),
            node("Slice", "z", [0, 0, 0], [2, 3, 4], [1, 2, 3]),
            axis=1,
            is_open=False,
        ),
        line(
            "ScatterElements",
            "x",
            np.tile(np.arange(4).reshape(4, 1) // 2, (2, 6, 1, 5)),
            "z",
            axis=2,
            reduction="add",
            is_open=False,
        ),
    ],
    "ScatterND": [
        Line(scattered([[1]], node("Slice", "z", [1], [2], [0])), is_open=False),
        Line(scattered([[-1]], node("Slice", "z", [1], [2], [0])), is_open=False),
        Line(scattered([[0, 3], [1, 2]], node("Gather", "z", 3, axis=1)), is_open=False),
        Line(
            scattered([[k, 5 - 2 * k] for k in (1, 0)], node("Gather", "z", 3, axis=1)),
            is_open=False,
        ),
        Line(
            scattered(
                [[[k, j + 1] for j in range(3)] for k in range(2)],
                node("Slice", "z", [0], [3], [1]),
            ),
            is_open=False,
        ),
        Line(
            scattered(
                [[k // 3, k % 3] for k in range(6)],
                node("Slice", node("Reshape", "z", [12, 4, 5]), [0], [6], [0]),
                "add",
            ),
            is_open=False,
        ),
        Line(scattered([[0], [0]], "z", "add"), is_open=False),
    ],
    "Shape": [
        line("Gather", node("Shape", "x"), 3),
        line("Gather", node("Shape", "x", start=-2), 0),
    ],
    "Size": [line("Size", "x")],
    "Range": [
        line("Range", 2, 11, 3),
        line("Range", 9, -1, -2),
        line("Range", 0.5, 4.0, 0.25),
        line("Range", 0, node("Squeeze", size_along(2)), 1),
    ],
    "ConstantOfShape": [
        line("ConstantOfShape", node("Shape", "x")),
        line("ConstantOfShape", [3, 4], value=numpy_helper.from_array(np.array([2.5], np.float32))),
    ],
    "Mod": [
        line("Mod", counted(0, 24), 4),
        line("Mod", counted(-3, 0), 3),
        line("Mod", counted(0, 12), 6, fmod=1),
    ],
    "ReduceSum": [
        line("ReduceSum", "x", [1], keepdims=0),
        line("ReduceSum", "x", [1], keepdims=2),  # any number but 1 is a 0
        line("ReduceSum", "x", [-1, 1]),
        line("ReduceSum", "x", axes=[2], keepdims=0, opset=11),
        line("ReduceSum", "x"),
        line("ReduceSum", "x", np.zeros(0, np.int64), noop_with_empty_axes=1),
    ],
    "ReduceMean": [
        line("ReduceMean", "x", axes=[1], keepdims=0, opset=13),
        line("ReduceMean", "x", [2, 3]),
    ],
    "ReduceProd": [
        line("ReduceProd", node("Slice", node("Shape", "x"), [1], [3]), keepdims=0),
        line("ReduceProd", "x", [1]),
        line("ReduceProd", "x", axes=[1], keepdims=0, opset=13),
    ],
    "MatMul": [
        line("MatMul", "x", node("Transpose", "z", perm=[0, 1, 3, 2])),
        line("MatMul", node("Transpose", "z", perm=[0, 1, 3, 2]), "x"),
        line("MatMul", node("Reshape", "x", [0, 6, -1]), node("Reshape", "z", [0, -1, 6])),
        line("MatMul", np.arange(12.0).reshape(2, 6), node("Reshape", "x", [0, 6, -1])),
    ],
    "Einsum": [
        line("Einsum", "x", "z", equation="nchw,nchw->nhw"),
        line("Einsum", "x", "z", equation="ncij, ncik -> njk"),
        line("Einsum", "x", equation="nchw->whc"),
        line("Einsum", "x", np.arange(6.0), equation="nc..., c", is_open=False),
        line(
            "Einsum",
            node("Slice", "x", [0], [1], [1]),
            "z",
            equation="...ij,...ij->...i",
            is_open=False,
        ),
    ],
    "Conv": [
        line("Conv", "x", one_hot(6, 3, 3), group=6, pads=[1, 1, 1, 1]),
        line("Conv", "x", one_hot(6, 2, 3), group=6, strides=[2, 1], dilations=[2, 1]),
        line("Conv", "x", np.eye(36).reshape(36, 6, 3, 2), auto_pad="VALID"),
    ],
    "ConvTranspose": [
        line("ConvTranspose", "x", one_hot(1, 3, 2), strides=[2, 1], pads=[1, 0, 0, 0]),
        line("ConvTranspose", "x", one_hot(2, 3, 1), group=2),
    ],
    "GridSample": [
        line("GridSample", "x", "q", opset=20),
        line(
            "GridSample", "x", "q", mode="nearest", padding_mode="border", align_corners=1, opset=20
        ),
        line("GridSample", "x", "q", mode="bilinear", padding_mode="zeros", opset=16),
    ],
    "com.microsoft.GridSample": [
        line("GridSample", "x", "q", domain="com.microsoft", mode="bilinear", padding_mode="zeros"),
    ],
    "AffineGrid": [
        line("AffineGrid", THETA, joined([2, 3], size_along(2), [7]), opset=20, is_open=False),
        line("AffineGrid", THETA, node("Shape", "x"), align_corners=1, opset=20),
        line("AffineGrid", THETA, node("Shape", "x"), opset=20),
    ],
    "com.microsoft.FusedMatMul": [
        line("FusedMatMul", "x", "z", domain="com.microsoft", transB=1),
        line("FusedMatMul", "x", "z", domain="com.microsoft", transA=1),
    ],
    "DequantizeLinear": [
        Line(quantized(node("Transpose", quantized("x")))),
        Line(
            quantized(
                node("Pad", node("Slice", quantized("x"), [1], [3], [1]), [0, 0, 1, 0, 0, 0, 0, 2])
            )
        ),
    ],
    "Col2Im": [
        line("Col2Im", node("Reshape", "x", [2, 12, 10]), [3, 5], [2, 1], is_open=False),
        line(
            "Col2Im",
            node("Reshape", "x", [2, 12, 10]),
            [3, 7],
            [2, 3],
            pads=[1, 0, 0, 2],
            strides=[2, 1],
            dilations=[1, 2],
            is_open=False,
        ),
        line(
            "Col2Im",
            node("Reshape", "x", [0, 0, -1]),
            node("Slice", node("Shape", "x"), [2], [4]),
            [3, 1],
            pads=[1, 0, 1, 0],
        ),
    ],
    "onnx_ops.Im2Col": [
        line("Im2Col", "x", domain="onnx_ops", kernel_shape=[2, 3]),
        line(
            "Im2Col",
            "x",
            domain="onnx_ops",
            kernel_shape=[3, 2],
            pads=[1, 0, 2, 1],
            strides=[2, 1],
            dilations=[1, 2],
        ),
    ],
}
