"""`torch.onnx.export`, except that functions for which ONNX has no operators become one node each.

| PyTorch            | node                      | PyTorch's own exporters write instead                  |
|--------------------|---------------------------|--------------------------------------------------------|
| `grid_sample`, 4-D | com.microsoft GridSample  | ai.onnx GridSample, which it refuses below opset 16    |
| `unfold`           | onnx_ops Im2Col           | Gather twice                                           |
| `affine_grid`      | onnx_ops AffineGrid       | products and sums, or ai.onnx AffineGrid from opset 20 |

com.microsoft knows no volumes: a 5-D `grid_sample` is left to PyTorch. torch and onnxscript are imported only when
`export` is called.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from onnx import TensorProto, numpy_helper

from . import plain
from .files import staged_file
from .locks import EXPORT
from .operators.affine_grid import AFFINE_GRID
from .operators.grid_sample import MICROSOFT, PADDING_MODES
from .operators.im2col import IM2COL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .declaration import Operator

_Writer: TypeAlias = "_Dynamo | _TorchScript"
MODES = ("bilinear", "nearest", "bicubic")  # the exporters pass positions in these and in PADDING_MODES
OPSETS = range(7, 31)  # from the first that ONNX Runtime runs to beyond the last that PyTorch writes
VOLUME = 5  # the rank of volumes, [N, C, D, H, W], which com.microsoft GridSample doesn't take
UNBATCHED = 3  # the rank of an image without a batch: [C, H, W]


def export(
    model: Any,
    args: Any = (),
    f: Any = None,
    *,
    dynamo: bool = True,
    custom_translation_table: dict[Any, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Write the PyTorch `model` as ONNX to the file `f`. What it takes and returns is what `torch.onnx.export` does.

    Every `unfold` becomes an Im2Col and every `affine_grid` an AffineGrid of the domain onnx_ops, every 4-D
    `grid_sample` a com.microsoft GridSample. A 5-D one becomes what PyTorch makes of it: the GridSample of ai.onnx,
    which has volumes from opset 20 on. Works with both exporters: dynamo=True for opset 18 and up, dynamo=False
    (TorchScript, which PyTorch deprecates) for 7 to 20. An `affine_grid` may have a size that the model leaves open
    with dynamo=False from opset 11 on; with dynamo=True PyTorch fixes it.
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
            table = translations() | (custom_translation_table or {})
            return torch.onnx.export(model, args, target, dynamo=True, custom_translation_table=table, **kwargs)
        with _symbolics():
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
    """Add the node for `grid_sample`; returns its output, or None for volumes."""
    if writer.rank(x) == VOLUME:
        return None
    return writer.ours(MICROSOFT, x, grid, **_attributes(mode, padding_mode, align_corners))


def _attributes(mode: int, padding_mode: int, align_corners: bool) -> dict[str, Any]:
    """Return the node's attributes for the numbers that PyTorch passes."""
    return {"mode": MODES[mode], "padding_mode": PADDING_MODES[padding_mode], "align_corners": int(align_corners)}


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
    """Add the node for `affine_grid`, after nodes that compute the coordinates; returns the output."""
    sizes = writer.numbers(size)[:1:-1]  # without batch and channels; the last axis, x, comes first
    vectors = [coordinates(writer, size, align_corners) for size in sizes]
    vectors += [writer.constant(np.zeros(0))] * (3 - len(vectors))
    kind = writer.element_type(theta)
    return writer.ours(AFFINE_GRID, theta, *(writer.node("Cast", v, to=kind) for v in vectors))


def coordinates(writer: _Writer, size: Any, align_corners: bool) -> Any:
    """Add the coordinates of the pixels along an axis, as in PyTorch: (2 i + 1 - size) / span, i < size, in float64.

    -1 and 1 are the outer pixels' centres with `align_corners`, and else their outer edges.
    """
    if isinstance(size, int):
        return writer.constant(np.arange(1 - size, size, 2) / (max(size - 1, 1) if align_corners else size))
    one, two = (writer.constant(np.array(n)) for n in (1, 2))
    numerators = writer.node("Range", writer.node("Sub", one, size), size, two)
    numerators, span, one = (writer.node("Cast", v, to=TensorProto.DOUBLE) for v in (numerators, size, one))
    if align_corners:
        span = writer.node("Max", writer.node("Sub", span, one), one)
    return writer.node("Div", numerators, span)


TRANSLATIONS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    # PyTorch's operator: (the function that adds our node, TorchScript's kinds of its arguments)
    "grid_sampler": (grid_sample, ("v", "v", "i", "i", "b")),
    "im2col": (unfold, ("v", "is", "is", "is", "is")),
    "affine_grid_generator": (affine_grid, ("v", "v", "b")),
}


class _Dynamo:
    """Writer for dynamo=True: it adds nodes of ai.onnx and `ours`, and reads properties of PyTorch's values."""

    def node(self, op_type: str, *inputs: Any, **attributes: Any) -> Any:
        import onnxscript

        return getattr(onnxscript.opset18, op_type)(*inputs, **attributes)  # PyTorch converts it to later opsets

    def ours(self, operator: "Operator", *inputs: Any, **attributes: Any) -> Any:
        import onnxscript

        from .schemas import schema

        # The exporter asks for a schema, and onnx has none for these domains.
        opset = onnxscript.values.Opset(operator.domain, operator.versions[0])
        return onnxscript.values.Op(opset, operator.name, schema(operator))(*inputs, **attributes)

    def constant(self, array: "NDArray[Any]") -> Any:
        return self.node("Constant", value=numpy_helper.from_array(array))

    def rank(self, value: Any) -> int:
        return len(value.shape)

    def element_type(self, value: Any) -> int:
        return int(value.dtype)

    def numbers(self, value: Any) -> Any:
        return value


def translations() -> dict[Any, Callable[..., Any]]:
    """Return {PyTorch's operator: function that adds the node} for dynamo=True."""
    import torch

    writer = _Dynamo()

    # The exporter tells attributes from tensors by the annotations: what has none is a tensor.
    def grid_sampler(x, grid, mode: int, padding_mode: int, align_corners: bool):  # type: ignore[no-untyped-def]  # see above
        y = grid_sample(writer, x, grid, mode, padding_mode, align_corners)
        attributes = _attributes(mode, padding_mode, align_corners)  # as in PyTorch's own translation
        return writer.node("GridSample", x, grid, **attributes) if y is None else y

    def im2col(  # type: ignore[no-untyped-def]  # see above
        x, kernel_size: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
    ):
        return unfold(writer, x, kernel_size, dilation, padding, stride)

    def affine_grid_generator(theta, size, align_corners: bool):  # type: ignore[no-untyped-def]  # see above
        return affine_grid(writer, theta, size, align_corners)

    aten = torch.ops.aten
    # A module has grid_sampler; an ExportedProgram that its owner has decomposed has the other two.
    table = {op.default: grid_sampler for op in (aten.grid_sampler, aten.grid_sampler_2d, aten.grid_sampler_3d)}
    return {**table, aten.im2col.default: im2col, aten.affine_grid_generator.default: affine_grid_generator}


class _TorchScript:
    """Writer for dynamo=False, with the methods of _Dynamo. g: PyTorch's context of a graph."""

    def __init__(self, g: Any) -> None:
        self.g = g

    def node(self, op_type: str, *inputs: Any, **attributes: Any) -> Any:
        kinds = {name: "s" if isinstance(value, str) else "i" for name, value in attributes.items()}
        return self.g.op(op_type, *inputs, **{f"{name}_{kinds[name]}": value for name, value in attributes.items()})

    def ours(self, operator: "Operator", *inputs: Any, **attributes: Any) -> Any:
        y = self.node(f"{operator.domain}::{operator.name}", *inputs, **attributes)
        shapes = [v.type().varyingSizes() for v in inputs]
        (shape,) = plain.infer(operator, operator.values(attributes), shapes, [None] * len(inputs)) or [None]
        if shape:
            y.setType(inputs[0].type().with_sizes(shape))
        return y

    def constant(self, array: "NDArray[Any]") -> Any:
        import torch

        return self.g.op("Constant", value_t=torch.from_numpy(np.asarray(array)))

    def rank(self, value: Any) -> Any:
        return value.type().dim()

    def element_type(self, value: Any) -> int:
        from torch.onnx import JitScalarType

        return int(JitScalarType.from_value(value, JitScalarType.FLOAT).onnx_type())

    def numbers(self, value: Any) -> Any:
        """Return a list of ints, or of values where they are not constant."""
        from torch.onnx import symbolic_helper

        if symbolic_helper._is_packed_list(value):
            return [symbolic_helper._maybe_get_const(v, "i") for v in symbolic_helper._unpack_list(value)]
        return symbolic_helper._get_const(value, "is", "size")


@contextmanager
def _symbolics() -> Iterator[None]:
    """Register our translations in PyTorch's global table for TorchScript, for as long as the context lasts.

    What others have registered there is restored; meanwhile exports in other threads get ours, too.
    """
    from torch.onnx import register_custom_op_symbolic, unregister_custom_op_symbolic

    # PyTorch takes the newest entry that the target opset allows: hence ours is registered for each opset.
    with EXPORT, ExitStack() as stack:
        for name in (f"aten::{name}" for name in TRANSLATIONS):
            functions, custom = _registered_symbolics(name)
            symbolic = _symbolic(name, functions)
            for opset in OPSETS:
                register_custom_op_symbolic(name, symbolic, opset)
                if opset in custom:
                    stack.callback(register_custom_op_symbolic, name, custom[opset], opset)
                else:
                    stack.callback(unregister_custom_op_symbolic, name, opset)
        yield


def _symbolic(name: str, functions: Mapping[int, Callable[..., Any]]) -> Callable[..., Any]:
    """Return the function that PyTorch calls for an operator.

    functions  {opset: function} that take what ours leaves to PyTorch
    """
    from torch.onnx import symbolic_helper

    translate, kinds = TRANSLATIONS[name.removeprefix("aten::")]
    parse_and_translate = symbolic_helper.parse_args(*kinds)(translate)

    def symbolic(g: Any, *args: Any) -> Any:
        y = parse_and_translate(_TorchScript(g), *args)
        return _newest(name, functions, g.opset)(g, *args) if y is None else y

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
