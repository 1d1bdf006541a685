"""GridSample's kernels for points that are computed a block at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..declaration.jit import jitable
from .computed_points import coordinates_in
from .grid_sample_kernels import CUBIC, LINEAR, Grid, copy_nearest, interpolate

if TYPE_CHECKING:
    from ..kernels.types import Elements, Tile, Workspace
    from .computed_geometry import ComputedGridSampleGeometry
    from .geometry import Sources


@jitable
def nearest(
    image: Elements,
    sources: Sources,
    g: ComputedGridSampleGeometry,
    tile: Tile,
    workspace: Workspace,
    out: Elements,
) -> None:
    """Compute a tile with mode nearest."""
    grid = Grid(coordinates_in(workspace, sources, g), sources)
    copy_nearest(image, grid, g, tile, workspace, out)


@jitable
def linear(
    image: Elements,
    sources: Sources,
    g: ComputedGridSampleGeometry,
    tile: Tile,
    workspace: Workspace,
    out: Elements,
) -> None:
    """Compute a tile with mode linear."""
    grid = Grid(coordinates_in(workspace, sources, g), sources)
    interpolate(image, grid, g, LINEAR, tile, workspace, out)


@jitable
def cubic(
    image: Elements,
    sources: Sources,
    g: ComputedGridSampleGeometry,
    tile: Tile,
    workspace: Workspace,
    out: Elements,
) -> None:
    """Compute a tile with mode cubic."""
    grid = Grid(coordinates_in(workspace, sources, g), sources)
    interpolate(image, grid, g, CUBIC, tile, workspace, out)
