"""The operators that there are. A new one is a file here with `Operator`s in its `OPERATORS`.

`onnx_ops.operators()` lists them: this package can be called, since that is also its name.
"""

import sys
import types

from ..dtypes import TABLE
from . import col2im, grid_sample

OPERATORS = (*col2im.OPERATORS, *grid_sample.OPERATORS)


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
