"""Models that grow: each family adds nodes of one kind, so many of them, and families are put one
behind the other.

A family takes a value of SHAPE and returns another one. Most contain a GridSample or a Gather,
since a model without anything to find is left at once.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import onnx_ops
from onnx_ops.cli.reading import examine
from onnx_ops.rewriting import rewritten

from .written import Writer

SHAPE = [1, 1, 8, 8]
Family = Callable[["Names", str, int], str]


class Names(Writer):
    """A Writer whose names are its own also beside those of the graphs around it.

    domains    what the model imports, beside ai.onnx
    functions  {name: a function of the model}
    inputs     of the model
    """

    def __init__(self, numbers: Iterator[int]) -> None:
        super().__init__()
        self.numbers = numbers
        self.domains: list[str] = []
        self.functions: dict[str, onnx.FunctionProto] = {}
        self.inputs: list[str] = []

    def add(self, op_type: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        return super().add(op_type, *inputs, name=name or self.name(op_type), **attributes)

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        name = self.name("constant")
        self.initializers.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def name(self, like: str) -> str:
        return f"{like}_{next(self.numbers)}"

    def branch(self, build: "Callable[[Names], str]") -> onnx.GraphProto:
        """Return a graph inside of this one, with the value that `build` returns as its output."""
        inner = Names(self.numbers)
        inner.domains, inner.functions, inner.inputs = self.domains, self.functions, self.inputs
        result = inner.add("Identity", build(inner))
        info = helper.make_tensor_value_info(result, TensorProto.FLOAT, None)
        return helper.make_graph(inner.nodes, result, [], [info], inner.initializers)


def part(w: Names, x: str, start: int, end: int, axis: int = 3) -> str:
    return w.add("Slice", x, *(w.constant([number]) for number in (start, end, axis)))


def shaped(w: Names, x: str) -> str:
    """A value of 64 elements as one of SHAPE."""
    return w.add("Reshape", x, w.constant(SHAPE))


def grid(w: Names) -> str:
    return w.constant(np.linspace(-1, 1, 128).reshape(1, 8, 8, 2), np.float32)


def chain(w: Names, x: str, count: int) -> str:
    """Elementwise operations."""
    for k in range(count):
        x = w.add(("Add", "Mul")[k % 2], x, w.constant(1.5, np.float32))
    return x


def doubled(w: Names, x: str, count: int) -> str:
    """Values that are used twice by the next one."""
    for k in range(count):
        x = w.add(("Mul", "Add")[k % 2], x, x)
    return x


def fan(w: Names, x: str, count: int) -> str:
    """Users of one value, which are added up."""
    return w.add("Sum", *(w.add("Relu", x) for _ in range(count)))


def moves(w: Names, x: str, count: int) -> str:
    """Transposes and Reshapes."""
    for k in range(count):
        x = (
            w.add("Transpose", x, perm=[0, 1, 3, 2])
            if k % 2
            else w.add("Reshape", x, w.constant([1, 1, 8, 8]))
        )
    return x


def axes(w: Names, x: str, count: int) -> str:
    """One value with many axes."""
    for k in range(count):
        x = w.add("Unsqueeze", x, w.constant([k % 2]))
    return shaped(w, w.add("Transpose", x))


def products_of_sizes(w: Names, x: str, count: int) -> str:
    """A size that is multiplied by sizes, which comes to 1 at run time."""
    size = w.add("Shape", "open", start=0, end=1)
    for k in range(count):
        other = w.add("Shape", "open", start=k % 2, end=k % 2 + 1)
        size = w.add("Mul", size, size if k % 3 else other)
    zero = w.add("Mul", size, w.constant([0]))
    return w.add(
        "Reshape",
        x,
        w.add("Concat", w.add("Add", zero, w.constant([1])), w.constant([-1, 8, 8]), axis=0),
    )


def sums_of_sizes(w: Names, x: str, count: int) -> str:
    """A size that sizes are added to, some of them divided and multiplied."""
    size = w.add("Shape", "open", start=0, end=1)
    for k in range(count):
        size = w.add("Add", size, w.add("Shape", "open", start=k % 2, end=k % 2 + 1))
        if k % 4 == 3:
            size = w.add("Mul", w.add("Div", size, w.constant([2])), size)
    zero = w.add("Mul", size, w.constant([0]))
    return w.add(
        "Reshape",
        x,
        w.add("Concat", w.add("Add", zero, w.constant([1])), w.constant([-1, 8, 8]), axis=0),
    )


def concats_of_sizes(w: Names, x: str, count: int) -> str:
    """A shape that is joined from many sizes, and looked up size by size."""
    sizes = w.add(
        "Concat",
        *(w.add("Shape", "open", start=k % 2, end=k % 2 + 1) for k in range(count)),
        axis=0,
    )
    rows = [w.add("Gather", sizes, w.constant([k])) for k in range(count)]
    total = w.add("Sum", *(w.add("Cast", row, to=TensorProto.FLOAT) for row in rows))
    return w.add("Add", x, total)


def constants(w: Names, x: str, count: int) -> str:
    """Constants that nodes compute from constants."""
    y = w.constant(np.ones(SHAPE), np.float32)
    for _ in range(count):
        y = w.add("Add", y, w.constant(np.ones(SHAPE), np.float32))
    return w.add("GridSample", w.add("Add", x, y), grid(w))


def samplers(w: Names, x: str, count: int) -> str:
    """Many matches: a GridSample and what computes its grid."""
    for k in range(count):
        matrix = w.constant(np.eye(2, 3)[None] * (1 + k / 99), np.float32)
        x = w.add("GridSample", x, w.add("AffineGrid", matrix, w.constant(SHAPE)))
    return x


def matrices(w: Names, x: str, count: int) -> str:
    """Samplers whose matrices are computed."""
    for _ in range(count):
        row = w.add("Reshape", part(w, part(w, x, 0, 6), 0, 1, 2), w.constant([1, 2, 3]))
        x = w.add("GridSample", x, w.add("AffineGrid", row, w.constant(SHAPE)))
    return x


def shared_grids(w: Names, x: str, count: int) -> str:
    """Samplers that read one grid."""
    points = w.add("Mul", grid(w), w.constant(0.9, np.float32))
    points = w.add(
        "Add",
        points,
        w.add("Reshape", part(w, part(w, x, 0, 2), 0, 1, 2), w.constant([1, 1, 1, 2])),
    )
    return w.add("Sum", *(w.add("GridSample", x, points) for _ in range(count)))


def windows(w: Names, x: str, count: int) -> str:
    """Many matches: an unfold by a table of indices."""
    for _ in range(count):
        table = w.constant(np.arange(3)[:, None] + np.arange(6))
        y = w.add("Gather", w.add("Gather", x, table, axis=2), table, axis=4)
        y = w.add("Reshape", w.add("Transpose", y, perm=[0, 1, 2, 4, 3, 5]), w.constant([1, 9, 36]))
        x = w.add("Add", x, w.add("ReduceMean", y, w.constant([0, 1, 2]), keepdims=0))
    return x


def slices(w: Names, x: str, count: int) -> str:
    """Slices that are stacked."""
    rows = [part(w, x, k % 4, k % 4 + 4) for k in range(count)]
    stack = w.add("Concat", *(w.add("Unsqueeze", row, w.constant([0])) for row in rows), axis=0)
    return w.add("Add", x, w.add("ReduceMean", stack, w.constant([0, 1, 2, 3, 4]), keepdims=0))


def writes(w: Names, x: str, count: int) -> str:
    """Slices that are written into one value."""
    y = w.add("ConstantOfShape", w.constant([1, count, 1, 8, 4]))
    for k in range(count):
        row = w.add("Unsqueeze", part(w, x, k % 4, k % 4 + 4), w.constant([1]))
        y = w.add("ScatterElements", y, w.constant(np.full((1, 1, 1, 8, 4), k)), row, axis=1)
    return w.add("Add", x, w.add("ReduceMean", y, w.constant([0, 1, 2, 3, 4]), keepdims=0))


def turned(w: Names, x: str, count: int) -> str:
    """x + roll(x, k)."""
    for k in range(count):
        by = 1 + k % 7
        x = w.add("Add", x, w.add("Concat", part(w, x, by, 8), part(w, x, 0, by), axis=3))
    return x


def ifs_in_ifs(w: Names, x: str, count: int) -> str:
    """Branches inside each other."""
    if count == 0:
        return w.add("GridSample", x, grid(w))
    then = w.branch(lambda inner: ifs_in_ifs(inner, x, count - 1))
    other = w.branch(lambda inner: inner.add("Neg", x))
    return w.add("If", "flag", then_branch=then, else_branch=other)


def ifs(w: Names, x: str, count: int) -> str:
    """Branches beside each other."""
    for _ in range(count):
        x = ifs_in_ifs(w, x, 1)
    return x


def outputs_of_an_if(w: Names, x: str, count: int) -> str:
    """An If with many outputs."""
    graphs = {}
    for side in ("then_branch", "else_branch"):
        inner = Names(w.numbers)
        infos = [
            helper.make_tensor_value_info(inner.add("Relu", x), TensorProto.FLOAT, None)
            for _ in range(count)
        ]
        graphs[side] = helper.make_graph(inner.nodes, w.name(side), [], infos)
    outputs = [w.name("output") for _ in range(count)]
    w.nodes.append(helper.make_node("If", ["flag"], outputs, **graphs))
    return w.add("GridSample", w.add("Sum", *outputs), grid(w))


def splits(w: Names, x: str, count: int) -> str:
    """A Split with many outputs, of no elements but the last."""
    outputs = [w.name("part") for _ in range(count)]
    sizes = w.constant([0] * (count - 1) + [8])
    w.nodes.append(helper.make_node("Split", [x, sizes], outputs, axis=3))
    return w.add("Concat", *outputs, axis=3)


def names(w: Names, x: str, count: int) -> str:
    """Names that a rewriting would choose itself."""
    for _ in range(count):
        x = w.add(
            "GridSample", x, w.add("Mul", grid(w), w.constant(0.5, np.float32), name=f"{x}_values")
        )
    return x


def loops(w: Names, x: str, count: int) -> str:
    """Loops behind each other."""
    for _ in range(count):
        turn, condition, value, stays = (
            w.name(like) for like in ("turn", "condition", "value", "stays")
        )
        body = w.branch(partial(relu, value))
        body.node.insert(0, helper.make_node("Identity", [condition], [stays]))
        body.input.extend([
            helper.make_tensor_value_info(turn, TensorProto.INT64, []),
            helper.make_tensor_value_info(condition, TensorProto.BOOL, []),
            helper.make_tensor_value_info(value, TensorProto.FLOAT, None),
        ])  # fmt: skip
        body.output.insert(0, helper.make_tensor_value_info(stays, TensorProto.BOOL, []))
        x = w.add("Loop", w.constant(1), "flag", x, body=body)
    return x


def relu(x: str, w: Names) -> str:
    return w.add("Relu", x)


def calls(w: Names, x: str, count: int) -> str:
    """A call of a function, which calls another one, which ..."""
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
    for k in range(count + 1):
        node = helper.make_node(
            f"Function{k - 1}" if k else "Relu", ["x"], ["y"], domain="local" if k else ""
        )
        w.functions[f"Function{k}"] = helper.make_function(
            "local", f"Function{k}", ["x"], ["y"], [node], imports
        )
    if "local" not in w.domains:
        w.domains.append("local")
    return w.add(f"Function{count}", x, domain="local")


def imports(w: Names, x: str, count: int) -> str:
    """Nodes of as many domains, with attributes, behind each other."""
    for k in range(count):
        w.domains.append(w.name("domain"))
        settings: dict[str, Any] = {f"setting_{j}": j for j in range(8)}
        x = w.add(
            "GridSample", w.add("Stranger", x, domain=w.domains[-1], **settings, number=k), grid(w)
        )
    return x


def inputs(w: Names, x: str, count: int) -> str:
    """Inputs of the model, which are added up."""
    for _ in range(count):
        w.inputs.append(w.name("input"))
        x = w.add("Add", x, w.inputs[-1])
    return x


FAMILIES: dict[str, tuple[Family, int]] = {  # {name: (the family, how many at first)}
    "axes": (axes, 8),
    "branches beside each other": (ifs, 6),
    "branches in branches": (ifs_in_ifs, 4),
    "calls of functions": (calls, 10),
    "chain": (chain, 20),
    "concats of sizes": (concats_of_sizes, 10),
    "constants": (constants, 10),
    "doubled uses": (doubled, 20),
    "fan": (fan, 20),
    "loops": (loops, 6),
    "imports": (imports, 6),
    "inputs": (inputs, 12),
    "matrices": (matrices, 6),
    "moves": (moves, 20),
    "names": (names, 8),
    "outputs of an If": (outputs_of_an_if, 8),
    "products of sizes": (products_of_sizes, 10),
    "samplers": (samplers, 8),
    "shared grids": (shared_grids, 8),
    "slices": (slices, 12),
    "splits": (splits, 20),
    "sums of sizes": (sums_of_sizes, 10),
    "turned": (turned, 8),
    "windows": (windows, 4),
    "writes": (writes, 8),
}


STRANGE = {"imports"}  # families with nodes that no session runs
Door = Callable[[onnx.ModelProto, Path], Callable[[], object]]


def register(proto: onnx.ModelProto, _: Path) -> Callable[[], object]:
    content = proto.SerializeToString()
    return lambda: onnx_ops.register(ort.SessionOptions(), content)


def optimize(proto: onnx.ModelProto, _: Path) -> Callable[[], object]:
    return lambda: rewritten(proto)


def lower(proto: onnx.ModelProto, _: Path) -> Callable[[], object]:
    return lambda: onnx_ops.lower(proto)


def inspect(proto: onnx.ModelProto, folder: Path) -> Callable[[], object]:
    file = folder / f"{proto.ByteSize()}.onnx"
    onnx.save(proto, file)
    return lambda: examine(file)


DOORS: dict[str, Door] = {
    "register": register,
    "optimize": optimize,
    "lower": lower,
    "inspect": inspect,
}


def model(chosen: Iterable[tuple[str, int]], inside: int = 0) -> onnx.ModelProto:
    """Return a model of families, one behind the other, each of so many nodes.

    inside  how many branches are around all of it
    """

    def body(w: Names) -> str:
        y = "x"
        for name, count in chosen:
            family, _ = FAMILIES[name]
            y = family(w, y, count)
        return w.add("GridSample", y, grid(w))

    def nested(w: Names, depth: int) -> str:
        if depth == 0:
            return body(w)
        other = w.branch(partial(relu, "x"))
        return w.add(
            "If",
            "flag",
            then_branch=w.branch(lambda inner: nested(inner, depth - 1)),
            else_branch=other,
        )

    w = Names(itertools.count())
    y = nested(w, inside)
    infos = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE),
        helper.make_tensor_value_info("open", TensorProto.FLOAT, ["m", "n"]),
        helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        *(helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in w.inputs),
    ]
    output = helper.make_tensor_value_info(y, TensorProto.FLOAT, list("nchw"))
    graph = helper.make_graph(w.nodes, "families", infos, [output], w.initializers)
    opsets = [
        helper.make_opsetid("", 20),
        *(helper.make_opsetid(domain, 1) for domain in w.domains),
    ]
    return helper.make_model(
        graph, opset_imports=opsets, ir_version=9, functions=[*w.functions.values()]
    )
