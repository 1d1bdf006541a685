"""Grids of a matrix per image times the output's own places: AffineGridSample, PerspectiveGridSample."""

import numpy as np

from .expressions import AXES, Constant, Leaf, Operation
from .finding import NearMiss
from .integers import shape


def perspective(sampling, coordinates):
    (x, w), (y, other), *others = (found.operands for found in coordinates)
    if w != other or others:
        raise NearMiss("its coordinates are divided by different values")
    theta, vectors = _matrix(sampling, [x, y, w])
    return "PerspectiveGridSample", [theta, *sampling.places(*vectors)[:2]], {}


def affine(sampling, coordinates):
    theta, vectors = _matrix(sampling, coordinates)
    return "AffineGridSample", [theta, *sampling.places(*vectors)], {}


def _matrix(sampling, rows):
    """(theta, [x, y, ...]) if each row is the sum over j of theta[n, row, j] times vector j, and the last one is 1."""
    axes, (batch, *sizes, _) = sampling.axes[1:], sampling.dimensions
    thetas, images, vectors = set(), set(), []
    for j in range(len(axes) + 1):
        along, factors = AXES.index(axes[-1 - j]) if j < len(axes) else None, []
        for i, row in enumerate(rows):
            leaf, factor = dict(enumerate(map(_product, _terms(row)))).get(j) or (None, None)
            if leaf is None or leaf.index not in (("n", i, j), (0, i, j)) or len(_terms(row)) != len(axes) + 1:
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
    wanted = [len(rows), len(axes) + 1]
    if list(dimensions[1:]) != wanted:  # more rows, as of a homogeneous matrix, or columns
        theta = sampling.add_node("Slice", theta, [0, 0], wanted, [1, 2])
    return theta, vectors


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
