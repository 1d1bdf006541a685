"""ComputedGridSample's points: a program is run for a stripe of points at a time, as far as it isn't the same for all.

A stripe is some rows of the output, or a part of one. For it, a value of the program is a vector, with a number for
each point, or if it doesn't vary along the last image axis one number for each row, or for all. What is the same in all
stripes of an image, or in all images, stays. operators/computed_grid_sample.py has the program's meaning, and the plan
that makes instructions of it.
"""

import numpy as np

from ..compiler.jit import APART, FUSE, jitable
from .elements import integers_in, to_bfloat16, to_float16

# The operations of a program, by their numbers. Numbers that follow are those of instructions alone.
OPERATIONS = (
    "Add", "Sub", "Mul", "Div", "Neg", "Abs", "Sqrt", "Floor", "Ceil", "Round", "Min", "Max", "Less", "LessOrEqual",
    "Equal", "Clip", "Where", "MulAdd", "CastFloat16", "CastBFloat16",
)  # fmt: skip
ADD, SUB, MUL, DIV, NEG, ABS, SQRT, FLOOR, CEIL, ROUND, MIN, MAX, LESS, LESS_OR_EQUAL, EQUAL, CLIP = range(16)
WHERE, MUL_ADD, CAST_FLOAT16, CAST_BFLOAT16, COPY, LOAD = range(16, 22)
VECTOR, ROWS = 1, 2  # bits of a value's kind: whether it varies along rows, and whether it does from row to row
WORDS = 9  # of an instruction, see `load_values` and `run_step`
LINE = 64  # bytes of the workspace before the values, which say what has been computed


@jitable
def forget_values(workspace):
    """Have the next stripe compute all values."""
    integers_in(workspace, 0, 1)[0] = -1


@jitable
def stripe_of(k, g):
    """The first point of the output's stripe k, and the one after its last. A stripe is some rows, or a part of one."""
    if g.stripe >= g.row:
        return k * g.stripe, min((k + 1) * g.stripe, g.points)
    parts = (g.row + g.stripe - 1) // g.stripe
    begin = k // parts * g.row
    return begin + k % parts * g.stripe, begin + min((k % parts + 1) * g.stripe, g.row)


@jitable
def compute_values(sources, n, stripe, images, g, workspace, values):
    """Compute the values for a stripe of each of `images` images from image n on, as far as they aren't there.

    Returns the stripe's first point.
    """
    (begin, end), done = stripe_of(stripe, g), integers_in(workspace, 0, 3)
    row, column, columns = begin // g.row, begin % g.row, min(g.row, end - begin)
    rows = images * (end - begin) // columns
    first = g.instruction_count
    if done[0] != column:
        first = 0
    elif done[1] != n:
        first = g.of_image
    elif done[2] != stripe:
        first = g.of_stripe
    done[0], done[1], done[2] = column, n, stripe
    for k in range(first, g.instruction_count):
        instruction = g.instructions[k * WORDS :]
        # What stays is computed for as many rows as any stripe has, but not of images that aren't there.
        height = g.rows if k < g.of_image or (k < g.of_stripe and g.images == 1) else rows
        if instruction[0] == LOAD:
            load_values(sources, instruction, n, row, height, column, columns, g, values)
        else:
            run_step(instruction, height, columns, values)
    return begin


@jitable
def load_values(sources, instruction, n, row, rows, column, columns, g, values):
    """Run a LOAD. Its words: LOAD, kind, target, then input, first element and its strides along n, (d,) h and w."""
    kind, to, source, stride = instruction[1], instruction[2], sources[instruction[3]], instruction[5:]
    begin, size = instruction[4] + column * stride[g.axes], columns if kind & VECTOR else 1
    for r in range(1 if kind == 0 else rows):
        at = begin + n * stride[0]
        if kind & ROWS:
            rest = row + r
            for a in range(g.axes - 2, -1, -1):  # the rows of an image are numbered, and then those of the next one
                at += rest % g.output[a] * stride[1 + a]
                rest //= g.output[a]
            at += rest * stride[0]
        copy_row(source[at:], stride[g.axes], values[to + r * size :][:size])


@jitable(**APART)
def copy_row(source, stride, row):
    """row[b] = source[b * stride], by a loop for each kind of stride: LLVM vectorizes each by itself."""
    for b in range(row.size if stride == 0 else 0):
        row[b] = source[0]
    for b in range(row.size if stride == 1 else 0):
        row[b] = source[b]
    for b in range(row.size if stride > 1 else 0):
        row[b] = source[b * stride]


@jitable
def run_step(instruction, rows, columns, values):
    """Run an operation. Its words: the operation, kind, target, then three operands, and two bits for each one's kind.

    The result's numbers are those of a vector's rows, or a number for each row, in one row. An operand may have less:
    a number for each row of a vector, or only one.
    """
    operation, kind, to, kinds = instruction[0], instruction[1], instruction[2], instruction[6]
    if not kind & VECTOR:
        rows, columns = 1, rows if kind & ROWS else 1
    varies, size = kind & VECTOR or ROWS, rows * columns
    (a_at, a_next, a_step), (b_at, b_next, b_step), (c_at, c_next, c_step) = (
        numbers_of(instruction[3], kinds & 3, varies, columns),
        numbers_of(instruction[4], kinds >> 2 & 3, varies, columns),
        numbers_of(instruction[5], kinds >> 4 & 3, varies, columns),
    )
    result = values[to:][:size]
    if operation <= DIV and a_step == b_step:
        combine(operation, values[a_at:][:size], values[b_at:][:size], result)
    elif operation <= DIV and a_step > 0:
        combine_with_numbers(operation, values[a_at:][:size], values[b_at:], b_next, columns, result)
    elif operation <= DIV:
        combine_numbers_with(operation, values[a_at:], a_next, values[b_at:][:size], columns, result)
    for r in range(rows if operation > DIV else 0):
        a, b, c = values[a_at + r * a_next :], values[b_at + r * b_next :], values[c_at + r * c_next :]
        calculate(operation, a, b, c, (a_step, b_step, c_step), result[r * columns :][:columns])


@jitable
def numbers_of(at, kind, varies, columns):
    """Where an operand's numbers are, how far those for the next row are, and the step from one to the next in a row.

    The step is 0 for the same number everywhere in a row, and the distance, too, if it is the same for all rows.
    """
    if kind & varies:
        return at, columns, 1
    return at, 1 if kind & ROWS else 0, 0


@jitable(**APART)
def combine(operation, a, b, result):
    """Add, subtract, multiply or divide."""
    for k in range(result.size if operation == ADD else 0):
        result[k] = a[k] + b[k]
    for k in range(result.size if operation == SUB else 0):
        result[k] = a[k] - b[k]
    for k in range(result.size if operation == MUL else 0):
        result[k] = a[k] * b[k]
    for k in range(result.size if operation == DIV else 0):
        result[k] = a[k] / b[k]


@jitable(**APART)
def combine_with_numbers(operation, a, b, b_next, columns, result):
    """As `combine`, where b has one number for each of a's rows, or one for all of them."""
    for r in range(result.size // columns):
        row, number, y = a[r * columns :][:columns], b[r * b_next], result[r * columns :][:columns]
        for k in range(columns if operation == ADD else 0):
            y[k] = row[k] + number
        for k in range(columns if operation == SUB else 0):
            y[k] = row[k] - number
        for k in range(columns if operation == MUL else 0):
            y[k] = row[k] * number
        for k in range(columns if operation == DIV else 0):
            y[k] = row[k] / number


@jitable(**APART)
def combine_numbers_with(operation, a, a_next, b, columns, result):
    """As `combine`, where a has one number for each of b's rows, or one for all of them."""
    for r in range(result.size // columns):
        number, row, y = a[r * a_next], b[r * columns :][:columns], result[r * columns :][:columns]
        for k in range(columns if operation == ADD else 0):
            y[k] = number + row[k]
        for k in range(columns if operation == SUB else 0):
            y[k] = number - row[k]
        for k in range(columns if operation == MUL else 0):
            y[k] = number * row[k]
        for k in range(columns if operation == DIV else 0):
            y[k] = number / row[k]


@jitable
def calculate(operation, a, b, c, steps, result):
    """Compute a row of one of the other operations."""
    i, j, _ = steps
    if operation >= CAST_FLOAT16 and operation <= CAST_BFLOAT16:
        cast(operation, a, i, result)
    elif operation == COPY:
        copy_row(a, i, result)
    elif operation < MIN:
        change(operation, a, i, result)
    elif operation < CLIP:
        compare(operation, a, i, b, j, result)
    elif operation == MUL_ADD:
        multiply_and_add(a, b, c, steps, result)
    else:
        choose(operation, a, b, c, steps, result)


@jitable(**APART)
def change(operation, a, step, result):
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
def compare(operation, a, i, b, j, result):
    """Of equal numbers Min and Max take the second, which matters of 0 and -0; NaN they keep, whichever it is."""
    yes, no = result.dtype.type(1), result.dtype.type(0)
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
def choose(operation, a, b, c, steps, result):
    i, j, l = steps
    for k in range(result.size if operation == CLIP else 0):
        v = b[k * j] if a[k * i] < b[k * j] else a[k * i]
        result[k] = c[k * l] if v > c[k * l] else v
    for k in range(result.size if operation == WHERE else 0):
        result[k] = b[k * j] if a[k * i] != 0 else c[k * l]


@jitable(**APART, **FUSE)
def multiply_and_add(a, b, c, steps, result):
    """a * b + c, rounded once on a CPU that can do so."""
    i, j, l = steps
    for k in range(result.size):
        result[k] = a[k * i] * b[k * j] + c[k * l]


@jitable(**APART)
def cast(operation, a, step, result):
    """Round to 16 bits."""
    for k in range(result.size if operation == CAST_FLOAT16 else 0):
        result[k] = to_float16(np.float32(a[k * step]))
    for k in range(result.size if operation == CAST_BFLOAT16 else 0):
        result[k] = to_bfloat16(np.float32(a[k * step]))
