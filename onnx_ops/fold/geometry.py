"""The geometries of this folder's operators, and the words for their kernels' arguments, besides
kernels/types.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..declaration.limits import MAX_RANK
from ..declaration.operator import Geometry, vector

if TYPE_CHECKING:
    from typing import Any, TypeAlias

    from ..kernels.types import Sizes, Vector

    Position: TypeAlias = int  # k: a position within a block, of all or along one axis
    Block: TypeAlias = int  # l: a block, of all or along one axis
    # A position or a slice along each of some axes of an array.
    ArrayIndex: TypeAlias = tuple[Any, ...]
    # Strides, dilations, begins and ends of pads, each in pixels: empty, or with a number for each
    # image axis.
    Spacing: TypeAlias = tuple[Sizes, Sizes, Sizes, Sizes]

AXES = MAX_RANK - 2  # the most image axes


class SlidingBlocks(Geometry):
    """The sizes of an image and of its sliding blocks.

    Kernels always have two image axes or more: y and x are the last ones. A lone axis is x, beside
    a y of size 1.
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

    planes: int  # images of the last two axes; TOGETHER: of all image axes
    disjoint: int  # 1 if blocks tile the image: no pixel has two of them
    way: int  # TOGETHER, DISJOINT, BY_BLOCKS or BY_LANES
    # A unit of work is a piece of each row of a group, see `rows_of`; unused if TOGETHER.
    phases: int  # of a plane: its rows that lie one stride apart; DISJOINT: one, of all rows
    groups: int  # of a phase
    row_pieces: int  # of a row
    high: int  # rows of a group, at most; DISJOINT: rows of blocks
    piece: int  # pixels of a piece, at most
    pitch: int  # sums that a lane of such a piece has room for
    ahead: int  # elements from those that are read to those that are fetched; 0 if none are
    # The workspace has room for:
    leads: int  # hits of a plane along the axes before y
    runs: int  # of a lane
    sums: int
    # Along each axis, how far k grows from one hit of a pixel to the next one.
    k_steps: Vector = vector(AXES)
    l_steps: Vector = vector(AXES)  # and how far l falls
