"""Samplers and deformable convolutions in plain PyTorch, as its exporters write them: seeds of
edited_models.py.
"""

import functools
import io
import warnings

import torch
from torch.nn import functional as F

from .torch_modules import Call

EXPORTERS = (
    (False, 11),
    (False, 13),
    (False, 16),
    (False, 20),
    (True, 18),
    (True, 20),
)  # (dynamo, opset)
FORMS = "weights", "rest", "lerp"


def gathered(image, y, x):
    """As mmcv's bilinear_grid_sample: GatherElements of [N, C, H * W]."""
    (n, c, _, width), points = image.shape, y.shape[1:]
    index = (y * width + x).reshape(n, 1, -1).expand(-1, c, -1)
    return image.reshape(n, c, -1).gather(2, index).reshape(n, c, *points)


def taken(image, y, x):
    """Gather of [N * H * W, C]."""
    n, c, height, width = image.shape
    index = (torch.arange(n)[:, None, None] * height + y) * width + x
    rows = image.permute(0, 2, 3, 1).reshape(-1, c)
    return rows.index_select(0, index.reshape(-1)).reshape(*y.shape, c).permute(0, 3, 1, 2)


def indexed(image, y, x):
    """GatherND."""
    return image[torch.arange(len(image))[:, None, None], :, y, x].permute(0, 3, 1, 2)


PICKS = gathered, taken, indexed


def sampler(pick, outside, align_corners, form):
    """Return bilinear sampling. outside: as in tests/support/by_hand.py."""

    def sample(image, grid):
        height, width = image.shape[2:]
        x, y = grid[..., 0], grid[..., 1]
        if align_corners:
            x, y = (x + 1) / 2 * (width - 1), (y + 1) / 2 * (height - 1)
        else:
            x, y = ((x + 1) * width - 1) / 2, ((y + 1) * height - 1) / 2
        if outside == "border":
            x, y = x.clamp(0, width - 1), y.clamp(0, height - 1)
        x0, y0 = x.floor().long(), y.floor().long()
        x1, y1 = x0 + 1, y0 + 1
        right, down = (x - x0, y - y0) if form != "rest" else (1 - (x1 - x), 1 - (y1 - y))
        if outside == "pad":
            image, height, width = F.pad(image, [1, 1, 1, 1]), height + 2, width + 2
            x0, x1, y0, y1 = x0 + 1, x1 + 1, y0 + 1, y1 + 1

        def pixel(y, x):
            value = pick(image, y.clamp(0, height - 1), x.clamp(0, width - 1))
            if outside != "mask":
                return value
            return (
                value * ((x >= 0) & (x < width) & (y >= 0) & (y < height)).to(value.dtype)[:, None]
            )

        a, b, c, d = pixel(y0, x0), pixel(y0, x1), pixel(y1, x0), pixel(y1, x1)
        right, down = right[:, None], down[:, None]
        if form == "lerp":
            above, below = a + (b - a) * right, c + (d - c) * right
            return above + (below - above) * down
        if form == "rest":
            left, up = (x1 - x0 - right[:, 0])[:, None], (y1 - y0 - down[:, 0])[:, None]
        else:
            left, up = 1 - right, 1 - down
        return a * (left * up) + b * (right * up) + c * (left * down) + d * (right * down)

    return sample


def module(kernel, pad, stride, has_mask):
    """Return deformable convolution as common modules compute it: all rows before all columns,
    limited places.
    """
    count, weight = (
        kernel * kernel,
        torch.linspace(-1, 1, 4 * kernel * kernel).reshape(2, 2, kernel, kernel),
    )

    def convolve(x, offset, *mask):
        n, c, height, width = x.shape[0], x.shape[1], x.shape[2] + 2 * pad, x.shape[3] + 2 * pad
        (rows, columns), x = offset.shape[2:], F.pad(x, [pad] * 4)
        within, steps = (
            torch.arange(kernel),
            [torch.arange(size) * stride for size in (rows, columns)],
        )
        y = within.repeat_interleave(kernel)[:, None, None] + steps[0][:, None] + offset[:, :count]
        z = within.repeat(kernel)[:, None, None] + steps[1] + offset[:, count:]
        y, z = y.clamp(0, height - 1), z.clamp(0, width - 1)
        y0, z0 = y.floor(), z.floor()
        y1, z1 = (y0 + 1).clamp(0, height - 1), (z0 + 1).clamp(0, width - 1)

        def weighted(ys, zs, down, right):
            index = (ys.long() * width + zs.long()).reshape(n, 1, -1).expand(-1, c, -1)
            pixels = x.reshape(n, c, -1).gather(2, index).reshape(n, c, count, rows, columns)
            return (down * right)[:, None] * pixels

        up, left = 1 + (y0 - y), 1 + (z0 - z)
        total = weighted(y0, z0, up, left) + weighted(y1, z1, y - y0, z - z0)
        total = total + weighted(y0, z1, up, z - z0) + weighted(y1, z0, y - y0, left)
        if has_mask:
            total = total * mask[0][:, None]
        blocks = total.reshape(n, c, kernel, kernel, rows, columns).permute(0, 1, 4, 2, 5, 3)
        return F.conv2d(
            blocks.reshape(n, c, rows * kernel, columns * kernel), weight.to(x.dtype), stride=kernel
        )

    return convolve


@functools.cache
def exported(function, settings, inputs, dtype, exporter, opens=False):
    """Return an exported model, as bytes. inputs: {name: shape} as pairs; opens: whether sizes of
    images are open.
    """
    arrays, (dynamo, opset) = (
        tuple(torch.rand(shape, dtype=getattr(torch, dtype)) for _, shape in inputs),
        exporter,
    )
    names = [name for name, _ in inputs]
    more = {"dynamic_axes": {"image": {2: "H", 3: "W"}}} if opens else {}
    if dynamo and opens:
        axes = {2: torch.export.Dim("H", min=2), 3: torch.export.Dim("W", min=2)}
        more = {"dynamic_shapes": ((axes, *[None] * (len(names) - 1)),)}
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call = Call(function(*settings))
        how = {"dynamo": dynamo, "opset_version": opset, "input_names": names, **more}
        program = torch.onnx.export(call, arrays, *[] if dynamo else [file], verbose=False, **how)
    return program.model_proto.SerializeToString() if dynamo else file.getvalue()
