"""Operators in plain Python: the shapes of their outputs, their references, and what is wrong with a kernel."""

import logging
import traceback
from contextlib import nullcontext
from operator import index
from pathlib import Path

import numpy as np

from .declaration import Plan, Record
from .errors import OpError, errors_of, reason, require
from .limits import ELEMENTS, MAX_RANK, UNKNOWN

PACKAGE = str(Path(__file__).parent)
log = logging.getLogger("onnx_ops")


def infer(operator, values, shapes, known):
    """Return the outputs' shapes, each a list of ints, names and None, or None for an unknown rank.

    values  AttributeValues, or None where they are unknown
    shapes  of the inputs, whose dimensions are ints, names or None; a shape is None if the rank is unknown
    known   the inputs' values, lists of ints, or None where they are unknown

    Returns None if nothing is known. Raises OpError if what is known is refused.
    """
    inputs, shapes = operator.each_input(len(shapes)), [each and [*map(_stated, each)] for each in shapes]
    sizes = [v if i.values else s for i, s, v in zip(inputs, shapes, known, strict=True)]
    if values is None:
        return None
    if operator.plan.is_partial:
        return infer_by_plan(operator, values, list(map(_sizes_to_infer, inputs, sizes, shapes)))
    is_known = all(each is not None and all(isinstance(n, int) for n in each) for each in sizes)
    if operator.plan.is_bound or not is_known:
        return None
    return shapes_of(operator, values, operator.padded([tuple(each) for each in sizes]))


def _stated(size):
    """Return a size, or None for one below 0, which is unknown, and for a name that isn't UTF-8."""
    return None if isinstance(size, bytes) or (isinstance(size, int) and size < 0) else size


def _sizes_to_infer(input, size, shape):
    """Return the sizes, or the values, of an input as a plan gets them before all are known."""
    if input.values and size is None:  # their number may be known
        is_known = shape and len(shape) == 1 and isinstance(shape[0], int)
        size = [None] * min(shape[0], MAX_RANK + 1) if is_known else ()
    return () if size is None or len(size) > MAX_RANK else size


def infer_by_plan(operator, values, sizes):
    """Return the outputs' shapes by the shape function of a Plan, which gets lists in place of vectors.

    sizes  for each input a list of ints, what computes like them, names, which can only be copied, and None. So are
           the shapes; one is None if the rank is unknown
    """
    names: list = []

    def number(size):
        if isinstance(size, str):
            names.append(size)
            return UNKNOWN - len(names)
        return UNKNOWN if size is None else size

    def named(number):
        if not isinstance(number, int) or number >= 0:
            return number
        return None if number == UNKNOWN else names[UNKNOWN - 1 - number]

    inputs = tuple([number(size) for size in each] for each in sizes)
    inputs += ([],) * (len(operator.inputs) - len(inputs))  # optional ones that are left out
    outputs = tuple([UNKNOWN] * MAX_RANK for _ in operator.outputs)
    attributes = values.compiled._make(v.tolist() if isinstance(v, np.ndarray) else v for v in values.compiled)
    ranks = _ranks(operator, attributes, inputs, outputs)
    pairs = zip(ranks, outputs, strict=True)
    return [None if rank < 0 else [named(size) for size in y[: index(rank)]] for rank, y in pairs]


def _ranks(operator, attributes, inputs, outputs):
    """Return the outputs' ranks by a Plan, which writes their sizes into `outputs`."""
    ranks = operator.plan.shape(attributes, inputs, outputs)
    return ranks if isinstance(ranks, tuple) else (ranks,)


def plan(operator, values, inputs):
    """Return (the outputs' shapes, geometry) by a Plan. inputs: vectors of sizes, or of values. Raises OpError."""
    geometry = np.zeros(1, operator.geometry_dtype)
    with errors_of(operator):
        outputs = tuple(np.full(MAX_RANK, UNKNOWN) for _ in operator.outputs)
        ranks = _ranks(operator, values.compiled, tuple(inputs), outputs)
        operator.plan.plan(values.compiled, tuple(inputs), outputs, Record(geometry[0]))
    return [tuple(y[:rank].tolist()) for rank, y in zip(ranks, outputs, strict=True)], geometry


def shapes_of(operator, values, inputs):
    """Return the outputs' shapes for complete inputs; None where only the reference decides on them. Raises OpError.

    inputs  for each its shape, or its values if the plan gets these; None for an input that isn't there
    """
    if isinstance(operator.plan, Plan):
        return plan(operator, values, [np.array(() if each is None else each, np.int64) for each in inputs])[0]
    with errors_of(operator):
        return shapes_by_rule(operator, values, inputs)


def rule_attributes(values):
    """Return {name: value} as rules get them, in Python as in compiled code: a Literal is its position."""
    pairs = zip(values.attributes, values.by_name.items(), strict=True)
    return {name: a.choices.index(v) if a.choices and v is not None else v for a, (name, v) in pairs}


def shapes_by_rule(operator, values, inputs):
    rule = operator.plan.function
    if rule is None:
        return None
    returned = call_function(operator, rule, inputs, rule_attributes(values))
    try:
        shapes = [tuple(map(index, s)) for s in ((returned,) if is_shape(returned) else returned)]
    except TypeError:
        shapes = []
    if len(shapes) != len(operator.outputs):
        text = "must return a tuple of integers" + (", for each of the outputs" if len(operator.outputs) > 1 else "")
        require(False, "rule", f"a function that returns {returned!r}", text)
    return shapes


def call_function(operator, function, positional, keywords):
    """Call a function of a declaration; returns its result. What it raises becomes an OpError, unless it is one."""
    try:
        return function(*positional, **keywords)
    except OpError:
        raise
    except Exception as error:
        if log.isEnabledFor(logging.DEBUG):  # as text, since a record would hold the arrays
            log.debug("%s\n%s", operator.title, traceback.format_exc())
        raise OpError(None, None, reason(error) + place_of(error), operator.title) from error


def compute(operator, values, arrays, types):
    """Run the reference; returns its outputs. Raises OpError if they aren't of these NumPy types and the plan's shapes.

    arrays  the inputs; None is an input that isn't there
    """
    with errors_of(operator):
        pairs = zip(operator.each_input(len(arrays)), arrays, strict=True)
        sizes = [None if a is None else tuple(a.tolist()) if i.values else a.shape for i, a in pairs]
        shapes = shapes_of(operator, values, sizes) or [None] * len(types)
        with np.errstate(over="ignore", invalid="ignore") if operator.is_wide else nullcontext():
            outputs = call_function(operator, operator.reference, arrays, values.by_name)
        if outputs is None:
            require(False, "outputs", None, "must be returned: an array, or a tuple of several")
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        if len(outputs) != len(types):
            require(False, "outputs", len(outputs), f"must be {len(types)}, as declared")
        if operator.is_wide:
            with np.errstate(over="ignore", invalid="ignore"):
                outputs = [y.astype(dtype, order="C") for y, dtype in zip(outputs, types, strict=True)]
        return [check_output(operator, k, *each) for k, each in enumerate(zip(outputs, types, shapes, strict=True))]


def check_output(operator, k, value, dtype, shape):
    """Return as an array what the reference returned for output k. Raises OpError if its type or shape is wrong."""
    array = value if isinstance(value, np.ndarray) else call_function(operator, np.asarray, [value], {})
    if array.dtype == dtype != np.object_ and array.ndim <= MAX_RANK and (shape is None or array.shape == shape):
        return array
    name = operator.outputs[k].name
    if dtype.hasobject:
        array = array.astype(object)
        for each in array.flat:
            require(is_text(each), name, repr(each), "must be a string that has a UTF-8")
    elif is_exact(value, dtype):  # NumPy's type for a number of Python's says nothing about what was meant
        array = array.astype(dtype)
    type_name = "string" if dtype.hasobject else dtype.name
    require(array.dtype == dtype, f"dtype of {name}", str(array.dtype), f"must be {type_name}")
    require(array.ndim <= MAX_RANK, f"rank of {name}", array.ndim, "must be at most", MAX_RANK)
    if shape is not None:
        is_bound = operator.plan.is_bound
        same = array.ndim == len(shape) and array.shape[1:] == shape[1:]
        fits = array.shape == shape or (is_bound and same and array.shape[:1] <= shape[:1])
        rule = f"must be {'at most ' if is_bound else ''}what the rule says:"
        require(fits, f"shape of {name}", list(array.shape), f"{rule} {list(shape)}")
    return array


def check_shapes(operator, shapes):
    """Raise OpError where a plan states no possible shape of an output."""
    rule = "is what the rule says, but no shape of at most 2**58 elements"
    for shape in shapes:
        fits, most = operator.plan.is_bound <= len(shape), ELEMENTS
        for size in shape:
            fits, most = fits and 0 <= size <= most, most // max(size, 1)
        require(fits, "shape of an output", shape, rule)


def explain(operator, position, values, inputs, tiles, workspace, outputs):
    """Run a kernel that gets arrays as plain Python, where an exception knows its line; return its text, or None."""
    room = np.empty(workspace, np.uint8) if operator.plan.workspace else None
    try:
        for tile in range(tiles):
            operator.kernel(position).function(*inputs, *values.compiled, tile, tiles, room, *outputs)
    except Exception as error:
        return reason(error) + place_of(error)
    return None


def place_of(error):
    """Return the file and line of the user's own function that raised an error, as the end of a sentence; or ""."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(PACKAGE)]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def is_text(value):
    """Return whether a value is a string that ONNX Runtime can hold."""
    try:
        return isinstance(value, str) and value.encode(errors="surrogateescape") is not None
    except UnicodeEncodeError:
        return False


def is_exact(value, dtype):
    """Return whether a value is a number of one of Python's types that fits this dtype; a float may be rounded."""
    if type(value) not in (bool, int, float):
        return False
    if dtype.kind in "iu":
        return type(value) is not float and np.iinfo(dtype).min <= value <= np.iinfo(dtype).max
    return dtype.kind in "fV" or (dtype.kind == "b" and type(value) is bool)


def is_shape(value):
    """Return whether a value is one shape, not a tuple of shapes."""
    return isinstance(value, tuple | list) and not (value and isinstance(value[0], tuple | list))
