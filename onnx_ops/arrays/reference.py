"""The operators for onnx's evaluator, in plain NumPy: slow, and written for readers.

onnx.reference.ReferenceEvaluator(model, new_ops=onnx_ops.reference_ops()).run(None, inputs)
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from ..model.external_data import load
from ..model.operator_files import python_ops
from ..model.schemas import reference_op
from ..registry import available

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from onnx import ModelProto


def reference_ops(operators: Iterable[Any] = ()) -> list[type[OpRun]]:
    """Return the operators for onnx's ReferenceEvaluator, in plain NumPy.

    They sum in float64 and return the input's type. They are slow, and written
    to be read. There are also classes for the Python operators of
    onnxruntime-extensions in files that the command line has opened.

    Parameters
    ----------
    operators : iterable of custom operators
        Custom operators to include.

    Returns
    -------
    list of type
        A subclass of `onnx.reference.op_run.OpRun` for each operator. Its
        evaluation raises OpError where the operator refuses a value.

    Raises
    ------
    OpError
        An operator is none, or two have the same name.

    Examples
    --------
    >>> from onnx.reference import ReferenceEvaluator
    >>> evaluator = ReferenceEvaluator("model.onnx", new_ops=onnx_ops.reference_ops())
    >>> (y,) = evaluator.run(None, {"image": np.zeros((1, 3, 144, 192), np.float32)})
    """
    of_extensions = [python_op(domain, name, op) for (domain, name), op in python_ops().items()]
    return [reference_op(operator) for operator in available(operators).values()] + of_extensions


class Evaluator:
    """A model as a function from {input: array} to {output: array}, by onnx's evaluator.

    The model is a path, bytes or a ModelProto.

    inputs     names of the inputs without a default
    operators  additional custom operators
    """

    def __init__(
        self, model: str | os.PathLike[str] | bytes | ModelProto, operators: Iterable[Any] = ()
    ) -> None:
        model = load(model, None) if isinstance(model, str | os.PathLike) else model
        self._evaluator = ReferenceEvaluator(model, new_ops=reference_ops(operators))
        proto = self._evaluator.proto_
        defaults = {tensor.name for tensor in proto.graph.initializer}
        self.inputs = [value.name for value in proto.graph.input if value.name not in defaults]

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        outputs = self._evaluator.run(None, dict(feeds))
        return dict(zip(self._evaluator.output_names, outputs, strict=True))


def python_op(domain: str, name: str, op: Callable[..., Any]) -> type[OpRun]:
    """Return the class of a Python operator of onnxruntime-extensions."""

    def compute_outputs(self: OpRun, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        outputs = op(*inputs, **attributes)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    return type(name, (OpRun,), {"op_domain": domain, "op_schema": None, "_run": compute_outputs})
