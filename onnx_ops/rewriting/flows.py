"""Grids whose coordinates are planes of a tensor that are shifted and scaled step by step: FlowGridSample."""

import numpy as np

from ..operators.flow_grid_sample import ADD, DIVIDE, MULTIPLY, SHIFT, STEPS
from .expressions import AXES, Constant, Operation
from .finding import NearMiss
from .integers import shape


def flow(sampling, coordinates):
    """Return (operator, inputs, attributes) of the FlowGridSample that computes these coordinates itself."""
    chains = [_chain(coordinate) for coordinate in coordinates]
    planes = [leaf for leaf, _ in chains]
    steps, operands, shifts = _steps([chain for _, chain in chains])
    shifts = [
        shift.reshape(shift.shape[-len(planes) :]) for shift in shifts or [np.zeros((1,) * len(AXES))] * len(planes)
    ]
    # Where neither planes nor shifts vary along an axis, the shifts state its size.
    for a, (axis, size) in enumerate(zip(sampling.axes[1:], sampling.dimensions[1:-1], strict=True)):
        if size != 1 and not any(axis in leaf.index for leaf in planes) and all(v.shape[a] == 1 for v in shifts):
            zeros = sampling.along(np.zeros(1), size).reshape([-1 if k == a else 1 for k in range(len(planes))])
            shifts[0] = shifts[0] + zeros
    interleaved = _channels(sampling, planes, len(planes) + 1)
    channels = interleaved or _channels(sampling, planes, 1)
    flow = planes[0].name if channels else _stack(sampling, planes)
    inputs = [
        flow,
        sampling.constant("operands", np.reshape(operands, (len(steps), len(planes)))),
        *sampling.add_coordinates(*shifts),
    ]
    more = {"steps": steps, "channels": channels, "interleaved": int(bool(interleaved))}
    return "FlowGridSample", inputs, {name: value for name, value in more.items() if value}


def _chain(coordinate):
    """Return (leaf, [(step, its constant), ...]), of which a coordinate consists. Raises NearMiss if it is no such."""
    steps: list = []
    while isinstance(coordinate, Operation):
        left, *rest = coordinate.operands
        if coordinate.op_type == "Neg":
            steps.append((MULTIPLY, -np.ones((1,) * len(AXES))))
        elif isinstance(rest[0], Constant):
            sign = -1 if coordinate.op_type == "Sub" else 1
            steps.append(({"Mul": MULTIPLY, "Div": DIVIDE}.get(coordinate.op_type, ADD), sign * rest[0].array))
        elif isinstance(left, Constant) and coordinate.op_type != "Div":
            steps.append((MULTIPLY if coordinate.op_type == "Mul" else ADD, left.array))
            if coordinate.op_type == "Sub":  # a - b is -b + a
                steps.append((MULTIPLY, -np.ones((1,) * len(AXES))))
            left = rest[0]
        else:
            raise NearMiss("its coordinates are not one number each that constants are added to, or that they multiply")
        coordinate = left
    if isinstance(coordinate, Constant):
        raise NearMiss("one of its coordinates is constant")
    return coordinate, steps[::-1]


def _steps(chains):
    """Return (steps, their operands for each coordinate, the shifts), common to the chains of all coordinates."""
    steps: list = []
    operands, shifts = [], []
    if len({len(chain) for chain in chains}) > 1 or len(chains[0]) > STEPS:
        raise NearMiss("its coordinates are computed by different steps, or by many")
    for coordinate_steps in zip(*chains, strict=True):
        kinds, arrays = zip(*coordinate_steps, strict=True)
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
    """Return which channel of one tensor, along its axis `at`, each of the planes is; None if they aren't channels."""
    dimensions = shape(sampling.graph, planes[0].name)
    if dimensions is None or len(dimensions) != len(planes) + 2 or dimensions[at] != len(planes):
        return None
    index = [*sampling.axes[:at], None, *sampling.axes[at:]]
    for leaf in planes:
        if leaf.name != planes[0].name or len(leaf.index) != len(index) or isinstance(leaf.index[at], str):
            return None
        others = zip(leaf.index, index, dimensions, strict=True)
        if not all(k == at or i == axis or d == 1 for k, (i, axis, d) in enumerate(others)):
            return None
    return [leaf.index[at] for leaf in planes]


def _stack(sampling, planes):
    """Add nodes that stack the planes as channels of one tensor; returns its name."""
    dimensions = [shape(sampling.graph, leaf.name) for leaf in planes]
    axes = [at for at in planes[0].index if isinstance(at, str)]
    for leaf, leaf_shape in zip(planes, dimensions, strict=True):
        if leaf_shape is None or len(leaf_shape) != len(leaf.index):
            raise NearMiss(f"the rank of {leaf.name} is unknown")
        if [at for at in leaf.index if isinstance(at, str)] != axes or axes != sorted(axes, key=AXES.index):
            raise NearMiss(f"the axes of {leaf.name} are in another order, or vary")
    pieces = []
    for leaf, leaf_shape in zip(planes, dimensions, strict=True):
        name, picked = leaf.name, [k for k, at in enumerate(leaf.index) if not isinstance(at, str)]
        for k in picked:
            if leaf_shape[k] != 1:
                name = sampling.add_node("Slice", name, [leaf.index[k]], [leaf.index[k] + 1], [k])
        name = sampling.add_node("Squeeze", name, picked) if picked else name
        missing = [k + (k > 0) for k, axis in enumerate(sampling.axes) if axis not in axes]
        pieces.append(sampling.add_node("Unsqueeze", name, sorted([1, *missing])))
    return sampling.graph.add_node(sampling.node, "Concat", pieces, axis=1)
