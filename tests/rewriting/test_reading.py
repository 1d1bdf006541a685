"""What the reader says of values is what ONNX Runtime computes, operator by operator and model by model."""

import pytest
from support.operator_lines import LINES, inputs_of, model_of
from support.reading import compared

from onnx_ops.rewriting.reading import TABLE


def test_every_rule_has_a_line():
    assert TABLE.keys() == LINES.keys()


@pytest.mark.parametrize("is_open", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize(
    ("name", "k"), [(name, k) for name, lines in LINES.items() for k in range(len(lines))]
)
def test_operators(name, k, is_open):
    given = LINES[name][k]
    proto = model_of(given, is_open)
    result = compared(proto, inputs_of(proto))
    output = proto.graph.output[0].name
    assert output not in result.left
    assert output not in result.roots or (is_open and not given.is_open)
