"""Constants that nodes compute from constants, within what a model may take."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from ..model.schemas import reference_op
from ..model.small_models import model_of
from ..registry import KEYS, OPERATORS
from .gain import PRODUCTS, seconds_of
from .reading.affine import Array
from .reading.reader import attributes_of
from .tensor_types import Type
from .versions import AI_ONNX

OURS = {name for domain, name in KEYS if domain in AI_ONNX}  # types of nodes that this package runs
# Bytes of an input or output of a node that is computed, which takes three times the memory.
LARGEST = 2**25
REFERENCE = 6  # by so much more memory this package's references take, whose arrays are in float64
MOST_BYTES, MOST_SECONDS = 2**27, 0.5  # that all of these may take, by an estimate of the time
SELECTIONS = {"Compress", "NonZero", "Unique"}  # types of nodes that make no more than they read
# Types of nodes whose time and memory sizes of inputs and outputs don't tell.
LONG = {
    "Attention", "AveragePool", "ConvInteger", "DFT", "Det", "GRU", "LRN", "LSTM", "LpPool",
    "MatMulInteger", "MaxPool", "MaxRoiPool", "QLinearConv", "QLinearMatMul", "RNN", "STFT",
}  # fmt: skip


@dataclass
class Account:
    """What all nodes that are computed may still take, by an estimate of the time."""

    bytes_left: float = MOST_BYTES
    seconds_left: float = MOST_SECONDS

    def takes(self, size: float, seconds: float) -> bool:
        """Return whether a node may be computed that needs so many bytes and seconds, and count
        these.
        """
        fits = size <= self.bytes_left and seconds <= self.seconds_left
        if fits:
            self.bytes_left -= size
            self.seconds_left -= seconds
        return fits


def is_small(node: onnx.NodeProto, inputs: Sequence[Type], outputs: Sequence[Type]) -> bool:
    """Return whether all that a node reads and makes is small, as far as types tell.

    What it makes must be known. Some nodes make no more than they read.
    """
    sizes = [
        tensor.dtype.itemsize * tensor.count for tensor in (*inputs, *outputs) if tensor.elements
    ]
    largest = LARGEST // REFERENCE if node.op_type in OURS else LARGEST
    return (
        node.op_type not in LONG
        and (node.op_type in SELECTIONS or all(tensor.count < math.inf for tensor in outputs))
        and not any(largest < size < math.inf for size in sizes)
        # Texts have any length; Col2Im joins those that it reads.
        and (
            node.op_type in OURS
            or onnx.TensorProto.STRING not in [tensor.elements for tensor in outputs]
        )
    )


def computed(
    node: onnx.NodeProto,
    name: str,
    feeds: dict[str, Array],
    outputs: Sequence[Type],
    account: Account,
    opset: int,
    ir_version: int,
) -> Array | None:
    """Return an output of a node; None if it can't be computed, or takes too much."""
    if _may_crash(node, feeds, opset):
        return None
    try:
        if not account.takes(*_cost(node, feeds, outputs)):
            return None
        infos = map(helper.make_empty_tensor_value_info, node.output)
        proto = model_of([node], feeds, infos, {"": opset}, ir_version)
        return (run_reference if node.op_type in OURS else run_onnx_runtime)(proto, feeds, name)
    except Exception:  # ONNX Runtime refuses the inputs, or doesn't have the operator
        return None


def _may_crash(node: onnx.NodeProto, feeds: Mapping[str, Array], opset: int) -> bool:
    """Return whether ONNX Runtime's kernel may end the process."""
    if "" in node.input:
        inputs = onnx.defs.get_schema(node.op_type, opset).inputs
        if inputs[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic:
            return True  # it reads what isn't there
    if node.op_type != "Div":
        return False
    divisor = feeds[node.input[1]]
    return divisor.dtype.kind == "i" and bool(np.any(divisor == -1))  # of the least integer


def _cost(
    node: onnx.NodeProto, feeds: Mapping[str, Array], outputs: Sequence[Type]
) -> tuple[float, float]:
    """Return about how many bytes and seconds a node takes for these constants."""
    counts = [tensor.count for tensor in outputs if tensor.count < math.inf]
    # Elements have 8 bytes at most, but for complex ones.
    size = sum(array.nbytes for array in feeds.values()) + 8 * sum(counts)
    count = max(counts or (array.size for array in feeds.values()))
    products = 0.0
    if node.op_type in PRODUCTS:
        products = PRODUCTS[node.op_type](feeds[node.input[:2][-1]].shape)
    if node.op_type == "RoiAlign":
        count = max(count, _samples(node, count, *(feeds[name] for name in node.input[:2])))
    return size, seconds_of(node, count, products)


def _samples(node: onnx.NodeProto, count: float, x: Array, rois: Array) -> float:
    """Return about how many samples a RoiAlign takes: a stated number for each element that it
    makes, or one for each pixel of a region.
    """
    settings = attributes_of(node)
    ratio = settings.get("sampling_ratio", 0)
    if ratio > 0:
        return count * ratio**2
    sizes = np.abs(rois[:, 2:] - rois[:, :2]) * settings.get("spatial_scale", 1.0) + 1
    return x.shape[1] * float(sizes.prod(-1).sum())


def run_reference(proto: onnx.ModelProto, feeds: dict[str, Array], name: str) -> Array:
    """Return a value of a model that onnx's evaluator computes, with this package's operators."""
    from onnx.reference import ReferenceEvaluator  # which takes long to import

    values: Any = ReferenceEvaluator(proto, new_ops=list(map(reference_op, OPERATORS))).run(
        [name], feeds
    )
    return values[0]


def run_onnx_runtime(proto: onnx.ModelProto, feeds: dict[str, Array], name: str) -> Array:
    """Return a value of a model that ONNX Runtime computes.

    Raises TypeError if it is a sequence.
    """
    import onnxruntime

    from ..model.sessions import BuiltinSession

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = BuiltinSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    [value] = session.run([name], feeds)
    if not isinstance(value, np.ndarray):
        raise TypeError("a sequence")
    return value
