"""The geometries of this folder's operators, and the words for their kernels' arguments, besides
kernels/types.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..declaration.operator import Geometry, vector

if TYPE_CHECKING:
    from typing import Any, Protocol, TypeAlias

    from numpy.typing import NDArray

    from ..kernels.types import Coordinates, Elements, Offset, Vector

    Points: TypeAlias = tuple[Coordinates, ...]  # (grid,) or (x, y, z), see grid_points.py
    Point: TypeAlias = int  # a point: its number in `Points`, or among those of an image
    # The inputs of a ComputedGridSample after X; () if there is a grid.
    Sources: TypeAlias = tuple[Elements, ...]
    # Floats: of one value of a program, or of all values that are kept.
    Numbers: TypeAlias = NDArray[Any]
    # An np.int32: a pixel of an image or along an axis, or a number of pixels.
    Pixel32: TypeAlias = Any
    Offsets: TypeAlias = tuple[Offset, Offset, Offset, Offset]  # of four taps along an axis
    # Of the taps along an axis, from a coordinate's floor: LINEAR or CUBIC of
    # grid_sample_kernels.py. Their number is known when a function is compiled.
    TapOffsets: TypeAlias = tuple[int, ...]

    class WithImage(Protocol):
        """A geometry with the sizes of an image."""

        axes: int
        image: Vector


class GridSampleGeometry(Geometry):
    """The sizes of images and outputs, the attributes, and the division of the work into units.

    A unit is a stripe of one image's points, and a part of the channels. The points are those of
    the grid, or computed.
    """

    batch: int  # images
    channels: int  # of an image
    axes: int  # of an image without batch and channels: 2 or 3
    points: int  # that are read from each image: pixels of its output
    units: int  # of work
    row_length: int  # points of a row of the output; all points of an image if there is a grid
    stripe: int  # points of a stripe: whole rows, or a part of one
    stripes: int  # of each image
    span: int  # points with places and weights in the workspace, at most
    parts: int  # into which the channels are divided
    part: int  # channels of a part
    image: Vector = vector(3)  # pixels along each axis
    output: Vector = vector(3)  # points along each axis
    padding_mode: int  # ZEROS, BORDER or REFLECTION of coordinates.py
    # 1 if -1 and 1 are the centres of the border pixels, 0 if they are the image's edges.
    align_corners: int
    pixels: int  # 1 if the grid's values are numbers of pixels, 0 if they lie in [-1, 1]
    of_points: int  # bytes at the begin of the workspace that computed points take
