"""Pictures of pages, drawn from what their examples compute."""

import math
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from onnx_ops.cli.data import write_image
from onnx_ops.cli.demo import photograph

from . import pages

IMAGES = pages.ROOT / "docs/images"
MARGIN, TITLE = 10, 34  # pixels between pictures, and above each
INK, PAPER = (40, 40, 40), (255, 255, 255)


def draw(page):
    """Run the examples of a page, and draw its pictures, in the current folder."""
    write_image(Path("photograph.png"), photograph())
    names = pages.run(page)
    if page.stem in PANELS:
        PANELS[page.stem](names)


def as_picture(image):
    """Convert [1, 3, H, W] in [0, 1] to a picture of Pillow's."""
    return Image.fromarray((np.moveaxis(image[0], 0, -1).clip(0, 1) * 255).round().astype(np.uint8))


def resized(image, height, width):
    picture = as_picture(image).resize((width, height), Image.Resampling.LANCZOS)
    return np.moveaxis(np.asarray(picture, np.float32) / 255, -1, 0)[None]


def draw_col2im(names):
    image, added, overlaps = (names[each] for each in ("image", "added", "overlaps"))
    panels = {
        "1  a photograph": image,
        "2  cut into patches of 64 x 64 pixels, one every 48": side_by_side(names["patches"]),
        "3  Col2Im adds them up; shown darker, since up to 4 patches overlap": added / 3,
        "4  divided by the number of overlaps: the photograph again": added / overlaps,
    }
    save_panels("col2im.jpg", "Col2Im puts patches together", panels, 2)


def side_by_side(patches, size=64, rows=5, gap=8):
    """Return an image of the patches side by side, with white between them."""
    tiles = patches.reshape(3, size, size, rows, -1).transpose(0, 3, 1, 4, 2)
    framed = np.pad(tiles, ((0, 0), (0, 0), (0, gap), (0, 0), (0, gap)), constant_values=1)
    return framed.reshape(1, 3, rows * (size + gap), -1)[..., :-gap, :-gap]


def draw_grid_sample(names):
    title = 'A photograph of 100 x 64 pixels, read by GridSample(mode=..., padding_mode="border")'
    save_panels("grid_sample_modes.jpg", title, names["modes"], 3)
    title = 'What lies outside the photograph: GridSample(mode="linear", padding_mode=...)'
    save_panels("grid_sample_padding.jpg", title, names["paddings"], 3)


PANELS = {
    "col2im": draw_col2im,
    "grid_sample": draw_grid_sample,
}  # the pages whose examples draw nothing themselves


def save_panels(name, title, panels, columns):
    """Draw pictures, {title: [1, 3, H, W]}, in rows below the title of them all."""
    height, width = (max(image.shape[axis] for image in panels.values()) for axis in (2, 3))
    rows = math.ceil(len(panels) / columns)
    page = Image.new(
        "RGB",
        (columns * (width + MARGIN) + MARGIN, TITLE + rows * (height + TITLE) + MARGIN),
        PAPER,
    )
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(size=17)
    draw.text((MARGIN, 10), title, INK, font)
    for k, (panel_title, image) in enumerate(panels.items()):
        x, y = MARGIN + k % columns * (width + MARGIN), TITLE + k // columns * (height + TITLE)
        draw.text((x, y + 10), panel_title, INK, font)
        scaled = resized(image, height, image.shape[3] * height // image.shape[2])
        page.paste(as_picture(scaled), (x, y + TITLE))
    page.save(name, quality=80)
