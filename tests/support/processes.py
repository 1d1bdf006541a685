"""New processes that can import what the tests can, and threads that work at the same time."""

import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TESTS = Path(__file__).parent.parent
SCRIPTS = TESTS.parent / "scripts"


def environment(*folders, **more):
    """The environment of a process that finds modules in these folders, in tests/ and scripts/, and where this does."""
    paths = [*map(str, (*folders, TESTS, SCRIPTS)), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **more}


def python(script, *arguments, folders=(), cwd=None, check=True, **more):
    """Run a script in a new process; return the process, which has ended well unless `check` is False.

    folders   where it finds modules first
    more      variables of its environment
    """
    command = [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(script), *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=environment(*folders, **more), capture_output=True, text=True)
    assert not check or done.returncode == 0, f"exit status {done.returncode}: {done.stderr[-3000:]}"
    return done


def together(work, count):
    """Return [work(0), work(1), ...], each called in a thread of its own."""
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(work, range(count)))
