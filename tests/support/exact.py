"""What a model computes in float64, and what roundings change of it: an oracle for `optimize`.

A model's float types become float64. onnx's evaluator runs it, with the operators' references in
NumPy: neither `optimize` nor compiled code takes part. The inputs are the model's own.

    error[p]   = |result[p] - exact[p]|
    nodes[p]   = the larger of the unfused model's error and of what changes if each operand of
                 each node that computes is off by one unit in the last place, with random signs,
                 in several evaluations
    error[p]  <= FACTORS[operator] * nodes[p] + one unit in the last place of the largest result

An element where nodes[p] is large is left out: it lies as close to a jump (Floor, Round, a
comparison, an edge between pixels with mode nearest) or to a division by zero as roundings reach.
They are counted, and must be few.
"""

import functools
from dataclasses import dataclass
from unittest import mock

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpFunction, OpRun
from onnx.reference.ops import op_loop, op_slice

import onnx_ops
from onnx_ops.model.nodes import inlined

# {operator: by what factor its error may exceed that of the nodes that it replaces}. 0: bits are
# the same.
FACTORS = {
    "Im2Col": 0, "Constant": 1, "ComputedGridSample": 3, "Im2ColProduct": 1,
    "MultiScaleDeformableAttention": 1, "GridSample": 3, "DeformConv": 3,
}  # fmt: skip
UNITS = {  # {type of ONNX: one unit in the last place of 1}
    TensorProto.DOUBLE: 2.0**-52,
    TensorProto.FLOAT: 2.0**-23,
    TensorProto.FLOAT16: 2.0**-10,
    TensorProto.BFLOAT16: 2.0**-7,
}
TRIES = 8, 64  # evaluations with roundings; more of them only if these don't explain an error
# An element is left out from this change on: in units of the largest result, or as a part of it.
JUMP = 2.0**12
LARGEST_JUMP = 0.1
# Nodes that round nothing, or that have floats only for sizes.
EXACT = {
    "Cast", "Concat", "Constant", "ConstantOfShape", "Expand", "Flatten", "Gather",
    "GatherElements", "GatherND",
    "Identity", "If", "Loop", "Pad", "Range", "Reshape", "Resize", "Scan", "ScatterElements",
    "ScatterND", "SequenceAt",
    "Shape", "Slice", "Split", "SplitToSequence", "Squeeze", "Tile", "Transpose", "Unsqueeze",
}  # fmt: skip
REDUCTIONS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


class AffineGrid(OpRun):
    """AffineGrid as ONNX Runtime computes it: a single pixel lies at 1, if corners are aligned.
    onnx divides by 0.
    """

    op_domain = ""

    def _run(self, theta, size, align_corners=0):
        crops = []
        for count in size[2:].tolist():
            k = np.arange(count, dtype=np.float64)
            corners = np.linspace(-1, 1, count) if count > 1 else np.ones(count)
            crops.append(corners if align_corners else (2 * k + 1) / max(count, 1) - 1)
        points = np.stack(
            [*np.meshgrid(*crops, indexing="ij")[::-1], np.ones(size[2:].tolist())], -1
        )
        return (np.einsum("...j,nij->n...i", points, theta).astype(theta.dtype),)


class GatherElements(OpRun):
    """GatherElements as specified. onnx's takes at most 64 indices along the axis."""

    op_domain = ""

    def _run(self, data, indices, axis=0):
        return (
            np.take_along_axis(
                data[tuple(map(slice, _but(indices.shape, data.shape, axis)))], indices, axis
            ),
        )


class ScatterElements(OpRun):
    """ScatterElements as specified.

    Some versions of onnx have at most four axes, or don't know "mul".
    """

    op_domain = ""

    def _run(self, data, indices, updates, axis=0, reduction="none"):
        result, indices_of_writes = data.copy(), [*np.indices(indices.shape)]
        indices_of_writes[axis] = indices
        if reduction == "none":
            result[tuple(indices_of_writes)] = updates
        else:
            REDUCTIONS[reduction].at(result, tuple(indices_of_writes), updates)
        return (result,)


class Slice(op_slice.SliceCommon):
    """Slice as specified: a step back starts at the first element or after it. onnx's returns no
    elements there.
    """

    op_domain = ""

    def _run(self, data, starts=None, ends=None, axes=None, steps=None):
        if steps is not None:
            sizes = np.array(data.shape)[range(len(steps)) if axes is None else axes]
            starts = np.where(steps < 0, np.maximum(starts, -sizes), starts)
        return super()._run(data, starts, ends, axes, steps)


class Loop(op_loop.Loop):
    """Loop as specified. onnx's needs a condition, and adds no axis to what it collects of rank 2
    and above.
    """

    op_domain = ""

    def _run(self, count, condition, *carried, context, attributes=None, **more):
        collected, turn, goes_on = [[] for _ in range(self.K)], 0, condition is None or condition
        while goes_on and (count is None or turn < count):
            inputs = dict(
                zip(
                    self.body.input_names,
                    (np.array(turn), np.array(goes_on), *carried),
                    strict=True,
                )
            )
            goes_on, *outputs = self._run_body(context | inputs, attributes=attributes)
            carried, scan_outputs = outputs[: self.N], outputs[self.N :]
            for values, scan_output in zip(collected, scan_outputs, strict=True):
                values.append(scan_output)
            turn += 1
        return (*carried, *map(np.stack, collected))


def _but(sizes, other_sizes, axis):
    """Return sizes with that of another shape along an axis."""
    return [other_sizes[k] if k == axis % len(sizes) else size for k, size in enumerate(sizes)]


def widened(proto):
    """Return a model without functions with float64 in place of its float types.

    What needs float32 keeps it.
    """
    wide = onnx.ModelProto.FromString(proto.SerializeToString())
    owners = [wide.graph]
    for owner in owners:
        del owner.value_info[:]
        for value in (*owner.initializer, *owner.input, *owner.output):
            _widen(value)
        nodes = []
        for node in owner.node:
            nodes += _widened_node(node, wide)
            owners += [g for a in node.attribute for g in ([a.g] if a.HasField("g") else a.graphs)]
        if len(nodes) > len(owner.node):
            copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
            del owner.node[:]
            owner.node.extend(copies)
    return wide


def _widen(value):
    """Widen a tensor, or what is stated of a value."""
    if isinstance(value, TensorProto):
        if value.data_type in UNITS and value.data_type != TensorProto.DOUBLE:
            array = numpy_helper.to_array(value).astype(np.float64)
            value.CopyFrom(numpy_helper.from_array(array, value.name))
        return
    element_type = value.type
    while (name_of_type := element_type.WhichOneof("value")) in ("sequence_type", "optional_type"):
        element_type = getattr(element_type, name_of_type).elem_type
    if element_type.tensor_type.elem_type in UNITS:
        element_type.tensor_type.elem_type = TensorProto.DOUBLE


def _widened_node(node, proto):
    """Widen a node's attributes; returns it, between Casts where it needs float32."""
    if node.op_type == "ConstantOfShape" and not node.attribute:
        node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.zeros(1))))
    for a in node.attribute:
        if a.name in ("value_float", "value_floats") and node.op_type == "Constant":
            array = np.asarray(helper.get_attribute_value(a), np.float64)
            a.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(array)))
        elif a.HasField("t"):
            _widen(a.t)
        elif a.name in ("to", "dtype") and a.i in UNITS:
            a.i = TensorProto.DOUBLE
    version = next((i.version for i in proto.opset_import if i.domain == node.domain), 1)
    if node.domain or not onnx.defs.has(node.op_type, version, ""):
        return [node]
    definition, before, after = onnx.defs.get_schema(node.op_type, version, ""), [], []
    allowed = {c.type_param_str: c.allowed_type_strs for c in definition.type_constraints}
    needs_narrow = lambda formal: (
        "tensor(float)" in (type_strings := allowed.get(formal.type_str, [formal.type_str]))
        and "tensor(double)" not in type_strings
    )
    for names, formals, casts in (
        (node.input, definition.inputs, before),
        (node.output, definition.outputs, after),
    ):
        for k, (name, formal) in enumerate(zip(names, formals, strict=False)):
            if name and needs_narrow(formal):
                names[k] = f"{name}_narrow_{node.output[0]}_{k}"
                ends, to = ([name], [names[k]]), TensorProto.FLOAT
                ends, to = (ends, to) if casts is before else (ends[::-1], TensorProto.DOUBLE)
                casts.append(helper.make_node("Cast", *ends, to=to))
    return [*before, node, *after]


def unit_of(proto):
    """Return one unit in the last place of 1, in the least precise float type of a model's
    values.
    """
    element_types, owners = {TensorProto.DOUBLE}, [proto.graph]
    for owner in owners:
        element_types |= {t.data_type for t in owner.initializer}
        element_types |= {
            value.type.tensor_type.elem_type for value in (*owner.input, *owner.output)
        }
        for node in owner.node:
            element_types |= {a.i for a in node.attribute if a.name == "to"}
            element_types |= {a.t.data_type for a in node.attribute if a.HasField("t")}
            element_types |= {
                TensorProto.FLOAT for a in node.attribute if a.name.startswith("value_float")
            }
            owners += [g for a in node.attribute for g in ([a.g] if a.HasField("g") else a.graphs)]
    return max(UNITS[element_type] for element_type in element_types if element_type in UNITS)


class Evaluator(ReferenceEvaluator):
    """onnx's evaluator with this package's references. It makes those of subgraphs itself.

    unit, rng  if there are any, operands are off by such a unit in the last place
    """

    unit, rng = 0.0, None

    def __init__(self, proto, new_ops=None, **more):
        super().__init__(
            proto,
            new_ops=[
                AffineGrid,
                GatherElements,
                Loop,
                ScatterElements,
                Slice,
                *onnx_ops.reference_ops(),
            ],
            **more,
        )
        for node in self.rt_nodes_:
            if node.onnx_node.op_type not in EXACT and not isinstance(node, OpFunction):
                node.run = functools.partial(self.run_rounded, node.run, node.onnx_node.op_type)

    def run_rounded(self, run, op_type, *operands, **more):
        if Evaluator.rng is not None:
            operands = [
                _off(a, Evaluator.unit, Evaluator.rng, op_type, k) for k, a in enumerate(operands)
            ]
        return run(*operands, **more)


class Oracle:
    """What a model computes of its inputs exactly, and with roundings.

    Raises what onnx's evaluator raises.
    """

    def __init__(self, proto, feeds):
        # The evaluator has no default attributes of functions.
        flat = inlined(proto) if proto.functions else proto
        self.unit, wide = unit_of(flat), widened(flat)
        self.feeds = {n: a.astype(np.float64) if _is_float(a) else a for n, a in feeds.items()}
        self.evaluator = Evaluator(wide)
        self.exact, self.drawn = self.run(), []

    def run(self):
        with np.errstate(all="ignore"):
            return self.evaluator.run(None, self.feeds)

    def rounded(self, count):
        """Return the results of so many evaluations with roundings."""
        for seed in range(len(self.drawn), count):
            with mock.patch.multiple(Evaluator, unit=self.unit, rng=np.random.default_rng(seed)):
                self.drawn.append(self.run())
        return self.drawn[:count]

    def judge(self, plain, fused, factor):
        """Return the Verdict on each output. plain, fused: the results of a model and of the
        optimized one.
        """
        verdicts = []
        for k, results in enumerate(zip(plain, fused, strict=True)):
            for tries in TRIES:
                verdict = self._judged(k, tries, factor, *results)
                if verdict.holds:
                    break
            verdicts.append(verdict)
        return verdicts

    def _judged(self, k, tries, factor, plain, fused):
        exact, drawn = self.exact[k], [results[k] for results in self.rounded(tries)]
        if not _is_float(fused) or exact.size == 0:
            return Verdict(0.0 if np.array_equal(plain, fused) else np.inf, 0.0, factor)
        scale = np.abs(exact[np.isfinite(exact)]).max(initial=0)
        nodes = np.max([_distance(result, exact) for result in (plain, *drawn)], 0)
        kept = nodes <= min(JUMP * self.unit, LARGEST_JUMP) * scale
        excess = _distance(fused, exact)[kept] - self.unit * scale
        ratio = np.max(excess / np.maximum(nodes[kept], 1e-300), initial=0)
        return Verdict(float(ratio), float(1 - kept.mean()), factor)


def _distance(array, expected):
    """Return the absolute differences: 0 where both are NaN or the same infinity, infinite where
    one alone is.
    """
    computed, expected = np.asarray(array, np.float64), np.asarray(expected, np.float64)
    with np.errstate(all="ignore"):
        difference = np.nan_to_num(np.abs(computed - expected), nan=np.inf)
    return np.where(
        (computed == expected) | (np.isnan(computed) & np.isnan(expected)), 0, difference
    )


@dataclass(frozen=True)
class Verdict:
    """ratio: the largest error, in multiples of the nodes'; left_out: the share of elements that
    weren't compared.
    """

    ratio: float
    left_out: float
    factor: float

    @property
    def holds(self):
        return self.ratio <= self.factor


def _is_float(array):
    return np.asarray(array).dtype.name in ("float16", "bfloat16", "float32", "float64")


def _off(array, unit, rng, op_type, position):
    """Return an operand of a node with each element off by one unit in the last place."""
    if not _is_float(array) or (op_type, position) == ("Pow", 1):  # a power of a negative number
        return array
    array = np.asarray(array)
    # A grid's places become pixels: those near the middle are rounded as those at the edge.
    size = np.maximum(np.abs(array), 1) if (op_type, position) == ("GridSample", 1) else array
    # A zero divisor may have the other sign.
    least = 1e-40 if op_type in ("Div", "Reciprocal") else 0
    signs = rng.integers(0, 2, array.shape) * 2.0 - 1
    return array + signs * (unit * size + least)


LEFT_OUT = 0.02  # the share of elements that may be left out


def assert_as_near(proto, feeds, plain, fused, operators, left_out=LEFT_OUT):
    """Assert that a model with other operators gives results that are as near to the exact ones as
    FACTORS says.

    Return the largest share of elements that were left out of an output.

    plain, fused  the results of the model and of the one with these operators
    """
    for plain_output, fused_output in zip(plain, fused, strict=True):
        assert (fused_output.shape, fused_output.dtype) == (plain_output.shape, plain_output.dtype)
    factor = max((FACTORS[operator] for operator in operators), default=0)
    if factor == 0:
        for plain_output, fused_output in zip(plain, fused, strict=True):
            np.testing.assert_array_equal(fused_output, plain_output)
        return 0.0
    verdicts = Oracle(proto, feeds).judge(plain, fused, factor)
    for verdict in verdicts:
        assert verdict.holds, verdict
        assert verdict.left_out <= left_out, verdict
    return max(verdict.left_out for verdict in verdicts)
