"""Operators and kernels that ONNX Runtime has on the CPU.

The lists in its Python package have them: no session is made.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import TYPE_CHECKING

from ..registry import KEYS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from onnxruntime.capi.onnxruntime_pybind11_state.opkernel import KernelDef
    from onnxruntime.capi.onnxruntime_pybind11_state.schemadef import OpSchema

    from ..registry import Key


OPEN = 2**31 - 1  # the last version of a kernel that has none


@functools.cache
def schemas() -> dict[Key, list[OpSchema]]:
    """Return {(domain, name): schemas of ONNX Runtime, the latest version first}."""
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

    by_key = defaultdict(list)
    for schema in sorted(get_all_operator_schema(), key=lambda schema: -schema.since_version):
        by_key[schema.domain, schema.name].append(schema)
    return dict(by_key)


@functools.cache
def kernels() -> dict[Key, list[KernelDef]]:
    """Return {(domain, name): definitions of kernels} that ONNX Runtime has on the CPU."""
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def

    by_key = defaultdict(list)
    for kernel in get_all_opkernel_def():
        if kernel.provider == "CPUExecutionProvider":
            by_key[kernel.domain, kernel.op_name].append(kernel)
    return dict(by_key)


def first_builtin_version(key: Key) -> int | None:
    """Return the first version in which ONNX Runtime has an operator (domain, name), or None."""
    return schemas()[key][-1].since_version if key in schemas() else None


def schema_of(key: Key, version: int | None) -> OpSchema | None:
    """Return the schema of an operator in a version of its domain (None: the latest), or None."""
    for schema in schemas().get(key, ()):
        if version is None or schema.since_version <= version:
            return None if schema.deprecated else schema
    return None


def has_kernel(
    schema: OpSchema, inputs: Sequence[int | None], outputs: Sequence[int | None]
) -> bool:
    """Return False if ONNX Runtime certainly has no kernel for an operator with these data types.

    inputs, outputs  numbers of the data types in ONNX; None if unknown, or if there is no such
                     argument
    """
    if _may_be_replaced(schema):
        return True
    since = schema.since_version
    types = _types(schema.inputs, inputs) | _types(schema.outputs, outputs)
    # By Casts around the node.
    widened = {name: text.replace("(float16)", "(float)") for name, text in types.items()}
    for kernel in kernels().get((schema.domain, schema.name), ()):
        first, last = kernel.version_range
        is_fitting = first == since or first < since <= last < OPEN
        if is_fitting and (_accepts(kernel, types) or _accepts(kernel, widened)):
            return True
    return False


def _may_be_replaced(schema: OpSchema) -> bool:
    """Return whether ONNX Runtime may run other nodes in place of an operator's.

    Which operators of its own domains are functions isn't listed; none of this package's operators
    is one.
    """
    if schema.domain or schema.name == "Constant":
        return (schema.domain, schema.name) not in KEYS
    import onnx  # here, because importing this package doesn't load onnx

    if not onnx.defs.has(schema.name, schema.since_version):
        return True
    onnx_schema: Any = onnx.defs.get_schema(schema.name, schema.since_version)
    return onnx_schema.has_function or onnx_schema.has_context_dependent_function


def _types(parameters: Sequence[Any], data_types: Sequence[int | None]) -> dict[str, str]:
    """Return {type variable: text of a type} for inputs or outputs with known types.

    data_types  their numbers in ONNX
    """
    from onnx import TensorProto

    types = {}
    for position, data_type in enumerate(data_types):
        if data_type and data_type in TensorProto.DataType.values() and parameters:
            # The last one may be variadic.
            parameter = parameters[min(position, len(parameters) - 1)]
            types[parameter.typeStr] = f"tensor({TensorProto.DataType.Name(data_type).lower()})"
    return types


def _accepts(kernel: KernelDef, types: dict[str, str]) -> bool:
    """Return whether a kernel's definition allows the known types.

    They may be inside of seq(tensor(float)).
    """
    return all(
        name not in types or any(types[name] in text for text in allowed)
        for name, allowed in kernel.type_constraints.items()
    )
