"""Ctrl-C while Python works for ONNX Runtime arrives as KeyboardInterrupt, whatever the program catches."""

import os
import signal
import subprocess
import sys
import time

import pytest
from selection import long_unless, on_demand
from test_processes import HERE, PATIENCE, SETUP

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there, no process can be sent a SIGINT of its own")

SLOWLY = """
import signal, time
import onnxruntime as ort
from onnx_ops.kernels import compiler
from backends import with_extensions
compile_now = compiler.object_code
def slowly(*args):
    print("compiling", flush=True)
    time.sleep(3)
    return compile_now(*args)
compiler.object_code = slowly
case = CASES[0]
inputs = case.inputs("float32")
proto = model(case.domain, case.op_type, inputs, case.attributes)
lowered = onnx_ops.lower(proto).SerializeToString()

def plain():
    return ort.InferenceSession(proto.SerializeToString(), onnx_ops.register(quiet(), proto))

def run_lowered():
    return run(ort.InferenceSession(lowered, with_extensions(quiet())), inputs)

def serve(work):
    try:
        work()
    except Exception as error:
        print("caught", error, flush=True)
    for _ in range(1000):
        time.sleep(0.01)
    print("goes on", flush=True)

"""


def signalled(script, ready, delay, number=signal.SIGINT, **environment):
    """What a process prints, and its status, that gets a signal `delay` seconds after its first line, `ready`."""
    process = subprocess.Popen(
        [sys.executable, "-c", SETUP + script], cwd=HERE, env={**os.environ, "TESTS": str(HERE), **environment},
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout.readline() == f"{ready}\n", process.communicate()
    time.sleep(delay)
    process.send_signal(number)
    return (*process.communicate(timeout=PATIENCE), process.returncode)


def interrupted(work, cache, number=signal.SIGINT):
    """The same of a process that gets it while a kernel compiles."""
    return signalled(SLOWLY + work, "compiling", 0.2, number, NUMBA_CACHE_DIR=str(cache))


WORKS = {
    "session": "make(case)",
    "plain session": "plain()",
    "function": "functions()",
    "extensions": "make(case, 'extensions')()",
    "plain session, extensions": "run_lowered()",
    "warmup": "onnx_ops.warmup(['Col2Im'], ['float32'])",
}


@on_demand
@pytest.mark.parametrize("work", [long_unless(work in ("session", "function"), work) for work in WORKS])
def test_ctrl_c_while_a_kernel_compiles(work, tmp_path):
    """It ends a program that catches every Exception, and none of its own kind is printed before."""
    out, err, code = interrupted(f"serve(lambda: {WORKS[work]})", tmp_path)
    assert "goes on" not in out
    # Python forgets what has ended it where a thread, such as the one that compiles, executes code afterwards.
    assert code in (-signal.SIGINT, 1), err
    assert err.rstrip().endswith("KeyboardInterrupt"), err
    assert "ignored" not in err


@on_demand
@pytest.mark.long
def test_ctrl_c_during_a_warmup_of_several_processes(tmp_path):
    """They end with it, say nothing, and leave no halves of files."""
    script = """
import psutil
from onnx_ops.runtime import warmup, workers
workers.PROGRAM = "import time; time.sleep(0.5); " + workers.PROGRAM
def show(name, index, total):
    if index == 1:  # each of the two has got its first
        print("compiling", flush=True)
try:
    warmup.warmup(["Col2Im"], jobs=2, progress=show)
except KeyboardInterrupt:
    print(psutil.Process().children())
"""
    out, err, code = signalled(script, "compiling", 1.5, NUMBA_CACHE_DIR=str(tmp_path))
    assert (out, err, code) == ("[]\n", "", 0)
    assert {f.suffix for f in tmp_path.rglob("*") if f.is_file()} <= {".code"}
    assert not list(tmp_path.rglob(".onnx_ops-*"))


@on_demand
@pytest.mark.long
def test_after_ctrl_c_the_process_can_go_on(tmp_path):
    """It compiles what was interrupted, and Ctrl-C does what it did before."""
    script = """
before = signal.getsignal(signal.SIGINT)
try:
    plain()
    time.sleep(10)
except KeyboardInterrupt as error:
    print("interrupted", flush=True)
assert signal.getsignal(signal.SIGINT) is before
compiler.object_code = compile_now
check()
print("done")
"""
    out, err, code = interrupted(script, tmp_path)
    assert (out, err, code) == ("interrupted\ndone\n", "", 0)


@on_demand
@pytest.mark.parametrize("work", [long_unless(work == "plain session", work) for work in WORKS])
def test_an_exit_while_a_kernel_compiles(work, tmp_path):
    """As servers leave upon SIGTERM: with the status that they state."""
    script = f"signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); serve(lambda: {WORKS[work]})"
    out, err, code = interrupted(script, tmp_path, signal.SIGTERM)
    assert (code, err) == (7, ""), out


@pytest.mark.long
def test_ctrl_c_while_onnx_runtime_works(tmp_path):
    """Python meets it when it is called next, before the first line of one of our functions, outside of any `try`."""
    script = """
import onnx
from onnx import helper, TensorProto
from cases import finished
import onnxruntime as ort

ones = np.ones((2000, 2000), np.float32)
products = [helper.make_node("MatMul", [f"product_{k}", "ones"], [f"product_{k + 1}"]) for k in range(9)]
nodes = [
    helper.make_node("Identity", ["ones"], ["product_0"]),
    *products,  # which ONNX Runtime computes when the session is made, for longer than the signal takes
    helper.make_node("ReduceMin", ["product_9"], ["scale"], keepdims=0),
    helper.make_node("Mul", ["x", "scale"], ["scaled"]),
    *(helper.make_node("Col2Im", ["scaled", "image_shape", "block_shape"], [y]) for y in "yz"),
]
constants = {"ones": ones, "image_shape": np.array([5, 5]), "block_shape": np.array([3, 3])}
described = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xyz"]
initializers = [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()]
proto = finished(helper.make_graph(nodes, "long", described[:1], described[1:], initializers)).SerializeToString()
options = onnx_ops.register(quiet())
print("ready", flush=True)
try:
    ort.InferenceSession(proto, options)
except KeyboardInterrupt:
    print("interrupted")
check()
print("done")
"""
    out, err, code = signalled(script, "ready", 0.3, NUMBA_CACHE_DIR=str(tmp_path))
    assert (out, code) == ("interrupted\ndone\n", 0), err
