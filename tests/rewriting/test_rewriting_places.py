"""optimize() finds the same in subgraphs and functions, and has the same reasons there."""

import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.backends import quiet
from support.exact import assert_as_near
from support.rewriting_cases import NO_ATTENTIONS, OTHER_ENDS
from support.selection import in_turn, long_unless, of_names
from support.written import (
    Writer,
    affine_grid,
    attention,
    divided_fold,
    feeds,
    unfold,
    unfold_product,
    windows,
    written_in_place,
)

import onnx_ops
from onnx_ops.model.nodes import all_nodes, used_names
from onnx_ops.rewriting import rewritten


def along_joined_axes(turned=False):
    """A GridSample for each pair of a batch and a head, on a grid of a flow in which these are two
    axes.
    """
    w = Writer()
    flow = w.add("Mul", "flow", w.constant(0.1, "float32"))
    if turned:
        flow = w.add("Transpose", flow, perm=[0, 2, 1, 3, 4])
    grid = w.add("Reshape", flow, w.constant([10, 9, 12, 2]))
    y = w.add("GridSample", "image", grid, padding_mode="border", name="y")
    dims = [2, 9, 5, 12, 2] if turned else [2, 5, 9, 12, 2]
    return w.model(
        {"image": ("float32", [10, 1, 7, 8]), "flow": ("float32", dims)}, (y, "float32", None), 20
    )


SIZES = {"n": 2, "size_0": 11, "size_1": 13}


def flattened(w, y):
    return w.add("Reshape", y, w.constant([2, 3, 25, 9]))


FOUND = {
    "fold of constants": (divided_fold(), "Constant"),
    "written in place": (written_in_place(), "ComputedGridSample"),
    "written in place, coordinates first": (written_in_place(layout="first"), "ComputedGridSample"),
    "written in place by ScatterND": (written_in_place(how="ScatterND"), "ComputedGridSample"),
    "rows written in place": (written_in_place(how="rows", layout="first"), "ComputedGridSample"),
    "written in place, then turned by GatherND": (written_in_place(order=[1, 0]),
        "ComputedGridSample"),
    "along joined axes": (along_joined_axes(), "ComputedGridSample"),
    "along axes that are turned, then joined": (along_joined_axes(turned=True),
        "ComputedGridSample"),
    "affine_grid": (affine_grid(opset=20, sample="linear"), "ComputedGridSample"),
    "unfold": (unfold(), "Im2Col"),
    "unfold of open sizes": (unfold(open_sizes=True), "Im2Col"),
    "Tensor.unfold": (windows(), "Im2Col"),
    "Tensor.unfold, positions first": (windows((4, 5, 2, 3)), "Im2Col"),
    "Tensor.unfold, strides": (windows(None, (2, 2)), "Im2Col"),
    "Tensor.unfold, flattened": (windows(after=flattened), "Im2Col"),
    "Tensor.unfold of no batch": (windows(lead=(3,)), "Im2Col"),
    "products of columns": (unfold_product(), "Im2ColProduct"),
    "products of columns over positions": (unfold_product(factors="ngkl", summed="k"),
        "Im2ColProduct"),
    **{f"attention, {name}": (attention(**edits), "MultiScaleDeformableAttention")
       for name, edits in OTHER_ENDS.items()},
}  # fmt: skip
MISSED = {
    "multiplied in place": written_in_place(reduction="mul"),
    "Tensor.unfold at irregular places": windows(blocks=lambda starts: [0, 1, 3, 4]),
    "Tensor.unfold backwards": windows(blocks=lambda starts: starts[::-1]),
    "products of columns over blocks": unfold_product(summed="l"),
    "products of columns, used twice": unfold_product(
        after=lambda w, y: w.add("Add", y, w.add("ReduceMax", "product", keepdims=0))),
    **{f"attention, {name}": attention(**NO_ATTENTIONS[name])
       for name in ("a sample used twice", "a sum over channels", "weights of none of "
                                                                  "the samples", "nine levels")},
}  # fmt: skip


# Of which tests of the main graph have most, and those that are like another one here.
OTHERS = [*OTHER_ENDS][3:]
LIKE_OTHERS = {
    "written in place, coordinates first",
    "rows written in place",
    "along axes that are turned, then joined",
    "Tensor.unfold, strides",
    "Tensor.unfold, flattened",
    "Tensor.unfold of no batch",
    "attention, weights of points before levels",
}
FEW_MISSED = (  # one in each place
    "multiplied in place",
    "Tensor.unfold at irregular places",
    "products of columns over blocks",
    "products of columns, used twice",
    "attention, weights of none of the samples",
)


# Each place moves all nodes of a model, which has one output, to another one.


def main(proto):
    return proto


def taken_out(proto):
    """Return a model without nodes, the output, and a function that makes it the output again."""
    outer = onnx.ModelProto.FromString(proto.SerializeToString())
    del outer.graph.node[:], outer.graph.value_info[:], outer.graph.output[:]
    output = onnx.ValueInfoProto.FromString(proto.graph.output[0].SerializeToString())
    elements = output.type.tensor_type.elem_type

    def finished(*nodes):
        outer.graph.node.extend(nodes)
        outer.graph.output.append(helper.make_tensor_value_info("result", elements, None))
        return outer

    return outer, output, finished


def branch(proto):
    _, output, finished = taken_out(proto)
    others = helper.make_graph(
        [helper.make_node("Identity", [proto.graph.input[0].name], ["other"])],
        "else",
        [],
        [helper.make_tensor_value_info("other", output.type.tensor_type.elem_type, None)],
    )
    then = helper.make_graph(proto.graph.node, "then", [], [output])
    yes = helper.make_node("Constant", [], ["yes"], value=numpy_helper.from_array(np.array(True)))
    return finished(
        yes, helper.make_node("If", ["yes"], ["result"], then_branch=then, else_branch=others)
    )


def loop(proto):
    """Two turns of a Loop, whose body reads the model's inputs; its results are stacked, and the
    last one is taken.
    """
    outer, output, finished = taken_out(proto)
    body = helper.make_graph(
        [helper.make_node("Identity", ["go_on"], ["going_on"]), *proto.graph.node],
        "body",
        [helper.make_tensor_value_info("turn", TensorProto.INT64, []),
         helper.make_tensor_value_info("go_on", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("going_on", TensorProto.BOOL, []), output],
    )  # fmt: skip
    for name, value in (("turns", 2), ("last", -1)):
        outer.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    return finished(
        helper.make_node("Loop", ["turns", ""], ["stacked"], body=body),
        helper.make_node("Gather", ["stacked", "last"], ["result"], axis=0),
    )


def scan(proto):
    """One turn of a Scan along a vector, of which the body's results are independent."""
    outer, output, finished = taken_out(proto)
    body = helper.make_graph(
        proto.graph.node,
        "body",
        [helper.make_tensor_value_info("element", TensorProto.INT64, [])],
        [output],
    )
    for name, value in (("vector", [7]), ("first", 0)):
        outer.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    return finished(
        helper.make_node("Scan", ["vector"], ["stacked"], body=body, num_scan_inputs=1),
        helper.make_node("Gather", ["stacked", "first"], ["result"], axis=0),
    )


def function(proto):
    """A function with the model's inputs as parameters and its constants inside."""
    outer, output, finished = taken_out(proto)
    constants = [
        helper.make_node("Constant", [], [t.name], value=t) for t in proto.graph.initializer
    ]
    del outer.graph.initializer[:]
    names, body = [value.name for value in proto.graph.input], [*constants, *proto.graph.node]
    outer.functions.append(
        helper.make_function("local", "Part", names, [output.name], body, proto.opset_import)
    )
    outer.opset_import.append(helper.make_opsetid("local", 1))
    return finished(helper.make_node("Part", names, ["result"], domain="local"))


def branch_in_a_function(proto):
    made = branch(proto)
    return function(made)


PLACES = main, branch, loop, scan, function, branch_in_a_function


def outputs(proto, inputs):
    return onnx_ops.InferenceSession(proto.SerializeToString(), quiet()).run(None, inputs)[0]


@pytest.mark.parametrize(
    ("place", "name"),
    [
        long_unless(
            not row.marks
            and row.values[1].partition(", ")[2] not in OTHERS
            and row.values[1] not in LIKE_OTHERS,
            *row.values,
        )
        for row in in_turn(PLACES, FOUND)
    ],
)
def test_found_there(place, name):
    proto, operator = FOUND[name]
    moved = place(proto)
    optimized, findings = rewritten(moved)
    assert operator in [finding.operator for finding in findings]
    assert operator in {node.op_type for node in all_nodes(optimized.graph)}
    inputs = feeds(proto, SIZES)
    expected, got = outputs(moved, inputs), outputs(optimized, inputs)
    assert got.shape == expected.shape
    np.testing.assert_array_equal(expected, outputs(proto, inputs))
    assert_as_near(proto, inputs, [expected], [got], [operator])


def words(reason, proto):
    """Return what a reason says, without names of values, which inlining changes."""
    names = set(used_names(proto.graph))
    return [
        word
        for word in re.findall(r"\w+", reason)
        if word not in names and not re.search(r"[\d_]", word)
    ]


@pytest.mark.parametrize(("place", "name"), of_names(in_turn(PLACES[1:], MISSED), FEW_MISSED))
def test_missed_there(place, name):
    proto = MISSED[name]
    expected = [f for f in rewritten(proto)[1] if f.reason]
    moved = place(proto)
    optimized, findings = rewritten(moved)
    assert [words(f.reason, proto) for f in findings if f.reason] == [
        words(f.reason, proto) for f in expected
    ]
    assert expected or "used twice" in name
    assert optimized == moved or any(f.operator for f in findings)
    inputs = feeds(proto)
    operators = [f.operator for f in findings if f.operator]
    assert_as_near(proto, inputs, [outputs(moved, inputs)], [outputs(optimized, inputs)], operators)
