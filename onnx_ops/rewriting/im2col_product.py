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
from onnx import TensorProto, helper

from .expressions import axes_apart
from .finding import NearMiss, tried
from .graph import AI_ONNX
from .indices import attributes_of, axes_of, followed, path, shape
from .positions import broadcast_index, digits_of, joined, variable
from .sizes import quotient

DOMAIN, OPERATOR = "onnx_ops", "Im2ColProduct"
NAME = "unfold_product"
LAST, DOMAINS = ("ReduceSum", "ReduceMean", "Einsum", "MatMul"), AI_ONNX  # of the node that adds up
FLOATS = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16


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


def match(graph, node, standard):
    """Return the arguments of `Graph.replace` that make the node that adds up the last one after an Im2ColProduct.

    None if it adds up nothing like products of columns.
    """
    operands = _operands(graph, node)
    which = next((k for k, name in enumerate(operands) if _im2col(graph, name) is not None), None)
    if which is None:
        return None
    im2col, columns, factors = _im2col(graph, operands[which]), operands[which], operands[1 - which]
    products = tried(PRODUCTS[node.op_type], graph, node)
    if products is None:
        raise NearMiss("what it adds up is unknown")
    if not products.summed:
        return None
    digits, sizes = _digits(graph, im2col, columns, products.index(_whole(products))[which])
    values = _values(products, digits, sizes)
    index = products.index({name: joined([(variable(d, sizes[d]), sizes[d]) for d in names])
                            for name, names in values.items()})[1 - which]  # fmt: skip
    sources = [*_sources(graph, factors, index)]
    if not sources:
        raise NearMiss(f"how the elements of {factors} are arranged is unknown")
    n, e, c, k, l = ([d for d in sizes if d[0] == role] for role in "neckl")
    has = {name for at in index for name in (term.variable.name for term in at.terms)}
    if l and not has & {*l}:
        return None  # a convolution
    summed = {d for name in products.summed for d in values[name]}
    own = [d for d in c if d in has]  # channels that the factors have
    if summed == {*k}:
        groups, others, sum_over = own, c[len(own) :], "kernel"
        expected, results = [*n, *e, *groups, *k, *l], [*n, *e, *c, *l]
    else:
        groups = [d for d in c if d not in summed]
        sum_over, others = "channels", c[len(groups) :]
        expected, results = [*n, *e, *c, *l], [*n, *e, *groups, *k, *l]
    if not (summed == {*k} or (summed and summed == {*others})) or own != c[: len(own)]:
        raise NearMiss("it adds up over other axes than the channels of a group, or the positions of a block")
    if has != {*expected}:
        raise NearMiss(f"{factors} has not the axes of batch, {'channels' if sum_over == 'channels' else 'positions'} "
                       "and blocks")  # fmt: skip
    _check(graph, node, operands, im2col.input[0], standard)
    group = math.prod(sizes[d] for d in (*e, *groups))
    if not all(isinstance(size, int) and size > 0 for size in (*(sizes[d] for d in (*e, *c)), group)):
        raise NearMiss("the number of its channels is open")
    x = _repeated(graph, node, im2col.input[0], math.prod(sizes[d] for d in e))
    source, entries = min(sources, key=lambda each: _order(each[1]) != expected)
    made = _arranged(graph, node, source, entries, expected, sizes)
    rows = math.prod(sizes[d] for d in expected if d[0] in "eck")
    columns_shape = shape(graph, im2col.output[0])
    made = _reshaped(graph, node, made, (columns_shape[0], rows, columns_shape[2]), (source, x))
    attributes = {**attributes_of(im2col), "group": group, "sum_over": sum_over}
    made = graph.add_node(node, OPERATOR, [x, made], DOMAIN, **attributes)
    target = shape(graph, node.output[0])
    order = [d for name in products.kept for d in values[name]]
    if order != results:
        dimensions = [sizes[d] for d in results]
        made = _reshaped(graph, node, made, dimensions, (source, x))
        made = graph.add_node(node, "Transpose", [made], perm=[results.index(d) for d in order])
    if node.op_type != "ReduceMean":
        return {"inputs": [made, _target(graph, node, target, (source, x))], "op_type": "Reshape", "finding": OPERATOR}
    made = _reshaped(graph, node, made, target, (source, x))
    count = np.array(math.prod(sizes[d] for d in summed), helper.tensor_dtype_to_np_dtype(graph.type(x).elements))
    count = graph.add_constant(f"{made}_count", count)
    return {"inputs": [made, count], "op_type": "Div", "finding": OPERATOR}


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
    if not arrow or any(len({*term}) != len(term) or "." in term for term in (*terms, result)):
        return None
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


def _whole(products):
    return {name: variable(name, size) for name, size in products.sizes.items()}


def _digits(graph, im2col, name, index):
    """Return ({(variable, inner): digit}, {digit: size}) of the columns' index, for the index of their products."""
    dimensions = shape(graph, im2col.output[0])
    index = None if index is None else followed(graph, path(graph, name)[0], index)
    positions = math.prod(attributes_of(im2col)["kernel_shape"])
    if index is None or dimensions is None:
        raise NearMiss(f"how the elements of {name} are arranged is unknown")
    digits, sizes = {}, {}
    for role, at, size in zip("ncl", index, dimensions, strict=True):
        parts = [each for each in digits_of(at, size) if each[1] != 1]
        for k, (digit, its_size) in enumerate(parts):
            (term,) = digit.terms or [None]
            if digit.start != 0 or term is None or (term.step, term.size) != (1, its_size):
                raise NearMiss(f"{name} has not all columns, or they are in another order")
            if role == "c" and positions % math.prod(s for _, s in parts[k:]) == 0:
                role = "k"
            digits[term.variable.name, term.inner] = f"{role}{k}"
            sizes[f"{role}{k}"] = its_size
    if math.prod(size for digit, size in sizes.items() if digit[0] == "k") != positions:
        raise NearMiss(f"{name} has one axis for channels and positions together")
    return digits, sizes


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
    for k, source in enumerate([name, *(node.input[0] for node, _ in steps)]):
        its_index, dimensions = followed(graph, steps[:k], index), shape(graph, source)
        apart = None if its_index is None or dimensions is None else tried(axes_apart, its_index, dimensions)
        if apart is None or any(size != 1 for size, entry in zip(*apart, strict=True) if not isinstance(entry, str)):
            continue
        names = [entry for entry in apart[1] if isinstance(entry, str)]
        if len(names) == len({*names}) and {*names} == wanted:
            yield source, [*zip(*apart, strict=True)]


def _order(entries):
    return [entry for _, entry in entries if isinstance(entry, str)]


def _check(graph, node, operands, x, standard):
    """Raise NearMiss if products are used elsewhere, too, or are not of floats."""
    if standard:
        raise NearMiss("ai.onnx has no operator for it")
    if graph.type(x).elements not in FLOATS:
        raise NearMiss("its elements are not known to be floats")
    if node.op_type in ("ReduceSum", "ReduceMean"):
        steps, product = _product(graph, node)
        for name in (*(name for _, name in steps), product.output[0]):
            if graph.users[name] > 1:
                raise NearMiss(f"{name} is used elsewhere, too")


# Nodes around the new one.


def _repeated(graph, node, x, times):
    """Return the name of x with its channels repeated so many times."""
    if times == 1:
        return x
    repeats = [1, times, *[1] * (len(shape(graph, x)) - 2)]
    return graph.add_node(node, "Tile", [x, graph.add_constant(f"{x}_repeats", np.array(repeats))])


def _arranged(graph, node, source, entries, expected, sizes):
    """Return the name of a source's elements in the order of the expected digits."""
    order = _order(entries)
    if order == expected:
        return source
    made = _reshaped(graph, node, source, [size for size, _ in entries], (source,))
    fixed = [k for k, (_, entry) in enumerate(entries) if not isinstance(entry, str)]
    places = {entry: k for k, (_, entry) in enumerate(entries)}
    return graph.add_node(node, "Transpose", [made], perm=[*(places[d] for d in expected), *fixed])


def _reshaped(graph, node, name, dimensions, sources):
    """Return the name of a value with these dimensions."""
    if graph.type(name).shape == tuple(dimensions):
        return name
    return graph.add_node(node, "Reshape", [name, _target(graph, node, dimensions, sources)])


def _target(graph, node, dimensions, sources):
    """Return the name of a vector of sizes, of which the sources may have those that are open."""
    is_open = [not isinstance(size, int) for size in dimensions]
    if sum(is_open) < 2:
        sizes = [-1 if unknown else size for size, unknown in zip(dimensions, is_open, strict=True)]
        return graph.add_constant(f"{node.output[0]}_shape", np.array(sizes, np.int64))
    parts = []
    for size in dimensions:
        if isinstance(size, int):
            parts.append(graph.add_constant(f"{node.output[0]}_size", np.array([size], np.int64)))
            continue
        places = [(name, k) for name in sources for k, d in enumerate(shape(graph, name)) if d == size]
        if not places:
            raise NearMiss(f"no value is known that has an axis of the size {size}")
        name, axis = places[0]
        at = graph.add_constant(f"{node.output[0]}_axis", np.array([axis], np.int64))
        parts.append(graph.add_node(node, "Gather", [graph.add_node(node, "Shape", [name]), at]))
    return graph.add_node(node, "Concat", parts, axis=0)
