"""`torch.nn.functional.affine_grid`, which PyTorch's default exporter takes apart, as one AffineGrid.

The exporter writes the base grid, [x, y, 1] for each pixel, into the model as a constant, multiplies it by each row of
theta, and adds up:

    grid = Reshape(ReduceSum(base * theta, over the last axis of theta), [N, H, W, 2])

The base grid consists of one vector per image axis, which are taken from the model: no formula is assumed for them.
"""

import math

import numpy as np

from .finding import NearMiss
from .graph import AI_ONNX
from .indices import axes_of, followed, integer_list, path, shape
from .positions import variables

DOMAIN, OPERATOR = "onnx_ops", "AffineGrid"
NAME = "affine_grid"
NEEDS = (("Mul", "ReduceSum", "Reshape"),)  # sets of types of nodes, one of which a graph with the pattern has
LAST, DOMAINS = ("Reshape",), AI_ONNX  # type and domains of the node that ends the pattern
N, I, J = range(3)  # the axes of theta: batch, coordinate of the grid, coordinate of the base grid


def match(graph, node):
    """Return the arguments of `Graph.replace` that make the Reshape an AffineGrid; None if it is nothing like that."""
    reduced = graph.producer(node.input[0], "ReduceSum")
    product = reduced is not None and graph.producer(reduced.input[0], "Mul")
    if not product:
        return None
    arrays = [graph.folded(name) for name in product.input]
    constant = [k for k in (0, 1) if arrays[k] is not None and arrays[k].dtype.kind in "fV"]
    if len(constant) != 1:
        return None
    base, factor = arrays[constant[0]], product.input[1 - constant[0]]
    target = integer_list(graph, node.input[1])
    if target is None or len(target) not in (4, 5) or target[-1] != len(target) - 2:
        return None
    if graph.users[node.input[0]] > 1 or graph.users[reduced.input[0]] > 1:
        raise NearMiss("what leads to it is used elsewhere, too")
    size = target[1:-1]
    theta, along = _theta(graph, factor, len(size))
    base = _base(graph, reduced, base, shape(graph, factor), along, size)
    if target[0] not in (-1, shape(graph, theta)[N]):
        raise NearMiss(f"the batch size of the grid, {target[0]}, is not known to be that of {theta}")
    if graph.folded(theta) is not None:
        raise NearMiss(f"{theta} is constant: ONNX Runtime computes the grid once")
    vectors = _vectors(base)
    names = [graph.add_constant(f"{node.output[0]}_{axis}", vector)
             for axis, vector in zip("xyz", vectors, strict=False)]  # fmt: skip
    if len(names) == 2:
        names.append(graph.add_constant(f"{node.output[0]}_z", vectors[0][:0]))
    return {"op_type": OPERATOR, "inputs": [theta, *names], "domain": DOMAIN}


def _theta(graph, name, axes):
    """Return (theta, for each axis of what is multiplied the axis of theta along which it runs, or None)."""
    sizes, steps = shape(graph, name), path(graph, name)[0]
    # Nodes that move elements may belong to the pattern, or to what computes theta.
    for count in range(len(steps) + 1 if sizes is not None else 0):
        theta = steps[count - 1][0].input[0] if count else name
        dimensions, index = shape(graph, theta), followed(graph, steps[:count], variables(sizes))
        if dimensions is None or index is None or list(dimensions[1:]) != [axes, axes + 1]:
            continue
        free = [*zip(variables(sizes), sizes, strict=True)]  # axes of what is multiplied
        along = [None] * len(sizes)
        for axis, entry in enumerate(zip(index, dimensions, strict=True)):
            if entry in free:
                along[free.index(entry)] = axis
                free[free.index(entry)] = None
        if sum(axis is not None for axis in along) == len(dimensions):
            return theta, along
    raise NearMiss(f"{name} is not known to be made of a theta of shape [N, {axes}, {axes + 1}] alone")


def _base(graph, reduced, base, sizes, along, size):
    """Return the base grid as an array [*size, axes + 1]. sizes: of what it is multiplied by."""
    axes = len(size)
    rank = max(base.ndim, len(along))
    base = base.reshape((1,) * (rank - base.ndim) + base.shape)
    along, sizes = [None] * (rank - len(along)) + along, (1,) * (rank - len(sizes)) + sizes
    reduced_axes = axes_of(graph, reduced)
    if reduced_axes is None or [k % rank for k in reduced_axes] != [along.index(J)]:
        raise NearMiss("it adds up over another axis than the last one of theta")
    order = [k for k in along if k != J]
    points = [k for k in range(rank) if along[k] is None]
    if order[0] != N or order[-1] != I or any(base.shape[along.index(k)] != 1 for k in (N, I)):
        raise NearMiss("its axes are in another order than batch, pixels, coordinates")
    is_grid = min(size) > 0 and (base.size, base.shape[along.index(J)]) == (math.prod(size) * (axes + 1), axes + 1)
    if not is_grid or not points or any(sizes[k] not in (1, base.shape[k]) for k in points):
        raise NearMiss(f"the constant is not a base grid of {size} pixels")
    return np.moveaxis(base, along.index(J), -1).reshape(*size, axes + 1)


def _vectors(base):
    """Return the vectors x, y (and z) that the base grid consists of."""
    axes = base.ndim - 1
    vectors = []
    for k in range(axes):  # x runs along the last image axis
        vector = base[(0,) * (axes - 1 - k) + (slice(None),) + (0,) * k + (k,)]
        if not np.array_equal(base[..., k], np.broadcast_to(vector.reshape(-1, *[1] * k), base.shape[:-1])):
            raise NearMiss(f"coordinate {k} of the base grid varies along other axes, too")
        vectors.append(np.ascontiguousarray(vector))
    if not (base[..., -1] == 1).all():
        raise NearMiss("the last coordinate of the base grid is not 1")
    return vectors
