"""Inputs and attributes that break one rule each, and what the message must say."""

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Malformed:
    name: str
    domain: str
    op_type: str
    message: str  # a regular expression
    inputs: tuple
    attributes: dict = field(default_factory=dict)

    def __str__(self):
        return f"{self.op_type}-{self.name}"


def col2im(name, message, x=(1, 9, 9), image=(5, 5), block=(3, 3), **attributes):
    inputs = (np.zeros(x, np.float32), np.array(image, np.int64), np.array(block, np.int64))
    return Malformed(name, "", "Col2Im", message, inputs, attributes)


def grid_sample(name, message, x=(1, 1, 4, 4), grid=(1, 3, 3, 2), **attributes):
    inputs = (np.zeros(x, np.float32), np.zeros(grid, np.float32))
    return Malformed(name, "com.microsoft", "GridSample", message, inputs, attributes)


# What only the inputs of a run show.
AT_RUN = [
    col2im("x_rank_2", r"shape of input = \[9, 9\]: must have rank 3", x=(9, 9)),
    col2im("x_rank_4", r"shape of input = \[1, 1, 9, 9\]: must have rank 3", x=(1, 1, 9, 9)),
    col2im("not_divisible", r"shape of input = \[1, 10, 9\]: axis 1 must be divisible by .* 9", x=(1, 10, 9)),
    col2im("block_count", r"shape of input = \[1, 9, 8\]: axis 2 must be the number of blocks, 9", x=(1, 9, 8)),
    col2im("no_blocks", r"shape of input = \[1, 9, 0\]: axis 2", x=(1, 9, 0)),
    col2im("image_zero", r"image_shape = \[5, 0\]: must lie in \[1, 2\*\*40\]", image=(5, 0)),
    col2im("image_negative", r"image_shape = \[-5, 5\]: must lie in", image=(-5, 5)),
    col2im("image_huge", r"image_shape = \[\d+, 5\]: must lie in", image=(2**62, 5)),
    col2im("image_product", r"image_shape = .*: product must be at most 2\*\*58", image=(2**39,) * 3, block=(1,) * 3),
    col2im("image_rank_2", r"shape of image_shape = \[1, 2\]: must have rank 1", image=((5, 5),)),
    col2im("image_scalar", r"shape of image_shape = \[\]: must have rank 1", image=5),
    col2im("image_empty", r"image_shape = \[\]: number of image axes must be at least 1", image=(), block=()),
    col2im("image_long", r"length of image_shape = 17: must be at most 16", image=(1,) * 17, block=(1,) * 17),
    col2im(
        "image_15",
        r"image_shape = .*: number of image axes must be at least 1 and at most 14",
        image=(1,) * 15,
        block=(1,) * 15,
    ),
    col2im("block_zero", r"block_shape = \[3, 0\]: must lie in", block=(3, 0)),
    col2im("block_length", r"block_shape = \[3\]: must be as long as image_shape, .* 2", block=(3,)),
    col2im("block_too_large", r"block_shape = \[3, 6\]: must, dilated, fit into .* axis 1", block=(3, 6)),
    col2im("block_huge", r"block_shape = \[3, \d+\]: must lie in", block=(3, 2**63 - 1)),
    col2im("dilated_too_large", r"block_shape = \[3, 3\]: must, dilated, fit", dilations=[3, 1]),
    col2im("dilated_past_2**63", r"block_shape = .*: must, dilated, fit", block=(3, 2**39), dilations=[1, 2**39]),
    col2im("attributes_for_1d", r"image_shape = .* are for image axes: 1", strides=[2], image=(5, 5)),
    col2im("attributes_for_3d", r"image_shape = .* are for image axes: 3", pads=[0] * 6),
    grid_sample("x_rank_3", r"shape of X = \[1, 4, 4\]: must have rank 4", x=(1, 4, 4)),
    grid_sample("x_rank_5", r"shape of X = \[1, 1, 4, 4, 4\]: must have rank 4", x=(1, 1, 4, 4, 4)),
    grid_sample("x_empty", r"shape of X = \[1, 1, 0, 4\]: image axes must not be empty; is axis 2", x=(1, 1, 0, 4)),
    grid_sample("grid_rank_3", r"shape of Grid = \[3, 3, 2\]: must have rank 4", grid=(3, 3, 2)),
    grid_sample("grid_last_axis", r"shape of Grid = .*the last axis must be the number of .* 2", grid=(1, 3, 3, 3)),
    grid_sample("batch_differs", r"shape of Grid = .*axis 0 must be the batch size N of X, 1", grid=(2, 3, 3, 2)),
]

# What the attributes alone show: refused when the session is made.
AT_CREATION = [
    col2im("strides_zero", r"strides = \[1, 0\]: must lie in \[1, 2\*\*40\]", strides=[1, 0]),
    col2im("strides_huge", r"strides = .*: must lie in", strides=[1, 2**63 - 1]),
    col2im("dilations_zero", r"dilations = \[0, 1\]: must lie in", dilations=[0, 1]),
    col2im("pads_negative", r"pads = \[0, 0, 0, -1\]: must lie in \[0, 2\*\*40\]", pads=[0, 0, 0, -1]),
    col2im("pads_odd", r"pads = \[1, 1, 1\]: must have two elements per image axis", pads=[1, 1, 1]),
    col2im("lengths_differ", r"attributes = .*: must agree on the number of image axes", strides=[1, 1], pads=[0] * 6),
    col2im("too_many_axes", r"strides = .*: must be for 1 to 14 image axes", strides=[1] * 15),
    col2im("strides_float", r"strides = .*: must be a list of integers", strides=[2.0, 2.0]),
    col2im("strides_int", r"strides = .*: must be a list of integers", strides=2),
    col2im("pads_string", r"pads = .*: must be a list of integers", pads="same"),
    grid_sample("mode_unknown", r"mode = 'lanczos': must be one of nearest, bilinear, bicubic", mode="lanczos"),
    grid_sample("mode_empty", r"mode = '': must be one of", mode=""),
    grid_sample("mode_int", r"mode = .*: must be a string", mode=1),
    grid_sample("padding_mode_unknown", r"padding_mode = 'wrap': must be one of zeros, border", padding_mode="wrap"),
    grid_sample("align_corners_2", r"align_corners = 2: must be 0 or 1", align_corners=2),
    grid_sample("align_corners_float", r"align_corners = .*: must be an integer", align_corners=0.5),
]
