"""Let scripts import what they share with the tests: those that do so import this module first."""

import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent / "tests"
sys.path[:0] = map(str, sorted({TESTS, *(path.parent for path in TESTS.glob("*/test_*.py"))}))
