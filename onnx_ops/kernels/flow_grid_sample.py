"""GridSample's kernels for FlowGridSample's points, which are computed a block at a time."""

from ..compiler.jit import jitable
from .elements import elements_in
from .grid_points import BLOCK, COLUMNS
from .grid_sample import CUBIC, LINEAR, copy_nearest, interpolate


@jitable
def nearest(image, flow, operands, x, y, z, g, tile, workspace, out):
    points = elements_in(workspace, COLUMNS, BLOCK * g.axes, flow)
    copy_nearest(image, points, (flow, operands, x, y, z), g, tile, workspace, out)


@jitable
def linear(image, flow, operands, x, y, z, g, tile, workspace, out):
    points = elements_in(workspace, COLUMNS, BLOCK * g.axes, flow)
    interpolate(image, points, (flow, operands, x, y, z), g, LINEAR, tile, workspace, out)


@jitable
def cubic(image, flow, operands, x, y, z, g, tile, workspace, out):
    points = elements_in(workspace, COLUMNS, BLOCK * g.axes, flow)
    interpolate(image, points, (flow, operands, x, y, z), g, CUBIC, tile, workspace, out)
