"""`onnx_ops.check`: an operator of one's own, on every way to run it, against its body in NumPy."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

from .. import dtypes
from ..errors import OpError
from ..functions import as_array
from ..kernels.jit import numba_obstacle
from ..nodes import model_nodes
from ..operators import declaration_of
from ..reference import reference_ops
from ..runtime.execute import compute, signature_of
from ..runtime.session import InferenceSession
from ..schemas import attribute as node_attribute
from ..schemas import register_schemas

TOLERANCES = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5, "float64": 1e-12}  # relative to the largest value
LARGEST = 2**20  # elements of an input that extremes are tried in
OPSET = 18  # of ai.onnx, in models of an operator of another domain: every ONNX Runtime knows it
QUIET = 4  # what ONNX Runtime would log of an error is in the exception, too


def check(
    operator: Any,
    cases: Iterable[Sequence[Any]],
    *,
    tolerances: dict[str, float] | None = None,
    extremes: bool = True,
) -> int:
    """Run an operator on every way there is, for all its element types, and compare with its body.

    operator    what `onnx_ops.operator` has made
    cases       each a tuple of inputs, as for a call, and last, if there are any, a dict of attributes. Inputs of a
                type variable are converted to each of its types in turn
    tolerances  {element type: how far off a float may be, relative to the output's largest value}
    extremes    also try infinities, no number, the largest and the smallest ones in the place of the inputs' own

    The ways are: the function with one thread and two; sessions of both backends, of models with fixed and with open
    sizes; onnx's evaluator; and onnx's inference, for the outputs' types and shapes. What the body or the rule refuses,
    all must refuse, in the same words. Returns how many results were compared. Raises AssertionError.
    """
    function = declaration_of(operator)
    tolerances = TOLERANCES | (tolerances or {})
    register_schemas([function])
    compared = 0
    for case in cases:
        *inputs, attributes = case if case and isinstance(case[-1], dict) else (*case, {})
        for arrays in variations(function, [as_array(each) for each in inputs], extremes):
            compared += compare(function, arrays, attributes, tolerances)
    return compared


def variations(function, arrays, extremes):
    """Yield the inputs in all combinations of element types, and then with extreme values."""
    inputs = function.each_input(len(arrays))
    variables = {i.type: function.types[i.type] for i, a in zip(inputs, arrays, strict=True) if a is not None}
    for names in itertools.product(*variables.values()):
        kinds = {v: dtypes.TABLE[name].numpy for v, name in zip(variables, names, strict=True)}
        typed = [a if a is None else a.astype(kinds[i.type]) for i, a in zip(inputs, arrays, strict=True)]
        yield typed
        for k, (i, array) in enumerate(zip(inputs, typed, strict=True)) if extremes else ():
            if array is not None and array.dtype.kind in "iufV" and 0 < array.size <= LARGEST and not i.values:
                yield [*typed[:k], extreme(array), *typed[k + 1 :]]


def extreme(array):
    """An array of this shape and type with values that are seldom met, among its own."""
    if array.dtype.kind in "iu":
        info = np.iinfo(array.dtype)
        found = [info.min, info.max, 0]
    else:
        import ml_dtypes

        info = ml_dtypes.finfo(array.dtype)
        found = [np.nan, np.inf, -np.inf, info.max, -float(info.max), info.smallest_subnormal, -0.0]
    flat = array.reshape(-1).copy()
    places = np.random.default_rng(0).permutation(flat.size)[: max(flat.size // 2, 1)]
    flat[places] = np.resize(np.array(found, object), places.size).astype(array.dtype)
    return flat.reshape(array.shape)


def compare(function, arrays, attributes, tolerances):
    """Compare all ways for these inputs; returns how many results that were."""
    parameters = function.resolved(attributes)
    signature = signature_of(function, parameters, function.padded(arrays))
    values, kinds = function.attributes_in(parameters.tobytes()), function.kinds(signature)
    expected = outcome(lambda: function.computed(function.padded(arrays), values, kinds))
    compared = 0
    for way, run in ways(function, arrays, attributes, parameters, signature, expected):
        got = outcome(run)
        where = f"{function.title}, {way}, {described(arrays, attributes)}"
        if isinstance(expected, str) or isinstance(got, str):
            assert got == expected, f"{where}: {shown(got)}, but the body: {shown(expected)}"
        else:
            for o, a, b in zip(function.outputs, got, expected, strict=True):
                if problem := difference(a, b, tolerances):
                    raise AssertionError(f"{where}: {o.name} {problem}")
        compared += 1
    return compared


def outcome(run):
    """What a function returns, or the text of the OpError that it raises, without the node's name."""
    with np.errstate(all="ignore"):
        try:
            return run()
        except OpError as error:
            return f"{error.argument} = {error.value}: {error.rule}" if error.argument else error.rule


def shown(found):
    return f"refuses: {found}" if isinstance(found, str) else "computes it"


def described(arrays, attributes):
    kinds = [None if a is None else f"{dtypes.name_of(a)} {list(a.shape)}" for a in arrays]
    return ", ".join([*map(str, kinds), *(f"{name} = {value}" for name, value in attributes.items())])


def ways(function, arrays, attributes, parameters, signature, expected):
    """(name, function that computes the outputs) of each way that there is here."""
    padded = function.padded(arrays)
    for threads in (1, 2):
        yield f"function, threads={threads}", lambda n=threads: compute(function, parameters, padded, n)
    if any(t == "bfloat16" for t in signature.values()):  # of which ONNX Runtime's Python has no arrays
        return
    fixed, opened = (node_model(function, arrays, attributes, signature, is_open) for is_open in (False, True))
    feeds = {f"input_{k}": a for k, a in enumerate(arrays) if a is not None}

    def in_session(model, backend, threads):
        options = ort.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = QUIET, threads
        session = InferenceSession(model.SerializeToString(), options, backend=backend, operators=[function])
        return session.run(None, feeds)

    for name, model in (("fixed", fixed), ("open", opened)):
        yield f"native session, {name} sizes", lambda m=model, n=1 + (model is opened): in_session(m, "native", n)
    if function.is_compiled and numba_obstacle() is None and has_extensions(function):
        yield "extensions session", lambda: in_session(opened, "extensions", 1)
    if not isinstance(expected, str):
        yield "onnx's evaluator", lambda: evaluated(opened, function, feeds)
        yield "onnx's inference", lambda: inferred(fixed, expected)


def has_extensions(function):
    """Whether onnxruntime-extensions is there and knows the operator."""
    try:
        import onnxruntime_extensions  # noqa: F401

        from ..runtime import extensions
    except ImportError:
        return False
    try:
        extensions.declare(function)
    except OpError:
        return False
    return True


def evaluated(model, function, feeds):
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(model, new_ops=reference_ops([function])).run(None, feeds)


def inferred(model, expected):
    """The expected outputs, once what onnx infers of them has been compared."""
    (node,) = model_nodes(model)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output)
    outputs = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph.output
    for value, array in zip(outputs, expected, strict=True):
        kind = value.type.tensor_type
        assert kind.elem_type == dtypes.TABLE[dtypes.name_of(array)].onnx, f"onnx infers another type of {value.name}"
        dims = [
            d.dim_value if d.HasField("dim_value") else n for d, n in zip(kind.shape.dim, array.shape, strict=False)
        ]
        assert not kind.HasField("shape") or dims == list(array.shape), f"onnx infers {dims} for {value.name}"
    return expected


def node_model(function, arrays, attributes, signature, is_open):
    """A model of one such node, with inputs of these shapes or of open ones."""
    names = ["" if a is None else f"input_{k}" for k, a in enumerate(arrays)]
    declared = {a.name: a for a in function.attributes}
    node = helper.make_node(function.name, names, [o.name for o in function.outputs], domain=function.domain)
    node.attribute.extend(node_attribute(declared[name], v) for name, v in attributes.items())
    inputs = [
        helper.make_tensor_value_info(
            name, dtypes.TABLE[dtypes.name_of(a)].onnx, [None] * a.ndim if is_open else a.shape
        )
        for name, a in zip(names, arrays, strict=True)
        if a is not None
    ]
    outputs = [
        helper.make_tensor_value_info(o.name, dtypes.TABLE[signature[o.type]].onnx, None) for o in function.outputs
    ]
    graph = helper.make_graph([node], "one_node", inputs, outputs)
    domains = {"": OPSET, function.domain: function.versions[0]}
    imports = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    newest = helper.make_opsetid("", max(OPSET, domains[""]))
    return helper.make_model(graph, opset_imports=imports, ir_version=helper.find_min_ir_version_for([newest]))


def difference(got, expected, tolerances):
    """What is wrong with an output, or None."""
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return f"is {got.dtype} {list(got.shape)}, but of the body {expected.dtype} {list(expected.shape)}"
    name = dtypes.name_of(expected)
    if name not in tolerances:
        return None if np.array_equal(got, expected) else "differs from the body's"
    got, expected = got.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(expected)
    if not np.array_equal(np.isfinite(got), finite):
        return "is not finite in the same places as the body's"
    allowed = tolerances[name] * abs(expected[finite]).max(initial=0)
    off = abs(got[finite] - expected[finite]).max(initial=0)
    return None if off <= allowed else f"is off by {off:.3g}, more than {allowed:.3g}"
