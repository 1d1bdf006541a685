"""What a reader says of a model's values, compared with what ONNX Runtime computes."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

import onnx_ops
from onnx_ops.rewriting.graph import graphs_of
from onnx_ops.rewriting.models import Model
from onnx_ops.rewriting.reading import reader_of
from onnx_ops.rewriting.reading.affine import Array, Unknown
from onnx_ops.rewriting.reading.evaluation import MOST_TERMS, Evaluation, looked_up
from onnx_ops.rewriting.reading.forms import Element, Form, Sample, Sum
from onnx_ops.rewriting.reading.reader import Reader

from .backends import quiet
from .operator_lines import SIZES, Line
from .written import Writer

if TYPE_CHECKING:
    from onnx_ops.rewriting.reading.reader import GraphView

POINTS = 200  # elements of a value that are compared
# Largest differences, in parts of the largest magnitude of a value and of what it is computed from.
TOLERANCES = {
    "float16": 4e-3,
    "float32": 1e-5,
    "float64": 1e-6,
}  # ONNX Runtime rounds constants to float32
# Share of elements that may be another whole number, where what is rounded down has 16 bits.
STEPS = 0.1
EVALUATED = {"linear", "bilinear", "nearest", "zeros", "border", "0", "1"}  # settings of samples
FUNCTIONS = {"trunc": math.trunc, "max": max, "broadcast": max}  # in the names of open sizes


@dataclass(frozen=True)
class Comparison:
    """A model's values that were compared.

    forms  {value: its form}
    roots  the values of which nothing is known but themselves
    left   the values that can't be evaluated
    """

    reader: Reader
    forms: dict[str, Form]
    roots: set[str]
    left: set[str]


def values_of(proto: onnx.ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the tensors that ONNX Runtime computes for all of a model's values, its inputs and
    constants.
    """
    names = [name for node in proto.graph.node for name in node.output if name]
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    del bare.graph.output[:]
    bare.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    options = quiet(graph_optimization_level=ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
    session = onnx_ops.InferenceSession(bare.SerializeToString(), options)
    computed = zip(names, session.run(None, dict(inputs)), strict=True)
    arrays = {name: value for name, value in computed if isinstance(value, np.ndarray)}
    constants = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    return {**constants, **inputs, **arrays}


def sizes_of(graph: "GraphView", values: Mapping[str, Array]) -> dict[str, int]:
    """Return the numbers of the open sizes that a model's values have."""
    sizes: dict[str, int] = {}
    for name, array in values.items():
        for dimension, size in zip(graph.type(name).shape or (), array.shape, strict=False):
            terms = {} if isinstance(dimension, int) else dimension.terms
            for names, factor in terms.items() if len(terms) == 1 else ():
                if len(names) == 1 and factor == 1:
                    sizes[names[0]] = size
    return sizes


def compared(
    proto: onnx.ModelProto,
    inputs: Mapping[str, Array],
    seed: int = 0,
    reader: Reader | None = None,
) -> Comparison:
    """Assert that the forms of a model's values are what ONNX Runtime computes, at random elements
    of each.
    """
    reader = reader or reader_of(next(graphs_of(Model(proto))))
    values = values_of(proto, inputs)
    sizes = sizes_of(reader.graph, values)
    result = Comparison(reader, {}, set(), set())
    rng = np.random.default_rng(seed)
    for name in _computed(proto, values):
        try:
            form = reader.whole(name)
        except Unknown:  # the rank
            result.left.add(name)
            continue
        result.forms[name] = form
        if isinstance(form, Element) and form.root == name:
            result.roots.add(name)
        elif values[name].size == 0 or not _is_evaluated(reader, form, values):
            result.left.add(name)
        else:
            _assert_equal(reader, name, form, values, sizes, rng)
    return result


def _computed(proto: onnx.ModelProto, values: Mapping[str, Array]) -> Iterator[str]:
    for node in proto.graph.node:
        for name in node.output:
            if name in values and values[name].dtype.kind in "fiub":
                yield name


def _is_evaluated(reader: Reader, form: Form, values: Mapping[str, Array]) -> bool:
    """Return whether a form is of numbers, with samples of modes and sums that can be evaluated."""
    for inner in reader.forms.walk(form):
        match inner:
            case Sample(_, _, _, settings) if not EVALUATED.issuperset(settings):
                return False
            case Sum(over, _) if (
                math.prod(v.size for v in over if isinstance(v.size, int)) > MOST_TERMS
            ):
                return False
            case Element(root, _) if root in values and values[root].dtype.kind not in "fiub":
                return False
    return True


def _assert_equal(
    reader: Reader,
    name: str,
    form: Form,
    values: Mapping[str, Array],
    sizes: Mapping[str, int],
    rng: np.random.Generator,
) -> None:
    expected = values[name]
    places = [rng.integers(0, size, POINTS) for size in expected.shape]
    evaluation = Evaluation(
        reader,
        {str(axis): numbers for axis, numbers in enumerate(places)},
        lambda root, index: looked_up(values[root].astype(float), index),
        lambda name: sizes[name] if name in sizes else eval(name, {**FUNCTIONS}, {**sizes}),
        POINTS,
    )
    got = np.broadcast_to(evaluation.value(form), POINTS)
    wanted = expected[tuple(places)].astype(float)
    node = reader.graph.producers[name]
    what = f"{node.op_type} {name}"
    roots = [f.root for f in reader.forms.walk(form) if isinstance(f, Element)]
    arrays = [expected, *(values[root] for root in roots if root in values)]
    floats = [a for a in arrays if a.dtype.kind == "f"]
    tolerance = max((TOLERANCES[a.dtype.name] for a in floats), default=0)
    largest = max((np.abs(a[np.isfinite(a)]).max(initial=1) for a in floats), default=1)
    is_narrow = any(a.dtype == np.float16 for a in floats)
    atol = tolerance * largest if expected.dtype.kind == "f" else 0
    differs = ~np.isclose(got, wanted, 0, atol, equal_nan=True)
    if differs.mean() > (STEPS if is_narrow else 0):
        np.testing.assert_allclose(got, wanted, 0, atol, err_msg=what)


def model_of(given: Line, is_open: bool, dtype: str = "float32") -> onnx.ModelProto:
    """Return the model of a line. Its output is the line's value."""
    w = Writer()
    output = given.add(w)
    n, h, width = SIZES if is_open else SIZES.values()
    image = [n, 6, h, width]
    inputs = {
        "x": (dtype, image),
        "z": (dtype, image),
        "i": ("int64", ["a", 4] if is_open else [3, 4]),
        "k": ("int64", image),
        "q": (dtype, [n, "rows" if is_open else 3, 4, 2]),
    }
    read = {name for node in w.nodes for name in node.input}
    used = {name: value for name, value in inputs.items() if name in read}
    proto = w.model(used, (output, dtype, None), given.opset)
    del proto.graph.value_info[:]
    return proto


def inputs_of(proto: onnx.ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    """Return numbers for the inputs of a line's model."""
    rng = np.random.default_rng(seed)
    image = 2, 6, 4, 5
    arrays = {
        "x": rng.standard_normal(image) * 3,
        "z": rng.standard_normal(image) * 3,
        "i": rng.integers(-2, 2, (3, 4)),
        "k": rng.integers(-4, 4, image),
        "q": rng.uniform(-1.2, 1.2, (2, 3, 4, 2)),
    }
    kinds = {
        v.name: helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type)
        for v in proto.graph.input
    }
    return {name: arrays[name].astype(kind) for name, kind in kinds.items()}
