"""Compile Python functions to object code. Numba's private parts are used in numba_internals.py
only.

Importing this module imports Numba.
"""

from __future__ import annotations

import gc
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba import config, types
from numba.extending import register_jitable

from ..declaration.attributes import VECTOR
from ..declaration.errors import OpError
from ..declaration.jit import BOUNDSCHECK, FLAGS, INNER, flags_of, marked, signature
from ..declaration.limits import MAX_RANK
from . import (  # for their overloads
    arrays,
    refusals,
    simd_points,  # noqa: F401
    simd_products,  # noqa: F401
    simd_rows,  # noqa: F401
    target,
)
from .halves import I64
from .numba_internals import (
    calls_itself,
    cgutils,
    compiler,
    cpu_target,
    final_module,
    global_compiler_lock,
    optimized_once,
    whole_arrays,
    without_cache,
)
from .records import (
    ATTRIBUTES,
    GEOMETRY,
    OUTPUT,
    WORKSPACE_SIZE,
    Geometry,
    Number,
    Room,
    Sizes,
    Tensor,
    Tile,
    Values,
    offset_of,
    tensor_field,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from numba.core.base import BaseContext
    from numba.core.codegen import CodeLibrary
    from numba.core.compiler import CompileResult

    from .records import Argument, Entry, Numbers, Step

NO_MEMORY = "compiled code has only its workspace"
OF_PYTHON = ("Py", "_Py", "numba_gil")  # how names of Python's functions begin
DONE, REFUSED, RAISED = 0, 1, 2  # results of compiled code; the last one after an exception
NUMBA = os.path.dirname(numba.__file__)
if BOUNDSCHECK:
    from . import bounds  # noqa: F401  all code that is compiled from here on is checked
# Loads also OpenBLAS, which tries for ever to get memory, before there is a compilation.
with global_compiler_lock:
    cpu_target.typing_context.refresh()


def tell_numba() -> None:
    """Register the functions marked so far with Numba, so that compiled code may call them.

    Functions stay marked until Numba has loaded them, for which there may be no memory.
    """
    helpers: list[Any] = marked[:]
    for helper in helpers:
        helper.__signature__ = signature(helper)  # which Numba asks for, more than once
        register_jitable(**flags_of[helper])(helper)
    cpu_target.typing_context.refresh()
    del marked[: len(helpers)]


def cause(error: Exception) -> str:
    """Return the reason in a compiler exception, on one line, with the file and line of the
    function.

    A message of Numba has an explanation for each enclosing function, then the reason, then the
    lines.
    """
    # Numba prints in colours if the package colorama is installed.
    message = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    heading, *lines = [line.strip() for line in message.splitlines()] or [""]
    if "NRT required but not enabled" in message:
        return (
            "it allocates memory, as `y[:] = x * 2`, instead of a loop, and texts in braces "
            f"do; {NO_MEMORY}"
        )
    after = [k for k, line in enumerate([heading, *lines]) if "Failed in nopython mode" in line]
    if not after or after[-1] >= len(lines):
        return f"{type(error).__name__}: {heading}"
    lines = lines[after[-1] :]
    reason = " ".join([lines[0], *[line for line in lines[:4] if line.startswith(">>>")]])
    if "Only accept returning of array" in reason:
        reason = f"it allocates memory; {NO_MEMORY}"
    if "<class 'function'>" in reason:
        reason += "; a function that compiled code calls must be marked by onnx_ops.jitable"
    pattern = r"^During: typing of .* at (.+) \((\d+)\)$"
    for file, line in re.findall(pattern, "\n".join(lines), re.MULTILINE):
        if not file.startswith(NUMBA):
            return f"{reason} ({file}, line {line})"
    return reason


def object_code(entry: Entry, symbol: str) -> bytes:
    """Compile an entry (records.py) to an object file, in which the function is called `symbol`.

    The code is for this CPU, unless NUMBA_CPU_NAME and NUMBA_CPU_FEATURES name another. Raises
    OpError.
    """
    try:
        machine = _target_machine()
        with (
            global_compiler_lock,
            uncollected(),
            without_cache(),
            whole_arrays(),
            optimized_once(symbol, machine),
        ):
            tell_numba()
            module = final_module(_compiled(entry, symbol))
            if any(f.is_declaration and f.name.startswith(OF_PYTHON) for f in module.functions):
                raise OpError(
                    "kernel", entry.name, "can't be compiled: it calls Python, as `print` does"
                )
            if calls_itself(module):
                raise OpError(
                    "kernel",
                    entry.name,
                    "can't be compiled: a function calls itself with other types, or through "
                    "another one; write a loop",
                )
            # In a shared library, the symbol can't be seen from outside.
            module.get_function(symbol).visibility = "hidden"
            return machine.emit_object(module)
    except OpError:
        raise
    except Exception as error:
        raise OpError("kernel", entry.name, f"can't be compiled: {cause(error)}") from error


@contextmanager
def uncollected() -> Iterator[None]:
    """Return a context without garbage collection.

    With Numba's many objects, collections took an eighth of the time, and more beside large
    libraries.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _compiled(entry: Entry, symbol: str) -> CodeLibrary:
    """Numba's library with an entry's steps, and the function `symbol` that calls one after the
    other.
    """
    results = list(map(_compiled_step, entry.steps))
    library, *libraries = [result.library for result in results]
    for callee in libraries:
        callee.finalize()
        library.add_linking_library(callee)
    module = library.create_ir_module(symbol)
    # The call, the tile, its workspace.
    parameters = [cgutils.voidptr_t, I64, cgutils.voidptr_t][: entry.parameters]
    function = ir.Function(module, ir.FunctionType(I64, parameters), symbol)
    record = Record(
        cpu_target.target_context, ir.IRBuilder(function.append_basic_block()), *function.args
    )
    for step, result in zip(entry.steps, results, strict=True):
        _emit_call(record, step, result)
    record.builder.ret(I64(DONE))
    library.add_ir_module(module)
    library.finalize()
    return library


def _compiled_step(step: Step) -> CompileResult:
    """Return Numba's result for a step's compiled function: its unfinished library and its types.

    Raises OpError.
    """
    flags = compiler.Flags()
    cpu_target.options.parse_as_flags(flags, FLAGS | INNER)
    flags.no_compile = True
    flags.enable_pyobject = False
    argument_types = tuple(map(_type, step.arguments))
    try:
        typing, context = cpu_target.typing_context, cpu_target.target_context
        return compiler.compile_extra(
            typing, context, step.function, argument_types, None, flags, {}
        )
    except OpError:
        raise
    except Exception as error:
        raise OpError(step.role, step.place, f"can't be compiled: {cause(error)}") from error


def _emit_call(record: Record, step: Step, result: CompileResult) -> None:
    """Emit the call of a step compiled by `_compiled_step`, with arguments from the record.

    Its result is stored in the record. If it refuses or raises, the function returns.
    """
    context = record.context
    builder = record.builder
    returned = result.signature.return_type
    callee = context.declare_function(builder.module, result.fndesc)
    values = list(map(record.value, step.arguments))
    status, value = context.call_conv.call_function(
        builder, callee, returned, result.signature.args, values
    )
    with builder.if_then(status.is_error, likely=False):
        with builder.if_then(builder.icmp_unsigned("!=", status.code, refusals.CODE)):
            builder.ret(I64(RAISED))
        refusals.note_refusal(builder, status, record.at(GEOMETRY))
        builder.ret(I64(REFUSED))
    if step.result:
        record.store(step, step.result, returned, value)


def _type(argument: Argument) -> types.Type:
    """Numba's type for an argument of a step."""
    if argument is None:
        return types.none
    if isinstance(argument, tuple):
        return types.BaseTuple.from_types(tuple(map(_type, argument)), type(argument))
    if isinstance(argument, Number | Tile):
        return types.int64
    if isinstance(argument, Room):
        return arrays.array_type(types.uint8, 1)
    if isinstance(argument, Sizes):
        return arrays.array_type(types.int64, 1)
    dtype = numba.from_dtype(argument.dtype)
    if isinstance(argument, Tensor):
        return arrays.array_type(
            dtype, 1 if argument.axes is None else argument.axes, argument.is_read_only
        )
    return (
        arrays.array_type(dtype, 1) if isinstance(argument, Values) and argument.is_list else dtype
    )


class Record:
    """A call's record (records.py) in the function that `builder` emits."""

    def __init__(
        self,
        context: BaseContext,
        builder: ir.IRBuilder,
        call: ir.Value,
        tile: ir.Value | None = None,
        workspace: ir.Value | None = None,
    ) -> None:
        self.context = context
        self.builder = builder
        self.call = call
        self.tile = tile
        self.workspace = workspace

    def at(self, offset: int | ir.Value, base: ir.Value | None = None) -> ir.Value:
        """Return the pointer to an offset from a base, by default the call."""
        return self.builder.gep(
            base or self.call, [offset if isinstance(offset, ir.Value) else I64(offset)]
        )

    def number(
        self, offset: int | ir.Value, base: ir.Value | None = None, number: ir.Type = I64
    ) -> ir.Value:
        """Load a number at an offset."""
        return self.builder.load(self.builder.bitcast(self.at(offset, base), number.as_pointer()))

    def pointer(self, offset: int) -> ir.Value:
        """Load an address at an offset in the call."""
        return self.builder.inttoptr(self.number(offset), cgutils.voidptr_t)

    def value(self, argument: Argument) -> ir.Value:
        """Return the value of a step's argument."""
        type_ = _type(argument)
        if argument is None:
            return self.context.get_dummy_value()
        if isinstance(argument, tuple):
            return self.context.make_tuple(self.builder, type_, [*map(self.value, argument)])
        if isinstance(argument, Number):
            return self.number(argument.offset)
        if isinstance(argument, Tile):
            return self.tile
        if isinstance(argument, Geometry):
            return self.builder.bitcast(self.at(GEOMETRY), self.context.get_value_type(type_))
        if isinstance(argument, Values):
            block = self.pointer(ATTRIBUTES)
            vector = 8 + argument.k * VECTOR.itemsize
            memory = self.at(self.number(vector + offset_of(VECTOR, "offset"), block), block)
            if not argument.is_list:
                return self.number(0, memory, self.context.get_value_type(type_))
            sizes = [self.number(vector + offset_of(VECTOR, "count"), block)]
        elif isinstance(argument, Sizes):
            memory = self.at(tensor_field(argument.k, "shape"))
            sizes = [
                self.number(tensor_field(argument.k, "rank"))
                if argument.k < OUTPUT
                else I64(MAX_RANK)
            ]
        elif isinstance(argument, Room):
            memory, sizes = self.workspace, [self.number(WORKSPACE_SIZE)]
        else:
            memory = self.pointer(tensor_field(argument.k, "data"))
            shape = tensor_field(argument.k, "shape")
            sizes = [self.number(shape + 8 * a) for a in range(argument.axes or 0)]
            if argument.axes is None:
                sizes = [self.number(tensor_field(argument.k, "size"))]
        return arrays.array_over(self.context, self.builder, type_, memory, sizes)

    def store(self, step: Step, result: Numbers, type_: types.Type, value: ir.Value) -> None:
        """Store a step's result, a value of a Numba type, in its place."""
        number_types, values = (type_,) * result.count, [value] * result.count
        if isinstance(type_, types.BaseTuple):
            number_types, values = tuple(type_), cgutils.unpack_tuple(self.builder, value)
        are_integers = all(isinstance(n, types.Integer) for n in number_types)
        if len(number_types) != result.count or not are_integers:
            raise OpError(
                step.role, f"a function that returns {type_}", f"must return the {result.meaning}"
            )
        for k, (number_type, number) in enumerate(zip(number_types, values, strict=True)):
            memory = self.builder.bitcast(
                self.at(result.offset + k * result.pitch), I64.as_pointer()
            )
            self.builder.store(
                self.context.cast(self.builder, number, number_type, types.int64), memory
            )


def _target_machine() -> llvm.TargetMachine:
    """LLVM's machine for the target: like Numba's own, except for wide vectors, and for code in a
    library.
    """
    cpu_target.target_context.codegen()  # registers LLVM's targets
    to = target.current()
    # Position-independent code takes some percent longer.
    reloc = "pic" if to.linked else "static" if to.triple.startswith("x86") else "default"
    model = "default" if to.linked else "jitdefault"
    machine = llvm.Target.from_triple(to.triple).create_target_machine
    return machine(cpu=to.cpu, features=to.features, opt=config.OPT, reloc=reloc, codemodel=model)
