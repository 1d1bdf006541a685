"""`add_product` of kernels/vectors.py, with vectors: a block of the target stays in registers while
columns go by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir

from ..kernels import vectors
from .halves import I64
from .numba_internals import cgutils
from .simd import FUSED, alignment, element_type, inner, operation, repeat, vectorized
from .target import current

if TYPE_CHECKING:
    from collections.abc import Callable

    from numba import types

    from ..kernels.types import Elements, Sums
    from .simd import ArrayValue

VECTORS = 2  # of a row in a block: so often a weight is used that is loaded


def block_lanes(kind: ir.Type) -> int:
    """Return the lanes of the widest vectors of LLVM's type, which have the most registers."""
    return current().vector_bytes // alignment(kind)


def block_rows() -> int:
    """Return the rows of a block.

    With the columns' vectors and a weight, the sums leave no register free.
    """
    return 8 if current().vector_bytes == 64 else 4


@operation(literals="rows")
def add_block(
    builder: ir.IRBuilder,
    w: ArrayValue,
    i: ir.Value,
    pitch: ir.Value,
    columns: ArrayValue,
    b: ir.Value,
    width: ir.Value,
    depth: ir.Value,
    target: ArrayValue,
    j: ir.Value,
    rows: int,
) -> None:
    """target[j + r * width + v] += sum over k < depth of
    w[i + r * pitch + k] * columns[b + k * width + v]

    for r < rows and v < VECTORS * lanes.
    """
    lanes = block_lanes(target.data.type.pointee)
    kind = ir.VectorType(target.data.type.pointee, lanes)

    def vectors_at(begin: ir.Value, row: ir.Value) -> list[ir.Value]:
        """Return the places of the vectors of a row."""
        begin = builder.add(begin, builder.mul(row, width))
        return [builder.add(begin, I64(v * lanes)) for v in range(VECTORS)]

    places = [place for r in range(rows) for place in vectors_at(j, I64(r))]
    sums = [cgutils.alloca_once(builder, kind) for _ in places]  # LLVM keeps them in registers
    for total, place in zip(sums, places, strict=True):
        builder.store(target.load(place, lanes), total)
    weights = [w.after(builder.add(i, builder.mul(I64(r), pitch))) for r in range(rows)]
    with cgutils.for_range(builder, depth) as loop:
        found = [columns.load(place, lanes) for place in vectors_at(b, loop.index)]
        for r in range(rows):
            weight = repeat(builder, weights[r].one(loop.index), lanes)
            for v in range(VECTORS):
                product = builder.fmul(weight, found[v], flags=FUSED)
                total = sums[r * VECTORS + v]
                builder.store(builder.fadd(product, builder.load(total), flags=FUSED), total)
    for total, place in zip(sums, places, strict=True):
        target.store(place, builder.load(total))


def rows_adder(rows: int, step: int) -> Callable[..., None]:
    """Return add_product from a row on: `rows` of them at a time, then half as many of the rest,
    and so on.
    """
    add_rest = rows_adder(rows // 2, step) if rows > 1 else inner(lambda *arguments: None)

    @inner
    def add_rows(
        w: Elements,
        first: int,
        pitch: int,
        count: int,
        columns: Sums,
        depth: int,
        width: int,
        target: Sums,
        r: int,
    ) -> None:
        while r + rows <= count:
            for b in range(0, width, step):
                add_block(
                    w,
                    first + r * pitch,
                    pitch,
                    columns,
                    b,
                    width,
                    depth,
                    target,
                    r * width + b,
                    rows,
                )
            r += rows
        add_rest(w, first, pitch, count, columns, depth, width, target, r)

    return add_rows


@vectorized(vectors.add_product)
def _(target: types.Array) -> Callable[..., None]:
    step = VECTORS * block_lanes(element_type(target))
    assert vectors.WIDTH % step == 0
    add_rows = rows_adder(block_rows(), step)

    def add_product(
        w: Elements,
        first: int,
        pitch: int,
        rows: int,
        columns: Sums,
        depth: int,
        width: int,
        target: Sums,
    ) -> None:
        add_rows(w, first, pitch, rows, columns, depth, width, target, 0)

    return add_product
