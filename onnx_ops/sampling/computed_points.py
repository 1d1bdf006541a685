"""ComputedGridSample's points: the program runs for a stripe of points at a time, except for its
common parts.

A stripe is some rows of the output, or a part of one. A value of the program has a number for each
of its points. It has one for each row if it doesn't vary along rows, one for each column if all
rows are alike, or a single number. Values that are the same in all stripes of an image, or in all
images, are kept. sampling/computed_grid_sample.py defines the program, and has the plan that orders
the values and describes them in g.sources and g.values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..declaration.jit import APART, FUSE, jitable, known
from ..kernels.elements import elements_in, integers_in, to_bfloat16, to_float16
from ..kernels.vectors import whole

if TYPE_CHECKING:
    from ..kernels.types import Known, Pitch, Workspace
    from .computed_geometry import ComputedGridSampleGeometry, StoredSource, StoredValue
    from .geometry import GridSampleGeometry, Numbers, Point, Points, Sources

# The operations of a program, by their numbers. Those that follow are only the plan's.
OPERATIONS = (
    "Add", "Sub", "Mul", "Div", "Neg", "Abs", "Sqrt", "Floor", "Ceil", "Round", "Min", "Max",
    "Less", "LessOrEqual",
    "Equal", "Clip", "Where", "MulAdd", "CastFloat16", "CastBFloat16",
)  # fmt: skip
ADD, SUB, MUL, DIV, NEG, ABS, SQRT, FLOOR, CEIL, ROUND = range(10)
MIN, MAX, LESS, LESS_OR_EQUAL, EQUAL, CLIP = range(10, 16)
WHERE, MUL_ADD, CAST_FLOAT16, CAST_BFLOAT16, COPY, LOAD = range(16, 22)
VECTOR, ROWS = 1, 2  # bits of a value's kind: whether it varies along rows, and from row to row
FULL = VECTOR | ROWS  # a value with a number for each point
FIXED, ALONG = known(0), known(1)  # steps of an operand: of one number, and of a row
LINE = 64  # bytes of the workspace before the values, which state the computed ones


class Region(NamedTuple):
    """The points for which a value is computed.

    They are some columns of some rows of the output, from image n on.

    A value that doesn't vary along rows needs one column only, and one that doesn't vary from row
    to row one row.
    """

    n: int
    row: int  # the first one: its number among the rows of image n
    rows: int
    column: int  # the first one
    columns: int


class Operand(NamedTuple):
    """The numbers of an operation's operand."""

    numbers: Numbers
    pitch: Pitch  # from the numbers for one row to those for the next one; 0 if rows are alike
    step: Pitch  # from one number of a row to the next one; 0 if there is one for the whole row


class Grid(NamedTuple):
    """The points at which images are sampled, see grid_points.py."""

    points: Points
    sources: Sources  # from which the points are computed; () if they are given


@jitable
def grid_in(workspace: Workspace, sources: Sources, g: ComputedGridSampleGeometry) -> Grid:
    """Return the Grid of a stripe's computed points: the coordinates x, y and z, each an array.

    For two image axes, z is unused.
    """
    values = elements_in(workspace, LINE, g.room, sources[0])
    begin = g.coordinates
    return Grid((values[begin[0] :], values[begin[1] :], values[begin[2] :]), sources)


@jitable
def forget_values(workspace: Workspace) -> None:
    """Mark all values as not computed, for the next stripe."""
    integers_in(workspace, 0, 1)[0] = -1


@jitable
def stripe_of(k: int, g: GridSampleGeometry) -> tuple[Point, Point]:
    """Return the first point of the output's stripe k, and the one after its last."""
    if g.stripe >= g.row_length:
        return k * g.stripe, min((k + 1) * g.stripe, g.points)
    count = (g.row_length + g.stripe - 1) // g.stripe  # of a row
    begin = k // count * g.row_length
    return begin + k % count * g.stripe, begin + min((k % count + 1) * g.stripe, g.row_length)


@jitable
def compute_values(
    sources: Sources, n: int, stripe: int, g: ComputedGridSampleGeometry, workspace: Workspace
) -> Point:
    """Compute the missing values for a stripe of image n; return the stripe's first point."""
    begin, end = stripe_of(stripe, g)
    done = integers_in(workspace, 0, 3)
    values = elements_in(workspace, LINE, g.room, sources[0])
    row = begin // g.row_length
    column = begin % g.row_length
    columns = min(g.row_length, end - begin)
    rows = (end - begin) // columns
    first = g.order_count
    if done[0] != column:
        first = 0
    elif done[1] != n:
        first = g.of_image
    elif done[2] != stripe:
        first = g.of_stripe
    done[0] = column
    done[1] = n
    done[2] = stripe
    for k in range(first, g.order_count):
        value = g.values[g.order[k]]
        # Values that are kept are computed for the rows of the largest stripe.
        height = g.rows if k < g.of_stripe else rows
        if value.operation == LOAD:
            load_values(
                sources,
                g.sources[g.order[k]],
                value,
                Region(n, row, height, column, columns),
                g,
                values,
            )
        else:
            run_step(value, height, columns, g, values)
    return begin


@jitable
def load_values(
    sources: Sources,
    source: StoredSource,
    value: StoredValue,
    region: Region,
    g: ComputedGridSampleGeometry,
    values: Numbers,
) -> None:
    """Load the numbers of a value that is a source."""
    numbers = sources[source.input]
    pitches = source.pitches
    result = values[value.place :]
    along_w = pitches[g.axes]
    n, row, rows, column, columns = region
    if not value.kind & VECTOR:
        columns = 1
    first = source.first + n * pitches[0] + column * along_w
    if not value.kind & ROWS:
        copy_row(numbers[first:], along_w, result[:columns])
        return
    height = g.output[g.axes - 2]
    along_h = pitches[g.axes - 1]
    depth = g.output[0] if g.axes == 3 else 1
    along_d = pitches[1] if g.axes == 3 else 0
    h = row % height
    d = row // height % depth
    first += row // (height * depth) * pitches[0] + d * along_d + h * along_h
    for r in range(rows):
        if columns == 1:
            result[r] = numbers[first]
        else:
            copy_row(numbers[first:], along_w, result[r * columns :][:columns])
        first += along_h
        h += 1
        if h == height:
            first += along_d - height * along_h
            h = 0
            d += 1
            if d == depth:
                first += pitches[0] - depth * along_d
                d = 0


@jitable(**APART)
def copy_row(source: Numbers, stride: Pitch, row: Numbers) -> None:
    """row[b] = source[b * stride]

    There is a loop for each kind of stride: LLVM vectorizes each by itself.
    """
    for b in range(row.size if stride == 0 else 0):
        row[b] = source[0]
    for b in range(row.size if stride == 1 else 0):
        row[b] = source[b]
    for b in range(row.size if stride > 1 else 0):
        row[b] = source[b * stride]


@jitable
def run_step(
    value: StoredValue, rows: int, columns: int, g: ComputedGridSampleGeometry, values: Numbers
) -> None:
    """Compute a value by its operation.

    A result that doesn't vary along rows is one row, of a number for each row, or of one.
    """
    operation = value.operation
    result = values[value.place :]
    if not value.kind & VECTOR:
        columns = rows if value.kind & ROWS else 1
    if value.kind != FULL:
        rows = 1
    a = operand(value, 0, columns, g, values)
    b = operand(value, 1, columns, g, values)
    if operation <= DIV:
        if a.pitch == b.pitch == columns and a.step == b.step:
            rows, columns = 1, rows * columns
        # Numbers past a row's end belong to the next row, which is written later, or are unused.
        # Loops over whole vectors are twice as fast.
        combine(
            operation,
            a,
            b,
            rows,
            columns,
            whole(columns) if value.kind & VECTOR else columns,
            result,
        )
        return
    c = operand(value, 2, columns, g, values)
    for r in range(rows):
        calculate(
            operation, row_of(a, r), row_of(b, r), row_of(c, r), result[r * columns :][:columns]
        )


@jitable
def operand(
    value: StoredValue, k: int, columns: int, g: ComputedGridSampleGeometry, values: Numbers
) -> Operand:
    """Return operand k of a value with this many columns in a row."""
    stored = g.values[value.operands[k]]
    numbers = values[stored.place :]
    varies = stored.kind & ROWS
    step = stored.kind & VECTOR
    if not value.kind & VECTOR:
        return Operand(numbers, 0, 1 if varies else 0)
    if not varies:
        return Operand(numbers, 0, step)
    return Operand(numbers, columns if step else 1, step)


@jitable
def row_of(operand: Operand, r: int) -> Operand:
    """Return an operand's numbers for row r and those that follow."""
    return Operand(operand.numbers[r * operand.pitch :], operand.pitch, operand.step)


@jitable
def combine(
    operation: int, a: Operand, b: Operand, rows: int, columns: int, count: int, result: Numbers
) -> None:
    """Add, subtract, multiply or divide rows, or rows and a number for each, if its step is 0.

    count: of numbers that are computed of a row: `columns`, or more
    """
    for r in range(rows):
        x = a.numbers[r * a.pitch :]
        y = b.numbers[r * b.pitch :]
        z = result[r * columns :][:count]
        if a.step == b.step:  # 0 for single numbers
            combine_row(operation, x, ALONG, y, ALONG, z)
        elif b.step == 0:
            combine_row(operation, x, ALONG, y, FIXED, z)
        else:
            combine_row(operation, x, FIXED, y, ALONG, z)


@jitable(**APART)
def combine_row(
    operation: int, a: Numbers, i: Known, b: Numbers, j: Known, result: Numbers
) -> None:
    """Combine a row, with steps i and j that are known when the kernel is compiled.

    There is a loop for each operation, as LLVM doesn't vectorize one that chooses.
    """
    for k in range(result.size if operation == ADD else 0):
        result[k] = a[k * len(i)] + b[k * len(j)]
    for k in range(result.size if operation == SUB else 0):
        result[k] = a[k * len(i)] - b[k * len(j)]
    for k in range(result.size if operation == MUL else 0):
        result[k] = a[k * len(i)] * b[k * len(j)]
    for k in range(result.size if operation == DIV else 0):
        result[k] = a[k * len(i)] / b[k * len(j)]


@jitable
def calculate(operation: int, a: Operand, b: Operand, c: Operand, result: Numbers) -> None:
    """Compute a row of one of the other operations."""
    if operation >= CAST_FLOAT16 and operation <= CAST_BFLOAT16:
        round_row(operation, a.numbers, a.step, result)
    elif operation == COPY:
        copy_row(a.numbers, a.step, result)
    elif operation < MIN:
        change_row(operation, a.numbers, a.step, result)
    elif operation < CLIP:
        compare_row(operation, a.numbers, a.step, b.numbers, b.step, result)
    elif operation == MUL_ADD:
        multiply_and_add(a, b, c, result)
    else:
        choose_row(operation, a, b, c, result)


@jitable(**APART)
def change_row(operation: int, a: Numbers, step: Pitch, result: Numbers) -> None:
    """Compute a row of an operation with one operand.

    `step` is from one of its numbers to the next one.
    """
    for k in range(result.size if operation == NEG else 0):
        result[k] = -a[k * step]
    for k in range(result.size if operation == ABS else 0):
        result[k] = abs(a[k * step])
    for k in range(result.size if operation == SQRT else 0):
        result[k] = np.sqrt(a[k * step])
    for k in range(result.size if operation == FLOOR else 0):
        result[k] = np.floor(a[k * step])
    for k in range(result.size if operation == CEIL else 0):
        result[k] = np.ceil(a[k * step])
    for k in range(result.size if operation == ROUND else 0):
        result[k] = np.rint(a[k * step])


@jitable(**APART)
def compare_row(
    operation: int, a: Numbers, i: Pitch, b: Numbers, j: Pitch, result: Numbers
) -> None:
    """Compute a row of a minimum, a maximum or a comparison.

    Of equal numbers Min and Max take the second, which matters of 0 and -0; NaN they keep,
    whichever it is.
    """
    yes = result.dtype.type(1)
    no = result.dtype.type(0)
    for k in range(result.size if operation == MIN else 0):
        result[k] = a[k * i] if a[k * i] < b[k * j] or a[k * i] != a[k * i] else b[k * j]
    for k in range(result.size if operation == MAX else 0):
        result[k] = a[k * i] if a[k * i] > b[k * j] or a[k * i] != a[k * i] else b[k * j]
    for k in range(result.size if operation == LESS else 0):
        result[k] = yes if a[k * i] < b[k * j] else no
    for k in range(result.size if operation == LESS_OR_EQUAL else 0):
        result[k] = yes if a[k * i] <= b[k * j] else no
    for k in range(result.size if operation == EQUAL else 0):
        result[k] = yes if a[k * i] == b[k * j] else no


@jitable(**APART)
def choose_row(operation: int, a: Operand, b: Operand, c: Operand, result: Numbers) -> None:
    """Compute a row of Clip or Where."""
    (x, _, i), (y, _, j), (z, _, l) = a, b, c
    for k in range(result.size if operation == CLIP else 0):
        v = y[k * j] if x[k * i] < y[k * j] else x[k * i]
        result[k] = z[k * l] if v > z[k * l] else v
    for k in range(result.size if operation == WHERE else 0):
        result[k] = y[k * j] if x[k * i] != 0 else z[k * l]


@jitable(**APART, **FUSE)
def multiply_and_add(a: Operand, b: Operand, c: Operand, result: Numbers) -> None:
    """a * b + c, rounded once on a CPU that can do so."""
    for k in range(result.size):
        result[k] = a.numbers[k * a.step] * b.numbers[k * b.step] + c.numbers[k * c.step]


@jitable(**APART)
def round_row(operation: int, a: Numbers, step: Pitch, result: Numbers) -> None:
    """Round to 16 bits."""
    for k in range(result.size if operation == CAST_FLOAT16 else 0):
        result[k] = to_float16(np.float32(a[k * step]))
    for k in range(result.size if operation == CAST_BFLOAT16 else 0):
        result[k] = to_bfloat16(np.float32(a[k * step]))
