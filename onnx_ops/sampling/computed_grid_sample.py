"""ComputedGridSample: GridSample with a grid that a program computes on the fly.

    y = GridSample(X, grid)
    grid[n, h, w, i]    = v[coordinates[i]][n, h, w]
    grid[n, d, h, w, i] = v[coordinates[i]][n, d, h, w]

without storing the grid: the program runs for a stripe of the output at a time, mostly some
thousand points at most. Its values v[0], v[1], ... have a number for each point of the output. The
first ones are the `sources`, elements of the inputs after X. A source is (input, rank, *indices):
the number of an input, 0 for the first one after X, the number of its axes, and for each axis an
index:

    0, 1, ...        only this element of the axis
    -4, -3, -2, -1   the axis runs along n, d, h, w; it is broadcast if it has one element

Along d, h and w the output has the size of the sources that run along it, 1 if none does. The other
values are the results of the `steps`. A step is four numbers, (operation, *operands): the number of
an operation, and those of the values that it takes, 0 for unused operands.

     0 Add   1 Sub   2 Mul   3 Div   4 Neg   5 Abs   6 Sqrt   7 Floor   8 Ceil   9 Round
    10 Min  11 Max
    12 Less  13 LessOrEqual  14 Equal   give 1 for true and 0 for false
    15 Clip     a, but at least b and then at most c
    16 Where    b where a isn't 0, else c
    17 MulAdd   a * b + c, rounded once on CPUs that can do so
    18 CastFloat16, 19 CastBFloat16   round a, as a float32, to 16 bits

For example, x = A[w] + B[n, 0, h, w] and y = C[h], where A, B and C are the inputs after X, are

    sources = [0, 1, -1,   1, 4, -4, 0, -2, -1,   2, 1, -2]   v[0] = A[w], v[1] = B[n, 0, h, w],
                                                              v[2] = C[h]
    steps = [0, 0, 1, 0]                                      v[3] = v[0] + v[1]
    coordinates = [3, 2]                                      x = v[3], y = v[2]

All other operations are those of ai.onnx, each rounded to the type of the inputs. With `pixels`,
coordinates are numbers of pixels instead of lying in [-1, 1]. They are rounded as GridSample does
it, (v + 1) - 1, and `align_corners` only selects where reflection mirrors: at the centres of the
border pixels, or at the image's edges. A coordinate that is NaN counts as -1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..declaration import dtypes
from ..declaration.attributes import Attribute
from ..declaration.errors import require
from ..declaration.jit import jitable
from ..declaration.limits import ELEMENTS, MAX_INPUTS, UNKNOWN
from ..declaration.operator import Input, Plan
from ..kernels.shares import pieces
from ..kernels.vectors import MOST_LANES, whole
from . import computed_grid_sample_kernels as kernels
from . import grid_sample
from .computed_geometry import (
    FREED,
    GRID,
    NEVER,
    SOURCES,
    STEPS,
    ComputedGridSampleGeometry,
)
from .computed_points import (
    CAST_BFLOAT16,
    CAST_FLOAT16,
    CLIP,
    COPY,
    FULL,
    LINE,
    LOAD,
    MIN,
    NEG,
    OPERATIONS,
    ROWS,
    VECTOR,
)
from .grid_points import BLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from ..kernels.types import AttributeTuple, OutputSizes, Sizes, Vector
    from .computed_geometry import StoredSource, StoredValue

INPUTS = MAX_INPUTS - 1  # the most inputs after X
RANK = 8  # the most axes of such an input
N, D, H, W = range(-4, 0)  # indices of a source that run along an axis of the output
# Points for which the program is run at a time: at most so many and a block if rows are short.
MOST_POINTS = 4096
# Stripes of all images together to aim for, so that threads get equal shares. It is no minimum:
# stripes have a block or more, and up to a block more than their share.
STRIPES = 8
LARGEST = 8  # bytes of the largest number, a float64


class Source(NamedTuple):
    """A source of a program, as the attribute `sources` states it.

    rewriting/programs.py has names for some numbers.
    """

    input: Any  # number of the input, 0 for the first one after X
    indices: Sequence[Any]  # for each axis of the input, an element's index, or N, D, H or W


class Step(NamedTuple):
    """A step of a program, as the attribute `steps` states it.

    rewriting/programs.py has names of operations.
    """

    operation: Any  # number of one of the OPERATIONS
    operands: Sizes  # numbers of three values; unused ones are 0


def program(
    sources: Mapping[Any, Sequence[Any]],
    steps: Mapping[Any, Sequence[Any]],
    coordinates: Iterable[Any],
) -> dict[str, list[int]]:
    """Return the attributes of ComputedGridSample for a program with named values.

    Parameters
    ----------
    sources : mapping
        ``{name: (input, *index)}``: the number of an input after X, from 0 on,
        and for each of its axes a position, or "n", "d", "h" or "w" for an axis of
        the output. A name is any key of a dict.
    steps : mapping
        ``{name: (operation, *operands)}``: the name of an operation, such as
        "Add", and the names of values before it.
    coordinates : iterable
        Names of the values x, y (and z).

    Returns
    -------
    dict
        {"sources": list of int, "steps": list of int, "coordinates": list of
        int}. An empty list is left out.

    Raises
    ------
    ValueError
        There is no such operation.
    KeyError
        A name is neither a source's nor a step's. The session refuses a program that
        breaks another rule, by OpError.
    """
    numbers = {name: k for k, name in enumerate((*sources, *steps))}
    axes = {"n": N, "d": D, "h": H, "w": W}
    attributes: dict[str, list[int]] = {
        "sources": [],
        "steps": [],
        "coordinates": [numbers[name] for name in coordinates],
    }
    for number, *indices in sources.values():
        attributes["sources"] += number, len(indices), *(axes.get(i, i) for i in indices)
    for operation, *names in steps.values():
        operands = [numbers[name] for name in names]
        unused = [0] * (3 - len(operands))
        attributes["steps"] += OPERATIONS.index(operation), *operands, *unused
    return {name: values for name, values in attributes.items() if values}


@jitable
def source_at(sources: Sizes, offset: int) -> tuple[Source, int]:
    """Read a source from the attribute `sources`; return it and the offset after it.

    It has no indices if the attribute ends within the source.
    """
    begin = offset + 2
    rank = sources[offset + 1] if begin <= len(sources) else 0
    end = begin + rank
    if not begin < end <= len(sources):
        end = begin
    return Source(sources[offset], sources[begin:end]), end


@jitable
def step_at(steps: Sizes, k: int) -> Step:
    """Read step k of the attribute `steps`."""
    return Step(steps[4 * k], steps[4 * k + 1 : 4 * k + 4])


@jitable
def operand_count(operation: int) -> int:
    """Return the number of operands of an operation.

    In OPERATIONS, those with as many operands are neighbours: 2 from Add on, 1 from Neg on, 2 from
    Min on, 3 from Clip on, and 1 from CastFloat16 on, also for COPY.
    """
    if operation == LOAD:
        return 0
    if operation >= CAST_FLOAT16 or NEG <= operation < MIN:
        return 1
    if operation >= CLIP:
        return 3
    return 2


@jitable
def check_program(attributes: AttributeTuple) -> int:
    """Refuse an invalid program, without the sizes. Returns its number of sources."""
    sources = attributes.sources
    steps = attributes.steps
    coordinates = attributes.coordinates
    count = 0
    offset = 0
    while offset < len(sources):
        source, end = source_at(sources, offset)
        rank = len(source.indices)
        require(0 <= source.input < INPUTS and 1 <= rank <= RANK, "{sources}", sources,
                "must be, for each source, the position of an input, its rank, and an index of "
                "that length; wrong from "
                "position", offset)  # fmt: skip
        for a, index in enumerate(source.indices):
            require(index >= N and (index != D or len(coordinates) == 3), "{sources}", sources,
                    "must have positions, or -4, -2, -1 (and -3 in volumes) for axes; wrong at "
                    "position",
                    end - rank + a)  # fmt: skip
        offset = end
        count += 1
    require(count <= SOURCES, "number of {sources}", count, "must be at most", SOURCES)
    check_steps(steps, count)
    values = count + len(steps) // 4
    for v in coordinates:
        require(v < values, "{coordinates}", coordinates, "must be values of the program; their "
                                                          "number is",
                values)  # fmt: skip
    return count


@jitable
def check_steps(steps: Sizes, count: int) -> None:
    """Refuse invalid steps of a program with `count` sources."""
    require(len(steps) % 4 == 0, "length of {steps}", len(steps), "must be a multiple of", 4)
    for k in range(len(steps) // 4):
        step = step_at(steps, k)
        rule = "operations must lie in [0, 19]; wrong at position"
        require(0 <= step.operation <= CAST_BFLOAT16, "{steps}", steps, rule, 4 * k)
        rule = "must take values that come before; wrong at position"
        for a, v in enumerate(step.operands):
            fits = 0 <= v < count + k if a < operand_count(step.operation) else v == 0
            require(fits, "{steps}", steps, rule, 4 * k + 1 + a)


@jitable
def shape(
    attributes: AttributeTuple, inputs: tuple[Sizes, ...], outputs: tuple[OutputSizes, ...]
) -> int:
    """State the output's shape: images and channels of X, and the sizes along its sources."""
    (y,) = outputs
    x = inputs[0]
    sources = attributes.sources
    axes = len(attributes.coordinates)
    y[0] = y[1] = UNKNOWN
    if axes == 0:  # the attributes are unknown
        return len(x) or UNKNOWN
    check_program(attributes)
    if len(x) == axes + 2:
        y[0] = x[0]
        y[1] = x[1]
    for i in range(axes):
        y[2 + i] = 1
    offset = 0
    while offset < len(sources):
        source, offset = source_at(sources, offset)
        sizes = inputs[1 + source.input]
        for a, index in enumerate(source.indices):
            if -axes <= index < 0:
                size = sizes[a] if len(sizes) == len(source.indices) else UNKNOWN
                axis = axes + 2 + index
                y[axis] = broadcast_size(y[axis], size)
    return axes + 2


@jitable
def broadcast_size(a: int, b: int) -> int:
    """Broadcast two dimensions.

    Negative ones are unknown: -1, or below that a number that stands for a dimension's name.
    """
    if a == b or b == 1:
        return a
    if a == 1 or b >= 0:
        return b
    return a if a >= 0 else UNKNOWN


@jitable
def plan(
    attributes: AttributeTuple,
    inputs: tuple[Sizes, ...],
    outputs: tuple[OutputSizes, ...],
    g: ComputedGridSampleGeometry,
) -> None:
    x = inputs[0]
    axes = len(attributes.coordinates)
    require(
        len(x) == axes + 2,
        "shape of {X}",
        x,
        "must have two axes more than there are coordinates,",
        axes,
    )
    count = check_program(attributes)
    turned = grid_sample.plan_samples(attributes, grid_sample.mode_of(attributes), x, outputs[0], g)
    g.pixels = attributes.pixels
    cut_stripes(g)
    find_sources(attributes, inputs, turned, g)
    order_values(attributes, count, g)
    g.of_points = LINE + pieces(LARGEST * g.room, LINE) * LINE
    g.workspace += g.of_points


@jitable
def cut_stripes(g: ComputedGridSampleGeometry) -> None:
    """Cut the output of an image into stripes of g.stripe points: g.rows rows, or a part of one."""
    # A share of the points for each of STRIPES, or MOST_POINTS if that is less; then the next
    # multiple of BLOCK above it.
    wanted = min(MOST_POINTS, g.batch * g.points // STRIPES) // BLOCK * BLOCK + BLOCK
    # GridSample reads points by spans, and all points of a span are of one stripe.
    wanted = min(max(wanted, g.span), g.points)
    g.row_length = max(g.output[g.axes - 1], 1)
    g.rows = max(1, wanted // g.row_length)
    g.stripe = g.rows * g.row_length
    longest = max(MOST_POINTS, g.span)
    if g.row_length > longest:  # parts of a row, of similar size and of whole blocks
        part = pieces(g.row_length, pieces(g.row_length, longest))
        g.stripe = pieces(part, BLOCK) * BLOCK
    grid_sample.cut_tiles(g)  # again: `plan_samples` has cut stripes for a given grid


@jitable
def find_sources(
    attributes: AttributeTuple,
    inputs: tuple[Sizes, ...],
    turned: int,
    g: ComputedGridSampleGeometry,
) -> None:
    """Check the sources' shapes, and fill in g.sources."""
    sources = attributes.sources
    s = 0
    offset = 0
    while offset < len(sources):
        stated, offset = source_at(sources, offset)
        shape = inputs[1 + stated.input]
        require(len(shape) == len(stated.indices), "rank of an input", max(len(shape), 0),
                "must be what {sources} says of the input at position", stated.input)  # fmt: skip
        describe_source(g.sources[s], stated, shape, turned, g)
        s += 1


@jitable
def describe_source(
    source: StoredSource,
    stated: Source,
    shape: Sizes,
    turned: int,
    g: ComputedGridSampleGeometry,
) -> None:
    """Check the shape of a source, and store its first element and pitches."""
    source.input = stated.input
    source.first = 0
    source.pitches[:] = 0
    pitch = 1
    for a in range(len(shape) - 1, -1, -1):
        index = stated.indices[a]
        size = shape[a]
        if index >= 0:
            rule = "must have the element that {sources} names,"
            require(index < size, "shape of a source", shape, rule, index)
            source.first += index * pitch
        else:
            axis = 0
            points = g.batch
            if index != N:
                # `plan_samples` has moved `turned` axes of size 1 from the end to the front.
                axis = 1 + (index + g.axes + turned) % g.axes
                points = g.output[axis - 1]
            require(size == 1 or size == points, "shape of a source", shape,
                    "must be 1 or that of the others along each axis that they share; one of "
                    "them has",
                    points)  # fmt: skip
            if size != 1:
                source.pitches[axis] += pitch  # a sum: a diagonal has an axis twice
        # Beyond the limit of a tensor's elements, which only empty tensors exceed.
        pitch = pitch * size if size <= ELEMENTS // max(pitch, 1) else ELEMENTS


@jitable
def order_values(
    attributes: AttributeTuple, source_count: int, g: ComputedGridSampleGeometry
) -> None:
    """Determine the order of the needed values, and the place of each.

    The first `source_count` values are sources. In the order, values that are the same in all
    images come first, then those that are the same in all stripes of an image, then the others:
    levels 0, 1 and 2.
    """
    coordinates = attributes.coordinates
    value_count = source_count + len(attributes.steps) // 4
    last_level = 0  # the highest level of a value
    for v in range(value_count):
        describe_value(v, attributes.steps, source_count, g)
        last_level = max(last_level, g.values[v].level)
    find_last_uses(coordinates, value_count, g)
    g.room = g.order_count = g.free = 0
    place_level(0, value_count, last_level, g)
    g.of_image = g.order_count
    place_level(1, value_count, last_level, g)
    g.of_stripe = g.order_count
    place_level(2, value_count, last_level, g)
    place_coordinates(coordinates, value_count, last_level, g)


@jitable
def describe_value(v: int, steps: Sizes, source_count: int, g: ComputedGridSampleGeometry) -> None:
    """Store the operation of value v, with its operands, its kind and its level.

    The first `source_count` values are sources.
    """
    value = g.values[v]
    value.last = NEVER
    value.operation = LOAD
    if v < source_count:
        classify(value, g.sources[v].pitches, g)
        return
    step = step_at(steps, v - source_count)
    value.operation = step.operation
    value.kind = value.level = 0
    for a in range(operand_count(step.operation)):  # unused operands stay 0
        value.operands[a] = step.operands[a]
        operand = g.values[step.operands[a]]
        value.kind |= operand.kind
        value.level = max(value.level, operand.level)


@jitable
def classify(value: StoredValue, pitches: Vector, g: ComputedGridSampleGeometry) -> None:
    """Store the kind and the level of a source."""
    along_rows = pitches[g.axes] > 0
    across_rows = False
    for axis in range(1, g.axes):
        across_rows |= pitches[axis] > 0
    value.kind = (VECTOR if along_rows else 0) | (ROWS if across_rows else 0)
    # Variation along rows has no level: when the columns change, all values are computed again.
    value.level = 1 if pitches[0] > 0 else 0
    if across_rows and g.stripes > 1:
        value.level = 2


@jitable
def find_last_uses(coordinates: Sizes, value_count: int, g: ComputedGridSampleGeometry) -> None:
    """Store for each needed value the one with the highest number that reads it.

    The loop runs backwards, and values come after their operands. So when a value's turn comes, all
    that read it are known; if none does, it isn't needed, and stays NEVER.
    """
    for v in coordinates:
        g.values[v].last = GRID
    for v in range(value_count - 1, -1, -1):
        value = g.values[v]
        if value.last != NEVER:
            for a in range(operand_count(value.operation)):
                operand = g.values[value.operands[a]]
                operand.last = max(operand.last, v)


@jitable
def place_level(
    level: int, value_count: int, last_level: int, g: ComputedGridSampleGeometry
) -> None:
    """Place the needed values of a level."""
    for v in range(value_count):
        value = g.values[v]
        if value.last != NEVER and value.level == level:
            place_value(v, last_level, g)


@jitable
def place_coordinates(
    coordinates: Sizes, value_count: int, last_level: int, g: ComputedGridSampleGeometry
) -> None:
    """Store where GridSample reads the coordinates.

    It reads a number for each point: a value that has fewer is copied.
    """
    for i in range(g.axes):
        v = coordinates[i]
        if g.values[v].kind != FULL:
            copy = g.values[value_count + i]
            copy.kind = FULL
            copy.level = 2
            copy.operation = COPY
            copy.operands[0] = v
            v = value_count + i
            place_value(v, last_level, g)
        g.coordinates[i] = g.values[v].place
    for i in range(g.axes, 3):
        g.coordinates[i] = g.coordinates[0]


@jitable
def place_value(v: int, last_level: int, g: ComputedGridSampleGeometry) -> None:
    """Have value v computed next, and find a place for its numbers.

    A value may take the place of one that isn't read any more if both have a number for each point,
    so that their places have the same size, and are of the last level, the highest of any value.
    Values of lower levels are kept, as later stripes or images read them again.

    Whatever reads a value of the last level is of the last level too, and within a level values are
    placed by their numbers: so `last`, the reader with the highest number, is placed last.

    The result takes a place before its operands free theirs: it never overwrites an operand.
    """
    value = g.values[v]
    g.order[g.order_count] = v
    g.order_count += 1
    # >=: copies of coordinates are of level 2, even if the last level of the program is lower.
    if value.kind == FULL and value.level >= last_level and g.free > 0:
        g.free -= 1
        value.place = g.places[g.free]
    else:
        count = g.rows if value.kind & ROWS else 1
        if value.kind & VECTOR:  # begins at a whole vector
            g.room = whole(g.room)
            # A loop over whole vectors may read and write so many more.
            count = count * min(g.stripe, g.row_length) + MOST_LANES
        value.place = g.room
        g.room += count
    for a in range(operand_count(value.operation)):
        operand = g.values[value.operands[a]]
        if operand.last == v and operand.kind == FULL and operand.level == last_level:
            g.places[g.free] = operand.place
            g.free += 1
            operand.last = FREED  # not again if the operation takes it twice


def reference(
    image: np.ndarray,
    *inputs: np.ndarray,
    sources: Sizes,
    steps: Sizes | None,
    coordinates: Sizes,
    **sampling: Any,
) -> np.ndarray:
    """Evaluate the formula: the grid step by step in its own dtype."""
    axes = len(coordinates)
    values: list[np.ndarray] = []
    steps = steps or ()
    offset = 0
    while offset < len(sources):
        source, offset = source_at(sources, offset)
        values.append(source_of(inputs[source.input], source.indices, axes))
    with np.errstate(all="ignore"):
        for k in range(len(steps) // 4):
            step = step_at(steps, k)
            operands = [values[v] for v in step.operands[: operand_count(step.operation)]]
            values.append(FORMULAS[OPERATIONS[step.operation]](*operands))
    shape = np.broadcast_shapes((len(image), *[1] * axes), *(v.shape for v in values))
    grid = np.stack([np.broadcast_to(values[k], shape) for k in coordinates], -1)
    return grid_sample.reference(image, grid, **sampling)


def source_of(array: np.ndarray, indices: Sizes, axes: int) -> np.ndarray:
    """Return the elements of an input that are a source, as an array [n, (d,) h, w].

    Several axes of the input may run along the same one: the source is a diagonal.
    """
    names = "ndhw" if axes == 3 else "nhw"
    picked = array[tuple(i if i >= 0 else slice(None) for i in indices)]
    letters = ["ndhw"[i] for i in indices if i < 0]
    sizes = dict.fromkeys(names, 1)
    for letter, size in zip(letters, picked.shape, strict=True):
        if size != 1:
            sizes[letter] = size
    picked = np.broadcast_to(picked, [sizes[letter] for letter in letters])
    kept = [letter for letter in names if letter in letters]
    diagonal = np.einsum(f"{''.join(letters)}->{''.join(kept)}", picked)
    return diagonal.reshape([*sizes.values()])


def cast(a: np.ndarray, name: str) -> np.ndarray:
    """Return the number after rounding to another type."""
    return a.astype(np.float32).astype(dtypes.TABLE[name].numpy).astype(a.dtype)


FORMULAS: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Neg": np.negative,
    "Abs": np.abs,
    "Sqrt": np.sqrt,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Round": np.rint,
    "Min": lambda a, b: np.where((a < b) | np.isnan(a), a, b),
    "Max": lambda a, b: np.where((a > b) | np.isnan(a), a, b),
    "Less": lambda a, b: (a < b).astype(a.dtype),
    "LessOrEqual": lambda a, b: (a <= b).astype(a.dtype),
    "Equal": lambda a, b: (a == b).astype(a.dtype),
    "Clip": lambda a, b, c: np.where(np.where(a < b, b, a) > c, c, np.where(a < b, b, a)),
    "Where": lambda a, b, c: np.where(a != 0, b, c),
    "MulAdd": lambda a, b, c: (np.longdouble(a) * b + c).astype(a.dtype),
    "CastFloat16": lambda a: cast(a, "float16"),
    "CastBFloat16": lambda a: cast(a, "bfloat16"),
}

COMPUTED_GRID_SAMPLE = grid_sample.Operator(
    domain="onnx_ops",
    name="ComputedGridSample",
    ranks=(4, 5),
    inputs=(
        Input("X", "T1"),
        *(Input(f"source_{k}", "T2", presence="optional") for k in range(INPUTS)),
    ),
    outputs=(grid_sample.Output("output", "T1"),),
    types={"T1": dtypes.FLOATS, "T2": dtypes.WIDE_FLOATS},
    attributes=(
        *grid_sample.MICROSOFT.attributes,
        Attribute("pixels", "int", 0, bounds=(0, 1)),
        Attribute(
            "sources",
            "ints",
            required=True,
            bounds=(-4, 2**31),
            length_bounds=(3, SOURCES * (2 + RANK)),
        ),
        Attribute("steps", "ints", bounds=(0, 2**31), length_bounds=(4, 4 * STEPS)),
        Attribute(
            "coordinates",
            "ints",
            required=True,
            bounds=(0, SOURCES + STEPS - 1),
            length_bounds=(2, 3),
        ),
    ),
    plan=Plan(shape, plan, ComputedGridSampleGeometry),
    kernels=tuple(
        grid_sample.Kernel(function, {"mode": names}, tupled=1)
        for function, names in zip(
            (kernels.nearest, kernels.linear, kernels.cubic), grid_sample.NAMES, strict=True
        )
    ),
    reference=reference,
)
OPERATORS = (COMPUTED_GRID_SAMPLE,)
