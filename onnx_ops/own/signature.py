"""What a function's signature, and the texts beside it, say about its operator."""

import inspect
import re
import types
import typing
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import dtypes
from ..declaration import Attribute, Input, Output
from ..errors import OpError, require
from .function import Function

MOST = 2**40  # values of a list
ANNOTATIONS = "int, float, bool, str, tuple[int, ...], tuple[float, ...], Literal of strings, numpy.ndarray"


def declared(body, name, version, inputs, outputs, types, ranks):
    """The Function that these arguments of `operator` describe."""
    domain, separator, op_type = name.rpartition("::")
    title = f"{domain}.{op_type}".lstrip(".")
    try:
        require(separator and op_type.isidentifier(), "name", repr(name), "must be like 'my.domain::Name'")
        given = [_parsed(each, "inputs") for each in inputs.split(",")]
        returned = [_parsed(each, "outputs") for each in outputs.split(",")]
        variables = {v: tuple(names) for v, names in types.items()}
        for what, kind, _ in (*given, *returned):
            if kind in dtypes.TABLE:
                variables.setdefault(kind, (kind,))
            known = ", ".join([*variables, "an element type"])
            require(kind in variables, f"type of {what}", repr(kind), f"must be one of {known}")
        for variable, names in variables.items():
            for each in names:
                rule = f"must be among {', '.join(t.name for t in dtypes.TABLE.values() if t.in_sessions)}"
                require(each in dtypes.TABLE and dtypes.TABLE[each].in_sessions, f"type {variable}", repr(each), rule)
        ofinputs = {kind for _, kind, _ in given}
        for what, kind, mark in returned:
            rule = "must be an element type, or the type of an input"
            require(kind in ofinputs or len(variables[kind]) == 1, f"type of {what}", kind, rule)
            require(not mark, "outputs", repr(outputs), "must be there, always and one each: no ? or *")
        names = [what for what, *_ in given]
        for each in ranks:
            require(each in names, "ranks", repr(each), f"must be those of {', '.join(names)}")
        for k, (what, _, mark) in enumerate(given):
            require(mark != "*" or k == len(given) - 1, what, "*", "must be the last input to stand for any number")
        attributes = _attributes(body, given)
        presences = {"": "required", "?": "optional", "*": "variadic"}
        return Function(
            domain="" if domain == "ai.onnx" else domain,
            name=op_type,
            versions=(version,),
            ranks=tuple(ranks.get(names[0], ())),
            inputs=tuple(Input(n, kind, False, presences[mark], tuple(ranks.get(n, ()))) for n, kind, mark in given),
            outputs=tuple(Output(n, kind) for n, kind, _ in returned),
            types={v: names for v, names in variables.items() if any(v == kind for _, kind, _ in (*given, *returned))},
            attributes=attributes,
            body=body,
        )
    except OpError as error:
        if error.operator is None:
            OpError.__init__(error, error.argument, error.value, error.rule, title)
        raise


def _parsed(text, argument):
    """(name, type, mark) of one input or output, such as "x: T?"."""
    found = re.fullmatch(r"\s*(\w+)\s*:\s*(\w+)\s*([?*]?)\s*", text)
    require(found, argument, repr(text), 'must be like "x: T", separated by commas')
    return found.groups()


def _attributes(body, given):
    """The Attributes that a body's keyword-only parameters are; OpError if its signature doesn't fit the inputs."""
    parameters = inspect.signature(body).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
    names = [name for name, *_ in given]
    found = ", ".join(map(str, positional))
    require(
        [p.name for p in positional] == names, "parameters", f"({found})", f"must be the inputs: ({', '.join(names)})"
    )
    for p, (name, _, mark) in zip(positional, given, strict=True):
        require(
            (p.kind == p.VAR_POSITIONAL) == (mark == "*"),
            name,
            str(p),
            "must be *name for an input that has *, else not",
        )
        rule = "must have the default None if and only if the input has ?"
        require(mark == "*" or (p.default is None) == (mark == "?"), name, str(p), rule)
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
