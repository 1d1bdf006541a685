"""The operators of this package, which the files of the families declare in `OPERATORS`, and custom ones in use.

`onnx_ops.operators()` lists them: this module has that name, too, and can therefore be called.
"""

import os
import sys
import types
from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from .declaration.dtypes import TABLE
from .declaration.errors import OpError
from .declaration.operator import Operator

OPERATORS = tuple(
    operator
    for family in ("fold", "sampling", "detection", "openmmlab")
    for file in iter_modules([os.path.join(os.path.dirname(__file__), family)])
    for operator in getattr(import_module(f".{family}.{file.name}", __package__), "OPERATORS", ())
)
DOMAINS = {operator.domain for operator in OPERATORS}
SHARED = "custom"  # a domain of which other libraries have operators, too
_used: dict = {}  # custom operators that everything in this process knows


def available(custom=()):
    """{(domain, name): declaration} of this package's operators, those in use, and `custom`.

    custom  what `onnx_ops.operator` has made, or declarations

    Raises OpError if two have the same name.
    """
    declarations = {(o.domain, o.name): o for o in OPERATORS} | _used
    for declared in map(declaration_of, as_list(custom)):
        other = declarations.setdefault((declared.domain, declared.name), declared)
        if other is not declared:
            places = " and ".join(sorted({other.source, declared.source}))
            rule = f"is declared twice, in {places}; one session can't have both"
            raise OpError("operators", declared.title, rule, "onnx_ops")
    return declarations


def as_list(operators):
    """A list of operators, which are given as an iterable or as a single one."""
    return list(operators) if isinstance(operators, Iterable) else [operators]


def declaration_of(operator):
    """The declaration of what `onnx_ops.operator` has made; a declaration stays as it is. Raises OpError."""
    declaration = getattr(operator, "declaration", operator)
    if not isinstance(declaration, Operator):
        rule = "must be what onnx_ops.operator has made, or a declaration"
        raise OpError("operators", repr(operator), rule, "onnx_ops")
    return declaration


def is_default(operator):
    """Return whether an operator is registered where neither a model nor domains are stated.

    The custom domain com.microsoft breaks models in which ONNX Runtime fuses nodes. Other libraries have operators of
    the domain custom, too, and ONNX Runtime takes those of a domain from one library only.
    """
    return operator.domain != "com.microsoft" and not (operator.domain == SHARED and operator in OPERATORS)


def first_version(operator):
    """Return the first version of its domain in which sessions have a declared operator.

    In ai.onnx it is 1, unless a node of an older version is another operator: the exporters that write GridSample into
    models of opset 11 mean this one. A custom operator there may replace an older one in the versions that it states;
    it is registered for the version before, too. To fold a node whose inputs are all constant, ONNX Runtime looks for
    its built-in kernel by this version. A kernel that it found would not fit our schema, and the session would fail.
    Without one it warns that it can't fold the node, and the C library folds it.
    """
    first = operator.versions[0]
    if operator.domain or operator.has_older:
        return first
    return 1 if operator in OPERATORS else first - 1


def custom_operators():
    """The custom operators that everything in this process knows."""
    return list(_used.values())


def use(custom):
    """Have everything in this process know these operators. Raises OpError."""
    _used.update({key: operator for key, operator in available(custom).items() if operator not in OPERATORS})


class Operators(types.ModuleType):
    def __call__(self) -> list[dict[str, Any]]:
        """Return a list of all operators: those of this package, and custom ones in use.

        Returns
        -------
        list of dict
            For each operator of each domain a dict with these keys:

            ================  ==========================================================
            domain, name      as in a model's node; domain "" is ai.onnx
            versions          versions of the domain that changed the operator
            ranks             ranks of the first input
            dtypes            {type variable: element types} in sessions
            array_dtypes      {type variable: element types} for the functions on arrays
            inputs            {input: type variable}
            outputs           {output: type variable}
            attributes        {attribute: default}
            ================  ==========================================================

        Examples
        --------
        >>> [each["versions"] for each in onnx_ops.operators() if each["name"] == "RoiAlign"]
        [(16, 22)]
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
            for o in available().values()
        ]


sys.modules[__name__].__class__ = Operators
