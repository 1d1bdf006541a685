"""The operators as functions on NumPy arrays."""

from __future__ import annotations  # `help` shows them as they stand here

from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any, Generic, Literal, ParamSpec, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..declaration.operator import Operator
from ..detection.deform_conv import ONNX as DEFORM_CONV
from ..detection.deformable_attention import DEFORMABLE_ATTENTION
from ..detection.roi_align import ROI_ALIGN
from ..fold.col2im import COL2IM
from ..fold.im2col import IM2COL
from ..native.execute import call
from ..sampling.grid_sample import ONNX as GRID_SAMPLE

SampleMode: TypeAlias = Literal["bilinear", "nearest", "bicubic", "linear", "cubic"]
PaddingMode: TypeAlias = Literal["zeros", "border", "reflection"]
PoolMode: TypeAlias = Literal["avg", "max"]
TransformationMode: TypeAlias = Literal["half_pixel", "output_half_pixel"]
P = ParamSpec("P")
R = TypeVar("R")


class Function(Generic[P, R]):
    """An operator as a function on arrays, accepted wherever operators are.

    Attributes
    ----------
    declaration : Operator
        What everything else is derived from.
    """

    def __init__(self, function: Callable[P, R], declaration: Operator) -> None:
        update_wrapper(self, function)
        self.function, self.declaration = function, declaration

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __reduce__(self) -> str:
        return self.function.__qualname__  # pickled by name, as functions are

    def __get__(self, *owner: object) -> Function[P, R]:
        return self  # makes it a routine for `help`, which then shows the signature

    @property
    def torch(self) -> Any:
        """Return the operator in PyTorch, as `CustomOperator.torch`."""
        from ..export.torch_operators import torch_operator

        return torch_operator(self.declaration)


def of(declaration: Operator) -> Callable[[Callable[P, R]], Function[P, R]]:
    """Decorator: make a Function from a declaration."""
    return lambda function: Function(function, declaration)


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
    """Add up sliding blocks in an image: ONNX Col2Im, PyTorch's `fold`.

    It supports 1 to 14 image axes.

    Parameters
    ----------
    x : array_like, shape (N, C * prod(block_shape), L)
        The blocks, of any dtype. L is their number.
    image_shape : sequence of int
        Pixels of the image along each axis.
    block_shape : sequence of int
        Pixels of a block along each axis, before dilation.
    dilations : sequence of int, optional
        Distance between a block's pixels along each axis. Default: 1.
    pads : sequence of int, optional
        Pixels added around the image: the beginnings of all axes, then the
        ends. Default: 0.
    strides : sequence of int, optional
        Distance between blocks along each axis. Default: 1.
    threads : int, optional
        Number of threads. Default: the CPUs that this process may use.

    Returns
    -------
    ndarray, shape `(N, C, *image_shape)`
        The image, in the dtype of `x`. Integers wrap around, booleans are
        or'ed, strings are concatenated.

    Raises
    ------
    OpError
        A shape, dtype or parameter breaks a rule.

    See Also
    --------
    im2col : The inverse where blocks don't overlap.

    Notes
    -----
    The result is ::

        y[n, c, p] = sum of x[n, c * K + k, l]  over all (k, l) with
        p_i = l_i * strides_i + k_i * dilations_i - pads_begin_i

    for pixels p, positions k in a block (K of them) and blocks l, along each
    image axis i. 16-bit floats are summed in float32 and rounded once.

    Source: ONNX operator specification, Col2Im-18.

    Examples
    --------
    >>> blocks = np.ones((1, 2 * 2, 4), np.float32)
    >>> onnx_ops.col2im(blocks, image_shape=[3, 3], block_shape=[2, 2])[0, 0]
    array([[1., 2., 1.],
           [2., 4., 2.],
           [1., 2., 1.]], dtype=float32)
    """
    return call(
        COL2IM,
        x,
        image_shape,
        block_shape,
        dilations=dilations,
        pads=pads,
        strides=strides,
        threads=threads,
    )


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
    """Convolve images read at displaced points: ONNX DeformConv, `deform_conv2d`.

    The image has 1, 2 or 3 axes. All arrays have one floating-point dtype.
    Pixels outside of the image are 0, and so is what is read at an offset that
    is NaN or infinite.

    Parameters
    ----------
    x : array_like, shape `(N, C, *image)`
        The images.
    w : array_like, shape `(M, C / group, *kernel)`
        The weights.
    offset : array_like, shape `(N, offset_group * K * axes, *output)`
        Displacement in pixels for each offset group, each of the kernel's K
        positions and each image axis.
    b : array_like, shape (M,), optional
        Bias, added to the output. Default: 0.
    mask : array_like, shape `(N, offset_group * K, *output)`, optional
        Factors of the pixels read. Default: 1.
    dilations : sequence of int, optional
        Distance between the kernel's positions along each axis. Default: 1.
    group : int, default 1
        Number of groups of channels that are convolved separately.
    kernel_shape : sequence of int, optional
        The kernel's shape, which must be that of `w`. Default: that of `w`.
    offset_group : int, default 1
        Number of groups of channels with separate offsets.
    pads : sequence of int, optional
        Zeros added around the image: the beginnings of all axes, then the ends.
        Default: 0.
    strides : sequence of int, optional
        Distance between neighbouring output pixels along each image axis.
        Default: 1.
    threads : int, optional
        Number of threads. Default: the CPUs that this process may use.

    Returns
    -------
    ndarray, shape `(N, M, *output)`
        The convolution, in the dtype of `x`.

    Raises
    ------
    OpError
        A shape, dtype or parameter breaks a rule.

    Notes
    -----
    The result is ::

        y[n, m, o] = b[m] + sum over c, k of  w[m, c, k] * mask[n, d, k, o] * x[n, c, p]
        p_i = o_i * strides_i - pads_begin_i + k_i * dilations_i + offset[n, d, k, i, o]

    for output pixels o, positions k of the kernel, and the offset group d of
    channel c, with x interpolated linearly at p. 16-bit floats are summed in
    float32 and rounded once. Source: ONNX operator specification,
    DeformConv-22.

    Examples
    --------
    A 1 x 1 kernel reads every pixel from its right neighbour: the displacement
    is 0 in y, 1 in x.

    >>> x = np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3)
    >>> w = np.ones((1, 1, 1, 1), np.float32)
    >>> offset = np.stack([np.zeros((1, 2, 3)), np.ones((1, 2, 3))], axis=1).astype(np.float32)
    >>> onnx_ops.deform_conv(x, w, offset)[0, 0]
    array([[1., 2., 0.],
           [4., 5., 0.]], dtype=float32)
    """
    return call(
        DEFORM_CONV, x, w, offset, b, mask, dilations=dilations, group=group,
        kernel_shape=kernel_shape,
        offset_group=offset_group, pads=pads, strides=strides, threads=threads
    )  # fmt: skip


@of(DEFORMABLE_ATTENTION)
def deformable_attention(
    value: ArrayLike,
    spatial_shapes: Sequence[int] | Sequence[Sequence[int]] | NDArray[np.int64],
    sampling_locations: ArrayLike,
    attention_weights: ArrayLike,
    *,
    threads: int | None = None,
) -> NDArray[Any]:
    """Sum weighted samples of images of several sizes: Deformable DETR's attention.

    Images are read as by `onnx_ops.grid_sample` with mode "bilinear"; pixels
    outside of them are 0.

    Parameters
    ----------
    value : array_like, shape (N, S, M, D)
        D channels for each of M heads, at all S pixels of 1 to 8 images, called
        levels. The dtype is floating-point.
    spatial_shapes : sequence of int, shape (L, 2)
        Height and width of each level, also as one flat list.
    sampling_locations : array_like, shape (N, Q, M, L, P, 2)
        P points x, y for each query, head and level. 0 and 1 are the borders of
        the image.
    attention_weights : array_like, shape (N, Q, M, L, P)
        Factors of the samples, in the dtype of `value`.
    threads : int, optional
        Number of threads. Default: the CPUs that this process may use.

    Returns
    -------
    ndarray, shape (N, Q, M * D)
        The sums, in the dtype of `value`.

    Raises
    ------
    OpError
        A shape, dtype or size breaks a rule.

    Notes
    -----
    The result is ::

        y[n, q, m * D + d] = sum over l, p of
            attention_weights[n, q, m, l, p] * (value of level l, head m, channel d at the point p)

    A location that is NaN or infinite adds nothing. 16-bit floats are summed in
    float32 and rounded once. Source: Deformable DETR, arXiv 2010.04159.

    Examples
    --------
    One query reads one point, the centre of an image of 2 x 2 pixels:

    >>> value = np.arange(4, dtype=np.float32).reshape(1, 4, 1, 1)
    >>> locations = np.full((1, 1, 1, 1, 1, 2), 0.5, np.float32)
    >>> weights = np.ones((1, 1, 1, 1, 1), np.float32)
    >>> onnx_ops.deformable_attention(value, [[2, 2]], locations, weights)
    array([[[1.5]]], dtype=float32)
    """
    sizes = np.ravel(spatial_shapes) if len(spatial_shapes) else np.empty(0, np.int64)
    return call(
        DEFORMABLE_ATTENTION, value, sizes, sampling_locations, attention_weights, threads=threads
    )


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
    """Return the sliding blocks of an image as columns: PyTorch's `unfold`.

    It supports 1 to 14 image axes.

    Parameters
    ----------
    x : array_like, shape `(N, C, *image)`
        The images, of any dtype.
    kernel_shape : sequence of int
        Pixels of a block along each axis, before dilation.
    dilations : sequence of int, optional
        Distance between a block's pixels along each axis. Default: 1.
    pads : sequence of int, optional
        Zeros added around the image: the beginnings of all axes, then the ends.
        Strings are padded with the empty one. Default: 0.
    strides : sequence of int, optional
        Distance between blocks along each axis. Default: 1.
    threads : int, optional
        Number of threads. Default: the CPUs that this process may use.

    Returns
    -------
    ndarray, shape (N, C * prod(kernel_shape), L)
        The blocks, in the dtype of `x`. L is their number.

    Raises
    ------
    OpError
        A shape, dtype or parameter breaks a rule.

    See Also
    --------
    col2im : The inverse where blocks don't overlap.

    Notes
    -----
    The result is ::

        y[n, c * K + k, l] = x[n, c, p]  with
        p_i = l_i * strides_i + k_i * dilations_i - pads_begin_i

    for pixels p, positions k in a block (K of them) and blocks l, along each
    image axis i. If no block fits into the padded image, the result is empty.
    Source: PyTorch's ``unfold``, with the attributes of ONNX Col2Im-18.

    Examples
    --------
    >>> x = np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
    >>> onnx_ops.im2col(x, kernel_shape=[2, 2])[0, :, 0]  # the first block
    array([0., 1., 3., 4.], dtype=float32)
    """
    return call(
        IM2COL,
        x,
        kernel_shape=kernel_shape,
        dilations=dilations,
        pads=pads,
        strides=strides,
        threads=threads,
    )


@of(GRID_SAMPLE)
def grid_sample(
    x: ArrayLike,
    grid: ArrayLike,
    *,
    mode: SampleMode = "bilinear",
    padding_mode: PaddingMode = "zeros",
    align_corners: bool = False,
    threads: int | None = None,
) -> NDArray[Any]:
    """Sample images at the points of a grid: ONNX GridSample, ``grid_sample``.

    Parameters
    ----------
    x : array_like, shape (N, C, H, W) or (N, C, D, H, W)
        The images or volumes: of any dtype with mode "nearest", else
        floating-point.
    grid : array_like, shape (N, H_out, W_out, 2) or (N, D_out, H_out, W_out, 3)
        The points x, y (and z), floating-point. -1 and 1 are the borders of the
        image. NaN counts as -1.
    mode : {"bilinear", "nearest", "bicubic"}, default "bilinear"
        Interpolation. "linear" and "cubic" are the same as "bilinear" and
        "bicubic". Volumes support all three.
    padding_mode : {"zeros", "border", "reflection"}, default "zeros"
        What is read outside of the image: 0, the nearest border pixel, or the
        mirrored image.
    align_corners : bool, default False
        If true, -1 and 1 are the centres of the border pixels, else their outer
        edges.
    threads : int, optional
        Number of threads. Default: the CPUs that this process may use.

    Returns
    -------
    ndarray, shape (N, C, H_out, W_out) or (N, C, D_out, H_out, W_out)
        The samples, in the dtype of `x`.

    Raises
    ------
    OpError
        A shape, dtype or parameter breaks a rule.

    Notes
    -----
    A grid value g is the pixel ``(g + 1) / 2 * (size - 1)`` if `align_corners`
    is true, else ``((g + 1) * size - 1) / 2``, computed in float32, in float64
    for a float64 grid. 16-bit images are summed in float32 and rounded once.
    Source: ONNX operator specification, GridSample-22.

    Examples
    --------
    >>> x = np.array([[[[0, 1], [2, 3]]]], np.float32)
    >>> grid = np.array([[[[-0.5, -0.5], [0, 0], [0.5, 0.5]]]], np.float32)
    >>> onnx_ops.grid_sample(x, grid)
    array([[[[0. , 1.5, 3. ]]]], dtype=float32)
    """
    return call(
        GRID_SAMPLE,
        x,
        grid,
        mode=mode,
        padding_mode=padding_mode,
        align_corners=align_corners,
        threads=threads,
    )


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
    mode: PoolMode = "avg",
    coordinate_transformation_mode: TransformationMode = "half_pixel",
    threads: int | None = None,
) -> NDArray[Any]:
    """Read regions of images in bins: ONNX RoiAlign, torchvision's ``roi_align``.

    Parameters
    ----------
    x : array_like, shape (N, C, H, W)
        The images or feature maps, floating-point.
    rois : array_like, shape (R, 4)
        The regions x1, y1, x2, y2, in pixels divided by `spatial_scale`. The
        dtype is that of `x`.
    batch_indices : sequence of int, shape (R,)
        Index in the batch of each region's image.
    output_height, output_width : int, default 1
        Number of bins along each axis.
    sampling_ratio : int, default 0
        Samples of a bin along each axis. 0: as many as it has pixels.
    spatial_scale : float, default 1.0
        Factor of `rois`, such as 1 / 16 for features of that stride.
    mode : {"avg", "max"}, default "avg"
        A bin's value: the mean of its samples, or the largest weighted pixel.
    coordinate_transformation_mode : {"half_pixel", "output_half_pixel"}, default "half_pixel"
        "output_half_pixel" doesn't shift regions by half a pixel, and makes
        them at least one pixel large.
    threads : int, optional
        Number of threads. Default: the CPUs that this process may use.

    Returns
    -------
    ndarray, shape (R, C, output_height, output_width)
        The bins, in the dtype of `x`.

    Raises
    ------
    OpError
        A shape, dtype or parameter breaks a rule.

    Notes
    -----
    A region that is NaN or infinite gives 0. Places are computed in float32, in
    float64 for float64. 16-bit floats are summed in float32 and rounded once.
    Source: ONNX operator specification, RoiAlign-22.

    Examples
    --------
    >>> x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    >>> whole = np.array([[0, 0, 4, 4]], np.float32)
    >>> onnx_ops.roi_align(x, whole, [0], output_height=2, output_width=2)[0, 0]
    array([[ 2.5,  4.5],
           [10.5, 12.5]], dtype=float32)
    """
    return call(
        ROI_ALIGN, x, rois, batch_indices,
        coordinate_transformation_mode=coordinate_transformation_mode, mode=mode,
        output_height=output_height, output_width=output_width, sampling_ratio=sampling_ratio,
        spatial_scale=spatial_scale, threads=threads
    )  # fmt: skip
