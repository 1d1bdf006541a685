"""Let scripts import tests/support, which they share with the tests: those that do so import this module first."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
