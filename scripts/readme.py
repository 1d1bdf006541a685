"""Tables of the README that scripts write, between two marks of the same name."""

from pathlib import Path

ROOT = Path(__file__).parent.parent


def put(name, text):
    """Replace what is between the two `<!-- name -->`."""
    readme, mark = ROOT / "README.md", f"<!-- {name} -->"
    before, _, after = readme.read_text().split(mark)
    readme.write_text(f"{before}{mark}\n{text}\n{mark}{after}")
