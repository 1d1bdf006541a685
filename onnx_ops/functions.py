"""The operators as functions on NumPy arrays."""

from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import errors_of
from .operators.col2im import COL2IM
from .operators.deform_conv import ONNX as DEFORM_CONV
from .operators.deformable_attention import DEFORMABLE_ATTENTION
from .operators.grid_sample import ONNX as GRID_SAMPLE
from .operators.im2col import IM2COL
from .operators.roi_align import ROI_ALIGN
from .runtime.execute import compute
from .runtime.threads import check_count

if TYPE_CHECKING:
    from .declaration import Operator

P = ParamSpec("P")
R = TypeVar("R")


class Function(Generic[P, R]):
    """An operator as a function on arrays, which can be given wherever operators can.

    declaration  the Operator (declaration.py)
    """

    def __init__(self, function: Callable[P, R], declaration: "Operator") -> None:
        self.__qualname__ = function.__qualname__
        update_wrapper(self, function)
        self.function, self.declaration = function, declaration

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __reduce__(self) -> str:
        return self.__qualname__  # pickled by name, as functions are

    @property
    def torch(self) -> Any:
        """The operator in PyTorch, as `OwnOperator.torch`."""
        from .torch_operators import torch_operator

        return torch_operator(self.declaration)


def of(declaration: "Operator") -> Callable[[Callable[P, R]], Function[P, R]]:
    """Decorator: make a Function of a declaration."""
    return lambda function: Function(function, declaration)


def call(operator: "Operator", /, *inputs: Any, threads: int | None = None, **attributes: Any) -> Any:
    """Run `operator` on anything that NumPy takes for an array. Attributes that are None take their defaults.

    Returns the output, or a tuple of several.
    """
    outputs = outputs_of(operator, [as_array(a) for a in inputs], attributes, threads)
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def outputs_of(
    operator: "Operator", arrays: list[NDArray[Any] | None], attributes: dict[str, Any], threads: int | None
) -> list[NDArray[Any]]:
    """Return the outputs for inputs that are arrays as `as_array` returns them."""
    check_count("threads", threads, operator.title)
    with errors_of(operator):
        values = operator.values(attributes)
    return compute(operator, values, arrays, threads)


def output(operator: "Operator", /, *inputs: Any, **attributes: Any) -> NDArray[Any]:
    """Return the output of an operator that has one, see `call`."""
    return np.asarray(call(operator, *inputs, **attributes))


def as_array(value: ArrayLike | None) -> NDArray[Any] | None:
    """Return a value as a contiguous NumPy array in native byte order, as kernels need it; None for an absent input."""
    array = None if value is None else np.asarray(value)
    return array if array is None else np.asarray(array, array.dtype.newbyteorder("="), order="C")


@of(COL2IM)
def col2im(
    x: ArrayLike,
    image_shape: Sequence[int] | NDArray[np.int64],
    block_shape: Sequence[int] | NDArray[np.int64],
    *,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    threads: int | None = None,
) -> NDArray[Any]:
    """Add up sliding blocks in an image: ONNX Col2Im, PyTorch's `fold`, for any number of axes.

    x            [N, C * prod(block_shape), L], L the number of blocks
    image_shape  pixels per image axis
    block_shape  pixels per block axis, before dilation
    dilations    distance between a block's pixels per axis, default 1
    pads         pixels added to the image, all begins, then all ends, default 0
    strides      distance between blocks per axis, default 1
    threads      default: the CPUs that this process may use

    Returns [N, C, *image_shape] in x's dtype. Raises OpError. Integers wrap around, booleans are or'ed, strings
    concatenated.
    """
    attributes = {"dilations": dilations, "pads": pads, "strides": strides}
    return output(COL2IM, x, image_shape, block_shape, threads=threads, **attributes)


@of(DEFORM_CONV)
def deform_conv(
    x: ArrayLike,
    w: ArrayLike,
    offset: ArrayLike,
    b: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    offset_group: int = 1,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    threads: int | None = None,
) -> NDArray[Any]:
    """Convolve an image that is read at displaced places: ONNX DeformConv, torchvision's `deform_conv2d`.

    x             [N, C, *image], with 1, 2 or 3 image axes
    w             [M, C / group, *kernel]
    offset        [N, offset_group * K * axes, *output]: for each group, each of the kernel's K positions and each image
                  axis the displacement in pixels
    b             [M], added to the output, default 0
    mask          [N, offset_group * K, *output], by which what is read is multiplied, default 1
    dilations     distance between the kernel's positions per axis, default 1
    group         the number of groups of channels that are convolved separately
    kernel_shape  default: that of w, the only one that is allowed
    offset_group  the number of groups of channels that have offsets of their own
    pads          pixels added to the image, which are 0, all begins, then all ends, default none
    strides       distance between the places of neighbouring output pixels per axis, default 1
    threads       default: the CPUs that this process may use

    Returns [N, M, *output] in x's dtype, which all inputs have. Raises OpError. Pixels outside of the image are 0; so
    is what is read at an offset that is NaN or infinite.
    """
    attributes = {
        "dilations": dilations, "group": group, "kernel_shape": kernel_shape, "offset_group": offset_group,
        "pads": pads, "strides": strides,
    }  # fmt: skip
    return output(DEFORM_CONV, x, w, offset, b, mask, threads=threads, **attributes)


@of(DEFORMABLE_ATTENTION)
def deformable_attention(
    value: ArrayLike,
    spatial_shapes: Sequence[int] | Sequence[Sequence[int]] | NDArray[np.int64],
    sampling_locations: ArrayLike,
    attention_weights: ArrayLike,
    *,
    threads: int | None = None,
) -> NDArray[Any]:
    """Return weighted sums of samples from images of several sizes: Deformable DETR's attention.

    value               [N, S, M, D]: D channels for each of M heads, at all S pixels of 1 to 8 images, called levels
    spatial_shapes      the levels' heights and widths, [L, 2] or one after the other
    sampling_locations  [N, Q, M, L, P, 2]: for each query, head and level P points x, y; 0 and 1 are the borders of the
                        image
    attention_weights   [N, Q, M, L, P]
    threads             default: the CPUs that this process may use

    Returns [N, Q, M * D] in value's dtype, which attention_weights have, too. Raises OpError. Images are read as by
    grid_sample with mode bilinear; outside of them nothing is read.
    """
    sizes = np.ravel(spatial_shapes) if len(spatial_shapes) else np.empty(0, np.int64)
    return output(DEFORMABLE_ATTENTION, value, sizes, sampling_locations, attention_weights, threads=threads)


@of(IM2COL)
def im2col(
    x: ArrayLike,
    kernel_shape: Sequence[int],
    *,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    threads: int | None = None,
) -> NDArray[Any]:
    """Return the sliding blocks of an image as columns: PyTorch's `unfold`, for any number of axes.

    x             [N, C, *image]
    kernel_shape  pixels per block axis, before dilation
    dilations     distance between a block's pixels per axis, default 1
    pads          pixels added to the image, which are 0, all begins, then all ends, default none
    strides       distance between blocks per axis, default 1
    threads       default: the CPUs that this process may use

    Returns [N, C * prod(kernel_shape), L] in x's dtype, L the number of blocks. Raises OpError. Strings are
    padded with the empty one.
    """
    attributes = {"kernel_shape": kernel_shape, "dilations": dilations, "pads": pads, "strides": strides}
    return output(IM2COL, x, threads=threads, **attributes)


@of(GRID_SAMPLE)
def grid_sample(
    x: ArrayLike,
    grid: ArrayLike,
    *,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
    threads: int | None = None,
) -> NDArray[Any]:
    """Sample an image at the coordinates in a grid: ONNX GridSample, PyTorch's `grid_sample`.

    x              [N, C, H, W] or [N, C, D, H, W]
    grid           [N, H_out, W_out, 2] or [N, D_out, H_out, W_out, 3]: x, y (and z); -1 and 1 are the borders of the
                   image
    mode           "nearest", "bilinear" or "bicubic", also called "linear" and "cubic"
    padding_mode   what lies outside: "zeros", "border" or "reflection"
    align_corners  whether -1 and 1 are the centres of the border pixels, or else their outer edges
    threads        default: the CPUs that this process may use

    Returns [N, C, H_out, W_out] or [N, C, D_out, H_out, W_out] in x's dtype. Raises OpError. Other dtypes than floats
    are taken with mode nearest only.
    """
    attributes = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    return output(GRID_SAMPLE, x, grid, threads=threads, **attributes)


@of(ROI_ALIGN)
def roi_align(
    x: ArrayLike,
    rois: ArrayLike,
    batch_indices: Sequence[int] | NDArray[np.int64],
    *,
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    mode: str = "avg",
    coordinate_transformation_mode: str = "half_pixel",
    threads: int | None = None,
) -> NDArray[Any]:
    """Read regions of images, each divided into bins: ONNX RoiAlign, torchvision's `roi_align`.

    x                               [N, C, H, W]
    rois                            [R, 4]: x and y of a region's begin, then of its end, in pixels / spatial_scale
    batch_indices                   [R]: the position of each region's image in the batch
    output_height, output_width     the number of bins along each axis
    sampling_ratio                  samples of a bin along each axis, or 0 for as many as it has pixels
    spatial_scale                   by which rois are multiplied
    mode                            "avg", or "max": the largest weighted pixel, see docs/roi_align.md
    coordinate_transformation_mode  "half_pixel", or "output_half_pixel": regions are not shifted by half a pixel, and
                                    are at least one pixel large
    threads                         default: the CPUs that this process may use

    Returns [R, C, output_height, output_width] in x's dtype, which rois have, too. Raises OpError.
    """
    attributes = {
        "coordinate_transformation_mode": coordinate_transformation_mode, "mode": mode, "output_height": output_height,
        "output_width": output_width, "sampling_ratio": sampling_ratio, "spatial_scale": spatial_scale,
    }  # fmt: skip
    return output(ROI_ALIGN, x, rois, batch_indices, threads=threads, **attributes)
