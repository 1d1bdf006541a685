"""The geometries of this folder's operators, and the words for their kernels' arguments, besides kernels/types.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..declaration.limits import MAX_RANK
from ..declaration.operator import Geometry, vector

if TYPE_CHECKING:
    from typing import Any, TypeAlias

    from ..kernels.types import Sizes, Vector

    Position: TypeAlias = int  # k: a position within a block, of all or along one axis
    Block: TypeAlias = int  # l: a block, of all or along one axis
    ArrayIndex: TypeAlias = tuple[Any, ...]  # a position or a slice along each of some axes of an array
    # Strides, dilations, begins and ends of pads, each in pixels: empty, or with a number for each image axis.
    Spacing: TypeAlias = tuple[Sizes, Sizes, Sizes, Sizes]

AXES = MAX_RANK - 2  # the most image axes


class SlidingBlocks(Geometry):
    """The sizes of an image and of its sliding blocks.

    Kernels always have two image axes or more: y and x are the last ones. A lone axis is x, beside a y of size 1.
    """

    axes: int  # image axes
    # Along each axis:
    image: Vector = vector(AXES)  # pixels of the image, without pads
    block: Vector = vector(AXES)  # positions within a block
    counts: Vector = vector(AXES)  # blocks
    strides: Vector = vector(AXES)  # pixels from one block to the next one
    dilations: Vector = vector(AXES)  # pixels from one position within a block to the next one
    pads: Vector = vector(AXES)  # pixels of padding before the image
    # Of all axes, the products of the numbers along each:
    pixels: int  # of the image
    positions: int  # within a block
    blocks: int


class Col2ImGeometry(SlidingBlocks):
    """The work, and the way in which it is done, see col2im_kernels.py."""

    planes: int  # images of the last two axes; with `together`, of all image axes
    tiled: int  # 1 if blocks tile the image: no pixel has two of them
    together: int  # 1 if planes are summed side by side
    by_blocks: int  # 1 if rows are summed block by block
    high: int  # rows of a unit of work, which lie one stride apart
    piece: int  # pixels of a row in a unit of work
    pitch: int  # sums that a lane of such a row has room for
    leads: int  # hits of a plane along the axes before y, at most
    lanes: int  # of a row: pixels whose sums are one stride apart. 0 if there is no room for them
    runs: int  # of a lane, at most. 0 if there is no room for them
    sums: int  # that the workspace has room for
    k_steps: Vector = vector(AXES)  # along each axis, how far k grows from one hit of a pixel to the next one
    l_steps: Vector = vector(AXES)  # and how far l falls


class Im2ColGeometry(SlidingBlocks):
    """The division of the output into units of work, see im2col_kernels.py.

    Where there is a single block, its positions and their dilations are in the fields for blocks and their strides.
    """

    planes: int  # images, one for each channel
    group: int  # planes of a unit
    groups: int  # into which the planes are divided
    leads: int  # blocks along the axes before y
    band_y: int  # rows of blocks in a unit
    bands_y: int  # into which the rows are divided
    band_x: int  # blocks of a row in a unit
    bands_x: int  # into which a row is divided
    rows: int  # positions within the block along all axes but x
    part: int  # positions along x in a unit
    parts: int  # into which these are divided
    units: int  # of work
    sweeps: int  # 1 if consecutive units are the bands of one position, 0 if they are the positions of one band


class Im2ColProductGeometry(SlidingBlocks):
    """The division of the output into units of work, and the workspace, see im2col_product_kernels.py."""

    planes: int  # groups of channels in all images
    channels: int  # of a group
    over_channels: int  # 1 if products are added up over channels, 0 if over positions within the block
    rows: int  # positions within the block along all axes but x
    leads: int  # blocks along the axes before y
    part: int  # positions along x that share rows in the workspace
    parts: int  # into which these are divided
    chunks: int  # of channels, into which a group is divided
    span: int  # elements that the positions of a part add to a row, from the first one to the last
    pitch: int  # elements of a row in the workspace: of a band's blocks and of `span`
    length: int  # elements of a band's rows in the workspace
    band_y: int  # rows of blocks in a unit
    bands_y: int  # into which the rows are divided
    band_x: int  # blocks of a row in a unit
    bands_x: int  # into which a row is divided
    units: int  # of work
