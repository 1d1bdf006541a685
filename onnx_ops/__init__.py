"""PyTorch's fold, unfold and grid_sample in ONNX Runtime: complete, fast, on exported models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import OpError
from .runtime.on_import import OnImport

__version__ = "0.1.0"

# {public name: its module}, which is imported when the name is first used: `import onnx_ops` stays light.
_HOME = {
    "FLOATS": "dtypes",
    "INTEGERS": "dtypes",
    "InferenceSession": "runtime.session",
    "Runner": "runtime.runner",
    "build": "runtime.build",
    "check": "own.check",
    "col2im": "functions",
    "deform_conv": "functions",
    "deformable_attention": "functions",
    "export": "export",
    "get_library_path": "runtime.native",
    "grid_sample": "functions",
    "im2col": "functions",
    "jitable": "compiler.jit",
    "lower": "runtime.lowering",
    "operator": "own.operator",
    "operators": "operators",
    "optimize": "rewriting",
    "reference_ops": "reference",
    "register": "runtime.session",
    "register_schemas": "schemas",
    "require": "errors",
    "roi_align": "functions",
    "warmup": "runtime.warmup",
}
__all__ = ["OpError", *_HOME]

if TYPE_CHECKING:
    from . import export as export
    from .compiler.jit import jitable as jitable
    from .dtypes import FLOATS as FLOATS
    from .dtypes import INTEGERS as INTEGERS
    from .errors import require as require
    from .functions import col2im as col2im
    from .functions import deform_conv as deform_conv
    from .functions import deformable_attention as deformable_attention
    from .functions import grid_sample as grid_sample
    from .functions import im2col as im2col
    from .functions import roi_align as roi_align
    from .operators import Package as _Package
    from .own.check import check as check
    from .own.operator import operator as operator
    from .reference import reference_ops as reference_ops
    from .rewriting import optimize as optimize
    from .runtime.build import build as build
    from .runtime.lowering import lower as lower
    from .runtime.native import get_library_path as get_library_path
    from .runtime.runner import Runner as Runner
    from .runtime.session import InferenceSession as InferenceSession
    from .runtime.session import register as register
    from .runtime.warmup import warmup as warmup
    from .schemas import register_schemas as register_schemas

    operators: _Package


def __getattr__(name: str) -> Any:
    if name in _HOME:
        module = import_module(f".{_HOME[name]}", __name__)
        value = module if name == _HOME[name] else getattr(module, name)
        return globals().setdefault(name, value)  # so that Python doesn't call __getattr__ for it again
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


# Lowered models run in plain sessions that know onnxruntime_extensions, which must then know our ops.
OnImport("onnxruntime_extensions", lambda: import_module(".runtime.extensions", __name__))
