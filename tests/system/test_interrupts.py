"""Ctrl-C while ONNX Runtime calls Python arrives as KeyboardInterrupt, whatever the program
catches.
"""

import os
import signal
import subprocess
import sys
import time

import pytest
from support.processes import PATIENCE, SETUP, TESTS
from support.selection import on_demand

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="no single process can be sent a SIGINT there"
)

COMPILE_SLOWLY = """
import logging, signal, time
import onnxruntime as ort
from onnx_ops.compiler import code, compilation
logging.getLogger("onnx_ops").setLevel("WARNING")
code.PATIENCE = 1000  # without messages on compilation
from support.backends import with_extensions
compile_now = compilation.object_code
def compile_slowly(*args):
    print("compiling", flush=True)
    time.sleep(1)
    return compile_now(*args)
compilation.object_code = compile_slowly
case = CASES[0]
inputs = case.inputs("float32")
proto = model(case.domain, case.op_type, inputs, case.attributes)
lowered = onnx_ops.lower(proto).SerializeToString()

def plain():
    return ort.InferenceSession(proto.SerializeToString(), onnx_ops.register(quiet(), proto))

def run_lowered():
    return run_session(ort.InferenceSession(lowered, with_extensions(quiet())), inputs)

def serve(work):
    try:
        work()
    except Exception as error:
        print("caught", error, flush=True)
    for _ in range(1000):
        time.sleep(0.01)
    print("goes on", flush=True)

"""


def signalled(script, ready, delay, signal_number=signal.SIGINT, **environment):
    """Send a signal to a process `delay` seconds after its line `ready`; return its (output,
    errors, status).
    """
    process = subprocess.Popen(
        [sys.executable, "-c", SETUP + script], cwd=TESTS,
        env={**os.environ, "TESTS": str(TESTS), **environment},
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout.readline() == f"{ready}\n", process.communicate()
    time.sleep(delay)
    process.send_signal(signal_number)
    return (*process.communicate(timeout=PATIENCE), process.returncode)


WAITS = "onnx_ops: interrupted; the process can end in some seconds, when Col2Im is compiled\n"


def interrupted(work, cache, signal_number=signal.SIGINT):
    """Send a signal to a process while a kernel compiles; return its (output, errors, status)."""
    return signalled(
        COMPILE_SLOWLY + work, "compiling", 0.2, signal_number, NUMBA_CACHE_DIR=str(cache)
    )


WORKS = {
    "session": "make(case)",
    "plain session": "plain()",
    "function": "functions()",
    "extensions": "make(case, 'extensions')()",
    "lowered": "run_lowered()",
    "warmup": "onnx_ops.warmup(['Col2Im'], ['float32'])",
}


@on_demand
@pytest.mark.long
@pytest.mark.parametrize("work", WORKS)
def test_ctrl_c_while_a_kernel_compiles(work, tmp_path):
    """Ctrl-C ends a program that catches every Exception."""
    out, err, code = interrupted(f"serve(lambda: {WORKS[work]})", tmp_path)
    assert "goes on" not in out
    # Python exits with 1 if another thread, such as the one that compiles, executes code after the
    # interrupt.
    assert code in (-signal.SIGINT, 1), err
    assert err.rstrip().endswith("KeyboardInterrupt"), err
    assert err.startswith(WAITS), err
    assert "ignored" not in err


@on_demand
@pytest.mark.long
def test_ctrl_c_during_a_warmup_of_several_processes(tmp_path):
    """The processes end with it, print nothing, and leave no partial files."""
    script = """
import logging, psutil
from onnx_ops.ahead import warmup
from onnx_ops.session import workers
logging.getLogger("onnx_ops").setLevel("WARNING")
workers.PROGRAM = "import time; time.sleep(0.5); " + workers.PROGRAM
def show(name, index, total):
    if index == 1:  # both processes have their first kernel
        print("compiling", flush=True)
try:
    warmup.warmup(["Col2Im"], jobs=2, progress=show)
except KeyboardInterrupt:
    print(psutil.Process().children())
"""
    out, err, code = signalled(script, "compiling", 1.5, NUMBA_CACHE_DIR=str(tmp_path))
    said = "onnx_ops: interrupted; this ends in some seconds, when 2 processes have ended\n"
    assert (out, err, code) == ("[]\n", said, 0)
    assert {f.suffix for f in tmp_path.rglob("*") if f.is_file()} <= {".code"}
    assert not list(tmp_path.rglob(".onnx_ops-*"))


@on_demand
@pytest.mark.long
def test_after_ctrl_c_the_process_can_go_on(tmp_path):
    """The process compiles the kernel again, and Ctrl-C works as before."""
    script = """
before = signal.getsignal(signal.SIGINT)
try:
    plain()
    time.sleep(10)
except KeyboardInterrupt as error:
    print("interrupted", flush=True)
assert signal.getsignal(signal.SIGINT) is before
compilation.object_code = compile_now
assert_close(make(case)(), expected_of(case, inputs), "float32")
print("done")
"""
    out, err, code = interrupted(script, tmp_path)
    assert (out, err, code) == ("interrupted\ndone\n", WAITS, 0)


@on_demand
@pytest.mark.long
@pytest.mark.parametrize("work", WORKS)
def test_an_exit_while_a_kernel_compiles(work, tmp_path):
    """The process exits with the status that its handler of SIGTERM states, as servers do."""
    script = f"signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); serve(lambda: {WORKS[work]})"
    out, err, code = interrupted(script, tmp_path, signal.SIGTERM)
    assert (code, err) == (7, WAITS), out


@pytest.mark.long
def test_ctrl_c_while_onnx_runtime_works(tmp_path):
    """Python raises it when it is called next, before the first line of our function and outside of
    any `try`.
    """
    script = """
from support.cases import parsed
import onnxruntime as ort

# ONNX Runtime computes the products when the session is made, which takes longer than the signal.
products = " ".join(f"product_{k + 1} = MatMul (product_{k}, ones)" for k in range(9))
proto = parsed("(float[N, C, L] x) => (float[D, E, F, G] y, float[H, I, J, K] z) { "
    "product_0 = Identity (ones) " + products
    + "scale = ReduceMin <keepdims = 0> (product_9) scaled = Mul (x, scale)"
    + "y = Col2Im (scaled, image, block) z = Col2Im (scaled, image, block) }",
    ones=np.ones((2000, 2000), np.float32), image=[5, 5], block=[3, 3]).SerializeToString()
options = onnx_ops.register(quiet(), domains=[""])
print("ready", flush=True)
try:
    ort.InferenceSession(proto, options)
except KeyboardInterrupt:
    print("interrupted")
case = CASES[0]
assert_close(make(case)(), expected_of(case, case.inputs("float32")), "float32")
print("done")
"""
    out, err, code = signalled(script, "ready", 0.3, NUMBA_CACHE_DIR=str(tmp_path))
    assert (out, code) == ("interrupted\ndone\n", 0), err
