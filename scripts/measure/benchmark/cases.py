"""The timed cases, in named groups: cases as the tests have them, with inputs like those of real
models.
"""

from dataclasses import dataclass

import numpy as np
from support.cases import Case, block_counts, drawn

from onnx_ops.declaration import dtypes

# Random elements, which are repeated; a prime, so that no two rows or planes are equal.
DRAWN = 1_000_003
SMOOTH = {  # warps of images: where the pixel at (x, y) in [-1, 1] comes from
    "rotated": lambda x, y: (0.94 * x - 0.34 * y, 0.34 * x + 0.94 * y),
    "barrel distortion": lambda x, y: (
        x * (0.85 + 0.2 * (x * x + y * y)),
        y * (0.85 + 0.2 * (x * x + y * y)),
    ),
    "flow": lambda x, y: (x + 0.02 * np.sin(7 * y), y + 0.02 * np.sin(9 * x)),
    "enlarged": lambda x, y: (x / 1.02, y / 1.02),
    "nearly the identity": lambda x, y: (x + 1e-4, y + 1e-4),
}
# Points anywhere: those of "windows" are the output's rows, 7 by 7 around centres anywhere.
SCATTERED = {
    "uniform": lambda rng, shape: rng.random(shape, np.float32) * 2 - 1,
    "clustered": lambda rng, shape: clustered(rng, shape),
    "sorted": lambda rng, shape: in_order(rng.random(shape, np.float32) * 2 - 1),
    "windows": lambda rng, shape: windows(rng, shape),
}


@dataclass(frozen=True)
class Timed(Case):
    """A case and how it is timed: one line of a table. points: how a grid is made, see `grid`."""

    dtype: str = "float32"
    points: str = "jittered"
    threads: int | None = None  # None: the number that the command line states
    peers: bool = True
    series: str = ""  # cases of one series are timed in turns

    def inputs(self, dtype=None, grid_dtype=None, **_):
        dtype, rng, arrays = dtype or self.dtype, np.random.default_rng(0), []
        for i, shape in zip(self.operator.inputs, self.shapes, strict=False):
            if i.values:
                arrays.append(np.array(shape))
            elif i.name == "Grid":
                dtype_of_grid = grid_dtype or (dtype if dtype in dtypes.FLOATS else "float32")
                arrays.append(
                    grid(rng, shape, self.points).astype(dtypes.TABLE[dtype_of_grid].numpy)
                )
            elif i.name == "sampling_locations":
                locations_of_points = locations(rng, shape, self.shapes[1], self.points)
                arrays.append(locations_of_points.astype(dtypes.TABLE[grid_dtype or dtype].numpy))
            else:
                arrays.append(np.resize(drawn(rng, min(DRAWN, int(np.prod(shape))), dtype), shape))
        return arrays


def grid(rng, shape, points):
    """A grid of points "jittered" around all pixels, warped by one of SMOOTH, or anywhere by one of
    SCATTERED.
    """
    if points in SCATTERED:
        return SCATTERED[points](rng, shape).astype(np.float32)
    axes = [np.linspace(-1, 1, size, dtype=np.float32) for size in shape[1:-1]]
    identity = np.stack(np.meshgrid(*axes, indexing="ij")[::-1], -1)
    if points in SMOOTH:
        warped = np.stack(SMOOTH[points](identity[..., 0], identity[..., 1]), -1)
        return np.broadcast_to(warped.astype(np.float32), shape)
    jitter = np.resize(rng.normal(0, 0.02, DRAWN).astype(np.float32), shape)
    return identity * np.float32(1.02) + jitter


def clustered(rng, shape):
    """Points around 50 centres, in no order."""
    centres = rng.uniform(-0.9, 0.9, (50, shape[-1]))
    return centres[rng.integers(0, len(centres), shape[:-1])] + rng.normal(0, 0.02, shape)


def in_order(grid):
    """The points of each image from top to bottom."""
    points = grid.reshape(len(grid), -1, grid.shape[-1])
    return np.take_along_axis(points, points[..., -1:].argsort(1), 1).reshape(grid.shape)


def windows(rng, shape):
    """Points 0.02 apart, 7 by 7 around centres anywhere, of which each of the output's rows of 49
    has one.
    """
    offsets = (np.arange(49) // 7, *[np.arange(49) % 7] * (shape[-1] - 1))
    centres = rng.uniform(-0.9, 0.9, (*shape[:-2], 1, shape[-1]))
    return centres + (np.stack(offsets[::-1], -1) - 3) * 0.02


def locations(rng, shape, sizes, points):
    """Locations that are "uniform" in the image, or, for as many queries as there are pixels,
    around each pixel.
    """
    if points == "uniform":
        return rng.random(shape, np.float32)
    levels = np.reshape(sizes, (-1, 2)).tolist()
    centres = [
        np.stack([(np.arange(h * w) % w + 0.5) / w, (np.arange(h * w) // w + 0.5) / h], -1)
        for h, w in levels
    ]
    jitter = (
        np.resize(rng.normal(0, 2, DRAWN).astype(np.float32), shape)
        / np.array(levels)[:, None, ::-1]
    )
    return np.concatenate(centres)[:, None, None, None] + jitter


def times(sizes):
    return "x".join(map(str, sizes))


def col2im(n, c, image, block, stride=1, pad=0, dilation=1, dtype="float32", **timed):
    """A case of Col2Im. In an image of one row `stride` is that of the last axis only."""
    axes = len(image)
    strides, pads, dilations = (
        [1 if size == 1 else stride for size in image],
        [pad] * 2 * axes,
        [dilation] * axes,
    )
    blocks = block_counts(image, block, dilations, pads, strides)
    name = f"N{n} C{c} {times(image)}, block {times(block)}" + f", stride {stride}" * (stride > 1)
    name += f", pad {pad}" * (pad > 0) + f", dilation {dilation}" * (dilation > 1)
    shapes = ((n, c * int(np.prod(block)), int(np.prod(blocks))), image, block)
    attributes = {"strides": strides, "pads": pads, "dilations": dilations}
    return Timed(name, "", "Col2Im", shapes, attributes, dtype=dtype, **timed)


def im2col(n, c, image, kernel, stride=1, pad=0, dilation=1, dtype="float32", **timed):
    axes = len(image)
    name = f"N{n} C{c} {times(image)}, kernel {times(kernel)}" + f", stride {stride}" * (stride > 1)
    name += f", pad {pad}" * (pad > 0) + f", dilation {dilation}" * (dilation > 1)
    attributes = {
        "kernel_shape": list(kernel),
        "strides": [stride] * axes,
        "pads": [pad] * 2 * axes,
    }
    attributes["dilations"] = [dilation] * axes
    return Timed(name, "onnx_ops", "Im2Col", ((n, c, *image),), attributes, dtype=dtype, **timed)


def grid_sample(
    n,
    c,
    image,
    out=None,
    *,
    mode="bilinear",
    padding_mode="zeros",
    align_corners=0,
    dtype="float32",
    **timed,
):
    attributes = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    description = times(image) + (f" -> {times(out)}" if out else "")
    description += f", {timed['points']}" if "points" in timed else ""
    domain = "com.microsoft" if len(image) == 2 and dtype in dtypes.FLOATS else ""
    out = out or image
    name = f"N{n} C{c} {description}, {mode} {padding_mode}{' align' * align_corners}"
    shapes = ((n, c, *image), (n, *out, len(image)))
    return Timed(name, domain, "GridSample", shapes, attributes, dtype=dtype, **timed)


def attention(*levels, queries=None, dtype="float32", **timed):
    """A case of deformable attention. queries: None for one per pixel, with locations around it."""
    pixels, count, points = sum(h * w for h, w in levels), len(levels), 4
    weights_shape = (1, queries or pixels, 8, count, points)
    name = f"{', '.join(map(times, levels))}; {queries or 'all'} queries, 8 heads, 32 channels"
    shapes = ((1, pixels, 8, 32), np.ravel(levels).tolist(), (*weights_shape, 2), weights_shape)
    timed = {"points": "uniform" if queries else "around pixels", **timed}
    return Timed(name, "onnx_ops", "MultiScaleDeformableAttention", shapes, dtype=dtype, **timed)


def deform_conv(n, c, image, outputs=None, kernel=(3, 3), mask=True, dtype="float32", **timed):
    """A case of DeformConv whose output has the image's size; outputs: its channels, None for as
    many as the image.
    """
    outputs, positions = outputs or c, int(np.prod(kernel))
    shapes = [
        (n, c, *image),
        (outputs, c, *kernel),
        (n, positions * len(image), *image),
        (outputs,),
        (n, positions, *image),
    ]
    name = f"N{n} C{c} {times(image)} to {outputs}, kernel {times(kernel)}" + ", no mask" * (
        not mask
    )
    pads = [size // 2 for size in kernel] * 2
    return Timed(
        name, "", "DeformConv", tuple(shapes[: 4 + mask]), {"pads": pads}, dtype=dtype, **timed
    )


def baseline(**timed):
    align = {"align_corners": 1, **timed}
    return [
        col2im(1, 64, (56, 56), (3, 3), pad=1, **timed),
        col2im(1, 64, (256, 256), (3, 3), pad=1, **timed),
        col2im(8, 3, (224, 224), (16, 16), stride=16, **timed),
        col2im(1, 128, (64, 64), (4, 4), stride=2, pad=1, **timed),
        col2im(4, 64, (128, 128), (7, 7), stride=4, pad=2, **timed),
        col2im(1, 1, (5, 5), (1, 5), **timed),
        grid_sample(8, 3, (224, 224), **timed),
        grid_sample(1, 64, (128, 128), padding_mode="border", **align),
        grid_sample(1, 64, (128, 128), mode="bicubic", padding_mode="border", **align),
        grid_sample(1, 64, (128, 128), mode="nearest", **timed),
        grid_sample(4096, 1, (46, 62), (9, 9), points="uniform", **align),
        grid_sample(8, 32, (100, 100), (900, 4), points="uniform", **timed),
        grid_sample(1, 3, (1080, 1920), **timed),
        grid_sample(1, 3, (1080, 1920), mode="nearest", **timed),
        grid_sample(1, 3, (1080, 1920), mode="bicubic", padding_mode="reflection", **timed),
        grid_sample(1, 1, (4, 4), (6, 6), **timed),
    ]


def element_types():
    small_floats = ("float32", "float16", "bfloat16")
    for name, dtypes_of_series, make in (
        (
            "Col2Im",
            (*small_floats, "float64", "int8"),
            lambda **t: col2im(1, 64, (128, 128), (3, 3), pad=1, **t),
        ),
        (
            "Col2Im, stride",
            small_floats,
            lambda **t: col2im(1, 128, (64, 64), (4, 4), stride=2, pad=1, **t),
        ),
        ("bilinear", (*small_floats, "float64"), lambda **t: grid_sample(1, 64, (128, 128), **t)),
        ("bicubic", small_floats, lambda **t: grid_sample(1, 64, (128, 128), mode="bicubic", **t)),
        (
            "nearest",
            (*small_floats, "float64", "uint8"),
            lambda **t: grid_sample(1, 64, (128, 128), mode="nearest", **t),
        ),
        (
            "1080p",
            ("float32", "uint8"),
            lambda **t: grid_sample(1, 3, (1080, 1920), mode="nearest", **t),
        ),
    ):
        yield from (make(dtype=dtype, series=name) for dtype in dtypes_of_series)


def axes():
    yield col2im(4, 64, (16384,), (3,), pad=1)
    yield col2im(4, 64, (16384,), (8,), stride=4)
    yield col2im(1, 16, (32, 64, 64), (3, 3, 3), pad=1)
    yield col2im(1, 16, (32, 64, 64), (2, 2, 2), stride=2)
    for mode in ("nearest", "linear", "cubic"):
        yield grid_sample(1, 8, (32, 64, 64), mode=mode)


def unfold():
    for dtype in ("float32", "float64", "float16", "uint8"):
        yield im2col(2, 64, (56, 56), (3, 3), pad=1, dtype=dtype)
        yield im2col(1, 3, (240, 320), (8, 8), stride=4, dtype=dtype)
        yield im2col(8, 128, (32, 32), (2, 2), stride=2, dtype=dtype)
        yield im2col(1, 64, (128, 128), (3, 3), pad=1, dilation=2, dtype=dtype)
        yield im2col(4, 64, (4096,), (16,), stride=4, dtype=dtype)
        yield im2col(1, 8, (32, 32, 32), (3, 3, 3), pad=1, dtype=dtype)
    yield im2col(8, 3, (224, 224), (16, 16), stride=16)
    yield im2col(4, 512, (7, 7), (3, 3), pad=1)


def attentions():
    """Yield Deformable DETR's encoder and decoder, RT-DETR's decoder, and Mask2Former's encoder."""
    detr = (100, 134), (50, 67), (25, 34), (13, 17)
    for threads in (None, 1):
        yield attention(*detr, threads=threads)
        yield attention(*detr, queries=300, threads=threads)
        yield attention((80, 80), (40, 40), (20, 20), queries=300, threads=threads)
        yield attention((16, 16), (32, 32), (64, 64), threads=threads)
    for dtype in ("float16", "bfloat16", "float64"):
        yield attention((16, 16), (32, 32), (64, 64), dtype=dtype)


def deform_convs():
    """Yield layers of detectors' backbones and heads."""
    for threads in (None, 1):
        yield deform_conv(1, 64, (64, 64), threads=threads)
        yield deform_conv(1, 256, (40, 40), threads=threads)
        yield deform_conv(1, 128, (80, 80), threads=threads)
        yield deform_conv(1, 64, (160, 160), mask=False, threads=threads)
    for dtype in ("float16", "bfloat16", "float64"):
        yield deform_conv(1, 64, (64, 64), dtype=dtype)


def sizes():
    for image in ((8, 8), (32, 32), (128, 128), (512, 512), (2160, 3840)):
        yield col2im(1, 3, image, (3, 3), pad=1)
        yield grid_sample(1, 3, image)


def channels():
    for c in (1, 4, 16, 64, 256):
        yield col2im(1, c, (64, 64), (3, 3), pad=1)
        yield grid_sample(1, c, (64, 64))


def batch():
    for n in (1, 64):
        yield col2im(n, 16, (32, 32), (3, 3), pad=1)
        yield grid_sample(n, 16, (32, 32))


def one_thread():
    yield from (case for case in baseline(threads=1) if np.prod(case.shapes[0]) < 4e6)


def networks():
    """Yield Col2Im as exported networks have it, on one thread, which is what servers give a
    session.
    """
    for c, side in ((160, 4), (128, 8), (96, 16), (64, 32), (128, 64)):  # MobileViTv2
        yield col2im(1, c, (side, side), (2, 2), stride=2, threads=1)
    for frame, hop, count in (
        (1280, 320, 200),
        (1024, 256, 300),
        (512, 128, 400),
    ):  # an inverse STFT
        yield col2im(1, 1, (1, frame + hop * (count - 1)), (1, frame), stride=hop, threads=1)
    yield col2im(2, 3, (240, 320), (32, 32), stride=16, threads=1)  # patches that overlap
    yield col2im(1, 3, (240, 320), (8, 8), stride=4, threads=1)
    yield col2im(
        1, 3, (224, 224), (16, 16), stride=16, threads=1
    )  # patches that don't overlap: a masked autoencoder
    yield col2im(1, 96, (56, 56), (7, 7), stride=7, threads=1)  # windows of attention
    yield col2im(1, 192, (28, 28), (3, 3), stride=2, pad=1, threads=1)  # VOLO's outlook attention
    yield col2im(1, 64, (56, 56), (3, 3), pad=1, threads=1)
    yield col2im(1, 256, (14, 14), (3, 3), pad=1, threads=1)
    yield col2im(1, 64, (256, 256), (3, 3), pad=1, threads=1)
    yield col2im(3, 48, (77, 77), (3, 3), stride=3, dilation=3, threads=1)
    yield col2im(64, 16, (17, 17), (2, 2), threads=1)


def smooth():
    yield grid_sample(8, 3, (224, 224), points="rotated")
    for mode, padding_mode in (("bilinear", "zeros"), ("nearest", "zeros"), ("bicubic", "border")):
        yield grid_sample(
            1, 3, (1080, 1920), mode=mode, padding_mode=padding_mode, points="barrel distortion"
        )
    yield grid_sample(4, 3, (384, 512), points="flow")
    yield grid_sample(1, 1, (1080, 1920), padding_mode="reflection", points="rotated")
    yield grid_sample(1, 1, (2160, 3840), padding_mode="border", points="nearly the identity")
    yield grid_sample(1, 1, (720, 1280), mode="nearest", padding_mode="border", points="enlarged")


def points(**timed):
    """Yield PointRend's points, and those of EG3D on its three planes."""
    yield grid_sample(1, 256, (128, 256), (8096, 1), points="uniform", **timed)
    yield grid_sample(3, 32, (256, 256), (1, 100_000), points="uniform", **timed)


def scattered():
    """Yield points anywhere, as PointRend, EG3D, trackers and descriptors of key points read
    them.
    """
    for threads in (None, 1):
        several = {"points": "uniform", "threads": threads}
        yield from points(threads=threads)
        yield grid_sample(2, 96, (96, 96), (20_000, 1), **several)
        yield grid_sample(1, 256, (200, 200), (1000, 1), **several)
        yield grid_sample(1, 128, (100, 136), (300, 1), **several)
        yield grid_sample(1, 32, (256, 256), (100_000, 1), **several)
        yield grid_sample(1, 16, (64, 64), (10_000, 1), **several)
        yield grid_sample(1, 3, (2048, 2730), (100_000, 1), **several)
        yield grid_sample(1, 8, (1024, 2048), (1000, 1000), **several)
        yield grid_sample(1, 64, (512, 512), (300, 1), **several)
        yield grid_sample(1, 128, (128, 128), (2000, 49), **several | {"points": "windows"})
        yield grid_sample(1, 64, (256, 256), (300, 49), **several | {"points": "windows"})
        yield grid_sample(1, 64, (256, 256), (20_000, 1), **several | {"points": "clustered"})
        yield grid_sample(1, 64, (256, 256), (20_000, 1), **several | {"points": "sorted"})
        yield grid_sample(
            1, 64, (256, 256), (20_000, 1), padding_mode="border", align_corners=1, **several
        )
        yield grid_sample(1, 32, (32, 64, 64), (1, 1, 20_000), **several, mode="linear")
        yield grid_sample(1, 4, (128, 128, 128), (1, 1, 100_000), **several, mode="linear")
        yield grid_sample(1, 32, (32, 64, 64), (1, 1, 20_000), **several, mode="nearest")
        for mode in ("nearest", "bicubic"):
            yield grid_sample(1, 256, (128, 256), (8096, 1), **several, mode=mode)
            yield grid_sample(1, 32, (256, 256), (100_000, 1), **several, mode=mode)
        for mode in ("nearest", "bilinear", "bicubic"):
            yield grid_sample(1, 256, (128, 256), (8096, 1), **several, mode=mode, dtype="float16")


def scaling():
    """Yield cases with about 2**18 to 2**26 elements in the largest tensor."""
    for power in range(18, 27, 2):
        side = round((2**power / 9) ** 0.5)
        yield col2im(1, 1, (side, side), (3, 3), pad=1, peers=False)
    for mode in ("nearest", "bilinear", "bicubic"):
        for power in range(18, 27, 2):
            side = round((2**power / 3) ** 0.5)
            yield grid_sample(1, 3, (side, side), mode=mode, peers=False)


GROUPS = {
    "baseline": baseline,
    "dtypes": element_types,
    "axes": axes,
    "unfold": unfold,
    "attention": attentions,
    "deform-conv": deform_convs,
    "sizes": sizes,
    "channels": channels,
    "batch": batch,
    "one-thread": one_thread,
    "networks": networks,
    "smooth": smooth,
    "points": points,
    "scattered": scattered,
    "scaling": scaling,
}
