"""New processes that can import what the tests can, and threads that work at the same time."""

import os
import shutil
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import onnx_ops

from . import FOLDERS, TESTS

SCRIPTS = TESTS.parent / "scripts"


def environment(*folders, **more):
    """The environment of a process that finds modules in these folders, in FOLDERS, scripts/, and
    where this does.
    """
    paths = [
        *map(str, (*folders, *FOLDERS, SCRIPTS)),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **more}


def python(script, *arguments, folders=(), cwd=None, check=True, **more):
    """Run a script in a new process; return the process, which has ended well unless `check` is
    False.

    folders   where it finds modules first
    more      variables of its environment
    """
    command = [
        sys.executable,
        "-X",
        "faulthandler",
        "-c",
        textwrap.dedent(script),
        *map(str, arguments),
    ]
    done = subprocess.run(
        command, cwd=cwd, env=environment(*folders, **more), capture_output=True, text=True
    )
    assert not check or done.returncode == 0, (
        f"exit status {done.returncode}: {done.stderr[-3000:]}"
    )
    return done


def copy_package(folder, file, source):
    """Copy the package into a folder, with one more file of operators in it, such as
    fold/shift.py.
    """
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(onnx_ops.__file__).parent, folder / "onnx_ops", ignore=ignored)
    (folder / "onnx_ops" / file).write_text(source)
    python("import list_operators; list_operators.main()", folders=[folder], cwd=folder)


def on_disk(options, folder, *command, **more):
    """Run a command that finds another disk in a folder; return the process. Skip the test where
    this is impossible.

    options   for mounting a tmpfs, such as "size=4k"
    more      variables of its environment
    """
    enter, mount = (
        ["unshare", "--map-root-user", "--mount", "sh", "-c"],
        f'mount -t tmpfs -o {options} none "$0"',
    )
    if (
        not shutil.which("unshare")
        or subprocess.run([*enter, mount, folder], capture_output=True).returncode
    ):
        pytest.skip("there are no mount namespaces here")
    command = [*enter, f'{mount} && cd "$0" && exec "$@"', *map(str, (folder, *command))]
    return subprocess.run(command, env=environment(**more), capture_output=True, text=True)


def together(work, count):
    """Return [work(0), work(1), ...], each called in a thread of its own."""
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(work, range(count)))
