"""Let scripts and tests import what tests share: those that do so import this module first."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support import FOLDERS

sys.path[:0] = map(str, FOLDERS)
