"""Compiling ahead, so that no session has to."""

from .. import dtypes as element_types
from ..errors import OpError
from ..operator import Record
from ..operators import OPERATORS
from .execute import compiled, have_numba


def warmup(operators=None, dtypes=None, *, progress=None):
    """Compile what sessions would, and keep it for later processes; what is kept already is only looked at.

    operators  names as in models, such as "GridSample"; default: all
    dtypes     names of element types, such as "float32": every combination of these as the types of an operator's
               tensors is compiled. Default: the floating-point ones, which takes a minute or two
    progress   called before each variant with (its name, its index, how many there are)

    Returns the number of variants. Raises OpError.
    """
    if not have_numba():
        raise OpError(None, None, "Numba can't be imported, which compiles the kernels", "onnx_ops")
    from ..kernels import entry
    from .compute import compute

    names = _known("operators", operators, dict.fromkeys(o.name for o in OPERATORS))
    dtypes = _known("dtypes", dtypes or element_types.FLOATS, element_types.TABLE)
    found = variants(names, dtypes)
    told = entry.expected.set(True)
    try:
        compute()
        for index, (name, variant) in enumerate(found.items()):
            if progress:
                progress(name, index, len(found))
            compiled(*variant)
    finally:
        entry.expected.reset(told)
    return len(found)


def variants(names, dtypes):
    """{name: (operator, parameters, signature)} one for each pair of a plan and a compiled kernel."""
    found, seen = {}, set()
    for operator in (o for o in OPERATORS if o.name in names):
        tensors = {operator.inputs[k].type for k in operator.tensors} | {operator.output}
        for signature in operator.signatures():
            for attributes in operator.variants if all(signature[v] in dtypes for v in tensors) else ():
                parameters = operator.resolved(attributes)
                record = Record(parameters[0])
                try:
                    operator.allows(record, signature)
                except OpError:
                    continue
                key = operator.plan, operator.kernel(record), operator.storage(record, signature)
                if key not in seen:
                    seen.add(key)
                    shown = ", ".join([*attributes.values(), *(signature[v] for v in sorted(tensors))])
                    found[f"{operator.title} {shown}"] = operator, parameters, signature
    return found


def _known(argument, given, known):
    names = list(known if given is None else given)
    for name in names:
        if name not in known:
            raise OpError(argument, repr(name), f"must be among {', '.join(known)}", "onnx_ops")
    return names
