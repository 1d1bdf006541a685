"""The rules of operators, one each, which `TABLE` has by the operators' names."""

from . import elementwise, grids, moves, sums, writes  # noqa: F401  they declare the rules
from .table import TABLE

__all__ = ["TABLE"]
