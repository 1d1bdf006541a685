"""The parts of an operator's declaration, for authors of operators.

Whoever only has a function in NumPy or a kernel uses `onnx_ops.operator` instead.

MAX_TILES is the number of tiles that run at a time, at most: a plan seldom needs more. UNKNOWN
stands for a size or rank that a shape function doesn't know.
"""

from .declaration.attributes import Attribute
from .declaration.errors import require
from .declaration.jit import jitable
from .declaration.limits import MAX_TILES, UNKNOWN
from .declaration.operator import Geometry, Input, Kernel, Operator, Output, Plan, vector
from .kernels.shares import share
from .sampling.computed_grid_sample import program

__all__ = [
    "MAX_TILES",
    "UNKNOWN",
    "Attribute",
    "Geometry",
    "Input",
    "Kernel",
    "Operator",
    "Output",
    "Plan",
    "jitable",
    "program",
    "require",
    "share",
    "vector",
]
