"""Grids that are a matrix per image times pixel coordinates: AffineGridSample, PerspectiveGridSample."""

import numpy as np

from .expressions import AXES, Constant, Leaf, Operation
from .finding import NearMiss
from .integers import shape


def perspective(sampling, coordinates):
    """Return (operator, inputs, attributes) of the PerspectiveGridSample that computes these coordinates itself."""
    (x, w), (y, divisor), *others = (coordinate.operands for coordinate in coordinates)
    if w != divisor or others:
        raise NearMiss("its coordinates are divided by different values")
    theta, vectors = _matrix(sampling, [x, y, w])
    return "PerspectiveGridSample", [theta, *sampling.add_coordinates(*vectors)[:2]], {}


def affine(sampling, coordinates):
    """Return (operator, inputs, attributes) of the AffineGridSample that computes these coordinates itself."""
    theta, vectors = _matrix(sampling, coordinates)
    return "AffineGridSample", [theta, *sampling.add_coordinates(*vectors)], {}


def _matrix(sampling, rows):
    """Return (theta, [x, y, ...]) if each row is the sum over j of theta[n, row, j] * vector_j, the last vector 1."""
    axes, (batch, *sizes, _) = sampling.axes[1:], sampling.dimensions
    thetas, images, vectors = set(), set(), []
    for j in range(len(axes) + 1):
        along, factors = AXES.index(axes[-1 - j]) if j < len(axes) else None, []
        for i, row in enumerate(rows):
            terms = _terms(row)
            leaf, factor = (_product(terms[j]) if len(terms) == len(axes) + 1 else None) or (None, None)
            if leaf is None or leaf.index not in (("n", i, j), (0, i, j)):
                raise NearMiss("its coordinates are made of other values than one matrix' elements times places")
            thetas.add(leaf.name)
            images.add(leaf.index[0])
            factors.append(factor)
        varies = factors[0].array.size != (factors[0].array.shape[along] if along else 1)
        if varies or any(f != factors[0] for f in factors):
            raise NearMiss("its matrix is multiplied by other values than places along the image's axes")
        vectors.append(factors[0].array.ravel())
    theta = thetas.pop()
    dimensions = shape(sampling.graph, theta)
    if thetas or dimensions is None or dimensions[0] != batch or (images != {"n"} and batch != 1):
        raise NearMiss(f"{theta} is not known to be one matrix per image")
    if vectors.pop() != 1:
        raise NearMiss("the last column of its matrix is multiplied by another value than 1")
    vectors = [sampling.along(v, size) for v, size in zip(vectors, sizes[::-1], strict=True)]
    used = [len(rows), len(axes) + 1]
    if list(dimensions[1:]) != used:  # such as a homogeneous matrix, which has a row more
        theta = sampling.add_node("Slice", theta, [0, 0], used, [1, 2])
    return theta, vectors


def _terms(row):
    """Return the terms of a sum in the order in which they are added; the first two, which commute, by column."""
    if not isinstance(row, Operation) or row.op_type != "Add":
        return [row]
    left, right = row.operands
    if isinstance(left, Operation) and left.op_type == "Add":
        return [*_terms(left), right]
    if isinstance(right, Operation) and right.op_type == "Add":
        return [*_terms(right), left]
    return sorted(row.operands, key=_column)


def _column(term):
    """Return the column of the matrix element in a term, or infinity if the term has none."""
    leaf, _ = _product(term) or (None, None)
    return leaf.index[-1] if leaf and leaf.index and not isinstance(leaf.index[-1], str) else np.inf


def _product(term):
    """Return (leaf, constant factor), or None if a term is no such product."""
    if isinstance(term, Leaf):
        return term, Constant(np.ones((1,) * len(AXES)))
    if isinstance(term, Operation) and term.op_type == "Mul":
        for leaf, factor in (term.operands, term.operands[::-1]):
            if isinstance(leaf, Leaf) and isinstance(factor, Constant):
                return leaf, factor
    return None
