"""Modules that tests share: tables of cases, oracles, backends, generators of inputs.

They contain no tests.
"""

from pathlib import Path

TESTS = Path(__file__).parent.parent
FOLDERS = sorted({TESTS, *(path.parent for path in TESTS.glob("*/test_*.py"))})  # where tests are
