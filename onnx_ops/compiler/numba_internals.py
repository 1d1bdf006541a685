"""All uses of Numba's private interface, with reasons. Importing this module imports Numba.

    compiler.compile_extra, Flags   numba.cfunc without its wrapper, which prints an exception and
                                    continues. cfunc has no types for a step's arguments
    CodeLibrary, Codegen            are changed by `optimized_once`: half the time, and code for
                                    another CPU than this
    TargetOptions                   gets an option, noalias, that Numba has as a flag for functions
                                    of its own
    make_constant_array             is changed by `whole_arrays`
    FunctionIdentity._unique_ids    is replaced by `number_functions`
    call_conv, serialize_object     a return with a refusal, which is no exception: nothing else
                                    passes through callers
    populate_array                  arrays over given memory: numba.carray is a function, and
                                    without reference counts no function may return a new array
    cgutils                         builds LLVM's instructions: Numba's documentation of its lower
                                    layer has it
    do_boundscheck                  is replaced to count checks (bounds.py)
    c_helpers                       functions of Numba's own that cached code calls
    Dispatcher._can_compile         whether a user's compiled function is limited to some types
    FunctionCache                   is changed by `without_cache`
    typing_context.refresh          loads what is registered with Numba, which a compilation does,
                                    too
    RuntimeLinker.PREFIX            prefix of the variables by which a recursive function finds
                                    itself

Uses of llvmlite are public, except that target.py replaces the functions by which Numba queries the
system. It does so before Numba is imported, and so not here.
"""

from __future__ import annotations

import itertools
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from numba import _helperlib, config
from numba.core import callconv, cgutils, codegen, compiler
from numba.core.bytecode import FunctionIdentity
from numba.core.caching import FunctionCache
from numba.core.compiler_lock import global_compiler_lock as global_compiler_lock
from numba.core.dispatcher import Dispatcher
from numba.core.options import TargetOptions
from numba.core.registry import cpu_target
from numba.np.arrayobj import populate_array as populate_array

from ..declaration.errors import OpError
from ..declaration.jit import ADDRESS, numba_obstacle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from typing import Any

    from llvmlite import binding, ir
    from numba import types
    from numba.core.base import BaseContext
    from numba.core.codegen import CodeLibrary


def check_numba() -> None:
    """Raise OpError if Numba's version isn't supported, or lacks some of the internals."""
    required = {
        FunctionIdentity: "_unique_ids",
        codegen.JITCodeLibrary: "_optimize_functions _optimize_final_module "
        "_finalize_final_module create_ir_module add_ir_module",
        codegen.JITCPUCodegen: "set_env",
        TargetOptions: "Mapping",
        type(
            cpu_target.target_context
        ): "make_constant_array allow_dynamic_globals make_tuple declare_function",
        cpu_target.typing_context: "refresh",
        compiler: "compile_extra",
        compiler.Flags: "noalias",
        callconv: "excinfo_t RETCODE_EXC",
        callconv.CPUCallConv: "call_function _get_excinfo_argument _return_errcode_raw",
        cgutils: "alloca_once do_boundscheck for_range for_range_slice get_or_insert_function "
        "unpack_tuple",
        _helperlib: "c_helpers",
        Dispatcher: "disable_compile",
        FunctionCache: "load_overload save_overload",
        codegen.RuntimeLinker: "PREFIX",
    }
    missing = [
        name
        for owner, names in required.items()
        for name in names.split()
        if not hasattr(owner, name)
    ]
    disabled = (
        config.DISABLE_JIT
        and "NUMBA_DISABLE_JIT is set, with which Numba compiles nothing; unset it"
    )
    if (
        obstacle := numba_obstacle()
        or disabled
        or (missing and f"Numba lacks {', '.join(missing)}")
    ):
        raise OpError("kernel", "any", f"can't be compiled: {obstacle}", "onnx_ops")


check_numba()
# Numba has this flag (`APART`, jit.py) for its own functions, but no option that sets it.
cpu_target.options.noalias = TargetOptions.Mapping("noalias")


def number_functions() -> None:
    """Make Numba number functions from a random start, so that names of different code differ
    between processes.

    A name in machine code consists of the function's name, this number, and the types. Records
    among the types are numbered in order of their first use.
    """
    FunctionIdentity._unique_ids = itertools.count(int.from_bytes(os.urandom(7), "little"))


number_functions()
# Not by system.py, because changes of it would recompile all kernels.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=number_functions)


@contextmanager
def replaced(owner: object, **attributes: Any) -> Iterator[None]:
    """Return a context with other attributes of an object or a class."""
    own = {name: value for name, value in vars(owner).items() if name in attributes}
    for name, value in attributes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name in attributes:
            setattr(owner, name, own[name]) if name in own else delattr(owner, name)


def whole_arrays() -> AbstractContextManager[None]:
    """Return a context in which Numba puts the elements of all global arrays into the code.

    By default, it inserts the addresses of arrays of more than a megabyte and of non-contiguous
    arrays.
    """
    context = cpu_target.target_context
    constant = context.make_constant_array

    def all_elements(builder: ir.IRBuilder, array_type: types.Array, array: np.ndarray) -> ir.Value:
        with replaced(context, allow_dynamic_globals=False):
            contiguous = array if array_type.layout in "CF" else np.ascontiguousarray(array)
            return constant(builder, array_type, contiguous)

    return replaced(context, make_constant_array=all_elements)


def without_cache() -> AbstractContextManager[None]:
    """Return a context in which Numba doesn't use its own cache (cache=True) for users' functions.

    It would load code with outdated values of other modules, which `optimized_once` can't finish.
    """
    return replaced(FunctionCache, load_overload=lambda *_: None, save_overload=lambda *_: None)


def defined(library: CodeLibrary) -> set[str]:
    """Return the names of the functions that a library has."""
    return {f.name for f in library._final_module.functions if not f.is_declaration}


def is_called_by_python(library: CodeLibrary) -> bool:
    return any(name.startswith("_ZN7cpython") for name in defined(library))


def make_private(library: CodeLibrary, symbol: str) -> None:
    """Make all functions but one private: they are inlined, and then removed.

    Numba's variables with addresses keep their names, by which cache.py finds them.
    """
    module = library._final_module
    for definition in (*module.functions, *module.global_variables):
        is_kept = definition.name == symbol or definition.name.startswith(ADDRESS)
        if not definition.is_declaration and not is_kept:
            definition.linkage = "internal"


@contextmanager
def optimized_once(symbol: str, machine: binding.TargetMachine) -> Iterator[None]:
    """Return a context in which Numba optimizes the function `symbol` once.

    It does so with all callees, in one library.

    By default, Numba optimizes each callee with its own callees, an innermost function once for
    each level of calls, and generates machine code for each. It still does so for functions that
    Python also calls, such as users' compiled functions. It optimizes for LLVM's `machine`; before
    0.62, for its own machine in any case.
    """
    optimize_functions = codegen.JITCodeLibrary._optimize_functions
    optimize = codegen.JITCodeLibrary._optimize_final_module
    finish = codegen.JITCodeLibrary._finalize_final_module
    set_env = codegen.JITCPUCodegen.set_env
    generator = cpu_target.target_context.codegen()

    def optimize_some(library: CodeLibrary) -> None:
        is_last = symbol in defined(library)
        if is_last:
            make_private(library, symbol)
        if is_last or is_called_by_python(library):
            optimize(library)

    def prepare(library: CodeLibrary, module: binding.ModuleRef) -> None:
        """Optimize the functions of a module, as Numba does, and as the code generator does.

        Two passes of the latter, LoopStrengthReduce and CodeGenPrepare, leave loops and addresses
        of which the optimizer makes more vector instructions: in a Col2Im in float32, half as many
        again of 256 bits. llvmlite has no name for the second one. For functions that another
        module is said to define, the generator makes no machine code, which would take as long
        again.
        """
        optimize_functions(library, module)
        linkages = {f: f.linkage for f in module.functions if not f.is_declaration}
        for function in linkages:
            function.linkage = "available_externally"
        machine.emit_object(module)
        for function, linkage in linkages.items():
            function.linkage = linkage

    def finish_some(library: CodeLibrary) -> None:
        if is_called_by_python(library):
            finish(library)
        else:
            library._finalized = True

    def set_known_env(self: codegen.JITCPUCodegen, name: str, env: object) -> None:
        if self._engine.is_symbol_defined(name):  # not in a library that has no machine code
            set_env(self, name, env)

    with (
        replaced(
            codegen.JITCodeLibrary,
            _optimize_functions=prepare,
            _optimize_final_module=optimize_some,
            _finalize_final_module=finish_some,
        ),
        replaced(codegen.JITCPUCodegen, set_env=set_known_env),
        replaced(generator, _tm=machine),
    ):
        yield


def final_module(library: CodeLibrary) -> binding.ModuleRef:
    """LLVM's module of a finished library."""
    return library._final_module


def calls_itself(module: binding.ModuleRef) -> bool:
    """Return whether a module has a variable for recursion, which only Numba's own linker fills
    in.
    """
    return any(
        variable.name.startswith(codegen.RuntimeLinker.PREFIX)
        for variable in module.global_variables
    )


# Numba's status of an exception, and the type of its description.
RAISED, DESCRIPTION = callconv.RETCODE_EXC, callconv.excinfo_t


def description_of(
    context: BaseContext,
    builder: ir.IRBuilder,
    exception: tuple[type[Exception], tuple[str, ...], None],
) -> ir.Value:
    """Emit code for Numba's description of an exception, (class, arguments, None)."""
    return builder.load(context.get_python_api(builder).serialize_object(exception))


def leave(
    context: BaseContext,
    builder: ir.IRBuilder,
    status: ir.Value,
    description: ir.Value | None = None,
) -> None:
    """Emit a return with a status that callers pass on.

    `description` is a substitute for the exception's description.
    """
    if description is not None:
        pointer = context.call_conv._get_excinfo_argument(builder.function)
        builder.store(builder.bitcast(description, pointer.type.pointee), pointer)
    context.call_conv._return_errcode_raw(builder, status)


def c_helper(name: str) -> int | None:
    """Return the address of a function of Numba's own, or None."""
    helpers: Any = _helperlib  # which states no types for this
    return helpers.c_helpers.get(name)


def compiled_types(function: Any) -> list[str] | None:
    """Return the types that a function of numba.jit is limited to, as texts; None if it is compiled
    for any.
    """
    return None if function._can_compile else sorted(map(str, function.signatures))


def count_boundschecks(count: Callable[[ir.IRBuilder], None]) -> None:
    """Make Numba emit count(builder) before each check of an index."""
    check = cgutils.do_boundscheck

    def counted_check(
        context: BaseContext, builder: ir.IRBuilder, *args: Any, **kwargs: Any
    ) -> None:
        count(builder)
        check(context, builder, *args, **kwargs)

    cgutils.do_boundscheck = counted_check
