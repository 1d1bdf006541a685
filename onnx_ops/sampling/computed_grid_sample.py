"""ComputedGridSample: GridSample with a grid that a program computes on the fly.

    y = GridSample(X, grid)
    grid[n, h, w, i]    = v[coordinates[i]][n, h, w]
    grid[n, d, h, w, i] = v[coordinates[i]][n, d, h, w]

without storing the grid: the program runs for some hundred points at a time. It has values v[k],
numbers for each point of the output. The first values are the `sources`: elements of the further
inputs. A source states the position of an input after X, the input's rank, and for each of its axes
a position, or a negative number:

    -4, -3, -2, -1   the input's axis runs along n, d, h, w; it is broadcast if it has one element

A size along an axis of the output is that of the sources that run along it, 1 if none does. The
other values are the results of the `steps`, four numbers each: an operation's number and the
positions of its operands; unused positions are 0.

     0 Add   1 Sub   2 Mul   3 Div   4 Neg   5 Abs   6 Sqrt   7 Floor   8 Ceil   9 Round
    10 Min  11 Max
    12 Less  13 LessOrEqual  14 Equal   give 1 for true and 0 for false
    15 Clip     a, but at least b and then at most c
    16 Where    b where a isn't 0, else c
    17 MulAdd   a * b + c, rounded once on CPUs that can do so
    18 CastFloat16, 19 CastBFloat16   round a, as a float32, to 16 bits

All other operations are those of ai.onnx, each rounded to the type of the inputs. With `pixels`,
coordinates are numbers of pixels, and GridSample adds and subtracts 1; `align_corners` then only
selects the axis of reflection. A coordinate that is NaN counts as -1.
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
from ..kernels.vectors import MOST_LANES, whole
from . import computed_grid_sample_kernels as kernels
from . import grid_sample
from .computed_geometry import SOURCES, STEPS, VALUES, ComputedGridSampleGeometry
from .computed_points import (
    ADD,
    CAST_BFLOAT16,
    CAST_FLOAT16,
    CLIP,
    COPY,
    FULL,
    LINE,
    LOAD,
    MIN,
    MUL,
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

INPUTS = MAX_INPUTS - 1  # of sources
RANK = 8  # of an input, at most
N, D, H, W = range(-4, 0)  # in the index of a source
STRIPE = 4096  # points for which the program is run at a time, at most, and a block more
STRIPES = 8  # at least, where they are not smaller than a block: threads get equal shares
LARGEST = 8  # bytes of a value's number


class Source(NamedTuple):
    """A source of a program, as the attribute `sources` states it.

    rewriting/programs.py has names for some numbers.
    """

    input: Any  # position of the input after X
    positions: Sequence[Any]  # for each axis of the input, a position or N, D, H or W


class Step(NamedTuple):
    """A step of a program, as the attribute `steps` states it.

    rewriting/programs.py has names of operations.
    """

    operation: Any  # number of one of the OPERATIONS
    operands: Sizes  # positions of three values; unused ones are 0


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
        There is no such operation. The session refuses a program that breaks
        another rule, by OpError.
    """
    position = {name: k for k, name in enumerate((*sources, *steps))}
    letters = {"n": N, "d": D, "h": H, "w": W}
    attributes = {
        "sources": [n for k, *index in sources.values()
                    for n in (k, len(index), *(letters.get(i, i) for i in index))],
        "steps": [n for operation, *operands in steps.values()
                  for n in (OPERATIONS.index(operation),
                      *([*map(position.get, operands), 0, 0][:3]))],
        "coordinates": [*map(position.get, coordinates)],
    }  # fmt: skip
    return {name: numbers for name, numbers in attributes.items() if numbers}


@jitable
def source_at(sources: Sizes, k: int) -> tuple[Source, int]:
    """Read the source at position k of the attribute `sources`; return it and the position after
    it.

    The index is empty if the attribute ends within the source.
    """
    rank = sources[k + 1] if k + 1 < len(sources) else 0
    end = k + 2 + rank
    if not k + 2 < end <= len(sources):
        end = k + 2
    return Source(sources[k], sources[k + 2 : end]), end


@jitable
def step_at(steps: Sizes, k: int) -> Step:
    """Read step k of the attribute `steps`."""
    return Step(steps[4 * k], steps[4 * k + 1 : 4 * k + 4])


@jitable
def operand_count(operation: int) -> int:
    """Return the number of operands of an operation."""
    if operation == LOAD:
        return 0
    if operation >= CLIP:
        return 1 if operation >= CAST_FLOAT16 else 3
    return 1 if NEG <= operation < MIN else 2


@jitable
def check_program(attributes: AttributeTuple) -> int:
    """Refuse an invalid program, without the sizes. Returns its number of sources."""
    sources = attributes.sources
    steps = attributes.steps
    coordinates = attributes.coordinates
    count = 0
    k = 0
    axes = len(coordinates)
    while k < len(sources):
        source, end = source_at(sources, k)
        rank = len(source.positions)
        require(0 <= source.input < INPUTS and 1 <= rank <= RANK, "{sources}", sources,
                "must be, for each source, the position of an input, its rank, and an index of "
                "that length; wrong from "
                "position", k)  # fmt: skip
        for a, position in enumerate(source.positions):
            require(position >= N and (position != D or axes == 3), "{sources}", sources,
                    "must have positions, or -4, -2, -1 (and -3 in volumes) for axes; wrong at "
                    "position",
                    end - rank + a)  # fmt: skip
        k = end
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
    (y,) = outputs
    x = inputs[0]
    sources = attributes.sources
    axes = len(attributes.coordinates)
    k = 0
    y[0] = UNKNOWN
    y[1] = UNKNOWN
    if axes == 0:  # the attributes are unknown
        return len(x) if len(x) > 0 else UNKNOWN
    check_program(attributes)
    if len(x) == axes + 2:
        y[0] = x[0]
        y[1] = x[1]
    for i in range(axes):
        y[2 + i] = 1
    while k < len(sources):
        source, k = source_at(sources, k)
        sizes = inputs[1 + source.input]
        for a, position in enumerate(source.positions):
            axis = position + axes  # of the output's image
            if position < 0 <= axis:
                size = sizes[a] if len(sizes) == len(source.positions) else UNKNOWN
                y[2 + axis] = broadcast_size(y[2 + axis], size)
    return axes + 2


@jitable
def broadcast_size(a: int, b: int) -> int:
    """Broadcast two dimensions, which may be unknown."""
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
    (y,) = outputs
    axes = len(attributes.coordinates)
    require(
        len(x) == axes + 2,
        "shape of {X}",
        x,
        "must have two axes more than there are coordinates,",
        axes,
    )
    count = check_program(attributes)
    turned = grid_sample.plan_samples(attributes, grid_sample.mode_of(attributes), x, y, g)
    g.pixels = attributes.pixels
    cut_stripes(g)
    find_sources(attributes, inputs, turned, g)
    order_values(attributes, count, g)
    g.of_points = LINE + (LARGEST * g.room + LINE - 1) // LINE * LINE
    g.workspace += g.of_points


@jitable
def cut_stripes(g: ComputedGridSampleGeometry) -> None:
    """Cut the output into stripes of whole rows, or of as large parts of one. g.rows: the most rows
    of a stripe.

    If points may be scattered, a stripe is as large as GridSample's span, because only points of
    one stripe are read together.
    """
    most = max(STRIPE, g.span)
    g.row = max(g.output[g.axes - 1], 1)
    points = min(STRIPE, g.batch * g.points // STRIPES) // BLOCK * BLOCK + BLOCK
    g.rows = max(1, min(max(points, g.span), g.points) // g.row)
    g.stripe = g.rows * g.row
    if g.row > most:
        parts = (g.row + most - 1) // most
        g.stripe = ((g.row + parts - 1) // parts + BLOCK - 1) // BLOCK * BLOCK
    grid_sample.cut_tiles(g)


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
    k = 0
    while k < len(sources):
        stated, k = source_at(sources, k)
        shape = inputs[1 + stated.input]
        require(len(shape) == len(stated.positions), "rank of an input", max(len(shape), 0),
                "must be what {sources} says of the input at position", stated.input)  # fmt: skip
        put_source(g.sources[s], stated, shape, turned, g)
        s += 1


@jitable
def put_source(
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
        position = stated.positions[a]
        size = shape[a]
        if position >= 0:
            rule = "must have the element that {sources} names,"
            require(position < size, "shape of a source", shape, rule, position)
            source.first += position * pitch
        else:
            axis = 0 if position == N else 1 + (position + g.axes + turned) % g.axes
            points = g.batch if axis == 0 else g.output[axis - 1]
            require(size == 1 or size == points, "shape of a source", shape,
                    "must be 1 or that of the others along each axis that they share; one of "
                    "them has",
                    points)  # fmt: skip
            if size != 1:
                source.pitches[axis] += pitch
        # Beyond the limit of a tensor's elements, which only empty tensors exceed.
        pitch = pitch * size if size <= ELEMENTS // max(pitch, 1) else ELEMENTS


@jitable
def order_values(attributes: AttributeTuple, count: int, g: ComputedGridSampleGeometry) -> None:
    """Determine the order of the needed values, and the place of each.

    Values that are the same in all images come first, then those that are the same in all stripes
    of an image, then the others. Among the last, values with a number for each point free their
    places after their last use.
    """
    coordinates = attributes.coordinates
    axes = g.axes
    last_level = 0
    values = count + len(attributes.steps) // 4
    for v in range(values):
        put_value(v, attributes.steps, count, g)
    for i in range(axes):
        g.values[coordinates[i]].last = VALUES
    for v in range(values - 1, -1, -1):
        value = g.values[v]
        last_level = max(last_level, value.level)
        if value.last != UNKNOWN:
            need_operands(value, v, g)
    g.room = g.order_count = g.free = 0
    for level in range(3):
        if level == 1:
            g.of_image = g.order_count
        if level == 2:
            g.of_stripe = g.order_count
        for v in range(values):
            value = g.values[v]
            if value.last != UNKNOWN and value.level == level:
                place_value(v, last_level, g)
    for i in range(axes):
        v = coordinates[i]
        if g.values[v].kind != FULL:
            copy = g.values[values + i]
            copy.kind = FULL
            copy.level = 2
            copy.last = VALUES
            copy.operation = COPY
            copy.operands[0] = v
            v = values + i
            place_value(v, 2, g)
        g.coordinates[i] = g.values[v].place
    for i in range(axes, 3):
        g.coordinates[i] = g.coordinates[0]


@jitable
def put_value(v: int, steps: Sizes, count: int, g: ComputedGridSampleGeometry) -> None:
    """Store the operation of a value, with its operands, and its kind and level.

    The first `count` are sources.
    """
    value = g.values[v]
    value.operation = LOAD
    value.kind = 0
    value.level = 0
    value.last = UNKNOWN
    if v < count:
        put_kind(value, g.sources[v].pitches, g)
        return
    step = step_at(steps, v - count)
    value.operation = step.operation
    for a in range(3):
        value.operands[a] = step.operands[a]
    for a in range(operand_count(step.operation)):
        operand = g.values[step.operands[a]]
        value.kind |= operand.kind
        value.level = max(value.level, operand.level)
    # A number comes last.
    if step.operation in (ADD, MUL) and not g.values[step.operands[0]].kind & VECTOR:
        value.operands[0], value.operands[1] = step.operands[1], step.operands[0]


@jitable
def need_operands(value: StoredValue, v: int, g: ComputedGridSampleGeometry) -> None:
    """Keep the operands of value v until it is computed."""
    for a in range(operand_count(value.operation)):
        operand = g.values[value.operands[a]]
        operand.last = max(operand.last, v)


@jitable
def put_kind(value: StoredValue, pitches: Vector, g: ComputedGridSampleGeometry) -> None:
    """Store the kind and the level of a source."""
    for axis in range(g.axes + 1):
        if pitches[axis] > 0:
            if axis == g.axes:
                value.kind |= VECTOR
            elif axis > 0:
                value.kind |= ROWS
            if axis == 0:
                value.level = max(value.level, 1)
            elif axis < g.axes and g.stripes > 1:
                value.level = 2


@jitable
def place_value(v: int, last_level: int, g: ComputedGridSampleGeometry) -> None:
    """Have a value computed next, and find a place for it."""
    value = g.values[v]
    g.order[g.order_count] = v
    g.order_count += 1
    if value.kind == FULL and value.level == last_level and g.free > 0:
        g.free -= 1
        value.place = g.places[g.free]
    else:
        count = g.rows if value.kind & ROWS else 1
        if value.kind & VECTOR:  # begins at a whole vector
            g.room = whole(g.room)
            # A loop over whole vectors may read and write so many more.
            count = count * min(g.stripe, g.row) + MOST_LANES
        value.place = g.room
        g.room += count
    for a in range(operand_count(value.operation)):
        operand = g.values[value.operands[a]]
        if operand.last == v and operand.kind == FULL and operand.level == last_level:
            g.places[g.free] = operand.place  # which others may take
            g.free += 1
            operand.last = VALUES  # an operand may be there twice


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
    k = 0
    while k < len(sources):
        source, k = source_at(sources, k)
        values.append(source_of(inputs[source.input], source.positions, axes))
    with np.errstate(all="ignore"):
        for k in range(len(steps) // 4):
            step = step_at(steps, k)
            operands = [values[v] for v in step.operands[: operand_count(step.operation)]]
            values.append(FORMULAS[OPERATIONS[step.operation]](*operands))
    shape = np.broadcast_shapes((len(image), *[1] * axes), *(v.shape for v in values))
    grid = np.stack([np.broadcast_to(values[k], shape) for k in coordinates], -1)
    return grid_sample.reference(image, grid, **sampling)


def source_of(array: np.ndarray, index: Sizes, axes: int) -> np.ndarray:
    """Return the elements of an array at an index, as an array [n, (d,) h, w]; an axis may be there
    several times.
    """
    names = "ndhw"
    picked = array[tuple(at if at >= 0 else slice(None) for at in index)]
    letters = [names[at] for at in index if at < 0]
    kept = [axis for axis in (names if axes == 3 else "nhw") if axis in letters]
    pairs = [*zip(letters, picked.shape, strict=True)]
    size = {axis: next((s for letter, s in pairs if letter == axis and s != 1), 1) for axis in kept}
    picked = np.broadcast_to(picked, [size[letter] for letter in letters])
    diagonal = np.einsum(f"{''.join(letters)}->{''.join(kept)}", picked)
    return diagonal.reshape([size.get(axis, 1) for axis in (names if axes == 3 else "nhw")])


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
    versions=(1,),
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
