"""`torch.nn.functional.grid_sample` with the nodes that only make its grid, as one node that needs none.

By what the coordinates are: those of an AffineGrid become AffineGridSample; elements of a matrix times places, added
up, too, or, divided by such a sum, PerspectiveGridSample; a number of a plane each, moved step by step, FlowGridSample.
All of these round as the nodes do, so that any mode may follow.
"""

from dataclasses import dataclass

import numpy as np

from ..operators.flow_grid_sample import ADD, DIVIDE, MULTIPLY, SHIFT, STEPS
from .affine_grid import places
from .expressions import AXES, Constant, Leaf, Operation, expression
from .finding import NearMiss
from .graph import Graph
from .integers import numbers, shape

DOMAIN = "onnx_ops"
NAME = "grid_sample"
TYPES = {1: "float32", 11: "float64"}  # by their numbers in ONNX
MODES = {"linear": "bilinear", "cubic": "bicubic"}  # newer names


@dataclass
class Sampling:
    """A GridSample, and what its grid is like. axes: their names, but for the last one."""

    graph: Graph
    node: object
    dimensions: tuple
    dtype: str | None

    @property
    def mode(self):
        return next((a.s.decode() for a in self.node.attribute if a.name == "mode"), "linear")

    @property
    def axes(self):
        return "n" + AXES[-self.dimensions[-1] :]

    def constant(self, name, array):
        return self.graph.add_constant(f"{self.node.output[0]}_{name}", np.ascontiguousarray(array, self.dtype))

    def places(self, *vectors):
        """x, y and z; of two image axes an empty z."""
        return [self.constant(axis, v) for axis, v in zip("xyz", [*vectors, [], []][:3], strict=True)]

    def add_node(self, op_type, name, *lists, **attributes):
        """What a node makes of a value and lists of integers."""
        given = [self.graph.add_constant(op_type, np.array(numbers, np.int64)) for numbers in lists]
        return self.graph.add_node(self.node, op_type, [name, *given], **attributes)


def match(graph, node, standard):
    """The arguments of `Graph.replace` that make the GridSample one without a grid; None if there is no such grid."""
    if standard or len(node.input) != 2 or any(a.ref_attr_name for a in node.attribute):
        return None
    attributes = {a.name: a.i if a.name == "align_corners" else a.s.decode() for a in node.attribute}
    attributes = {name: MODES.get(value, value) for name, value in attributes.items()}
    maker = graph.producers.get(node.input[1])
    if maker is not None and (maker.domain, maker.op_type) == (DOMAIN, "AffineGrid"):
        found = "AffineGridSample", maker.input, {}
    else:
        found = _of_coordinates(graph, node)
    if found is None:
        return None
    op_type, inputs, more = found
    return {"op_type": op_type, "inputs": [node.input[0], *inputs], "domain": DOMAIN, **attributes, **more}


def _of_coordinates(graph, node):
    """(operator, inputs, more attributes), or None where nothing makes the grid that could be left out."""
    grid = node.input[1]
    dimensions, described = shape(graph, grid), graph.type(grid)
    if dimensions is None or len(dimensions) not in (4, 5) or dimensions[-1] != len(dimensions) - 2:
        return None
    sampling = Sampling(graph, node, dimensions, TYPES.get(described.tensor_type.elem_type))
    indices = [(*sampling.axes, i) for i in range(dimensions[-1])]
    coordinates = [expression(graph, grid, index) for index in indices]
    grids = {found.name if isinstance(found, Leaf) and found.index == index else None
             for found, index in zip(coordinates, indices, strict=True)}  # fmt: skip
    if len(grids) == 1 and None not in grids:  # one that is made elsewhere
        maker = graph.producer(grids.pop(), "AffineGrid")
        return maker and _affine_grid(sampling, maker)
    if all(isinstance(found, Constant) for found in coordinates):
        raise NearMiss("the grid is constant: ONNX Runtime computes it once")
    if sampling.dtype is None:
        raise NearMiss("its grid is not of float32 or float64, so that every rounding matters")
    kinds = {_kind(found) for found in coordinates}
    if len(kinds) > 1:
        raise NearMiss("its coordinates are computed in different ways")
    return kinds.pop()(sampling, coordinates)


def _affine_grid(sampling, maker):
    """The AffineGrid of ai.onnx, which computes the places itself."""
    size = numbers(sampling.graph, maker.input[1])
    align_corners = any(a.name == "align_corners" and a.i for a in maker.attribute)
    if size is None:
        raise NearMiss("the size of its AffineGrid is open")
    if sampling.mode == "nearest" or sampling.dtype is None:
        raise NearMiss("every rounding matters of an AffineGrid that ONNX Runtime computes")
    if align_corners and 1 in size[2:]:
        raise NearMiss("an AffineGrid of one pixel along an axis is ONNX Runtime's own")
    vectors = [places(n, align_corners) for n in size[:1:-1]]
    return "AffineGridSample", [maker.input[0], *sampling.places(*vectors)], {}


def _kind(found):
    if isinstance(found, Operation) and found.op_type == "Div" and not isinstance(found.operands[1], Constant):
        return _perspective
    return _affine if isinstance(found, Operation) and len([*found.leaves()]) > 1 else _flow


def _perspective(sampling, coordinates):
    (x, w), (y, other), *others = (found.operands for found in coordinates)
    if w != other or others:
        raise NearMiss("its coordinates are divided by different values")
    theta, vectors = _matrix(sampling, [x, y, w])
    return "PerspectiveGridSample", [theta, *sampling.places(*vectors)[:2]], {}


def _affine(sampling, coordinates):
    theta, vectors = _matrix(sampling, coordinates)
    return "AffineGridSample", [theta, *sampling.places(*vectors)], {}


def _matrix(sampling, rows):
    """(theta, [x, y, ...]) if each row is the sum over j of theta[n, row, j] times vector j, and the last one is 1."""
    axes, (batch, *sizes, _) = sampling.axes[1:], sampling.dimensions
    thetas, vectors = set(), []
    for j in range(len(axes) + 1):
        along, factors = AXES.index(axes[-1 - j]) if j < len(axes) else None, []
        for i, row in enumerate(rows):
            leaf, factor = dict(enumerate(map(_product, _terms(row)))).get(j) or (None, None)
            if leaf is None or leaf.index not in (("n", i, j), (0, i, j)) or len(_terms(row)) != len(axes) + 1:
                raise NearMiss("its coordinates are made of other values than one matrix' elements times places")
            thetas.add(leaf.name)
            factors.append(factor)
        if any(f != factors[0] for f in factors) or factors[0].array.size != (
            factors[0].array.shape[along] if along else 1
        ):
            raise NearMiss("its matrix is multiplied by other values than places along the image's axes")
        vectors.append(factors[0].array.ravel())
    theta = thetas.pop()
    dimensions = shape(sampling.graph, theta)
    if thetas or dimensions is None or dimensions[0] != batch:
        raise NearMiss(f"{theta} is not known to be one matrix per image")
    if vectors.pop() != 1:
        raise NearMiss("the last column of its matrix is multiplied by another value than 1")
    if any(len(v) not in (1, size) for v, size in zip(vectors, sizes[::-1], strict=True)):
        raise NearMiss("the size of its grid is open")
    if dimensions[1:] != (len(rows), len(axes) + 1):  # of a homogeneous matrix, without its last row
        theta = sampling.add_node("Slice", theta, [0], [len(rows)], [1])
    return theta, [np.broadcast_to(v, size) for v, size in zip(vectors, sizes[::-1], strict=True)]


def _terms(found):
    """What is added up, from the left. Which of the first two is the left one makes no difference."""
    if not isinstance(found, Operation) or found.op_type != "Add":
        return [found]
    left, right = found.operands
    if isinstance(left, Operation) and left.op_type == "Add":
        return [*_terms(left), right]
    if isinstance(right, Operation) and right.op_type == "Add":
        return [*_terms(right), left]
    return sorted(found.operands, key=_column)


def _column(term):
    """Of the matrix whose element is in the term; columns end where it is something else."""
    leaf, _ = _product(term) or (None, None)
    return leaf.index[-1] if leaf and leaf.index and not isinstance(leaf.index[-1], str) else np.inf


def _product(found):
    """(leaf, constant factor), or None."""
    if isinstance(found, Leaf):
        return found, Constant(np.ones((1,) * len(AXES)))
    if isinstance(found, Operation) and found.op_type == "Mul":
        for leaf, factor in (found.operands, found.operands[::-1]):
            if isinstance(leaf, Leaf) and isinstance(factor, Constant):
                return leaf, factor
    return None


def _flow(sampling, coordinates):
    chains = [_chain(found) for found in coordinates]
    planes = [leaf for leaf, _ in chains]
    steps, operands, shifts = _steps([of_one for _, of_one in chains])
    shifts = [
        shift.reshape(shift.shape[-len(planes) :]) for shift in shifts or [np.zeros((1,) * len(AXES))] * len(planes)
    ]
    # What is the same along an axis has its size nevertheless.
    for a, (axis, size) in enumerate(zip(sampling.axes[1:], sampling.dimensions[1:-1], strict=True)):
        if size != 1 and not any(axis in leaf.index for leaf in planes) and all(v.shape[a] == 1 for v in shifts):
            if not isinstance(size, int):
                raise NearMiss("the size of its grid is open")
            shifts[0] = np.repeat(shifts[0], size, a)
    interleaved = _channels(sampling, planes, len(planes) + 1)
    channels = interleaved or _channels(sampling, planes, 1)
    flow = planes[0].name if channels else _stacked(sampling, planes)
    inputs = [
        flow,
        sampling.constant("operands", np.reshape(operands, (len(steps), len(planes)))),
        *sampling.places(*shifts),
    ]
    more = {"steps": steps, "channels": channels, "interleaved": int(bool(interleaved))}
    return "FlowGridSample", inputs, {name: value for name, value in more.items() if value}


def _chain(found):
    """(leaf, [(step, its constant), ...])"""
    steps: list = []
    while isinstance(found, Operation):
        left, *rest = found.operands
        if found.op_type == "Neg":
            steps.append((MULTIPLY, -np.ones((1,) * len(AXES))))
        elif isinstance(rest[0], Constant):
            sign = -1 if found.op_type == "Sub" else 1
            steps.append(({"Mul": MULTIPLY, "Div": DIVIDE}.get(found.op_type, ADD), sign * rest[0].array))
        elif isinstance(left, Constant) and found.op_type != "Div":
            steps.append((MULTIPLY if found.op_type == "Mul" else ADD, left.array))
            if found.op_type == "Sub":  # a - b is -b + a
                steps.append((MULTIPLY, -np.ones((1,) * len(AXES))))
            left = rest[0]
        else:
            raise NearMiss("its coordinates are not one number each that constants are added to, or that they multiply")
        found = left
    if isinstance(found, Constant):
        raise NearMiss("one of its coordinates is constant")
    return found, steps[::-1]


def _steps(chains):
    """(steps, their operands for each coordinate, the shifts)"""
    steps: list = []
    operands, shifts = [], []
    if len({len(chain) for chain in chains}) > 1 or len(chains[0]) > STEPS:
        raise NearMiss("its coordinates are computed by different steps, or by many")
    for of_step in zip(*chains, strict=True):
        kinds, arrays = zip(*of_step, strict=True)
        if len(set(kinds)) > 1:
            raise NearMiss("its coordinates are computed by different steps, or by many")
        single = all(array.size == 1 for array in arrays)
        if not single and (kinds[0] != ADD or shifts or any(len(array) != 1 for array in arrays)):
            raise NearMiss("it is moved by other constants than one for each coordinate and pixel, added once")
        steps.append(kinds[0] if single else SHIFT)
        operands.append([array.item() if single else 0 for array in arrays])
        shifts = shifts if single else list(arrays)
    return steps, operands, shifts


def _channels(sampling, planes, at):
    """Which channel of one tensor, along its axis `at`, each of the planes is; None if they aren't."""
    dimensions = shape(sampling.graph, planes[0].name)
    if dimensions is None or len(dimensions) != len(planes) + 2 or dimensions[at] != len(planes):
        return None
    expected = [*sampling.axes[:at], None, *sampling.axes[at:]]
    for leaf in planes:
        if leaf.name != planes[0].name or len(leaf.index) != len(expected) or isinstance(leaf.index[at], str):
            return None
        others = zip(leaf.index, expected, dimensions, strict=True)
        if not all(k == at or i == axis or d == 1 for k, (i, axis, d) in enumerate(others)):
            return None
    return [leaf.index[at] for leaf in planes]


def _stacked(sampling, planes):
    """One tensor of the planes as channels, made by new nodes."""
    dimensions = [shape(sampling.graph, leaf.name) for leaf in planes]
    named = [at for at in planes[0].index if isinstance(at, str)]
    for leaf, of_leaf in zip(planes, dimensions, strict=True):
        if of_leaf is None or len(of_leaf) != len(leaf.index):
            raise NearMiss(f"the rank of {leaf.name} is unknown")
        if [at for at in leaf.index if isinstance(at, str)] != named or named != sorted(named, key=AXES.index):
            raise NearMiss(f"the axes of {leaf.name} are in another order, or vary")
    pieces = []
    for leaf, of_leaf in zip(planes, dimensions, strict=True):
        name, picked = leaf.name, [k for k, at in enumerate(leaf.index) if not isinstance(at, str)]
        for k in picked:
            if of_leaf[k] != 1:
                name = sampling.add_node("Slice", name, [leaf.index[k]], [leaf.index[k] + 1], [k])
        name = sampling.add_node("Squeeze", name, picked) if picked else name
        missing = [k + (k > 0) for k, axis in enumerate(sampling.axes) if axis not in named]
        pieces.append(sampling.add_node("Unsqueeze", name, sorted([1, *missing])))
    return sampling.graph.add_node(sampling.node, "Concat", pieces, axis=1)
