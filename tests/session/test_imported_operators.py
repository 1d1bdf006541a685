"""A process imports the files of those operators that its models have, and registers these
alone.
"""

import json

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from support.backends import quiet, run_session
from support.cases import (
    CASES,
    DEFORM_CONV,
    GRID_SAMPLE,
    IM2COL,
    ROI_ALIGN,
    assert_close,
    expected_of,
    imported_domains,
    model,
    parsed,
)
from support.declared_operators import FAMILIES, titles_by_file
from support.processes import python
from support.selection import long_unless

import onnx_ops
from onnx_ops import registry
from onnx_ops.native import library
from onnx_ops.session import native_backend

FOLD, ALIGN = CASES[0], ROI_ALIGN[0]
SESSION = """
import json, sys
import onnx_ops
session = onnx_ops.InferenceSession(sys.argv[1])
print(json.dumps([name for name in sys.modules if name.startswith("onnx_ops.")]))
"""


def test_the_list_is_what_the_files_declare():
    """If not, `python scripts/generate/list_operators.py` writes it."""
    listed = {file: " ".join(titles.split()) for file, titles in registry.FILES.items()}
    assert titles_by_file() == listed
    assert [o.title for o in registry.OPERATORS] == " ".join(listed.values()).split()


@pytest.mark.parametrize(
    ("case", "families"),
    [
        (FOLD, {"fold"}),
        long_unless(False, GRID_SAMPLE[0], {"sampling"}),
        long_unless(False, ALIGN, {"detection"}),
        long_unless(False, None, set()),
    ],
    ids=["fold", "sampling", "detection", "none"],
)
def test_families_that_a_session_imports(case, families, tmp_path):
    proto = parsed("(float[2] x) => (float[2] y) { y = Relu (x) }")
    if case:
        proto = model(case.domain, case.op_type, case.inputs("float32"), case.attributes)
    onnx.save(proto, tmp_path / "model.onnx")
    imported = json.loads(python(SESSION, tmp_path / "model.onnx").stdout)
    assert {name.split(".")[1] for name in imported} & {
        *FAMILIES,
        "custom",
        "rewriting",
    } == families


def nested(case, where):
    """A model with the node of a case, which is found only by those who look everywhere."""
    inputs = case.inputs("float32")
    proto = model(case.domain, case.op_type, inputs, case.attributes)
    graph, (node,) = proto.graph, proto.graph.node
    yes = onnx.helper.make_node(
        "Constant", [], ["yes"], value=onnx.numpy_helper.from_array(np.array(True))
    )
    output = [onnx.helper.make_empty_tensor_value_info(node.output[0])]
    if where == "a branch":
        branches = {
            name: onnx.helper.make_graph([inner], name, [], output)
            for name, inner in (("then_branch", node), ("else_branch", node))
        }
        both = onnx.helper.make_node("If", ["yes"], list(node.output), **branches)
        del graph.node[:]
        graph.node.extend([yes, both])
    elif where in ("a function", "a default"):
        imports = [onnx.helper.make_opsetid(i.domain, i.version) for i in proto.opset_import]
        call = onnx.helper.make_node("F", node.input, node.output, domain="local")
        proto.functions.append(
            onnx.helper.make_function("local", "F", node.input, node.output, [node], imports)
        )
        proto.opset_import.append(onnx.helper.make_opsetid("local", 1))
        if where == "a default":  # of a function's attribute, which is a graph
            default = onnx.helper.make_graph([node], "default", [], output)
            proto.functions[0].attribute_proto.append(onnx.helper.make_attribute("branch", default))
            proto.functions[0].node[0].CopyFrom(yes)
            both = proto.functions[0].node.add(op_type="If", input=yes.output, output=node.output)
            for name in ("then_branch", "else_branch"):
                both.attribute.add(
                    name=name, ref_attr_name="branch", type=onnx.AttributeProto.GRAPH
                )
        del graph.node[:]
        graph.node.append(call)
    elif where == "ai.onnx by name":
        node.domain = "ai.onnx"
    return proto, inputs


@pytest.mark.parametrize(
    "where", ["the graph", "a branch", "a function", "a default", "ai.onnx by name"]
)
@pytest.mark.parametrize("case", [FOLD, IM2COL[0], GRID_SAMPLE[0], DEFORM_CONV[0], ALIGN], ids=str)
def test_each_node_has_its_operator(case, where, kernels_made):
    if where == "ai.onnx by name" and case.domain:
        pytest.skip("is of another domain")
    proto, inputs = nested(case, where)
    session = onnx_ops.InferenceSession(proto.SerializeToString())
    assert set(kernels_made.titles()) == {case.operator.title}
    kernels_made.clear()
    from_file = onnx_ops.Runner(proto.SerializeToString()).session
    assert set(kernels_made.titles()) == {case.operator.title}
    for each in (session, from_file):
        assert_close(run_session(each, inputs), expected_of(case, inputs), "float32")


def test_a_model_that_only_onnx_runtime_reads(kernels_made):
    """It skips groups, which protobuf has given up.

    All operators are registered for such a model.
    """
    content = model("", FOLD.op_type, FOLD.inputs("float32"), FOLD.attributes).SerializeToString()
    group = b"\xfb\x3e\xfc\x3e"  # of field 1007
    assert imported_domains(content + group) is None
    onnx_ops.InferenceSession(content + group)
    assert kernels_made == [FOLD.operator.title]


def test_nothing_is_registered_for_a_model_without_them():
    proto = parsed("(float[2] x) => (float[2] y) { y = Relu (x) }")
    options = onnx_ops.InferenceSession(proto.SerializeToString()).get_session_options()
    assert native_backend.registered_domains(options) == set()
    assert native_backend.config_entry(options, "onnx_ops.registered.ai.onnx") is None


def test_options_that_were_registered_for_a_model_serve_others_of_its_domains(kernels_made):
    cases = [FOLD, DEFORM_CONV[0], ALIGN]
    protos = [
        model(case.domain, case.op_type, case.inputs("float32"), case.attributes) for case in cases
    ]
    models, titles = (
        [proto.SerializeToString() for proto in protos],
        [case.operator.title for case in cases],
    )
    options = onnx_ops.register(quiet(), models[0])
    assert native_backend.registered_domains(options) == {
        ""
    }  # though the models import com.microsoft, too
    for case, content in zip(cases, models, strict=True):
        session, inputs = ort.InferenceSession(content, options), case.inputs("float32")
        assert_close(run_session(session, inputs), expected_of(case, inputs), "float32")
    assert kernels_made == titles


def test_the_table_for_hosts_has_all_operators():
    onnx_ops.get_library_path()
    in_use = library.table_in_use()
    rows = [pointer.contents for pointer in in_use.operators[: in_use.operator_count]]
    assert [(row.domain.decode(), row.name.decode()) for row in rows] == list(registry.KEYS)
    for operator in registry.OPERATORS:
        assert library.entry(library.row_of(operator).number)[0] is operator
