"""The reader's work grows with a model, whatever its nodes: steps and forms are counted, and
bounded.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.growth import MOST_STEPS
from support.reading import compared
from support.selection import long_unless
from support.written import Writer, feeds

from onnx_ops.rewriting.graph import graphs_of
from onnx_ops.rewriting.models import Model
from onnx_ops.rewriting.reading import reader_of
from onnx_ops.rewriting.reading.forms import Element, Exhausted
from onnx_ops.rewriting.reading.reader import AT_LEAST, PER_NODE

pytestmark = pytest.mark.any_library

WIDTH = 16
Adder = Callable[[Writer, int], str]


def chained(w: Writer, count: int) -> str:
    """Elementwise operations behind a Gather: one long form."""
    y = w.add("Gather", "x", w.constant(np.arange(4)[:, None] + np.arange(2)), axis=1)
    for k in range(count):
        y = w.add(("Add", "Mul")[k % 2], y, w.constant(1.5, np.float32))
    return y


def doubled(w: Writer, count: int) -> str:
    """Values that are used twice by the next one: as trees their forms have 2**count leaves."""
    y = w.add("Gather", "x", w.constant(np.arange(4)[:, None] + np.arange(2)), axis=1)
    for k in range(count):
        y = w.add(("Mul", "Add")[k % 2], y, y)
    return y


def part(w: Writer, name: str, start: int, end: int, axis: int = 1) -> str:
    return w.add("Slice", name, *(w.constant([number]) for number in (start, end, axis)))


def turned(w: Writer, count: int) -> str:
    """x + roll(x, 2**k), again and again."""
    y = "x"
    for k in range(count):
        by = 2 ** (k % 4)
        y = w.add("Add", y, w.add("Concat", part(w, y, by, WIDTH), part(w, y, 0, by), axis=1))
    return y


def stacked(w: Writer, count: int) -> str:
    """Stacks of three, of which the middle is stacked again."""
    y = "x"
    for _ in range(count):
        y = part(w, w.add("Concat", y, y, y, axis=1), 5, 5 + WIDTH)
    return y


def sliced(w: Writer, count: int) -> str:
    """Many slices that are added up."""
    parts = [w.add("Mul", part(w, "x", k % 8, k % 8 + 4), "factor") for k in range(count)]
    return w.add("Concat", *(w.add("Unsqueeze", p, w.constant([1])) for p in parts), axis=1)


def written(w: Writer, count: int) -> str:
    """A slice after the other written into one value."""
    y = w.add("ConstantOfShape", w.constant([1, count, 4]))
    for k in range(count):
        update = w.add(
            "Unsqueeze", w.add("Mul", part(w, "x", k % 8, k % 8 + 4), "factor"), w.constant([1])
        )
        y = w.add("ScatterElements", y, w.constant(np.full((1, 1, 4), k)), update, axis=1)
    return y


def partly_written(w: Writer, count: int) -> str:
    """Parts of slices, which are read before they are written, as PyTorch's default exporter does
    it.
    """
    y = w.add("ConstantOfShape", w.constant([1, count, 4]))
    for k in range(count):
        row = w.add("Transpose", w.add("Gather", y, w.constant(k), axis=1), perm=[1, 0])
        update = w.add(
            "Transpose",
            part(w, w.add("Mul", part(w, "x", k % 8, k % 8 + 4), "factor"), 0, 3),
            perm=[1, 0],
        )
        row = w.add("ScatterND", row, w.constant([[1], [2], [3]]), update)
        row = w.add("Unsqueeze", w.add("Transpose", row, perm=[1, 0]), w.constant([1]))
        y = w.add("ScatterElements", y, w.constant(np.full((1, 1, 4), k)), row, axis=1)
    return y


def nested(w: Writer, count: int) -> str:
    """Branches within each other, each of which reads values of the outermost graph."""
    if count == 0:
        return w.add("Neg", "x", name="inner_0")
    branches = []
    for name in ("then", "else"):
        inner = Writer()
        result = f"{name}_{count}"
        if name == "then":
            inner.add("Transpose", "x", perm=[1, 0], name=f"v_{count - 1}")
            inner.add("Identity", nested(inner, count - 1), name=result)
        else:
            inner.add("Identity", f"v_{count}", name=result)
        info = helper.make_tensor_value_info(result, TensorProto.FLOAT, None)
        branches.append(helper.make_graph(inner.nodes, result, [], [info], inner.initializers))
    if not any(node.output[0] == f"v_{count}" for node in w.nodes):
        w.add("Identity", "x", name=f"v_{count}")
    return w.add(
        "If", "flag", then_branch=branches[0], else_branch=branches[1], name=f"inner_{count}"
    )


def beside(w: Writer, count: int) -> str:
    """Branches beside each other, each of which reads all nodes of the graph around it."""
    y = "x"
    for k in range(count):
        y = w.add("Transpose", y, perm=[1, 0], name=f"turned_{k}")
    results = []
    for k in range(count):
        branches = []
        for name in ("then", "else"):
            inner = Writer()
            result = inner.add("Abs", y, name=f"{name}_{k}")
            info = helper.make_tensor_value_info(result, TensorProto.FLOAT, None)
            branches.append(helper.make_graph(inner.nodes, result, [], [info]))
        results.append(
            w.add("If", "flag", then_branch=branches[0], else_branch=branches[1], name=f"if_{k}")
        )
    return w.add("Concat", *results, axis=0)


FAMILIES: dict[str, tuple[Adder, int]] = {  # {name: (the nodes, how many at first)}
    "a chain of elementwise operations": (chained, 20),
    "values that are used twice": (doubled, 20),
    "sums with what is turned": (turned, 12),
    "stacks of stacks": (stacked, 16),
    "slices": (sliced, 12),
    "writes in place": (written, 12),
    "branches in branches": (nested, 3),
    "parts that are written in place": (partly_written, 12),
}


def model_of(add: Adder, count: int) -> onnx.ModelProto:
    w = Writer()
    y = add(w, count)
    inputs = {"x": ("float32", [1, WIDTH])}
    if any("factor" in node.input for node in w.nodes):
        inputs["factor"] = ("float32", [1, 4])
    if any("flag" in node.input for node in w.nodes):
        inputs["flag"] = ("bool", [])
    return w.model(inputs, (y, "float32", None))


def work(proto: onnx.ModelProto) -> tuple[int, int]:
    """Return (steps, forms) that reading the outputs of a model and of its subgraphs takes."""
    graphs = [*graphs_of(Model(proto))]
    budget = graphs[0].reader.budget
    steps = forms = 0
    for graph in graphs:
        reader = graph.reader
        before = replace(budget)
        for output in graph.owner.output:
            reader.whole(output.name)
        steps += before.steps - budget.steps
        forms += before.forms - budget.forms
    return steps, forms


SLOW = "sums with what is turned"  # test_reading_stops has such a model, too


@pytest.mark.parametrize("name", [long_unless(name != SLOW, name) for name in FAMILIES])
def test_work_grows_with_the_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnx_ops.rewriting.reading.reader.AT_LEAST", 8 * AT_LEAST)  # to the end
    add, count = FAMILIES[name]
    counts = [work(model_of(add, factor * count)) for factor in (1, 2, 4)]
    for few, more in itertools.pairwise(counts):
        assert all(b <= MOST_STEPS * a for a, b in zip(few, more, strict=True)), counts


def test_writes_in_place_take_few_steps() -> None:
    """As many as the bound for each node allows, whatever it allows a graph."""
    proto = model_of(partly_written, 48)
    steps, _ = work(proto)
    assert steps < PER_NODE * len(proto.graph.node)


def test_reading_stops() -> None:
    """A model that is made to be hard takes no longer than others."""
    proto = model_of(turned, 40)
    reader = reader_of(next(graphs_of(Model(proto))))
    names = [node.output[0] for node in reversed(proto.graph.node)]
    with pytest.raises(Exhausted):
        [reader.whole(name) for name in names]


def test_graphs_share_what_reading_may_take() -> None:
    """Each of many branches reads the whole graph around it: in all they take no more than one
    graph may.
    """
    proto = model_of(beside, 100)
    graphs = [*graphs_of(Model(proto))]
    nodes = sum(len(graph.owner.node) for graph in graphs)
    readers = [graph.reader for graph in graphs]
    budget = readers[0].budget
    assert budget.steps <= PER_NODE * nodes + AT_LEAST
    assert all(reader.budget is budget for reader in readers)
    with pytest.raises(Exhausted):
        [
            reader.whole(graph.owner.output[0].name)
            for graph, reader in zip(graphs, readers, strict=True)
        ]


def test_long_chains_are_read_in_parts() -> None:
    """Python's stack isn't used up. A value deep inside is read when it is asked for."""
    proto = model_of(chained, 1000)
    reader = reader_of(next(graphs_of(Model(proto))))
    for node in reversed(proto.graph.node):
        form = reader.whole(node.output[0])
        assert not (isinstance(form, Element) and form.root == node.output[0])


@pytest.mark.parametrize("name", FAMILIES)
def test_they_are_right(name: str) -> None:
    add, _ = FAMILIES[name]
    proto = model_of(add, 6)
    result = compared(proto, feeds(proto))
    assert proto.graph.output[0].name not in result.left
