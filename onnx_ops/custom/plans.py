"""The plan and the kernel of a custom operator.

They are generated functions that call the user's function `user`.

For an operator with the inputs x and bias, the attribute a and the output y:

    def rule(attributes, inputs, outputs):
        return write_shapes(
            outputs, returned_shapes(outputs, user(inputs[0], inputs[1], attributes[0]))
        )

    def kernel(attributes, inputs, inputs0, inputs1, g, tile, workspace, outputs0):
        # `inputs` are their sizes.
        shapes = returned_shapes((outputs0, ), rule(inputs[0], inputs[1], attributes[0]))
        return user(inputs0, inputs1, attributes[0], tile, g.tiles, workspace,
                    elements_in(outputs0, 0, shapes[0], outputs0))

Functions for the loop and the workspace are called as they are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..declaration.operator import Kernel, Plan
from ..kernels.elements import elements_in
from ..kernels.returned import returned_shapes, write_shapes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Sized
    from types import FunctionType
    from typing import Any

    from ..declaration.operator import Operator


CALLED = {
    "elements_in": elements_in,
    "returned_shapes": returned_shapes,
    "write_shapes": write_shapes,
}


def with_functions(
    operator: Operator,
    *,
    rule: FunctionType,
    bound: bool,
    kernel: FunctionType | None = None,
    types: Mapping[str, Sequence[str]] | None = None,
    loop: FunctionType | None = None,
    workspace: FunctionType | None = None,
) -> Operator:
    """Return the operator with a user's functions."""
    plan = Plan(shape_of(operator, rule), is_bound=bound, loop=loop, workspace=workspace)
    kernels = (
        (Kernel(kernel_of(operator, kernel, rule, workspace is not None), types=types or {}),)
        if kernel
        else ()
    )
    return replace(operator, plan=plan, kernels=kernels)


def shape_of(operator: Operator, rule: FunctionType) -> FunctionType:
    """Return the plan's shape function, which calls the user's."""
    arguments = rule_arguments(operator)
    if operator.is_variadic:  # then Numba doesn't compile it
        arguments = ", ".join(
            ["*inputs", *(f"{a.name}=attributes[{k}]" for k, a in enumerate(operator.attributes))]
        )
    text = (
        "def rule(attributes, inputs, outputs): return write_shapes(outputs, "
        f"returned_shapes(outputs, user({arguments})))"
    )
    return function_of(text, rule)


def rule_arguments(operator: Operator) -> str:
    """Return the text of the arguments of the user's shape function."""
    return ", ".join(
        [*elements("inputs", operator.inputs), *elements("attributes", operator.attributes)]
    )


def elements(name: str, declared: Sized) -> list[str]:
    """Return the texts of a tuple's elements, one for each declaration."""
    return [f"{name}[{k}]" for k in range(len(declared))]


def kernel_of(
    operator: Operator, kernel: FunctionType, rule: FunctionType, has_workspace: bool
) -> FunctionType:
    """Return the function that calls a user's kernel, with outputs in the shapes of the rule."""
    inputs = [f"inputs{k}" for k in range(len(operator.inputs))]
    outputs = [f"outputs{k}" for k in range(len(operator.outputs))]
    views = [f"elements_in({name}, 0, shapes[{k}], {name})" for k, name in enumerate(outputs)]
    workspace = "workspace" if has_workspace else "None"
    parameters = ", ".join([*inputs, "g, tile, workspace", *outputs])
    attributes = elements("attributes", operator.attributes)
    arguments = ", ".join([*inputs, *attributes, "tile, g.tiles", workspace, *views])
    text = f"""def kernel(attributes, inputs, {parameters}):
 shapes = returned_shapes(({", ".join(outputs)}, ), rule({rule_arguments(operator)}))
 return user({arguments})"""
    function = function_of(text, kernel, rule=rule)
    function.__name__ = kernel.__name__  # for the names of files in the cache
    return function


def function_of(text: str, user: FunctionType, **functions: FunctionType) -> FunctionType:
    """Return the function that a text defines, with the user's place in errors.

    functions  its globals besides the user's function
    """
    code = user.__code__
    namespace: dict[str, Any] = {"__name__": user.__module__, **CALLED, "user": user, **functions}
    exec(compile("\n" * (code.co_firstlineno - 1) + text, code.co_filename, "exec"), namespace)
    return namespace[text[len("def ") : text.index("(")]]
