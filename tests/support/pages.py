"""Read and run the examples of README.md and docs/, and read and write the tables that scripts make
for them.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

from onnx_ops.system.files import staged_file

from . import TESTS

ROOT = TESTS.parent
EXAMPLE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CLONE = r"git clone (\S+)"
CONTINUED = re.compile(r"continues?\s+those\s+of\s+\[[^\]]*\]\(([^)]+)\)")  # names the page before


def get(name: str, page: str = "README.md") -> str:
    """Return the text between the two marks `<!-- name -->` of a page."""
    return (ROOT / page).read_text().split(f"<!-- {name} -->")[1]


def put(name: str, text: str, page: str = "README.md") -> None:
    """Replace the text between the two marks `<!-- name -->` of a page."""
    path, mark = ROOT / page, f"<!-- {name} -->"
    before, _, after = path.read_text().split(mark)
    with staged_file(path) as new:
        new.write_text(f"{before}{mark}\n{text}\n{mark}{after}")


def examples(path: Path, language: str) -> list[str]:
    """Return the examples of a page in a language, such as "python"."""
    return [code for tag, code in EXAMPLE.findall(path.read_text()) if tag == language]


def program(path: Path) -> str:
    """Return the Python examples of a page, after those of the page that they continue, if it names
    one.
    """
    before = CONTINUED.search(path.read_text())
    return "\n".join(
        [*([program(path.parent / before[1])] if before else []), *examples(path, "python")]
    )


def run(path: Path) -> dict[str, Any]:
    """Run the Python examples of a page, one after the other, in the current folder; returns the
    names they define.
    """
    code, file = program(path), Path("example.py").absolute()
    file.write_text(code)  # torch and numba want to see sources
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, file, "exec"), names)
    return names


def addresses(text: str) -> list[str]:
    """Return the address that each `git clone` in a text names."""
    return re.findall(CLONE, text)


def repository() -> str:
    """Return the address of the repository, from pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]


PLANNED = ROOT / "docs/operator-declarations.md"


def operator_file() -> str:
    """The example that declares an operator by a plan, which is also a file for the folder of a
    family.
    """
    (code,) = (each for each in examples(PLANNED, "python") if "OPERATORS = (SHIFT,)" in each)
    return code
