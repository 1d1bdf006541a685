"""Compiles Python functions to object code. This module uses these internals of Numba:

    FunctionIdentity._unique_ids                  is replaced, see `number_functions`
    compile_extra, Flags, options.parse_as_flags  compile a function as numba.cfunc does, but without Numba's own C
                                                  wrapper, which prints an exception and goes on
    JITCodeLibrary: _final_module, _finalized, _optimize_final_module, _finalize_final_module
    JITCPUCodegen: set_env, _engine, _tm          are replaced or used by `optimized_once`
    TargetOptions, cpu_target.options.noalias     an option is added, see below
    make_constant_array, allow_dynamic_globals    are replaced by `whole_arrays`
    call_conv.call_function, context.make_tuple, numba.core.cgutils   make the C wrapper

`check_numba` checks Numba's version, and looks for the names that are replaced or added. Other modules use more:

    memory.py          populate_array, for arrays; callconv.excinfo_t, _get_excinfo_argument, _return_errcode_raw and
                       serialize_object, for refusals
    halves.py, simd*.py  LLVM's instructions through `intrinsic`
    key.py             Dispatcher: users' own compiled functions
    code.py            _helperlib.c_helpers: functions of Numba's own that compiled code calls
    target.py          the names by which Numba asks llvmlite for the CPU and the system
    bounds.py          replaces cgutils.do_boundscheck

Importing this module imports Numba.
"""

import functools
import itertools
import os
import re
from contextlib import contextmanager
from dataclasses import replace

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba import config, types
from numba.core import cgutils, codegen, compiler
from numba.core.bytecode import FunctionIdentity
from numba.core.compiler_lock import global_compiler_lock
from numba.core.options import TargetOptions
from numba.core.registry import cpu_target
from numba.extending import register_jitable

from ..errors import OpError
from . import halves, memory, simd_blend, simd_boxes, simd_points, simd_rows, target  # noqa: F401  most for their overloads
from .halves import I64
from .jit import ADDRESS, BOUNDSCHECK, FLAGS, INNER, flags_of, marked, numba_obstacle
from .records import TENSOR, ArrayView, Held, Named, Number, RecordView, Tensors

NO_MEMORY = "compiled code has only the workspace that it asks for"
OF_PYTHON = ("Py", "_Py", "numba_gil")  # how names of Python's functions begin
RAISED = 2  # the value that compiled code returns when it has raised an exception
NUMBA = os.path.dirname(numba.__file__)
if BOUNDSCHECK:
    from . import bounds  # noqa: F401  all code that is compiled from here on is checked


def check_numba():
    """Raise OpError if Numba isn't of a version that this module supports, or lacks some of its internals."""
    required = {
        FunctionIdentity: "_unique_ids",
        codegen.JITCodeLibrary: "_optimize_final_module _finalize_final_module create_ir_module add_ir_module",
        codegen.JITCPUCodegen: "set_env",
        TargetOptions: "Mapping",
        type(cpu_target.target_context): "make_constant_array allow_dynamic_globals",
        compiler.Flags: "noalias",
    }
    missing = [name for owner, names in required.items() for name in names.split() if not hasattr(owner, name)]
    disabled = config.DISABLE_JIT and "NUMBA_DISABLE_JIT is set, with which Numba compiles nothing; unset it"
    if obstacle := numba_obstacle() or disabled or (missing and f"Numba lacks {', '.join(missing)}"):
        raise OpError("kernel", "any", f"can't be compiled: {obstacle}", "onnx_ops")


check_numba()
# Numba has this flag (`APART`, jit.py) for functions that it makes itself, but no option that sets it.
cpu_target.options.noalias = TargetOptions.Mapping("noalias")


def number_functions():
    """Have Numba number functions from a random number on, so that no two processes give different code the same name.

    A name in machine code consists of the function's name, this number, and the types; records among the types are
    numbered in the order in which Numba meets them.
    """
    FunctionIdentity._unique_ids = itertools.count(int.from_bytes(os.urandom(7), "little"))


number_functions()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=number_functions)


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


@contextmanager
def whole_arrays():
    """A context in which Numba puts global arrays into the code. By itself, it puts in the address of some.

    These are arrays of more than a megabyte, and those that are not contiguous.
    """
    context = cpu_target.target_context
    constant = context.make_constant_array

    def whole(builder, kind, array):
        context.allow_dynamic_globals = False
        try:
            return constant(builder, kind, array if kind.layout in "CF" else np.ascontiguousarray(array))
        finally:
            del context.allow_dynamic_globals

    context.make_constant_array = whole
    try:
        yield
    finally:
        del context.make_constant_array


@contextmanager
def optimized_once(symbol):
    """A context in which Numba optimizes only libraries that have the function `symbol`, with all functions they call.

    Yields LLVM's machine for which it optimizes; before 0.62, Numba optimizes for its own all the same.

    By itself, Numba first optimizes each callee with its own callees: an innermost function once for each level of
    calls around it. That is still so for functions that Python calls, too, such as users' own compiled functions.
    """
    library, generator = codegen.JITCodeLibrary, codegen.JITCPUCodegen
    optimize, finish, set_env = library._optimize_final_module, library._finalize_final_module, generator.set_env
    this_generator = cpu_target.target_context.codegen()
    own_machine, machine = this_generator._tm, _target_machine()

    def names(module):
        return {f.name for f in module.functions if not f.is_declaration}

    def is_called_by_python(self):
        return any(name.startswith("_ZN7cpython") for name in names(self._final_module))

    def optimize_some(self):
        defined = names(self._final_module)
        if symbol in defined:
            for part in (*self._final_module.functions, *self._final_module.global_variables):
                # Numba's variables with addresses keep their names, by which cache.py finds them.
                if not part.is_declaration and part.name != symbol and not part.name.startswith(ADDRESS):
                    part.linkage = "internal"
        if symbol in defined or is_called_by_python(self):
            optimize(self)

    def finish_some(self):
        if is_called_by_python(self):
            finish(self)
            return
        if symbol not in names(self._final_module):
            # Only for its side effects on the module, which make the final code faster: with it, a Col2Im in float32
            # has two thirds more vector instructions, and takes up to a third less time.
            machine.emit_object(self._final_module)
        self._finalized = True

    def set_known_env(self, name, env):
        if self._engine.is_symbol_defined(name):
            set_env(self, name, env)

    library._optimize_final_module, library._finalize_final_module = optimize_some, finish_some
    generator.set_env, this_generator._tm = set_known_env, machine
    try:
        yield machine
    finally:
        library._optimize_final_module, library._finalize_final_module = optimize, finish
        generator.set_env, this_generator._tm = set_env, own_machine


def object_code(entry, symbol):
    """Compile an entry (records.py) to an object file, in which the function is called `symbol`.

    The code is for this CPU, unless NUMBA_CPU_NAME and NUMBA_CPU_FEATURES name another. Raises OpError.
    """
    try:
        with global_compiler_lock, whole_arrays(), optimized_once(symbol) as machine:
            tell_numba()
            library = _compiled(entry, symbol)
            if any(f.is_declaration and f.name.startswith(OF_PYTHON) for f in library._final_module.functions):
                raise OpError("kernel", entry.name, "can't be compiled: it calls Python, as `print` does")
            # In a shared library, the symbol can't be seen from outside.
            library._final_module.get_function(symbol).visibility = "hidden"
            return machine.emit_object(library._final_module)
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
    for step in entry.steps:
        result = compiled(step)
        if result.library is not library:
            result.library.finalize()
            library.add_linking_library(result.library)
        callee, returned = context.declare_function(module, result.fndesc), result.signature.return_type
        values = [_value(context, builder, function.args, ranked(a)) for a in step.arguments]
        status, value = context.call_conv.call_function(builder, callee, returned, kinds(step), values)
        with builder.if_then(status.is_error, likely=False):
            with builder.if_then(builder.icmp_unsigned("!=", status.code, memory.CODE)):
                builder.ret(I64(RAISED))
            memory.note_refusal(builder, status, _pointer(builder, function.args, entry.refusal))
            builder.ret(I64(1))
        if step.result:
            place = step.result.at if isinstance(step.result, Tensors) else step.result
            _store_result(context, builder, _pointer(builder, function.args, place), step.result, returned, value)
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


def _store_result(context, builder, place, result, kind, value):
    """Store the value that a step has returned, of the type `kind`, as `result` says (see Step in records.py)."""

    def put(number, number_type, offset):
        number = context.cast(builder, number, number_type, types.int64)
        builder.store(number, builder.bitcast(builder.gep(place, [I64(offset)]), I64.as_pointer()))

    if not isinstance(result, Tensors):
        if not isinstance(kind, types.Integer):
            raise OpError("loop or workspace", f"a function that returns {kind}", "must return an integer")
        put(value, kind, 0)
        return
    rank, shape = TENSOR.fields["rank"][1], TENSOR.fields["shape"][1]
    if result.what == "shapes":
        shapes = _shapes(kind, result.count)
        values = [value] if shapes == (kind,) else cgutils.unpack_tuple(builder, value)
        for k, (numbers, each) in enumerate(zip(shapes, values, strict=True)):
            put(I64(len(numbers)), types.int64, k * TENSOR.itemsize + rank)
            for a, (number_type, number) in enumerate(zip(numbers, cgutils.unpack_tuple(builder, each), strict=True)):
                put(number, number_type, k * TENSOR.itemsize + shape + 8 * a)
        return
    numbers = tuple(kind) if isinstance(kind, types.BaseTuple) else (kind,) * result.count
    if len(numbers) != result.count or not all(isinstance(n, types.Integer) for n in numbers):
        is_kernel = result.what == "lengths"
        what = "length of the outputs' first axes" if is_kernel else "outputs' ranks"
        raise OpError("kernel" if is_kernel else "shape", f"a function that returns {kind}", f"must return the {what}")
    values = cgutils.unpack_tuple(builder, value) if isinstance(kind, types.BaseTuple) else [value] * result.count
    for k, (number_type, number) in enumerate(zip(numbers, values, strict=True)):
        put(number, number_type, k * TENSOR.itemsize + (shape if result.what == "lengths" else rank))


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
        return memory.array_type(kind, len(argument.shape), argument.is_input)
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
    return memory.array_over(context, builder, kind, pointer, sizes)


def _pointer(builder, parameters, place):
    """The pointer to a Place."""
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
    """LLVM's machine for the target: like Numba's own, except for wide vectors, and for code in a library.

    Numba's code generator must exist, which registers LLVM's targets.
    """
    to = target.current()
    # Position-independent code takes some percent longer.
    model = {"reloc": "static" if to.triple.startswith("x86") else "default", "codemodel": "jitdefault"}
    if to.linked:
        model = {"reloc": "pic", "codemodel": "default"}
    machine = llvm.Target.from_triple(to.triple).create_target_machine
    return machine(cpu=to.cpu, features=to.features, opt=config.OPT, **model)
