"""Which functions of an operator are compiled differently: its variants."""

from contextlib import suppress

from .. import dtypes as element_types
from ..errors import OpError
from ..kernels import records
from ..operator import Record
from ..operators import OPERATORS

TYPES = [name for name, t in element_types.TABLE.items() if t.in_sessions and t.storage]  # that compiled code knows


def asked_for(operators, dtypes, known_types=tuple(element_types.TABLE), default=element_types.FLOATS):
    """`variants` of these; raises OpError if there are none of one of the operators, or with one of the dtypes."""
    names = known("operators", operators, dict.fromkeys(o.name for o in OPERATORS))
    types = known("dtypes", dtypes or default, known_types)
    found = list(combinations(names, types))
    for name in names if operators else ():
        if all(operator.name != name for operator, _, _ in found):
            raise OpError("dtypes", ", ".join(types), f"sessions have no {name} of these types alone", "onnx_ops")
    for dtype in dtypes or ():
        if all(dtype not in tensor_types(operator, signature) for operator, _, signature in found):
            rule = f"sessions have no {' or '.join(names)} of it and the other types alone"
            raise OpError("dtypes", repr(dtype), rule, "onnx_ops")
    return distinct(found)


def variants(names, dtypes):
    """`distinct` of all combinations of these operators and element types."""
    return distinct(combinations(names, dtypes))


def combinations(names, dtypes):
    """(operator, attributes, signature) for all that sessions have of these operators, with tensors of these types."""
    for operator in (o for o in OPERATORS if o.name in names):
        for signature in operator.signatures():
            for kernel in operator.kernels if tensor_types(operator, signature) <= set(dtypes) else ():
                with suppress(OpError):
                    operator.check_types(kernel, signature)
                    yield operator, kernel.attributes, signature


def tensor_types(operator, signature):
    """The element types of the tensors that kernels see."""
    return {signature[operator.inputs[k].type] for k in operator.tensors} | {signature[operator.output]}


def distinct(found):
    """{name: (operator, attributes, signature)}, one for each that is compiled differently."""
    named, seen = {}, set()
    for operator, attributes, signature in found:
        key = kernel_key(operator, chosen(operator, attributes), signature)
        if key not in seen:
            seen.add(key)
            variables = sorted({operator.inputs[k].type for k in operator.tensors} | {operator.output})
            settings = attributes.values() if len(operator.kernels) > 1 else ()
            shown = ", ".join([*settings, *(signature[v] for v in variables)])
            named[f"{operator.title} {shown}"] = operator, attributes, signature
    return named


def chosen(operator, attributes):
    """The kernel that these attributes lead to."""
    return operator.kernel(Record(operator.resolved(attributes)[0]))


def kernel_key(operator, kernel, signature):
    """What tells compiled functions from others."""
    return operator.resolve, operator.infer, operator.plan, kernel.function, operator.storage(kernel, signature)


def entries(operator, attributes, signature):
    """What is compiled for them: resolve, infer, plan and, unless it can't see these types, the kernel."""
    kernel = chosen(operator, attributes)
    yield from (make(operator) for make in (records.resolve_entry, records.infer_entry, records.plan_entry))
    if storage := operator.storage(kernel, signature):
        yield records.kernel_entry(operator, kernel, storage)


def tasks(found):
    """For `share_out`: (name, arguments of `codes`) of these variants."""
    return [(name, [OPERATORS.index(o), dict(attributes), s]) for name, (o, attributes, s) in found.items()]


def codes(number, attributes, signature):
    """The `Code` of each of the entries of operator `number`. Raises OpError where one isn't kept."""
    from ..kernels import cache
    from ..kernels.code import code

    found = [code(entry) for entry in entries(OPERATORS[number], attributes, signature)]
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
