"""Modules of PyTorch for tests."""

from collections.abc import Callable
from typing import Any

import torch


class Call(torch.nn.Module):
    """A network of one call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)
