"""Sessions of ONNX Runtime alone, whatever a program has made of the name `onnxruntime.InferenceSession`."""

from collections.abc import Iterable

from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession as OrtSession

ON_CPU = "CPUExecutionProvider", "AzureExecutionProvider"  # the latter runs none of the operators that models have


class BuiltinSession(OrtSession):
    """A session that `onnx_ops.install` doesn't change."""


def other_providers(names: Iterable[str]) -> list[str]:
    """Return the execution providers among `names` that run nodes elsewhere than on the CPU."""
    return [name for name in names if name not in ON_CPU]
