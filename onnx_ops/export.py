"""`torch.onnx.export`, except that a 4-D `torch.nn.functional.grid_sample` becomes com.microsoft GridSample.

PyTorch's own exporters write ai.onnx GridSample, and refuse below opset 16. com.microsoft knows no volumes: a 5-D
`grid_sample` is left to PyTorch. torch and onnxscript are imported only when `export` is called.
"""

import os
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module

from .files import staged_file
from .locks import EXPORT
from .operators.grid_sample import MICROSOFT, PADDING_MODES

MODES = ("bilinear", "nearest", "bicubic")  # the exporters hand over positions in these and in PADDING_MODES
OPSETS = range(7, 31)  # from ONNX Runtime's first to beyond PyTorch's last
ATEN = "aten::grid_sampler"  # what dynamo=False calls it
VOLUME = 5  # the rank of what com.microsoft GridSample doesn't take: [N, C, D, H, W]


def export(model, args=(), f=None, *, dynamo=True, custom_translation_table=None, **kwargs):
    """Write the PyTorch `model` as ONNX to the file `f`. What it takes and returns is what `torch.onnx.export` does.

    Every 4-D `grid_sample` becomes a com.microsoft GridSample. A 5-D one becomes what PyTorch makes of it: the
    GridSample of ai.onnx, which has volumes from opset 20 on. Works with both exporters: dynamo=True for opset 18 and
    up, dynamo=False (TorchScript, which PyTorch deprecates) for 7 to 20.
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


def _attributes(mode, padding_mode, align_corners):
    """The node's attributes for the numbers that PyTorch hands over."""
    return {"mode": MODES[mode], "padding_mode": PADDING_MODES[padding_mode], "align_corners": int(align_corners)}


def _translations():
    """dynamo=True: {PyTorch's operator: function that adds the node}."""
    import onnxscript
    import torch

    from .schemas import schema

    # The exporter asks for a schema, and onnx has none for this domain.
    ours = onnxscript.values.Op(onnxscript.values.Opset(MICROSOFT.domain, 1), MICROSOFT.name, schema(MICROSOFT))
    theirs = onnxscript.opset18.GridSample  # as in PyTorch's own translation, which converts it to later opsets

    # The exporter tells attributes from tensors by the annotations.
    def grid_sample(x, grid, mode: int, padding_mode: int, align_corners: bool):
        node = theirs if len(x.shape) == VOLUME else ours
        return node(x, grid, **_attributes(mode, padding_mode, align_corners))

    # A module has the first one; an ExportedProgram that was decomposed by its owner has the others.
    aten = torch.ops.aten
    return {op.default: grid_sample for op in (aten.grid_sampler, aten.grid_sampler_2d, aten.grid_sampler_3d)}


@contextmanager
def _symbolics():
    """dynamo=False: the same in PyTorch's table for TorchScript, which is global, for as long as the context lasts.

    What others have registered there comes back; until then their own exports, in other threads, get ours.
    """
    from torch.onnx import register_custom_op_symbolic, symbolic_helper, unregister_custom_op_symbolic

    @symbolic_helper.parse_args("v", "v", "i", "i", "b")
    def image(g, x, grid, mode, padding_mode, align_corners):
        kinds = {"mode": "mode_s", "padding_mode": "padding_mode_s", "align_corners": "align_corners_i"}
        attributes = _attributes(mode, padding_mode, align_corners)
        named = {kinds[name]: value for name, value in attributes.items()}
        y = g.op(f"{MICROSOFT.domain}::{MICROSOFT.name}", x, grid, **named)
        shape, points = x.type().varyingSizes(), grid.type().varyingSizes()
        if shape and points:
            y.setType(x.type().with_sizes([*shape[:2], *points[1:3]]))
        return y

    # PyTorch takes the newest entry that the target opset allows: one for each leaves no other any chance.
    with EXPORT, ExitStack() as stack:
        known, custom = _known_symbolics()

        def grid_sample(g, x, *others):
            translate = _newest(known, g.opset) if x.type().dim() == VOLUME else image
            return translate(g, x, *others)

        for opset in OPSETS:
            register_custom_op_symbolic(ATEN, grid_sample, opset)
            if opset in custom:
                stack.callback(register_custom_op_symbolic, ATEN, custom[opset], opset)
            else:
                stack.callback(unregister_custom_op_symbolic, ATEN, opset)
        yield


def _newest(functions, opset):
    """Of {opset: function}, the one that PyTorch takes for an opset; raises PyTorch's own error if there is none."""
    from torch.onnx.errors import UnsupportedOperatorError

    allowed = [first for first in functions if first <= opset]
    if not allowed:
        raise UnsupportedOperatorError(ATEN, opset, min(functions, default=None))
    return functions[max(allowed)]


def _known_symbolics():
    """({opset: function for ATEN}, those of them that somebody has registered).

    As far as PyTorch tells, which has no public way.
    """
    from torch.onnx import symbolic_opset16, symbolic_opset20  # noqa: F401  whose import registers PyTorch's own

    for home in ("torch.onnx._internal.torchscript_exporter.registration", "torch.onnx._internal.registration"):
        with suppress(ImportError, AttributeError):
            functions = import_module(home).registry.get_function_group(ATEN)._functions
            known = {opset: functions[opset] for opset in functions}
            return known, {opset: known[opset] for opset in known if functions.overridden(opset)}
    return {}, {}
