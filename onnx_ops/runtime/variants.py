"""Which functions of an operator are compiled differently: its variants."""

from contextlib import suppress

from .. import dtypes as element_types
from .. import operators as every
from ..declaration import ABSENT
from ..errors import OpError
from ..kernels import records

TYPES = [name for name, t in element_types.TABLE.items() if t.in_sessions and t.storage]  # that compiled code knows


def chosen(operators=None):
    """The declarations that are meant by names as in models, and by what `onnx_ops.operator` has made; default: all.

    Raises OpError.
    """
    if operators is None:
        return list(every.known().values())
    own = [each for each in operators if not isinstance(each, str)]
    there = every.known(own).values()
    names = known("operators", [each for each in operators if isinstance(each, str)], {o.name: o for o in there})
    own = [*map(every.declaration_of, own)]
    return [operator for operator in there if operator.name in names or operator in own]


def asked_for(operators, dtypes, known_types=tuple(element_types.TABLE), default=element_types.FLOATS, are_all=False):
    """`variants` of these; raises OpError if there are none of one of the operators, or with one of the dtypes.

    operators  declarations
    are_all    whether these are all that there are, so that nobody has asked for each
    """
    types = known("dtypes", dtypes or default, known_types)
    found = list(combinations(operators, types))
    names = dict.fromkeys(operator.name for operator in operators)
    for name in () if are_all else names:
        if all(operator.name != name for operator, _, _ in found):
            rule = f"sessions have no {name} of these types alone"
            if all(o.is_function and not o.is_compiled for o in operators if o.name == name):
                rule = f"no kernel of {name} can be compiled, which has none; give it one by .kernel"
            raise OpError("dtypes", ", ".join(types), rule, "onnx_ops")
    for dtype in dtypes or ():
        if all(dtype not in tensor_types(operator, signature) for operator, _, signature in found):
            rule = f"sessions have no {' or '.join(names)} of it and the other types alone"
            raise OpError("dtypes", repr(dtype), rule, "onnx_ops")
    return distinct(found)


def variants(operators, dtypes):
    """`distinct` of all combinations of these operators and element types."""
    return distinct(combinations(operators, dtypes))


def combinations(operators, dtypes):
    """(operator, position of a kernel, signature) for all that sessions have of these operators and tensor types."""
    for operator in operators:
        for signature in operator.signatures():
            if not tensor_types(operator, signature) <= set(dtypes):
                continue
            for position in range(kernel_count(operator)):
                if takes(operator, position, signature):
                    yield operator, position, signature


def kernel_count(operator):
    """How many kernels an operator has for the same element types."""
    return operator.combinations() if operator.is_function else len(operator.kernels)


def takes(operator, position, signature):
    """Whether the kernel at this position takes these element types."""
    if operator.is_function:
        return operator.storage(position, signature) is not None
    with suppress(OpError):
        operator.check_types(operator.kernels[position], signature)
        return True
    return False


def tensor_types(operator, signature):
    """The element types of the tensors that kernels see, but those that are always the same."""
    variables = [operator.inputs[k].type for k in operator.tensors] + [o.type for o in operator.outputs]
    return {signature[v] for v in variables if not operator.is_function or len(operator.types[v]) > 1}


def distinct(found):
    """{name: (operator, position, signature)}, one for each that is compiled differently."""
    named, seen = {}, set()
    for operator, position, signature in found:
        key = kernel_key(operator, position, signature)
        if key not in seen:
            seen.add(key)
            variables = sorted({operator.inputs[k].type for k in operator.tensors} | {o.type for o in operator.outputs})
            shown = ", ".join([*settings(operator, position), *(signature[v] for v in variables)])
            named[f"{operator.title} {shown}"] = operator, position, signature
    return named


def settings(operator, position):
    """What leads to the kernel at this position, where there are others."""
    if not operator.is_function:
        return operator.kernels[position].attributes.values() if len(operator.kernels) > 1 else ()
    ranks = zip(operator.inputs, operator.combination(position), strict=True)
    known = ((i.name, rank) for i, rank in ranks if len(operator.compiled_ranks(i)) > 1)
    return [f"no {name}" if rank == ABSENT else f"rank {rank} of {name}" for name, rank in known]


def kernel_key(operator, position, signature):
    """What tells compiled functions from others."""
    if operator.is_function:
        return operator, position, operator.storage(position, signature)
    kernel = operator.kernels[position]
    return operator.resolve, operator.infer, operator.plan, kernel.function, operator.storage(kernel, signature)


def entries(operator, position, signature):
    """What is compiled for them: resolve and infer, which functions lack, plan, and the kernel if it sees the types."""
    if operator.is_function:
        yield records.plan_entry(operator, position)
    else:
        yield from (make(operator) for make in (records.resolve_entry, records.infer_entry, records.plan_entry))
    if operator.storage(position if operator.is_function else operator.kernels[position], signature):
        yield records.kernel_entry(operator, position, signature)


def tasks(found):
    """For `share_out`: (name, arguments of `codes`) of these variants."""
    return [
        (name, [operator.domain, operator.name, position, signature])
        for name, (operator, position, signature) in found.items()
    ]


def codes(domain, name, position, signature):
    """The `Code` of each of the entries of an operator. Raises OpError where one isn't kept."""
    from ..kernels import cache
    from ..kernels.code import code

    found = [code(entry) for entry in entries(every.known()[domain, name], position, signature)]
    for each in found:
        if missing := each.kept.missing():
            raise OpError("cache", cache.directory(), f"can't keep what is compiled: {missing}", "onnx_ops")
    return found


def known(argument, given, known):
    names = list(known if given is None else given)
    for name in names:
        if name not in known:
            raise OpError(argument, repr(name), f"must be among {', '.join(known)}", "onnx_ops")
    return names
