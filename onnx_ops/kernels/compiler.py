"""From Python functions to object code. What reaches into Numba's internals is here, and nowhere else:

    FunctionIdentity._unique_ids                  `tell_code_apart` says why
    compile_extra, Flags, options.parse_as_flags  numba.cfunc does the same, but for Numba's own C wrapper, which prints
                                                  an exception and goes on
    JITCodeLibrary: _final_module, _finalized, _optimize_final_module, _finalize_final_module
    JITCPUCodegen: set_env, _engine, _tm          `optimized_once` says why
    cpu_target.options.noalias                    is added, see below
    call_conv.call_function, context.make_tuple   what a C wrapper consists of
    call_conv._get_excinfo_argument, _return_errcode_raw, callconv.excinfo_t
                                                  by which compiled code refuses what breaks a rule (memory.py)

numba.np.arrayobj.populate_array (memory.py) and numba.core.cgutils are the rest. `check_numba` looks for those that are
replaced, and at the version. Importing this module imports Numba.
"""

import functools
import itertools
import os
import re
from contextlib import contextmanager
from dataclasses import replace

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba import config, types
from numba.core import cgutils, codegen, compiler
from numba.core.bytecode import FunctionIdentity
from numba.core.compiler_lock import global_compiler_lock
from numba.core.options import TargetOptions
from numba.core.registry import cpu_target
from numba.extending import register_jitable

from ..errors import OpError
from . import elements_numba, memory, target, vectors_numba  # noqa: F401  two of them for their overloads
from .jit import BOUNDSCHECK, FLAGS, INNER, marked, numba_obstacle
from .memory import WORD
from .records import TENSOR, ArrayView, Held, Number, RecordView, Tensors

NO_MEMORY = "compiled code has only the workspace that its plan states"
OF_PYTHON = ("Py", "_Py", "numba_gil")  # how the names of its functions begin
RAISED = 2  # what compiled code returns that has raised an exception
NUMBA = os.path.dirname(numba.__file__)
if BOUNDSCHECK:
    from . import bounds  # noqa: F401  all code that is compiled from here on is checked


def check_numba():
    """Raise OpError where this isn't a Numba whose internals are those that this module knows."""
    known = {
        FunctionIdentity: "_unique_ids",
        codegen.JITCodeLibrary: "_optimize_final_module _finalize_final_module create_ir_module add_ir_module",
        codegen.JITCPUCodegen: "set_env magic_tuple",
        TargetOptions: "Mapping",
        compiler.Flags: "noalias",
    }
    lacking = [name for owner, names in known.items() for name in names.split() if not hasattr(owner, name)]
    if obstacle := numba_obstacle() or (lacking and f"Numba lacks {', '.join(lacking)}"):
        raise OpError("kernel", "any", f"can't be compiled: {obstacle}", "onnx_ops")


check_numba()
# Numba has the flag (`APART`, jit.py), for functions that it makes itself, but no option for it.
cpu_target.options.noalias = TargetOptions.Mapping("noalias")


def tell_code_apart():
    """Have Numba number functions from a random number on, so that no two processes give one name to different code.

    A name in machine code consists of the function's, of this number, and of types, where records are numbered as they
    are met.
    """
    FunctionIdentity._unique_ids = itertools.count(int.from_bytes(os.urandom(7), "little"))


tell_code_apart()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=tell_code_apart)


def tell_numba():
    """Let compiled code call all functions that have been marked so far."""
    while marked:
        helper, flags = marked.pop()
        register_jitable(**flags)(helper)


def cause(error):
    """What an exception of the compiler is about, on one line.

    A message of Numba's nests the explanation for each function on the way to the reason, and after it names the lines.
    """
    heading, *lines = [line.strip() for line in str(error).splitlines()] or [""]
    if "NRT required but not enabled" in heading:
        return f"it allocates an array, as some assignments to a slice do; {NO_MEMORY}"
    after = [k for k, line in enumerate([heading, *lines]) if "Failed in nopython mode" in line]
    if not after or after[-1] >= len(lines):
        return f"{type(error).__name__}: {heading}"
    lines = lines[after[-1] :]
    reason = " ".join([lines[0], *[line for line in lines[:4] if line.startswith(">>>")]])
    if "Only accept returning of array" in reason:
        reason = f"it allocates an array; {NO_MEMORY}"
    if "<class 'function'>" in reason:
        reason += "; a function that compiled code calls must be marked by onnx_ops.jitable"
    places = re.findall(r"^During: typing of .* at (.+) \((\d+)\)$", "\n".join(lines), re.MULTILINE)
    places = [f" ({file}, line {line})" for file, line in places if not file.startswith(NUMBA)]
    return reason + (places[0] if places else "")


@contextmanager
def optimized_once(symbol):
    """While this lasts, Numba optimizes only libraries that have the function `symbol`, together with all they call.

    Numba also optimizes each callee by itself before, with its own callees, so the innermost ones as often as there are
    levels around them. It still does where Python calls them, too, as it does users' own compiled functions.
    """
    library, generator = codegen.JITCodeLibrary, codegen.JITCPUCodegen
    optimize, finish, set_env = library._optimize_final_module, library._finalize_final_module, generator.set_env

    def names(module):
        return {f.name for f in module.functions if not f.is_declaration}

    def is_called_by_python(self):
        return any(name.startswith("_ZN7cpython") for name in names(self._final_module))

    def optimize_some(self):
        found = names(self._final_module)
        if symbol in found:
            for part in (*self._final_module.functions, *self._final_module.global_variables):
                if not part.is_declaration and part.name != symbol:
                    part.linkage = "internal"
        if symbol in found or is_called_by_python(self):
            optimize(self)

    def finish_some(self):
        if is_called_by_python(self):
            finish(self)
            return
        if symbol not in names(self._final_module):
            # For what this does to it on the way: a Col2Im in float32 has two thirds more vector instructions for it,
            # and takes up to a third less time.
            self._codegen._tm.emit_object(self._final_module)
        self._finalized = True

    def set_known_env(self, name, env):
        if self._engine.is_symbol_defined(name):
            set_env(self, name, env)

    library._optimize_final_module, library._finalize_final_module = optimize_some, finish_some
    generator.set_env = set_known_env
    try:
        yield
    finally:
        library._optimize_final_module, library._finalize_final_module = optimize, finish
        generator.set_env = set_env


def object_code(entry, symbol):
    """An entry (records.py) as an object file, in which the compiled function is called `symbol`.

    It is for the CPU that Numba compiles for: this one, unless NUMBA_CPU_NAME and NUMBA_CPU_FEATURES name another.
    Raises OpError.
    """
    try:
        with global_compiler_lock, optimized_once(symbol):
            tell_numba()
            library = _compiled(entry, symbol)
            if any(f.is_declaration and f.name.startswith(OF_PYTHON) for f in library._final_module.functions):
                raise OpError("kernel", entry.name, "can't be compiled: it calls Python, as `print` does")
            # Whatever library it becomes part of, nobody else can find it there.
            library._final_module.get_function(symbol).visibility = "hidden"
            return _target_machine().emit_object(library._final_module)
    except OpError:
        raise
    except Exception as error:
        raise OpError("kernel", entry.name, f"can't be compiled: {cause(error)}") from error


def _compiled(entry, symbol):
    flags = compiler.Flags()
    cpu_target.options.parse_as_flags(flags, FLAGS | INNER)
    flags.no_compile = True  # until the wrapper is there
    flags.enable_pyobject = False
    typing, context = cpu_target.typing_context, cpu_target.target_context

    @functools.cache
    def compiled(step):
        return compiler.compile_extra(typing, context, step.function, kinds(step), None, flags, {})

    def kinds(step):
        return tuple(_type(ranked(a)) for a in step.arguments)

    def ranked(argument):
        """The same with the number of axes that a rule gives it."""
        if not isinstance(argument, ArrayView) or not argument.ruled:
            return argument
        step, position = argument.ruled.step, argument.ruled.position
        axes = len(_shapes(compiled(step).signature.return_type, step.result.count)[position])
        return replace(argument, shape=argument.shape[:axes], ruled=None)

    library = compiled(entry.steps[0]).library
    module = library.create_ir_module(symbol)
    numbers = {a.parameter for step in entry.steps for a in step.arguments if isinstance(a, Number)}
    parameters = [WORD if k in numbers else cgutils.voidptr_t for k in range(entry.parameters)]
    function = ir.Function(module, ir.FunctionType(WORD, parameters), symbol)
    builder = ir.IRBuilder(function.append_basic_block())
    for step in entry.steps:
        made = compiled(step)
        if made.library is not library:
            made.library.finalize()
            library.add_linking_library(made.library)
        callee, returned = context.declare_function(module, made.fndesc), made.signature.return_type
        values = [_value(context, builder, function.args, ranked(a)) for a in step.arguments]
        status, value = context.call_conv.call_function(builder, callee, returned, kinds(step), values)
        with builder.if_then(status.is_error, likely=False):
            with builder.if_then(builder.icmp_unsigned("!=", status.code, memory.CODE)):
                builder.ret(WORD(RAISED))
            memory.note_refusal(builder, status, _address(builder, function.args, entry.refusal))
            builder.ret(WORD(1))
        if step.result:
            place = step.result.at if isinstance(step.result, Tensors) else step.result
            _keep(context, builder, _address(builder, function.args, place), step.result, returned, value)
    builder.ret(WORD(0))
    library.add_ir_module(module)
    library.finalize()
    return library


def _shapes(kind, count):
    """The types of the shapes of so many tensors in what a rule returns, each a tuple of those of its numbers."""
    shapes = tuple(kind) if isinstance(kind, types.BaseTuple) else None
    if shapes is not None and count == 1 and all(isinstance(n, types.Integer) for n in shapes):
        shapes = (kind,)
    fits = shapes is not None and len(shapes) == count and all(isinstance(s, types.BaseTuple) for s in shapes)
    if not fits or not all(isinstance(n, types.Integer) for shape in shapes for n in shape):
        rule = "a tuple of integers" if count == 1 else f"{count} tuples of integers"
        raise OpError("rule", f"a function that returns {kind}", f"must return {rule}")
    return shapes


def _keep(context, builder, place, result, kind, value):
    """Store what a step has returned."""

    def put(number, its_kind, offset):
        word = context.cast(builder, number, its_kind, types.int64)
        builder.store(word, builder.bitcast(builder.gep(place, [WORD(offset)]), WORD.as_pointer()))

    if not isinstance(result, Tensors):
        if not isinstance(kind, types.Integer):
            raise OpError("loop or workspace", f"a function that returns {kind}", "must return an integer")
        put(value, kind, 0)
        return
    rank, shape = TENSOR.fields["rank"][1], TENSOR.fields["shape"][1]
    if result.shapes:
        shapes = _shapes(kind, result.count)
        values = [value] if shapes == (kind,) else cgutils.unpack_tuple(builder, value)
        for k, (numbers, each) in enumerate(zip(shapes, values, strict=True)):
            put(WORD(len(numbers)), types.int64, k * TENSOR.itemsize + rank)
            for a, (its_kind, number) in enumerate(zip(numbers, cgutils.unpack_tuple(builder, each), strict=True)):
                put(number, its_kind, k * TENSOR.itemsize + shape + 8 * a)
        return
    lengths = tuple(kind) if isinstance(kind, types.BaseTuple) else (kind,) * result.count
    if len(lengths) != result.count or not all(isinstance(n, types.Integer) for n in lengths):
        raise OpError("kernel", f"a function that returns {kind}", "must return the length of the outputs' first axes")
    values = cgutils.unpack_tuple(builder, value) if isinstance(kind, types.BaseTuple) else [value] * result.count
    for k, (its_kind, number) in enumerate(zip(lengths, values, strict=True)):
        put(number, its_kind, k * TENSOR.itemsize + shape)


def _type(argument):
    """Numba's type of what a function gets."""
    if argument is None:
        return types.none
    if isinstance(argument, tuple):
        return types.BaseTuple.from_types(tuple(map(_type, argument)))
    if isinstance(argument, Number):
        return types.int64
    kind = numba.from_dtype(argument.dtype)
    if isinstance(argument, ArrayView):
        return memory.array_type(kind, len(argument.shape), argument.is_input)
    return kind


def _value(context, builder, parameters, argument):
    """The same as a value, made from the parameters of the compiled function."""
    kind = _type(argument)
    if argument is None:
        return context.get_dummy_value()
    if isinstance(argument, tuple):
        return context.make_tuple(builder, kind, [_value(context, builder, parameters, a) for a in argument])
    if isinstance(argument, Number):
        return parameters[argument.parameter]
    if isinstance(argument, Held):
        return _held(builder, parameters, argument)
    address = _address(builder, parameters, argument.at)
    if isinstance(argument, RecordView):
        return builder.bitcast(address, context.get_value_type(kind))
    sizes = [_held(builder, parameters, size) for size in argument.shape]
    return memory.array_over(context, builder, kind, address, sizes)


def _address(builder, parameters, place):
    if isinstance(place.base, Held):
        base = builder.inttoptr(_held(builder, parameters, place.base), cgutils.voidptr_t)
    else:
        base = parameters[place.base]
    offset = WORD(place.offset)
    return builder.gep(
        base, [builder.add(offset, _held(builder, parameters, place.further)) if place.further else offset]
    )


def _held(builder, parameters, held):
    kind = ir.DoubleType() if held.dtype.kind == "f" else WORD
    return builder.load(builder.bitcast(_address(builder, parameters, held.at), kind.as_pointer()))


def _target_machine():
    """For code that becomes part of a library, and else like Numba's own."""
    triple, cpu, features = cpu_target.target_context.codegen().magic_tuple()
    # Code that may lie anywhere takes some percent longer.
    place = {"reloc": "static" if triple.startswith("x86") else "default", "codemodel": "jitdefault"}
    if target.current().linked:
        place = {"reloc": "pic", "codemodel": "default"}
    return llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features, opt=config.OPT, **place)
