"""GridSample's kernels for points that are computed a block at a time."""

from ..declaration.jit import jitable
from .computed_points import coordinates_in
from .grid_sample_kernels import CUBIC, LINEAR, copy_nearest, interpolate


@jitable
def nearest(image, sources, g, tile, workspace, out):
    copy_nearest(image, sources, coordinates_in(workspace, sources, g), g, tile, workspace, out)


@jitable
def linear(image, sources, g, tile, workspace, out):
    interpolate(image, sources, coordinates_in(workspace, sources, g), g, LINEAR, tile, workspace, out)


@jitable
def cubic(image, sources, g, tile, workspace, out):
    interpolate(image, sources, coordinates_in(workspace, sources, g), g, CUBIC, tile, workspace, out)
