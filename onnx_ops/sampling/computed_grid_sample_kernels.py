"""GridSample's kernels for points that are computed a block at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..declaration.jit import jitable
from .computed_points import grid_in
from .grid_sample_kernels import CUBIC, LINEAR, copy_nearest, interpolate

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
    copy_nearest(image, grid_in(workspace, sources, g), g, tile, workspace, out)


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
    interpolate(image, grid_in(workspace, sources, g), g, LINEAR, tile, workspace, out)


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
    interpolate(image, grid_in(workspace, sources, g), g, CUBIC, tile, workspace, out)
