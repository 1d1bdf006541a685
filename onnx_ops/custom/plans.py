"""The plan and the kernel of a custom operator: generated functions that call the user's, here all called `user`.

Those of an operator with the inputs x and bias, the attribute a and the output y:

    def rule(attributes, inputs, outputs):
        shapes = shapes_of(outputs, user(*(inputs + attributes[:])))
        return (write_shape(outputs[0], shapes[0]), )

    def loop(attributes, inputs, outputs):
        return user(*(inputs + attributes[:]))

    def kernel(attributes, inputs, inputs0, inputs1, g, tile, workspace, outputs0):  # inputs: their sizes
        shapes = shapes_of((outputs0, ), rule(*(inputs + attributes[:])))
        return user(inputs0, inputs1, attributes[0], tile, g.tiles, workspace,
                    elements_in(outputs0, 0, shapes[0], outputs0))
"""

from dataclasses import replace

from ..declaration.operator import Kernel, Plan
from ..kernels.elements import elements_in
from ..kernels.returned import shapes_of, write_shape

CALLED = {"elements_in": elements_in, "shapes_of": shapes_of, "write_shape": write_shape}


def with_functions(operator, *, rule, bound, kernel=None, types=(), **work):
    """Return the operator with a user's rule and kernel. work: {"loop" or "workspace": function or None}."""
    work = {name: work_of(name, each) for name, each in work.items() if each}
    kernels = (Kernel(kernel_of(operator, kernel, rule, "workspace" in work), types=types),) if kernel else ()
    return replace(operator, plan=Plan(shape_of(operator, rule), is_bound=bound, **work), kernels=kernels)


def shape_of(operator, rule):
    """Return the function that states the shapes of a user's rule."""
    ranks = [f"write_shape(outputs[{k}], shapes[{k}])" for k in range(len(operator.outputs))]
    arguments = "*(inputs + attributes[:])"
    if operator.inputs[-1].presence == "variadic":  # then Numba doesn't compile it
        named = [f"{a.name}=attributes[{k}]" for k, a in enumerate(operator.attributes)]
        arguments = ", ".join(["*inputs", *named])
    text = f"""def rule(attributes, inputs, outputs):
 shapes = shapes_of(outputs, user({arguments}))
 return {packed(ranks)}"""
    return function_of(text, rule)


def work_of(name, function):
    """Return the function that calls a user's function for the loop or the workspace."""
    return function_of(f"def {name}(attributes, inputs, outputs): return user(*(inputs + attributes[:]))", function)


def kernel_of(operator, kernel, rule, has_workspace):
    """Return the function that calls a user's kernel, with outputs in the shapes of the rule."""
    inputs = [f"inputs{k}" for k in range(len(operator.inputs))]
    outputs = [f"outputs{k}" for k in range(len(operator.outputs))]
    attributes = [f"attributes[{k}]" for k in range(len(operator.attributes))]
    views = [f"elements_in({name}, 0, shapes[{k}], {name})" for k, name in enumerate(outputs)]
    room = "workspace" if has_workspace else "None"
    text = f"""def kernel(attributes, inputs, {", ".join([*inputs, "g, tile, workspace", *outputs])}):
 shapes = shapes_of({packed(outputs)}, rule(*(inputs + attributes[:])))
 return user({", ".join([*inputs, *attributes, "tile, g.tiles", room, *views])})"""
    function = function_of(text, kernel, rule=rule)
    function.__name__ = kernel.__name__  # for the names of files in the cache
    return function


def packed(texts):
    """Return the text of a tuple."""
    return f"({''.join(f'{text}, ' for text in texts)})"


def function_of(text, user, **others):
    """Return the function that a text defines, which calls these functions. In errors, it is where the user's is."""
    code, space = user.__code__, {"__name__": user.__module__, **CALLED, "user": user, **others}
    exec(compile("\n" * (code.co_firstlineno - 1) + text, code.co_filename, "exec"), space)
    return space[text[len("def ") : text.index("(")]]
