"""Count the tokens of the package: of Python without comments, docstrings and types, and of C
without comments.

python scripts/measure/budget.py
    by folder, and their sum
python scripts/measure/budget.py --loaded MODEL ...
    what a process loads that compiles and runs these models

tests/support/budget.py says what counts, and tests/test_budget.py bounds both sums.
"""

import argparse
from pathlib import Path

import add_tests_to_path  # noqa: F401
from support.budget import by_folder, loaded, shipped, table

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--loaded", nargs="+", type=Path, metavar="MODEL")
    chosen = parser.parse_args().loaded
    print(table(by_folder(loaded(chosen) if chosen else shipped())))
