"""Modules that tests and scripts share: tables of cases, oracles, backends, generators of inputs.

They contain no tests.
"""

from pathlib import Path

TESTS = Path(__file__).parent.parent
