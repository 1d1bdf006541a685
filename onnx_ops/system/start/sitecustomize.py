"""Python imports this module when it starts, from a folder that `onnx_ops.install` has added to PYTHONPATH.

It runs in any Python that inherits the variable, so it imports nothing of onnx_ops before onnxruntime is imported.
"""

import importlib.util
import os
import sys
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


def install() -> None:
    """Install what the environment states, if this Python has onnx_ops."""
    try:
        from onnx_ops.session.installation import install_from_environment
    except ImportError as error:
        print(f"onnx_ops is not used by {sys.executable}: {error}", file=sys.stderr)
        return
    install_from_environment()


import_hidden_module()
if "ONNX_OPS_INSTALL" in os.environ:
    spec: Any = importlib.util.spec_from_file_location("_onnx_ops_on_import", ON_IMPORT)
    on_import = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(on_import)
    on_import.OnImport("onnxruntime", install)
