"""The operators that there are. A new one is a file here with `Operator`s in its `OPERATORS`."""

from . import col2im, grid_sample

OPERATORS = (*col2im.OPERATORS, *grid_sample.OPERATORS)
