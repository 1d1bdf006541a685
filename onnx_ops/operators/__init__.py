"""The operators that there are. A new one is a file in this folder, with its `Operator`s in `OPERATORS`.

`onnx_ops.operators()` lists them: this package can be called, since that is also its name.
"""

import sys
import types
from importlib import import_module
from pkgutil import iter_modules

from ..dtypes import TABLE

OPERATORS = tuple(
    operator for file in iter_modules(__path__) for operator in import_module(f".{file.name}", __name__).OPERATORS
)


class _Package(types.ModuleType):
    def __call__(self):
        """What there is: a list with, for each operator of each domain, a dict of

        domain, name   as in a model's node; domain "" is ai.onnx
        versions       of the domain, those that changed the operator
        ranks          of the first input
        dtypes         {type variable: element types} in sessions
        array_dtypes   {type variable: element types} of the functions on arrays
        inputs         {input: type variable}
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
                "attributes": {a.name: a.default for a in o.attributes},
            }
            for o in OPERATORS
        ]


sys.modules[__name__].__class__ = _Package
