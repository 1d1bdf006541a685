"""Read and write the tables that scripts make for the README and docs/; each stands between two marks."""

from pathlib import Path

from onnx_ops.files import staged_file

ROOT = Path(__file__).parent.parent


def get(name, page="README.md"):
    """Return the text between the two marks `<!-- name -->` of a page."""
    return (ROOT / page).read_text().split(f"<!-- {name} -->")[1]


def put(name, text, page="README.md"):
    """Replace the text between the two marks `<!-- name -->` of a page."""
    path, mark = ROOT / page, f"<!-- {name} -->"
    before, _, after = path.read_text().split(mark)
    with staged_file(path) as new:
        new.write_text(f"{before}{mark}\n{text}\n{mark}{after}")
