"""DeformConv: a convolution that reads the image at displaced points, for 1, 2 or 3 image axes.

It is deformable convolution v1 and, with a mask, v2:

    y[n, m, o] = b[m] + sum over c, k of  w[m, c - g * C/G, k] * mask[n, d, k, o] * x[n, c, p]
    p_i = o_i * strides_i - pads_begin_i + k_i * dilations_i + offset[n, d, k, i, o]

n: batch, m: output channel (M of them), o: output pixel, c: channel of the image (C of them), k:
position within the kernel, i: image axis. The output channels are cut into `group` equal groups, G
of them, and so are the channels: group g of the output, which has channel m, sums over the channels
of group g of the image. The channels are also cut into `offset_group` equal groups, D of them; d is
the one that has channel c.

p is computed in float32 (float64 for float64 images): the integers' sum first, then the offset is
added. x[n, c, p] is the linear interpolation between the 2 ** axes pixels around p. Pixels outside
of the image are 0. The result is 0 if p is NaN or infinite.

Without b, it is 0; without mask, 1. In the offsets' second axis are d, k and i, in the mask's d and
k.

The operators of mmcv and mmdeploy are the same for two image axes, with other names and another
order of inputs. Their `padding` is the same at the begins and the ends, and may have four elements,
each written twice: [ph, ph, pw, pw].

Nodes that other exporters write without a specification are the same, too:

| domain | name | written by |
|---|---|---|
| none | _DCNv2 | the modules of DCNv2 in CenterNet, FairMOT and DEFT, without a domain |
| none | DCNv2 | TensorRT-CenterNet's exporter, with `groups` and `deformable_group` |
| custom | DCNv2 | exporters for a plugin of TensorRT, with `kernel_size` and `info` |
| custom | DeformConv2d | a function for torchvision's `deform_conv2d` in projects for TensorRT |

Sources: ONNX operator specification, DeformConv-19 and -22; mmcv's and mmdeploy's exporters and
kernels; deformable convolution v1 (arXiv 1703.06211) and v2 (arXiv 1811.11168).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ..declaration import dtypes
from ..declaration.attributes import Attribute
from ..declaration.errors import require
from ..declaration.jit import jitable
from ..declaration.limits import ELEMENTS, UNKNOWN
from ..declaration.operator import Input, Kernel, Operator, Output, Plan
from ..fold.sliding_blocks import (
    LIMIT,
    block_count,
    block_counts,
    check_attributes,
    given_axes,
    halves_of,
    lay_out,
    sizes,
    spacing_of,
    spacing_of_lists,
)
from ..kernels.shares import pieces
from ..kernels.vectors import WIDTH
from . import deform_conv_kernels as kernels
from .deform_conv_kernels import DeformConvGeometry

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..fold.geometry import Spacing
    from ..kernels.types import AttributeTuple, OutputSizes, Sizes

AXES = 3  # the most image axes
WORK = 2**20  # products that a tile adds up, in about 10 us
# With fewer units, they get smaller, but not below so many output channels.
FEW_UNITS = 8
FEW_OUTPUTS = 256


@jitable
def shape_of_convolution(
    spacing: Spacing, x: Sizes, w: Sizes, offset: Sizes, mask: Sizes, y: OutputSizes
) -> int:
    """State the output's sizes: image axes as of the offsets, of the mask, or by the kernel."""
    rank = max(len(x), len(w), len(offset), len(mask))
    if rank < 3:
        return UNKNOWN
    axes = given_axes(spacing)
    fits = axes == 0 or axes == rank - 2  # else `plan` refuses them
    for a in range(rank):
        y[a] = UNKNOWN
    if len(w) == rank:
        y[1] = w[0]
    for shape in (mask, offset, x):
        if len(shape) == rank and shape[0] != UNKNOWN:
            y[0] = shape[0]
    for a in range(2, rank):
        for shape in (mask, offset):
            if len(shape) == rank and shape[a] != UNKNOWN:
                y[a] = shape[a]
        if (
            fits
            and y[a] < 0
            and len(x) == len(w) == rank
            and 1 <= x[a] <= LIMIT
            and 1 <= w[a] <= LIMIT
        ):
            count = block_count(spacing, a - 2, x[a], w[a])
            y[a] = count if count > 0 else UNKNOWN
    return rank


@jitable
def shape(
    attributes: AttributeTuple, inputs: tuple[Sizes, ...], outputs: tuple[OutputSizes, ...]
) -> int:
    check_attributes(attributes)
    x, w, offset, _, mask = inputs
    return shape_of_convolution(spacing_of(attributes), x, w, offset, mask, outputs[0])


@jitable
def plan(
    attributes: AttributeTuple,
    inputs: tuple[Sizes, ...],
    outputs: tuple[OutputSizes, ...],
    g: DeformConvGeometry,
) -> None:
    x, w, offset, bias, mask = inputs
    kernel = attributes.kernel_shape
    rule = "must have the sizes of the kernel in {W}, as many as"
    fits = len(kernel) == 0 or len(kernel) == len(w) - 2
    require(fits, "kernel_shape", kernel, rule, len(w) - 2)
    for i in range(len(kernel)):
        rule = "must have the sizes of the kernel in {W}; differs on axis"
        require(kernel[i] == w[2 + i], "kernel_shape", kernel, rule, i)
    g.groups = attributes.group
    g.offset_groups = attributes.offset_group
    plan_convolution(spacing_of(attributes), x, w, offset, bias, g)
    if len(mask) > 0:
        check_mask(x, mask, g)


@jitable
def plan_convolution(
    spacing: Spacing, x: Sizes, w: Sizes, offset: Sizes, bias: Sizes, g: DeformConvGeometry
) -> None:
    """Plan for inputs of these shapes; an absent bias has an empty shape.

    The numbers of groups are in `g`.
    """
    axes = len(x) - 2
    expected = given_axes(spacing)
    require(1 <= axes <= AXES, "shape of {X}", x, "must have rank 3, 4 or 5: [N, C, *image]")
    rule = "{strides}, {dilations} and {pads} are for image axes:"
    require(expected == 0 or expected == axes, "shape of {X}", x, rule, expected)
    require(len(w) == len(x), "shape of {W}", w, "must have the rank of {X},", len(x))
    check_groups(x, w, g)
    for i in range(axes):
        require(x[2 + i] >= 1, "shape of {X}", x, "image axes must not be empty; is axis", 2 + i)
    lay_out(spacing, x[2:], w[2:], g)
    for i in range(axes):
        rule = "the kernel must, dilated, fit into the padded image; too large on axis"
        require(g.counts[g.axes - axes + i] > 0, "shape of {W}", w, rule, 2 + i)
    fits = g.blocks <= ELEMENTS // max(x[0], 1) // max(w[0], 1)
    require(fits, "shape of {X}", x, "output must have at most 2**58 elements")
    check_offset(x, offset, g)
    if len(bias) > 0:
        rule = "must be [M], the number of output channels of {W},"
        require(len(bias) == 1 and bias[0] == w[0], "shape of {B}", bias, rule, w[0])
    g.channels = x[1]
    g.outputs = w[0]
    g.image_axes = axes
    cut_tiles(x[0], g)


@jitable
def check_groups(x: Sizes, w: Sizes, g: DeformConvGeometry) -> None:
    """Refuse channels that can't be divided into the groups."""
    rule = "must divide the number of channels of {X},"
    require(x[1] % g.groups == 0, "{group}", g.groups, rule, x[1])
    rule = "must divide the number of output channels of {W},"
    require(w[0] % g.groups == 0, "{group}", g.groups, rule, w[0])
    channels = x[1] // g.groups
    rule = "axis 1 must be the channels of a group of {X},"
    require(w[1] == channels, "shape of {W}", w, rule, channels)
    rule = "must divide the number of channels of {X},"
    require(x[1] % g.offset_groups == 0, "{offset_group}", g.offset_groups, rule, x[1])


@jitable
def check_offset(x: Sizes, offset: Sizes, g: DeformConvGeometry) -> None:
    """Refuse offsets that don't fit the image and the kernel."""
    axes = len(x) - 2
    argument = "shape of {offset}"
    require(len(offset) == len(x), argument, offset, "must have the rank of {X},", len(x))
    require(offset[0] == x[0], argument, offset, "axis 0 must be the batch size N of {X},", x[0])
    rule = "times kernel * image axes must be at most 2**58"
    fits = g.offset_groups <= ELEMENTS // g.positions // AXES
    require(fits, "{offset_group}", g.offset_groups, rule)
    channels = g.offset_groups * g.positions * axes
    rule = "axis 1 must be {offset_group} * kernel * image axes,"
    require(offset[1] == channels, argument, offset, rule, channels)
    for i in range(axes):
        rule = "image axes must be the output's; differs on axis"
        require(offset[2 + i] == g.counts[i + g.axes - axes], argument, offset, rule, 2 + i)


@jitable
def check_mask(x: Sizes, mask: Sizes, g: DeformConvGeometry) -> None:
    """Refuse a mask that doesn't fit the plan."""
    axes = len(x) - 2
    argument = "shape of {mask}"
    require(len(mask) == len(x), argument, mask, "must have the rank of {X},", len(x))
    require(mask[0] == x[0], argument, mask, "axis 0 must be the batch size N of {X},", x[0])
    channels = g.offset_groups * g.positions
    require(
        mask[1] == channels, argument, mask, "axis 1 must be {offset_group} * kernel,", channels
    )
    for i in range(axes):
        rule = "image axes must be the output's; differs on axis"
        require(mask[2 + i] == g.counts[i + g.axes - axes], argument, mask, rule, 2 + i)


@jitable
def cut_tiles(batch: int, g: DeformConvGeometry) -> None:
    """Cut the work into units, and these into tiles."""
    g.most_taps = min(g.positions, kernels.TAPS)
    g.stripe = kernels.STRIPE
    g.most_outputs = max(1, min(g.outputs, kernels.OUTPUTS))
    while g.blocks > g.stripe > WIDTH and batch * pieces(g.blocks, g.stripe) < FEW_UNITS:
        g.stripe -= WIDTH
    g.stripes = pieces(g.blocks, g.stripe)
    # Units that differ in their output channels only read the same columns again, a loss that more
    # threads are worth.
    while (
        g.most_outputs > FEW_OUTPUTS
        and batch * g.stripes * pieces(g.outputs, g.most_outputs) < FEW_UNITS
    ):
        g.most_outputs = pieces(g.most_outputs, 2 * kernels.PANEL) * kernels.PANEL
    g.output_parts = pieces(g.outputs, g.most_outputs)
    g.units = batch * g.stripes * g.output_parts
    # As all of these numbers may be large if there are no elements, each is limited before it is
    # multiplied.
    depth = min(g.channels // g.groups, WORK) * min(g.positions, WORK)
    products = min(depth + 1, WORK) * g.most_outputs * kernels.STRIPE
    g.tiles = min(64, g.units, g.units // max(1, WORK // products) + 1)
    g.workspace = kernels.workspace_size(g)


def reference(
    x: np.ndarray,
    w: np.ndarray,
    offset: np.ndarray,
    b: np.ndarray | None = None,
    mask: np.ndarray | None = None,
    **attributes: Any,
) -> np.ndarray:
    pads = halves_of(attributes["pads"])
    image = x.shape[2:]
    spacing = spacing_of_lists(image, attributes["strides"], attributes["dilations"], *pads)
    groups = attributes["group"], attributes["offset_group"]
    return convolve(x, w, offset, b, mask, groups, spacing)


def convolve(
    x: np.ndarray,
    w: np.ndarray,
    offset: np.ndarray,
    b: np.ndarray | None,
    mask: np.ndarray | None,
    groups: tuple[int, int],
    spacing: tuple[Any, ...],
) -> np.ndarray:
    """Evaluate the formula, position k by position k.

    Coordinates are in the type of `offset`, at least float32, the rest is in float64. groups: of
    channels, and of channels with the same offsets.
    """
    group, offset_group = groups
    dtype = np.float64 if offset.dtype == np.float64 else np.float32
    image = x.shape[2:]
    kernel = w.shape[2:]
    counts = block_counts(spacing, image, kernel)
    n, channels = x.shape[:2]
    outputs = w.shape[0]
    x = dtypes.widest(x).reshape(n, offset_group, channels // offset_group, *image)
    w = dtypes.widest(w).reshape(group, outputs // group, channels // group, *kernel)
    offset = offset.astype(dtype).reshape(n, offset_group, *kernel, len(image), *counts)
    if mask is not None:
        mask = dtypes.widest(mask).reshape(n, offset_group, 1, *kernel, *counts)
    y = np.zeros((n, group, outputs // group, *counts))
    with np.errstate(invalid="ignore", over="ignore"):
        for k in np.ndindex(*kernel):
            shifts = np.moveaxis(offset[:, :, *k], 2, 0)  # [axes, N, D, *counts]
            columns = interpolate(x, coordinates_at(k, shifts, spacing))
            if mask is not None:
                columns *= mask[:, :, :, *k]
            columns = columns.reshape(n, group, channels // group, *counts)
            y += np.einsum("gmc,ngc...->ngm...", w[..., *k], columns)
    y = y.reshape(n, outputs, *counts)
    return y if b is None else y + dtypes.widest(b).reshape(-1, *[1] * len(counts))


def coordinates_at(
    k: tuple[int, ...], shifts: np.ndarray, spacing: tuple[Any, ...]
) -> list[np.ndarray]:
    """Return the coordinates along each axis that position k reads."""
    strides, dilations, begins, _ = spacing
    pixels = np.ogrid[tuple(map(slice, shifts.shape[3:]))]
    return [
        (o * stride - begin + i * dilation).astype(shifts.dtype) + shift
        for o, stride, begin, i, dilation, shift in zip(
            pixels, strides, begins, k, dilations, shifts, strict=True
        )
    ]


def interpolate(x: np.ndarray, p: Sequence[np.ndarray]) -> np.ndarray:
    """Read images [N, D, C/D, *image] at coordinates p, an array [N, D, *output] for each axis."""
    image = x.shape[3:]
    x = np.moveaxis(x, 2, -1)
    total: Any = 0.0
    inside = np.logical_and.reduce(
        [(q > -1) & (q < size) for q, size in zip(p, image, strict=True)]
    )
    p = [np.where(inside, q, 0) for q in p]
    n, d, *_ = np.ogrid[: x.shape[0], : x.shape[1], *[slice(1)] * len(image)]
    for corner in itertools.product((0, 1), repeat=len(image)):
        index = [np.floor(q).astype(np.int64) + t for q, t in zip(p, corner, strict=True)]
        exists = inside & np.logical_and.reduce(
            [(i >= 0) & (i < size) for i, size in zip(index, image, strict=True)]
        )
        fractions = [q.astype(np.float64) - np.floor(q) for q in p]
        weights = math.prod(f if t else 1 - f for f, t in zip(fractions, corner, strict=True))
        values = x[n, d, *(np.where(exists, i, 0) for i in index)]
        total = total + np.where(exists[..., None], values * weights[..., None], 0)
    return np.moveaxis(total, -1, 2)


per_axis = partial(sizes, axes=(1, AXES))  # declares an attribute with a number for each image axis


def number_of_groups(name: str, default: int | None = None, **more: Any) -> Attribute:
    """Declare an attribute that is a number of groups. It is required if it has no default."""
    return Attribute(name, "int", default, default is None, (1, LIMIT), **more)


ONNX = Operator(
    domain="",
    name="DeformConv",
    versions=(19, 22),
    ranks=(3, 4, 5),
    inputs=(
        Input("X", "T"), Input("W", "T"), Input("offset", "T"),
        Input("B", "T", presence="optional"),
        Input("mask", "T", presence="optional"),
    ),
    outputs=(Output("Y", "T"),),
    types={"T": dtypes.FLOATS},
    attributes=(
        per_axis("dilations"), number_of_groups("group", 1), per_axis("kernel_shape"),
        number_of_groups("offset_group", 1), sizes("pads", axes=(2, 2 * AXES), least=0),
        per_axis("strides"),
    ),
    plan=Plan(shape, plan, DeformConvGeometry),
    kernels=(Kernel(kernels.deform_conv, tupled=1),),
    reference=reference,
    terms={"image_shape": "image axes of X", "block_shape": "kernel axes of W"},
)  # fmt: skip


@jitable
def mmcv_spacing(attributes: AttributeTuple) -> Spacing:
    """Return the spacing as `spacing_of`. Padding of four elements has each one twice."""
    padding = attributes.padding[:: max(1, len(attributes.padding) // 2)]
    return attributes.stride, attributes.dilation, padding, padding


@jitable
def check_mmcv(attributes: AttributeTuple) -> None:
    """Refuse padding that differs at the begin and the end of an axis."""
    padding = attributes.padding
    fits = len(padding) == 2 or (
        len(padding) == 4 and padding[0] == padding[1] and padding[2] == padding[3]
    )
    rule = "must have two elements, or each of them twice: [ph, ph, pw, pw]"
    require(fits, "padding", padding, rule)


@jitable
def mmcv_operands(inputs: tuple[Sizes, ...]) -> tuple[Sizes, ...]:
    """Return the shapes of x, w, offset, mask and bias; empty ones for inputs that are missing."""
    if len(inputs) == 3:
        x, offset, w = inputs
        return x, w, offset, offset[:0], offset[:0]
    x, offset, mask, w, bias = inputs
    return x, w, offset, mask, bias


@jitable
def shape_mmcv(
    attributes: AttributeTuple, inputs: tuple[Sizes, ...], outputs: tuple[OutputSizes, ...]
) -> int:
    check_mmcv(attributes)
    x, w, offset, mask, _ = mmcv_operands(inputs)
    return shape_of_convolution(mmcv_spacing(attributes), x, w, offset, mask, outputs[0])


@jitable
def plan_mmcv_convolution(
    attributes: AttributeTuple,
    inputs: tuple[Sizes, ...],
    outputs: tuple[OutputSizes, ...],
    g: DeformConvGeometry,
) -> None:
    x, w, offset, mask, bias = mmcv_operands(inputs)
    g.groups = attributes.groups
    g.offset_groups = attributes.deform_groups
    g.mmcv_order = 1
    plan_convolution(mmcv_spacing(attributes), x, w, offset, bias, g)
    if len(inputs) == 5:
        check_mask(x, mask, g)


def reference_modulated(
    x: np.ndarray,
    offset: np.ndarray,
    mask: np.ndarray | None,
    weight: np.ndarray,
    bias: np.ndarray | None = None,
    **attributes: Any,
) -> np.ndarray:
    padding = attributes["padding"]
    padding = padding[:: len(padding) // 2]
    image = x.shape[2:]
    spacing = spacing_of_lists(
        image, attributes["stride"], attributes["dilation"], padding, padding
    )
    groups = attributes["groups"], attributes["deform_groups"]
    return convolve(x, weight, offset, bias, mask, groups, spacing)


def of_axes(name: str, least: int = 1, axes: tuple[int, int] = (2, 2)) -> Attribute:
    """Declare an attribute with a number for each of two image axes, or a single one for both."""
    return Attribute(
        name, "ints", required=True, bounds=(least, LIMIT), length_bounds=axes, repeats=2
    )


MODULATED = replace(
    ONNX,
    domain="mmdeploy",
    name="MMCVModulatedDeformConv2d",
    versions=(1,),
    ranks=(4,),
    inputs=(
        Input("x", "T"), Input("offset", "T"), Input("mask", "T"), Input("weight", "T"),
        Input("bias", "T", presence="optional"),
    ),
    outputs=(Output("output", "T"),),
    attributes=(
        of_axes("stride"), of_axes("padding", 0, (2, 4)), of_axes("dilation"),
        number_of_groups("groups"),
        number_of_groups("deform_groups", other_names=("deformable_groups",)),
    ),
    plan=Plan(shape_mmcv, plan_mmcv_convolution, DeformConvGeometry),
    reference=reference_modulated,
    terms={
        "X": "x", "W": "weight", "B": "bias", "strides": "stride", "dilations": "dilation",
        "pads": "padding",
        "group": "groups", "offset_group": "deform_groups", "image_shape": "image axes of x",
        "block_shape": "kernel axes of weight",
    },
)  # fmt: skip


def reference_plain(
    x: np.ndarray, offset: np.ndarray, weight: np.ndarray, *, bias: int, **attributes: Any
) -> np.ndarray:
    return reference_modulated(x, offset, None, weight, **attributes)


PLAIN = replace(
    MODULATED,
    name="MMCVDeformConv2d",
    inputs=(Input("x", "T"), Input("offset", "T"), Input("weight", "T")),
    attributes=(
        *MODULATED.attributes,
        Attribute("bias", "int", 0, bounds=(0, 0)),
        Attribute("im2col_step", "int", 32),  # images that the original handles at a time
    ),
    reference=reference_plain,
)


DCN = replace(
    MODULATED,
    domain="",
    name="_DCNv2",
    attributes=(
        of_axes("stride"), of_axes("padding", 0), of_axes("dilation"),
        number_of_groups("groups", 1),
        replace(MODULATED.attributes[4], other_names=("deformable_groups", "deformable_group")),
        Attribute("kernel_size", "ints", repeats=2), Attribute("info", "text", ""),  # redundant
        Attribute("activation_type", "int", -1, bounds=(-1, -1)),  # of TensorRT; -1 stands for none
        Attribute("alpha", "float", 0.0), Attribute("beta", "float", 0.0),  # of the activation
    ),
)  # fmt: skip
DCN_NAMES = (("", "_DCNv2"), ("", "DCNv2"), ("custom", "DCNv2"), ("custom", "DeformConv2d"))
OURS = replace(ONNX, domain="onnx_ops", versions=(1,))  # for models of older versions of ai.onnx
OPERATORS = (
    ONNX,
    OURS,
    *(
        replace(operator, domain=domain)
        for operator in (MODULATED, PLAIN)
        for domain in ("mmdeploy", "mmcv")
    ),
    *(replace(DCN, domain=domain, name=name) for domain, name in DCN_NAMES),
)
