"""The types of this room: what is compared of a custom operator. Only type checkers read them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeAlias

    import numpy as np

    from ..model.types import Array

    Number: TypeAlias = float | np.floating[Any]
    Attributes: TypeAlias = Mapping[str, Any]  # {name: value} of a call
    # A way to run an operator: it returns the outputs.
    Compute: TypeAlias = Callable[[], list[Array]]
    Outcome: TypeAlias = list[Array] | str  # the outputs, or the text of a refusal
