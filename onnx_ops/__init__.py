"""Col2Im and GridSample for ONNX Runtime: complete, fast, on unmodified models."""

from .errors import OpError

__version__ = "0.1.0"
__all__ = ["InferenceSession", "OpError", "col2im", "get_library_path", "grid_sample", "register"]

_HOME = {
    "col2im": "functions",
    "grid_sample": "functions",
    "InferenceSession": "runtime.session",
    "register": "runtime.session",
}


def get_library_path():
    """For `options.register_custom_ops_library(...)`: a library with the operators of all domains but com.microsoft."""
    from .runtime import native

    return native.library_path()


def __getattr__(name):
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return __all__
