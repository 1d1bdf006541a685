"""Calls of operators on arrays without compiled code: type checks, arguments of plans, references.

Functions on arrays, PyTorch and onnx's evaluator use this module. In sessions, ONNX Runtime and the
C library do this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import dtypes, plain
from .errors import OpError, errors_of
from .limits import MAX_RANK

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from .attributes import AttributeValues
    from .operator import Input, Operator, Types


def plan_input(input: Input, array: np.ndarray | None) -> Sequence[int]:
    """Return the plan's argument for one input: its shape or its values. Raises OpError."""
    if array is None:
        return ()
    if array.ndim > MAX_RANK:
        raise OpError(f"rank of {input.name}", array.ndim, f"must be at most {MAX_RANK}")
    if not input.values:
        return array.shape
    if array.ndim != 1:
        raise OpError(f"shape of {input.name}", list(array.shape), "must have rank 1")
    if array.size > MAX_RANK:
        raise OpError(f"length of {input.name}", array.size, f"must be at most {MAX_RANK}")
    return array.tolist()


def plan_inputs(operator: Operator, arrays: Sequence[np.ndarray | None]) -> list[Sequence[int]]:
    """Return the arguments of the operator's plan for its inputs, see `plan_input`.

    Raises OpError.
    """
    pairs = operator.pairs(arrays)
    with errors_of(operator):
        for i, array in () if operator.has_ranks else pairs:  # to the plan, it would be absent
            if i.presence == "optional" and array is not None and array.ndim == 0:
                raise OpError(f"shape of {i.name}", [], "must have an axis")
        return [plan_input(i, array) for i, array in pairs]


def signature_of(
    operator: Operator, choice: int | None, names: Sequence[str | None]
) -> dict[str, str]:
    """Return {type variable: data type} for inputs of these data types.

    None stands for an absent or unknown one.

    Raises OpError if the operator, with the kernel that the attributes choose, doesn't support
    them.

    choice  number of that kernel; None: any
    """
    signature = {
        o.type: operator.types[o.type][0]
        for o in operator.outputs
        if len(operator.types[o.type]) == 1
    }
    inputs = operator.pairs(names)
    for i, name in inputs:
        if name is None:
            continue
        if name not in operator.types[i.type]:
            rule = f"must be one of {', '.join(operator.types[i.type])}"
            raise OpError(f"dtype of {i.name}", name, rule, operator.title)
        if (expected := signature.setdefault(i.type, name)) != name:
            first = next(
                earlier.name for earlier, its_name in inputs if earlier.type == i.type and its_name
            )
            raise OpError(
                f"dtype of {i.name}", name, f"must be {expected}, that of {first}", operator.title
            )
    if operator.kernels and choice is not None and signature.keys() == operator.types.keys():
        with errors_of(operator):
            operator.check_types(operator.kernels[choice], signature)
    # An absent one may have any of its types.
    return {v: types[0] for v, types in operator.types.items()} | signature


def check_strings(
    operator: Operator, signature: Types, arrays: Sequence[np.ndarray | None]
) -> None:
    """Raise OpError if an input is an object array with elements other than strings."""
    if "string" not in signature.values():
        return
    for i, array in operator.pairs(arrays):
        if (
            array is not None
            and array.dtype.hasobject
            and not all(isinstance(v, str) for v in array.flat)
        ):
            raise OpError(f"dtype of {i.name}", "object", "must be of strings only", operator.title)


def compute_reference(
    operator: Operator,
    values: AttributeValues,
    arrays: Sequence[np.ndarray | None],
    types: Sequence[np.dtype] | None = None,
) -> list[np.ndarray]:
    """Compute an operator's outputs, a list, by its slow reference. Raises OpError.

    values  AttributeValues
    arrays  the inputs; None stands for an absent one
    types   NumPy's types of the outputs, if the types of the inputs have been checked
    """
    arrays = operator.padded(arrays)
    if types is None:
        names = [None if a is None else dtypes.name_of(a) for a in arrays]
        signature = signature_of(operator, operator.choice(values), names)
        check_strings(operator, signature, arrays)
        types = operator.numpy_types(signature)
    plan_inputs(operator, arrays)  # refuses what no plan gets
    return plain.compute(operator, values, [as_input(a) for a in arrays], types)


def as_input(array: np.ndarray | None) -> np.ndarray | None:
    """Return a read-only view of an array; sessions pass inputs in this form."""
    if array is None or array.dtype.hasobject:
        return array
    view = array.view()
    view.flags.writeable = False
    return view
