"""Types of tensors: data types, and shapes with sizes that are ints or, where a model leaves them
open, `Size`s.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from onnx import helper

from ..declaration import limits
from .sizes import Dimension, are_numbers, known, name_of

Sizes = tuple[Dimension | None, ...]  # with None for each size that isn't known


@dataclass(frozen=True)
class Inferred:
    """The type of a tensor as far as a rule infers it.

    Of a sequence or an optional value: that of the tensors in it, of which only the elements are
    known.

    elements  the data type, by its number in ONNX; 0 if it is unknown
    shape     the sizes; None if the rank is unknown
    """

    elements: int = 0
    shape: Sizes | None = None

    @property
    def sizes(self) -> Sizes:
        """The shape. Raises ValueError if the rank is unknown."""
        return known(self.shape)


class Misread(Inferred):
    """What is left where a rule fails: the rank that the model states may be what another tool
    misread.
    """


@dataclass(frozen=True)
class Type(Inferred):
    """The type of a tensor. Each size is known up to the open sizes of values, which have names."""

    shape: tuple[Dimension, ...] | None = None

    if TYPE_CHECKING:

        @property
        def sizes(self) -> tuple[Dimension, ...]: ...

    @property
    def count(self) -> float:
        """The number of elements, infinity if it isn't known."""
        return (
            math.prod(self.shape)
            if self.shape is not None and are_numbers(self.shape)
            else math.inf
        )

    @property
    def dimensions(self) -> list[int | str | None] | None:
        """The shape as models state it: a list of ints, names and None (also for impossible sizes),
        or None.
        """
        return None if self.shape is None else [
            name_of(d) if not isinstance(d,
                int) else d if 0 <= d <= limits.ELEMENTS else None for d in self.shape
        ]  # fmt: skip

    @property
    def dtype(self) -> np.dtype:
        """The elements' type in NumPy."""
        return helper.tensor_dtype_to_np_dtype(self.elements)


UNKNOWN = Type()
