"""Pictures for `onnx-ops demo`, made by models that are written next to them.

The photograph, cat.jpg, is Chelsea by Stefan van der Walt, who put it in the public domain (CC0); it is made smaller.
"""

import math
from importlib import resources

import numpy as np
import onnx
from PIL import Image, ImageDraw, ImageFont

from ..files import staged
from .data import write_image
from .routes import Route

MODES = ("nearest", "linear", "cubic")
PADDING_MODES = ("zeros", "border", "reflection")
PATCH, STRIDE = 64, 48  # of the patches, in pixels
CELL = (192, 300)  # pixels of a small picture, height and width
MARGIN, TITLE, LABEL = 10, 34, 96  # pixels between pictures, above and left of them
INK, PAPER = (40, 40, 40), (255, 255, 255)

GRID_SAMPLE = """<ir_version: 9, opset_import: ["" : 20]>
grid_sample (float[N, C, H, W] X, float[N, H_out, W_out, 2] Grid) => (float[N, C, H_out, W_out] Y) {{
    Y = GridSample <mode = "{mode}", padding_mode = "{padding_mode}"> (X, Grid)
}}"""
FOLD = """<ir_version: 9, opset_import: ["" : 18]>
fold (float[N, CK, L] patches, int64[2] image_shape) => (float[N, C, H, W] image)
<int64[2] block_shape = {{{patch}, {patch}}}> {{
    image = Col2Im <strides = [{stride}, {stride}]> (patches, image_shape, block_shape)
}}"""


def photograph():
    """Return the photograph, float32 [1, 3, 256, 400] in [0, 1]."""
    with resources.files(__package__).joinpath("cat.jpg").open("rb") as file:
        pixels = np.asarray(Image.open(file).convert("RGB"), np.float32) / 255
    return np.ascontiguousarray(np.moveaxis(pixels, -1, 0)[None])


def resized(image, height, width):
    smaller = Image.fromarray(pixels(image)).resize((width, height), Image.Resampling.LANCZOS)
    return np.moveaxis(np.asarray(smaller, np.float32) / 255, -1, 0)[None]


def plane():
    """Return x and y of a small picture's pixels. The centre is 0, the left and the right border are -1 and 1."""
    height, width = CELL
    y, x = np.mgrid[:height, :width].astype(np.float32)
    return (2 * x + 1) / width - 1, ((2 * y + 1) / height - 1) * height / width


def grid(x, y):
    """Return coordinates in the unit of `plane` as a Grid [1, height, width, 2]."""
    return np.stack([x, y * CELL[1] / CELL[0]], -1)[None].astype(np.float32)


def rotated(degrees=25.0, zoom=1.0):
    x, y = plane()
    cos, sin = math.cos(math.radians(degrees)) / zoom, math.sin(math.radians(degrees)) / zoom
    return grid(cos * x - sin * y, sin * x + cos * y)


def lens(strength=0.9):
    """Return a Grid that magnifies distances from the centre, more so the larger they are, as a strong lens does."""
    x, y = plane()
    zoom = 0.7 + strength * (x * x + y * y)
    return grid(x * zoom, y * zoom)


def magnified(zoom=6.0, at=(-0.25, -0.15)):
    x, y = plane()
    return grid(x / zoom + at[0], y / zoom + at[1])


def grid_sample(directory, image, grid, mode, padding_mode):
    """Sample the image at these coordinates, by a model that is written into the directory."""
    path = directory / f"grid_sample_{mode}_{padding_mode}.onnx"
    onnx.save(onnx.parser.parse_model(GRID_SAMPLE.format(mode=mode, padding_mode=padding_mode)), path)
    return Route(path).run({"X": image, "Grid": grid})["Y"]


def write(directory):
    """Write all pictures into a directory, or none; returns [(path, what it shows)]."""
    image = photograph()
    with staged(directory) as folder:
        write_image(folder / "photograph.png", image)
        pictures = [col2im(folder, image), modes(folder, image), padding_modes(folder, image)]
    return [(directory / path.name, what) for path, what in pictures]


def col2im(directory, image):
    """Draw a photograph, its overlapping patches, and what Col2Im makes of them."""
    size = np.array(image.shape[2:])
    patches = unfold(image)
    path = directory / "col2im.onnx"
    onnx.save(onnx.parser.parse_model(FOLD.format(patch=PATCH, stride=STRIDE)), path)
    session = Route(path)
    added, overlaps = (
        session.run({"patches": p, "image_shape": size})["image"] for p in (patches, np.ones_like(patches))
    )
    panels = (
        ("1  a photograph", image),
        (f"2  cut into patches of {PATCH} x {PATCH} pixels, one every {STRIDE}", side_by_side(patches)),
        ("3  Col2Im adds them up; shown darker, since up to 4 patches overlap", added / 3),
        ("4  divided by the number of overlaps: the photograph again", added / overlaps),
    )
    height, width = panels[1][1].shape[2:]
    sheet = Sheet(2 * (width + MARGIN) + MARGIN, 2 * (height + TITLE) + MARGIN)
    for k, (title, panel) in enumerate(panels):
        x, y = MARGIN + k % 2 * (width + MARGIN), TITLE + k // 2 * (height + TITLE)
        sheet.text(x, y - 24, title)
        sheet.put(x, y, panel if k == 1 else resized(panel, height, image.shape[3] * height // image.shape[2]))
    return sheet.save(directory / "col2im.jpg"), "patches of a photograph, put back by Col2Im"


def unfold(image):
    """Return the patches of [1, 3, H, W] as [1, 3 * PATCH * PATCH, L], as torch.nn.functional.unfold does."""
    windows = np.lib.stride_tricks.sliding_window_view(image, (PATCH, PATCH), (2, 3))[:, :, ::STRIDE, ::STRIDE]
    return np.ascontiguousarray(windows.transpose(0, 1, 4, 5, 2, 3)).reshape(1, 3 * PATCH**2, -1)


def side_by_side(patches, gap=8):
    """Return an image of the patches side by side, with white between them."""
    rows = (photograph().shape[2] - PATCH) // STRIDE + 1
    tiles = patches.reshape(3, PATCH, PATCH, rows, -1).transpose(0, 3, 1, 4, 2)
    framed = np.pad(tiles, ((0, 0), (0, 0), (0, gap), (0, 0), (0, gap)), constant_values=1)
    columns = framed.shape[3]
    return framed.reshape(1, 3, rows * (PATCH + gap), columns * (PATCH + gap))[..., :-gap, :-gap]


def modes(directory, image):
    small = resized(image, 64, 100)
    write_image(directory / "small.png", small)
    grids = {"rotated": rotated(zoom=1.6), "through a lens": lens(0.45), "magnified": magnified(4.0)}
    cells = {
        (mode, name): grid_sample(directory, small, g, mode, "border") for mode in MODES for name, g in grids.items()
    }
    for name, g in grids.items():
        np.save(directory / f"{name.split()[-1]}.npy", g)
    title = 'A photograph of 100 x 64 pixels, read by GridSample(mode=..., padding_mode="border")'
    path = sheet_of(title, MODES, list(grids), cells).save(directory / "grid_sample_modes.jpg")
    return path, "rotated, warped and magnified by GridSample in each mode"


def padding_modes(directory, image):
    grids = {"rotated": rotated(zoom=0.6), "through a lens": lens()}
    cells = {
        (name, p): grid_sample(directory, image, g, "linear", p) for name, g in grids.items() for p in PADDING_MODES
    }
    title = 'What lies outside the photograph: GridSample(mode="linear", padding_mode=...)'
    path = sheet_of(title, list(grids), PADDING_MODES, cells).save(directory / "grid_sample_padding.jpg")
    return path, "what GridSample reads outside the image, in each padding_mode"


def sheet_of(title, rows, columns, cells):
    """Draw a table of pictures with titles of its rows and columns."""
    height, width = CELL
    sheet = Sheet(LABEL + len(columns) * (width + MARGIN), 2 * TITLE + len(rows) * (height + MARGIN))
    sheet.text(MARGIN, 8, title)
    for j, column in enumerate(columns):
        sheet.text(LABEL + j * (width + MARGIN), TITLE + 8, column)
    for i, row in enumerate(rows):
        sheet.text(MARGIN, 2 * TITLE + i * (height + MARGIN) + height // 2 - 10, row.replace(" a ", " a\n"))
        for j, column in enumerate(columns):
            sheet.put(LABEL + j * (width + MARGIN), 2 * TITLE + i * (height + MARGIN), cells[row, column])
    return sheet


class Sheet:
    """A white page for pictures and text."""

    def __init__(self, width, height):
        self.page = Image.new("RGB", (width, height), PAPER)
        self.draw, self.font = ImageDraw.Draw(self.page), ImageFont.load_default(size=17)

    def text(self, x, y, text):
        self.draw.text((x, y), text, INK, self.font)

    def put(self, x, y, image):
        self.page.paste(Image.fromarray(pixels(image)), (x, y))

    def save(self, path):
        self.page.save(path, quality=80)
        return path


def pixels(image):
    """Convert [1, 3, H, W] in [0, 1] to uint8 [H, W, 3]."""
    return (np.moveaxis(image[0], 0, -1).clip(0, 1) * 255).round().astype(np.uint8)
