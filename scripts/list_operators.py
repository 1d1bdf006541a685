"""Write the list of operators in onnx_ops/registry.py from what the files of the families declare.

python scripts/list_operators.py
"""

import re
import textwrap
from importlib import import_module
from pathlib import Path

import onnx_ops
from onnx_ops.system.files import staged_file

PACKAGE = Path(onnx_ops.__file__).parent
WIDTH = 100  # characters of a line
FAMILIES = "fold", "sampling", "detection", "openmmlab"
LIST = re.compile(r"(?<=^FILES = \{\n).*?(?=^\}$)", re.MULTILINE | re.DOTALL)


def titles_by_file():
    """Return {file: titles of the operators that it declares}, of all files of the families."""
    titles = {}
    for path in (path for family in FAMILIES for path in sorted((PACKAGE / family).glob("*.py"))):
        file = f"{path.parent.name}.{path.stem}"
        if operators := getattr(import_module(f"onnx_ops.{file}"), "OPERATORS", ()):
            titles[file] = " ".join(dict.fromkeys(operator.title for operator in operators))
    return titles


def entry(file, titles):
    """Return the lines of a file's titles in the list."""
    line = f'    "{file}": "{titles}",\n'
    if len(line) <= WIDTH + 1:
        return line
    rows = textwrap.wrap(titles, WIDTH - 10, break_long_words=False, break_on_hyphens=False)
    return f'    "{file}": """\n' + "".join(f"        {row}\n" for row in rows) + '    """,\n'


def main():
    path = PACKAGE / "registry.py"
    lines = "".join(entry(file, titles) for file, titles in titles_by_file().items())
    with staged_file(path) as new:
        new.write_text(LIST.sub(lines, path.read_text()))


if __name__ == "__main__":
    main()
