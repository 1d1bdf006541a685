"""The geometry of ComputedGridSample, with its program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..declaration.operator import record_dtype, vector
from .geometry import GridSampleGeometry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..kernels.types import Vector

SOURCES, STEPS = 48, 64  # of a program, at most
VALUES = SOURCES + STEPS + 3  # with copies of the coordinates
# What StoredValue.last may be besides a value: no needed value reads this one, its place is free
# again, or GridSample reads it.
NEVER, FREED, GRID = -2, -1, VALUES


class StoredSource:
    """A source of a program, in the geometry."""

    input: int  # number of the input, 0 for the first one after X
    first: int  # the source's first element in the input
    # Elements to the next one along n and along each axis of the output; 0: broadcast.
    pitches: Vector = vector(4)


class StoredValue:
    """A value of a program, in the geometry.

    It is a source, the result of a step, or a copy of a coordinate.
    """

    operation: int  # number of the operation that computes it
    operands: Vector = vector(3)  # numbers of the values that the operation takes
    kind: int  # bits VECTOR and ROWS of computed_points.py
    level: int  # 0 if it is the same in all images, 1 if in all stripes of an image, else 2
    last: int  # the last value that reads this one; NEVER, FREED or GRID
    place: int  # of its first number among those that are kept


class ComputedGridSampleGeometry(GridSampleGeometry):
    """The program, in the order in which its values are computed."""

    sources: Sequence[StoredSource] = vector(
        SOURCES, np.dtype((np.record, record_dtype(StoredSource)))
    )
    values: Sequence[StoredValue] = vector(VALUES, np.dtype((np.record, record_dtype(StoredValue))))
    order: Vector = vector(VALUES)  # the needed values, as they are computed one after the other
    order_count: int  # of these values
    of_image: int  # the first of them, in `order`, that differs from image to image
    of_stripe: int  # the first of them that differs from stripe to stripe
    coordinates: Vector = vector(3)  # where the numbers of x, y and z are kept
    rows: int  # of a stripe, at most
    room: int  # numbers that are kept
    # Stack of places with a number for each point that are free again.
    places: Vector = vector(VALUES)
    free: int  # number of these places
