"""The operators that the files of the families declare."""

from importlib import import_module
from pathlib import Path

import onnx_ops

PACKAGE = Path(onnx_ops.__file__).parent


FAMILIES = "fold", "sampling", "detection", "openmmlab"


def declared_files() -> dict[str, str]:
    """Return {title of an operator: the file that declares it}, of all files of the families."""
    found = {}
    for path in (path for family in FAMILIES for path in sorted((PACKAGE / family).glob("*.py"))):
        file = f"{path.parent.name}.{path.stem}"
        for operator in getattr(import_module(f"onnx_ops.{file}"), "OPERATORS", ()):
            found[operator.title] = file
    return found
