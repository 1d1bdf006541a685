"""What is in folders."""

from pathlib import Path


def contents(directory: Path | str) -> dict[str, bytes]:
    """Return {path below a directory: bytes}, without what Python compiles when it imports a file
    there.
    """
    files = [
        p for p in Path(directory).rglob("*") if p.is_file() and p.parent.name != "__pycache__"
    ]
    return {str(p.relative_to(directory)): p.read_bytes() for p in files}
