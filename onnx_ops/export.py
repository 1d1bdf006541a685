"""`torch.onnx.export`, except that `torch.nn.functional.grid_sample` becomes com.microsoft GridSample.

PyTorch's own exporters write ai.onnx GridSample, and refuse below opset 16. torch and onnxscript are imported only when
`export` is called.
"""

import os
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module

from .errors import OpError
from .files import staged_file
from .locks import EXPORT
from .operators.grid_sample import MICROSOFT, PADDING_MODES

MODES = ("bilinear", "nearest", "bicubic")  # the exporters hand over positions in these and in PADDING_MODES
OPSETS = range(7, 31)  # from ONNX Runtime's first to beyond PyTorch's last
ATEN = "aten::grid_sampler"  # what dynamo=False calls it


def export(model, args=(), f=None, *, dynamo=True, custom_translation_table=None, **kwargs):
    """Write the PyTorch `model` as ONNX to the file `f`. What it takes and returns is what `torch.onnx.export` does.

    Every 4-D `grid_sample` becomes a com.microsoft GridSample, every 5-D one an error that names its shape. Works with
    both exporters: dynamo=True for opset 18 and up, dynamo=False (TorchScript, which PyTorch deprecates) for 7 to 20.
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


def _attributes(shape, mode, padding_mode, align_corners):
    """The node's attributes; `shape` is the image's, None where it isn't known."""
    if shape is not None and len(shape) != 4:
        raise OpError("shape of X", shape, "must have rank 4: [N, C, H, W]", MICROSOFT.title)
    return {"mode": MODES[mode], "padding_mode": PADDING_MODES[padding_mode], "align_corners": int(align_corners)}


def _translations():
    """dynamo=True: {PyTorch's operator: function that adds the node}."""
    import onnxscript
    import torch

    from .schemas import schema

    # The exporter asks for a schema, and onnx has none for this domain.
    node = onnxscript.values.Op(onnxscript.values.Opset(MICROSOFT.domain, 1), MICROSOFT.name, schema(MICROSOFT))

    # The exporter tells attributes from tensors by the annotations.
    def grid_sample(x, grid, mode: int, padding_mode: int, align_corners: bool):
        return node(x, grid, **_attributes(x.shape, mode, padding_mode, align_corners))

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
    def grid_sample(g, x, grid, mode, padding_mode, align_corners):
        shape, points = x.type().varyingSizes(), grid.type().varyingSizes()
        attributes = _attributes(shape, mode, padding_mode, align_corners)
        kinds = {"mode": "mode_s", "padding_mode": "padding_mode_s", "align_corners": "align_corners_i"}
        y = g.op(
            f"{MICROSOFT.domain}::{MICROSOFT.name}",
            x,
            grid,
            **{kinds[name]: value for name, value in attributes.items()},
        )
        if shape and points:
            y.setType(x.type().with_sizes([*shape[:2], *points[1:3]]))
        return y

    # PyTorch takes the newest entry that the target opset allows: one for each leaves no other any chance.
    with EXPORT, ExitStack() as stack:
        before = _registered()
        for opset in OPSETS:
            register_custom_op_symbolic(ATEN, grid_sample, opset)
            if opset in before:
                stack.callback(register_custom_op_symbolic, ATEN, before[opset], opset)
            else:
                stack.callback(unregister_custom_op_symbolic, ATEN, opset)
        yield


def _registered():
    """{opset: function that somebody has registered for ATEN}, as far as PyTorch, which has no public way, tells."""
    for home in ("torch.onnx._internal.torchscript_exporter.registration", "torch.onnx._internal.registration"):
        with suppress(ImportError, AttributeError):
            functions = import_module(home).registry.get_function_group(ATEN)._functions
            return {opset: functions[opset] for opset in functions if functions.overridden(opset)}
    return {}
