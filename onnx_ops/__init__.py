"""Fast CPU kernels for image sampling in ONNX Runtime.

GridSample, Col2Im, RoiAlign, deformable convolution.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .declaration.errors import OpError
from .system.on_import import OnImport

__version__ = "0.1.0"

# {public name: its module}, which is imported when the name is first used: `import onnx_ops` stays
# light.
_HOME = {
    "FLOATS": "declaration.dtypes",
    "INTEGERS": "declaration.dtypes",
    "InferenceSession": "session.session",
    "Runner": "session.runner",
    "build": "ahead.build",
    "check": "custom.check",
    "col2im": "arrays.functions",
    "deform_conv": "arrays.functions",
    "deformable_attention": "arrays.functions",
    "export": "export",
    "get_library_path": "session.native_backend",
    "grid_sample": "arrays.functions",
    "im2col": "arrays.functions",
    "install": "session.installation",
    "jitable": "declaration.jit",
    "lower": "session.lowering",
    "node_counts": "session.overview",
    "operator": "custom.operator",
    "operators": "session.overview",
    "optimize": "rewriting",
    "reference_ops": "arrays.reference",
    "register": "session.register",
    "register_schemas": "model.schemas",
    "require": "declaration.errors",
    "roi_align": "arrays.functions",
    "warmup": "ahead.warmup",
}
__all__ = ["OpError", *_HOME]

if TYPE_CHECKING:
    from . import export as export
    from .ahead.build import build as build
    from .ahead.warmup import warmup as warmup
    from .arrays.functions import col2im as col2im
    from .arrays.functions import deform_conv as deform_conv
    from .arrays.functions import deformable_attention as deformable_attention
    from .arrays.functions import grid_sample as grid_sample
    from .arrays.functions import im2col as im2col
    from .arrays.functions import roi_align as roi_align
    from .arrays.reference import reference_ops as reference_ops
    from .custom.check import check as check
    from .custom.operator import operator as operator
    from .declaration.dtypes import FLOATS as FLOATS
    from .declaration.dtypes import INTEGERS as INTEGERS
    from .declaration.errors import require as require
    from .declaration.jit import jitable as jitable
    from .model.schemas import register_schemas as register_schemas
    from .rewriting import optimize as optimize
    from .session.installation import install as install
    from .session.lowering import lower as lower
    from .session.native_backend import get_library_path as get_library_path
    from .session.overview import node_counts as node_counts
    from .session.overview import operators as operators
    from .session.register import register as register
    from .session.runner import Runner as Runner
    from .session.session import InferenceSession as InferenceSession


def __getattr__(name: str) -> Any:
    if name in _HOME:
        module = import_module(f".{_HOME[name]}", __name__)
        value = module if name == _HOME[name] else getattr(module, name)
        # So that Python doesn't call __getattr__ for it again.
        return globals().setdefault(name, value)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


# Lowered models also run in plain sessions with the library of onnxruntime_extensions, which then
# needs our ops.
OnImport("onnxruntime_extensions", lambda: import_module(".session.extensions", __name__))
