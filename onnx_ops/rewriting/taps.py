"""Bilinear sampling that is written by hand: sums of weighted pixels, whichever nodes compute them.

    y[o] = sum over t of  w_t(r, c) * image[row_t(r, c), column_t(r, c)]

r and c are what is rounded down, for each element o. `Reader` finds the expressions, `terms` takes the sum apart, and
`sampled` decides whether it is bilinear interpolation, with zeros or the border's pixels outside of the image: weights
and indices are computed for all cells of pixels, and beyond, in float64, and for several sizes where these are open.
Between whole numbers, and numbers that are compared with, they are polynomials; so nothing else agrees everywhere.
"""

import itertools
import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from ..declaration import dtypes
from .finding import NearMiss, tried
from .image_pads import image_pads
from .indices import JOINS, MOVES, attributes_of, integer_at, keeps_type, moved, shape
from .positions import Position, broadcast_index, elements, variable
from .sizes import are_numbers, at

DEEPEST, MOST = 60, 2**22  # nodes on the way to a leaf; elements of a constant that are compared
DRAWS, CELLS, FEW = 4, 64, 12  # of open sizes; cells along an axis at each end and between; places on the other axis
FAR = 1e3  # pixels
GATHERS = "Gather", "GatherElements", "GatherND"
SUMS = "Add", "Sum", "Sub"
FLOATS = {dtypes.TABLE[name].onnx for name in dtypes.FLOATS}
INTEGERS = TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL
FORMULAS = {
    "Abs": np.abs, "Add": np.add, "And": np.multiply, "Cast": lambda a: a != 0,  # to a boolean
    "Ceil": np.ceil, "Div": np.divide, "Equal": np.equal,
    "Floor": np.floor, "Greater": np.greater, "GreaterOrEqual": np.greater_equal, "Less": np.less,
    "LessOrEqual": np.less_equal, "Max": np.maximum, "Min": np.minimum, "Mul": np.multiply, "Neg": np.negative,
    "Not": lambda a: 1 - a, "Or": np.maximum, "Relu": lambda a: np.maximum(a, 0),
    "Sub": np.subtract, "Sum": lambda *a: sum(a), "Trunc": np.trunc, "Where": lambda c, a, b: np.where(c != 0, a, b),
    "Clip": lambda a, low, high: np.minimum(np.maximum(a, low), high),
}  # fmt: skip
LIMITS = "Clip", "Max", "Min", "Relu"  # an operation of these on a coordinate doesn't make it another one


class Value:
    """An expression; equal ones are one object.

    op        an operator, or "Array" (a constant), "Leaf", "Number", "Place" (an integer), "Tap" (a pixel)
    operands  of an operator; of a tap the indices that pick it
    what      the number, the Position, of a tap its trail: [(name, index, what a Pad has added before)] of the image
    places    [(name, index)] of the elements of values that it is
    """

    def __init__(self, op, operands, what):
        self.op, self.operands, self.what, self.places = op, operands, what, []

    def inside(self, known=()):
        """Yield the expression and those in it, but not what is in the known ones."""
        seen, pending = set(), [self]
        while pending:
            value = pending.pop()
            if value is not None and value not in seen:
                seen.add(value)
                yield value
                pending += () if value in known else value.operands


def _sizes(index):
    """Return {name: size} of the variables of an index."""
    return {term.variable.name: term.variable.size for each in index for term in each.terms}


class Reader:
    """Reads what the elements of values are."""

    def __init__(self, graph):
        self.graph, self.read_before, self.made = graph, {}, {}

    def read(self, name, index, depth=DEEPEST):
        """Return the Value of a value's element."""
        if (name, index) not in self.read_before:
            value = self._read(name, index, depth)
            value.places.append((name, index))
            self.read_before[name, index] = value
        return self.read_before[name, index]

    def make(self, op, *operands, what=None):
        key = op, operands, (what, str(what)) if op != "Tap" else tuple(what)
        if key not in self.made:
            self.made[key] = Value(op, operands, what)
        return self.made[key]

    def _read(self, name, index, depth):
        graph = self.graph
        if graph.type(name).elements in INTEGERS:
            known = integer_at(graph, name, index)
            if known is not None:
                return self.make("Place", what=known)
        array, node = graph.folded(name), graph.producer(name)
        if array is not None:
            return tried(self._constant, name, array, index) or self.make("Leaf", what=(name, index))
        if node is not None and depth:
            source = moved(graph, node, name, index) if node.op_type in MOVES else None
            made = self.read(*source, depth - 1) if source else tried(self._computed, node, name, index, depth - 1)
            if made is not None:
                return made
        return self.make("Leaf", what=(name, index))

    def _constant(self, name, array, index):
        sizes = _sizes(index)
        if math.prod(sizes.values()) > MOST:
            return None
        picked = elements(array, index, sorted(sizes))
        if picked.size and (picked == picked.flat[0]).all():
            return self.make("Number", what=picked.flat[0].item())
        return self.make("Array", what=(name, index))

    def _computed(self, node, name, index, depth):
        graph, attributes = self.graph, attributes_of(node)
        if node.op_type in GATHERS:
            return self._tap(node, attributes, index, depth)
        if node.op_type == "Cast":
            before, after = graph.type(node.input[0]).elements, attributes["to"]
            operand = self.read(node.input[0], index, depth)
            if before in FLOATS and after in INTEGERS[:2]:
                return self.make("Trunc", operand)
            if after == TensorProto.BOOL:
                return self.make("Cast", operand)
            return operand if before in INTEGERS or keeps_type(graph, node) else None
        if node.op_type not in FORMULAS or (node.op_type == "Div" and graph.type(name).elements in INTEGERS):
            return None
        operands = tuple(
            self.read(each, broadcast_index(shape(graph, each), shape(graph, name), index), depth) if each else None
            for each in node.input
        )
        if node.op_type == "Clip":
            low, high = (*operands[1:], None, None)[:2]
            low = low or self.make("Number", what=attributes.get("min", -np.inf))
            high = high or self.make("Number", what=attributes.get("max", np.inf))
            return self.make("Clip", operands[0], low, high)
        while len(operands) > 2 and node.op_type in ("Max", "Min"):
            operands = (self.make(node.op_type, *operands[:2]), *operands[2:])
        return self.make(node.op_type, *operands)

    def _tap(self, node, attributes, index, depth):
        """Return the pixel that a node of GATHERS picks by indices that nodes compute."""
        data, indices = node.input
        (dimensions, sizes), read = (shape(self.graph, each) for each in node.input), self.read
        axis = attributes.get("axis", 0) % len(dimensions)
        if node.op_type == "GatherElements":
            picks, before, after = [read(indices, index, depth)], index[:axis], index[axis + 1 :]
        elif node.op_type == "Gather":
            end = axis + len(sizes)
            picks, before, after = [read(indices, index[axis:end], depth)], index[:axis], index[end:]
        else:
            *places, count = sizes
            axis, end = attributes.get("batch_dims", 0), len(places)
            picks = [read(indices, (*index[:end], Position(k)), depth) for k in range(count)]
            before, after = index[:axis], index[end:]
        picked = [variable(f"tap {k}", dimensions[axis + k]) for k in range(len(picks))]
        return self.make("Tap", *picks, what=self._trail(data, (*before, *picked, *after)))

    def _trail(self, name, index):
        """Return [(name, index, what a Pad adds to the image)] of the value that a tap is from, and those before it."""
        trail, pads = [(name, index, None)], None
        while len(trail) < DEEPEST and pads is None:
            node = self.graph.producer(name, "Pad", *MOVES)
            if node is None or node.op_type in JOINS:
                break
            if node.op_type == "Pad":
                pads = tuple(tried(image_pads, self.graph, node, 2) or ())
                before = (*(0,) * (len(index) - 2), *pads)
                target = (node.input[0], tuple(Position(-p) + i for p, i in zip(before, index, strict=False)))
            else:
                target = moved(self.graph, node, name, index)
            if not target or pads == ():
                break
            name, index = target
            trail.append((name, index, pads))
        return trail


MINUS = Value("Number", (), -1)


def terms(value, factors=()):
    """Return [(factors, tap)] of the products that a value is the sum of. Raises ValueError if it isn't a sum of such.

    A factor is a Value.
    """
    op, operands = value.op, value.operands
    if op == "Tap":
        return [(factors, value)]
    if op in ("Add", "Sum"):
        return [term for each in operands for term in terms(each, factors)]
    if op == "Sub":
        return terms(operands[0], factors) + terms(operands[1], (*factors, MINUS))
    if op == "Mul":
        (sampled_one,) = [k for k in (0, 1) if has_taps(operands[k])]
        return terms(operands[sampled_one], (*factors, operands[1 - sampled_one]))
    if op == "Where":
        others = operands[1:]
        (k,) = [k for k in (0, 1) if (others[1 - k].op, others[1 - k].what) in (("Number", 0), ("Place", Position()))]
        return terms(others[k], (*factors, Value(("Cast", "Not")[k], operands[:1], None)))
    raise ValueError("no sum of weighted pixels")


def has_taps(value):
    return any(each.op == "Tap" for each in value.inside())


@dataclass(frozen=True)
class Sampled:
    """What a sum of weighted pixels is.

    image         name of the value that is sampled
    axes          its axes [n, c, h, w]; n may be None
    variables     names of the variables that run along n and c, or None
    row, column   Values, which are pixels of the image after a number is added
    shifts        these numbers
    padding_mode  "zeros" or "border"
    factors       Values that all pixels are multiplied by
    """

    image: str
    axes: tuple
    variables: tuple
    row: Value
    column: Value
    shifts: tuple
    padding_mode: str
    factors: tuple


def sampled(graph, value, index, masks=()):
    """Return the Sampled that a value is at an index of variables. Raises NearMiss or ValueError if it is none.

    masks  [a Value] that it is multiplied by: where that is 0, the product is what is outside of the image
    """
    products = terms(value)
    if len(products) < 4:
        raise ValueError("not enough taps")
    roots = _roots(products)
    if len(roots) != 2:
        raise NearMiss(f"{len(roots)} values are rounded down to pixels, instead of a row and a column")
    counts = [Counter(f for f in factors if not _is_known(f, roots)) for factors, _ in products]
    if any(count != counts[0] for count in counts):
        raise NearMiss("its weights depend on other values than the row and the column")
    weights = [[tap, *(f for f in factors if _is_known(f, roots))] for factors, tap in products]
    if not all(_is_known(pick, roots) for tap, *_ in weights for pick in tap.operands):
        raise NearMiss("its indices depend on other values than the row and the column")
    if any(_is_known(mask, ()) == _is_known(mask, roots) for mask in masks):
        raise NearMiss("it is multiplied by other values")
    trails = [[*tap.what] for tap, *_ in weights]
    images = [each for each in reversed(trails[0]) if all(each in trail for trail in trails)]
    reason = None
    for image, plane in [(each, plane) for each in images for plane in _planes(graph, *each)]:
        try:
            return _decided(graph, image, plane, weights, roots, index, tuple(counts[0].elements()), masks)
        except NearMiss as miss:
            reason = reason or miss
    raise reason or NearMiss("the image that its pixels are of is not known")


def _roots(products):
    """Return the expressions that are rounded down to pixels, without limits and without their sources."""
    whole, known = [each for factors, tap in products for each in (*factors, tap)], {}
    for _ in range(2):
        values = dict.fromkeys(v for each in whole for v in each.inside(known))
        rounds = [op for op in ("Floor", "Trunc") if any(v.op == op for v in values)][:1]
        floors = [v.operands[0] for v in values if v.op in rounds]
        known = dict.fromkeys([*floors, *map(_without_limits, floors)])
    return [*dict.fromkeys(map(_without_limits, floors))]


def _without_limits(value):
    while value.op in LIMITS:
        inner = varying(value)
        if len(inner) != 1:
            break
        (value,) = inner
    return value


def varying(value):
    """Return the operands that are no numbers or sizes."""
    return [each for each in value.operands if not _is_known(each, ())]


def _is_known(value, roots):
    """Return whether a value depends on nothing but the roots and what doesn't vary."""
    return all(v in roots or v.op in ("Number", "Place") or v.op in FORMULAS for v in value.inside(roots))


def _planes(graph, name, index, pads):
    """Yield the axes of an image that may be those along which its pixels are picked: those of one pixel are, too."""
    dimensions = shape(graph, name)
    moving = [k for k, each in enumerate(index) if any(t.variable.name.startswith("tap") for t in each.terms)]
    for axes in (moving, [k for k, size in enumerate(dimensions) if k in moving or size == 1]):
        if len(axes) > 1 and len(dimensions) in (3, 4):
            yield axes[-2:]


@np.errstate(all="ignore")
def _decided(graph, image, plane, weights, roots, index, factors, masks):
    name, target, pads = image
    dimensions, pads = shape(graph, name), pads or (0, 0, 0, 0)
    begins = pads[:2]
    others = [k for k in range(len(dimensions)) if k not in plane]
    names = _sizes(index)
    modes = ("zeros", "border")[: 1 + (not masks)]
    guesses = [*itertools.product((roots, roots[::-1]), modes, *({0, -begin} for begin in begins))]
    running = [{*names} for _ in others]  # variables that may run along these axes
    is_open = not are_numbers((*dimensions, *names.values()))
    for seed in range(DRAWS if is_open else 1):
        draw = Draw(seed, names)
        sizes = [draw.size(dimensions[k]) for k in plane]
        picture = draw.rng.standard_normal(sizes)
        padded = np.pad(picture, [*zip(begins, pads[2:], strict=True)])
        every = {v for each in sum(weights, [*masks]) for v in each.inside(roots)}
        known = draw.places(roots, sizes, max(pads), every)
        made = 0
        for tap, *fs in weights:
            picked = draw.picked(tap, target, known)
            if picked is None:
                raise NearMiss(f"it may read outside of {name}")
            for k, axis in enumerate(others):
                running[k] &= {n for n in names if np.array_equal(draw.values[n], picked[axis])}
                if not running[k] and picked[axis].any():
                    raise NearMiss(f"which element of axis {axis} of {name} is read is not known")
            pixel = padded[tuple(picked[k] + begin for k, begin in zip(plane, begins, strict=True))]
            made = made + math.prod([draw.value(f, known) for f in fs]) * pixel
        by = math.prod([draw.value(mask, known) for mask in masks])
        guesses = [g for g in guesses if np.allclose(made * by, _guessed(picture, known, *g) * (by != 0), 1e-8, 1e-8)]
        if not guesses:
            raise NearMiss("it isn't bilinear interpolation with zeros or the border's pixels outside of the image")
    (row, column), mode, *shifts = guesses[0]
    along = []
    for each in running:
        along.append(next((name for name in sorted(each) if name not in along), None))
    axes, variables = (None, *others, *plane)[-4:], (None, *along)[-2:]
    return Sampled(name, axes, variables, row, column, (*shifts,), mode, factors)


def _guessed(image, known, order, padding_mode, *shifts):
    """Interpolate an image bilinearly, with zeros or the border's pixels outside of it."""
    places = [known[root] + shift for root, shift in zip(order, shifts, strict=True)]
    if padding_mode == "border":
        places = [np.clip(p, 0, size - 1) for p, size in zip(places, image.shape, strict=True)]
    total, around = 0, np.pad(image, 1)
    for corner in itertools.product((0, 1), repeat=2):
        pixels = [np.floor(p) + more for p, more in zip(places, corner, strict=True)]
        weight = math.prod(1 - abs(p - k) for p, k in zip(places, pixels, strict=True))
        inside = (np.clip(k + 1, 0, size + 1).astype(int) for k, size in zip(pixels, image.shape, strict=True))
        total = total + weight * around[tuple(inside)]
    return total


class Draw:
    """Numbers for variables, open sizes and coordinates."""

    def __init__(self, seed, names):
        self.rng, self.names = np.random.default_rng(seed), names
        self.unknown, self.values, self.computed = {}, {}, {}

    def size(self, size):
        """Return a size as a number."""
        return at(size, self._unknown)

    def _unknown(self, name):
        if name not in self.unknown:
            self.unknown[name] = max(1, name.least or 0) + int(self.rng.integers(0, 7))
        return self.unknown[name]

    def places(self, roots, sizes, pad, values):
        """Return coordinates {root: array} that fall into all cells of an image, and beyond.

        values  those among which are numbers that coordinates may be compared with
        """
        numbers = [
            v.what if v.op == "Number" else self.size(v.what.start) for v in values if v.op in ("Number", "Place")
        ]
        cells = np.arange(-pad - 4, max(sizes) + 2 * pad + 4)
        if len(cells) > 4 * CELLS:
            near_ends = [cells[:CELLS], *(size + cells[: 2 * CELLS] for size in sizes)]
            cells = np.concatenate([*near_ends, self.rng.choice(cells, CELLS)])
        inside = cells[:, None] + [0, 1e-3, 0.5, 1 - 1e-3, *self.rng.random(5)]
        compared = np.array([n for n in numbers if abs(n) < FAR**2])[:, None] + [-1e-3, 0, 1e-3]
        many = np.concatenate([inside.ravel(), compared.ravel(), np.array([-1, -0.4, 0.4, 1]) * (FAR + max(sizes))])
        few = np.concatenate(
            [self.rng.choice(many, FEW), [-1.5, -0.5, 0.3], *([n - 1.4, n - 0.6, n + 0.5] for n in sizes)]
        )
        one, other = (np.concatenate([a.ravel(), b.ravel()])
                      for a, b in zip(np.meshgrid(many, few), np.meshgrid(few, many), strict=True))  # fmt: skip
        self.values = {n: self.rng.integers(0, max(1, self.size(size)), len(one)) for n, size in self.names.items()}
        self.computed = {}
        return dict(zip(roots, (one, other), strict=True))

    def value(self, value, known):
        """Return a Value for these coordinates."""
        if value in known:
            return known[value]
        if value not in self.computed:
            if value.op == "Number":
                made = value.what
            elif value.op == "Place":
                made = self.position(value.what, self.values)
            else:
                with np.errstate(all="ignore"):
                    made = FORMULAS[value.op](*(self.value(each, known) for each in value.operands)) * 1.0
            self.computed[value] = made
        return self.computed[value]

    def position(self, position, values):
        total = self.size(position.start)
        for term in position.terms:
            of_variable = values[term.variable.name] // self.size(term.inner) % self.size(term.size)
            total = total + of_variable * self.size(term.step)
        return total

    def picked(self, tap, target, known):
        """Return the index of a tap in the image; None if it lies outside of its source."""
        values, (count, *_) = {**self.values}, map(len, known.values())
        taps = _sizes(target)
        for k, pick in enumerate(tap.operands):
            index, size = np.broadcast_to(self.value(pick, known), count), self.size(taps.get(f"tap {k}", 1))
            if not np.isfinite(index).all() or index.min() < -size or index.max() >= size:
                return None
            values[f"tap {k}"] = np.where(index < 0, index + size, index).astype(np.int64)
        return [np.broadcast_to(self.position(each, values), count) for each in target]


def weighs(graph):
    """Return the names of values that may be sums of weighted pixels, by the types of the nodes that compute them."""
    if graph.weighted is not None:
        return graph.weighted
    rounded, weighted = set(), set()
    for node in graph.owner.node:
        if node.domain not in ("", "ai.onnx"):
            continue
        is_moved = node.op_type in MOVES or node.op_type in FORMULAS
        if node.op_type in ("Cast", "Floor", "Trunc") or (is_moved and not rounded.isdisjoint(node.input)):
            rounded.update(node.output)
        is_tap = node.op_type in GATHERS and len(node.input) == 2 and node.input[1] in rounded
        goes_on = node.op_type in (*SUMS, "Mul", "Where", *MOVES)
        if is_tap or (goes_on and not weighted.isdisjoint(node.input)):
            weighted.update(node.output)
    graph.weighted = weighted
    return weighted
