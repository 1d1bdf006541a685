"""Variants: what is compiled of an operator for one of its kernels and one combination of element types.

A variant is (operator, position of the kernel, {type variable: element type}). Some variants share machine code.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from .. import dtypes as element_types
from .. import operators as every
from ..compiler import records
from ..errors import OpError
from ..limits import ABSENT

if TYPE_CHECKING:
    from ..declaration import Operator

Variant: TypeAlias = "tuple[Operator, int, dict[str, str]]"

TYPES = [
    name for name, t in element_types.TABLE.items() if t.in_sessions and t.storage
]  # element types of compiled code


def chosen(operators=None):
    """The declarations of operators, given by names as in models or as what `onnx_ops.operator` made; default: all.

    Raises OpError.
    """
    if operators is None:
        return list(every.available().values())
    operators = every.as_list(operators)
    own = [each for each in operators if not isinstance(each, str)]
    names = [each for each in operators if isinstance(each, str)]
    declarations = every.available(own).values()
    names = checked_names("operators", names, {o.name: o for o in declarations})
    own = [*map(every.declaration_of, own)]
    return [operator for operator in declarations if operator.name in names or operator in own]


def asked_for(operators, dtypes, known_types=tuple(element_types.TABLE), default=element_types.FLOATS, are_all=False):
    """The variants of these operators for these element types, as `distinct` names them.

    operators    declarations
    dtypes       names of element types; default: `default`
    known_types  the names that are allowed
    are_all      whether the operators are all that exist: then it is no error if one of them has no variants

    Raises OpError if an operator has no variants, or a dtype occurs in none.
    """
    types = checked_names("dtypes", dtypes or default, known_types)
    matches = list(combinations(operators, types))
    names = dict.fromkeys(operator.name for operator in operators)
    for name in () if are_all else names:
        if all(operator.name != name for operator, _, _ in matches):
            rule = f"sessions have no {name} of these types alone"
            if not any(o.kernels for o in operators if o.name == name):
                rule = f"no kernel of {name} can be compiled, which has none; give it one by .kernel"
            raise OpError("dtypes", ", ".join(types), rule, "onnx_ops")
    for dtype in dtypes or ():
        if all(dtype not in tensor_types(operator, signature) for operator, _, signature in matches):
            rule = f"sessions have no {' or '.join(names)} of it and the other types alone"
            raise OpError("dtypes", repr(dtype), rule, "onnx_ops")
    return distinct(matches)


def variants(operators, dtypes):
    """All variants of these operators for these element types, as `distinct` names them."""
    return distinct(combinations(operators, dtypes))


def combinations(operators, dtypes):
    """Yield all variants that sessions can have of these operators, with only these element types in tensors."""
    for operator in operators:
        for signature in operator.signatures():
            if not tensor_types(operator, signature) <= set(dtypes):
                continue
            for position in operator.positions:
                if takes(operator, position, signature):
                    yield operator, position, signature


def takes(operator, position, signature):
    """Whether the kernel at this position takes these element types."""
    kernel = operator.kernel(position)
    with suppress(OpError):
        operator.check_types(kernel, signature)
        return operator.storage(kernel, signature) is not None or not (kernel.has_axes or kernel.types)
    return False


def tensor_types(operator, signature):
    """The element types of the tensors that kernels see, where these can differ."""
    return {signature[v] for v in variables(operator) if len(operator.types[v]) > 1}


def variables(operator):
    """The type variables of the tensors that kernels see."""
    read = {k for kernel in operator.kernels for k in operator.read_by(kernel)}
    return sorted({operator.inputs[k].type for k in read} | {o.type for o in operator.outputs})


def distinct(matches):
    """{name: variant} for variants of which no two share machine code."""
    by_name, keys = {}, set()
    for operator, position, signature in matches:
        key = kernel_key(operator, position, signature)
        if key not in keys:
            keys.add(key)
            details = ", ".join([*settings(operator, position), *(signature[v] for v in variables(operator))])
            by_name[f"{operator.title} {details}"] = operator, position, signature
    return by_name


def settings(operator, position):
    """The attributes or ranks that select the kernel at this position; nothing if it is the only one."""
    chosen = [str(choices[0]) for choices in operator.kernel(position).choices.values()]
    ranks = zip(operator.inputs, operator.combination(position), strict=True)
    selecting = ((i.name, rank) for i, rank in ranks if len(i.compiled_ranks) > 1)
    return chosen + [f"no {name}" if rank == ABSENT else f"rank {rank} of {name}" for name, rank in selecting]


def kernel_key(operator, position, signature):
    """A key that is equal for variants that share machine code."""
    kernel = operator.kernel(position)
    return operator.plan, kernel.function, operator.combination(position), operator.storage(kernel, signature)


def entries(operator, position, signature):
    """Yield the entries (records.py) of a variant: infer if sizes may be unknown, plan, and the kernel if any."""
    if operator.plan.is_partial:
        yield records.infer_entry(operator)
    yield records.plan_entry(operator, position)
    if operator.storage(operator.kernel(position), signature):
        yield records.kernel_entry(operator, position, signature)


def tasks(by_name):
    """The tasks of `share_out` for {name: variant}: (name, [domain, operator's name, position, signature])."""
    return [
        (name, [operator.domain, operator.name, position, signature])
        for name, (operator, position, signature) in by_name.items()
    ]


def codes(operator, position, signature):
    """Compile a variant; returns the `Code` of each of its entries. Raises OpError where one isn't kept."""
    from ..compiler import cache
    from ..compiler.code import code

    compiled = [code(entry) for entry in entries(operator, position, signature)]
    for each in compiled:
        if missing := each.kept.missing():
            raise OpError("cache", cache.directory(), f"can't keep what is compiled: {missing}", "onnx_ops")
    return compiled


def checked_names(argument, names, allowed):
    """The names, by default all that are allowed. Raises OpError if one isn't allowed."""
    names = list(allowed if names is None else names)
    for name in names:
        if name not in allowed:
            raise OpError(argument, repr(name), f"must be among {', '.join(allowed)}", "onnx_ops")
    return names
