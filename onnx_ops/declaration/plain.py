"""Operators in plain Python: shapes of outputs, and references."""

from __future__ import annotations

import logging
import traceback
from contextlib import nullcontext
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .dtypes import type_name
from .errors import OpError, errors_of, reason, require
from .limits import ELEMENTS, MAX_RANK, UNKNOWN
from .operator import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, TypeAlias

    from .attributes import AttributeValues
    from .operator import Input, Operator

    Size: TypeAlias = Any  # an integer, a name, PyTorch's symbol, or None if it is unknown
    Shape: TypeAlias = Sequence[Size]

PACKAGE = str(Path(__file__).parents[1])
log = logging.getLogger("onnx_ops")


def infer(
    operator: Operator,
    values: AttributeValues | None,
    shapes: Sequence[Shape | None],
    lists: Sequence[Shape | None],
) -> Sequence[Shape | None] | None:
    """Return the outputs' shapes, each a list of ints, names and None, or None for an unknown rank.

    values  AttributeValues, or None if they are unknown
    shapes  the inputs' shapes, with ints, names or None as dimensions; None for an unknown rank
    lists   the inputs' values, as the shapes; None if they are unknown

    Returns None if nothing is known. Raises OpError if the known values are refused.
    """
    inputs = operator.each_input(len(shapes))
    shapes = [shape and [*map(_known_size, shape)] for shape in shapes]
    sizes: list[Any] = [v if i.values else s for i, s, v in zip(inputs, shapes, lists, strict=True)]
    if values is None:
        return None
    if not operator.has_ranks:
        return infer_by_plan(operator, values, list(map(_sizes_to_infer, inputs, sizes, shapes)))
    is_known = all(size is not None and all(isinstance(n, int) for n in size) for size in sizes)
    if operator.plan.is_bound or not is_known:
        return None
    return shapes_of(operator, values, operator.padded([*map(tuple, sizes)]))


def _known_size(size: Size) -> Size:
    """Return a size, or None for one below 0 (unknown) and for a name that isn't UTF-8."""
    return None if isinstance(size, bytes) or (isinstance(size, int) and size < 0) else size


def _sizes_to_infer(input: Input, size: Shape | None, shape: Shape | None) -> Shape:
    """Return the sizes or values of an input for a plan, before all are known."""
    if input.values and size is None:  # their number may be known
        size = ()
        if shape and len(shape) == 1 and isinstance(shape[0], int):
            size = [None] * min(shape[0], MAX_RANK + 1)
    return () if size is None or len(size) > MAX_RANK else size


def infer_by_plan(
    operator: Operator, values: AttributeValues, sizes: Sequence[Shape]
) -> list[Shape | None]:
    """Return the outputs' shapes by a plan for any ranks, with lists in place of vectors.

    sizes  for each input a list of ints or similar numbers, of names, which can only be copied, and
           of None. The shapes are such lists, too, or None for an unknown rank
    """
    names = []

    def number(size: Size) -> Size:
        if isinstance(size, str):
            names.append(size)
            return UNKNOWN - len(names)
        return UNKNOWN if size is None else size

    def named(number: Size) -> Size:
        if not isinstance(number, int) or number >= 0:
            return number
        return None if number == UNKNOWN else names[UNKNOWN - 1 - number]

    inputs = tuple([number(size) for size in shape] for shape in sizes)
    inputs += ([],) * (len(operator.inputs) - len(inputs))  # absent optional inputs
    outputs = tuple([UNKNOWN] * MAX_RANK for _ in operator.outputs)
    attributes = values.compiled._make(
        v.tolist() if isinstance(v, np.ndarray) else v for v in values.compiled
    )
    pairs = _written(operator, attributes, inputs, outputs)
    return [None if rank < 0 else [named(size) for size in y[: index(rank)]] for rank, y in pairs]


def _written(
    operator: Operator,
    attributes: tuple[Any, ...],
    inputs: tuple[Any, ...],
    outputs: tuple[Any, ...],
) -> list[tuple[Size, Any]]:
    """Return (rank, sizes) of each output.

    The plan has written the sizes into the vectors `outputs`.
    """
    shape: Any = operator.plan.shape
    ranks = shape(attributes, inputs, outputs)
    return list(zip(as_tuple(ranks), outputs, strict=True))


def plan(
    operator: Operator, values: AttributeValues, inputs: Iterable[Any]
) -> tuple[list[tuple[int, ...]], np.ndarray]:
    """Return (the outputs' shapes, geometry) by a plan for any ranks, from vectors.

    Raises OpError.
    """
    geometry = np.zeros(1, operator.geometry_dtype)
    with errors_of(operator):
        outputs = tuple(np.full(MAX_RANK, UNKNOWN) for _ in operator.outputs)
        pairs = _written(operator, values.compiled, tuple(inputs), outputs)
        fill_in: Any = operator.plan.plan
        fill_in(values.compiled, tuple(inputs), outputs, Record(geometry[0]))
    return [tuple(y[:rank].tolist()) for rank, y in pairs], geometry


def shapes_of(
    operator: Operator, values: AttributeValues, inputs: Sequence[Shape | None]
) -> list[tuple[int, ...]] | None:
    """Return the outputs' shapes for known inputs; None if the reference decides on them.

    Raises OpError.

    inputs  the shape of each, or its values if the plan gets these; None for an absent input
    """
    if operator.plan.shape is None:
        return None
    if not operator.has_ranks:
        return plan(
            operator,
            values,
            [np.array(() if sizes is None else sizes, np.int64) for sizes in inputs],
        )[0]
    with errors_of(operator):
        shapes = call_function(operator, shapes_for_ranks, operator, values, inputs)
        return [tuple(map(index, shape)) for shape in shapes]


def shapes_for_ranks(
    operator: Operator, values: AttributeValues, inputs: Iterable[Any]
) -> list[Shape]:
    """Return the outputs' shapes by a plan for the ranks of its inputs.

    Sizes may be PyTorch's symbols.
    """
    # Larger than any tensor, and so refused.
    outputs = tuple([UNKNOWN] * (MAX_RANK + 1) for _ in operator.outputs)
    # A Literal is its position.
    pairs = zip(values.attributes, values.by_name.values(), strict=True)
    attributes = tuple(a.choices.index(v) if a.choices and v is not None else v for a, v in pairs)
    return [sizes[:rank] for rank, sizes in _written(operator, attributes, tuple(inputs), outputs)]


def one_or_tuple(outputs: Sequence[Any]) -> Any:
    """Return an operator's only output, or a tuple of several."""
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def as_tuple(outputs: Any) -> tuple[Any, ...]:
    """Return several outputs, or the only one in a tuple."""
    return outputs if isinstance(outputs, tuple) else (outputs,)


def call_function(
    operator: Operator, function: Callable[..., Any], /, *positional: Any, **keywords: Any
) -> Any:
    """Return the result of a declaration's function. Its exceptions become OpErrors."""
    try:
        return function(*positional, **keywords)
    except OpError:
        raise
    except Exception as error:
        if log.isEnabledFor(logging.DEBUG):  # as text, since a record would hold the arrays
            log.debug("%s\n%s", operator.title, traceback.format_exc())
        raise OpError(None, None, reason(error) + place_of(error), operator.title) from error


def compute(
    operator: Operator,
    values: AttributeValues,
    arrays: Sequence[np.ndarray | None],
    types: Sequence[np.dtype],
) -> list[np.ndarray]:
    """Return the reference's outputs.

    Raises OpError unless they have these dtypes and the plan's shapes.

    arrays  the inputs; None stands for an absent one
    """
    with errors_of(operator):
        shapes: Sequence[Any] = shapes_of(operator, values, sizes_of(operator, arrays)) or [
            None
        ] * len(types)
        with np.errstate(over="ignore", invalid="ignore") if operator.is_wide else nullcontext():
            outputs = call_function(operator, operator.reference, *arrays, **values.by_name)
            require(
                outputs is not None,
                "outputs",
                None,
                "must be returned: an array, or a tuple of several",
            )
            outputs = as_tuple(outputs)
            require(
                len(outputs) == len(types),
                "outputs",
                len(outputs),
                f"must be {len(types)}, as declared",
            )
            if operator.is_wide:
                outputs = [
                    y.astype(dtype, order="C") for y, dtype in zip(outputs, types, strict=True)
                ]
        return [
            check_output(operator, k, *output)
            for k, output in enumerate(zip(outputs, types, shapes, strict=True))
        ]


def sizes_of(
    operator: Operator, arrays: Sequence[np.ndarray | None]
) -> list[tuple[int, ...] | None]:
    """Return the shape of each input, or its values if the plan gets these.

    None stands for an absent input.
    """
    return [
        None if a is None else tuple(a.tolist()) if i.values else a.shape
        for i, a in operator.pairs(arrays)
    ]


def check_output(
    operator: Operator, k: int, value: Any, dtype: np.dtype, shape: tuple[int, ...] | None
) -> np.ndarray:
    """Return output k of the reference as an array. Raises OpError for a wrong type or shape."""
    array = value if isinstance(value, np.ndarray) else call_function(operator, np.asarray, value)
    if (
        array.dtype == dtype != np.object_
        and array.ndim <= MAX_RANK
        and (shape is None or array.shape == shape)
    ):
        return array
    name = operator.outputs[k].name
    if dtype.hasobject:
        array = array.astype(object)
        for text in array.flat:
            require(is_text(text), name, repr(text), "must be a string that has a UTF-8")
    elif is_exact(value, dtype):  # NumPy's type for a Python number isn't the intended one
        array = array.astype(dtype)
    rule = f"must be {type_name(dtype)}"
    require(array.dtype == dtype, f"dtype of {name}", str(array.dtype), rule)
    require(array.ndim <= MAX_RANK, f"rank of {name}", array.ndim, "must be at most", MAX_RANK)
    if shape is not None:
        is_bound = operator.plan.is_bound
        has_axes = array.ndim == len(shape) and array.shape[1:] == shape[1:]
        fits = array.shape == shape or (is_bound and has_axes and array.shape[:1] <= shape[:1])
        rule = f"must be {'at most ' if is_bound else ''}the result of the shape function:"
        require(fits, f"shape of {name}", list(array.shape), f"{rule} {list(shape)}")
    return array


def check_shapes(operator: Operator, shapes: Iterable[Sequence[int]]) -> None:
    """Raise OpError if a plan states an impossible shape of an output."""
    rule = "is the result of the shape function, but no shape of at most 2**58 elements"
    for shape in shapes:
        fits = operator.plan.is_bound <= len(shape)
        most = ELEMENTS
        for size in shape:
            fits = fits and 0 <= size <= most
            most //= max(size, 1)
        require(fits, "shape of an output", shape, rule)


def place_of(error: BaseException) -> str:
    """Return the text of the file and line of the user's function that raised an error.

    It ends a message, and may be "".
    """
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(PACKAGE)
    ]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def is_text(value: object) -> bool:
    """Return whether a value is a string that ONNX Runtime can hold."""
    try:
        return isinstance(value, str) and value.encode(errors="surrogateescape") is not None
    except UnicodeEncodeError:
        return False


def is_exact(value: Any, dtype: np.dtype) -> bool:
    """Return whether a value is a Python number that fits this dtype; a float may be rounded."""
    if type(value) not in (bool, int, float):
        return False
    if dtype.kind in "iu":
        return type(value) is not float and np.iinfo(dtype).min <= value <= np.iinfo(dtype).max
    return dtype.kind in "fV" or (dtype.kind == "b" and type(value) is bool)
