"""Export PyTorch models as `torch.onnx.export` does, with one node for each of these functions:

| PyTorch       | node                              | PyTorch's own exporter writes instead |
|---------------|-----------------------------------|---------------------------------------|
| `unfold`      | onnx_ops Im2Col                   | Gather twice                          |
| `affine_grid` | ai.onnx AffineGrid, from opset 20 | products and sums, of fixed sizes     |

PyTorch writes ai.onnx GridSample itself. Operators of this package and custom operators become the
node of their declaration. torch and onnxscript are imported only when `export` is called.
"""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import cache, partial
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto, numpy_helper

from ..declaration.errors import OpError
from ..fold.im2col import IM2COL
from ..registry import as_list, available
from ..sampling.grid_sample import MICROSOFT, PADDING_MODES
from ..system.files import staged_file

# Annotations that mypy alone reads are texts. PyTorch's exporter evaluates those of functions that
# it is given.
if TYPE_CHECKING:
    import torch
    from onnxscript.ir import Value
    from torch._ops import OpOverload
    from torch.overrides import TorchFunctionMode

    from ..declaration.operator import Operator
    from ..model.types import Array
    from ..registry import Declared
    from .types import Length, Table

# The exporter passes indices into these and PADDING_MODES.
MODES = "bilinear", "nearest", "bicubic"
DEFAULT_OPSET = 20  # that of PyTorch 2.13
AFFINE_GRID = "aten::affine_grid_generator"  # PyTorch's operator
REPLACEMENT = "onnx_ops_export::affine_grid"  # the operator that replaces it
AFFINE_GRID_OPSET = 20  # the first one that has an AffineGrid
VOLUME = 5  # rank of volumes, [N, C, D, H, W], which com.microsoft GridSample doesn't support
UNBATCHED = 3  # the rank of an image without a batch: [C, H, W]


def export(
    model: Any,
    args: Any = (),
    f: Any = None,
    *,
    operators: "Iterable[Declared]" = (),
    custom_translation_table: dict[Any, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Write a PyTorch model as ONNX, as `torch.onnx.export` with dynamo=True does.

    Functions that PyTorch writes as many nodes become one node each. `unfold`
    becomes onnx_ops Im2Col. `affine_grid` becomes ai.onnx AffineGrid from
    opset 20 on, of fixed or open size; below, its size must be fixed. PyTorch
    writes all others, such as `grid_sample` as ai.onnx GridSample.

    Parameters
    ----------
    model : torch.nn.Module or torch.export.ExportedProgram
        The model.
    args : tuple of torch.Tensor
        Example inputs. Sizes of the model are theirs, except for those that
        `dynamic_shapes` leaves open.
    f : path, optional
        The file to write. An old one, and its data, stay until the new ones are
        complete.
    operators : iterable of custom operators
        Custom operators, made by `onnx_ops.operator`: each call of
        `my_op.torch` becomes a node. Calls of this package's operators, such as
        `onnx_ops.im2col.torch`, always do.
    custom_translation_table : dict, optional
        Further translations, as for `torch.onnx.export`. They take precedence.
    **kwargs
        Further arguments of `torch.onnx.export`. `opset_version` is 18 or
        newer; default: 20.

    Returns
    -------
    torch.onnx.ONNXProgram or None
        As `torch.onnx.export`.

    Raises
    ------
    OpError
        `dynamo` is False, PyTorch is older than 2.6, or an operator can't be
        one of PyTorch's. Other exceptions are those of `torch.onnx.export`.

    Examples
    --------
    >>> import torch
    >>> class Unfold(torch.nn.Module):
    ...     def forward(self, x):
    ...         return torch.nn.functional.unfold(x, 3)
    >>> model = Unfold().eval()
    >>> inputs = (torch.rand(1, 2, 8, 8),)
    >>> program = onnx_ops.export.export(model, inputs, "unfold.onnx", verbose=False)
    >>> session = onnx_ops.InferenceSession("unfold.onnx")
    """
    import torch

    if not kwargs.setdefault("dynamo", True):
        rule = (
            "must be True; onnx_ops.optimize rewrites what torch.onnx.export(..., "
            "dynamo=False) has written"
        )
        raise OpError("dynamo", False, rule, "onnx_ops")
    opset = kwargs["opset_version"] = kwargs.get("opset_version") or DEFAULT_OPSET
    theirs = custom_translation_table or {}
    is_ours = opset >= AFFINE_GRID_OPSET and _overload(AFFINE_GRID) not in theirs
    affine_grids, mode = _affine_grids() if is_ours else ({}, nullcontext)
    table = translations(operators) | affine_grids | theirs
    with staged_file(f) if isinstance(f, str | os.PathLike) else nullcontext(f) as target, mode():
        return torch.onnx.export(model, args, target, custom_translation_table=table, **kwargs)


def node(op_type: str, /, *inputs: "Value", **attributes: Any) -> "Value":
    """Add a node of ai.onnx; return its output."""
    import onnxscript

    opset = onnxscript.opset20 if op_type == "AffineGrid" else onnxscript.opset18
    return getattr(opset, op_type)(*inputs, **attributes)  # PyTorch converts it to later opsets


def node_of(
    operator: "Operator", /, *inputs: "Value | None", **attributes: Any
) -> "Value | tuple[Value, ...]":
    """Add the node of a declared operator; return its output, or several."""
    import onnxscript

    from ..model.schemas import schema

    # PyTorch would pass it the inputs before it, too.
    if operator.is_variadic:
        declared = [
            replace(
                i,
                name=f"{i.name}_{k}",
                presence="required" if i.presence == "variadic" else i.presence,
            )
            for k, i in enumerate(operator.each_input(len(inputs)))
        ]
        operator = replace(operator, inputs=tuple(declared))
    # The exporter requires a schema, and onnx has none for these domains.
    opset = onnxscript.values.Opset(operator.domain, operator.versions[0])
    return onnxscript.values.Op(opset, operator.name, schema(operator))(*inputs, **attributes)


def add_constant(array: "Array") -> "Value":
    """Add a Constant; returns its output."""
    return node("Constant", value=numpy_helper.from_array(array))


def com_microsoft_grid_sample(
    input: Any,
    grid: Any,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> Any:
    """Add a com.microsoft GridSample node for a 4-D `grid_sample`; return its output.

    This is a translation for `custom_translation_table`. The domain has no
    GridSample of volumes: a 5-D `grid_sample` becomes ai.onnx GridSample.

    Parameters
    ----------
    input, grid : value of the exporter
        Tensors of shape [N, C, H, W] and [N, H_out, W_out, 2].
    interpolation_mode : int
        Index into bilinear, nearest, bicubic.
    padding_mode : int
        Index into zeros, border, reflection.
    align_corners : bool
        As in PyTorch.

    Returns
    -------
    value of the exporter
        The output, of shape [N, C, H_out, W_out].

    Raises
    ------
    IndexError
        There is no mode or padding mode of this index.

    Examples
    --------
    >>> import torch
    >>> table = {torch.ops.aten.grid_sampler.default: onnx_ops.export.com_microsoft_grid_sample}
    """
    attributes = {
        "mode": MODES[interpolation_mode],
        "padding_mode": PADDING_MODES[padding_mode],
        "align_corners": int(align_corners),
    }
    if len(input.shape) == VOLUME:
        return node("GridSample", input, grid, **attributes)
    return node_of(MICROSOFT, input, grid, **attributes)


def unfold(
    x: "Value",
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> "Value":
    """Add the node for `unfold`; return its output.

    For an image without a batch, it is between Unsqueeze and Squeeze.
    """
    batch = add_constant(np.array([0])) if len(x.shape) == UNBATCHED else None
    x = x if batch is None else node("Unsqueeze", x, batch)
    y = node_of(
        IM2COL,
        x,
        kernel_shape=kernel_size,
        dilations=dilation,
        pads=[*padding, *padding],
        strides=stride,
    )
    return y if batch is None else node("Squeeze", y, batch)


def affine_grid(theta: "Value", size: "Sequence[Length]", align_corners: bool) -> "Value":
    """Add the node for `affine_grid`; return its output.

    16-bit floats are rounded once, after it, as in PyTorch.
    """
    data_type = int(theta.dtype)
    # The only types with kernels in ONNX Runtime.
    wide = data_type if data_type == TensorProto.DOUBLE else TensorProto.FLOAT
    theta = theta if data_type == wide else node("Cast", theta, to=wide)
    if align_corners and not all(isinstance(length, int) and length > 1 for length in size[2:]):
        # The place of a single pixel is 0 in PyTorch, 1 in ONNX Runtime: such a column of theta is
        # multiplied by 0.
        unit = add_constant(np.array(1))
        factors = [
            min(length - 1, 1)
            if isinstance(length, int)
            else node("Min", node("Sub", length, unit), unit)
            for length in size[:1:-1]
        ]
        theta = node("Mul", theta, node("Cast", add_vector([*factors, 1], "int64"), to=wide))
    grid = node("AffineGrid", theta, add_vector(size, "int64"), align_corners=int(align_corners))
    return grid if data_type == wide else node("Cast", grid, to=data_type)


@cache
def _affine_grids() -> "tuple[Table, type[TorchFunctionMode]]":
    """Return the translations of `affine_grid`, and a mode that replaces it by an operator.

    The translations are {PyTorch's operator: function that adds the node}.

    PyTorch decomposes its own operator while it traces a model, and fixes sizes at those of the
    example.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    def generate(theta: "torch.Tensor", size: Sequence[int], align_corners: bool) -> "torch.Tensor":
        return torch.affine_grid_generator(theta, size, align_corners)

    def fake(
        theta: "torch.Tensor", size: "Sequence[int | torch.SymInt]", align_corners: bool
    ) -> "torch.Tensor":
        axes = len(size) - 2
        torch._check(axes in (2, 3) and theta.shape[1:] == (axes, axes + 1))
        return theta.new_empty([size[0], *size[2:], axes])

    # PyTorch 2.6 infers no schema from a Sequence of collections.abc.
    schema = "(Tensor theta, SymInt[] size, bool align_corners) -> Tensor"
    operator = torch.library.custom_op(REPLACEMENT, generate, mutates_args=(), schema=schema)
    operator.register_fake(fake)

    class Replacement(TorchFunctionMode):  # type: ignore[misc]  # mypy skips PyTorch
        def __torch_function__(
            self,
            function: Callable[..., Any],
            types: Iterable[type],
            args: tuple[Any, ...] = (),
            kwargs: dict[str, Any] | None = None,
        ) -> Any:
            if function in (torch.nn.functional.affine_grid, torch.affine_grid_generator):
                function = replaced
            return function(*args, **(kwargs or {}))

    def replaced(
        theta: "torch.Tensor", size: Iterable[int], align_corners: bool | None = None
    ) -> "torch.Tensor":
        return operator(theta, list(size), bool(align_corners))

    names = AFFINE_GRID, REPLACEMENT  # the first one: of an ExportedProgram
    return {
        _overload(name): _translation(_overload(name), affine_grid) for name in names
    }, Replacement


def add_call(
    operator: "Operator", /, *inputs: "Value | Sequence[Length] | None", **attributes: Any
) -> "Value | tuple[Value, ...]":
    """Add the node for a call of a declared operator; return its output, or several."""
    from .torch_operators import declared_attributes, each_value, type_of_list

    operands = [
        add_vector(value, type_of_list(operator, i)) if i.values and value is not None else value
        for i, value in each_value(operator, inputs)
    ]
    while operands and operands[-1] is None:
        operands.pop()
    return node_of(operator, *operands, **declared_attributes(operator, attributes))


def add_vector(sizes: "Sequence[Length]", dtype: str) -> "Value":
    """Add an int64 vector of sizes, which are numbers or values."""
    if all(isinstance(size, int) for size in sizes):
        return add_constant(np.array(sizes, dtype))
    unit = add_constant(np.array([1]))
    vectors = [
        add_constant(np.array([size])) if isinstance(size, int) else node("Reshape", size, unit)
        for size in sizes
    ]
    y = node("Concat", *vectors, axis=0)
    return y if dtype == "int64" else node("Cast", y, to=TensorProto.INT32)


TRANSLATIONS: dict[str, Callable[..., Any]] = {
    # PyTorch's operator: the function that adds our node
    # Of a decomposed ExportedProgram; PyTorch has none for it.
    "aten::grid_sampler_3d": com_microsoft_grid_sample,
    "aten::im2col": unfold,
}


def _declared_nodes(operators: "Iterable[Declared]") -> dict[str, Callable[..., Any]]:
    """Return {PyTorch's operator: function that adds the node} for declared operators.

    A model may call them.

    These are the given operators, and all others that PyTorch supports.
    """
    from .torch_operators import defined

    for operator in as_list(operators):
        defined(operator)
    table: dict[str, Callable[..., Any]] = {}
    for operator in available(operators).values():
        with suppress(OpError):
            table[defined(operator)] = partial(add_call, operator)
    return table


def _overload(name: str) -> "OpOverload":
    """Return the default overload of PyTorch's operator for "namespace::name"."""
    from .torch_operators import operator_named

    return operator_named(name).default


def translations(operators: "Iterable[Declared]" = ()) -> dict[Any, Callable[..., Any]]:
    """Return a custom_translation_table for `torch.onnx.export`.

    It has what `export` translates, except for `affine_grid`.

    Parameters
    ----------
    operators : iterable of custom operators
        Custom operators that the model calls. Those of this package are
        included.

    Returns
    -------
    dict
        {PyTorch's operator: function that adds the node}.

    Raises
    ------
    OpError
        PyTorch is older than 2.6, or an operator can't be one of PyTorch's.
    ImportError
        PyTorch or onnxscript is missing.

    Examples
    --------
    >>> table = onnx_ops.export.translations()
    >>> import torch
    >>> torch.ops.aten.im2col.default in table
    True
    """
    import torch

    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
        rule = (
            "must be at least 2.6; for an older one, onnx_ops.optimize rewrites what "
            "torch.onnx.export has written"
        )
        raise OpError("torch", torch.__version__, rule, "onnx_ops")
    table = TRANSLATIONS | _declared_nodes(operators)
    return {
        _overload(name): _translation(_overload(name), function) for name, function in table.items()
    }


def _translation(overload: "OpOverload", translate: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that the exporter calls.

    Its signature states the kinds of arguments.

    The exporter recognizes attributes by their annotations. A parameter without one is a tensor.
    """

    def translation(*args: Any, **kwargs: Any) -> Any:
        return translate(*args, **kwargs)

    hints = {
        "int": int,
        "float": float,
        "bool": bool,
        "str": str,
        "List[int]": Sequence[int],
        "List[float]": Sequence[float],
    }
    parameters = [
        Parameter(
            a.name,
            Parameter.KEYWORD_ONLY if a.kwarg_only else Parameter.POSITIONAL_OR_KEYWORD,
            default=a.default_value if a.has_default_value() else Parameter.empty,
        )
        for a in overload._schema.arguments
    ]
    translation.__name__ = overload._schema.name.replace("::", "_")
    vars(translation)["__signature__"] = Signature(parameters)
    # "List[int]", whether or not it may be None
    types = {
        a.name: re.sub(r"^Optional\[(.*)\]$", r"\1", str(a.type))
        for a in overload._schema.arguments
    }
    translation.__annotations__ = {
        name: hints[type_name] for name, type_name in types.items() if type_name in hints
    }
    return translation
