"""The declared operators for onnx's own evaluator, in plain NumPy: slow, and written to be read.

onnx.reference.ReferenceEvaluator(model, new_ops=onnx_ops.reference_ops()).run(None, inputs)
"""

from collections.abc import Iterable
from typing import Any

from onnx.reference.op_run import OpRun

from .errors import named
from .operators import known
from .runtime.execute import compute_reference
from .schemas import schema


def reference_ops(operators: Iterable[Any] = ()) -> list[type[OpRun]]:
    """A class for each declared operator. Sums are float64, the result is of the input's type; raises OpError.

    operators  of one's own, in addition
    """
    return [reference_op(operator) for operator in known(operators).values()]


def reference_op(operator):
    def run(self, *inputs, **attributes):
        with named(operator):
            parameters = operator.resolved(attributes)
        return tuple(compute_reference(operator, parameters, inputs))

    members = {"op_domain": operator.domain, "op_schema": schema(operator), "_run": run}
    return type(operator.name, (OpRun,), members)
