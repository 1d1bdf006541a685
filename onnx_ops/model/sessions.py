"""Sessions of ONNX Runtime alone, even if a program has replaced its class.

The class is `onnxruntime.InferenceSession`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession as OrtSession

if TYPE_CHECKING:
    from collections.abc import Iterable


# The latter runs none of the operators that models have.
ON_CPU = "CPUExecutionProvider", "AzureExecutionProvider"


class BuiltinSession(OrtSession):
    """A session that `onnx_ops.install` doesn't change."""


def other_providers(names: Iterable[str]) -> list[str]:
    """Return the execution providers among `names` that run nodes elsewhere than on the CPU."""
    return [name for name in names if name not in ON_CPU]
