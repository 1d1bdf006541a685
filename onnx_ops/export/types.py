"""The types of this room: PyTorch's operators, tensors, and values of its exporter.

Only type checkers read them.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, TypeAlias

    import torch
    from onnxscript.ir import Value
    from torch._ops import OpOverload

    # {PyTorch's operator: function that adds the node}
    Table: TypeAlias = dict[OpOverload, Callable[..., Any]]
    # A size where the exporter adds nodes: a number, or a value of the graph.
    Length: TypeAlias = int | Value
    Size: TypeAlias = int | torch.SymInt
    # Of an operator's input: lists are sizes or values.
    Argument: TypeAlias = torch.Tensor | Sequence[Size] | None
    Given: TypeAlias = Argument | Sequence[torch.Tensor]  # the latter of a variadic input
    Tensors: TypeAlias = torch.Tensor | tuple[torch.Tensor, ...]  # an operator's output, or several
