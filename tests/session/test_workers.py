"""Processes that compile: they import what the program imports, and end with it, whatever ends
it.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE
from typing import Any

import psutil
import pytest
from support.processes import environment, on_disk
from support.selection import on_demand

import onnx_ops
from onnx_ops.native import library
from onnx_ops.session import variants, workers

PATIENCE = 600  # seconds
needs_signals = pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL there")
pytestmark = pytest.mark.skipif(library.is_complete(), reason="nothing is compiled")

PROGRAM = """
print("main", flush=True)
from onnx_ops.session import variants, workers
needed = variants.distinct(variants.asked_for([{operator!r}], None, {dtypes}))
workers.compile_variants(needed, 2, lambda *_: print("begins\\n", end="", flush=True))
print("done")
"""  # has no `if __name__ == "__main__"`


@on_demand
@pytest.mark.long
@needs_signals
@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_a_program_that_is_killed_leaves_no_process(name: str, tmp_path: Path) -> None:
    """The program's main module is not imported again."""
    (tmp_path / "program.py").write_text(
        PROGRAM.format(operator="GridSample", dtypes="variants.TYPES")
    )
    command = [sys.executable, tmp_path / "program.py"]
    settings = environment(NUMBA_CACHE_DIR=str(tmp_path))
    with subprocess.Popen(command, text=True, env=settings, stdout=PIPE, stderr=PIPE) as process:
        assert [process.stdout.readline() for _ in range(3)] == ["main\n", "begins\n", "begins\n"]
        family = psutil.Process(process.pid).children(recursive=True)
        while len(family) < 2:
            family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.Signals[name])
        rest, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, len(family), err) == (-signal.Signals[name], 2, "")
    assert "main" not in rest
    assert not psutil.wait_procs(family, PATIENCE)[1]


@on_demand
@pytest.mark.long
@pytest.mark.parametrize("option", ["size=4k", "ro"])
def test_they_need_no_shared_memory(option: str, tmp_path: Path) -> None:
    """Semaphores and queues of other pools are files in /dev/shm, which may be small, full or
    read-only.
    """
    (tmp_path / "program.py").write_text(
        PROGRAM.format(operator="Im2Col", dtypes=["uint8", "uint16"])
    )
    command = [sys.executable, tmp_path / "program.py"]
    done = on_disk(option, "/dev/shm", *command, NUMBA_CACHE_DIR=str(tmp_path))
    assert (done.stdout.split(), done.stderr, done.returncode) == (
        ["main", "begins", "begins", "done"],
        "",
        0,
    )


OPERATORS = """
import onnx_ops

@onnx_ops.operator("my.domain::Scale", inputs="x: T", outputs="y: T",
    types={"T": ["float32", "float64"]})
def scale(x):
    return x * 2

@scale.shape
def _(x):
    return x

@scale.kernel
def _(x, index, count, workspace, y):
    for k in range(len(x)):
        y[k] = x[k] * 2
"""


@pytest.mark.long
def test_they_import_from_where_this_process_does(tmp_path: Path) -> None:
    """The current folder is no such place, even before a program's first statement."""
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    for name in (*sys.stdlib_module_names, "numpy", "onnx_ops"):
        (here / f"{name}.py").write_text("import os; os._exit(1)")
    (there / "größe.py").write_text(OPERATORS)
    program = there / "program.py"
    program.write_text(
        "import größe, onnx_ops; print(onnx_ops.warmup([größe.scale], ['float32', 'float64'], "
        "jobs=2))"
    )
    settings = environment(NUMBA_CACHE_DIR=str(tmp_path))
    done = subprocess.run(
        [sys.executable, program], cwd=here, env=settings, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr, done.returncode) == ("2\n", "", 0)


def variants_of_im2col() -> dict[str, variants.Variant]:
    return variants.distinct(variants.asked_for(["Im2Col"], ["uint8", "uint16"], ()))


def test_a_process_gets_variants_of_one_operator() -> None:
    """It compiles functions once that these share.

    When none is left, it helps with another operator.
    """
    needed = variants.distinct(variants.asked_for(["Im2Col", "Col2Im"], ["uint8", "uint16"], ()))
    first, second, remaining = threading.local(), threading.local(), workers.Remaining(needed)
    turns = [first, second] * 2 + [first] * (len(needed) - 4)
    operators = [needed[remaining.take(thread)].operator.name for thread in turns]
    assert operators[0] == operators[2] != operators[1] == operators[3]
    assert sorted(operators) == sorted(variant.operator.name for variant in needed.values())


@pytest.mark.parametrize(
    "program",
    ["import sys; sys.exit(0)", "import os; os.kill(os.getpid(), 9)", "print('no answer')"],
)
def test_a_process_that_ends_before_it_begins(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other variants are not begun."""
    monkeypatch.setattr(workers, "PROGRAM", program)
    needed, begun = variants.distinct(variants.asked_for(["Im2Col"], None, variants.TYPES)), []
    with pytest.raises(
        onnx_ops.OpError, match=r"^onnx_ops: a process that compiles onnx_ops\.Im2Col .* has ended$"
    ):
        workers.compile_variants(needed, 2, lambda name, index, total: begun.append(name))
    assert len(begun) <= 3 < len(needed)
    assert not [
        child for child in psutil.Process().children() if "workers" in " ".join(child.cmdline())
    ]


def test_progress_is_reported_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads begin at the same time, and what reports the first variant is slow."""

    def begin_at_once(
        names: dict[str, Any], jobs: int, begin: Callable[[str], None], *_: object
    ) -> dict[str, Any]:
        with ThreadPoolExecutor(jobs) as threads:
            return dict.fromkeys(threads.map(begin, names))

    def progress(name: str, index: int, total: int) -> None:
        time.sleep(0.05 if index == 0 else 0)
        reported.append((index, total))

    monkeypatch.setattr(workers, "compile_in_processes", begin_at_once)
    needed, reported = variants_of_im2col(), []
    workers.compile_variants(needed, 2, progress)
    assert reported == [(index, len(needed)) for index in range(len(needed))]
    assert len(needed) >= 2


@needs_signals
def test_a_process_that_is_killed_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others end, too, and the error names what it was compiling."""
    killed = workers.PROGRAM.replace(
        "workers.serve()",
        "from onnx_ops.session.variants import Variant; import os; "
        "Variant.compile = lambda *_: os.kill(os.getpid(), 9); workers.serve()",
    )
    monkeypatch.setattr(workers, "PROGRAM", killed)
    with pytest.raises(
        onnx_ops.OpError, match=r"^onnx_ops: a process that compiles onnx_ops\.Im2Col .* has ended$"
    ):
        workers.compile_variants(variants_of_im2col(), 2)
