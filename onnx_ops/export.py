"""`torch.onnx.export`, except that what PyTorch has functions for, and ONNX no operators, becomes one node each.

| PyTorch            | node                      | in its place PyTorch writes                            |
|--------------------|---------------------------|--------------------------------------------------------|
| `grid_sample`, 4-D | com.microsoft GridSample  | ai.onnx GridSample, which it refuses below opset 16    |
| `unfold`           | onnx_ops Im2Col           | Gather twice                                           |
| `affine_grid`      | onnx_ops AffineGrid       | products and sums, or ai.onnx AffineGrid from opset 20 |

com.microsoft knows no volumes: a 5-D `grid_sample` is left to PyTorch. torch and onnxscript are imported only when
`export` is called.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module

import numpy as np
from onnx import TensorProto, numpy_helper

from .declaration import Record
from .files import staged_file
from .locks import EXPORT
from .operators.affine_grid import AFFINE_GRID
from .operators.grid_sample import MICROSOFT, PADDING_MODES
from .operators.im2col import IM2COL

MODES = ("bilinear", "nearest", "bicubic")  # the exporters hand over positions in these and in PADDING_MODES
OPSETS = range(7, 31)  # from ONNX Runtime's first to beyond PyTorch's last
VOLUME = 5  # the rank of what com.microsoft GridSample doesn't take: [N, C, D, H, W]
UNBATCHED = 3  # the rank of an image without a batch: [C, H, W]


def export(model, args=(), f=None, *, dynamo=True, custom_translation_table=None, **kwargs):
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

    with _place(f) as place:
        if dynamo:
            table = _translations() | (custom_translation_table or {})
            return torch.onnx.export(model, args, place, dynamo=True, custom_translation_table=table, **kwargs)
        with _symbolics():
            return torch.onnx.export(model, args, place, dynamo=False, **kwargs)


@contextmanager
def _place(f):
    """Yield what PyTorch shall write to: of a path, a str, since dynamo=False puts data beside no other."""
    if isinstance(f, str | os.PathLike):
        with staged_file(f) as path:
            yield str(path)
    else:
        yield f


def grid_sample(writer, x, grid, mode, padding_mode, align_corners):
    """The node for `grid_sample`; None for volumes."""
    if writer.rank(x) == VOLUME:
        return None
    return writer.ours(MICROSOFT, x, grid, **_attributes(mode, padding_mode, align_corners))


def _attributes(mode, padding_mode, align_corners):
    """The node's attributes for the numbers that PyTorch hands over."""
    return {"mode": MODES[mode], "padding_mode": PADDING_MODES[padding_mode], "align_corners": int(align_corners)}


def unfold(writer, x, kernel_size, dilation, padding, stride):
    """The node for `unfold`, around which an image without a batch gets one."""
    batch = writer.constant(np.array([0])) if writer.rank(x) == UNBATCHED else None
    x = x if batch is None else writer.node("Unsqueeze", x, batch)
    pads = [*padding, *padding]
    y = writer.ours(IM2COL, x, kernel_shape=kernel_size, dilations=dilation, pads=pads, strides=stride)
    return y if batch is None else writer.node("Squeeze", y, batch)


def affine_grid(writer, theta, size, align_corners):
    """The node for `affine_grid`, and before it what computes the coordinates."""
    sizes = writer.numbers(size)[:1:-1]  # without batch and channels; that of the last axis, x, comes first
    vectors = [coordinates(writer, size, align_corners) for size in sizes]
    vectors += [writer.constant(np.zeros(0))] * (3 - len(vectors))
    kind = writer.element_type(theta)
    return writer.ours(AFFINE_GRID, theta, *(writer.node("Cast", v, to=kind) for v in vectors))


def coordinates(writer, size, align_corners):
    """PyTorch's, of the pixels along an axis: (2 i + 1 - size) / span for i from 0 to size - 1, in float64.

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


TRANSLATIONS = {  # PyTorch's operator: (the function that writes ours, what its arguments are for TorchScript)
    "grid_sampler": (grid_sample, ("v", "v", "i", "i", "b")),
    "im2col": (unfold, ("v", "is", "is", "is", "is")),
    "affine_grid_generator": (affine_grid, ("v", "v", "b")),
}


class _Dynamo:
    """What writes nodes for dynamo=True: those of ai.onnx, and `ours`; and what tells of PyTorch's values."""

    def node(self, op_type, *inputs, **attributes):
        import onnxscript

        return getattr(onnxscript.opset18, op_type)(*inputs, **attributes)  # which PyTorch converts to later opsets

    def ours(self, operator, *inputs, **attributes):
        import onnxscript

        from .schemas import schema

        # The exporter asks for a schema, and onnx has none for these domains.
        opset = onnxscript.values.Opset(operator.domain, operator.versions[0])
        return onnxscript.values.Op(opset, operator.name, schema(operator))(*inputs, **attributes)

    def constant(self, array):
        return self.node("Constant", value=numpy_helper.from_array(array))

    def rank(self, value):
        return len(value.shape)

    def element_type(self, value):
        return int(value.dtype)

    def numbers(self, value):
        return value


def _translations():
    """dynamo=True: {PyTorch's operator: function that adds the node}."""
    import torch

    writer = _Dynamo()

    # The exporter tells attributes from tensors by the annotations.
    def grid_sampler(x, grid, mode: int, padding_mode: int, align_corners: bool):
        y = grid_sample(writer, x, grid, mode, padding_mode, align_corners)
        theirs = _attributes(mode, padding_mode, align_corners)  # as in PyTorch's own translation
        return writer.node("GridSample", x, grid, **theirs) if y is None else y

    def im2col(x, kernel_size: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]):
        return unfold(writer, x, kernel_size, dilation, padding, stride)

    def affine_grid_generator(theta, size, align_corners: bool):
        return affine_grid(writer, theta, size, align_corners)

    aten = torch.ops.aten
    # A module has the first one; an ExportedProgram that was decomposed by its owner has the others.
    table = {op.default: grid_sampler for op in (aten.grid_sampler, aten.grid_sampler_2d, aten.grid_sampler_3d)}
    return {**table, aten.im2col.default: im2col, aten.affine_grid_generator.default: affine_grid_generator}


class _TorchScript:
    """The same for dynamo=False. g: PyTorch's context of a graph."""

    def __init__(self, g):
        self.g = g

    def node(self, op_type, *inputs, **attributes):
        kinds = {name: "s" if isinstance(value, str) else "i" for name, value in attributes.items()}
        return self.g.op(op_type, *inputs, **{f"{name}_{kinds[name]}": value for name, value in attributes.items()})

    def ours(self, operator, *inputs, **attributes):
        y = self.node(f"{operator.domain}::{operator.name}", *inputs, **attributes)
        parameters = Record(operator.resolved(attributes)[0])
        shape = operator.inferred(parameters, [v.type().varyingSizes() for v in inputs])
        if shape:
            y.setType(inputs[0].type().with_sizes(shape))
        return y

    def constant(self, array):
        import torch

        return self.g.op("Constant", value_t=torch.from_numpy(np.asarray(array)))

    def rank(self, value):
        return value.type().dim()

    def element_type(self, value):
        from torch.onnx import JitScalarType

        return int(JitScalarType.from_value(value, JitScalarType.FLOAT).onnx_type())

    def numbers(self, value):
        """A list of ints as such, or as values those that are not constant."""
        from torch.onnx import symbolic_helper

        if symbolic_helper._is_packed_list(value):
            return [symbolic_helper._maybe_get_const(v, "i") for v in symbolic_helper._unpack_list(value)]
        return symbolic_helper._get_const(value, "is", "size")


@contextmanager
def _symbolics():
    """dynamo=False: the same in PyTorch's table for TorchScript, which is global, for as long as the context lasts.

    What others have registered there comes back; until then their own exports, in other threads, get ours.
    """
    from torch.onnx import register_custom_op_symbolic, unregister_custom_op_symbolic

    # PyTorch takes the newest entry that the target opset allows: one for each leaves no other any chance.
    with EXPORT, ExitStack() as stack:
        for name in (f"aten::{name}" for name in TRANSLATIONS):
            known, custom = _known_symbolics(name)
            symbolic = _symbolic(name, known)
            for opset in OPSETS:
                register_custom_op_symbolic(name, symbolic, opset)
                if opset in custom:
                    stack.callback(register_custom_op_symbolic, name, custom[opset], opset)
                else:
                    stack.callback(unregister_custom_op_symbolic, name, opset)
        yield


def _symbolic(name, known):
    """What PyTorch shall call for its operator of this name; {opset: function} for what ours leave to others."""
    from torch.onnx import symbolic_helper

    translate, kinds = TRANSLATIONS[name.removeprefix("aten::")]
    parsing = symbolic_helper.parse_args(*kinds)(translate)

    def symbolic(g, *args):
        y = parsing(_TorchScript(g), *args)
        return _newest(name, known, g.opset)(g, *args) if y is None else y

    return symbolic


def _newest(name, functions, opset):
    """Of {opset: function}, the one that PyTorch takes for an opset; raises PyTorch's own error if there is none."""
    from torch.onnx.errors import UnsupportedOperatorError

    allowed = [first for first in functions if first <= opset]
    if not allowed:
        raise UnsupportedOperatorError(name, opset, min(functions, default=None))
    return functions[max(allowed)]


def _known_symbolics(name):
    """({opset: function for an operator of PyTorch}, those of them that somebody has registered).

    As far as PyTorch tells, which has no public way.
    """
    # Whose import registers PyTorch's own.
    from torch.onnx import symbolic_opset11, symbolic_opset16, symbolic_opset20  # noqa: F401

    for home in ("torch.onnx._internal.torchscript_exporter.registration", "torch.onnx._internal.registration"):
        with suppress(ImportError, AttributeError):
            functions = import_module(home).registry.get_function_group(name)._functions
            known = {opset: functions[opset] for opset in functions}
            return known, {opset: known[opset] for opset in known if functions.overridden(opset)}
    return {}, {}
