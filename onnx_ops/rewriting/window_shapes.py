"""Rules for the shapes of convolutions and pools, see shape_rules.py.

ONNX Runtime refuses images of size 0, and those that make a convolution's output empty.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from onnx import TensorProto

from .inference import Operation
from .sizes import Dimension, at_least_zero, truncated
from .tensor_types import Inferred, Sizes, Type

if TYPE_CHECKING:
    from typing import TypeVar

    S = TypeVar("S", bound=Dimension | None)  # of an image
    K = TypeVar("K", int, Dimension)  # of a kernel


def _is_same(op: Operation) -> bool:
    return op.get("auto_pad", b"").startswith(b"SAME")


def _image_windows(
    op: Operation, image: "Sequence[S]", kernel: "Sequence[K]"
) -> "Iterator[tuple[S, int, K, K, int]]":
    """Yield (size, begin, end, extent, stride) along each axis of an image: its pads, and what a
    window spans.
    """
    axes = len(image)
    strides, dilations = (op.get(name) or [1] * axes for name in ("strides", "dilations"))
    extents = [dilation * (k - 1) + 1 for k, dilation in zip(kernel, dilations, strict=True)]
    pads = op.get("pads") or [0] * 2 * axes
    if op.get("auto_pad", b"NOTSET") != b"NOTSET":
        pads = [0] * axes + [extent - 1 if _is_same(op) else 0 for extent in extents]
    return zip(image, pads[:axes], pads[axes:], extents, strides, strict=True)


def channels_second(rule: "Callable[..., Inferred]") -> "Callable[..., Inferred]":
    """Make a rule of one for values whose second axis is that of channels, which may be the last
    one here.
    """

    def turned(op: Operation, x: Type, *rest: Type | None) -> Inferred:
        if not op.get("channels_last") and not op.node.op_type.startswith("Nhwc"):
            return rule(op, x, *rest)
        n, *image, channels = x.sizes
        inferred = rule(op, Type(x.elements, (n, channels, *image)), *rest)
        return Inferred(inferred.elements, (n, *inferred.sizes[2:], inferred.sizes[1]))

    return turned


def infer_conv(op: Operation, x: Type, *rest: Type) -> Inferred:
    is_quantized = op.node.op_type == "QLinearConv"
    elements = x.elements
    weights = rest[2 if is_quantized else 0].sizes
    if is_quantized or op.node.op_type == "ConvInteger":
        elements = rest[6].elements if is_quantized else TensorProto.INT32
    n, _, *image = x.shape or (None,) * len(weights)
    kernel = op.get("kernel_shape") or weights[2:]
    blocks = [
        None if size is None else (size + begin + end - extent) // stride + 1
        for size, begin, end, extent, stride in _image_windows(op, image, kernel)
    ]
    return Inferred(elements, (n, weights[0], *blocks))


def infer_pool(op: Operation, x: Type, *rest: Type | None) -> Inferred:
    """A pool rounds to zero, so that an image smaller than the kernel may give a window.

    Rounded up, onnx and ONNX Runtime 1.20 count windows that begin after the image, which newer
    ones leave out: such sizes are not known. With SAME_UPPER and SAME_LOWER onnx takes account of
    dilations, and ONNX Runtime doesn't.
    """
    n, channels, *image = x.sizes
    pooled: list[Dimension | None] = []
    for size, begin, end, extent, stride in _image_windows(
        op, image, op.attributes["kernel_shape"]
    ):
        if op.get("ceil_mode") and not _is_same(op):
            pooled.append(
                None if end + stride > extent else (size + begin + end - extent - 1) // stride + 2
            )
        elif begin + end + 1 >= extent:
            pooled.append((size + begin + end - extent) // stride + 1)
        else:
            pooled.append(truncated(size + begin + end - extent, stride) + 1)
    is_uncertain = _is_same(op) and any(d != 1 for d in op.get("dilations", ()))
    return Inferred(x.elements, (n, channels, *([None] * len(image) if is_uncertain else pooled)))


def infer_global_pool(op: Operation, x: Type, *rest: Type | None) -> Inferred:
    return Inferred(x.elements, x.shape and (*x.shape[:2], *[1] * (len(x.shape) - 2)))


def infer_conv_transpose(op: Operation, x: Type, weights: Type, *rest: Type | None) -> Sizes:
    """With SAME_UPPER and SAME_LOWER onnx adds the output's padding, which ONNX Runtime makes up
    for.

    Of an output_shape it takes the first axes to be others than those of the image.
    """
    n, _, *image = x.sizes
    added = op.get("output_padding") or [0] * len(image)
    stated = op.get("output_shape")
    if stated is None:
        stated = []
        windows = _image_windows(op, image, op.get("kernel_shape") or weights.sizes[2:])
        for output_padding, (size, begin, end, extent, stride) in zip(added, windows, strict=True):
            pads = at_least_zero(output_padding + extent - stride) if _is_same(op) else begin + end
            stated.append(stride * (size - 1) + output_padding + extent - pads)
    return n, weights.sizes[1] * op.get("group", 1), *stated[-len(image) :]
