"""What a function's signature, and the texts beside it, say about its operator."""

import inspect
import re
import types
import typing
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .. import dtypes
from ..declaration import MAX_RANK, Attribute, Input, Output
from ..errors import OpError, require
from .function import Function

MOST = 2**40  # values of a list
ANNOTATIONS = "int, float, bool, str, tuple[int, ...], tuple[float, ...], Literal of strings, numpy.ndarray"


def declared(body, name, version, inputs, outputs, types, ranks):
    """The Function that these arguments of `operator` describe."""
    domain, separator, op_type = name.rpartition("::")
    try:
        require(separator and op_type.isidentifier(), "name", repr(name), "must be like 'my.domain::Name'")
        require(isinstance(version, int) and version >= 1, "version", repr(version), "must be an integer from 1 on")
        given, returned = _parameters(inputs, "inputs"), _parameters(outputs, "outputs")
        variables = _variables(types, given, returned)
        for k, each in enumerate(given):
            last = k == len(given) - 1
            require(
                each.presence != "variadic" or last, each.name, "*", "must be the last input to stand for any number"
            )
        for each in returned:
            known = any(i.type == each.type for i in given) or len(variables[each.type]) == 1
            require(known, f"type of {each.name}", each.type, "must be an element type, or the type of an input")
            require(
                each.presence == "required", "outputs", repr(outputs), "must be there, always and one each: no ? or *"
            )
        attributes, compiled = _attributes(body, given), _ranks(ranks, given)
        names = [each.name for each in (*given, *returned, *attributes)]
        for each in names:
            require(names.count(each) == 1, "names", each, "must be that of one input, output or attribute")
        return Function(
            domain="" if domain == "ai.onnx" else domain,
            name=op_type,
            versions=(version,),
            ranks=compiled[0],
            inputs=tuple(replace(i, ranks=r) for i, r in zip(given, compiled, strict=True)),
            outputs=tuple(Output(o.name, o.type) for o in returned),
            types=variables,
            attributes=attributes,
            body=body,
        )
    except OpError as error:
        if error.operator is None:
            OpError.__init__(error, error.argument, error.value, error.rule, f"{domain}.{op_type}".lstrip("."))
        raise


PRESENCES = {"": "required", "?": "optional", "*": "variadic"}


def _parameters(text, argument):
    """Inputs from a text such as "x: T, bias: T?"."""
    found = []
    for each in text.split(","):
        parts = re.fullmatch(r"\s*(\w+)\s*:\s*(\w+)\s*([?*]?)\s*", each)
        require(parts, argument, repr(each), 'must be like "x: T", separated by commas')
        found.append(Input(parts[1], parts[2], presence=PRESENCES[parts[3]]))
    return found


def _variables(types, given, returned):
    """{type variable: element types} of those that inputs and outputs have; an element type stands for itself."""
    in_sessions = [name for name, t in dtypes.TABLE.items() if t.in_sessions]
    known = {name: (name,) for name in in_sessions}
    known |= {v: (names,) if isinstance(names, str) else tuple(names) for v, names in types.items()}
    for variable, names in known.items():
        for name in names:
            require(name in in_sessions, f"type {variable}", repr(name), f"must be among {', '.join(in_sessions)}")
    for each in (*given, *returned):
        rule = f"must be one of {', '.join([*types, 'an element type'])}"
        require(each.type in known, f"type of {each.name}", repr(each.type), rule)
    return {each.type: known[each.type] for each in (*given, *returned)}


def _ranks(ranks, given):
    """Those that are given of each input."""
    names = [i.name for i in given]
    for name, each in ranks.items():
        require(name in names, "ranks", repr(name), f"must be those of {', '.join(names)}")
        fits = isinstance(each, Sequence) and all(isinstance(r, int) and 0 <= r <= MAX_RANK for r in each)
        require(fits, f"ranks of {name}", repr(each), f"must be a tuple of numbers from 0 to {MAX_RANK}")
    return [tuple(ranks.get(name, ())) for name in names]


def _attributes(body, given):
    """The Attributes that a body's keyword-only parameters are; OpError if its signature doesn't fit the inputs."""
    parameters = inspect.signature(body).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
    names = [i.name for i in given]
    found = ", ".join(map(str, positional))
    same = [p.name for p in positional] == names
    require(same, "parameters", f"({found})", f"must be the inputs: ({', '.join(names)})")
    for p, i in zip(positional, given, strict=True):
        is_variadic = i.presence == "variadic"
        rule = f"must be *{i.name} for an input that has *, else not"
        require((p.kind == p.VAR_POSITIONAL) == is_variadic, i.name, str(p), rule)
        rule = "must have the default None if and only if the input has ?"
        require(is_variadic or (p.default is None) == (i.presence == "optional"), i.name, str(p), rule)
    try:
        hints = typing.get_type_hints(body)
    except Exception as error:
        raise OpError(
            "annotations", f"of {body.__name__}", f"can't be read: {type(error).__name__}: {error}"
        ) from error
    keywords = [p for p in parameters if p.kind == p.KEYWORD_ONLY]
    others = [p for p in parameters if p.kind == p.VAR_KEYWORD]
    require(not others, "parameters", ", ".join(map(str, others)), "must be inputs or attributes, each with a name")
    for p in keywords:
        require(p.name in hints, p.name, "without annotation", "must have one, which says what the attribute is")
    return tuple(_attribute(p.name, hints[p.name], p.default) for p in keywords)


def _attribute(name, hint, default):
    """The Attribute that an annotation stands for."""
    required = default is inspect.Parameter.empty
    settings: dict[str, Any] = {"required": required, "default": None if required else default}
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    options = [o for o in options if o is not type(None)]
    rule = f"must be one of {ANNOTATIONS}"
    shown = getattr(hint, "__name__", None) if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
    require(len(options) == 1, f"annotation of {name}", shown, rule)
    (kind,) = options
    scalars = {int: "int", float: "float", str: "text", np.ndarray: "tensor"}
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    lists = {int: "ints", float: "floats"}
    if kind is bool:
        made = Attribute(name, "int", bounds=(0, 1), **settings)
    elif kind in scalars:
        made = Attribute(name, scalars[kind], **settings)
    elif origin is typing.Literal and all(isinstance(a, str) for a in arguments):
        made = Attribute(name, "string", choices=arguments, **settings)
    elif origin in (tuple, list, Sequence) and arguments and arguments[0] in lists and len(set(arguments) - {...}) == 1:
        count = (1, MOST) if origin is not tuple or ... in arguments else (len(arguments), len(arguments))
        made = Attribute(name, lists[arguments[0]], lengths=count, **settings)
    elif origin in (tuple, list, Sequence) and arguments and arguments[0] is str:
        raise OpError(f"annotation of {name}", shown, "ONNX Runtime hands no lists of strings to custom operators")
    else:
        raise OpError(f"annotation of {name}", shown, rule)
    if default is not inspect.Parameter.empty and default is not None:
        made.vector(default)
    return made
