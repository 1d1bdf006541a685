"""Draw the pictures of the pages on Col2Im and GridSample: `python scripts/pictures.py` writes them to docs/images."""

import math
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import onnx_ops
from onnx_ops.cli.demo import GRIDS, MODES, PADDING_MODES, grid, photograph

IMAGES = Path(__file__).parent.parent / "docs/images"
PATCH, STRIDE = 64, 48  # of the patches, in pixels
MARGIN, TITLE = 10, 34  # pixels between pictures, and above each
INK, PAPER = (40, 40, 40), (255, 255, 255)


def as_picture(image):
    """Convert [1, 3, H, W] in [0, 1] to a picture of Pillow's."""
    return Image.fromarray((np.moveaxis(image[0], 0, -1).clip(0, 1) * 255).round().astype(np.uint8))


def resized(image, height, width):
    picture = as_picture(image).resize((width, height), Image.Resampling.LANCZOS)
    return np.moveaxis(np.asarray(picture, np.float32) / 255, -1, 0)[None]


def draw_col2im(image):
    """Draw a photograph, its overlapping patches, and what Col2Im makes of them."""
    settings = (PATCH, PATCH), {"strides": [STRIDE, STRIDE]}
    patches = onnx_ops.im2col(image, settings[0], **settings[1])
    added, overlaps = (
        onnx_ops.col2im(x, image.shape[2:], settings[0], **settings[1]) for x in (patches, np.ones_like(patches))
    )
    panels = {
        "1  a photograph": image,
        f"2  cut into patches of {PATCH} x {PATCH} pixels, one every {STRIDE}": side_by_side(patches, image),
        "3  Col2Im adds them up; shown darker, since up to 4 patches overlap": added / 3,
        "4  divided by the number of overlaps: the photograph again": added / overlaps,
    }
    save_panels("col2im.jpg", "Col2Im puts patches together", panels, 2)


def side_by_side(patches, image, gap=8):
    """Return an image of the patches side by side, with white between them."""
    rows = (image.shape[2] - PATCH) // STRIDE + 1
    tiles = patches.reshape(3, PATCH, PATCH, rows, -1).transpose(0, 3, 1, 4, 2)
    framed = np.pad(tiles, ((0, 0), (0, 0), (0, gap), (0, 0), (0, gap)), constant_values=1)
    columns = framed.shape[3]
    return framed.reshape(1, 3, rows * (PATCH + gap), columns * (PATCH + gap))[..., :-gap, :-gap]


def draw_modes(image):
    small = resized(image, 64, 100)
    grids = {
        "rotated": grid(1 / 1.6, 25),
        "lens": grid(0.7, strength=0.45),
        "magnified": grid(1 / 4, move=(-0.25, -0.15)),
    }
    panels = {f"{m}: {n}": sampled(small, grids[n], m, "border") for m in MODES for n in grids}
    title = 'A photograph of 100 x 64 pixels, read by GridSample(mode=..., padding_mode="border")'
    save_panels("grid_sample_modes.jpg", title, panels, 3)


def draw_padding(image):
    panels = {f"{p}: {n}": sampled(image, GRIDS[n], "linear", p) for n in GRIDS for p in PADDING_MODES}
    title = 'What lies outside the photograph: GridSample(mode="linear", padding_mode=...)'
    save_panels("grid_sample_padding.jpg", title, panels, 3)


def sampled(image, coordinates, mode, padding_mode):
    return onnx_ops.grid_sample(image, coordinates, mode=mode, padding_mode=padding_mode)


def save_panels(name, title, panels, columns):
    """Draw pictures, {title: [1, 3, H, W]}, in rows below the title of them all."""
    height, width = (max(image.shape[axis] for image in panels.values()) for axis in (2, 3))
    rows = math.ceil(len(panels) / columns)
    page = Image.new("RGB", (columns * (width + MARGIN) + MARGIN, TITLE + rows * (height + TITLE) + MARGIN), PAPER)
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(size=17)
    draw.text((MARGIN, 10), title, INK, font)
    for k, (panel_title, image) in enumerate(panels.items()):
        x, y = MARGIN + k % columns * (width + MARGIN), TITLE + k // columns * (height + TITLE)
        draw.text((x, y + 10), panel_title, INK, font)
        scaled = resized(image, height, image.shape[3] * height // image.shape[2])
        page.paste(as_picture(scaled), (x, y + TITLE))
    page.save(IMAGES / name, quality=80)


if __name__ == "__main__":
    for draw_page in (draw_col2im, draw_modes, draw_padding):
        draw_page(photograph())
