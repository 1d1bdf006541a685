"""Named cases that all tests of the operators share, and builders of models from them."""

from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper

from onnx_ops.operator import Record
from onnx_ops.operators import OPERATORS

IR_VERSION = 9
# How far a result may be from the float64 reference, in units of the largest |reference|.
TOLERANCE = {"float32": 2e-6, "float64": 2e-15}


@dataclass(frozen=True)
class Case:
    """One call of one operator, its inputs drawn from a seeded generator."""

    name: str
    domain: str
    op_type: str
    shapes: tuple  # of each input; for image_shape and block_shape their values
    attributes: dict = field(default_factory=dict)
    spread: float = 1.0  # of the grid's values: how far out of [-1, 1] they go

    @property
    def operator(self):
        return operator(self.domain, self.op_type)

    def inputs(self, dtype, seed=0):
        rng, made = np.random.default_rng(seed), []
        for i, shape in zip(self.operator.inputs, self.shapes, strict=True):
            if i.values:
                made.append(np.array(shape, np.int64))
            elif i.name == "Grid":
                made.append(((rng.random(shape) * 2 - 1) * self.spread).astype(dtype))
            elif np.dtype(dtype).kind == "f":
                made.append(rng.standard_normal(shape).astype(dtype))
            else:
                info = np.iinfo(dtype)
                made.append(rng.integers(info.min, info.max, shape, dtype, endpoint=True))
        return made

    def __str__(self):
        return self.name


def operator(domain, name):
    return next(o for o in OPERATORS if (o.domain, o.name) == (domain, name))


def reference(case, inputs):
    parameters = Record(case.operator.resolved(case.attributes)[0])
    return case.operator.reference(parameters, *inputs)


def assert_close(got, expected, dtype):
    """`got` is of this dtype and, for floats within TOLERANCE, equals the float64 `expected`."""
    assert got.dtype == np.dtype(dtype)
    assert got.shape == expected.shape
    tolerance = TOLERANCE.get(np.dtype(dtype).name, 0)
    scale = np.abs(expected[np.isfinite(expected)]).max(initial=1) if tolerance else 0
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance * scale)


def block_counts(image, block, dilations=None, pads=None, strides=None):
    d = len(image)
    dilations, pads, strides = dilations or [1] * d, pads or [0] * 2 * d, strides or [1] * d
    sizes = zip(image, block, dilations, pads[:d], pads[d:], strides, strict=True)
    return [(i + begin + end - dil * (b - 1) - 1) // s + 1 for i, b, dil, begin, end, s in sizes]


def col2im(name, image, block, N=2, C=3, **attributes):  # noqa: N803
    counts = block_counts(image, block, **attributes)
    shape = (N, C * int(np.prod(block)), int(np.prod(counts)))
    return Case(name, "", "Col2Im", (shape, tuple(image), tuple(block)), attributes)


COL2IM = [
    col2im("blocks_in_a_row", (5, 5), (1, 5)),
    col2im("overlapping", (9, 11), (3, 3), pads=[1, 1, 1, 1]),
    col2im("strided", (12, 10), (3, 4), strides=[2, 3]),
    col2im("tiling", (12, 20), (3, 4), strides=[3, 4]),
    col2im("tiling_with_a_rest", (13, 23), (3, 4), strides=[3, 4]),
    col2im("gaps", (13, 17), (2, 3), strides=[3, 5]),
    col2im("dilated", (14, 15), (3, 2), dilations=[2, 5]),
    col2im("everything", (31, 32), (4, 3), dilations=[2, 1], pads=[1, 0, 2, 3], strides=[2, 3]),
    col2im("asymmetric_pads", (6, 7), (2, 2), pads=[3, 0, 0, 4]),
    col2im("mostly_padding", (1, 2), (3, 3), pads=[5, 6, 7, 8]),
    col2im("stride_past_the_lanes", (3, 400), (2, 5), strides=[1, 70]),
    col2im("stride_past_the_image", (4, 4), (2, 2), strides=[100, 100]),
    col2im("one_pixel", (1, 1), (1, 1)),
    col2im("many_small_planes", (4, 4), (3, 3), N=8, C=32, pads=[1, 1, 1, 1]),
    col2im("no_batch", (5, 5), (2, 2), N=0),
    col2im("no_channels", (5, 5), (2, 2), C=0),
    col2im("1d", (20,), (3,), strides=[2]),
    col2im("1d_dilated", (20,), (3,), dilations=[3], pads=[1, 2]),
    col2im("1d_longer_than_a_band", (40_000,), (5,), N=1, C=2, pads=[1, 3], strides=[2]),
    col2im("2d_wider_than_a_band", (3, 20_001), (2, 3), N=1, C=1, strides=[1, 3]),
    col2im("2d_higher_than_a_band", (301, 130), (5, 3), N=1, C=2, strides=[2, 1], pads=[2, 1, 2, 1]),
    col2im("3d", (4, 5, 6), (2, 3, 2), pads=[1, 0, 1, 0, 2, 1]),
    col2im("3d_dilated", (7, 6, 8), (2, 3, 2), dilations=[3, 2, 2], strides=[1, 2, 3]),
    col2im("3d_tiling", (4, 6, 8), (2, 3, 4), strides=[2, 3, 4]),
    col2im("4d", (3, 4, 5, 4), (2, 1, 2, 3), strides=[1, 2, 1, 1], pads=[1, 0, 0, 1, 0, 1, 1, 0]),
    col2im("5d", (3, 2, 4, 3, 5), (2, 2, 1, 2, 3), dilations=[1, 1, 2, 1, 2]),
]


def grid_sample(name, x, out, spread=1.3, **attributes):
    return Case(name, "com.microsoft", "GridSample", (x, (x[0], *out, len(out))), attributes, spread)


GRID_SAMPLE = [
    grid_sample(f"{mode}_{padding_mode}_{corners}", (2, 3, 9, 11), (12, 13), mode=mode, padding_mode=padding_mode,
                align_corners=align_corners)
    for mode in ("nearest", "bilinear", "bicubic")
    for padding_mode in ("zeros", "border", "reflection")
    for align_corners, corners in ((0, "edges"), (1, "corners"))
] + [
    grid_sample(f"{name}_{mode}", x, out, spread, mode=mode, padding_mode=padding_mode, align_corners=align_corners)
    for mode in ("nearest", "bilinear", "bicubic")
    for name, x, out, spread, padding_mode, align_corners in (
        ("one_pixel", (1, 1, 1, 1), (4, 4), 3.0, "reflection", 0),
        ("one_pixel_corners", (1, 1, 1, 1), (4, 4), 3.0, "reflection", 1),
        ("thin", (2, 2, 1, 7), (5, 5), 1.5, "border", 0),
        ("more_than_a_block", (1, 2, 20, 30), (40, 41), 1.0, "zeros", 0),
        ("many_channels", (2, 65, 5, 6), (3, 7), 1.1, "zeros", 1),
        ("far_out", (1, 1, 6, 7), (10, 10), 1000.0, "reflection", 0),
        ("all_inside", (1, 2, 50, 50), (30, 30), 0.5, "zeros", 0),
        ("no_batch", (0, 2, 5, 5), (3, 3), 1.0, "zeros", 0),
        ("no_channels", (1, 0, 5, 5), (3, 3), 1.0, "zeros", 0),
        ("no_output", (1, 2, 5, 5), (0, 3), 1.0, "zeros", 0),
    )
]  # fmt: skip
CASES = COL2IM + GRID_SAMPLE


def type_of(dtype):
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def model(domain, op_type, inputs, attributes, *, opset=18, dims="fixed", constants=(), out_dtype=None):
    """A model of one node. dims: "fixed", "symbolic" or "none"; constants: inputs that become initializers."""
    names = [i.name for i in operator(domain, op_type).inputs]
    node = helper.make_node(op_type, names, ["y"], name="the_node", domain=domain, **attributes)
    described, initializers = [], []
    for name, value in zip(names, inputs, strict=True):
        if name in constants:
            initializers.append(onnx.numpy_helper.from_array(value, name))
        else:
            symbols = [f"{name}_{a}" for a in range(value.ndim)]
            shape = {"fixed": value.shape, "symbolic": symbols, "none": None}[dims]
            described.append(helper.make_tensor_value_info(name, type_of(value.dtype), shape))
    y = helper.make_tensor_value_info("y", type_of(out_dtype or inputs[0].dtype), None)
    graph = helper.make_graph([node], "one_node", described, [y], initializers)
    return finished(graph, opset, domain)


def finished(graph, opset=18, *domains):
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains if d)]
    return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)
