"""optimize() of an unfold that is only multiplied and added up, and of models that only resemble
that.
"""

import numpy as np
import onnx
import pytest
from support.rewriting import compare, near_miss
from support.rewriting_cases import KERNEL, PRODUCTS
from support.selection import but_names, by_type, few, in_turn, of_names
from support.written import PRODUCT, unfold, unfold_product, windows

from onnx_ops.rewriting import rewritten

OPERATOR = "Im2ColProduct"

OPEN = {
    "over channels": {"columns": "ngdkhw", "factors": "ngdhw"},
    "over channels, mean": {
        "columns": "nckhw",
        "factors": "nchw",
        "summed": "c",
        "how": "ReduceMean",
    },
    "over channels, blocks in one axis": {},
    "over channels, Einsum": {"columns": "ngdkhw", "factors": "ngdhw", "how": "Einsum"},
    "over positions": {"columns": "ngdkhw", "factors": "ngkhw", "summed": "k"},
    "over positions, two axes": {"columns": "ncijhw", "factors": "nijhw", "summed": "ij"},
    "over positions, blocks in one axis": KERNEL,
}


LIKE_OTHERS = {  # and what test_product_of_open_sizes and test_reading.py have
    "over channels, mean",
    "over channels, image axes, batch of one",
    "over channels, Einsum",
    "over channels, blocks first",
    "over channels, factors first",
    "over channels, one block along an axis, blocks first",
    "over channels, axis kept",
    "over channels, axis from the end",
    "over positions, one group",
    "over positions, two axes",
}


@pytest.mark.parametrize("name", by_type(but_names(PRODUCTS, LIKE_OTHERS)))
def test_product(name):
    case = PRODUCTS[name]
    nodes, findings = compare(unfold_product(**case))
    assert [f.operator for f in findings] == [OPERATOR]
    assert OPERATOR in nodes
    assert not {"Im2Col", "Einsum", "MatMul", "ReduceSum", "ReduceMean"} & {*nodes}
    assert ("Mul" in nodes) == (case.get("how") == "ReduceMean")  # the factors by 1 / count


FEW_OPEN = few(
    {
        name: {key: edits[key] for key in ("summed", "how") if key in edits}
        for name, edits in OPEN.items()
    },
    together=1,
)


@pytest.mark.parametrize("name", of_names(OPEN, FEW_OPEN))
def test_product_of_open_sizes(name):
    proto = unfold_product(
        **OPEN[name], open_sizes=True, kernel=(3, 3), pads=(1, 1, 1, 1), image=(6, 5)
    )
    sizes = ((2, 6, 5), (1, 1, 1), (3, 2, 9))
    nodes, _ = compare(
        proto, *(dict(zip(("n", "size_0", "size_1"), each, strict=True)) for each in sizes)
    )
    assert OPERATOR in nodes
    assert not {"Im2Col", "Einsum", "ReduceSum", "ReduceMean"} & {*nodes}


def used(name):
    return lambda w, y: w.add("Add", y, w.add("ReduceMax", name, keepdims=0))


FURTHER = {  # whose factors, or axes of the sum, are others
    "factors for all images": {"factors": "gdl"},
    "factors of positions, strides": {"factors": "ngdk", "strides": (2, 2), "image": (7, 6)},
    "channels and positions in one axis": {"columns": "nxl", "factors": "nxl", "summed": "x"},
    "channels and positions": {"summed": "dk", "factors": "ngdkl"},
}  # fmt: skip
MISSES = {
    "over groups": ({"summed": "g", "order": "ngdkl"}, "other axes than the channels"),
    "over the batch": ({"summed": "n"}, "other axes than the channels"),
    "over one of the kernel's axes": (
        {"columns": "ngdijl", "factors": "ngijl", "summed": "i"}, "axis it moves by more than a "
                                                                  "position"),
    "over blocks": ({"summed": "l"}, "other axes than the channels"),
    "over nothing": ({"columns": "ngdkl", "factors": "ngdl", "summed": ""}, "other axes than the "
                                                                            "channels"),
    "factors of channels and positions": ({"factors": "ngdkl"}, "axis it moves by more than a "
                                                                "position"),
    "factors of channels, over positions": ({"factors": "ngdl", "summed": "k"}, "other axes than "
                                                                                "batch, groups"),
    "factors for all channels": ({"factors": "ngl"}, "other axes than batch, channels and blocks"),
    "factors for rows of blocks": (
        {"columns": "ngdkhw", "factors": "ngdh"}, "axis it moves by more than a position"),
    "factors for all blocks": ({"factors": "ngd"}, "axis it moves by more than a position"),
    "mean of float16": (
        {"how": "ReduceMean", "dtype": "float16"}, "16-bit factors would be rounded by the number"),
    "product used twice": ({"after": used("product")}, "product is used elsewhere, too"),
}  # fmt: skip
STAY = {  # for which there is no reason to give
    "a maximum": {"how": "ReduceMax"},
    "a sum": {"product": "Add"},
}


SQUARE = {
    "how": "Einsum",
    "image": (3, 3),
    "kernel": (2, 2),
    "pads": (0,) * 4,
}  # as many positions as blocks
EQUATIONS = {
    "without an arrow": {"how": "Einsum", "equation": "ngdl,ngdkl", "rank": 1},
    "with dots": {
        "how": "Einsum", "factors": "ngdkl", "summed": "k", "channels": 4,
        "equation": "...kl,...kl->...l",
    },
    "of a diagonal": {**SQUARE, "equation": "ngdl,ngdll->ngl", "rank": 3},
    "of a diagonal, of factors": {**SQUARE, "factors": "ngkl", "summed": "k",
        "equation": "ngkk,ngdkl->ngdl"},
}  # fmt: skip


@pytest.mark.parametrize("name", EQUATIONS)
def test_einsum(name):
    """Whatever its equation says, it is read right, or not at all."""
    _, findings = compare(unfold_product(**EQUATIONS[name]))
    assert OPERATOR not in [finding.operator for finding in findings]
    assert "Im2Col" in [finding.operator for finding in findings]


@pytest.mark.parametrize("name", FURTHER)
def test_product_of_other_axes(name):
    nodes, _ = compare(unfold_product(**FURTHER[name]))
    assert OPERATOR in nodes
    assert not {"Einsum", "MatMul", "ReduceSum"} & {*nodes}


SAME_REASONS = {  # as another miss has
    "over the batch",
    "over nothing",
    "factors of channels and positions",
    "factors for rows of blocks",
}


@pytest.mark.parametrize("name", by_type(but_names(MISSES, SAME_REASONS)))
def test_near_miss(name):
    case, expected = MISSES[name]
    (reason,) = near_miss(unfold_product(**case), also=["Im2Col"])
    assert expected in reason


@pytest.mark.parametrize("name", STAY)
def test_no_product(name):
    assert near_miss(unfold_product(**STAY[name]), also=["Im2Col"]) == []


def test_columns_of_which_two_indices_are_the_same():
    def diagonal(w):
        y = w.add("Reshape", "y", w.constant([2, 6, 6, 6]))
        places = w.constant(np.stack([np.arange(6)] * 2, 1))
        y = w.add(
            "GatherND", w.add("Transpose", y, perm=[1, 3, 0, 2]), places
        )  # [channel and block, n, k]
        return w.add("ReduceSum", w.add("Mul", y, "weights"), w.constant([2]), keepdims=0)

    inputs = {"weights": ("float32", [6, 2, 6])}
    edits = PRODUCT | {"image": (3, 2), "pads": (0, 0, 2, 1)}
    (reason,) = near_miss(unfold(after=diagonal, inputs=inputs, rank=2, **edits), also=["Im2Col"])
    assert "an index occurs twice, as on a diagonal" in reason


def test_columns_that_are_used_elsewhere_stay_beside_the_product():
    proto = unfold_product(after=used("columns"))
    nodes, findings = compare(proto)
    assert [f.operator for f in findings] == [OPERATOR, "Im2Col"]
    assert {"Im2Col", OPERATOR} <= {*nodes}


def test_one_unfold_of_two_products():
    def again(w, y):
        product = w.add("Mul", "columns", w.add("Reshape", "weights", w.constant([2, 2, 1, 6, -1])))
        return w.add("Concat", y, w.add("ReduceSum", product, w.constant([3]), keepdims=0), axis=2)

    nodes, findings = compare(
        unfold_product(after=again, inputs={"weights": ("float32", [2, 2, 6, 30])})
    )
    assert [f.operator for f in findings] == [OPERATOR, OPERATOR]
    assert "Im2Col" not in nodes


@pytest.mark.parametrize(
    ("kernel", "steps"), [((3, 3), (1, 1)), ((4, 4), (2, 2)), ((1, 3), (2, 1))], ids=str
)
def test_windows_with_their_blocks_first(kernel, steps):
    """Of Tensor.unfold: the same Im2Col is that of blocks and of positions."""

    def attended(w, y):
        pooled = w.add("MaxPool", "x", kernel_shape=[*kernel], strides=[*steps])
        scores = w.add("Einsum", pooled, y, equation="nchw,nchwij->nhwij")
        scores = w.add("Sigmoid", scores)
        return w.add("Einsum", scores, y, equation="nhwij,nchwij->nchw")

    nodes, findings = compare(windows(None, steps, 8, kernel, (2, 4), after=attended))
    assert [f.operator for f in findings] == [OPERATOR, OPERATOR]
    assert not {"Im2Col", "Einsum"} & {*nodes}


ENLARGED = [
    {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    {"mode": "nearest"}, {"mode": "linear"},
]  # fmt: skip


@pytest.mark.parametrize(
    ("scales", "settings"), in_turn([(2, 3), (1, 1), (2.2, 3)], ENLARGED), ids=str
)
def test_enlarged_windows(scales, settings):
    """CARAFE's: each column is there several times, for weights of their own."""
    if onnx.__version__.startswith("1.19."):
        pytest.skip("onnx's evaluator takes minutes for such a Resize")
    height, width = int(6 * scales[0]), int(5 * scales[1])

    def enlarged(w):
        y = w.add("Reshape", "y", w.constant([2, 36, 6, 5]))
        y = w.add("Resize", y, "", w.constant([1, 1, *scales], np.float32), **settings)
        y = w.add("Reshape", y, w.constant([2, 6, 6, height, width]))
        product = w.add("Mul", y, w.add("Unsqueeze", "weights", w.constant([1])))
        return w.add("ReduceSum", product, w.constant([2]), keepdims=0)

    inputs = {"weights": ("float32", [2, 6, height, width])}
    proto = unfold(after=enlarged, inputs=inputs, rank=4, **PRODUCT)
    nodes, _ = compare(proto)
    repeats = len(settings) > 1 and scales != (2.2, 3)
    assert (OPERATOR in nodes) == repeats
    assert ("Resize" in nodes) != repeats


def test_elements_that_are_no_floats():
    (reason,) = near_miss(unfold_product(dtype="int32"), also=["Im2Col"])
    assert reason == "its elements are not known to be floats of one type"


def test_optimizing_again_finds_nothing():
    optimized, _ = rewritten(unfold_product())
    again, findings = rewritten(optimized)
    assert again == optimized
    assert findings == []


def test_factors_of_an_open_number_of_groups():
    """Columns are repeated for factors along an axis of open size, of which no attribute can be."""

    def weighed(w):
        columns = w.add("Reshape", "y", w.constant([2, 1, 6, 6, 30]))
        return w.add("ReduceSum", w.add("Mul", columns, "factors"), w.constant([3]), keepdims=0)

    inputs = {"factors": ("float32", [2, "e", 1, 6, 30])}
    (reason,) = near_miss(
        unfold(after=weighed, inputs=inputs, rank=4, **PRODUCT), {"e": 4}, also=["Im2Col"]
    )
    assert reason == "the number of its groups is open"


def test_matrices_that_read_each_block_several_times():
    """As attention within windows does: its product of matrices is left, which is faster."""

    def attended(w):
        columns = w.add(
            "Transpose", w.add("Reshape", "y", w.constant([2, 6, 6, 30])), perm=[0, 3, 2, 1]
        )
        return w.add("MatMul", "scores", columns)

    proto = unfold(after=attended, inputs={"scores": ("float32", [2, 30, 5, 6])}, rank=4, **PRODUCT)
    (reason,) = near_miss(proto, also=["Im2Col"])
    assert reason == "a product of matrices, which reads each block several times, is faster"
