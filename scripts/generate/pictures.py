"""Draw the pictures of pages from what their examples compute, in docs/images.

python scripts/generate/pictures.py                          # of all pages; needs .[export]
python scripts/generate/pictures.py docs/grid_sample.md ...  # of these
"""

import argparse
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import add_tests_to_path  # noqa: F401
from support import pages
from support.pictures import IMAGES, PANELS, draw


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="*", type=Path)
    drawn = [pages.ROOT / f"docs/{name}.md" for name in PANELS]
    drawn += [p for p in (pages.ROOT / "docs/examples").glob("*.md") if ".save(" in p.read_text()]
    for page in [path.absolute() for path in parser.parse_args().pages] or drawn:
        with TemporaryDirectory() as folder:
            os.chdir(folder)
            draw(page)
            for path in Path(folder).glob("*.jpg"):
                shutil.copy(path, IMAGES)
            os.chdir(IMAGES)


if __name__ == "__main__":
    main()
