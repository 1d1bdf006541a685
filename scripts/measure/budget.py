"""Count the tokens of the package: of Python without comments, docstrings and types, and of C
without comments.

python scripts/measure/budget.py
    by folder, and their sum
python scripts/measure/budget.py --loaded MODEL ...
    what a process loads that compiles and runs these models

Types are annotations, and blocks that only type checkers read (`if TYPE_CHECKING:`). A string of
more than 80 characters counts as several tokens, so that code gains nothing by moving into strings.
Where the formatter breaks lines is layout: the last comma within brackets doesn't count if the
closing one is on the next line, a string that goes on in the next line is one string, and
parentheses around an expression don't count if they only allow it to be on several lines.
tests/test_budget.py bounds both sums. The count is the same on every version of Python, which
tokenize's is not.
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
