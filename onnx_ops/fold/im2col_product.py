"""Im2ColProduct: the columns of Im2Col times factors, added up over channels or over the positions
within a block. The columns themselves are nowhere.

    with sum_over "channels":
    y[n, g * K + k, l] = sum over d of  factors[n, g * D + d, l] * x[n, g * D + d, p]
    with sum_over "kernel":
    y[n, g * D + d, l] = sum over k of  factors[n, g * K + k, l] * x[n, g * D + d, p]
    with p_i = l_i * strides_i + k_i * dilations_i - pads_begin_i

n: batch, g: group of D channels, d: channel of a group, i: image axis, p: pixel, k: position within
kernel_shape (K of them in all), l: block (L of them in all); k and l are flattened in row-major
order. Outside of the image x is 0.

These are the two products of local attention, of queries and keys, and of weights and values (the
groups are its heads), of which the first one is the correlation of two images for K displacements,
too.

Sources: the formulas of neighbourhood attention (NATTEN's QK and AV, arXiv 2204.07143) with
Im2Col's padding, strides and dilations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..declaration import dtypes
from ..declaration.attributes import Attribute
from ..declaration.errors import require
from ..declaration.jit import jitable
from ..declaration.limits import ELEMENTS, UNKNOWN
from ..declaration.operator import Input, Kernel, Operator, Output, Plan
from . import im2col
from . import im2col_product_kernels as kernels
from .im2col_product_kernels import Im2ColProductGeometry
from .sliding_blocks import ATTRIBUTES, AXES, LIMIT, known_product, sizes

if TYPE_CHECKING:
    from ..kernels.types import AttributeTuple, OutputSizes, Sizes

WORK = 2**15  # products of a tile, about: 10 us
SUMS = ("channels", "kernel")


@jitable
def shape(
    attributes: AttributeTuple, inputs: tuple[Sizes, ...], outputs: tuple[OutputSizes, ...]
) -> int:
    x, _ = inputs
    (y,) = outputs
    positions = known_product(attributes.kernel_shape)
    im2col.shape(attributes, (x,), outputs)
    y[1] = UNKNOWN
    if attributes.sum_over == 1:
        y[1] = x[1] if len(x) > 1 else UNKNOWN
    elif 0 < positions <= ELEMENTS // attributes.group:
        y[1] = attributes.group * positions
    return 3


@jitable
def plan(
    attributes: AttributeTuple,
    inputs: tuple[Sizes, ...],
    outputs: tuple[OutputSizes, ...],
    g: Im2ColProductGeometry,
) -> None:
    x, factors = inputs
    group = attributes.group
    im2col.lay_out_image(attributes, x, g)
    require(x[1] % group == 0, "shape of x", x, "axis 1 must be a multiple of group,", group)
    fits = max(x[0], 1) <= ELEMENTS // g.positions // max(g.blocks, 1) // max(x[1], group)
    require(fits, "shape of x", x, "the columns would have more than 2**58 elements")
    g.over_channels = 1 - attributes.sum_over
    g.planes = x[0] * group
    g.channels = x[1] // group
    expected = x[1] if g.over_channels else group * g.positions
    require(len(factors) == 3, "shape of factors", factors, "must be of rank 3")
    require(
        factors[0] == x[0], "shape of factors", factors, "axis 0 must be the batch size of x,", x[0]
    )
    rule = (
        "axis 1 must be the channels of x or, with sum_over kernel, group times the positions "
        "of a block:"
    )
    require(factors[1] == expected, "shape of factors", factors, rule, expected)
    require(
        factors[2] == g.blocks,
        "shape of factors",
        factors,
        "axis 2 must be the number of blocks,",
        g.blocks,
    )
    outputs_of_plane = g.positions if g.over_channels else g.channels
    g.units = kernels.share_out(g) if g.blocks > 0 and outputs_of_plane > 0 else 0
    work = min(g.planes * g.blocks, 64 * WORK) * min(g.positions * max(g.channels, 1), 64 * WORK)
    g.tiles = min(64, g.units, work // WORK + 1)
    g.workspace = kernels.workspace_size(g) if g.units > 0 else 0


# The operator's two inputs and six attributes.
def reference(
    x: np.ndarray,
    factors: np.ndarray,
    *,
    kernel_shape: Sizes,
    dilations: Sizes | None,
    group: int,
    pads: Sizes | None,
    strides: Sizes | None,
    sum_over: str,
) -> np.ndarray:
    """Evaluate the formula in float64, on the columns of Im2Col's reference."""
    columns = im2col.reference(
        x, kernel_shape=kernel_shape, dilations=dilations, pads=pads, strides=strides
    )
    n, _, blocks = columns.shape
    channels = x.shape[1] // group
    positions = int(np.prod(kernel_shape))
    columns = columns.reshape(n, group, channels, positions, blocks)
    over_channels = sum_over == "channels"
    factors = dtypes.widest(factors).reshape(
        n, group, channels if over_channels else positions, blocks
    )
    equation = "ngdl,ngdkl->ngkl" if over_channels else "ngkl,ngdkl->ngdl"
    with np.errstate(invalid="ignore"):
        total = np.einsum(equation, factors, columns)
    return total.reshape(n, group * total.shape[2], blocks)


IM2COL_PRODUCT = Operator(
    domain="onnx_ops",
    name="Im2ColProduct",
    ranks=tuple(range(3, 3 + AXES)),
    inputs=(Input("x", "T"), Input("factors", "T")),
    outputs=(Output("output", "T"),),
    types={"T": dtypes.FLOATS},
    attributes=(
        sizes("kernel_shape", required=True),
        Attribute("sum_over", "string", required=True, choices=SUMS),
        Attribute("group", "int", 1, bounds=(1, LIMIT)),
        *ATTRIBUTES,
    ),
    plan=Plan(shape, plan, Im2ColProductGeometry),
    kernels=(Kernel(kernels.im2col_product),),
    reference=reference,
    terms={"image_shape": "image axes of x", "block_shape": "kernel_shape"},
)
OPERATORS = (IM2COL_PRODUCT,)
