"""What the elements of a graph's values are: one typed form, read by one rule per operator.

affine        positions: sums of digits of variables
forms         what an element is; made by constructors, compared by rolling, computed by evaluation
reader        reads a value's element by the table of operators/
"""

from typing import TYPE_CHECKING

from .operators import TABLE
from .reader import Reader

if TYPE_CHECKING:
    from .reader import GraphView


def reader_of(graph: "GraphView") -> Reader:
    """Return a reader of a graph by the table of operators."""
    return Reader(graph, TABLE)
