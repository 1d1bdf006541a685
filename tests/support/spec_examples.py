"""The operator specifications' own examples, as data.

Sources: OpenVINO operation specification, Col2Im-15. ONNX's examples of Col2Im, GridSample and
DeformConv are its node tests, which models/ has already; tests/arrays/test_node_cases.py compares
them with those of the onnx package. MultiScaleDeformableAttention and the operators that sample
without a grid are specified by this package: docs/deformable_attention.md,
docs/computed_grid_sample.md. RoiAlign and the operators of mmcv and mmdeploy are worked out by hand
from docs/roi_align.md and docs/mmdeploy.md, and so are the overlaps of turned boxes; what turned
regions read comes from a program that was written from that text. Im2Col has no specification but
its formula: its examples are two of Col2Im read backwards, and two worked out by hand. So are those
of Im2ColProduct.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnx_ops.fold import col2im as onnx_col2im
from onnx_ops.model import node_tests
from onnx_ops.sampling.computed_grid_sample import program

from . import TESTS


@dataclass(frozen=True, eq=False)
class Example:
    """One node with its inputs and the output that its specification states.

    `opset` is the version of `domain`.
    """

    name: str
    domain: str
    op_type: str
    opset: int
    attributes: dict
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]

    @property
    def output(self):
        """The first of the outputs."""
        return next(iter(self.outputs.values()))


def f32(values):
    return np.array(values, np.float32)


def stored(domain, name):
    """An example that is in models/."""
    folder = TESTS.parent / "models" / (domain or "ai.onnx") / name
    proto = onnx.load(folder / "model.onnx")
    (node,) = proto.graph.node
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    attributes = {
        n: value.decode() if isinstance(value, bytes) else value for n, value in attributes.items()
    }
    arrays = [
        {name:
            numpy_helper.to_array(onnx.load_tensor(folder / "test_data_set_0" / f"{kind}_{k}.pb"))
         for k, name in enumerate(names)}
        for kind, names in (("input", node.input), ("output", node.output))
    ]  # fmt: skip
    opset = next(i.version for i in proto.opset_import if i.domain == domain)
    return Example(name, domain, node.op_type, opset, attributes, *arrays)


def col2im(name, x, image_shape, block_shape, y, **attributes):
    shapes = {
        "image_shape": np.array(image_shape, np.int64),
        "block_shape": np.array(block_shape, np.int64),
    }
    return Example(name, "", "Col2Im", 18, attributes, {"input": x, **shapes}, {"output": y})


def sampled(name, result, inputs, sources, steps, coordinates):
    """A node that samples SIX_PIXELS by bilinear interpolation; the centres of its pixels range
    from -1 to 1.
    """
    arrays = {"X": SIX_PIXELS, **{f"source_{k}": f32(value) for k, value in enumerate(inputs)}}
    attributes = {"mode": "bilinear", "align_corners": 1, **program(sources, steps, coordinates)}
    return Example(
        name, "onnx_ops", "ComputedGridSample", 1, attributes, arrays, {"Y": f32(result)}
    )


def attention(name, value, spatial_shapes, sampling_locations, attention_weights, y):
    inputs = {
        "value": f32(value),
        "spatial_shapes": np.array(spatial_shapes, np.int64),
        "sampling_locations": f32(sampling_locations),
        "attention_weights": f32(attention_weights),
    }
    return Example(name, "onnx_ops", "MultiScaleDeformableAttention", 1, {}, inputs, {"y": f32(y)})


def mmdeploy(name, op_type, y, inputs, padding, deform_groups):
    attributes = {
        "stride": [1, 1],
        "padding": padding,
        "dilation": [1, 1],
        "groups": 1,
        "deform_groups": deform_groups,
    }
    return Example(name, "mmdeploy", op_type, 1, attributes, inputs, {"output": f32(y)})


def im2col(name, x, kernel_shape, y, **attributes):
    return Example(
        name,
        "onnx_ops",
        "Im2Col",
        1,
        {"kernel_shape": kernel_shape, **attributes},
        {"x": x},
        {"y": y},
    )


def im2col_product(name, x, factors, y, **attributes):
    inputs = {"x": f32(x), "factors": f32(factors)}
    return Example(name, "onnx_ops", "Im2ColProduct", 1, attributes, inputs, {"y": f32(y)})


def reversed_example(name, example):
    """Turn an example of Col2Im whose blocks tile the image into one of Im2Col."""
    return im2col(
        name, example.output, example.inputs["block_shape"].tolist(), example.inputs["input"]
    )


def openvino_col2im(example_number, x_shape, image_shape, block_shape, **attributes):
    """An example for which OpenVINO states shapes and attributes: data are random, the output is
    the reference's.
    """
    x = np.random.default_rng(example_number).integers(0, 10, x_shape, np.int32)
    values = onnx_col2im.COL2IM.values(attributes)
    y = onnx_col2im.reference(x, image_shape, block_shape, **values.by_name).astype(x.dtype)
    return col2im(f"col2im_openvino_{example_number}", x, image_shape, block_shape, y, **attributes)


def unbatched(example):
    (name, x), *others = example.inputs.items()
    return replace(
        example, inputs={name: x[0], **dict(others)}, outputs={"output": example.output[0]}
    )


COL2IM = [
    stored("", name)
    for name in "col2im col2im_strides col2im_pads col2im_dilations col2im_5d".split()
]
MODES = (
    "zeros_padding border_padding reflection_padding bilinear aligncorners_true nearest bicubic"
).split()
GRID_SAMPLE = [
    stored("com.microsoft", name)
    for name in ("gridsample", *(f"gridsample_{mode}" for mode in MODES))
]
DEFORM_CONV = [
    stored("", f"deform_conv{what}") for what in ("", "_pads", "_mask_bias", "_offset_groups")
]
# For models of older versions of ai.onnx.
OWN_DEFORM_CONV = [replace(DEFORM_CONV[2], domain="onnx_ops", opset=1)]

# fmt: off
IM2COL = (
    reversed_example("im2col", COL2IM[0]),
    reversed_example("im2col_5d", COL2IM[4]),
    im2col(
        "im2col_overlapping",
        f32([[[[1, 2, 3],
               [4, 5, 6],
               [7, 8, 9]]]]),
        [2, 2],
        f32([[[1, 2, 4, 5],
              [2, 3, 5, 6],
              [4, 5, 7, 8],
              [5, 6, 8, 9]]]),
    ),
    im2col(
        "im2col_pads_strides",
        f32([[[[1, 2],
               [3, 4]]]]),
        [2, 2],
        f32([[[0, 0, 0, 4],
              [0, 0, 3, 0],
              [0, 2, 0, 0],
              [1, 0, 0, 0]]]),
        pads=[1, 1, 1, 1], strides=[2, 2],
    ),
)

SIX_PIXELS = f32([[[[1, 2, 3], [4, 5, 6]]]])
SUMS = {f"{i}{j}": (0, "n", i, j) for i in range(3) for j in range(3)} | {"x": (1, "w"),
    "y": (2, "h")}
PRODUCTS = {
    f"{name}{i}": step
    for i in range(3)
    for name, step in (("u", ("Mul", f"{i}0", "x")), ("v", ("Mul", f"{i}1", "y")),
        ("w", ("Add", f"u{i}", f"v{i}")),
                       ("z", ("Add", f"w{i}", f"{i}2")))
}  # fmt: skip
COMPUTED = (  # worked out by hand
    sampled(
        "computed_grid_sample_affine", [[[[1.5, 2.5, 1.5], [4.5, 5.5, 3]]]],
        ([[[1, 0, 0.5], [0, 1, 0]]], [-1, 0, 1], [-1, 1]),
        {k: v for k, v in SUMS.items() if k[0] != "2"},
        {k: v for k, v in PRODUCTS.items() if k[1] != "2"}, ("z0", "z1"),
    ),
    sampled(
        "computed_grid_sample_perspective", [[[[2.25, 2.75, 3.25], [3.75, 4.25, 4.75]]]],
        ([[[1, 0, 0], [0, 1, 0], [0, 0, 2]]], [-1, 0, 1], [-1, 1]), SUMS,
        {**PRODUCTS, "a": ("Div", "z0", "z2"), "b": ("Div", "z1", "z2")}, ("a", "b"),
    ),
    sampled(  # a flow in pixels: to the right in the first row, up in the second one
        "computed_grid_sample_flow", [[[[2, 3, 0], [1, 2, 3]]]],
        ([[[[1, 1, 1], [0, 0, 0]], [[0, 0, 0], [-1, -1, -1]]]], [0, 1, 2], [0, 1], [2, 1]),
        {"u": (0, "n", 0, "h", "w"), "v": (0, "n", 1, "h", "w"), "x": (1, "w"), "y": (2, "h"),
         "two": (3, 0), "one": (3, 1)},
        {"p": ("Add", "u", "x"), "q": ("Add", "v", "y"), "q2": ("Mul", "q", "two"),
            "p1": ("Sub", "p", "one"),
         "q1": ("Sub", "q2", "one")}, ("p1", "q1"),
    ),
)

IM2COL_PRODUCT = (  # worked out by hand
    # Two channels of three pixels, correlated with the pixels before, at and after each.
    im2col_product(
        "im2col_product_correlation",
        [[[1, 2, 3], [10, 20, 30]]],
        [[[1, 2, 1], [1, 0, 2]]],
        [[[0, 2, 42], [11, 4, 63], [22, 6, 0]]],
        kernel_shape=[3], pads=[1, 1], sum_over="channels",
    ),
    im2col_product(  # the weights of two groups for the pixel itself and the next one
        "im2col_product_weights",
        [[[1, 2, 3], [10, 20, 30]]],
        [[[1, 2], [3, 4], [0, 1], [0.5, 0]]],
        [[[7, 16], [10, 20]]],
        kernel_shape=[2], group=2, sum_over="kernel",
    ),
)

ATTENTION = (  # worked out by hand
    # Two levels, two queries: between all pixels and on the only one; on a pixel and at the left
    # border.
    attention(
        "deformable_attention",
        [[[[1, 10]], [[2, 20]],
          [[3, 30]], [[4, 40]],
          [[100, 1000]]]],
        [2, 2, 1, 1],
        [[[[[[0.5, 0.5]], [[0.5, 0.5]]]], [[[[0.25, 0.75]], [[0, 0.5]]]]]],
        [[[[[0.5], [0.25]]], [[[1], [0.5]]]]],
        [[[0.5 * 2.5 + 0.25 * 100, 0.5 * 25 + 0.25 * 1000], [3 + 0.5 * 50, 30 + 0.5 * 500]]],
    ),
    attention(  # two heads with two points each, one of which is outside
        "deformable_attention_heads",
        [[[[1], [10]], [[2], [20]]]],
        [1, 2],
        [[[[[[0.25, 0.5], [0.5, 0.5]]], [[[0.75, 0.5], [2, 0.5]]]]]],
        [[[[[0.5, 2]], [[0.25, 1]]]]],
        [[[0.5 * 1 + 2 * 1.5, 0.25 * 20]]],
    ),
)

MMDEPLOY = (
    mmdeploy(  # a quarter of a pixel, nothing outside, half a pixel, nothing a whole pixel outside
        "mmcv_modulated_deform_conv2d", "MMCVModulatedDeformConv2d", [[[[10.25, 10], [12, 10]]]],
        {"x": f32([[[[1, 2], [3, 4]]]]),
         "offset": f32([[[[-0.5, 0], [0, -2]], [[-0.5, 1], [1.5, -1]]]]),
         "mask": np.full((1, 1, 2, 2), 0.5, np.float32),
         "weight": f32([[[[2]]]]),
         "bias": f32([10])},
        padding=[0, 0], deform_groups=1,
    ),
    mmdeploy(  # the padding as mmdeploy writes it for this operator
        "mmcv_deform_conv2d", "MMCVDeformConv2d",
        [[[[-2.5, 0], [0.0625, -1.5], [-7.125, 1.78125], [-2.625, -7.40625]],
          [[3.75, 0], [-3.5, 2.1875], [4.96875, -2.34375], [6, 5.65625]]]],
        {"x": f32(np.arange(18) ** 2 % 13).reshape(1, 2, 3, 3),
         "offset": f32((7 * np.arange(128) % 11 - 5) * 0.75).reshape(1, 16, 4, 2),
         "weight": f32((5 * np.arange(16) % 7 - 3) / 4).reshape(2, 2, 2, 2)},
        padding=[1, 1, 0, 0], deform_groups=2,
    ),
)
# fmt: on

# The attributes imply L = 49 for example 2 (printed: 25) and L = 1296 for example 3 (printed: 324).
# Example 4 is missing: it is unbatched, and ai.onnx requires rank 3.
OPENVINO = (
    openvino_col2im(1, [3, 12, 225], [16, 16], [2, 2]),
    openvino_col2im(
        2, [1, 27, 49], [16, 16], [3, 3], dilations=[2, 2], pads=[1, 1, 1, 1], strides=[2, 2]
    ),
    openvino_col2im(3, [12, 12, 1296], [32, 32], [2, 2], dilations=[2, 2], pads=[3, 3, 3, 3]),
)


def openvino_domain(example, **attributes):
    """Turn an example into one of OpenVINO's domain: its own names of inputs, all of them int32."""
    x, *sizes = example.inputs.values()
    sizes = {
        n: v.astype(np.int32) for n, v in zip(("output_size", "kernel_size"), sizes, strict=True)
    }
    name = example.name.removeprefix("col2im_openvino_")
    return Example(
        f"col2im_{name}",
        "org.openvinotoolkit",
        "Col2Im",
        1,
        attributes,
        {"data": x, **sizes},
        {"y": example.output},
    )


# These examples in OpenVINO's own domain; example 4 is the unbatched one.
OPENVINO_DOMAIN = (
    openvino_domain(OPENVINO[0]),
    openvino_domain(
        OPENVINO[1], dilations=[2, 2], pads_begin=[1, 1], pads_end=[1, 1], strides=[2, 2]
    ),
    openvino_domain(OPENVINO[2], dilations=[2, 2], pads_begin=[3, 3], pads_end=[3, 3]),
    openvino_domain(unbatched(openvino_col2im(4, [1, 12, 225], [16, 16], [2, 2]))),
)

SLOPE = f32(np.arange(16).reshape(1, 1, 4, 4))
ROIS = f32([[0, 0, 4, 4], [1, 1, 3, 3]])
ROI_ALIGN = tuple(
    Example(
        name, "", "RoiAlign", 16,
            {"mode": mode, "output_height": 2, "output_width": 2, "sampling_ratio": 1},
        {"X": SLOPE, "rois": ROIS, "batch_indices": np.zeros(2, np.int64)}, {"output": f32(output)},
    )
    for name, mode, output in (
        ("roi_align", "avg", [[[[2.5, 4.5], [10.5, 12.5]]], [[[5, 6], [9, 10]]]]),
        # A quarter of the largest pixel in each corner; the pixels in the middle.
        ("roi_align_max", "max", [[[[1.25, 1.75], [3.25, 3.75]]], [[[5, 6], [9, 10]]]]),
    )
)  # fmt: skip


def openmmlab(domain, name, op_type, inputs, outputs, **attributes):
    """An example of an operator of mmcv or mmdeploy; integers among the inputs become float32."""
    return Example(
        name, domain, op_type, 1, attributes, {n: f32(v) for n, v in inputs.items()},
        {n: np.array(v, np.int64 if np.array(v).dtype == np.int64 else np.float32) for n,
            v in outputs.items()},
    )  # fmt: skip


CHAIN = [
    [0, 0, 1, 1],
    [0.5, 0, 1.5, 1],
    [1, 0, 2, 1],
]  # the box in the middle overlaps with both others by one third
TURNED = [  # crossing, turned by 30 degrees; one is half of the other; one has no area
    [10, 10, 8, 4, 0], [10, 10, 8, 4, np.pi / 2], [10, 10, 8, 4, np.pi / 6], [40, 40, 2, 1, 0],
    [40, 40, 1, 1, 0],
    [60, 60, 0, 5, 0],
]  # fmt: skip
OF_TURNED = [[0.9, 0.8, 0.7, 0.6, 0.5, 0.4], [0.05, 0.8, 0.8, 0.2, 0.3, 0.05]]
REGIONS = {"output_height": 2, "output_width": 2, "spatial_scale": 1.0, "aligned": 1}
OPENMMLAB = (
    openmmlab("mmcv", "cummax", "cummax", {"input": [[1, 3, 2], [3, 3, 1]]},
              {"values": [[1.0, 3, 3], [3, 3, 3]], "indices": [[0, 1, 1], [0, 1, 1]]}, dim=1),
    openmmlab("mmcv", "cummin", "cummin", {"input": [[1, 3, 2], [3, 3, 1]]},
              {"values": [[1.0, 3, 2], [1, 3, 1]], "indices": [[0, 0, 0], [0, 1, 1]]}, dim=-2),
    openmmlab("mmcv", "corner_pool", "MMCVCornerPool", {"input": [[[[1, 2], [3, 0]]]]},
              {"output": [[[[3.0, 2], [3, 0]]]]}, mode=0),
    openmmlab("mmcv", "rotated_feature_align", "MMCVRotatedFeatureAlign",
              {"features": [[[[1, 2], [3, 4]]]],
                  "boxes": np.broadcast_to([0.5, 0.5, 1, 1, 0], (1, 2, 2, 5))},
              {"output": [[[[3.5, 4.5], [5.5, 6.5]]]]}, spatial_scale=1.0, points=1),
    # Between the pixels 1 and 4, and on them: the samples, not their weighted pixels.
    openmmlab("mmcv", "roi_align", "MMCVRoiAlign",
              {"input": [[[[1, 4], [1, 4]]]], "rois": [[0, 0.5, 0, 1.5, 1], [0, 0, 0, 2, 2]]},
              {"output": [[[[1.75, 3.25], [1.75, 3.25]]], [[[1.0, 4], [1, 4]]]]}, mode="max",
              sampling_ratio=1,
              **REGIONS),
    openmmlab("mmcv", "nms", "NonMaxSuppression", {"boxes": CHAIN, "scores": [0.9, 0.8, 0.7]},
        {"indices": [0, 2]},
              iou_threshold=0.3, offset=0),
    openmmlab("mmcv", "soft_nms", "SoftNonMaxSuppression",
        {"boxes": CHAIN, "scores": [0.9, 0.8, 0.7]},
              {"dets": [[0, 0, 1, 1, 0.9], [1, 0, 2, 1, 0.7],
                      [0.5, 0, 1.5, 1, 0.8 * 2 / 3 * 2 / 3]],
               "inds": [0, 2, 1]}, iou_threshold=0.3, sigma=0.5, min_score=0.05, method=1,
               offset=0),
    openmmlab("mmdeploy", "grid_sampler", "grid_sampler",
              {"input": SIX_PIXELS, "grid": [[[[-1, -1], [0, 0], [1, 1], [0, -1], [3, 0]]]]},
              {"output": [[[[1, 3.5, 6, 2, 0]]]]}, interpolation_mode=0, padding_mode=0,
              align_corners=1),
    openmmlab("mmdeploy", "roi_align_rotated", "MMCVRoIAlignRotated",
              {"input": np.arange(16).reshape(1, 1, 4, 4) ** 2 % 17,
               "rois": [[0, 1.5, 2, 3, 2, np.pi / 6], [0, 4, 0.5, 2.5, 3.5, -1],
                   [0, 2, 2, 0, 0, 0]]},
              {"output": [[[[7.5237155, 8.454717], [13.784836, 13.134769]]],
                          [[[6.6182723, 3.9555173], [6.666914, 0]]], [[[9.5, 9.5], [9.5, 9.5]]]]},
              sampling_ratio=2, clockwise=1, **REGIONS),
    openmmlab("mmdeploy", "nms_rotated", "NMSRotated", {"boxes": [TURNED], "scores": [OF_TURNED]},
              {"selected": [[0, 0, 0], [0, 0, 1], [0, 0, 3], [0, 0, 4], [0, 0, 5],
                            [0, 1, 1], [0, 1, 2], [0, 1, 4], [0, 1, 3]]}, iou_threshold=0.5,
                            score_threshold=0.05),
    openmmlab("mmdeploy", "nms_match", "NMSMatch",
              {"boxes": [CHAIN], "scores": [[[0.9, 0.8, 0.7]]], "iou_threshold": [0.3],
                  "score_threshold": [0.1]},
              {"matches": [[0, 0, 0, 1]]}),
)  # fmt: skip

EXAMPLES = (
    *COL2IM, *GRID_SAMPLE, *OPENVINO, *OPENVINO_DOMAIN, *IM2COL, *IM2COL_PRODUCT, *ATTENTION,
    *COMPUTED,
    *DEFORM_CONV, *OWN_DEFORM_CONV, *MMDEPLOY, *ROI_ALIGN, *OPENMMLAB,
)  # fmt: skip

# Examples 2 and 3 with L as printed, by name, in the type that most tests need: these must be
# refused.
OPENVINO_MISPRINTED = {
    example.name: replace(
        example,
        inputs=example.inputs | {"input": np.zeros(x_shape, np.float32)},
        outputs={name: y.astype(np.float32) for name, y in example.outputs.items()},
    )
    for example, x_shape in zip(OPENVINO[1:], ([1, 27, 25], [12, 12, 324]), strict=True)
}


def build_model(example):
    """A model of one node, all of whose inputs are inputs of the graph, with fixed shapes."""
    names = list(example.inputs), list(example.outputs)
    node = helper.make_node(example.op_type, *names, domain=example.domain, **example.attributes)
    return node_tests.test_model(example.name, node, example.opset, example.inputs, example.outputs)


def write_model(example, root):
    """Write the example's folder under `root` and return it."""
    folder = Path(root, example.domain or "ai.onnx", example.name)
    node_tests.save(folder, build_model(example), example.inputs, example.outputs)
    return folder
