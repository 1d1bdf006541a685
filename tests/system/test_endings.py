"""How commands end that are interrupted, or whose output can't be written."""

import io
import logging
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
from support.commands import invoke
from support.processes import TESTS, environment
from support.selection import long_unless

from onnx_ops.cli import app, console

pytestmark = pytest.mark.any_library

COMMANDS = [["--help"], ["inspect", "--help"], ["inspect"], ["inspect", "--json"]]
MODEL = TESTS.parent / "models" / "exported" / "patch_fold" / "model.onnx"
FULL = Path("/dev/full")


def ended(arguments, unbuffered, **streams):
    """Run a command and return its (exit code, stderr)."""
    arguments = [*arguments, str(MODEL)] if arguments[0] == "inspect" else arguments
    command = [sys.executable, "-m", "onnx_ops", *arguments]
    streams = {"stderr": subprocess.PIPE, **streams}
    done = subprocess.run(
        command, env=environment(PYTHONUNBUFFERED=unbuffered), text=True, check=False, **streams
    )
    return done.returncode, done.stderr


def closed_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w")


@pytest.mark.parametrize("unbuffered", ["", long_unless(False, "1")])
@pytest.mark.parametrize(
    "arguments", [long_unless(k == 0, each) for k, each in enumerate(COMMANDS)], ids=" ".join
)
def test_a_closed_pipe_ends_quietly(arguments, unbuffered):
    with closed_pipe() as pipe:
        assert ended(arguments, unbuffered, stdout=pipe) == (141, "")


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("unbuffered", ["", long_unless(False, "1")])
@pytest.mark.parametrize(
    "arguments", [long_unless(k == 1, each) for k, each in enumerate(COMMANDS)], ids=" ".join
)
def test_output_without_room_is_a_sentence(arguments, unbuffered):
    with open(FULL, "w") as full:
        expected = 3, "Error: the output can't be written: No space left on device\n"
        assert ended(arguments, unbuffered, stdout=full) == expected


@pytest.mark.long
def test_a_file_without_room_is_named(tmp_path):
    resource = pytest.importorskip("resource")

    def leave_little_room():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    given = [MODEL, "--random", "--shape", "image=1,3,144,192", "--output", tmp_path]
    code, text = ended(["run", *map(str, given)], "", preexec_fn=leave_little_room)
    assert code == 3
    assert text.startswith(f"Error: onnx_ops: {tmp_path / 'output.npy'} can't be written: ")
    assert not any(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")
@pytest.mark.parametrize(
    ("arguments", "stream", "code"),
    [
        (["--help"], partial(open, FULL, "w"), 3),
        (["run", "nothing"], closed_pipe, 141),
    ],
    ids=["no room", "a closed pipe"],
)
def test_where_not_even_the_error_can_be_said(arguments, stream, code):
    with stream() as nowhere:
        assert ended(arguments, "", stdout=nowhere, stderr=nowhere)[0] == code


def test_an_interrupted_command():
    """Ctrl-C ends a command while it works."""
    code = """
import time
from onnx_ops.cli import main
from onnx_ops.cli import list as command

def backends():
    print("working", flush=True)
    time.sleep(1000)

command.backends = backends
main()
"""
    command = [sys.executable, "-c", code, "versions", "--json"]
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"working\n"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=600)
    assert process.returncode == 130
    assert stderr == b""


def log_a_compilation(in_the_middle=lambda: None):
    """Log what compiler/code.py does while kernels are compiled."""
    log = logging.getLogger("onnx_ops")
    log.info("onnx_ops: compiling a function of %s", "Col2Im", extra={"compiling": "Col2Im"})
    log.warning("onnx_ops: compiling kernels", extra={"compiling": "Col2Im"})
    in_the_middle()
    log.info("onnx_ops: a function took %.1f s", 3.0, extra={"compiling": None})
    log.warning("onnx_ops: something else")


@pytest.mark.parametrize("in_a_bar", [False, True])
def test_compilation_on_a_terminal(in_a_bar, monkeypatch, capsys):
    """A progress line, or the bar that there is, shows it in place of messages."""
    stream = io.StringIO()
    screen = console.Screen(file=stream, force_terminal=True, width=100)
    for module in app, console:
        monkeypatch.setattr(module, "console", lambda stderr=False: screen)
    with app.shown_warnings(False), console.progress() if in_a_bar else nullcontext() as bar:
        if in_a_bar:
            bar.add_task("items")
        log_a_compilation((bar and bar.refresh) or (lambda: None))
        assert "compiling Col2Im (once, a few seconds)" in stream.getvalue()
        assert ("items" in stream.getvalue()) == in_a_bar
        assert console.CompilationColumn.title is console.CompilationColumn.line is None
    assert console.CompilationColumn.bars == 0
    warnings = [
        line
        for line in (stream.getvalue() + capsys.readouterr().err).splitlines()
        if "Warning" in line
    ]
    assert len(warnings) == 1
    assert "something else" in warnings[0]


def test_a_bar_without_a_terminal(monkeypatch):
    """It is never started: rich 13.0 ends also a disabled bar by an empty line."""
    monkeypatch.setattr(console.Progress, "start", lambda bar: pytest.fail("started"))
    monkeypatch.setattr(console.Progress, "stop", lambda bar: pytest.fail("stopped"))
    monkeypatch.setattr(
        console, "console", lambda stderr: console.Screen(file=io.StringIO(), force_terminal=False)
    )
    with console.progress() as bar:
        bar.update(bar.add_task("items"), advance=1)


@pytest.mark.parametrize("with_tracebacks", [False, True])
def test_compilation_without_a_terminal(with_tracebacks, capsys):
    with app.shown_warnings(with_tracebacks):
        log_a_compilation()
    assert capsys.readouterr().err == "Warning: compiling kernels\nWarning: something else\n"


def test_exit_codes_are_documented():
    text = invoke("--help").output
    page = (TESTS.parent / "docs" / "command-line.md").read_text()
    for code in (0, 1, 2, app.FAILED, app.INTERRUPTED, app.CLOSED_PIPE):
        assert f"\n    {code:<3}  " in text
        assert f"\n| {code} |" in page
