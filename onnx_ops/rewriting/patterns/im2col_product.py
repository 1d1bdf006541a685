"""An unfold that is only multiplied and added up, as one Im2ColProduct: local attention, correlation, CARAFE.

Models multiply the columns by factors and add up, over channels or over the positions within a block:

    y = ReduceSum(Mul(factors, Reshape(Im2Col(x)))), or the same as an Einsum or a MatMul

All other nodes move elements. So the index into every value consists of variables (positions.py), which are the digits
of the columns' index [n, c * K + k, l]: n (batch), c (channel), k (position), l (block), each of them several if the
model has several axes for it; and e, along which columns are repeated: an axis of the factors alone.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from ..expressions import axes_apart
from ..finding import NearMiss, tried
from ..graph import AI_ONNX
from ..indices import attributes_of, axes_of, followed, path, shape
from ..positions import broadcast_index, digits_of, joined, variable
from ..reshapes import add_reshape, reshape
from ..shapes import im2col_blocks, im2col_spacings
from ..sizes import are_positive, quotient, stride_for
from ..taps import FLOATS

DOMAIN, OPERATOR = "onnx_ops", "Im2ColProduct"
NAME = "unfold_product"
LAST, DOMAINS = ("ReduceSum", "ReduceMean", "Einsum", "MatMul"), AI_ONNX  # of the node that adds up
NEEDS = (("Im2Col",),)  # a graph needs one of these sets of types of nodes


class Products(NamedTuple):
    """Products that a node adds up.

    sizes   {variable: its size}: the axes of the products
    summed  the variables over which they are added up
    kept    those of the result, in the order of its axes
    index   {variable: Position} -> the indices into the two operands, None for one that is unknown
    """

    sizes: dict
    summed: list
    kept: list
    index: Callable


class Roles(NamedTuple):
    """What the digits are to an Im2ColProduct. groups: those of its groups; factors, result: those of its tensors."""

    sum_over: str
    groups: list
    factors: list
    result: list


def match(graph, node):
    """Return the arguments of `Graph.replace` that make the node that adds up the last one after an Im2ColProduct.

    None if it adds up nothing like products of columns.
    """
    operands = _operands(graph, node)
    found = [(k, im2col) for k, name in enumerate(operands) if (im2col := _im2col(graph, name)) is not None]
    if not found:
        return None
    (which, im2col), *_ = found
    columns, factors = operands[which], operands[1 - which]
    if graph.array(factors) is not None:
        return None  # the weights of a convolution
    products = tried(PRODUCTS[node.op_type], graph, node)
    index = None if products is None else tried(products.index, _variables(products.sizes))
    if index is None:
        raise NearMiss("the values that it adds up are unknown")
    digits, sizes = _digits(graph, im2col, columns, index[which])
    attributes = attributes_of(im2col)
    if _are_blocks_first(products, digits, index[1 - which]):
        attributes, digits, sizes = _turned(graph, im2col, digits, sizes)
    values = _values(products, digits, sizes)
    wholes = _variables(sizes)
    index = products.index({name: joined([(wholes[d], sizes[d]) for d in its]) for name, its in values.items()})
    sources = [*_sources(graph, factors, index[1 - which])]
    if not sources:
        raise NearMiss(f"how the elements of {factors} are arranged is unknown")
    summed = {digit for name in products.summed for digit in values[name]}
    roles = _roles([*sizes], summed, {*_order(sources[0][1])}, factors)
    if roles is None:
        return None
    _check_uses(graph, node)
    x = im2col.input[0]
    if graph.type(x).elements not in FLOATS:
        raise NearMiss("its elements are not known to be floats")
    if node.op_type == "ReduceMean" and graph.type(x).elements == TensorProto.FLOAT16:
        raise NearMiss("float16 may not hold the sums, although it holds the means")
    rows, group, times = (
        math.prod(sizes[d] for d in some)
        for some in ([d for d in roles.factors if d[0] in "eck"], roles.groups, [d for d in sizes if d[0] == "e"])
    )
    if not are_positive((rows, group, times)):
        raise NearMiss("the number of its channels is open")
    source, entries = min(sources, key=lambda each: _order(each[1]) != roles.factors)
    open_in = source, x  # the values whose axes are as large as open sizes
    made = _arranged(graph, node, source, entries, roles.factors)
    batch, blocks = (tuple(sizes[d] for d in sizes if d[0] == role) for role in "nl")
    made = add_reshape(graph, node, made, (batch, rows, blocks), open_in)
    attributes |= {"group": group, "sum_over": roles.sum_over}
    made = graph.add_node(node, OPERATOR, [_repeated(graph, node, x, times), made], DOMAIN, **attributes)
    order, target = [digit for name in products.kept for digit in values[name]], shape(graph, node.output[0])
    if order != roles.result:
        made = add_reshape(graph, node, made, [sizes[d] for d in roles.result], open_in)
        made = graph.add_node(node, "Transpose", [made], perm=[roles.result.index(d) for d in order])
    if node.op_type != "ReduceMean":
        return {"op_type": "Reshape", **reshape(graph, node, made, target, open_in), "finding": OPERATOR}
    made = add_reshape(graph, node, made, target, open_in)
    count = np.array(math.prod(sizes[d] for d in summed), graph.type(x).dtype)
    return {"op_type": "Div", "inputs": [made, graph.add_constant(f"{made}_count", count)], "finding": OPERATOR}


def _roles(digits, summed, has, factors):
    """Return the Roles of digits, for those that are added up and those that the factors have; None if it is no match.

    Raises NearMiss if Im2ColProduct can't add them up.
    """
    n, e, c, k, l = ([digit for digit in digits if digit[0] == role] for role in "neckl")
    if not summed or (l and not has & {*l}):  # the same weights for all blocks: a convolution
        return None
    own = [digit for digit in c if digit in has]
    if summed == {*k}:
        roles = Roles("kernel", [*e, *own], [*n, *e, *own, *k, *l], [*n, *e, *c, *l])
    else:
        groups = [digit for digit in c if digit not in summed]
        if not summed <= {*c} or groups != c[: len(groups)]:
            raise NearMiss("it adds up over other axes than the channels of a group, or the positions of a block")
        roles = Roles("channels", [*e, *groups], [*n, *e, *c, *l], [*n, *e, *groups, *k, *l])
    if has != {*roles.factors} or own != c[: len(own)]:
        others = {"kernel": "groups, positions", "channels": "channels"}[roles.sum_over]
        raise NearMiss(f"{factors} has other axes than batch, {others} and blocks")
    return roles


def _operands(graph, node):
    """Return the names of the two operands whose products the node adds up; none if there are none."""
    if node.op_type in ("Einsum", "MatMul"):
        return [*node.input] if len(node.input) == 2 else []
    product = _product(graph, node)[1]
    return [] if product is None else [*product.input]


def _product(graph, node):
    """Return (path, Mul) of the products that a ReduceSum or ReduceMean adds up; the Mul may be None."""
    steps, name = path(graph, node.input[0])
    return steps, graph.producer(name, "Mul")


def _im2col(graph, name):
    """Return the Im2Col whose elements a value has; None if there is none."""
    node = graph.producers.get(path(graph, name)[1])
    return node if node is not None and (node.domain, node.op_type) == (DOMAIN, "Im2Col") else None


# Rules for what a node adds up: each returns Products, or fails, or returns None.


def _reduced(graph, node):
    dimensions, axes = shape(graph, node.input[0]), axes_of(graph, node)
    steps, product = _product(graph, node)
    names = [str(k) for k in range(len(dimensions))]
    summed = [names[axis] for axis in axes]

    def index(values):
        at = followed(graph, steps, tuple(values[name] for name in names))
        target = shape(graph, product.output[0])
        return [tried(broadcast_index, shape(graph, each), target, at) for each in product.input]

    sizes = dict(zip(names, dimensions, strict=True))
    return Products(sizes, summed, [name for name in names if name not in summed], index)


def _einsum(graph, node):
    terms, arrow, result = attributes_of(node)["equation"].decode().replace(" ", "").partition("->")
    terms, sizes = terms.split(","), {}
    if not arrow or any(len({*term}) != len(term) for term in (*terms, result)):
        return None  # the order of the result's axes isn't stated, or there is a diagonal, or three dots
    for term, name in zip(terms, node.input, strict=True):
        for letter, size in zip(term, shape(graph, name), strict=True):
            if sizes.setdefault(letter, size) != size:
                return None
    summed = [letter for letter in sizes if letter not in result]
    return Products(sizes, summed, [*result], lambda values: [tuple(values[a] for a in term) for term in terms])


def _matrices(graph, node):
    (*first, rows, terms), (*second, others, columns) = (shape(graph, name) for name in node.input)
    if terms != others:
        return None
    batch = shape(graph, node.output[0])[:-2]
    kept = [*(str(k) for k in range(len(batch))), "row", "column"]
    sizes = {**dict(zip(kept, (*batch, rows, columns), strict=True)), "term": terms}

    def index(values):
        at = tuple(values[name] for name in kept[:-2])
        parts = (first, ("row", "term")), (second, ("term", "column"))
        return [(*broadcast_index(each, batch, at), *(values[name] for name in last)) for each, last in parts]

    return Products(sizes, ["term"], kept, index)


PRODUCTS = {"ReduceSum": _reduced, "ReduceMean": _reduced, "Einsum": _einsum, "MatMul": _matrices}


# Variables.


def _variables(sizes):
    return {name: variable(name, size) for name, size in sizes.items()}


def _digits(graph, im2col, name, index):
    """Return ({(variable, inner): digit}, {digit: size}) of the columns' index, for the index of their products."""
    dimensions = shape(graph, im2col.output[0])
    index = None if index is None else followed(graph, path(graph, name)[0], index)
    positions = math.prod(attributes_of(im2col)["kernel_shape"])
    if index is None or dimensions is None or not len(index) == len(dimensions) == 3:
        raise NearMiss(f"how the elements of {name} are arranged is unknown")
    digits, sizes = {}, {}
    for role, at, size in zip("ncl", index, dimensions, strict=True):
        parts = [each for each in digits_of(at, size) if each[1] != 1]
        for k, (digit, its_size) in enumerate(parts):
            term, *others = digit.terms or [None]
            if digit.start != 0 or term is None or others or (term.step, term.size) != (1, its_size):
                raise NearMiss(f"{name} has not all columns, or they are in another order")
            if (term.variable.name, term.inner) in digits:
                raise NearMiss(f"{name} has only columns of which two indices are the same")
            if role == "c" and math.prod(each for _, each in parts[k:]) == positions:
                role = "k"
            digits[term.variable.name, term.inner] = f"{role}{k}"
            sizes[f"{role}{k}"] = its_size
    if math.prod(size for digit, size in sizes.items() if digit[0] == "k") != positions:
        raise NearMiss(f"{name} has one axis for channels and positions together")
    return digits, sizes


def _are_blocks_first(products, digits, index):
    """Return whether the factors are as if the positions of the columns were blocks, and the blocks positions."""
    c, k, l = ({name for (name, _), digit in digits.items() if digit[0] == role} for role in "ckl")
    summed = {name for name in products.summed if products.sizes[name] != 1}
    has = {term.variable.name for at in index or () for term in at.terms}
    return summed == l if summed & l else bool(k) and summed <= c and k <= has and not l & has


def _turned(graph, im2col, digits, sizes):
    """Return (attributes, digits, sizes) of an Im2Col whose positions are blocks, and its blocks positions.

    The pattern `unfold` makes one of a Tensor.unfold whose result has its blocks first.
    """
    attributes, image = attributes_of(im2col), shape(graph, im2col.input[0])[2:]
    blocks, ones = im2col_blocks(attributes, image), [1] * len(image)
    turned = {
        **attributes, "kernel_shape": blocks, "strides": attributes.get("dilations", ones),
        "dilations": attributes.get("strides", ones),
    }  # fmt: skip
    are_known = are_positive(blocks)
    if are_known:
        spacings = zip(attributes["kernel_shape"], im2col_spacings(turned, image), strict=True)
        turned["strides"] = [stride_for(count, *spacing) for count, spacing in spacings]
    if not are_known or None in turned["strides"]:
        raise NearMiss("its blocks come before its positions, and others would fit, too")
    others = {digit: {"k": "l", "l": "k"}.get(digit[0], digit[0]) + digit[1:] for digit in sizes}
    digits = {place: others[digit] for place, digit in digits.items()}
    return turned, digits, {others[digit]: size for digit, size in sizes.items()}


def _values(products, digits, sizes):
    """Return {variable: its digits, the most significant one first}, and add those to sizes that the columns lack."""
    values = {}
    for name, size in products.sizes.items():
        inners = {inner: digit for (its_name, inner), digit in digits.items() if its_name == name}
        inner, values[name] = 1, []
        while inner != size:
            digit = inners.pop(inner, None)
            if digit is None:
                steps = [quotient(each, inner) for each in (inners or [size])]
                step = min((each for each in steps if isinstance(each, int)), default=steps[0])
                digit = f"e{sum(d[0] == 'e' for d in sizes)}"
                sizes[digit] = step
            if sizes[digit] is None:
                raise NearMiss("its columns are repeated in an unknown way")
            values[name].insert(0, digit)
            inner = inner * sizes[digit]
        if inners:
            raise NearMiss("its columns are repeated in an unknown way")
    return values


def _sources(graph, name, index):
    """Yield (value, [(size, digit or 0), ...]) of the values on the way to one that have its elements, and only these.

    The digits are those along which the axes run that such a value has, or would have after a Reshape.
    """
    if index is None:
        return
    steps = path(graph, name)[0]
    wanted = {term.variable.name for at in index for term in at.terms}
    values = [name, *(node.input[0] for node, _ in steps)]
    for k, source in reversed([*enumerate(values)]):  # the first one makes the nodes after it unnecessary
        its_index, dimensions = followed(graph, steps[:k], index), shape(graph, source)
        apart = None if its_index is None or dimensions is None else tried(axes_apart, its_index, dimensions)
        if apart is None or any(size != 1 for size, entry in zip(*apart, strict=True) if not isinstance(entry, str)):
            continue
        names = [entry for entry in apart[1] if isinstance(entry, str)]
        if len(names) == len({*names}) and {*names} == wanted:
            yield source, [*zip(*apart, strict=True)]


def _order(entries):
    return [entry for _, entry in entries if isinstance(entry, str)]


def _check_uses(graph, node):
    """Raise NearMiss if products are used elsewhere, too."""
    if node.op_type in ("Einsum", "MatMul"):
        return
    steps, product = _product(graph, node)
    for name in (*(name for _, name in steps), *product.output):
        if graph.users[name] > 1:
            raise NearMiss(f"{name} is used elsewhere, too")


# Nodes around the new one.


def _repeated(graph, node, x, times):
    """Return the name of x with its channels repeated so many times."""
    if times == 1:
        return x
    repeats = [1, times, *[1] * (len(shape(graph, x)) - 2)]
    return graph.add_node(node, "Tile", [x, graph.add_integers(f"{x}_repeats", *repeats)])


def _arranged(graph, node, source, entries, digits):
    """Return the name of a source's elements in the order of the digits."""
    if _order(entries) == digits:
        return source
    made = add_reshape(graph, node, source, [size for size, _ in entries], [source])
    places = [entry for _, entry in entries]
    others = [k for k, entry in enumerate(places) if not isinstance(entry, str)]
    return graph.add_node(node, "Transpose", [made], perm=[*map(places.index, digits), *others])
