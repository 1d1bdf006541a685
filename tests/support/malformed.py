"""Calls whose inputs or attributes break one rule each, and the message that must refuse them."""

from dataclasses import dataclass, field, replace

import numpy as np

from .cases import model


@dataclass(frozen=True)
class Malformed:
    name: str
    domain: str
    op_type: str
    message: str  # a regular expression
    inputs: tuple
    attributes: dict = field(default_factory=dict)

    @property
    def title(self):
        """The operator's title, with which messages begin, as a regular expression."""
        return rf"{self.domain}.{self.op_type}".lstrip(".").replace(".", r"\.")

    def __str__(self):
        return f"{self.domain or 'ai.onnx'}.{self.op_type}-{self.name}"


def col2im(name, message, x=(1, 9, 9), image=(5, 5), block=(3, 3), **attributes):
    inputs = (np.zeros(x, np.float32), np.array(image, np.int64), np.array(block, np.int64))
    return Malformed(name, "", "Col2Im", message, inputs, attributes)


def grid_sample(name, message, x=(1, 1, 4, 4), grid=(1, 3, 3, 2), **attributes):
    inputs = (np.zeros(x, np.float32), np.zeros(grid, np.float32))
    return Malformed(name, "com.microsoft", "GridSample", message, inputs, attributes)


def volumes(name, message, x=(1, 1, 4, 4, 4), grid=(1, 3, 3, 3, 3), dtype=np.float32, **attributes):
    return Malformed(
        name,
        "",
        "GridSample",
        message,
        (np.zeros(x, dtype), np.zeros(grid, np.float32)),
        attributes,
    )


def openvino(name, message, data=(1, 9, 9), size=(5, 5), kernel=(3, 3), **attributes):
    inputs = (np.zeros(data, np.float32), np.array(size, np.int64), np.array(kernel, np.int64))
    return Malformed(name, "org.openvinotoolkit", "Col2Im", message, inputs, attributes)


def computed(name, message, image=(2, 1, 4, 4), shapes=((2, 5, 6),), **attributes):
    """sources: one value p of the first input, unless they are given."""
    inputs = tuple(np.zeros(shape, np.float32) for shape in (image, *shapes))
    required = {"sources": [0, 3, -4, -2, -1], "coordinates": [0, 0]}
    return Malformed(name, "onnx_ops", "ComputedGridSample", message, inputs, required | attributes)


def attention(
    name,
    message,
    value=(1, 6, 2, 3),
    sizes=(2, 3),
    locations=(1, 4, 2, 1, 5, 2),
    weights=(1, 4, 2, 1, 5),
):
    value, locations, weights = (
        np.zeros(shape, np.float32) for shape in (value, locations, weights)
    )
    inputs = value, np.array(sizes, np.int64), locations, weights
    return Malformed(name, "onnx_ops", "MultiScaleDeformableAttention", message, inputs)


def deform_conv(name, message, *changes, **attributes):
    """changes: (position of an input, its shape)."""
    shapes = {
        0: (1, 4, 5, 6),
        1: (6, 2, 3, 2),
        2: (1, 24, 3, 5),
        3: (6,),
        4: (1, 12, 3, 5),
        **dict(changes),
    }
    inputs = tuple(np.zeros(shape, np.float32) for shape in shapes.values())
    return Malformed(
        name, "", "DeformConv", message, inputs, {"group": 2, "offset_group": 2} | attributes
    )


def modulated(name, message, *changes, **attributes):
    shapes = {
        0: (1, 4, 5, 6),
        1: (1, 24, 3, 5),
        2: (1, 12, 3, 5),
        3: (6, 2, 3, 2),
        4: (6,),
        **dict(changes),
    }
    inputs = tuple(np.zeros(shape, np.float32) for shape in shapes.values())
    usual = {
        "stride": [1, 1],
        "padding": [0, 0],
        "dilation": [1, 1],
        "groups": 2,
        "deform_groups": 2,
    }
    given = {n: v for n, v in (usual | attributes).items() if v is not None}
    return Malformed(name, "mmdeploy", "MMCVModulatedDeformConv2d", message, inputs, given)


def plain_deform_conv(name, message, *changes, **attributes):
    bad = modulated(name, message, *changes, **attributes)
    x, offset, _, w, _ = bad.inputs
    return replace(bad, op_type="MMCVDeformConv2d", domain="mmcv", inputs=(x, offset, w))


def im2col(name, message, x=(1, 1, 5, 5), kernel_shape=(3, 3), **attributes):
    required = {} if kernel_shape is None else {"kernel_shape": kernel_shape}
    required = {n: list(v) if isinstance(v, tuple) else v for n, v in required.items()}
    return Malformed(
        name, "onnx_ops", "Im2Col", message, (np.zeros(x, np.float32),), {**required, **attributes}
    )


def im2col_product(name, message, x=(1, 4, 5, 5), factors=(1, 4, 9), **attributes):
    right = {"kernel_shape": [3, 3], "sum_over": "channels", "group": 2}
    given = {name: value for name, value in {**right, **attributes}.items() if value is not None}
    inputs = np.zeros(x, np.float32), np.zeros(factors, np.float32)
    return Malformed(name, "onnx_ops", "Im2ColProduct", message, inputs, given)


MANY = 0, 2**20, 2**20, 1  # images, queries, heads, levels
POSITIONS = {"kernel_shape": [2**10] * 2, "pads": [2**10] * 4}
NO_IMAGES = {
    "x": (0, 2**30, 5, 6),
    "rois": (0, 4),
    "images": (),
    "output_height": 2**20,
    "output_width": 2**20,
}


def roi_align(name, message, x=(2, 1, 5, 6), rois=(3, 4), images=(0, 1, 1), **attributes):
    inputs = np.zeros(x, np.float32), np.zeros(rois, np.float32), np.array(images, np.int64)
    return Malformed(name, "", "RoiAlign", message, inputs, attributes)


def openmmlab(name, message, op_type, *shapes, domain="mmcv", values=0.0, **attributes):
    """A call of one of mmcv's operators, with attributes that are right unless they are given."""
    of_regions = {
        "output_height": 2,
        "output_width": 2,
        "sampling_ratio": 0,
        "aligned": 1,
        "spatial_scale": 1.0,
    }
    right = {
        "MMCVRoiAlign": {**of_regions, "mode": "avg"},
        "MMCVRoIAlignRotated": {**of_regions, "clockwise": 1},
        "grid_sampler": {"interpolation_mode": 0, "padding_mode": 0, "align_corners": 0},
        "MMCVRotatedFeatureAlign": {"points": 5, "spatial_scale": 1.0},
        "MMCVCornerPool": {"mode": 0},
        "cummax": {"dim": 0},
        "NMSRotated": {"iou_threshold": 0.5, "score_threshold": 0.1},
        "NMSMatch": {},
        "NonMaxSuppression": {"iou_threshold": 0.5, "offset": 0},
        "SoftNonMaxSuppression": {
            "iou_threshold": 0.5, "sigma": 0.5, "min_score": 0.1, "method": 1, "offset": 0,
        },
    }[op_type]  # fmt: skip
    inputs = tuple(np.full(shape, values, np.float32) for shape in shapes)
    given = {name: value for name, value in {**right, **attributes}.items() if value is not None}
    return Malformed(name, domain, op_type, message, inputs, given)


# Mistakes that only the inputs of a run show.
AT_RUN = [
    deform_conv(
        "x_scalar", r"shape of X = \[\]: must have rank 3, 4 or 5: \[N, C, \*image\]", (0, ())
    ),
    deform_conv(
        "x_empty", r"shape of X = .*: image axes must not be empty; is axis 3", (0, (1, 4, 5, 0))
    ),
    deform_conv(
        "x_of_3_channels",
        r"group = 2: must divide the number of channels of X, 3",
        (0, (1, 3, 5, 6)),
    ),
    deform_conv(
        "x_smaller_than_w",
        r"shape of W = .*: the kernel must, dilated, fit .* axis 2",
        (0, (1, 4, 2, 6)),
    ),
    deform_conv(
        "w_rank_3", r"shape of W = \[6, 2, 3\]: must have the rank of X, 4", (1, (6, 2, 3))
    ),
    deform_conv(
        "w_to_5_channels",
        r"group = 2: must divide the number of output channels of W, 5",
        (1, (5, 2, 3, 2)),
    ),
    deform_conv(
        "w_of_3_channels",
        r"shape of W = .*: axis 1 must be .* of a group of X, 2",
        (1, (6, 3, 3, 2)),
    ),
    deform_conv(
        "w_empty", r"kernel axes of W = \[3, 0\]: must lie in \[1, 2\*\*40\]", (1, (6, 2, 3, 0))
    ),
    deform_conv(
        "dilated_too_large", r"shape of W = .*: .* fit .* too large on axis 3", dilations=[1, 6]
    ),
    deform_conv(
        "dilated_past_2**40",
        r"shape of W = .*: .* fit .* too large on axis 2",
        dilations=[2**40, 1],
    ),
    deform_conv(
        "strides_for_1d",
        r"shape of X = .*: strides, dilations and pads are for image axes: 1",
        strides=[1],
    ),
    deform_conv(
        "pads_for_3d",
        r"shape of X = .*: strides, dilations and pads are for image axes: 3",
        pads=[0] * 6,
    ),
    deform_conv(
        "kernel_for_3d",
        r"kernel_shape = .*: must have the sizes .* as many as 2",
        kernel_shape=[3, 2, 1],
    ),
    deform_conv(
        "kernel_of_others",
        r"kernel_shape = \[3, 3\]: must have .*; differs on axis 1",
        kernel_shape=[3, 3],
    ),
    deform_conv("3_groups", r"group = 3: must divide the number of channels of X, 4", group=3),
    deform_conv(
        "3_offset_groups",
        r"offset_group = 3: must divide the number of channels of X, 4",
        offset_group=3,
    ),
    deform_conv(
        "offsets_past_2**58",
        r"offset_group = .*: times kernel .* 2\*\*58",
        (0, (1, 0, 5, 2**20)),
        (1, (0, 0, 1, 2**20)),
        offset_group=2**40,
    ),
    deform_conv(
        "offset_of_2_images",
        r"shape of offset = .*: axis 0 must be .* N of X, 1",
        (2, (2, 24, 3, 5)),
    ),
    deform_conv(
        "offset_of_one_group",
        r"shape of offset = .*: axis 1 must be offset_group .* 24",
        (2, (1, 12, 3, 5)),
    ),
    deform_conv(
        "offset_narrow", r"shape of offset = .*: image .*; differs on axis 3", (2, (1, 24, 3, 4))
    ),
    deform_conv("bias_scalar", r"shape of B = \[\]: must have an axis", (3, ())),
    deform_conv(
        "bias_of_5",
        r"shape of B = \[5\]: must be \[M\], the number of output channels of W, 6",
        (3, (5,)),
    ),
    deform_conv("mask_scalar", r"shape of mask = \[\]: must have an axis", (4, ())),
    deform_conv("mask_rank_3", r"shape of mask = .*: must have the rank of X, 4", (4, (1, 12, 15))),
    deform_conv(
        "mask_of_2_images",
        r"shape of mask = .*: axis 0 must be the batch size N of X, 1",
        (4, (2, 12, 3, 5)),
    ),
    deform_conv(
        "mask_of_offsets",
        r"shape of mask = .*: axis 1 must be offset_group .* 12",
        (4, (1, 24, 3, 5)),
    ),
    deform_conv(
        "mask_narrow", r"shape of mask = .*: image .*; differs on axis 3", (4, (1, 12, 3, 4))
    ),
    deform_conv(
        "output_past_2**58",
        r"shape of X .* 2\*\*58 ",
        (0, (1, 4, 1, 1)),
        (1, (6, 2, 1, 1)),
        pads=[2**40] * 4,
    ),
    modulated(
        "x_rank_3",
        r"shape of x = .*: stride, dilation and padding are for image axes: 2",
        (0, (4, 5, 6)),
    ),
    modulated(
        "mask_of_one_group",
        r"shape of mask = .*: axis 1 must be deform_groups .* 12",
        (2, (1, 6, 3, 5)),
    ),
    plain_deform_conv(
        "3_deform_groups", r"deform_groups = 3: must divide .* of x, 4", deform_groups=3
    ),
    plain_deform_conv(
        "padding_twice", r"shape of offset = .*: image .* axis 3", padding=[0, 0, 1, 1]
    ),
    col2im("x_rank_4", r"shape of input = \[1, 1, 9, 9\]: must have rank 3", x=(1, 1, 9, 9)),
    col2im(
        "not_divisible",
        r"shape of input = \[1, 10, 9\]: the second to last axis must be divisible by .* 9",
        x=(1, 10, 9),
    ),
    col2im(
        "block_count",
        r"shape of input = \[1, 9, 8\]: the last axis must be the number of blocks, 9",
        x=(1, 9, 8),
    ),
    col2im("image_zero", r"image_shape = \[5, 0\]: must lie in \[1, 2\*\*40\]", image=(5, 0)),
    col2im(
        "image_product",
        r"image_shape = .*: product must be at most 2\*\*58",
        image=(2**39,) * 3,
        block=(1,) * 3,
    ),
    col2im("image_rank_2", r"shape of image_shape = \[1, 2\]: must have rank 1", image=((5, 5),)),
    col2im(
        "image_empty",
        r"image_shape = \[\]: number of image axes must be at least 1",
        image=(),
        block=(),
    ),
    col2im(
        "image_of_100_axes",
        r"length of image_shape = 100: must be at most 16",
        image=(1,) * 100,
        block=(1,) * 100,
    ),
    col2im("image_15", r"image_shape = .*: number .* at most 14", image=(1,) * 15, block=(1,) * 15),
    col2im(
        "block_too_large",
        r"block_shape = \[3, 6\]: must, dilated, fit into .* axis 1",
        block=(3, 6),
    ),
    col2im("dilated_too_large", r"block_shape = \[3, 3\]: must, dilated, fit", dilations=[3, 1]),
    col2im(
        "dilated_past_2**63",
        r"block_shape = .*: must, dilated, fit",
        block=(3, 2**39),
        dilations=[1, 2**39],
    ),
    col2im(
        "attributes_for_1d", r"image_shape = .* are for image axes: 1", strides=[2], image=(5, 5)
    ),
    col2im("x_rank_17", r"rank of input = 17: must be at most 16", x=(1,) * 17),
    col2im(
        "image_int64_min",
        r"image_shape = \[5, -9223372036854775808\]: must lie in",
        image=(5, -(2**63)),
    ),
    col2im(
        "image_past_2**40", r"image_shape = \[1099511627777, 5\]: must lie in", image=(2**40 + 1, 5)
    ),
    col2im("block_empty", r"block_shape = \[\]: must be as long as image_shape, .* 2", block=()),
    col2im(
        "block_product",
        r"block_shape = .* 2\*\*58",
        (1, 9, 9),
        (1,) * 3,
        (2**30,) * 3,
        pads=[2**30] * 6,
    ),
    col2im(
        "blocks_past_2**63",
        r"block_shape = .*: must have at most 2\*\*58 places",
        block=(1, 1),
        pads=[2**40] * 4,
    ),
    col2im(
        "output_past_2**58",
        r"image_shape = .*: output .* 2\*\*58",
        (2**30, 0, 1),
        (2**20,) * 2,
        (2**20,) * 2,
    ),
    grid_sample(
        "output_past_2**58",
        r"shape of the output = .* 2\*\*58",
        (0, 2**10, 4, 4),
        (0, 2**29, 2**28, 2),
    ),
    volumes(
        "x_rank_6",
        r"shape of X = \[1, 1, 4, 4, 4, 4\]: must have rank 4 or 5",
        x=(1, 1, 4, 4, 4, 4),
    ),
    volumes("grid_rank_4", r"shape of grid = \[1, 3, 3, 3\]: must have rank 5", grid=(1, 3, 3, 3)),
    openvino("data_scalar", r"shape of data = \[\]: must have rank 3", data=()),
    openvino(
        "data_unbatched_rows",
        r"shape of data = \[8, 9\]: the second to last axis must be divisible .* 9",
        data=(8, 9),
    ),
    openvino(
        "data_unbatched_blocks",
        r"shape of data = \[9, 8\]: the last axis must be the number of blocks, 9",
        data=(9, 8),
    ),
    openvino(
        "size_of_3_axes",
        r"output_size = \[5, 5, 5\]: .* are for image axes: 2",
        size=(5,) * 3,
        kernel=(3,) * 3,
    ),
    openvino("kernel_length", r"kernel_size = \[3\]: must be as long as output_size", kernel=(3,)),
    openvino(
        "example_2_of_the_specification",
        r"shape of data = .* 49",
        (12, 81, 25),
        (16, 16),
        strides=[2, 2],
    ),
    grid_sample("x_rank_3", r"shape of X = \[1, 4, 4\]: must have rank 4", x=(1, 4, 4)),
    grid_sample(
        "x_empty",
        r"shape of X = \[1, 1, 0, 4\]: image axes must not be empty; is axis 2",
        x=(1, 1, 0, 4),
    ),
    grid_sample("grid_rank_3", r"shape of Grid = \[3, 3, 2\]: must have rank 4", grid=(3, 3, 2)),
    grid_sample(
        "grid_last_axis",
        r"shape of Grid = .*the last axis must be the number of .* 2",
        grid=(1, 3, 3, 3),
    ),
    grid_sample(
        "batch_differs",
        r"shape of Grid = .*axis 0 must be the batch size N of X, 1",
        grid=(2, 3, 3, 2),
    ),
    computed(
        "image_rank_3",
        r"shape of X = \[1, 4, 4\]: must have two axes more .* coordinates, 2",
        image=(1, 4, 4),
    ),
    computed("source_scalar", r"shape of source_0 = \[\]: must have an axis", shapes=((),)),
    computed(
        "source_missing",
        r"rank of an input = .*: must be what .* position 1",
        sources=[1, 3, -4, -2, -1],
    ),
    computed(
        "batch", r"shape of a source = \[3, 5, 6\]: must be 1 or .* has 2", shapes=((3, 5, 6),)
    ),
    computed(
        "widths",
        r"shape of a source = .* 6",
        shapes=((2, 5, 6), (7,)),
        sources=[1, 1, -1, 0, 3, -4, -2, -1],
    ),
    computed(
        "width_twice",
        r"shape of a source = .*: must be 1 or .* 5",
        shapes=((6, 5),),
        sources=[0, 2, -1, -1],
    ),
    computed(
        "position_outside",
        r"shape of a source = .*: must have the element that .* 5",
        sources=[0, 3, -4, 5, -1],
    ),
    computed(
        "position_of_none",
        r"shape of a source = .*: must .* 0",
        shapes=((2, 0, 6),),
        sources=[0, 3, -4, 0, -1],
    ),
    computed(
        "output_past_2**58",
        r"shape of the output = .* 2\*\*58",
        (0, 2**20, 4, 4),
        ((0, 2**20, 2**20),),
    ),
    attention("value_scalar", r"shape of value = \[\]: must have rank 4", value=()),
    attention(
        "value_of_7_pixels",
        r"shape of value = .*axis 1 must be the number of pixels .* 6",
        value=(1, 7, 2, 3),
    ),
    attention(
        "sizes_empty",
        r"spatial_shapes = \[\]: must be a height and a width for each of 1 to 8",
        sizes=(),
    ),
    attention(
        "sizes_odd", r"spatial_shapes = \[2, 3, 4\]: must be a height and a width", sizes=(2, 3, 4)
    ),
    attention(
        "sizes_of_nine_levels",
        r"length of spatial_shapes = 18: must be at most 16",
        sizes=(1,) * 18,
    ),
    attention("size_zero", r"spatial_shapes = \[0, 3\]: must lie in \[1, 2\*\*29\]", sizes=(0, 3)),
    attention("size_past_2**29", r"spatial_shapes = .*: must lie in", sizes=(1, 2**29 + 1)),
    attention(
        "sizes_past_2**29",
        r"spatial_shapes = .*: must have at most 2\*\*29 pixels",
        sizes=(2**29, 2**29),
    ),
    attention(
        "locations_scalar",
        r"shape of sampling_locations = \[\]: must be \[N, Q, M, L, P, 2\]",
        locations=(),
    ),
    attention(
        "locations_of_2_images",
        r"shape of samp.*axis 0 must be .* size N .* 1",
        locations=(2, 4, 2, 1, 5, 2),
    ),
    attention(
        "locations_of_3_heads",
        r"shape of samp.*axis 2 must be .* heads M .* 2",
        locations=(1, 4, 3, 1, 5, 2),
    ),
    attention(
        "locations_of_2_levels",
        r"shape of samp.*axis 3 must be .* L .* 1",
        locations=(1, 4, 2, 2, 5, 2),
    ),
    attention("weights_scalar", r"shape of attention_weights = \[\]: must have rank 5", weights=()),
    attention(
        "weights_of_3_queries",
        r"shape of attention_weights = .*differs on axis 1",
        weights=(1, 3, 2, 1, 5),
    ),
    attention(
        "points_past_2**58",
        r"shape of .* points",
        (0, 6, 2**20, 3),
        (2, 3),
        (*MANY, 2**19, 2),
        (*MANY, 2**19),
    ),
    attention(
        "output_past_2**58",
        r"shape of value = .*58",
        (0, 6, 2**20, 2**19),
        (2, 3),
        (*MANY, 5, 2),
        (*MANY, 5),
    ),
    im2col(
        "x_rank_5",
        r"shape of x = \[1, 1, 5, 5, 5\]: must be \[N, C, \*image\], .* 2",
        x=(1, 1, 5, 5, 5),
    ),
    im2col(
        "image_huge", r"image axes of x = \[5, \d+\]: must be at most 2\*\*40", x=(1, 0, 5, 2**41)
    ),
    im2col(
        "image_product", r"image axes of x = .*: product must be at most", x=(0, 1, 2**30, 2**29)
    ),
    im2col(
        "kernel_product",
        r"kernel_shape = .*: product .* 2\*\*58",
        (1,) * 5,
        (2**30,) * 3,
        pads=[2**30] * 6,
    ),
    im2col(
        "output_past_2**58",
        r"shape of x = .*: output .* 2\*\*58",
        (0, 2**30, 5, 5),
        pads=[2**14] * 4,
    ),
    im2col(
        "blocks_past_2**63",
        r"shape of x = .*: output must have at most",
        kernel_shape=(1, 1),
        pads=[2**40] * 4,
    ),
    im2col(
        "one_block_too_many",
        r"shape of x = .*: output .* 2\*\*58",
        (0, 2**56 + 1, 2, 2),
        kernel_shape=(1, 1),
    ),
    im2col_product(
        "x_rank_3", r"shape of x = \[1, 4, 5\]: must be \[N, C, \*image\], .* 2", x=(1, 4, 5)
    ),
    im2col_product(
        "x_of_3_channels", r"shape of x = .*: axis 1 must be a multiple of group, 2", x=(1, 3, 5, 5)
    ),
    im2col_product(
        "columns_past_2**58", r"shape of x = .*: the columns", (0, 2**30, 5, 5), pads=[2**14] * 4
    ),
    im2col_product(
        "positions_past_2**58",
        r"shape of x = .*: the columns",
        (0, 0, 5, 5),
        group=2**40,
        **POSITIONS,
    ),
    im2col_product(
        "factors_rank_4",
        r"shape of factors = \[1, 4, 3, 3\]: must be of rank 3",
        factors=(1, 4, 3, 3),
    ),
    im2col_product(
        "factors_of_2_images", r"shape of factors = .*: axis 0 must be .* 1", factors=(2, 4, 9)
    ),
    im2col_product(
        "factors_of_3_channels", r"shape of factors = .*: axis 1 must be .* 4", factors=(1, 3, 9)
    ),
    im2col_product(
        "factors_of_4_positions", r"shape of factors = .*: axis 1 must be .* 18", sum_over="kernel"
    ),
    im2col_product(
        "factors_of_8_blocks", r"shape of factors = .*: axis 2 must be .* 9", factors=(1, 4, 8)
    ),
]

REGIONS = (2, 1, 5, 6), (3, 5)
TURNED = (2, 1, 5, 6), (3, 6)
MATCHED = (1, 4, 4), (1, 2, 4)
AT_RUN += [
    roi_align("x_rank_3", r"shape of X = \[1, 5, 6\]: must have rank 4", x=(1, 5, 6)),
    roi_align(
        "no_rows",
        r"shape of X = \[2, 1, 0, 6\]: image axes must lie in \[1, .* axis 2",
        x=(2, 1, 0, 6),
    ),
    roi_align("rois_of_5", r"shape of rois = \[3, 5\]: must be \[R, K\], with K 4", rois=(3, 5)),
    roi_align(
        "images_rank_2",
        r"shape of batch_indices = \[1, 3\]: must be \[R\], with R 3",
        images=((0, 1, 1),),
    ),
    roi_align(
        "images_of_2", r"shape of batch_indices = \[2\]: must be \[R\], with R 3", images=(0, 1)
    ),
    roi_align(
        "output_past_2**58", r"shape of rois = .*: output must have at most 2\*\*58", **NO_IMAGES
    ),
    *(
        openmmlab(f"{domain}_{name}", message, "MMCVRoiAlign", *shapes, domain=domain)
        for domain in ("mmcv", "mmdeploy")
        for name, message, shapes in (
            (
                "input_rank_3",
                r"shape of input = \[1, 5, 6\]: must have rank 4",
                ((1, 5, 6), (3, 5)),
            ),
            (
                "rois_of_4",
                r"shape of rois = \[3, 4\]: must be \[R, K\], with K 5",
                ((2, 1, 5, 6), (3, 4)),
            ),
        )
    ),
    openmmlab(
        "rois_of_5",
        r"shape of rois = \[3, 5\]: must be \[R, K\], with K 6",
        "MMCVRoIAlignRotated",
        *REGIONS,
    ),
    openmmlab(
        "input_rank_5",
        r"shape of input = .*: must have rank 4",
        "grid_sampler",
        (1, 1, 2, 3, 4),
        (1, 2, 3, 4, 3),
    ),
    openmmlab(
        "grid_of_2_images",
        r"shape of grid = .*: axis 0 must .* 1",
        "grid_sampler",
        (1, 1, 2, 3),
        (2, 2, 3, 2),
    ),
    openmmlab(
        "boxes_of_4",
        r"shape of boxes .* W, 5\]",
        "MMCVRotatedFeatureAlign",
        (1, 2, 3, 4),
        (1, 3, 4, 4),
    ),
    openmmlab(
        "boxes_of_rows",
        r"shape of boxes = .* see axis 1",
        "MMCVRotatedFeatureAlign",
        (1, 2, 3, 4),
        (1, 2, 4, 5),
    ),
    openmmlab(
        "points_3",
        r"points = 3: must be 1 or 5",
        "MMCVRotatedFeatureAlign",
        (1, 2, 3, 4),
        (1, 3, 4, 5),
        points=3,
    ),
    openmmlab("pool_rank_3", r"shape of input = .*: must have rank 4", "MMCVCornerPool", (1, 2, 3)),
    openmmlab("scalar", r"shape of input = \[\]: must have rank 1 or more", "cummax", ()),
    openmmlab(
        "axis_-3", r"dim = -3: must be an axis of input, with rank 2", "cummax", (3, 4), dim=-3
    ),
    *(
        openmmlab(f"boxes_{name}", message, "NMSRotated", *shapes, domain="mmdeploy")
        for name, message, shapes in (
            ("rank_2", r"shape of boxes = \[4, 5\]: must have rank 3", ((4, 5), (1, 4))),
            (
                "of_4",
                r"shape of boxes = \[1, 4, 4\]: the last axis must be .*, 5",
                ((1, 4, 4), (1, 2, 4)),
            ),
            (
                "of_other_scores",
                r"shape of scores = \[1, 2, 3\]: must be .* B being 4",
                ((1, 4, 5), (1, 2, 3)),
            ),
        )
    ),
    openmmlab(
        "two_thresholds",
        r"shape of iou_threshold = \[2\]",
        "NMSMatch",
        *MATCHED,
        (2,),
        (1,),
        domain="mmdeploy",
    ),
    openmmlab(
        "boxes_of_5",
        r"shape of boxes = \[4, 5\]: must be \[B, 4\]",
        "NonMaxSuppression",
        (4, 5),
        (4,),
    ),
    openmmlab(
        "scores_rank_2",
        r"shape of scores = \[1, 4\]: must be \[B\]",
        "SoftNonMaxSuppression",
        (4, 4),
        (1, 4),
    ),
]

# Mistakes that only elements show, which a kernel reads: they are refused at a run even if all
# inputs are constant.
BY_ELEMENTS = [
    roi_align(
        "image_2", r"batch_indices = 2: must be positions of images, less than 2", images=(0, 2, 7)
    ),
    roi_align(
        "image_-1",
        r"batch_indices = -1: must be positions of images, less than 2",
        images=(0, 1, -1),
    ),
    roi_align(
        "image_int64_min", r"batch_indices = -9223372036854775808: must", images=(0, 1, -(2**63))
    ),
    roi_align(
        "no_images", r"batch_indices = 0: must be positions of images, less than 0", x=(0, 1, 5, 6)
    ),
    openmmlab(
        "image_2",
        r"batch indices in rois = 2: must be .*, less than 2",
        "MMCVRoiAlign",
        *REGIONS,
        values=2.5,
    ),
    openmmlab(
        "image_-1",
        r"batch indices in rois = -1: must be .*, less than 2",
        "MMCVRoiAlign",
        *REGIONS,
        values=-1,
    ),
    openmmlab(
        "image_NaN",
        r"batch indices in rois = -1: must be .* than 2",
        "MMCVRoiAlign",
        *REGIONS,
        values=np.nan,
    ),
    openmmlab(
        "turned_2",
        r"batch indices in rois = 2: must be",
        "MMCVRoIAlignRotated",
        *TURNED,
        values=2.0,
    ),
]
AT_RUN += BY_ELEMENTS

# Mistakes that the attributes alone show: they are refused when the session is made.
AT_CREATION = [
    deform_conv("no_group", r"group = 0: must lie in \[1, 2\*\*40\]", group=0),
    modulated("no_stride", r"stride = None: must be given", stride=None),
    modulated("stride_zero", r"stride = \[0, 0\]: must be 2 numbers in \[1, 2\*\*40\]", stride=0),
    modulated("stride_float", r"stride = .*: must be a list of integers or an integer", stride=1.0),
    modulated("padding_of_3", r"padding = \[1, 1, 1\]: must have two elements", padding=[1, 1, 1]),
    modulated(
        "padding_in_onnx_order",
        r"padding = .*: must have .* twice: \[ph, ph, pw, pw\]",
        padding=[1, 2, 1, 2],
    ),
    plain_deform_conv("with_bias", r"bias = 1: must be 0", bias=1),
    plain_deform_conv(
        "other_name_zero",
        r"deform_groups = 0: must lie in",
        deform_groups=None,
        deformable_groups=0,
    ),
    roi_align("mode", r"mode = 'mean': must be one of avg, max", mode="mean"),
    roi_align(
        "rounding",
        r"coordinate_transformation_mode = '': must be one",
        coordinate_transformation_mode="",
    ),
    roi_align("height_0", r"output_height = 0: must lie in \[1, 2\*\*20\]", output_height=0),
    roi_align("ratio_negative", r"sampling_ratio = -1: must lie in \[0, 1024\]", sampling_ratio=-1),
    roi_align("scale_text", r"spatial_scale = .*: must be a number", spatial_scale="1"),
    openmmlab(
        "height_missing",
        r"output_height = None: must be given",
        "MMCVRoiAlign",
        *REGIONS,
        output_height=None,
    ),
    openmmlab(
        "offset_2", r"offset = 2: must be 0 or 1", "NonMaxSuppression", (4, 4), (4,), offset=2
    ),
    computed("mode", r"mode = 'linear': must be one of nearest, bilinear, bicubic", mode="linear"),
    computed(
        "padding_mode", r"padding_mode = 'wrap': must be one of zeros, border", padding_mode="wrap"
    ),
    computed(
        "source_short",
        r"sources = .*: must be, for each .* position 5",
        sources=[0, 3, -4, 0, 0, 0, 2, 1],
    ),
    computed(
        "source_cut_off",
        r"sources = .*: must be, for each .*; wrong from position 3",
        sources=[0, 1, -1, 0],
    ),
    computed(
        "source_of_input_15",
        r"sources = .*: must be, for each .*; wrong from position 0",
        sources=[15, 1, -1],
    ),
    computed(
        "source_of_rank_0",
        r"sources = .*: must be, for each .*; wrong from position 0",
        sources=[0, 0, 1],
    ),
    computed(
        "axis_-5", r"sources = .*: must be 3 to \d+ numbers in \[-4, 2\*\*31\]", sources=[0, 1, -5]
    ),
    computed(
        "axis_d_of_images",
        r"sources = .*: must have positions, or -4, .* position 3",
        sources=[0, 2, -1, -3],
    ),
    computed(
        "many_sources", r"number of sources = 49: must be at most 48", sources=[0, 1, -1] * 49
    ),
    computed("step_short", r"length of steps = 5: must be a multiple of 4", steps=[0, 0, 0, 0, 0]),
    computed(
        "step_20", r"steps = .*: operations must lie .* position 4", steps=[0] * 4 + [20, 0, 0, 0]
    ),
    computed(
        "step_of_itself", r"steps = .*: must take values that come before; .* 2", steps=[0, 0, 1, 0]
    ),
    computed("step_of_-1", r"steps = .*: must be 4 to 256 numbers in \[0, ", steps=[0, 0, -1, 0]),
    computed(
        "step_of_many", r"steps = .*: must take values that come before; .* 3", steps=[4, 0, 0, 1]
    ),
    computed("many_steps", r"steps = .*: must be 4 to 256 numbers", steps=[4, 0, 0, 0] * 65),
    computed(
        "coordinate_1",
        r"coordinates = \[0, 1\]: must be values of the program; .* 1",
        coordinates=[0, 1],
    ),
    computed("no_sources", r"sources = None: must be given", sources=None),
    col2im(
        "strides_zero",
        r"strides = \[1, 0\]: must be 1 to 14 numbers in \[1, 2\*\*40\]",
        strides=[1, 0],
    ),
    col2im(
        "pads_negative",
        r"pads = \[0, 0, 0, -1\]: must be 2 to 28 numbers in \[0, 2\*\*40\]",
        pads=[0, 0, 0, -1],
    ),
    col2im(
        "pads_odd", r"pads = \[1, 1, 1\]: must have two elements per image axis", pads=[1, 1, 1]
    ),
    col2im(
        "lengths_differ", r"strides = .*: must agree with other .* 3", strides=[1, 1], pads=[0] * 6
    ),
    col2im("strides_float", r"strides = .*: must be a list of integers", strides=[2.0, 2.0]),
    col2im(
        "strides_past_2**40",
        r"strides = \[1, 1099511627777\]: must be .* numbers in",
        strides=[1, 2**40 + 1],
    ),
    col2im("pads_too_long", r"pads = .*: must be 2 to 28 numbers", pads=[0] * 30),
    col2im(
        "dilations_and_strides_differ",
        r"dilations = .*: must agree .* 2",
        strides=[1, 1],
        dilations=[1],
    ),
    im2col("no_kernel", r"kernel_shape = None: must be given", kernel_shape=None),
    im2col(
        "kernel_zero",
        r"kernel_shape = \[3, 0\]: must be 1 to 14 numbers in \[1, 2\*\*40\]",
        kernel_shape=(3, 0),
    ),
    im2col(
        "kernel_and_pads_differ",
        r"kernel_shape = .*: must agree with other attributes .* 1",
        pads=[1, 1],
    ),
    im2col_product("group_zero", r"group = 0: must lie in \[1, 2\*\*40\]", group=0),
    im2col_product("no_sum_over", r"sum_over = None: must be given", sum_over=None),
    im2col_product(
        "another_sum_over", r"sum_over = .*: must be one of channels, kernel", sum_over="blocks"
    ),
    volumes(
        "mode_unknown",
        r"mode = 'area': must be one of nearest, bilinear, bicubic, linear, cubic",
        mode="area",
    ),
    volumes("mode_not_text", r"mode = .*: must be a string", mode=b"\xff\xfe"),
    volumes(
        "padding_mode_in_capitals", r"padding_mode = 'ZEROS': must be one of", padding_mode="ZEROS"
    ),
    grid_sample(
        "mode_linear", r"mode = 'linear': must be one of nearest, bilinear, bicubic", mode="linear"
    ),
    grid_sample("mode_of_a_megabyte", r"mode = 'aaa.*", mode="a" * 2**20),
    openvino(
        "strides_length", r"strides = \[1\]: must be 2 numbers in \[1, 2\*\*40\]", strides=[1]
    ),
    openvino(
        "pads_begin_negative", r"pads_begin = \[-1, 0\]: must be 2 numbers in", pads_begin=[-1, 0]
    ),
    grid_sample(
        "padding_mode_unknown",
        r"padding_mode = 'wrap': must be one of zeros, border",
        padding_mode="wrap",
    ),
    grid_sample("align_corners_2", r"align_corners = 2: must be 0 or 1", align_corners=2),
]

# Mistakes in attributes and element types together: only the native backend knows the types when a
# session is made.
BY_TYPE = [
    volumes(
        "integers_with_linear",
        r"dtype of X = int32: must be one of .* unless mode is nearest",
        dtype=np.int32,
    ),
    volumes(
        "booleans_with_cubic",
        r"dtype of X = bool: must be one of .* unless mode",
        dtype=bool,
        mode="cubic",
    ),
]
EVERYTHING = AT_RUN + AT_CREATION + BY_TYPE


def argument_value_rule(error):
    return error.argument, error.value, error.rule


def unshaped(bad):
    """A model whose inputs may have any shape."""
    return model(
        bad.domain, bad.op_type, bad.inputs, bad.attributes, dims="none"
    ).SerializeToString()
