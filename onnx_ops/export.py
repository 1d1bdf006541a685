"""`torch.onnx.export`, except that `torch.nn.functional.grid_sample` becomes com.microsoft GridSample.

PyTorch's own exporters write ai.onnx GridSample, and refuse below opset 16. torch and onnxscript are imported only when
`export` is called.
"""

from contextlib import contextmanager

from .errors import OpError
from .operators.grid_sample import MICROSOFT, PADDING_MODES

MODES = ("bilinear", "nearest", "bicubic")  # the exporters hand over positions in these and in PADDING_MODES
OPSETS = range(7, 31)  # from ONNX Runtime's first to beyond PyTorch's last


def export(model, args=(), f=None, *, dynamo=True, custom_translation_table=None, **kwargs):
    """Write the PyTorch `model` as ONNX to the file `f`. What it takes and returns is what `torch.onnx.export` does.

    Every 4-D `grid_sample` becomes a com.microsoft GridSample, every 5-D one an error that names its shape. Works with
    both exporters: dynamo=True for opset 18 and up, dynamo=False (TorchScript, which PyTorch deprecates) for 7 to 20.

        class Zoom(torch.nn.Module):
            def forward(self, x, grid):
                return torch.nn.functional.grid_sample(x, grid / 2, mode="bicubic", align_corners=True)

        onnx_ops.export.export(Zoom().eval(), (x, grid), "zoom.onnx", opset_version=18)
        session = onnx_ops.InferenceSession("zoom.onnx")
    """
    import torch

    if dynamo:
        table = _translations() | (custom_translation_table or {})
        return torch.onnx.export(model, args, f, dynamo=True, custom_translation_table=table, **kwargs)
    with _symbolics():
        return torch.onnx.export(model, args, f, dynamo=False, **kwargs)


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
    """dynamo=False: the same in PyTorch's table for TorchScript, which is global, for as long as the context lasts."""
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
    for opset in OPSETS:
        register_custom_op_symbolic("aten::grid_sampler", grid_sample, opset)
    try:
        yield
    finally:
        for opset in OPSETS:
            unregister_custom_op_symbolic("aten::grid_sampler", opset)
