"""New processes that can import what the tests can, and threads that work at the same time."""

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import onnx_ops

from . import TESTS

FOLDERS = sorted({TESTS, *(path.parent for path in TESTS.glob("*/test_*.py"))})  # with tests
LIST_OPERATORS = TESTS.parent / "scripts" / "generate" / "list_operators.py"


def environment(*folders: Path | str, **variables: str) -> dict[str, str]:
    """The environment of a process that finds modules in these folders, in FOLDERS, and where
    this one does.
    """
    paths = [
        *map(str, (*folders, *FOLDERS)),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables}


def python(
    script: str,
    *arguments: object,
    folders: Iterable[Path | str] = (),
    cwd: Path | str | None = None,
    check: bool = True,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run a script in a new process; return the process, which has ended well unless `check` is
    False.

    folders    where it finds modules first
    variables  of its environment
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
        command, cwd=cwd, env=environment(*folders, **variables), capture_output=True, text=True
    )
    assert not check or done.returncode == 0, (
        f"exit status {done.returncode}: {done.stderr[-3000:]}"
    )
    return done


def copy_package(folder: Path, file: str, source: str) -> None:
    """Copy the package into a folder, with one more file of operators in it, such as
    fold/shift.py.
    """
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(onnx_ops.__file__).parent, folder / "onnx_ops", ignore=ignored)
    (folder / "onnx_ops" / file).write_text(source)
    python(LIST_OPERATORS.read_text(), folders=[folder, LIST_OPERATORS.parent], cwd=folder)


def on_disk(
    options: str, folder: Path, *command: object, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command that finds another disk in a folder; return the process. Skip the test where
    this is impossible.

    options    for mounting a tmpfs, such as "size=4k"
    variables  of its environment
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
    words = [*enter, f'{mount} && cd "$0" && exec "$@"', *map(str, (folder, *command))]
    return subprocess.run(words, env=environment(**variables), capture_output=True, text=True)


def together(work: Callable[[int], Any], count: int) -> list[Any]:
    """Return [work(0), work(1), ...], each called in a thread of its own."""
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(work, range(count)))


PATIENCE = 900  # seconds: longer than a busy machine needs, so that it is a deadlock


# What scripts need that have no cases; the modules with these take longer to import than a small
# kernel to compile.
BARE_SETUP = '''
import logging, os, sys, threading, multiprocessing
sys.path.insert(0, os.environ["TESTS"])
# Other tests are about messages on compilation.
logging.getLogger("onnx_ops").setLevel(logging.ERROR)
import numpy as np, onnx_ops

def one_kernel():
    # The smallest possible kernel, which compiles in a tenth of the time of others.
    from onnx_ops.compiler.code import code
    from onnx_ops.compiler.records import Entry, Number, Step
    from onnx_ops.kernels.shares import pieces
    call = np.array([5, 6])
    assert code(Entry((Step(pieces, (Number(0), Number(8))),))).call(call.ctypes.data) == 0

def as_anybody():
    """Give up root's right, on Linux, to ignore the permissions of files."""
    import ctypes
    if os.geteuid() == 0:
        assert ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0),
            (ctypes.c_uint32 * 6)()) == 0

def together(works):
    from support import processes
    processes.together(lambda k: works[k](), len(works))
'''

SETUP = (
    BARE_SETUP
    + """
sys.modules["torch"] = None  # which onnxruntime-extensions would import
from support.backends import IN_SESSIONS, quiet, run_session
from support.cases import GRID_SAMPLE, assert_close, case_named, expected_of, model

CASES = case_named("everything"), case_named("bilinear_zeros_edges"), GRID_SAMPLE[0]

def make(case, backend="native", dtype="float32", **settings):
    inputs = case.inputs(dtype)
    proto = model(case.domain, case.op_type, inputs, case.attributes).SerializeToString()
    session = onnx_ops.InferenceSession(proto, quiet(**settings), backend=backend)
    return lambda: run_session(session, inputs)

def functions(threads=2):
    for case in CASES:
        call = {"Col2Im": onnx_ops.col2im, "GridSample": onnx_ops.grid_sample}[case.op_type]
        large = [np.concatenate([v] * 400) if v.ndim > 1 else v for v in case.inputs("float32")]
        y = call(*large, **case.attributes, threads=threads)
        assert_close(y[:2], expected_of(case, case.inputs("float32")), "float32")

def assert_cases(backends=IN_SESSIONS, **settings):
    for case in CASES:
        for backend in backends:
            expected = expected_of(case, case.inputs("float32"))
            assert_close(make(case, backend, **settings)(), expected, "float32")
"""
)
