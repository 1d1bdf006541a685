"""The operators that the files of the families declare."""

from importlib import import_module
from pathlib import Path

import onnx_ops

PACKAGE = Path(onnx_ops.__file__).parent


FAMILIES = "fold", "sampling", "detection", "openmmlab"


def titles_by_file() -> dict[str, str]:
    """Return {file: titles of the operators that it declares}, of all files of the families."""
    titles = {}
    for path in (path for family in FAMILIES for path in sorted((PACKAGE / family).glob("*.py"))):
        file = f"{path.parent.name}.{path.stem}"
        if operators := getattr(import_module(f"onnx_ops.{file}"), "OPERATORS", ()):
            titles[file] = " ".join(dict.fromkeys(operator.title for operator in operators))
    return titles
