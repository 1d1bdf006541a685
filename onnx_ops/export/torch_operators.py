"""PyTorch's operators for declarations, `torch.ops.<domain>.<name>`.

    schema    inputs are tensors, but lists of integers where the plan reads values; then the
              attributes by their names
    CPU       `outputs_of` on the tensors' own memory
    fake      the outputs' shapes for symbolic sizes, by the uncompiled functions of the plan
    backward  the declaration's `gradient`

This module imports torch, so it is imported only when an operator is used in PyTorch.
"""

from __future__ import annotations

import re
from functools import partial
from operator import add, eq, floordiv, ge, gt, index, le, lt, mod, mul, ne, sub
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..declaration import dtypes, plain
from ..declaration.calls import signature_of
from ..declaration.errors import OpError, errors_of, require
from ..declaration.limits import MAX_RANK, UNKNOWN
from ..declaration.plain import as_tuple, one_or_tuple
from ..declaration.signature import parameters_of
from ..native.execute import outputs_of
from ..registry import built_in, declaration_of
from ..system.locks import EXPORT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from torch._ops import OpOverloadPacket
    from torch.autograd.function import FunctionCtx

    from ..declaration.attributes import AttributeValues
    from ..declaration.operator import Input, Operator, Output
    from ..model.types import Array
    from ..registry import Declared
    from .types import Argument, Given, Size, Tensors

TYPES = {getattr(torch, name): name for name in dtypes.TABLE if hasattr(torch, name)}
ATTRIBUTES = {
    "int": "int",
    "ints": "int[]",
    "float": "float",
    "floats": "float[]",
    "string": "str",
    "text": "str",
}
INPUTS = {"required": "Tensor {}", "optional": "Tensor? {}=None", "variadic": "Tensor[] {}"}
VALUES = {"required": "SymInt[] {}", "optional": "SymInt[]? {}=None"}
BFLOAT16 = dtypes.TABLE["bfloat16"].numpy  # PyTorch doesn't support its NumPy dtype
UNREACHED = 2**32  # no size is that large
OPERATIONS = add, sub, mul, floordiv, mod  # of integers, in the order of `Symbol`
_names: dict[Operator, str] = {}  # {declaration: its qualified name}
# {qualified name: (declaration, its library)}
_libraries: dict[str, tuple[Operator, torch.library.Library]] = {}


def torch_operator(operator: Declared) -> OpOverloadPacket:
    """Return PyTorch's operator for a CustomOperator or a declaration. Raises OpError.

    It takes tensors, lists of tensors for a variadic input, and lists of integers for inputs whose
    values the plan reads. Attributes are given by their names.
    """
    return operator_named(defined(operator))


def operator_named(name: str) -> OpOverloadPacket:
    """Return PyTorch's operator for "namespace::name"."""
    namespace, _, op_type = name.partition("::")
    return getattr(getattr(torch.ops, namespace), op_type)


# torch.compile calls this function, and does not translate it.
@torch.compiler.assume_constant_result
def defined(operator: Declared) -> str:
    """Return the qualified name of an operator after it has been defined. Raises OpError."""
    declaration = declaration_of(operator)
    with EXPORT:
        if declaration not in _names:
            define(declaration)
        return _names[declaration]


def qualified_name(operator: Operator) -> str:
    """Return "namespace::name" of an operator in PyTorch.

    An operator of ai.onnx is in the namespace onnx_ops.
    """
    return f"{re.sub(r'[^0-9A-Za-z]', '_', operator.domain or 'onnx_ops')}::{operator.name}"


def define(operator: Operator) -> None:
    """Define an operator in PyTorch, in place of an earlier one with its name."""
    name = qualified_name(operator)
    text = schema(operator)
    namespace, _, op_type = name.partition("::")
    if name in _libraries:
        before, library = _libraries[name]
        if before.domain != operator.domain and (before.plan, before.kernels) == (
            operator.plan,
            operator.kernels,
        ):
            _names[operator] = name
            return
        if before.title != operator.title:
            rule = f"is {name} in PyTorch, which is {before.title} already; rename one of them"
            raise OpError("operators", operator.title, rule, "onnx_ops")
        library._destroy()
        del _libraries[name]
        del _names[before]
    try:
        library = torch.library.Library(namespace, "FRAGMENT")
        library.define(op_type + text)
        library.impl(op_type, partial(run_on_cpu, operator), "CPU")
        library.impl(op_type, partial(refuse_inputs, operator), "CompositeExplicitAutograd")
        torch.library.register_fake(name, partial(fake, operator), lib=library)
        register_gradient(operator, name, library)
    # PyTorch has an operator of this name, or refuses the name.
    except (RuntimeError, ValueError) as error:
        rule = f"can't be {name} in PyTorch: {str(error).splitlines()[0]}"
        raise OpError("operators", operator.title, rule, "onnx_ops") from error
    _libraries[name] = operator, library
    _names[operator] = name


def schema(operator: Operator) -> str:
    """Return the text of an operator's schema, without its name.

    Raises OpError for types that PyTorch lacks.
    """
    declared: tuple[Input | Output, ...] = (*operator.inputs, *operator.outputs)
    with errors_of(operator):
        for tensor in declared:
            names = operator.types[tensor.type]
            is_supported = {*names} & {*TYPES.values()}
            rule = "is no element type of PyTorch"
            require(is_supported, f"type of {tensor.name}", names[0], rule)
        # Defaults stay in the declaration, because PyTorch's parser may not accept their text.
        named = []
        for a in operator.attributes:
            rule = "is none that attributes of PyTorch's operators have"
            require(a.kind in ATTRIBUTES, f"kind of {a.name}", a.kind, rule)
            type_of_value = "bool" if a.bounds == (0, 1) else ATTRIBUTES[a.kind]
            optional = f"{type_of_value}? {a.name}=None"
            named.append(f"{type_of_value} {a.name}" if a.required else optional)
        arguments = [
            (VALUES if i.values else INPUTS)[i.presence].format(i.name) for i in operator.inputs
        ]
        if operator.is_variadic:  # it must be given, as must all before it
            arguments = [text.removesuffix("=None") for text in arguments]
        outputs = ", ".join(["Tensor"] * len(operator.outputs))
        returned = outputs if len(operator.outputs) == 1 else f"({outputs})"
        return f"({', '.join([*arguments, *(['*', *named] if named else [])])}) -> {returned}"


# The operator runs.


def run_on_cpu(operator: Operator, /, *inputs: Given, **attributes: Any) -> Tensors:
    """Compute the outputs of tensors on the CPU."""
    values = each_value(operator, inputs)
    arrays = [None if value is None else as_array(operator, i, value) for i, value in values]
    outputs = [
        as_tensor(y, arrays)
        for y in outputs_of(operator, arrays, attributes, torch.get_num_threads())
    ]
    return one_or_tuple(outputs)


def compute_by_torch(
    operator: Operator, arrays: Sequence[Array | None], attributes: Mapping[str, Any]
) -> list[Array]:
    """Return the output arrays of a call with tensors of these arrays.

    The shapes that the fake kernel states are checked.
    """
    inputs = positional(operator, [None if a is None else as_tensor(a, ()) for a in arrays])
    attributes = declared_attributes(operator, attributes)
    outputs = as_tuple(torch_operator(operator)(*inputs, **attributes))
    if operator.plan.shape and not operator.plan.is_bound:
        for o, real, stated in zip(
            operator.outputs, outputs, as_tuple(fake(operator, *inputs, **attributes)), strict=True
        ):
            agrees = (real.dtype, real.shape) == (stated.dtype, stated.shape)
            text = f"{operator.title}, PyTorch: {o.name} is {real.dtype} {[*real.shape]}"
            assert agrees, f"{text}, but the fake kernel states {stated.dtype} {[*stated.shape]}"
    return [as_array(operator, o, y) for o, y in zip(operator.outputs, outputs, strict=True)]


def positional(operator: Operator, tensors: Sequence[torch.Tensor | None]) -> list[Given]:
    """Return an ONNX node's inputs as PyTorch's operator gets them.

    These are lists of values, and a list of variadic inputs.
    """
    inputs = [t.tolist() if i.values and t is not None else t for i, t in operator.pairs(tensors)]
    last = len(operator.inputs) - 1
    return [*inputs[:last], inputs[last:]] if operator.is_variadic else inputs


def declared_attributes(operator: Operator, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return an ONNX node's attributes as PyTorch's operator gets them.

    They have their declared names and kinds.
    """
    values = operator.values(attributes).by_name
    stated = {name for name, value in attributes.items() if value is not None}
    return {a.name: values[a.name] for a in operator.attributes if stated.intersection(a.names)}


def each_value(operator: Operator, inputs: Sequence[Any]) -> list[tuple[Input, Any]]:
    """Return pairs of Input and value; a variadic input gives several. Raises OpError.

    A value is a tensor, a list of integers or None.
    """
    if operator.is_variadic and len(inputs) == len(operator.inputs):
        inputs = [*inputs[:-1], *inputs[-1]]
    return operator.pairs(inputs)


def as_array(
    operator: Operator, declared: Input | Output, value: torch.Tensor | Sequence[int]
) -> Array:
    """Return the value of an input as an array, on a tensor's memory if it is contiguous.

    Raises OpError.
    """
    if not isinstance(value, torch.Tensor):
        return np.array(value, type_of_list(operator, declared))
    tensor = value.contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(BFLOAT16)
    check_type(operator, declared, tensor)
    return tensor.numpy()


def type_of_list(operator: Operator, declared: Input | Output) -> str:
    """Return the name of the element type of an input whose values the plan reads."""
    return "int64" if "int64" in operator.types[declared.type] else "int32"


def check_type(operator: Operator, declared: Input | Output, tensor: torch.Tensor) -> None:
    if tensor.dtype not in TYPES:
        raise OpError(
            f"dtype of {declared.name}", tensor.dtype, "is no element type of ONNX", operator.title
        )


def as_tensor(array: Array, arrays: Iterable[Array | None]) -> torch.Tensor:
    """Return an output as a tensor that shares no memory with the inputs, as PyTorch requires."""
    is_shared = any(a is not None and np.may_share_memory(array, a) for a in arrays)
    if is_shared or not array.flags.carray:  # carray: contiguous, and it may be written to
        array = array.copy()
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def refuse_inputs(operator: Operator, /, *inputs: Given, **_: Any) -> None:
    """Raise OpError for tensors that are not in the CPU's memory, not dense, or quantized."""
    for i, value in each_value(operator, inputs):
        if not isinstance(value, torch.Tensor):
            continue
        if value.device.type != "cpu" or value.layout != torch.strided:
            where = f"on {value.device}" if value.layout == torch.strided else str(value.layout)
            rule = (
                "must be a dense tensor on the CPU; call the operator with x.cpu(), and move "
                "what it returns"
            )
            raise OpError(i.name, where, rule, operator.title)
        check_type(operator, i, value)
    raise OpError(None, None, "needs a tensor on the CPU among its inputs", operator.title)


# The outputs' shapes, for symbolic sizes too.


def fake(operator: Operator, /, *inputs: Given, **attributes: Any) -> Tensors:
    """Return tensors without content, of the outputs' types and shapes."""
    pairs = each_value(operator, inputs)
    tensors = [value for _, value in pairs if isinstance(value, torch.Tensor)]
    with errors_of(operator):
        values = operator.values(attributes)
        for i, value in pairs:
            if isinstance(value, torch.Tensor):
                check_type(operator, i, value)
                require(
                    value.dim() <= MAX_RANK,
                    f"rank of {i.name}",
                    value.dim(),
                    "must be at most",
                    MAX_RANK,
                )
                device = tensors[0].device
                require(
                    value.device == device,
                    f"device of {i.name}",
                    value.device,
                    f"must be {device} as before",
                )
        require(tensors, "inputs", 0, "there must be a tensor among them")
        sizes = [
            None if value is None else tuple(value if i.values else value.shape)
            for i, value in pairs
        ]
        shapes = symbolic_shapes(operator, values, sizes)
        names = [type_name(operator, *pair) for pair in pairs]
        types = signature_of(operator, operator.choice(values), operator.padded(names))
    outputs = [
        tensors[0].new_empty(shape, dtype=getattr(torch, types[o.type]))
        for o, shape in zip(operator.outputs, shapes, strict=True)
    ]
    return one_or_tuple(outputs)


def type_name(operator: Operator, declared: Input, value: Argument) -> str | None:
    """Return the name of an input's element type, None for an absent one."""
    if value is None:
        return None
    return (
        TYPES[value.dtype] if isinstance(value, torch.Tensor) else type_of_list(operator, declared)
    )


def symbolic_shapes(
    operator: Operator, values: AttributeValues, sizes: Sequence[Sequence[Size] | None]
) -> Sequence[Sequence[Size]]:
    """Return the outputs' shapes. Raises OpError.

    sizes  for each input a tuple of sizes or of values, or None if it is absent. Numbers may be
           symbolic. Then each comparison in the plan's shape function becomes a condition in
           PyTorch
    """
    rule = "states the outputs' shapes, which PyTorch must know to compile or export"
    require(operator.plan.shape, "rule", None, rule)
    sizes = operator.padded(sizes)
    if all(isinstance(size, int) for shape in sizes if shape is not None for size in shape):
        shapes: Sequence[Sequence[Size]] = plain.shapes_of(operator, values, sizes) or ()
    else:
        shapes = (plain.shapes_for_ranks if operator.has_ranks else shapes_by_plan)(
            operator, values, sizes
        )
    if not operator.plan.is_bound:
        return shapes
    return [(at_most(shape[0]), *shape[1:]) for shape in shapes]


def at_most(bound: Size) -> torch.SymInt:
    """Return a size that depends on values."""
    size = torch.library.get_ctx().new_dynamic_size()
    torch._check(size <= bound)
    return size


def shapes_by_plan(
    operator: Operator, values: AttributeValues, sizes: Sequence[Sequence[Size] | None]
) -> list[list[Size]]:
    """Return the outputs' shapes by a plan for any ranks.

    To the plan, sizes that depend on values are names.
    """
    named = {}

    def number(size: Size) -> int | Symbol | str:
        if isinstance(size, int):
            return size
        if size.node.has_hint():
            return Symbol(size)
        named[str(size)] = size
        return str(size)

    def known_size(size: int | Symbol | str | None) -> Size:
        if size is None:
            return torch.library.get_ctx().new_dynamic_size()
        return named[size] if isinstance(size, str) else sym_int(size)

    shapes = plain.infer_by_plan(
        operator, values, [[number(size) for size in shape or ()] for shape in sizes]
    )
    for o, shape in zip(operator.outputs, shapes, strict=True):
        require(
            shape is not None, f"rank of {o.name}", UNKNOWN, "must follow from the inputs' ranks"
        )
    return [list(map(known_size, shape or ())) for shape in shapes]


def _arithmetic(operation: Callable[[Any, Any], Any]) -> Callable[[Symbol, int | Symbol], Symbol]:
    return lambda size, operand: Symbol(operation(size.size, sym_int(operand)))


def _reflected(operation: Callable[[Any, Any], Any]) -> Callable[[Symbol, int], Symbol]:
    return lambda size, operand: Symbol(operation(operand, size.size))


def _comparison(operation: Callable[[Any, Any], Any]) -> Callable[[Symbol, Any], bool]:
    return lambda size, operand: holds(operation, size, operand)


class Symbol:
    """A symbolic size, as a plan's integer.

    A comparison with a number that no size reaches imposes no condition. Plans make such
    comparisons to protect compiled code from overflows. PyTorch would treat them as limits of
    sizes, and refuse models without these limits.
    """

    __slots__ = ("size",)
    __hash__ = None  # type: ignore[assignment]  # what is equal depends on conditions

    def __init__(self, size: Size) -> None:
        self.size = size

    def __index__(self) -> int:
        return index(self.size)  # PyTorch then fixes the size

    def __neg__(self) -> Symbol:
        return Symbol(-self.size)

    def __bool__(self) -> bool:
        return holds(ne, self, 0)

    __add__, __sub__, __mul__, __floordiv__, __mod__ = map(_arithmetic, OPERATIONS)
    __radd__, __rsub__, __rmul__, __rfloordiv__, __rmod__ = map(_reflected, OPERATIONS)
    __eq__, __ne__, __lt__, __le__, __gt__, __ge__ = map(_comparison, (eq, ne, lt, le, gt, ge))


def sym_int(value: int | Symbol) -> Size:
    return value.size if isinstance(value, Symbol) else value


def holds(comparison: Callable[..., Any], *values: int | Symbol) -> bool:
    """Return whether a comparison of integers, some of them Symbols, holds."""
    sizes = [sym_int(value) for value in values]
    examples = [size if isinstance(size, int) else size.node.hint for size in sizes]
    if max(map(abs, examples)) >= UNREACHED:
        return comparison(*examples)
    return bool(comparison(*sizes))


# Gradients.


def call_operator(domain: str, name: str, /, *inputs: Given, **attributes: Any) -> Tensors:
    """Run an operator of this package on tensors."""
    return torch_operator(built_in((domain, name)))(*inputs, **attributes)


def register_gradient(operator: Operator, name: str, library: torch.library.Library) -> None:
    """Register the declaration's gradient with PyTorch; without one, gradients are refused."""
    function = operator.gradient
    needed = parameters_of("gradient", function) if function else ()

    def keep(
        ctx: FunctionCtx,
        inputs: Sequence[Any],
        output: Tensors,
        keyword_only_inputs: Iterable[tuple[str, Any]] = (),
    ) -> None:
        values = dict(operator.values(dict(keyword_only_inputs)).by_name)
        values |= zip((i.name for i in operator.inputs), inputs, strict=False)
        values |= zip((o.name for o in operator.outputs), as_tuple(output), strict=True)
        leaves, ctx.tree = tree_flatten({name: values[name] for name in needed if name in values})
        ctx.save_for_backward(
            *(leaf if isinstance(leaf, torch.Tensor) else None for leaf in leaves)
        )
        ctx.constants = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]

    def backward(ctx: FunctionCtx, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        if not function:
            raise OpError(None, None, "has no gradient; .gradient declares one", operator.title)
        leaves = [
            constant if tensor is None else tensor
            for tensor, constant in zip(ctx.saved_tensors, ctx.constants, strict=True)
        ]
        values = {"call": call_operator, **tree_unflatten(leaves, ctx.tree)}
        values |= zip((f"grad_{o.name}" for o in operator.outputs), gradients, strict=True)
        with errors_of(operator):
            returned = list(as_tuple(function(**{name: values[name] for name in needed})))
            count = len([i for i in operator.inputs if not i.values])
            rule = "must be one for each tensor:"
            require(len(returned) == count, "gradients", len(returned), rule, count)
        return tuple(None if i.values else returned.pop(0) for i in operator.inputs)

    torch.library.register_autograd(name, backward, setup_context=keep, lib=library)
