"""What tests of `optimize` assert of a model and of what it becomes."""

from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnxruntime as ort

import onnx_ops
from onnx_ops.rewriting import rewritten
from onnx_ops.rewriting.finding import Finding

from .backends import quiet
from .exact import LEFT_OUT, assert_as_near
from .written import feeds


def results(
    proto: onnx.ModelProto, inputs: dict[str, np.ndarray], optimized: bool = False
) -> list[Any]:
    """Run a model with ONNX Runtime's built-in kernels, except for the domain onnx_ops; return its
    outputs.
    """
    options = onnx_ops.register(quiet(), domains=["onnx_ops"]) if optimized else quiet()
    names = [value.name for value in proto.graph.input]
    return ort.InferenceSession(proto.SerializeToString(), options).run(
        None, {n: inputs[n] for n in names}
    )


def compare(
    proto: onnx.ModelProto,
    *sizes: Any,
    alone: bool = True,
    left_out: float = LEFT_OUT,
    **options: Any,
) -> tuple[list[str], list[Finding]]:
    """Assert that the optimized model's results are as near to the exact ones; return its operators
    and the findings.

    sizes     of open axes, of which each gives inputs
    alone     whether ONNX Runtime's built-in kernels run the model; else both models get those of
              this package
    left_out  the share of elements that may lie at jumps
    """
    optimized, findings = rewritten(proto, **options)
    onnx_ops.register_schemas()
    onnx.checker.check_model(optimized, full_check=True)
    run = results if alone else lambda model, inputs, *_: ours(model).run(None, inputs)
    operators = [finding.operator for finding in findings if finding.operator]
    for inputs in [feeds(proto, each) for each in sizes or ((),)]:
        assert_as_near(
            proto, inputs, run(proto, inputs), run(optimized, inputs, True), operators, left_out
        )
    assert [v.name for v in optimized.graph.input] == [v.name for v in proto.graph.input]
    assert optimized.graph.output == proto.graph.output
    assert onnx_ops.optimize(optimized, **options) == optimized
    return [n.op_type for n in optimized.graph.node], findings


def ours(proto: onnx.ModelProto, **how: Any) -> onnx_ops.InferenceSession:
    return onnx_ops.InferenceSession(proto.SerializeToString(), quiet(), **how)


def near_miss(
    proto: onnx.ModelProto, sizes: Any = (), runs: bool = True, also: Any = (), **options: Any
) -> list[str | None]:
    """Assert that a model is left alone; return the reasons. also: operators that other patterns
    may put into it.
    """
    optimized, findings = rewritten(proto, **options)
    left = [f for f in findings if f.operator not in also]
    assert [f.operator for f in left] == [None] * len(left)
    assert optimized == proto or len(left) < len(findings)
    if runs:
        inputs = feeds(proto, sizes)
        results(proto, inputs)  # ONNX Runtime takes the model, so nothing else is wrong with it
        if optimized != proto:
            plain, fused = (ours(each).run(None, inputs) for each in (proto, optimized))
            operators = [f.operator for f in findings if f.operator]
            assert_as_near(proto, inputs, plain, fused, operators)
    return [f.reason for f in left]
