"""The rule of AffineGrid."""

import numpy as np
from onnx import TensorProto

from ..affine import Array, Position, Variable, along, as_int, number
from ..forms import Form
from ..reader import Result, Site
from .table import operator

LARGEST = 2**20  # pixels along an axis whose coordinates become a constant


@operator("AffineGrid")
def affine_grid(site: Site) -> Result:
    """The product of theta with the base coordinates x, y (and z) and 1."""
    n, *pixel, i = site.index
    images, _, columns = site.shape_of(0)
    if len(pixel) != as_int(columns) - 1:
        return None
    if n == along(Variable("n", site.shape[0])):  # two names of one number
        n = along(Variable("n", images))
    *factors, total = [site.read(0, (n, i, number(j))) for j in range(as_int(columns))]
    for k, factor in reversed([*enumerate(factors)]):
        axis = len(pixel) - k  # x runs along the last image axis
        product = site.forms.op("Mul", factor, _base_coordinate(site, axis, site.index[axis]))
        total = site.forms.op("Add", product, total)
    return total


def _base_coordinate(site: Site, axis: int, position: Position) -> Form:
    """Return the form of the base coordinate of pixels along an axis of the grid."""
    size = site.shape[axis]
    align_corners = site.attributes.get("align_corners", 0)
    if isinstance(size, int):
        is_double = site.reader.graph.type(site.node.input[0]).elements == TensorProto.DOUBLE
        values = base_coordinates(size, align_corners)
        return site.forms.table(values.astype(np.float64 if is_double else np.float32), (position,))
    op = site.forms.op
    one, two = map(site.forms.number, (1, 2))
    pixels = site.forms.whole(position)
    count = site.forms.whole(number(size))
    stated = site.node.input[1]
    site.forms.occurrences[count].setdefault(stated, (number(axis + 1),))  # of [N, C, (D,) H, W]
    if align_corners:
        last = op("Sub", count, one)
        steps = op("Max", last, one)  # of one pixel, whose coordinate is 1
        doubled = op("Mul", two, op("Add", pixels, op("Sub", steps, last)))
    else:
        steps = count
        doubled = op("Add", op("Mul", two, pixels), one)
    return op("Sub", op("Div", doubled, steps), one)


def base_coordinates(size: int, align_corners: int) -> Array:
    """Return the coordinates of the pixels along an axis, as ONNX Runtime's AffineGrid computes
    them.

    -1 and 1 are the outer pixels' centres with `align_corners`, else their outer edges. A single
    centre is 1.
    """
    if not 0 < size <= LARGEST:
        raise ValueError("no pixels, or too many")
    if align_corners:
        return np.linspace(-1, 1, size) if size > 1 else np.ones(1)
    return (2 * np.arange(size) + 1) / size - 1
