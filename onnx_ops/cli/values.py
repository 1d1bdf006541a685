"""What a model states about the inputs of its nodes: types, shapes, constants."""

import difflib
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import onnx

from .. import dtypes
from ..external_data import is_small
from ..nodes import subgraphs
from ..schemas import dimensions
from .common import names

LIKENESS = 0.8  # how similar a misspelt name is at least to the right one, as difflib measures it
ELEMENT_TYPES = {t.onnx: name for name, t in dtypes.TABLE.items()}


@dataclass
class Value:
    """What a model states about an input of a node. value: the array, if it is a constant."""

    name: str
    type: str | None = None
    shape: list | None = None
    value: np.ndarray | None = None


def relevant(graph, outer, path):
    """Yield (node, its inputs as Values, name of its graph) of the `intended` nodes in a graph and its subgraphs."""
    values = dict(outer)
    for v in (*graph.input, *graph.value_info, *graph.output):
        values[v.name] = Value(v.name, ELEMENT_TYPES.get(v.type.tensor_type.elem_type), dimensions(v.type))
    for tensor in graph.initializer:
        values[tensor.name] = constant(tensor.name, tensor)
    for node in graph.node:
        if node.op_type == "Constant" and node.output and (value := constant_of(node)):
            values[node.output[0]] = value
        if intended(node):
            yield node, [values.get(name, Value(name)) for name in node.input], path
        for inner in subgraphs(node):
            yield from relevant(inner, values, f"{path} / {node.name or node.op_type} / {inner.name}")


def intended(node):
    """Return the declared operator's name that a node has or, unless onnx knows it, seems to misspell; or None."""
    if node.op_type in names():
        return node.op_type
    if onnx.defs.has(node.op_type, domain="" if node.domain == "ai.onnx" else node.domain):
        return None
    by_small_letters = {name.lower(): name for name in names()}
    near = difflib.get_close_matches(node.op_type.lower(), by_small_letters, 1, LIKENESS)
    return by_small_letters[near[0]] if near else None


def constant(name, tensor):
    """Return a tensor's Value, with the elements only if it is small, as sizes are."""
    value = Value(name, ELEMENT_TYPES.get(tensor.data_type), list(tensor.dims))
    if is_small(tensor):
        with suppress(Exception):  # the session reports what is wrong with it
            value.value = onnx.numpy_helper.to_array(tensor)
    return value


def constant_of(node):
    """Return the Value of a node Constant, or None if it holds neither a tensor nor a list of integers."""
    for attribute in node.attribute:
        if attribute.name == "value":
            return constant(node.output[0], attribute.t)
        if attribute.name == "value_ints":
            return Value(node.output[0], "int64", [len(attribute.ints)], np.array(attribute.ints, np.int64))
    return None
