"""`add_product` of kernels/vectors.py, with vectors: a block of the target stays in registers while
columns go by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir

from ..kernels import vectors
from ..kernels.vectors import View
from .halves import I64
from .numba_internals import cgutils
from .simd import FUSED, alignment, element_type, inner, operation, repeat, vectorized
from .target import current

if TYPE_CHECKING:
    from collections.abc import Callable

    from numba import types

    from ..kernels.types import Sums
    from .simd import ArrayValue, ViewValue

VECTORS = 2  # of a row in a block: so often a weight is used that is loaded


def block_lanes(number: ir.Type) -> int:
    """Return the lanes of the widest vectors of LLVM's type, which have the most registers."""
    return current().vector_bytes // alignment(number)


def block_rows() -> int:
    """Return the rows of a block.

    With the columns' vectors and a weight, the sums leave no register free.
    """
    return 8 if current().vector_bytes == 64 else 4


@operation(literals="rows")
def add_block(
    builder: ir.IRBuilder,
    weights: ViewValue,
    columns: ArrayValue,
    b: ir.Value,
    depth: ir.Value,
    target: ViewValue,
    rows: int,
) -> None:
    """target[r, v] += sum over k < depth of  weights[r, k] * columns[b + k * width + v]

    for r < rows and v < VECTORS * lanes, where width is the step from one row of the target to the
    next one.
    """
    w, first, (pitch,) = weights
    totals, to, (width,) = target
    lanes = block_lanes(totals.data.type.pointee)
    vector = ir.VectorType(totals.data.type.pointee, lanes)

    def vectors_of(begin: ir.Value, row: ir.Value) -> list[ir.Value]:
        """Return the begins of the vectors of a row."""
        begin = builder.add(begin, builder.mul(row, width))
        return [builder.add(begin, I64(v * lanes)) for v in range(VECTORS)]

    begins = [begin for r in range(rows) for begin in vectors_of(to, I64(r))]
    sums = [cgutils.alloca_once(builder, vector) for _ in begins]  # LLVM keeps them in registers
    for total, begin in zip(sums, begins, strict=True):
        builder.store(totals.load(begin, lanes), total)
    w_rows = [w.after(builder.add(first, builder.mul(I64(r), pitch))) for r in range(rows)]
    with cgutils.for_range(builder, depth) as loop:
        column = [columns.load(begin, lanes) for begin in vectors_of(b, loop.index)]
        for r in range(rows):
            weight = repeat(builder, w_rows[r].one(loop.index), lanes)
            for v in range(VECTORS):
                product = builder.fmul(weight, column[v], flags=FUSED)
                total = sums[r * VECTORS + v]
                builder.store(builder.fadd(product, builder.load(total), flags=FUSED), total)
    for total, begin in zip(sums, begins, strict=True):
        totals.store(begin, builder.load(total))


def rows_adder(rows: int, step: int) -> Callable[..., None]:
    """Return add_product from a row on.

    It adds `rows` of them at a time, then half as many of the rest, and so on.
    """
    add_rest = rows_adder(rows // 2, step) if rows > 1 else inner(lambda *arguments: None)

    @inner
    def add_rows(
        weights: View, count: int, columns: Sums, depth: int, width: int, target: Sums, r: int
    ) -> None:
        w, first, steps = weights
        while r + rows <= count:
            for b in range(0, width, step):
                row_weights = View(w, first + r * steps[0], steps)
                block = View(target, r * width + b, (width,))
                add_block(row_weights, columns, b, depth, block, rows)
            r += rows
        add_rest(weights, count, columns, depth, width, target, r)

    return add_rows


@vectorized(vectors.add_product)
def make_add_product(target: types.Array) -> Callable[..., None]:
    step = VECTORS * block_lanes(element_type(target))
    assert vectors.WIDTH % step == 0
    add_rows = rows_adder(block_rows(), step)

    def add_product(
        weights: View, rows: int, columns: Sums, depth: int, width: int, target: Sums
    ) -> None:
        add_rows(weights, rows, columns, depth, width, target, 0)

    return add_product
