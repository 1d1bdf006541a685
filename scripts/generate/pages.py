"""Put the address of the repository, from pyproject.toml, into README.md and the pages of docs/.

python scripts/generate/pages.py
"""

import argparse
import re

import add_tests_to_path  # noqa: F401
from support.pages import CLONE, ROOT, addresses, repository

from onnx_ops.system.files import staged_file


def main():
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        if addresses(before := page.read_text()):
            with staged_file(page) as new:
                new.write_text(re.sub(CLONE, f"git clone {repository()}", before))


if __name__ == "__main__":
    main()
