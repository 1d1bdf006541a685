"""Write the list of operators in onnx_ops/registry.py from what the files of the families declare.

python scripts/list_operators.py
"""

import re
from importlib import import_module
from pathlib import Path

import onnx_ops
from onnx_ops.system.files import staged_file

PACKAGE = Path(onnx_ops.__file__).parent
FAMILIES = "fold", "sampling", "detection", "openmmlab"
LIST = re.compile(r"(?<=^FILES = \{\n).*?(?=^\}$)", re.MULTILINE | re.DOTALL)


def declared_files():
    """Return {title of an operator: the file that declares it}, of all files of the families."""
    found = {}
    for path in (path for family in FAMILIES for path in sorted((PACKAGE / family).glob("*.py"))):
        file = f"{path.parent.name}.{path.stem}"
        for operator in getattr(import_module(f"onnx_ops.{file}"), "OPERATORS", ()):
            found[operator.title] = file
    return found


def main():
    path = PACKAGE / "registry.py"
    lines = "".join(f'    "{title}": "{file}",\n' for title, file in declared_files().items())
    with staged_file(path) as new:
        new.write_text(LIST.sub(lines, path.read_text()))


if __name__ == "__main__":
    main()
