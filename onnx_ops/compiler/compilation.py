"""Compiles Python functions to object code. What is private of Numba's is in numba_internals.py.

Importing this module imports Numba.
"""

import functools
import os
import re
from dataclasses import replace

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba import config, types
from numba.extending import register_jitable

from ..errors import OpError
from . import arrays, refusals, simd_blend, simd_boxes, simd_points, simd_rows, target  # noqa: F401  for their overloads
from .halves import I64
from .jit import BOUNDSCHECK, FLAGS, INNER, flags_of, marked
from .numba_internals import (
    cgutils,
    compiler,
    cpu_target,
    final_module,
    global_compiler_lock,
    optimized_once,
    whole_arrays,
)
from .records import TENSOR, ArrayView, Held, Named, Number, RecordView, Shapes

NO_MEMORY = "compiled code has only the workspace that it asks for"
OF_PYTHON = ("Py", "_Py", "numba_gil")  # how names of Python's functions begin
RAISED = 2  # the value that compiled code returns when it has raised an exception
NUMBA = os.path.dirname(numba.__file__)
if BOUNDSCHECK:
    from . import bounds  # noqa: F401  all code that is compiled from here on is checked


def tell_numba():
    """Tell Numba that compiled code may call the functions that have been marked so far."""
    while marked:
        helper = marked.pop()
        register_jitable(**flags_of[helper])(helper)


def cause(error):
    """The reason in an exception of the compiler, on one line, with the file and line of the function.

    A message of Numba's has an explanation for each function around the reason, then the reason, then the lines.
    """
    message = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # Numba prints in colours where it finds the package colorama
    heading, *lines = [line.strip() for line in message.splitlines()] or [""]
    if "NRT required but not enabled" in message:
        return f"it allocates memory, as `y[:] = x * 2`, instead of a loop, and texts in braces do; {NO_MEMORY}"
    after = [k for k, line in enumerate([heading, *lines]) if "Failed in nopython mode" in line]
    if not after or after[-1] >= len(lines):
        return f"{type(error).__name__}: {heading}"
    lines = lines[after[-1] :]
    reason = " ".join([lines[0], *[line for line in lines[:4] if line.startswith(">>>")]])
    if "Only accept returning of array" in reason:
        reason = f"it allocates memory; {NO_MEMORY}"
    if "<class 'function'>" in reason:
        reason += "; a function that compiled code calls must be marked by onnx_ops.jitable"
    places = re.findall(r"^During: typing of .* at (.+) \((\d+)\)$", "\n".join(lines), re.MULTILINE)
    places = [f" ({file}, line {line})" for file, line in places if not file.startswith(NUMBA)]
    return reason + (places[0] if places else "")


def object_code(entry, symbol):
    """Compile an entry (records.py) to an object file, in which the function is called `symbol`.

    The code is for this CPU, unless NUMBA_CPU_NAME and NUMBA_CPU_FEATURES name another. Raises OpError.
    """
    try:
        machine = _target_machine()
        with global_compiler_lock, whole_arrays(), optimized_once(symbol, machine):
            tell_numba()
            module = final_module(_compiled(entry, symbol))
            if any(f.is_declaration and f.name.startswith(OF_PYTHON) for f in module.functions):
                raise OpError("kernel", entry.name, "can't be compiled: it calls Python, as `print` does")
            # In a shared library, the symbol can't be seen from outside.
            module.get_function(symbol).visibility = "hidden"
            return machine.emit_object(module)
    except OpError:
        raise
    except Exception as error:
        raise OpError("kernel", entry.name, f"can't be compiled: {cause(error)}") from error


def _compiled(entry, symbol):
    """Numba's library with an entry's steps, and the function `symbol` that calls them in turn."""
    flags = compiler.Flags()
    cpu_target.options.parse_as_flags(flags, FLAGS | INNER)
    flags.no_compile = True  # the library is finished below, with the wrapper
    flags.enable_pyobject = False
    typing, context = cpu_target.typing_context, cpu_target.target_context

    @functools.cache
    def compiled(step):
        try:
            return compiler.compile_extra(typing, context, step.function, kinds(step), None, flags, {})
        except OpError:
            raise
        except Exception as error:
            raise OpError(step.role, step.place, f"can't be compiled: {cause(error)}") from error

    def kinds(step):
        return tuple(_type(ranked(a)) for a in step.arguments)

    def ranked(argument):
        """The argument, with the number of axes that a rule returns for it."""
        if not isinstance(argument, ArrayView) or not argument.ruled:
            return argument
        step, position = argument.ruled.step, argument.ruled.position
        axes = len(_shapes(compiled(step).signature.return_type, step.result.count)[position])
        return replace(argument, shape=argument.shape[:axes], ruled=None)

    library = compiled(entry.steps[0]).library
    module = library.create_ir_module(symbol)
    numbers = {a.parameter for step in entry.steps for a in step.arguments if isinstance(a, Number)}
    parameters = [I64 if k in numbers else cgutils.voidptr_t for k in range(entry.parameters)]
    function = ir.Function(module, ir.FunctionType(I64, parameters), symbol)
    builder = ir.IRBuilder(function.append_basic_block())
    for other in dict.fromkeys(compiled(step).library for step in entry.steps[1:]):
        if other is library:
            continue
        other.finalize()
        library.add_linking_library(other)

    def call(step):
        result = compiled(step)
        callee, returned = context.declare_function(module, result.fndesc), result.signature.return_type
        values = [_value(context, builder, function.args, ranked(a)) for a in step.arguments]
        status, value = context.call_conv.call_function(builder, callee, returned, kinds(step), values)
        with builder.if_then(status.is_error, likely=False):
            with builder.if_then(builder.icmp_unsigned("!=", status.code, refusals.CODE)):
                builder.ret(I64(RAISED))
            refusals.note_refusal(builder, status, _pointer(builder, function.args, entry.refusal))
            builder.ret(I64(1))
        if step.result:
            place = _pointer(builder, function.args, step.result.at)
            _store_result(context, builder, place, step, returned, value)

    for k, step in enumerate(entry.steps):
        if entry.phase:
            phase = _held(builder, function.args, entry.phase)
            with builder.if_then(builder.icmp_signed("==", phase, I64(k))):
                call(step)
        else:
            call(step)
    builder.ret(I64(0))
    library.add_ir_module(module)
    library.finalize()
    return library


def _shapes(kind, count):
    """The types of `count` shapes that a rule returns, each a tuple of integer types; `kind` is the type of all."""
    shapes = tuple(kind) if isinstance(kind, types.BaseTuple) else None
    if shapes is not None and count == 1 and all(isinstance(n, types.Integer) for n in shapes):
        shapes = (kind,)
    fits = shapes is not None and len(shapes) == count and all(isinstance(s, types.BaseTuple) for s in shapes)
    if not fits or not all(isinstance(n, types.Integer) for shape in shapes for n in shape):
        rule = "a tuple of integers" if count == 1 else f"{count} tuples of integers"
        raise OpError("rule", f"a function that returns {kind}", f"must return {rule}")
    return shapes


def _store_result(context, builder, place, step, kind, value):
    """Store what a step has returned, a value of the type `kind`, from a place on, as its result says (records.py)."""
    result = step.result

    def put(number, number_type, offset):
        number = context.cast(builder, number, number_type, types.int64)
        builder.store(number, builder.bitcast(builder.gep(place, [I64(offset)]), I64.as_pointer()))

    if isinstance(result, Shapes):
        rank, shape = TENSOR.fields["rank"][1], TENSOR.fields["shape"][1]
        shapes = _shapes(kind, result.count)
        values = [value] if shapes == (kind,) else cgutils.unpack_tuple(builder, value)
        for k, (numbers, each) in enumerate(zip(shapes, values, strict=True)):
            put(I64(len(numbers)), types.int64, k * TENSOR.itemsize + rank)
            for a, (number_type, number) in enumerate(zip(numbers, cgutils.unpack_tuple(builder, each), strict=True)):
                put(number, number_type, k * TENSOR.itemsize + shape + 8 * a)
        return
    numbers = tuple(kind) if isinstance(kind, types.BaseTuple) else (kind,) * result.count
    if len(numbers) != result.count or not all(isinstance(n, types.Integer) for n in numbers):
        raise OpError(step.role, f"a function that returns {kind}", f"must return the {result.what}")
    values = cgutils.unpack_tuple(builder, value) if isinstance(kind, types.BaseTuple) else [value] * result.count
    for k, (number_type, number) in enumerate(zip(numbers, values, strict=True)):
        put(number, number_type, k * result.pitch)


def _type(argument):
    """Numba's type for an argument of a step."""
    if argument is None:
        return types.none
    if isinstance(argument, Named):
        return types.BaseTuple.from_types(tuple(map(_type, argument.views)), argument.kind)
    if isinstance(argument, tuple):
        return types.BaseTuple.from_types(tuple(map(_type, argument)))
    if isinstance(argument, Number):
        return types.int64
    kind = numba.from_dtype(argument.dtype)
    if isinstance(argument, ArrayView):
        return arrays.array_type(kind, len(argument.shape), argument.is_input)
    return kind


def _value(context, builder, parameters, argument):
    """The value of a step's argument, which is made from the parameters of the compiled function."""
    kind = _type(argument)
    if argument is None:
        return context.get_dummy_value()
    if isinstance(argument, Named | tuple):
        views = argument.views if isinstance(argument, Named) else argument
        return context.make_tuple(builder, kind, [_value(context, builder, parameters, view) for view in views])
    if isinstance(argument, Number):
        return parameters[argument.parameter]
    if isinstance(argument, Held):
        return _held(builder, parameters, argument)
    pointer = _pointer(builder, parameters, argument.at)
    if isinstance(argument, RecordView):
        return builder.bitcast(pointer, context.get_value_type(kind))
    sizes = [I64(n) if isinstance(n, int) else _held(builder, parameters, n) for n in argument.shape]
    return arrays.array_over(context, builder, kind, pointer, sizes)


def _pointer(builder, parameters, place):
    """The pointer to an Address."""
    if isinstance(place.base, Held):
        base = builder.inttoptr(_held(builder, parameters, place.base), cgutils.voidptr_t)
    else:
        base = parameters[place.base]
    offset = I64(place.offset)
    return builder.gep(
        base, [builder.add(offset, _held(builder, parameters, place.further)) if place.further else offset]
    )


def _held(builder, parameters, held):
    """Load a number that is Held."""
    kind = ir.DoubleType() if held.dtype.kind == "f" else I64
    return builder.load(builder.bitcast(_pointer(builder, parameters, held.at), kind.as_pointer()))


def _target_machine():
    """LLVM's machine for the target: like Numba's own, except for wide vectors, and for code in a library."""
    cpu_target.target_context.codegen()  # registers LLVM's targets
    to = target.current()
    # Position-independent code takes some percent longer.
    model = {"reloc": "static" if to.triple.startswith("x86") else "default", "codemodel": "jitdefault"}
    if to.linked:
        model = {"reloc": "pic", "codemodel": "default"}
    machine = llvm.Target.from_triple(to.triple).create_target_machine
    return machine(cpu=to.cpu, features=to.features, opt=config.OPT, **model)
