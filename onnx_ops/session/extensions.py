"""The operators as Python ops of onnxruntime-extensions (`@onnx_op`).

Their domain is ai.onnx.contrib.

That library passes copies of the inputs to an op, and takes the output as a list. It has no channel
for errors: an exception in an op's body ends the process. So a body catches each exception, logs
it, keeps it for the session of the run, and returns an empty tensor of the right rank rather than
plausible data. `onnx_ops.InferenceSession` then raises the exception. A plain session raises only
interrupts, after the run.
"""

from __future__ import annotations

import functools
import itertools
import logging
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime_extensions as extensions

from ..declaration import dtypes, plain
from ..declaration.attributes import AttributeValues
from ..declaration.errors import OpError, errors_of, reason
from ..declaration.limits import MAX_RANK
from ..model.sessions import BuiltinSession
from ..native import execute
from ..registry import available, is_built_in
from ..system import interrupts
from ..system.locks import REGISTRATION, RUNS
from .lowering import DOMAIN, PRESENT, VERSION, name_of_op, optional_inputs, unable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import onnxruntime as ort

    from ..declaration.operator import Operator
    from ..model.types import Array, NumpyType


PROBE = "onnx_ops_probe"  # an op of the library
MISSING = "onnx_ops_of_nobody"  # an op that it never has
log = logging.getLogger("onnx_ops")
_numbers = itertools.count(1)
# {number of an active run: the first error in one of its ops, or None}
_errors: dict[int, BaseException | None] = {}


class Output:
    """An array that onnxruntime-extensions copies without making a list of it.

    That library reads `.shape`, calls `.flatten().tolist()`, and copies from the result's buffer.
    Strings have no buffer, so it reads them from a list.
    """

    interrupt: object  # what raises an interrupt when it is freed, if there is one

    def __init__(self, array: Array) -> None:
        self.array = array
        self.shape = array.shape

    def flatten(self) -> Output:
        return self

    def tolist(self) -> list[str] | Array:
        return self.array.ravel().tolist() if self.array.dtype.hasobject else self.array


def add_library(options: ort.SessionOptions, custom: Iterable[Operator] = ()) -> None:
    """Register the library's ops, including ours, on a session's options, once.

    custom  custom operators, which must be added before the library's first use

    Raises OpError.
    """
    with REGISTRATION:  # a second registration would make every session fail
        for operator in custom:
            declare(operator)
        _handed_over.append(True)
        if options not in _with_library:
            if not _registered(options):
                options.register_custom_ops_library(extensions.get_library_path())
            _with_library.add(options)


def _registered(options: ort.SessionOptions) -> bool:
    """Return whether the library is registered on the options, which have no query for it.

    The error of a session shows it. Its model has two ops: one of the library, and one that nobody
    has. ONNX Runtime reports the first missing op before it optimizes the model or writes any file.
    """
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 18, "{DOMAIN}" : {VERSION}]>
        probe (float[1] x) => (float[1] z) {{
            y = {DOMAIN}.{PROBE} (x)
            z = {DOMAIN}.{MISSING} (y)
        }}"""
    )
    profiling = options.enable_profiling
    options.enable_profiling = False  # a session that profiles writes a file even if it fails
    try:
        BuiltinSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    except Exception as error:
        # ONNX Runtime finds a conflict if the library is registered twice.
        if MISSING in str(error) or "Conflicting" in str(error):
            return True
        if PROBE in str(error):
            return False
        raise
    finally:
        options.enable_profiling = profiling
    raise AssertionError(f"there is an op called {MISSING}")


_with_library = weakref.WeakSet[Any]()  # sessions' options that have the library
_handed_over: list[bool] = []  # not empty once sessions hold pointers to the library's ops
_declared: list[Operator] = []  # the operators whose ops the library has


def declare(operator: Operator) -> None:
    """Add the ops of an operator to the library.

    Raises OpError if it is too late, or the library can't run them.
    """
    if operator in _declared:
        return
    obstacle = unable(operator)
    name = name_of_op(operator)
    if namesake := next(
        (o.title for o in _declared if name_of_op(o) == name and o.title != operator.title), None
    ):
        obstacle = f"would have the same name there as {namesake}; rename one of them"
    if _handed_over and not obstacle:
        obstacle = (
            "must have been there when the first session was made with it, as its list of "
            "ops is then final"
        )
    if obstacle:
        raise OpError("backend", "'extensions'", obstacle, operator.title)
    for signature in operator.signatures():
        # The library has no arrays of 16-bit floats; lowering casts them.
        if not set(dtypes.HALVES) & set(signature.values()):
            _declare(operator, signature)
    _declared.append(operator)


def _declare(operator: Operator, signature: Mapping[str, str]) -> None:
    """Add the op for one {type variable: element type} to the library."""
    types = extensions.PyCustomOpDef  # its numbers of element types are ONNX's
    element_type = lambda tensor: dtypes.TABLE[signature[tensor.type]].onnx
    by_kind = {
        "int": types.dt_int64,
        "ints": types.dt_int64,
        "float": types.dt_float,
        "floats": types.dt_double,
    }
    lists = [by_kind[a.kind] for a in operator.attributes if a.is_list]
    scalars = {
        a.name: by_kind.get(a.kind, types.dt_string) for a in operator.attributes if not a.is_list
    }
    if optional_inputs(operator):
        scalars[PRESENT] = types.dt_string
    extensions.onnx_op(
        op_type=name_of_op(operator),
        inputs=[*map(element_type, operator.inputs), *lists, types.dt_int64],
        outputs=[*map(element_type, operator.outputs)],
        attrs=scalars,
    )(functools.partial(body, operator, operator.numpy_types(signature)))


def body(
    operator: Operator, output_types: Sequence[NumpyType], *inputs: Array, **attributes: Any
) -> Output | tuple[Output, ...]:
    """Compute the outputs of an op, of these NumPy dtypes. Never raises."""
    try:
        outputs = list(map(Output, _outputs(operator, inputs, attributes)))
    except BaseException as error:
        ranks = _output_ranks(operator, inputs)
        outputs = [
            Output(np.empty([0] * rank, dtype))
            for rank, dtype in zip(ranks, output_types, strict=True)
        ]
        if isinstance(error, Exception):
            _keep(inputs[-1], _log(operator, error))
        elif not _keep(inputs[-1], error) and interrupts.postpone(error):
            outputs[0].interrupt = interrupts.interrupt_at_end()
    return plain.one_or_tuple(outputs)


def _outputs(
    operator: Operator, inputs: Sequence[Array], attributes: dict[str, Any]
) -> list[Array]:
    """Return the outputs for an op's inputs.

    These are the operator's inputs, its list attributes, and `run` (lowering.py).
    """
    lists = (a.name for a in operator.attributes if a.is_list)
    count = len(operator.inputs)
    _, threads = inputs[-1]
    present = attributes.pop(PRESENT, "")
    absent = [i for i, mark in zip(optional_inputs(operator), present, strict=True) if mark == "0"]
    attributes.update(
        (name, tuple(v.tolist()) or None) for name, v in zip(lists, inputs[count:-1], strict=True)
    )
    with errors_of(operator):
        values = operator.values(attributes)
    arrays = [None if i in absent else a for i, a in zip(operator.inputs, inputs, strict=False)]
    return execute.compute(operator, values, arrays, int(threads) if threads > 0 else None)


def _output_ranks(operator: Operator, inputs: Sequence[Array]) -> list[int]:
    """Return the outputs' ranks, which ONNX Runtime checks.

    1 stands for a rank that is unknown or too large.
    """
    with suppress(Exception):
        pairs = list(zip(operator.inputs, inputs, strict=False))
        read_values = [a.tolist() if i.values and a.ndim == 1 else None for i, a in pairs]
        # Ranks need no values.
        no_attributes = AttributeValues(operator.attributes, [None] * len(operator.attributes))
        if shapes := plain.infer(
            operator, no_attributes, [list(a.shape) for _, a in pairs], read_values
        ):
            return [1 if shape is None or len(shape) > MAX_RANK else len(shape) for shape in shapes]
    return [1] * len(operator.outputs)


def _log(operator: Operator, error: Exception) -> OpError:
    """Log an exception; returns the OpError for it. Never raises."""
    refusal = (
        error if isinstance(error, OpError) else OpError(None, None, reason(error), operator.title)
    )
    is_refusal = refusal is error
    with suppress(BaseException):  # a user's log handler may raise, which must not end the process
        log.error(
            "%s", error if is_refusal else operator.title, exc_info=None if is_refusal else error
        )
    return refusal


def _keep(run: Array, error: BaseException) -> bool:
    """Keep a run's first error, or an interrupt, for the session.

    Returns False for a run of a plain session.
    """
    number = int(run.flat[0]) if run.size else 0
    with RUNS:
        is_ours = number in _errors
        if is_ours and (_errors[number] is None or not isinstance(error, Exception)):
            _errors[number] = error
    return is_ours


def begin(threads: int) -> Array:
    """Prepare a run; returns the value of its graph input `run`, see lowering.py."""
    with RUNS:
        number = next(_numbers)
        _errors[number] = None
    return np.array([number, threads], np.int64)


def end(run: Array) -> BaseException | None:
    """Forget a run that has ended or didn't start.

    Returns the OpError or interrupt in one of its ops, or None.
    """
    with RUNS:
        return _errors.pop(int(run[0]), None)


# All ops are added before the first session, because sessions hold pointers into the library's
# vector of ops.
extensions.onnx_op(op_type=PROBE, inputs=[extensions.PyCustomOpDef.dt_float])(Output)
for operator in available().values():
    if is_built_in(operator) or not unable(operator):
        declare(operator)
