"""Declare an operator from a function's signature and the arguments of `onnx_ops.operator`."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Sequence
from dataclasses import replace
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
        rule = "must be like 'my.domain::Name', or '::Name' of ai.onnx"
        require(separator and op_type.isidentifier(), "name", repr(name), rule)
        parameters = parameters_of("body", body)
        is_version = isinstance(version, int) and version >= 1
        require(is_version, "version", repr(version), "must be an integer from 1 on")
        declared_inputs = _parameters(inputs, "inputs")
        declared_outputs = _parameters(outputs, "outputs")
        variables = _variables(types, declared_inputs, declared_outputs)
        _check_tensors(declared_inputs, declared_outputs, outputs, variables)
        attributes = _attributes(body, parameters.values(), declared_inputs)
        compiled = _ranks(ranks, declared_inputs)
        tensors: Sequence[Input | Attribute] = (*declared_inputs, *declared_outputs)
        _check_distinct([declared.name for declared in (*tensors, *attributes)])
        return Operator(
            domain="" if domain == "ai.onnx" else domain,
            name=op_type,
            versions=(version,),
            ranks=compiled[0],
            inputs=tuple(
                replace(i, ranks=r or (1,)) for i, r in zip(declared_inputs, compiled, strict=True)
            ),
            outputs=tuple(Output(o.name, o.type) for o in declared_outputs),
            types=variables,
            attributes=attributes,
            reference=body,
            is_wide=False,
            plan=Plan(),
        )


def _check_tensors(
    inputs: Sequence[Input],
    outputs: Iterable[Input],
    text: str,
    variables: Mapping[str, Sequence[str]],
) -> None:
    """Raise OpError for inputs and outputs that ONNX Runtime can't have together.

    text  that describes the outputs
    """
    for i in inputs[:-1]:
        rule = "must be the last input to stand for any number"
        require(i.presence != "variadic", i.name, "*", rule)
    for o in outputs:
        is_derived = any(i.type == o.type for i in inputs) or len(variables[o.type]) == 1
        rule = "must be a data type, or the type of an input, from which ONNX Runtime derives it"
        require(is_derived, f"type of {o.name}", o.type, rule)
        rule = "must always be present, once: no ? or *"
        require(o.presence == "required", "outputs", repr(text), rule)


def _check_distinct(names: Sequence[str]) -> None:
    """Raise OpError unless the names of inputs, outputs and attributes are distinct and free."""
    for name in names:
        rule = "must be that of one input, output or attribute"
        require(names.count(name) == 1, "names", name, rule)
        rule = "is the argument of calls for the number of threads; use another name"
        require(name != "threads", "names", name, rule)


PRESENCES = {"": "required", "?": "optional", "*": "variadic"}


def _parameters(text: str, argument: str) -> list[Input]:
    """Return the Inputs that a text describes, such as "x: T, bias: T?"."""
    require(isinstance(text, str), argument, repr(text), 'must be a text like "x: T, y: T"')
    parameters = []
    for parameter in text.split(","):
        match: typing.Any = re.fullmatch(r"\s*(\w+)\s*:\s*(\w+)\s*([?*]?)\s*", parameter)
        require(match, argument, repr(parameter), 'must be like "x: T", separated by commas')
        parameters.append(Input(match[1], match[2], presence=PRESENCES[match[3]]))
    return parameters


def _variables(
    types: Mapping[str, str | Sequence[str]], inputs: Sequence[Input], outputs: Sequence[Input]
) -> dict[str, tuple[str, ...]]:
    """Return {type variable: data types} of the inputs and outputs.

    A data type is also a type variable.
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
    tensors = *inputs, *outputs
    for tensor in tensors:
        rule = f"must be a type variable of `types` or a data type ({', '.join(in_sessions)})"
        require(tensor.type in choices, f"type of {tensor.name}", repr(tensor.type), rule)
    return {tensor.type: choices[tensor.type] for tensor in tensors}


def _ranks(ranks: Mapping[str, Sequence[int]], inputs: Sequence[Input]) -> list[tuple[int, ...]]:
    """Return the ranks that are stated for each input."""
    names = [i.name for i in inputs]
    for name, stated in ranks.items():
        require(name in names, "ranks", repr(name), f"must be those of {', '.join(names)}")
        fits = isinstance(stated, Sequence) and all(
            isinstance(r, int) and 0 <= r <= MAX_RANK for r in stated
        )
        rule = f"must be a tuple of numbers from 0 to {MAX_RANK}"
        require(fits, f"ranks of {name}", repr(stated), rule)
    return [tuple(ranks.get(name, ())) for name in names]


def parameters_of(
    role: str, function: Callable[..., typing.Any]
) -> Mapping[str, inspect.Parameter]:
    """Return {name: parameter} of a function.

    Raises OpError, also for values that aren't functions.
    """
    require(
        inspect.isfunction(function),
        role,
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
    _check_positional(parameters, inputs)
    try:
        hints = typing.get_type_hints(body)
    except Exception as error:
        raise _unreadable(body, error) from error
    attributes = []
    for p in parameters:
        rule = "must be inputs or attributes, each with a name"
        require(p.kind != p.VAR_KEYWORD, "parameters", str(p), rule)
        if p.kind == p.KEYWORD_ONLY:
            rule = "must have one, which states the attribute's kind"
            require(p.name in hints, p.name, "without annotation", rule)
            attributes.append(_attribute(p.name, hints[p.name], p.default))
    return tuple(attributes)


def _check_positional(parameters: Iterable[inspect.Parameter], inputs: Sequence[Input]) -> None:
    """Raise OpError unless the positional parameters match the inputs."""
    positional = [
        p
        for p in parameters
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)
    ]
    names = [i.name for i in inputs]
    text = ", ".join(map(str, positional))
    require(
        [p.name for p in positional] == names,
        "parameters",
        f"({text})",
        f"must be the inputs: ({', '.join(names)})",
    )
    for p, i in zip(positional, inputs, strict=True):
        is_variadic = i.presence == "variadic"
        rule = f"must be *{i.name} for an input that has *, else not"
        require((p.kind == p.VAR_POSITIONAL) == is_variadic, i.name, str(p), rule)
        rule = "must have the default None if and only if the input has ?"
        require(
            is_variadic or (p.default is None) == (i.presence == "optional"), i.name, str(p), rule
        )


def _attribute(name: str, hint: typing.Any, default: object) -> Attribute:
    """Return the Attribute that an annotation describes."""
    required = default is inspect.Parameter.empty
    default = None if required else default
    options: Sequence[typing.Any] = (
        typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, UnionType) else (hint,)
    )
    options = [o for o in options if o is not type(None)]
    text = hint.__name__ if isinstance(hint, type) else str(hint)
    fields = _fields(options[0]) if len(options) == 1 else f"must be one of {ANNOTATIONS}"
    if isinstance(fields, str):
        raise OpError(f"annotation of {name}", text, fields)
    attribute = Attribute(name, default=default, required=required, **fields)
    if default is not None:
        attribute.vector(default)
    return attribute


def _fields(hint: typing.Any) -> dict[str, typing.Any] | str:
    """Return the fields of an Attribute with this annotation, or the rule that it breaks."""
    scalars = {int: "int", float: "float", str: "text", np.ndarray: "tensor"}
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    lists = {int: "ints", float: "floats"}
    is_list = origin in (tuple, list, Sequence) and arguments
    if hint is bool:
        return {"kind": "int", "bounds": (0, 1)}
    if hint in scalars:
        return {"kind": scalars[hint]}
    if origin is typing.Literal and all(isinstance(a, str) and "\0" not in a for a in arguments):
        return {"kind": "string", "choices": arguments}
    if is_list and arguments[0] in lists and len(set(arguments) - {...}) == 1:
        is_open = origin is not tuple or ... in arguments
        bounds = (1, MOST) if is_open else (len(arguments), len(arguments))
        return {"kind": lists[arguments[0]], "length_bounds": bounds}
    if is_list and arguments[0] is str:
        return "ONNX Runtime passes no lists of strings to custom operators"
    return f"must be one of {ANNOTATIONS}"
