"""Tables of models that `optimize` rewrites, and of such that it leaves alone."""

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto

from .backends import NEWEST_OPSET
from .written import Writer, windows

UNFOLDS = {
    "two axes": {},
    "one block along an axis": {
        "image": (4, 6), "kernel": (3, 3), "pads": (0,) * 4, "dilations": (1, 1),
        "strides": (2, 2)},
    "one block along one of three axes": {
        "image": (5, 4, 4), "kernel": (2, 2, 3), "pads": (0,) * 6, "dilations": (1,) * 3,
        "strides": (2, 3, 1)},
    "no overlap": {"image": (8, 6), "kernel": (2, 2), "pads": (0,) * 4, "dilations": (1, 1),
        "strides": (2, 2)},
    "a row of pixels": {"kernel": (1, 3), "pads": (0, 1, 0, 1), "dilations": (1, 1),
        "strides": (3, 1)},
    "one axis": {"image": (19,), "kernel": (4,), "pads": (2, 1), "dilations": (2,),
        "strides": (3,)},
    "three axes": {
        "image": (5, 6, 4), "kernel": (2, 3, 2), "pads": (1, 0, 0, 0, 1, 1), "dilations": (1, 2, 1),
        "strides": (2, 1, 1),
    },
    "float16": {"dtype": "float16"},
    "float64": {"dtype": "float64"},
    "int32": {"dtype": "int32"},
    "uint8": {"dtype": "uint8"},
    "opset 16": {"opset": 16},
    "newest opset": {"opset": NEWEST_OPSET},
    "shape copied": {"target": [0, -1, 72]},
    "padded by a named 0": {"pad_value": 0},
    "padded along some axes": {"all_pads": [1, 0, 2, 1], "pad_axes": [2, 3]},
    "padded along axes from the end": {"all_pads": [0, 1, 1, 2], "pad_axes": [-1, 2],
        "pad_value": 0},
    "padded along all axes in another order": {"all_pads": [0, 1, 0, 0, 1, 2, 0, 0],
        "pad_axes": [3, 2, 0, 1]},
    "one channel": {"channels": 1, "batch": 1, "target": [1, 6, -1]},
    "another shape": {"target": [2, 3, 6, 2, -1]},
    "flat": {"target": [-1]},
}  # fmt: skip


def used_twice(name: str, result: str) -> Callable[..., str]:
    """A function that adds another use of an intermediate value to a Writer."""
    return lambda w: w.add("Add", result, w.add("ReduceMax", name, keepdims=0), name="z")


NO_UNFOLDS = {
    "pads that are computed": {
        "all_pads": lambda w: w.add("Mul", "more", w.constant([0, 0, 1, 0, 0, 0, 2, 1])),
        "inputs": {"more": ("int64", [1])},
    },
}  # fmt: skip


ATTENTIONS = {
    "two levels": {},
    "slices": {"cut": "Slice"},
    "sequences": {"cut": "SplitToSequence"},
    "one axis for levels and points": {"merged": True},
    "slices, one axis for levels and points": {"merged": True, "cut": "Slice"},
    "sequences, one axis for levels and points": {"merged": True, "cut": "SplitToSequence"},
    "one level": {"levels": ((4, 5),)},
    "eight levels": {"levels": ((3, 2),) * 8},
    "levels of one row, column and pixel": {"levels": ((1, 5), (4, 1), (1, 1))},
    "one image": {"batch": 1},
    "one head": {"heads": 1},
    "one image, one head": {"batch": 1, "heads": 1},
    "one channel": {"channels": 1},
    "one point": {"points": 1},
    "one query": {"queries": 1},
    "as many of all": {
        "levels": ((2, 2),) * 2,
        "batch": 2,
        "queries": 2,
        "heads": 2,
        "channels": 2,
        "points": 2,
    },
    "float16": {"dtype": "float16"},
    "float64": {"dtype": "float64"},
    "opset 16": {"opset": 16, "sampling": {"mode": "bilinear"}},
    "newest opset": {"opset": NEWEST_OPSET},
    "settings left out": {"sampling": {}},
    "sampled by com.microsoft": {"sampling": {"mode": "bilinear", "domain": "com.microsoft"}},
    "factors swapped": {"swapped": True},
    "the axis of the sum kept": {"keepdims": 1},
    "the axis of the sum from the front": {"over": [3]},
}


ONE_SAMPLE = {"levels": [(3, 4)], "points": 1, "bare": True, "reason": "over other axes"}


def expanded(w: Writer, weights: str, count: str) -> str:
    return w.add("Expand", weights, w.add("Concat", *[w.constant([1])] * 3, count, axis=0))


NO_ATTENTIONS = {
    "nearest": {"sampling": {"mode": "nearest"}},
    "border": {"sampling": {"padding_mode": "border"}},
    "corners": {"sampling": {"align_corners": 1}},
    "other places": {"factor": 3},
    "places plus 1": {"shift": "Add"},
    "levels in another order": {"order": (1, 0)},
    "one level twice": {"order": (0, 0)},
    "grids of several sources": {"second_grid": "other",
        "inputs": {"other": ("float32", [2, 7, 3, 2, 2, 2])}},
    "pixels left over": {"pixels": (20, 6, 4)},
    "images on their side": {"turned": True},
    "a sum over channels": {"over": [1]},
    "a mean over channels": {"over": [1], "total": "ReduceMean"},
    "nine levels": {"levels": ((1, 2),) * 9},
    "an unknown number of pixels": {"value": [2, "s", 3, 4]},
    "an unknown number of heads": {"value": [2, 26, "m", 4]},
    "a value of unknown shape": {"value": ["a", "b", "c", "d"]},
    "a sample used twice": {"after": used_twice("sample_1", "y")},
    "the samples used twice": {"after": used_twice("samples", "y")},
    "the product used twice": {"after": used_twice("product", "y")},
    "the first level's sample times the sum of the weights": {
        "points": 1, "reason": "put together", "weighed": lambda w, y, weights: (
            w.add("Unsqueeze", w.add("Gather", y, w.constant(0), axis=3), w.constant([3])),
            weights)},
    "weights of none of the samples": {**ONE_SAMPLE, "weighed": lambda w, y, weights: (
        y, w.add("Slice", weights, *map(w.constant, ([0], [0], [3]))))},
    "three weights for one sample": {**ONE_SAMPLE, "weighed": lambda w, y, weights: (
        y, expanded(w, weights, w.constant([3])))},
    "an open number of weights for one sample": {
        **ONE_SAMPLE, "inputs": {"k": ("float32", ["k"])}, "weighed": lambda w, y, weights: (
            y, expanded(w, weights, w.add("Shape", "k")))},
    "one weight for all": {
        "inputs": {"weight": ("float32", [])}, "reason": "made of weights",
        "weighed": lambda w, y, weights: (y, "weight")},
    "one constant weight, in a batch of open size": {
        "open_sizes": True, "reason": "made of weights",
        "weighed": lambda w, y, weights: (y, w.constant(0.5, "float32"))},
}  # fmt: skip


WINDOWS = {
    "as they are": windows(None),
    "of no batch": windows(None, lead=(3,)),
    "positions before blocks": windows((4, 5, 2, 3)),
    "positions in another order": windows((5, 4, 2, 3)),
    "positions between blocks": windows((2, 4, 3, 5)),
    "positions before blocks, strides": windows((4, 5, 2, 3), (2, 3), size=8),
    "strides that leave nothing over": windows(None, (2, 2)),
    "one block along an axis, positions before blocks": windows((4, 5, 2, 3), (5, 2)),
    "strides that leave something over": windows(None, (2, 2), size=8),
    "strides that leave something over, no batch": windows(None, (2, 2), size=8, lead=(3,)),
    "one block along an axis": windows(None, (5, 1)),
    "flattened": windows(None, after=lambda w, y: w.add("Reshape", y, w.constant([2, 3, 25, 9]))),
    "flattened, then turned": windows(None, after=lambda w, y: w.add("Transpose", w.add(
        "Reshape", y, w.constant([2, 3, 25, 9])), perm=[0, 1, 3, 2])),
    "flattened by groups": windows(None, lead=(2, 4), after=lambda w, y: w.add("Transpose", w.add(
        "Reshape", y, w.constant([2, 2, 2, 25, 9])), perm=[0, 1, 2, 4, 3])),
    "strides that leave something over, flattened": windows(
        None, (2, 2), size=8, after=lambda w, y: w.add("Reshape", y, w.constant([2, 3, -1]))),
    "used twice": windows(None, after=lambda w, y: w.add("Add", y, w.add("Neg", y))),
    "of open sizes, flattened": windows((4, 5, 2, 3), is_open=True, after=lambda w, y: w.add(
        "Reshape", y, w.constant([2, 27, -1]))),
}  # fmt: skip


BLOCKS = {
    "as they are": windows(blocks=list),
    "of no batch": windows(lead=(3,), blocks=list),
    "positions before blocks": windows((4, 5, 2, 3), blocks=list),
    "positions before blocks, strides": windows((4, 5, 2, 3), (2, 3), size=8, blocks=list),
    "flattened": windows(after=lambda w, y: w.add("Reshape", y, w.constant([2, 3, 25, 9])),
        blocks=list),
    "used twice": windows(after=lambda w, y: w.add("Add", y, w.add("Neg", y)), blocks=list),
    "strides that leave something over": windows(None, (2, 2), size=8, blocks=list),
}  # fmt: skip


FRAMES = {  # {name: arguments of `frames`}
    "half overlap": {}, "side by side": {"step": 8}, "with gaps": {"step": 12},
    "some left over": {"length": 43},
    "before a window": {"after": lambda w,
        y: w.add("Mul", y, w.constant(np.hanning(8), "float32"))},
    "before a basis": {"after": lambda w,
        y: w.add("MatMul", y, w.constant(np.ones((8, 5)), "float32"))},
    "used twice": {"after": lambda w, y: w.add("Add", y, w.add("Neg", y))},
    "turned": {"after": lambda w, y: w.add("Transpose", y, perm=[0, 2, 1]), "lead": (2,)},
}  # fmt: skip


OTHER_ENDS = {
    "points before levels": {"axis": -1},
    "weights of points before levels": {"weights_perm": [0, 2, 1, 4, 3]},
    "weights of queries before heads": {"weights_perm": [0, 1, 2, 3, 4], "queries": 3},
    "images and heads mixed": {"target": (3, 8, 7)},
    "heads and queries mixed": {"target": (2, 7, 12)},
    "the result used twice": {"after": used_twice("result", "y")},
    "channels before queries": {"perm": [0, 1, 2]},
    "axes backwards": {"perm": [2, 1, 0]},
    "queries first": {"perm": [2, 0, 1]},
    "an image used twice": {"after": used_twice("image_0", "y")},
    "heads and channels on one axis": {"levels": [(4, 5)], "value": [2, 20, 12]},
    "heads and channels on one axis, several levels": {"value": [2, 26, 12]},
    "weights of a part of the batch, whose end onnx does not infer": {
        "batch": 1, "bare": True, "weights": lambda w: w.add(
            "Slice", w.add("Concat", *["attention_weights"] * 2, axis=0), w.constant([0]),
            w.add("Identity", w.constant([1])), w.constant([0]))},
}  # fmt: skip


OPEN = {
    "n": 2,
    "q": 3,
    "rows": 2,
    "h": 7,
    "w": 7,
    "s": 26,
    "m": 3,
    "a": 2,
    "b": 26,
    "c": 3,
    "d": 4,
    "k": 3,
}


def folds_of_ones(*sizes: int) -> onnx.ModelProto:
    """Divisors of folds, as large as images of these sizes, which are Relu of 1."""
    w = Writer()
    one = w.add("Relu", w.constant(1, "float32"))
    for size in sizes:
        ones = w.add("Expand", one, w.constant([1, 1, size**2]))
        last = w.add("Col2Im", ones, w.constant([size] * 2), w.constant([1, 1]))
        last = w.add("Add", w.add("ReduceMax", last, keepdims=0), "x")
    return w.model({"x": ("float32", [1])}, (last, "float32", [1]))


KERNEL = {"factors": "ngkl", "summed": "k"}


PRODUCTS = {
    "over channels": {},
    "over channels, one group": {"columns": "ncijhw", "factors": "nchw", "summed": "c"},
    "over channels, mean": {"how": "ReduceMean"},
    "over channels, image axes, batch of one": {
        "columns": "ngdijhw",
        "factors": "ngdhw",
        "batch": 1,
    },
    "over channels, Einsum": {"how": "Einsum"},
    "over channels, Einsum of other orders": {"how": "Einsum", "order": "nlgkd", "factors": "lngd"},
    "over channels, MatMul": {"how": "MatMul", "order": "ngldk", "factors": "ngld"},
    "over channels, blocks first": {"order": "nlgkd", "factors": "nlgd"},
    "over channels, factors of axes that are joined": {
        "columns": "ngdkhw",
        "factors": "ngdhw",
        "how": "Einsum",
    },
    "over channels, axis kept": {"keepdims": 1},
    "over channels, axis from the end": {"from_the_end": True},
    "over channels, factors first": {"swapped": True},
    "over channels, strides": {"strides": (2, 3), "dilations": (1, 2)},
    "over channels, one block along an axis": {
        "image": (4, 5),
        "pads": (0,) * 4,
        "strides": (3, 2),
    },
    "over channels, one block along an axis, blocks first": {
        "image": (4, 5),
        "pads": (0,) * 4,
        "strides": (3, 2),
        "order": "nlgkd",
        "factors": "nlgd",
    },
    "over channels, factors of positions in the place of blocks": {"factors": "ngdk"},
    "over channels, float64": {"dtype": "float64"},
    "over channels, float16": {"dtype": "float16"},
    "over positions": KERNEL,
    "over positions, one group": {"columns": "nckhw", "factors": "nkhw", "summed": "k"},
    "over positions, each channel its own": {"columns": "nckl", "factors": "nckl", "summed": "k"},
    "over positions, two axes": {"columns": "ngdijhw", "factors": "ngijhw", "summed": "ij"},
    "over positions, one block along an axis": {
        **KERNEL,
        "image": (2, 9),
        "pads": (1, 0, 1, 0),
        "strides": (4, 2),
    },
    "over positions, Einsum": {**KERNEL, "how": "Einsum"},
    "over positions, MatMul": {**KERNEL, "how": "MatMul", "order": "nglkd", "factors": "nglk"},
    "over positions, blocks first": {**KERNEL, "order": "nlgdk", "factors": "nlgk"},
    "over positions, one channel": {**KERNEL, "groups": 6},
    "over positions, float16": {**KERNEL, "dtype": "float16"},
}


INTEGERS = {
    "a slice backwards": lambda w: w.add("Slice", w.constant([[1, 2], [3, 4], [5, 6]]), *map(
        w.constant, ([-1], [-(2**63)], [0], [-1]))),
    "a slice backwards along the second axis": lambda w: w.add("Slice",
        w.constant([[1, 2, 3, 4, 5]]), *map(
        w.constant, ([4], [-5], [1], [-1]))),
    "a slice backwards from before the first": lambda w: w.add("Slice", w.constant([1, 2, 3]), *map(
        w.constant, ([-9], [-9], [0], [-1]))),
    "a slice to the end": lambda w: w.add("Slice", w.constant([1, 2, 3]),
        *map(w.constant, ([1], [2**63 - 1]))),
    "a difference of uint8": lambda w: w.add("Sub", *(w.constant(v, np.uint8) for v in (1, 2))),
    "a range of int16": lambda w: w.add("Mul",
        w.add("Cast", w.add("Range", *(w.constant(v, np.int16) for v in (
        0, 300, 100))), to=TensorProto.UINT8), w.constant(1, np.uint8)),
    "a size in uint8": lambda w: w.add("Cast",
        w.add("Sub", w.add("Cast", w.add("Shape", "x", end=1), to=2),
                                                     w.constant(9, np.uint8)), to=7),
    "a size past int32": lambda w: w.add("Cast",
        w.add("Add", w.add("Cast", w.add("Shape", "x", end=1), to=6),
                                                       w.constant(2**31 - 1, np.int32)), to=7),
    "a size past int64": lambda w: w.add("Div",
        w.add("Mul", w.add("Shape", "x", end=1), w.constant(2**63 - 1)),
                                         w.constant(2**63 - 1)),
    "half of an empty axis": lambda w: w.add("Div",
        w.add("Sub", w.add("Shape", "x", end=1), w.constant([1])),
                                             w.constant([2])),
}  # fmt: skip
