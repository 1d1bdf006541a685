"""The vocabulary of kernels: what their arguments hold. Only readers and type checkers need it;
Numba ignores it.

Kernels import these names under `if TYPE_CHECKING:`, after `from __future__ import annotations`.

An array of numbers along an axis has a word of its own where the numbers mean something. The types
of elements are known when a kernel is compiled, so elements and what is computed from them are
`Any` to a type checker.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import MutableSequence, Sequence
    from typing import Any, Protocol, TypeAlias

    import numpy as np
    from numpy.typing import NDArray

    # Arrays
    # Of a tensor, as in memory: one after the other unless a kernel says otherwise.
    Elements: TypeAlias = NDArray[Any]
    # Elements in the type in which they are summed: float32 for 16-bit floats.
    Sums: TypeAlias = NDArray[Any]
    # Floats: where points lie in an image, or along one of its axes.
    Coordinates: TypeAlias = NDArray[Any]
    Weights: TypeAlias = NDArray[Any]  # floats: the factors of elements in a sum
    # Places of elements in a tensor, or numbers of blocks, boxes, ...
    Indices: TypeAlias = NDArray[np.int64]
    # Places of pixels in an image, in 32 bits so that more fit into a vector.
    Pixels: TypeAlias = NDArray[np.int32]
    # The bytes of a tile's scratch memory, which nobody has initialized.
    Workspace: TypeAlias = NDArray[np.uint8]
    # A number for each axis, of a geometry or of an attribute.
    Vector: TypeAlias = NDArray[np.int64]

    # Numbers
    # Of an element: a NumPy integer where its size or sign matters.
    Index: TypeAlias = int | np.integer[Any]
    Element: TypeAlias = Any  # of `Elements`: a number, or a record of the bits of a 16-bit float
    # One of `Sums`, `Coordinates` or `Weights`: of NumPy's type, also where int32 is meant.
    Number: TypeAlias = Any
    NumberType: TypeAlias = Any  # the type of a Number, which converts to it: np.float32(0.5)

    # Integers
    Axis: TypeAlias = int  # an axis of an image: 0 is the first one, without batch and channels
    Pixel: TypeAlias = int  # a pixel: its number in an image, row by row, or along one axis
    Offset: TypeAlias = Index  # an element of a flat array: the number of those before it
    Pitch: TypeAlias = int  # the number of elements from one row, plane or channel to the next one
    Unit: TypeAlias = int  # a unit of work, of which a tile has several
    Tile: TypeAlias = int  # a tile, from 0 to the geometry's `tiles` - 1
    # A number that is known when a kernel is compiled: the length of the tuple.
    Known: TypeAlias = tuple[int, ...]

    # Plans
    # A shape, or the values of a small input: a vector in compiled code, else a list.
    Sizes: TypeAlias = Sequence[int]
    # The vector of MAX_RANK sizes into which a plan writes a shape.
    OutputSizes: TypeAlias = MutableSequence[int]
    # A named tuple with a number or a vector for each attribute of an operator.
    AttributeTuple: TypeAlias = Any

    class Tiled(Protocol):
        """What every geometry has: a record in memory that a plan fills in for its kernel
        (declaration/operator.py).
        """

        tiles: int  # parts into which a plan cuts its work, which may run in parallel
        workspace: int  # bytes of scratch memory for each running tile
