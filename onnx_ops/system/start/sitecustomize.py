"""The module that Python imports when it starts, for `onnx_ops.install`.

It is in a folder that `onnx_ops.install` has added to PYTHONPATH.

It runs in any Python that inherits the variable, so it imports nothing of onnx_ops before
onnxruntime is imported.
"""

import functools
import importlib.util
import os
import sys
import threading
from typing import Any

FOLDER = os.path.dirname(__file__)  # as sys.path has it
ON_IMPORT = os.path.join(os.path.dirname(FOLDER), "on_import.py")


def import_hidden_module() -> None:
    """Import the module sitecustomize that the environment has without this one."""
    sys.path[:] = [path for path in sys.path if path != FOLDER]
    this = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", this)


def wait_for_session() -> None:
    """Install what the environment states when the first session is made.

    This Python must have onnx_ops.
    """
    if importlib.util.find_spec("onnx_ops") is None:
        print(
            f"onnx_ops is not used by {sys.executable}: it is not installed there", file=sys.stderr
        )
        return
    from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession

    make_ort_session = InferenceSession.__init__
    lock = threading.RLock()

    @functools.wraps(make_ort_session)
    def make_first_session(self: Any, *arguments: Any, **kwargs: Any) -> None:
        with lock:
            if InferenceSession.__init__ is make_first_session:
                InferenceSession.__init__ = make_ort_session
                try:
                    importlib.import_module("onnx_ops.session.installation")  # which installs
                except ImportError as error:
                    print(f"onnx_ops is not used by {sys.executable}: {error}", file=sys.stderr)
        InferenceSession.__init__(self, *arguments, **kwargs)

    make_first_session.make_ort_session = make_ort_session  # type: ignore[attr-defined]
    InferenceSession.__init__ = make_first_session


if "ONNX_OPS_INSTALL" in os.environ:
    spec: Any = importlib.util.spec_from_file_location("_onnx_ops_on_import", ON_IMPORT)
    on_import = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(on_import)
    on_import.OnImport("onnxruntime", wait_for_session)
import_hidden_module()  # last, as it may fail
