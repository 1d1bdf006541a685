"""`torch.onnx.export`, except that functions for which ONNX has no operators become one node each.

| PyTorch            | node                              | PyTorch's own exporters write instead                  |
|--------------------|-----------------------------------|--------------------------------------------------------|
| `grid_sample`, 4-D | com.microsoft GridSample          | ai.onnx GridSample, which it refuses below opset 16    |
| `unfold`           | onnx_ops Im2Col                   | Gather twice                                           |
| `affine_grid`      | ai.onnx AffineGrid, from opset 20 | products and sums, of fixed sizes                      |

com.microsoft knows no volumes: a 5-D `grid_sample` is left to PyTorch. Operators that were declared here, ours and
one's own, become the node of their declaration. torch and onnxscript are imported only when `export` is called.
"""

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from onnx import TensorProto, numpy_helper

from . import plain
from .errors import OpError
from .files import staged_file
from .locks import EXPORT
from .operators import as_list, available
from .operators.grid_sample import MICROSOFT, PADDING_MODES
from .operators.im2col import IM2COL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .declaration import Operator

_Writer: TypeAlias = "_Dynamo | _TorchScript"
MODES = ("bilinear", "nearest", "bicubic")  # the exporters pass positions in these and in PADDING_MODES
OPSETS = range(7, 31)  # from the first that ONNX Runtime runs to beyond the last that PyTorch writes
DEFAULT_OPSET = 20  # PyTorch's, too
AFFINE_GRID, AFFINE_GRID_OPSET = "aten::affine_grid_generator", 20  # PyTorch's operator; the first opset with one
VOLUME = 5  # the rank of volumes, [N, C, D, H, W], which com.microsoft GridSample doesn't take
UNBATCHED = 3  # the rank of an image without a batch: [C, H, W]


def export(
    model: Any,
    args: Any = (),
    f: Any = None,
    *,
    operators: Iterable[Any] = (),
    dynamo: bool = True,
    custom_translation_table: dict[Any, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Write the PyTorch `model` as ONNX to the file `f`. What it takes and returns is what `torch.onnx.export` does.

    Every `unfold` becomes an Im2Col of the domain onnx_ops, every 4-D `grid_sample` a com.microsoft GridSample. A 5-D
    one becomes what PyTorch makes of it: the GridSample of ai.onnx, which has volumes from opset 20 on. From that
    opset on, which is the default, every `affine_grid` becomes an AffineGrid of ai.onnx. Its size may be open; below
    opset 20 PyTorch needs a fixed one. A call of `my_op.torch` becomes a node of the operator if it is among
    `operators`; a call of one of this package's, such as `onnx_ops.im2col.torch`, always does. Works with both
    exporters: dynamo=True for opset 18 and up, dynamo=False (TorchScript, which PyTorch deprecates) for 7 to 20.
    What is at `f`, and the data beside it, are replaced once the new ones are complete.

        class Zoom(torch.nn.Module):
            def forward(self, x, grid):
                return torch.nn.functional.grid_sample(x, grid / 2, mode="bicubic", align_corners=True)

        onnx_ops.export.export(Zoom().eval(), (x, grid), "zoom.onnx", opset_version=18)
        session = onnx_ops.InferenceSession("zoom.onnx")
    """
    import torch

    with _target(f) as target:
        if dynamo:
            opset = kwargs["opset_version"] = kwargs.get("opset_version") or DEFAULT_OPSET
            theirs, affine_grids, mode = custom_translation_table or {}, {}, nullcontext
            if opset >= AFFINE_GRID_OPSET and _overload(AFFINE_GRID) not in theirs:
                affine_grids, mode = _affine_grids()
            table = translations(operators) | affine_grids | theirs
            with mode():
                return torch.onnx.export(model, args, target, dynamo=True, custom_translation_table=table, **kwargs)
        with _symbolics(operators):
            newest = sorted((o.versions[0], o.domain) for o in _known(operators) if o.domain and o.versions[0] > 1)
            if newest:  # PyTorch writes 1 for all domains that it doesn't know
                versions = {domain: version for version, domain in newest}
                kwargs["custom_opsets"] = versions | (kwargs.get("custom_opsets") or {})
            return torch.onnx.export(model, args, target, dynamo=False, **kwargs)


@contextmanager
def _target(f: Any) -> Iterator[Any]:
    """Yield what PyTorch writes to. A path becomes a str: dynamo=False writes external data for no other type."""
    if isinstance(f, str | os.PathLike):
        with staged_file(f) as path:
            yield str(path)
    else:
        yield f


def grid_sample(writer: _Writer, x: Any, grid: Any, mode: int, padding_mode: int, align_corners: bool) -> Any:
    """Add the node for `grid_sample`; returns its output, or what PyTorch makes of a volume."""
    attributes = {"mode": MODES[mode], "padding_mode": PADDING_MODES[padding_mode], "align_corners": int(align_corners)}
    if writer.rank(x) == VOLUME:
        return writer.by_pytorch("GridSample", x, grid, **attributes)
    return writer.ours(MICROSOFT, x, grid, **attributes)


def unfold(
    writer: _Writer,
    x: Any,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Any:
    """Add the node for `unfold`, between Unsqueeze and Squeeze for an image without a batch; returns the output."""
    batch = writer.constant(np.array([0])) if writer.rank(x) == UNBATCHED else None
    x = x if batch is None else writer.node("Unsqueeze", x, batch)
    pads = [*padding, *padding]
    y = writer.ours(IM2COL, x, kernel_shape=kernel_size, dilations=dilation, pads=pads, strides=stride)
    return y if batch is None else writer.node("Squeeze", y, batch)


def affine_grid(writer: _Writer, theta: Any, size: Any, align_corners: bool) -> Any:
    """Add the node for `affine_grid`; returns the output. 16-bit floats are rounded once, after it, as in PyTorch."""
    kind = writer.element_type(theta)
    wide = kind if kind == TensorProto.DOUBLE else TensorProto.FLOAT  # for which alone ONNX Runtime has kernels
    theta = theta if kind == wide else writer.node("Cast", theta, to=wide)
    if align_corners and not all(isinstance(each, int) and each > 1 for each in size[2:]):
        # The place of a single pixel is 0 in PyTorch, 1 in ONNX Runtime: such a column of theta is multiplied by 0.
        one = writer.constant(np.array(1))
        factors = [
            min(each - 1, 1) if isinstance(each, int) else writer.node("Min", writer.node("Sub", each, one), one)
            for each in size[:1:-1]
        ]
        factors = writer.node("Cast", vector(writer, [*factors, 1], "int64"), to=wide)
        theta = writer.node("Mul", theta, factors)
    grid = writer.node("AffineGrid", theta, vector(writer, size, "int64"), align_corners=int(align_corners))
    return grid if kind == wide else writer.node("Cast", grid, to=kind)


@cache
def _affine_grids() -> tuple[dict[Any, Callable[..., Any]], Any]:
    """Return ({PyTorch's operator: function that adds the node}, a mode in which `affine_grid` calls another operator).

    PyTorch takes its own operator apart while it traces a model, and fixes sizes at those of the example.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    def whole(theta: torch.Tensor, size: Sequence[int], align_corners: bool) -> torch.Tensor:
        return torch.affine_grid_generator(theta, size, align_corners)

    def shaped(theta: Any, size: Sequence[int], align_corners: bool) -> Any:
        axes = len(size) - 2
        torch._check(axes in (2, 3) and theta.shape[1:] == (axes, axes + 1))
        return theta.new_empty([size[0], *size[2:], axes])

    operator = torch.library.custom_op("onnx_ops_export::affine_grid", whole, mutates_args=())
    operator.register_fake(shaped)

    class Whole(TorchFunctionMode):  # type: ignore[misc]  # PyTorch is Any
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function in (torch.nn.functional.affine_grid, torch.affine_grid_generator):
                return called(*args, **(kwargs or {}))
            return function(*args, **(kwargs or {}))

    def called(theta: Any, size: Any, align_corners: Any = None) -> Any:
        return operator(theta, list(size), bool(align_corners))

    names = AFFINE_GRID, "onnx_ops_export::affine_grid"  # the first one: of an ExportedProgram
    return {_overload(name): _translation(_overload(name), affine_grid) for name in names}, Whole


def deform_conv(
    writer: _Writer, x: Any, weight: Any, offset: Any, mask: Any, bias: Any, *numbers: int
) -> Any:  # fmt: skip
    """Add the node for torchvision's `deform_conv2d`; returns the output."""
    stride, padding, dilation = numbers[:2], numbers[2:4], numbers[4:6]
    group, offset_group, use_mask = numbers[6:]
    return writer.node(
        "DeformConv", x, weight, offset, bias, *([mask] if use_mask else []),
        dilations=dilation, group=group, offset_group=offset_group, pads=[*padding, *padding], strides=stride,
    )  # fmt: skip


def declared(writer: _Writer, operator: "Operator", *inputs: Any, **attributes: Any) -> Any:
    """Add the node for a call of an operator that was declared here; returns its output, or several."""
    from .torch_operators import declared_attributes, type_of_list

    parts: list[Any] = []
    for i, value in zip(operator.inputs, inputs, strict=False):
        if i.presence == "variadic":
            parts += value
        else:
            is_list = i.values and value is not None
            parts.append(vector(writer, value, type_of_list(operator, i)) if is_list else value)
    while parts and parts[-1] is None:
        parts.pop()
    return writer.ours(operator, *parts, **declared_attributes(operator, attributes))


def vector(writer: _Writer, sizes: Sequence[Any], dtype: str) -> Any:
    """Add a vector of sizes, each of which is a number or a value, an int64."""
    if all(isinstance(size, int) for size in sizes):
        return writer.constant(np.array(sizes, dtype))
    one = writer.constant(np.array([1]))
    parts = [
        writer.constant(np.array([size])) if isinstance(size, int) else writer.node("Reshape", size, one)
        for size in sizes
    ]
    y = writer.node("Concat", *parts, axis=0)
    return y if dtype == "int64" else writer.node("Cast", y, to=TensorProto.INT32)


TRANSLATIONS: dict[str, Callable[..., Any]] = {
    # PyTorch's operator: the function that adds our node
    "aten::grid_sampler": grid_sample,  # of a module
    "aten::grid_sampler_2d": grid_sample,  # of an ExportedProgram that its owner has decomposed
    "aten::grid_sampler_3d": grid_sample,
    "aten::im2col": unfold,
}
SYMBOLICS = TRANSLATIONS | {"torchvision::deform_conv2d": deform_conv}  # which dynamo=True has
FIRST_OPSETS = {"torchvision::deform_conv2d": 19}  # PyTorch names them if a model is to have an earlier one


def _known(operators: Iterable[Any]) -> list["Operator"]:
    """Return the declared operators that a model may call: these and, as far as PyTorch can have them, all others."""
    from .torch_operators import torch_operator

    for operator in as_list(operators):
        torch_operator(operator)
    known = []
    for operator in available(operators).values():
        with suppress(OpError):
            torch_operator(operator)
            known.append(operator)
    return known


def _declared(operators: Iterable[Any]) -> dict[str, Callable[..., Any]]:
    """Return {PyTorch's operator: function that adds the node} for declared operators."""
    from .torch_operators import qualified_name

    def translate(operator: "Operator", writer: _Writer, *inputs: Any, **attributes: Any) -> Any:
        return declared(writer, operator, *inputs, **attributes)

    return {qualified_name(operator): partial(translate, operator) for operator in _known(operators)}


def _overload(name: str) -> Any:
    """Return PyTorch's operator for "namespace::name"."""
    import torch

    namespace, _, op_type = name.partition("::")
    return getattr(getattr(torch.ops, namespace), op_type).default


class _Dynamo:
    """Writer for dynamo=True: it adds nodes of ai.onnx and `ours`, and reads properties of PyTorch's values."""

    def node(self, op_type: str, *inputs: Any, **attributes: Any) -> Any:
        import onnxscript

        opset = onnxscript.opset20 if op_type == "AffineGrid" else onnxscript.opset18
        return getattr(opset, op_type)(*inputs, **attributes)  # PyTorch converts it to later opsets

    by_pytorch = node

    def ours(self, operator: "Operator", *inputs: Any, **attributes: Any) -> Any:
        import onnxscript

        from .schemas import schema

        if operator.inputs[-1].presence == "variadic":  # PyTorch would hand it the inputs before it, too
            each = enumerate(operator.each_input(len(inputs)))
            single = {"variadic": "required"}
            declared = (replace(i, name=f"{i.name}_{k}", presence=single.get(i.presence, i.presence)) for k, i in each)
            operator = replace(operator, inputs=tuple(declared))
        # The exporter asks for a schema, and onnx has none for these domains.
        opset = onnxscript.values.Opset(operator.domain, operator.versions[0])
        return onnxscript.values.Op(opset, operator.name, schema(operator))(*inputs, **attributes)

    def constant(self, array: "NDArray[Any]") -> Any:
        return self.node("Constant", value=numpy_helper.from_array(array))

    def rank(self, value: Any) -> int:
        return len(value.shape)

    def element_type(self, value: Any) -> int:
        return int(value.dtype)


def translations(operators: Iterable[Any] = ()) -> dict[Any, Callable[..., Any]]:
    """Return {PyTorch's operator: function that adds the node}, the custom_translation_table of `torch.onnx.export`.

    operators  of one's own, that the model calls; those of this package, and what `export` translates, are there, too
    """
    import torch

    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
        rule = "must be at least 2.6 to write own nodes with dynamo=True; with dynamo=False this one does"
        raise OpError("torch", torch.__version__, rule, "onnx_ops")
    table = TRANSLATIONS | _declared(operators)
    return {_overload(name): _translation(_overload(name), function) for name, function in table.items()}


def _translation(overload: Any, translate: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that the exporter calls, with a signature in which it looks for the kinds of arguments.

    It tells attributes from tensors by the annotations: what has none is a tensor.
    """

    def translation(*args: Any, **kwargs: Any) -> Any:
        return translate(_Dynamo(), *args, **kwargs)

    hints: dict[str, Any] = {"int": int, "float": float, "bool": bool, "str": str}
    hints |= {"List[int]": Sequence[int], "List[float]": Sequence[float]}
    parameters = [
        inspect.Parameter(
            a.name,
            inspect.Parameter.KEYWORD_ONLY if a.kwarg_only else inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=a.default_value if a.has_default_value() else inspect.Parameter.empty,
        )
        for a in overload._schema.arguments
    ]
    translation.__name__ = overload._schema.name.replace("::", "_")
    translation.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    kinds = {a.name: _kind(a) for a in overload._schema.arguments}
    translation.__annotations__ = {name: hints[kind] for name, kind in kinds.items() if kind in hints}
    return translation


def _kind(argument: Any) -> str:
    """Return the type of an operator's argument in PyTorch, such as "List[int]", whether or not it may be None."""
    kind = str(argument.type)
    return kind[len("Optional[") : -1] if kind.startswith("Optional[") else kind


class _TorchScript:
    """Writer for dynamo=False, with the methods of _Dynamo. g: PyTorch's context of a graph."""

    def __init__(self, g: Any) -> None:
        self.g = g

    def node(self, op_type: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        from torch.onnx import symbolic_helper

        absent = symbolic_helper._optional_input_placeholder_tensor
        given = [absent(self.g) if v is None else v for v in inputs]
        named = {f"{name}_{_letter(value)}": value for name, value in attributes.items()}
        return self.g.op(op_type, *given, outputs=outputs, **named)

    def by_pytorch(self, op_type: str, *inputs: Any, **attributes: Any) -> None:
        """Return None: PyTorch's own function for the opset is called then."""

    def ours(self, operator: "Operator", *inputs: Any, **attributes: Any) -> Any:
        name = f"{operator.domain or 'onnx'}::{operator.name}"
        returned = self.node(name, *inputs, outputs=len(operator.outputs), **attributes)
        outputs = [returned] if len(operator.outputs) == 1 else list(returned)
        pairs = zip(operator.each_input(len(inputs)), inputs, strict=True)
        known = [self.values_of(v) if i.values else None for i, v in pairs]
        shapes = [None if v is None else v.type().varyingSizes() for v in inputs]
        inferred = plain.infer(operator, operator.values(attributes), shapes, known) or [None] * len(outputs)
        for y, shape, example in zip(outputs, inferred, self.g.original_node.outputs(), strict=True):
            # PyTorch would take the example's sizes for fixed ones.
            y.setType(example.type().with_sizes(shape or [None] * example.type().dim()))
        return returned

    def values_of(self, value: Any) -> list[int] | None:
        """Return the numbers in a constant vector; None if it isn't constant."""
        node = value.node() if value is not None else None
        return node.t("value").tolist() if node is not None and node.kind() == "onnx::Constant" else None

    def constant(self, array: "NDArray[Any]") -> Any:
        import torch

        return self.g.op("Constant", value_t=torch.from_numpy(np.asarray(array)))

    def rank(self, value: Any) -> Any:
        return value.type().dim()

    def element_type(self, value: Any) -> int:
        from torch.onnx import JitScalarType

        return int(JitScalarType.from_value(value, JitScalarType.FLOAT).onnx_type())

    def argument(self, kind: str, value: Any) -> Any:
        """Return the value of an argument of PyTorch's operator: a number, a text, a tensor, a list of these, or None.

        Numbers in a list are values where they are not constant.
        """
        from torch.onnx import symbolic_helper

        if kind == "Tensor" or symbolic_helper._is_none(value):
            return None if symbolic_helper._is_none(value) else value
        if kind == "List[Tensor]":
            return symbolic_helper._unpack_list(value)
        if kind == "List[int]" and symbolic_helper._is_packed_list(value):
            return [symbolic_helper._maybe_get_const(v, "i") for v in symbolic_helper._unpack_list(value)]
        letters = {"int": "i", "float": "f", "bool": "b", "str": "s", "List[int]": "is", "List[float]": "fs"}
        return symbolic_helper._get_const(value, letters[kind], kind)


def _letter(value: Any) -> str:
    """Return which kind of attribute a value is to TorchScript."""
    first = value[0] if isinstance(value, list | tuple) else value
    return "s" if isinstance(first, str) else "f" if isinstance(first, float) else "i"


@contextmanager
def _symbolics(operators: Iterable[Any]) -> Iterator[None]:
    """Register our translations in PyTorch's global table for TorchScript, for as long as the context lasts.

    What others have registered there is restored; meanwhile exports in other threads get ours, too.
    """
    from torch.onnx import register_custom_op_symbolic, unregister_custom_op_symbolic

    # PyTorch takes the newest entry that the target opset allows: hence ours is registered for each opset.
    with EXPORT, ExitStack() as stack:
        for name, translate in (SYMBOLICS | _declared(operators)).items():
            functions, custom = _registered_symbolics(name)
            symbolic = _symbolic(name, translate, functions)
            for opset in range(FIRST_OPSETS.get(name, OPSETS.start), OPSETS.stop):
                register_custom_op_symbolic(name, symbolic, opset)
                if opset in custom:
                    stack.callback(register_custom_op_symbolic, name, custom[opset], opset)
                else:
                    stack.callback(unregister_custom_op_symbolic, name, opset)
        yield


def _symbolic(
    name: str, translate: Callable[..., Any], functions: Mapping[int, Callable[..., Any]]
) -> Callable[..., Any]:
    """Return the function that PyTorch calls for an operator.

    functions  {opset: function} that take what ours leaves to PyTorch
    """

    def symbolic(g: Any, *values: Any) -> Any:
        writer, arguments = _TorchScript(g), _overload(name)._schema.arguments
        given = [(a, writer.argument(_kind(a), v)) for a, v in zip(arguments, values, strict=True)]
        positional = [value for a, value in given if not a.kwarg_only]
        y = translate(writer, *positional, **{a.name: value for a, value in given if a.kwarg_only})
        return _newest(name, functions, g.opset)(g, *values) if y is None else y

    return symbolic


def _newest(name: str, functions: Mapping[int, Callable[..., Any]], opset: int) -> Callable[..., Any]:
    """Return which of {opset: function} PyTorch takes for an opset. Raises PyTorch's own error if there is none."""
    from torch.onnx.errors import UnsupportedOperatorError

    allowed = [first for first in functions if first <= opset]
    if not allowed:
        raise UnsupportedOperatorError(name, opset, min(functions, default=None))
    return functions[max(allowed)]


def _registered_symbolics(name: str) -> tuple[dict[int, Callable[..., Any]], dict[int, Callable[..., Any]]]:
    """Return ({opset: function for an operator of PyTorch}, those of them that users have registered).

    PyTorch has no public way to ask for them. Both are empty if it keeps them elsewhere than expected.
    """
    # Importing these modules registers PyTorch's own functions.
    from torch.onnx import symbolic_opset11, symbolic_opset16, symbolic_opset20  # noqa: F401

    for home in ("torch.onnx._internal.torchscript_exporter.registration", "torch.onnx._internal.registration"):
        with suppress(ImportError, AttributeError):
            functions = import_module(home).registry.get_function_group(name)._functions
            by_opset = {opset: functions[opset] for opset in functions}
            return by_opset, {opset: by_opset[opset] for opset in by_opset if functions.overridden(opset)}
    return {}, {}
