"""Write the list of operators in onnx_ops/registry.py from what the files of the families declare.

python scripts/generate/list_operators.py
"""

import argparse
import re
import textwrap

import add_tests_to_path  # noqa: F401
from support.declared_operators import PACKAGE, titles_by_file

from onnx_ops.system.files import staged_file

WIDTH = 100  # characters of a line
LIST = re.compile(r"(?<=^FILES = \{\n).*?(?=^\}$)", re.MULTILINE | re.DOTALL)


def entry(file: str, titles: str) -> str:
    """Return the lines of a file's titles in the list."""
    line = f'    "{file}": "{titles}",\n'
    if len(line) <= WIDTH + 1:
        return line
    rows = textwrap.wrap(titles, WIDTH - 10, break_long_words=False, break_on_hyphens=False)
    return f'    "{file}": """\n' + "".join(f"        {row}\n" for row in rows) + '    """,\n'


def main():
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    path = PACKAGE / "registry.py"
    lines = "".join(entry(file, titles) for file, titles in titles_by_file().items())
    with staged_file(path) as new:
        new.write_text(LIST.sub(lines, path.read_text()))


if __name__ == "__main__":
    main()
