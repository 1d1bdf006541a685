"""Declare an operator from a function's signature and the arguments of `onnx_ops.operator`."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace, UnionType

import numpy as np

from . import dtypes
from .attributes import Attribute
from .errors import OpError, errors_of, reason, require
from .jit import signature
from .limits import MAX_RANK
from .operator import Input, Operator, Output, Plan

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

MOST = 2**40  # values of an attribute that is a list of any length
ANNOTATIONS = (
    "int, float, bool, str, tuple[int, ...], tuple[float, ...], Literal of strings, numpy.ndarray"
)


def declared(
    body: Callable[..., typing.Any],
    name: str,
    version: int,
    inputs: str,
    outputs: str,
    types: Mapping[str, str | Sequence[str]],
    ranks: Mapping[str, Sequence[int]],
) -> Operator:
    """Return the Operator that these arguments of `operator` describe."""
    domain, separator, op_type = name.rpartition("::")
    with errors_of(SimpleNamespace(title=f"{domain}.{op_type}".lstrip("."), terms={})):
        require(
            separator and op_type.isidentifier(),
            "name",
            repr(name),
            "must be like 'my.domain::Name', or '::Name' of ai.onnx",
        )
        parameters = parameters_of("body", body)
        require(
            isinstance(version, int) and version >= 1,
            "version",
            repr(version),
            "must be an integer from 1 on",
        )
        given, returned = _parameters(inputs, "inputs"), _parameters(outputs, "outputs")
        variables = _variables(types, given, returned)
        for each in given[:-1]:
            require(
                each.presence != "variadic",
                each.name,
                "*",
                "must be the last input to stand for any number",
            )
        for each in returned:
            is_derived = any(i.type == each.type for i in given) or len(variables[each.type]) == 1
            rule = (
                "must be a data type, or the type of an input, from which ONNX Runtime derives it"
            )
            require(is_derived, f"type of {each.name}", each.type, rule)
            require(
                each.presence == "required",
                "outputs",
                repr(outputs),
                "must always be present, once: no ? or *",
            )
        attributes = _attributes(body, parameters.values(), given)
        compiled = _ranks(ranks, given)
        parts: Sequence[Input | Attribute] = (*given, *returned, *attributes)
        names = [part.name for part in parts]
        for taken in names:
            require(
                names.count(taken) == 1,
                "names",
                taken,
                "must be that of one input, output or attribute",
            )
            rule = "is the argument of calls for the number of threads; use another name"
            require(taken != "threads", "names", taken, rule)
        return Operator(
            domain="" if domain == "ai.onnx" else domain,
            name=op_type,
            versions=(version,),
            ranks=compiled[0],
            inputs=tuple(replace(i, ranks=r or (1,)) for i, r in zip(given, compiled, strict=True)),
            outputs=tuple(Output(o.name, o.type) for o in returned),
            types=variables,
            attributes=attributes,
            reference=body,
            is_wide=False,
            plan=Plan(),
        )


PRESENCES = {"": "required", "?": "optional", "*": "variadic"}


def _parameters(text: str, argument: str) -> list[Input]:
    """Return the Inputs that a text describes, such as "x: T, bias: T?"."""
    require(isinstance(text, str), argument, repr(text), 'must be a text like "x: T, y: T"')
    parameters = []
    for each in text.split(","):
        parts: typing.Any = re.fullmatch(r"\s*(\w+)\s*:\s*(\w+)\s*([?*]?)\s*", each)
        require(parts, argument, repr(each), 'must be like "x: T", separated by commas')
        parameters.append(Input(parts[1], parts[2], presence=PRESENCES[parts[3]]))
    return parameters


def _variables(
    types: Mapping[str, str | Sequence[str]], inputs: Sequence[Input], outputs: Sequence[Input]
) -> dict[str, tuple[str, ...]]:
    """Return {type variable: data types} of the inputs and outputs; a data type is also a type
    variable.
    """
    in_sessions = [name for name, t in dtypes.TABLE.items() if t.in_sessions]
    choices: dict[str, tuple[str, ...]] = {name: (name,) for name in in_sessions}
    choices |= {
        v: (names,) if isinstance(names, str) else tuple(names) for v, names in types.items()
    }
    for variable, names in choices.items():
        for name in names:
            require(
                name in in_sessions,
                f"type {variable}",
                repr(name),
                f"must be among {', '.join(in_sessions)}",
            )
    for each in (*inputs, *outputs):
        rule = f"must be a type variable of `types` or a data type ({', '.join(in_sessions)})"
        require(each.type in choices, f"type of {each.name}", repr(each.type), rule)
    return {each.type: choices[each.type] for each in (*inputs, *outputs)}


def _ranks(ranks: Mapping[str, Sequence[int]], inputs: Sequence[Input]) -> list[tuple[int, ...]]:
    """Return the ranks that are stated for each input."""
    names = [i.name for i in inputs]
    for name, each in ranks.items():
        require(name in names, "ranks", repr(name), f"must be those of {', '.join(names)}")
        fits = isinstance(each, Sequence) and all(
            isinstance(r, int) and 0 <= r <= MAX_RANK for r in each
        )
        require(
            fits, f"ranks of {name}", repr(each), f"must be a tuple of numbers from 0 to {MAX_RANK}"
        )
    return [tuple(ranks.get(name, ())) for name in names]


def parameters_of(
    what: str, function: Callable[..., typing.Any]
) -> Mapping[str, inspect.Parameter]:
    """Return {name: parameter} of a function.

    Raises OpError, also for values that aren't functions.
    """
    require(
        inspect.isfunction(function),
        what,
        repr(function),
        "must be a function, made by def or lambda",
    )
    try:
        return signature(function).parameters
    except Exception as error:
        raise _unreadable(function, error) from error


def _unreadable(function: Callable[..., typing.Any], error: Exception) -> OpError:
    return OpError("annotations", f"of {function.__name__}", f"can't be read: {reason(error)}")


def _attributes(
    body: Callable[..., typing.Any],
    parameters: Iterable[inspect.Parameter],
    inputs: Sequence[Input],
) -> tuple[Attribute, ...]:
    """Return the keyword-only parameters as Attributes.

    Raises OpError if the others don't match the inputs.
    """
    positional = [
        p
        for p in parameters
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)
    ]
    names = [i.name for i in inputs]
    text = ", ".join(map(str, positional))
    same = [p.name for p in positional] == names
    require(same, "parameters", f"({text})", f"must be the inputs: ({', '.join(names)})")
    for p, i in zip(positional, inputs, strict=True):
        is_variadic = i.presence == "variadic"
        rule = f"must be *{i.name} for an input that has *, else not"
        require((p.kind == p.VAR_POSITIONAL) == is_variadic, i.name, str(p), rule)
        rule = "must have the default None if and only if the input has ?"
        require(
            is_variadic or (p.default is None) == (i.presence == "optional"), i.name, str(p), rule
        )
    try:
        hints = typing.get_type_hints(body)
    except Exception as error:
        raise _unreadable(body, error) from error
    keywords = [p for p in parameters if p.kind == p.KEYWORD_ONLY]
    others = [p for p in parameters if p.kind == p.VAR_KEYWORD]
    require(
        not others,
        "parameters",
        ", ".join(map(str, others)),
        "must be inputs or attributes, each with a name",
    )
    for p in keywords:
        require(
            p.name in hints,
            p.name,
            "without annotation",
            "must have one, which states the attribute's kind",
        )
    return tuple(_attribute(p.name, hints[p.name], p.default) for p in keywords)


def _attribute(name: str, hint: typing.Any, default: object) -> Attribute:
    """Return the Attribute that an annotation describes."""
    required = default is inspect.Parameter.empty
    default = None if required else default
    attribute_of = partial(Attribute, name, default=default, required=required)
    options: Sequence[typing.Any] = (
        typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, UnionType) else (hint,)
    )
    options = [o for o in options if o is not type(None)]
    rule = f"must be one of {ANNOTATIONS}"
    text = (
        getattr(hint, "__name__", None)
        if isinstance(hint, type) and not typing.get_args(hint)
        else str(hint)
    )
    require(len(options) == 1, f"annotation of {name}", text, rule)
    (kind,) = options
    scalars = {int: "int", float: "float", str: "text", np.ndarray: "tensor"}
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    lists = {int: "ints", float: "floats"}
    is_list = origin in (tuple, list, Sequence) and arguments
    if kind is bool:
        attribute = attribute_of("int", bounds=(0, 1))
    elif kind in scalars:
        attribute = attribute_of(scalars[kind])
    elif origin is typing.Literal and all(isinstance(a, str) and "\0" not in a for a in arguments):
        attribute = attribute_of("string", choices=arguments)
    elif is_list and arguments[0] in lists and len(set(arguments) - {...}) == 1:
        count = (
            (1, MOST)
            if origin is not tuple or ... in arguments
            else (len(arguments), len(arguments))
        )
        attribute = attribute_of(lists[arguments[0]], length_bounds=count)
    elif is_list and arguments[0] is str:
        raise OpError(
            f"annotation of {name}",
            text,
            "ONNX Runtime passes no lists of strings to custom operators",
        )
    else:
        raise OpError(f"annotation of {name}", text, rule)
    if default is not None:
        attribute.vector(default)
    return attribute
