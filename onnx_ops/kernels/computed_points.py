"""ComputedGridSample's points: a program is run for a stripe of points at a time, as far as it isn't the same for all.

A stripe is some rows of the output, or a part of one. For it, a value of the program has a number for each point, or
for each row if it doesn't vary along rows, or for each column if all rows are alike, or one for all. What is the same
in all stripes of an image, or in all images, stays. operators/computed_grid_sample.py has the program's meaning, and
the plan that orders the values.
"""

import numpy as np

from ..compiler.jit import APART, FUSE, jitable
from .elements import integers_in, to_bfloat16, to_float16

# The operations of a program, by their numbers. Those that follow are only the plan's.
OPERATIONS = (
    "Add", "Sub", "Mul", "Div", "Neg", "Abs", "Sqrt", "Floor", "Ceil", "Round", "Min", "Max", "Less", "LessOrEqual",
    "Equal", "Clip", "Where", "MulAdd", "CastFloat16", "CastBFloat16",
)  # fmt: skip
ADD, SUB, MUL, DIV, NEG, ABS, SQRT, FLOOR, CEIL, ROUND, MIN, MAX, LESS, LESS_OR_EQUAL, EQUAL, CLIP = range(16)
WHERE, MUL_ADD, CAST_FLOAT16, CAST_BFLOAT16, COPY, LOAD = range(16, 22)
# a + b + c, a + b + c + d, a * b / c, a * b / c - d, where a varies along rows, the others don't; (a + b + c) / d,
# where d does, too.
ADD_TWO, ADD_THREE, MUL_DIV, MUL_DIV_SUB, ADD_TWO_DIV = range(22, 27)
VECTOR, ROWS = 1, 2  # bits of a value's kind: whether it varies along rows, and whether it does from row to row
STEP = 5  # words about a value: the operation and its operands
SOURCE = 6  # words about a source: the input's position, the first element and its strides along n, (d,) h and w
SPARE = 16  # numbers after a value's, at most, which a loop over whole vectors may read and write
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
    first = g.order_count
    if done[0] != column:
        first = 0
    elif done[1] != n:
        first = g.of_image
    elif done[2] != stripe:
        first = g.of_stripe
    done[0], done[1], done[2] = column, n, stripe
    for k in range(first, g.order_count):
        # What stays is computed for as many rows as any stripe has, but not of images that aren't there.
        height = g.rows if k < g.of_image or (k < g.of_stripe and g.images == 1) else rows
        if g.steps[STEP * g.order[k]] == LOAD:
            load_values(sources, g.order[k], n, row, height, column, columns, g, values)
        else:
            run_step(g.order[k], height, columns, g, values)
    return begin


@jitable
def load_values(sources, v, n, row, rows, column, columns, g, values):
    """Load the numbers of source v: for rows of image n from number `row` on, and then for those of the next images."""
    kind, result = g.kind[v], values[g.place[v] :]
    source, stride = sources[g.sources[v * SOURCE]], g.sources[v * SOURCE + 2 :]
    at, along_w = g.sources[v * SOURCE + 1] + n * stride[0] + column * stride[g.axes], stride[g.axes]
    if not kind & VECTOR:
        columns = 1
    if not kind & ROWS:
        copy_row(source[at:], along_w, result[:columns])
        return
    height, depth, along_d, along_h = g.output[g.axes - 2], 1, 0, stride[g.axes - 1]
    if g.axes == 3:
        depth, along_d = g.output[0], stride[1]
    h, d = row % height, row // height % depth
    at += row // (height * depth) * stride[0] + d * along_d + h * along_h
    for r in range(rows):
        if columns == 1:
            result[r] = source[at]
        else:
            copy_row(source[at:], along_w, result[r * columns :][:columns])
        at, h = at + along_h, h + 1
        if h == height:
            at, h, d = at + along_d - height * along_h, 0, d + 1
            if d == depth:
                at, d = at + stride[0] - depth * along_d, 0


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
def run_step(v, rows, columns, g, values):
    """Compute value v, by an operation.

    A result that doesn't vary along rows is one row, of a number for each row, or of one.
    """
    step, kind = g.steps[STEP * v :], g.kind[v]
    operation = step[0]
    if not kind & VECTOR:
        columns = rows if kind & ROWS else 1
    if kind != VECTOR | ROWS:
        rows = 1
    a_pitch, i = distances(g.kind[step[1]], kind, columns)
    b_pitch, j = distances(g.kind[step[2]], kind, columns)
    c_pitch, l = distances(g.kind[step[3]], kind, columns)
    a, b, c = values[g.place[step[1]] :], values[g.place[step[2]] :], values[g.place[step[3]] :]
    result = values[g.place[v] :]
    if operation <= DIV:
        if a_pitch == b_pitch == columns and i == j:
            rows, columns = 1, rows * columns
        count = whole(columns) if kind & VECTOR else columns
        combine(operation, (a, a_pitch, i), (b, b_pitch, j), rows, columns, count, result)
    elif operation >= ADD_TWO:
        d, (d_pitch, _) = values[g.place[step[4]] :], distances(g.kind[step[4]], kind, columns)
        operands = (a, a_pitch), (b, b_pitch), (c, c_pitch), (d, d_pitch)
        calculate_joined(operation, operands, rows, columns, whole(columns), result)
    else:
        for r in range(rows):
            row = result[r * columns :][:columns]
            calculate(operation, a[r * a_pitch :], b[r * b_pitch :], c[r * c_pitch :], (i, j, l), row)


@jitable
def distances(kind, of_result, columns):
    """How far it is from an operand's numbers for one row to those for the next row, and from one to the next in a row.

    0 for a number that is the same in the whole row, and for rows that are alike.
    """
    if not of_result & VECTOR:
        return 0, 1 if kind & ROWS else 0
    if not kind & ROWS:
        return 0, kind & VECTOR
    return columns if kind & VECTOR else 1, kind & VECTOR


@jitable
def whole(columns):
    """The numbers of as many whole vectors as a row begins: loops over these are twice as fast.

    What is written past the row's end is the next row's, and follows, or nobody's.
    """
    return (columns + SPARE - 1) // SPARE * SPARE


@jitable(**APART)
def combine(operation, one, other, rows, columns, count, result):
    """Add, subtract, multiply or divide rows, or rows and a number for each, if its step i or j is 0.

    one, other: (numbers, how far from one row's to the next row's, step)
    count: of numbers that are computed of a row: `columns`, or more
    """
    (a, a_pitch, i), (b, b_pitch, j) = one, other
    for r in range(rows):
        x, y, z = a[r * a_pitch :], b[r * b_pitch :], result[r * columns :]
        u, v = x[0], y[0]
        if i == j:  # 0 for single numbers
            for k in range(count if operation == ADD else 0):
                z[k] = x[k] + y[k]
            for k in range(count if operation == SUB else 0):
                z[k] = x[k] - y[k]
            for k in range(count if operation == MUL else 0):
                z[k] = x[k] * y[k]
            for k in range(count if operation == DIV else 0):
                z[k] = x[k] / y[k]
        elif j == 0:
            for k in range(count if operation == ADD else 0):
                z[k] = x[k] + v
            for k in range(count if operation == SUB else 0):
                z[k] = x[k] - v
            for k in range(count if operation == MUL else 0):
                z[k] = x[k] * v
            for k in range(count if operation == DIV else 0):
                z[k] = x[k] / v
        else:
            for k in range(count if operation == ADD else 0):
                z[k] = u + y[k]
            for k in range(count if operation == SUB else 0):
                z[k] = u - y[k]
            for k in range(count if operation == MUL else 0):
                z[k] = u * y[k]
            for k in range(count if operation == DIV else 0):
                z[k] = u / y[k]


@jitable(**APART)
def calculate_joined(operation, operands, rows, columns, count, result):
    """Compute one of the plan's operations that are several in one.

    operands: (numbers, how far from one row's to the next row's); rows, columns, count: see `combine`
    """
    (a, a_pitch), (b, b_pitch), (c, c_pitch), (d, d_pitch) = operands
    for r in range(rows):
        # Without signs: a negative index would count from the end, and rows may be as short as a vector.
        x, y, z = np.uintp(r * a_pitch), np.uintp(r * d_pitch), np.uintp(r * columns)
        u, v, w = b[np.uintp(r * b_pitch)], c[np.uintp(r * c_pitch)], d[y]
        for k in range(np.uintp(count if operation == ADD_TWO else 0)):
            result[z + k] = a[x + k] + u + v
        for k in range(np.uintp(count if operation == ADD_THREE else 0)):
            result[z + k] = a[x + k] + u + v + w
        for k in range(np.uintp(count if operation == MUL_DIV else 0)):
            result[z + k] = a[x + k] * u / v
        for k in range(np.uintp(count if operation == MUL_DIV_SUB else 0)):
            result[z + k] = a[x + k] * u / v - w
        for k in range(np.uintp(count if operation == ADD_TWO_DIV else 0)):
            result[z + k] = (a[x + k] + u + v) / d[y + k]


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
