"""Write the list of operators in onnx_ops/registry.py from what the files of the families declare.

python scripts/generate/list_operators.py
"""

import argparse
import re

import add_tests_to_path  # noqa: F401
from support.declared_operators import PACKAGE, declared_files

from onnx_ops.system.files import staged_file

LIST = re.compile(r"(?<=^FILES = \{\n).*?(?=^\}$)", re.MULTILINE | re.DOTALL)


def main():
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    path = PACKAGE / "registry.py"
    lines = "".join(f'    "{title}": "{file}",\n' for title, file in declared_files().items())
    with staged_file(path) as new:
        new.write_text(LIST.sub(lines, path.read_text()))


if __name__ == "__main__":
    main()
