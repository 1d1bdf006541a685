"""Modules of PyTorch for tests."""

import torch


class Call(torch.nn.Module):
    """A network of one call."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)
