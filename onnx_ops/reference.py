"""The declared operators for onnx's own evaluator, in plain NumPy: slow, and written to be read.

onnx.reference.ReferenceEvaluator(model, new_ops=onnx_ops.reference_ops()).run(None, inputs)
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from onnx.reference.op_run import OpRun

from .errors import errors_of
from .operators import available
from .runtime.execute import compute_reference
from .schemas import schema

if TYPE_CHECKING:
    from .declaration import Operator


def reference_ops(operators: Iterable[Any] = ()) -> list[type[OpRun]]:
    """Return a class for each declared operator. It sums in float64, returns the input's type, and raises OpError.

    operators  more operators, of one's own
    """
    return [reference_op(operator) for operator in available(operators).values()]


def reference_op(operator: "Operator") -> type[OpRun]:
    def compute_outputs(self: Any, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        with errors_of(operator):
            values = operator.values(attributes)
        return tuple(compute_reference(operator, values, inputs))

    members = {"op_domain": operator.domain, "op_schema": schema(operator), "_run": compute_outputs}
    return type(operator.name, (OpRun,), members)
