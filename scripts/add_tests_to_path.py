"""Let scripts and tests import what tests share: those that do so import this module first."""

import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent / "tests"
FOLDERS = sorted({TESTS, *(path.parent for path in TESTS.glob("*/test_*.py"))})  # where tests are
sys.path[:0] = map(str, FOLDERS)
