"""`onnx_ops.check`: compare every way to run a custom operator with its body in NumPy."""

from __future__ import annotations

import itertools
import logging
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper

from ..arrays.comparison import difference, shown
from ..arrays.reference import Evaluator
from ..declaration import dtypes, plain
from ..declaration.errors import OpError
from ..declaration.jit import numba_obstacle
from ..declaration.limits import ABSENT
from ..model.nodes import model_nodes
from ..model.schemas import register_schemas
from ..model.small_models import model_of, node_of
from ..native.execute import as_array, compute, specialization_of
from ..registry import declaration_of
from ..session.prepare import extensions
from ..session.runner import open_session

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from numpy.typing import DTypeLike

    from ..declaration.attributes import AttributeValues
    from ..declaration.operator import Operator, Types
    from ..model.types import Array
    from ..registry import Declared
    from ..session.types import AnyBackend
    from .types import Attributes, Compute, Number, Outcome


# Relative to the largest value.
TOLERANCES = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5, "float64": 1e-12}
LARGEST = 2**20  # elements of an input in which extremes are tried
# Version of ai.onnx in models of operators of other domains; every supported ONNX Runtime has it.
OPSET = 18
log = logging.getLogger("onnx_ops")


def check(
    operator: Declared,
    cases: Iterable[Sequence[Any]],
    *,
    tolerances: dict[str, float] | None = None,
    extremes: bool = True,
) -> int:
    """Compare every way to run a custom operator with its function in NumPy.

    Each case runs for all declared data types; in bfloat16, as a function and in
    PyTorch only. The ways are

    * the function, on one thread and on two, in one tile and in several;
    * a native session of a model with fixed sizes, and one with open sizes;
    * a session of the extensions backend, with open sizes, if the operator has a
      kernel and onnxruntime-extensions can run it;
    * onnx's evaluator, and its inference of types and shapes;
    * if torch is installed, PyTorch's operator and its fake kernel.

    All ways must refuse what the function or the shape function refuses by
    `onnx_ops.require`, with the same message. Any other exception is a failure,
    except for extremes.

    Parameters
    ----------
    operator : CustomOperator
        The operator.
    cases : iterable of tuple
        Each case is one flat tuple of inputs, as for a call, with a dict of
        attributes at the end if there are any: `[(x, k, {"factor": 2.0})]`.
        Inputs of a type variable are converted to each of its types in turn.
    tolerances : dict, optional
        {data type: error allowed, relative to the output's largest value}.
        Defaults: 4e-3 for float16, 3e-2 for bfloat16, 1e-5 for float32 and
        1e-12 for float64. Other types must be equal.
    extremes : bool, default True
        If true, also try inputs with infinities, NaN, the largest and the
        smallest numbers, and empty inputs.

    Returns
    -------
    int
        The number of results compared, without refusals.

    Raises
    ------
    AssertionError
        Results differ, nothing was compared, or no case has the ranks that the
        kernel is compiled for.

    Examples
    --------
    >>> @onnx_ops.operator(
    ...     "my.domain::Negate", inputs="x: T", outputs="y: T", types={"T": ["float32"]}
    ... )
    ... def negate(x):
    ...     return -x
    >>> count = onnx_ops.check(negate, [(np.arange(4, dtype=np.float32),)])
    """
    function = declaration_of(operator)
    tolerances = TOLERANCES | (tolerances or {})
    register_schemas([function])
    compared = 0
    is_kernel_used = False
    for case in cases:
        if not isinstance(case, tuple | list):
            raise TypeError(
                f"cases: each must be a tuple of inputs, such as (x, k), not {type(case).__name__}"
            )
        *inputs, attributes = case if case and isinstance(case[-1], dict) else (*case, {})
        for arrays, are_extreme in variations(
            function, [as_array(value) for value in inputs], extremes
        ):
            compared += compare_implementations(
                function, arrays, attributes, tolerances, are_extreme
            )
        ranks = tuple(
            ABSENT if value is None else np.ndim(value) for value in function.padded(inputs)
        )
        is_kernel_used |= (
            function.position(function.choice(function.values(attributes)), ranks) is not None
        )
    assert compared, (
        f"{function.title}: nothing was compared, as there were no cases, or all were refused"
    )
    rule = "no case has the ranks that the kernel is compiled for, which are those of `ranks`, or 1"
    assert is_kernel_used or not function.kernels, f"{function.title}: {rule}"
    return compared


def variations(
    function: Operator, arrays: Sequence[Array | None], extremes: bool
) -> Iterator[tuple[Sequence[Array | None], bool]]:
    """Yield (inputs, whether they are extreme).

    These are all combinations of element types, as given and with extreme values.
    """
    pairs = function.pairs(arrays)
    variables = {i.type: function.types[i.type] for i, a in pairs if a is not None}
    for names in itertools.product(*variables.values()):
        numpy_types = {
            v: dtypes.TABLE[name].numpy for v, name in zip(variables, names, strict=True)
        }
        typed = [a if a is None else a.astype(numpy_types[i.type]) for i, a in pairs]
        yield typed, False
        if not extremes:
            continue
        typed_pairs = function.pairs(typed)
        for k, (i, array) in enumerate(typed_pairs):
            if (
                array is not None
                and array.dtype.kind in "iufV"
                and 0 < array.size <= LARGEST
                and not i.values
            ):
                yield [*typed[:k], extreme(array), *typed[k + 1 :]], True
        yield (
            [a[:0] if a is not None and a.ndim and not i.values else a for i, a in typed_pairs],
            True,
        )


def extreme(array: Array) -> Array:
    """Return the array with half of its elements replaced by extreme values."""
    if array.dtype.kind in "iu":
        integers = np.iinfo(array.dtype)
        extremes: list[Number] = [integers.min, integers.max, 0]
    else:
        import ml_dtypes

        info = ml_dtypes.finfo(array.dtype)
        extremes = [
            np.nan,
            np.inf,
            -np.inf,
            info.max,
            -float(info.max),
            info.smallest_subnormal,
            -0.0,
        ]
    flat = array.reshape(-1).copy()
    positions = np.random.default_rng(0).permutation(flat.size)[: max(flat.size // 2, 1)]
    flat[positions] = np.resize(np.array(extremes, object), positions.size).astype(array.dtype)
    return flat.reshape(array.shape)


def compare_implementations(
    function: Operator,
    arrays: Sequence[Array | None],
    attributes: Attributes,
    tolerances: Mapping[str, float],
    are_extreme: bool,
) -> int:
    """Compare all ways for these inputs; return the number of compared results."""
    values = function.values(attributes)
    shared = specialization_of(function, values, function.padded(arrays))
    body_outputs = outcome(
        lambda: plain.compute(function, values, function.padded(arrays), shared.types)
    )
    if isinstance(body_outputs, Failure):
        where = f"{function.title}, {call_text(arrays, attributes)}"
        assert are_extreme, f"{where}: the function in NumPy fails: {body_outputs}"
        return 0  # the function may fail on extremes, with any result
    compared = 0
    for name, compute_outputs in implementations(
        function, arrays, attributes, values, shared.signature, body_outputs
    ):
        outputs = outcome(compute_outputs)
        where = (
            f"{function.title}, {name}, "
            f"{call_text(arrays, attributes)}{' with extremes' * are_extreme}"
        )
        if isinstance(body_outputs, str) or isinstance(outputs, str):
            assert outputs == body_outputs, (
                f"{where}: {verdict(outputs)}, but the function in NumPy: {verdict(body_outputs)}"
            )
            continue
        for o, a, b in zip(function.outputs, outputs, body_outputs, strict=True):
            if problem := problem_of(a, b, tolerances):
                raise AssertionError(f"{where}: {o.name} {problem}")
        compared += 1
    return compared


class Failure(str):
    """The text of an exception other than OpError."""


def outcome(function: Compute) -> Outcome:
    """Return a function's result, or the text of its OpError without the node's name."""
    with np.errstate(all="ignore"):
        try:
            return function()
        except OpError as error:
            return (
                f"{error.argument} = {error.value}: {error.rule}"
                if error.argument
                else Failure(error.rule)
            )


def verdict(outputs: Outcome) -> str:
    return f"refuses: {outputs}" if isinstance(outputs, str) else "computes it"


def call_text(arrays: Sequence[Array | None], attributes: Attributes) -> str:
    types = [None if a is None else f"{dtypes.name_of(a)} {list(a.shape)}" for a in arrays]
    return ", ".join(
        [*map(str, types), *(f"{name} = {value}" for name, value in attributes.items())]
    )


def implementations(
    function: Operator,
    arrays: Sequence[Array | None],
    attributes: Attributes,
    values: AttributeValues,
    signature: Types,
    body_outputs: Outcome,
) -> Iterator[tuple[str, Compute]]:
    """Yield (name, function that computes the outputs) of each way to run the operator here."""
    padded = function.padded(arrays)
    for threads, tiles in ((1, 1), (1, 3), (2, 64)):
        call = partial(compute, function, values, padded, threads, garbage, tiles)
        yield f"function, threads={threads}, tiles={tiles}", call
    are_lists = all(a is None or a.ndim == 1 or not i.values for i, a in function.pairs(arrays))
    # PyTorch passes lists where the shape function gets values.
    if are_lists and has_torch(function):
        from ..export.torch_operators import compute_by_torch

        yield "PyTorch", lambda: compute_by_torch(function, arrays, attributes)
    # ONNX Runtime returns no arrays of that type in Python.
    if all(t != "bfloat16" for t in signature.values()):
        yield from in_onnx(function, arrays, attributes, signature, body_outputs)


def in_onnx(
    function: Operator,
    arrays: Sequence[Array | None],
    attributes: Attributes,
    signature: Types,
    body_outputs: Outcome,
) -> Iterator[tuple[str, Compute]]:
    """Yield what `implementations` yields for models: in sessions, and by onnx."""
    fixed_model, open_model = (
        node_model(function, arrays, attributes, signature, is_open) for is_open in (False, True)
    )
    feeds = {f"input_{k}": a for k, a in enumerate(arrays) if a is not None}

    def in_session(model: onnx.ModelProto, backend: AnyBackend, threads: int) -> list[Array]:
        return open_session(
            model.SerializeToString(), backend, threads=threads, operators=[function]
        ).run(None, feeds)

    yield "native session, fixed sizes", partial(in_session, fixed_model, "native", 1)
    yield "native session, open sizes", partial(in_session, open_model, "native", 2)
    if function.kernels and numba_obstacle() is None and has_extensions(function):
        yield "extensions session", without_log(lambda: in_session(open_model, "extensions", 1))
    if not isinstance(body_outputs, str):
        yield "onnx's evaluator", lambda: [*Evaluator(open_model, [function])(feeds).values()]
        yield "onnx's inference", lambda: check_inference(fixed_model, body_outputs)


def without_log(function: Compute) -> Compute:
    """Return the function without log messages: the extensions backend also logs each refusal."""

    def call() -> list[Array]:
        was_disabled, log.disabled = log.disabled, True
        try:
            return function()
        finally:
            log.disabled = was_disabled

    return call


def garbage(shape: int | tuple[int, ...], dtype: DTypeLike) -> Array:
    """Return an array of garbage, which shows the elements that a kernel doesn't write."""
    array = np.empty(shape, dtype)
    array.reshape(-1).view(np.uint8).fill(0xA5)
    return array


def has_extensions(function: Operator) -> bool:
    """Return whether onnxruntime-extensions is installed and can run the operator."""
    try:
        extensions().declare(function)
    except OpError:
        return False
    return True


def has_torch(function: Operator) -> bool:
    """Return whether torch is installed and supports the operator."""
    try:
        from ..export.torch_operators import torch_operator

        torch_operator(function)
    except (ModuleNotFoundError, OpError):
        return False
    return True


def check_inference(model: onnx.ModelProto, outputs: list[Array]) -> list[Array]:
    """Compare the types and shapes that onnx infers with the outputs; returns the outputs."""
    (node,) = model_nodes(model)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph.output
    for value, array in zip(inferred, outputs, strict=True):
        inferred_type = value.type.tensor_type
        assert inferred_type.elem_type == dtypes.TABLE[dtypes.name_of(array)].onnx, (
            f"onnx infers another type of {value.name}"
        )
        dims = [
            d.dim_value if d.HasField("dim_value") else n
            for d, n in zip(inferred_type.shape.dim, array.shape, strict=False)
        ]
        assert not inferred_type.HasField("shape") or dims == list(array.shape), (
            f"onnx infers {dims} for {value.name}"
        )
    return outputs


def node_model(
    function: Operator,
    arrays: Sequence[Array | None],
    attributes: Attributes,
    signature: Types,
    is_open: bool,
) -> onnx.ModelProto:
    """Return a model of one node of the operator, with inputs of these shapes or of open ones."""
    names = ["" if a is None else f"input_{k}" for k, a in enumerate(arrays)]
    inputs = {name: a for name, a in zip(names, arrays, strict=True) if a is not None}
    outputs = [
        helper.make_tensor_value_info(o.name, dtypes.TABLE[signature[o.type]].onnx, None)
        for o in function.outputs
    ]
    domains = {"": OPSET, function.domain: function.versions[0]}
    ir_version = helper.find_min_ir_version_for([helper.make_opsetid("", max(OPSET, domains[""]))])
    model = model_of([node_of(function, names, attributes)], inputs, outputs, domains, ir_version)
    for value in model.graph.input if is_open else ():
        for dimension in value.type.tensor_type.shape.dim:
            dimension.Clear()
    return model


def problem_of(actual: Array, reference: Array, tolerances: Mapping[str, float]) -> str | None:
    """Return a text on the error in an output, or None."""
    compared = difference(actual, reference, tolerances)
    if compared.ok:
        return None
    if compared.index is None:
        return f"has {compared.problem}, unlike the function in NumPy"
    excess = f", by more than {compared.allowed:.3g}" if compared.allowed else ""
    count = f"{np.count_nonzero(compared.wrong)} of {actual.size} differ"
    value = f"{shown(compared.value)}, but of the function in NumPy {shown(compared.expected)}"
    return f"at {list(compared.index)} is {value}{excess}; {count}"
