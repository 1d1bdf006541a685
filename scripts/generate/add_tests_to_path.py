"""Let scripts import what they share with tests: they import this module before `support`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
