"""Memory of sessions and runs is given back. scripts/measure/leaks.py is the long version."""

import logging
import mmap

import pytest
from support import leaks

# A leak of one C string, array or list per call is some 100 bytes; over 2,000 calls the allocator's
# own growth is less.
ENOUGH = {"sessions": 6000, "runs": 60, "failing runs": 600}
OURS = [w for w in leaks.workloads() if w[1] in ("native", "extensions", "function")]
CALLS = {"sessions": 150, "runs": 5000, "failing runs": 500}


@pytest.fixture(autouse=True)
def no_log():
    """Disable logging: pytest would keep every line."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "name", "work"), OURS, ids=lambda v: v if isinstance(v, str) else ""
)
def test_memory_stays_flat(kind, name, work):
    # The best of three: memory may also grow by the allocator's own doing.
    assert min(leaks.slope(work, CALLS[kind]) for _ in range(3)) < ENOUGH[kind]


def test_a_leak_is_seen():
    kept = []

    def keep():
        """Take pages of the system: malloc may have as much left of the tests before."""
        kept.append(mmap.mmap(-1, 200_000))
        kept[-1].write(b"x" * 200_000)

    assert leaks.slope(keep, 20) > 100_000
