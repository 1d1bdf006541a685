"""The operators that there are. A new one is a file in this folder, with its `Operator`s in `OPERATORS`.

`onnx_ops.operators()` lists them: this package can be called, since that is also its name.
"""

import sys
import types
from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules

from ..declaration import Declaration
from ..dtypes import TABLE
from ..errors import OpError

OPERATORS = tuple(
    operator for file in iter_modules(__path__) for operator in import_module(f".{file.name}", __name__).OPERATORS
)


_used: dict = {}  # operators of one's own that everything in this process knows


def known(own=()):
    """{(domain, name): declaration} of the operators that there are: ours, those in use, and `own`.

    own  what `onnx_ops.operator` has made, or declarations

    Raises OpError where two have one name.
    """
    found = {(o.domain, o.name): o for o in OPERATORS} | _used
    own = own if isinstance(own, Iterable) else [own]
    for declared in map(declaration_of, own):
        other = found.setdefault((declared.domain, declared.name), declared)
        if other is not declared:
            places = " and ".join(sorted({other.source, declared.source}))
            rule = f"is declared twice, in {places}; one session can't have both"
            raise OpError("operators", declared.title, rule, "onnx_ops")
    return found


def declaration_of(operator):
    """That of what `onnx_ops.operator` has made, or of what is one. Raises OpError."""
    found = getattr(operator, "declaration", operator)
    if not isinstance(found, Declaration):
        rule = "must be what onnx_ops.operator has made, or a declaration"
        raise OpError("operators", repr(operator), rule, "onnx_ops")
    return found


def own_operators():
    """The operators of one's own that everything in this process knows."""
    return list(_used.values())


def use(own):
    """Have everything in this process know these operators. Raises OpError."""
    _used.update({key: operator for key, operator in known(own).items() if operator not in OPERATORS})


class _Package(types.ModuleType):
    def __call__(self):
        """What there is: a list with, for each operator of each domain, a dict of

        domain, name   as in a model's node; domain "" is ai.onnx
        versions       of the domain, those that changed the operator
        ranks          of the first input
        dtypes         {type variable: element types} in sessions
        array_dtypes   {type variable: element types} of the functions on arrays
        inputs         {input: type variable}
        outputs        {output: type variable}
        attributes     {attribute: default}
        """
        return [
            {
                "domain": o.domain,
                "name": o.name,
                "versions": o.versions,
                "ranks": o.ranks,
                "dtypes": {v: tuple(n for n in names if TABLE[n].in_sessions) for v, names in o.types.items()},
                "array_dtypes": dict(o.types),
                "inputs": {i.name: i.type for i in o.inputs},
                "outputs": {each.name: each.type for each in o.outputs},
                "attributes": {a.name: a.default for a in o.attributes},
            }
            for o in known().values()
        ]


sys.modules[__name__].__class__ = _Package
