"""The table of docs/custom-operators.md: a custom operator beside one of onnxruntime-extensions, measured.

Each of them computes y = x + 1 in one thread. python scripts/custom_operators.py [--write]
"""

import argparse
import subprocess
import sys
import time
from statistics import median

import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_extensions as extensions
from benchmark.report import processor
from onnxruntime_extensions import PyCustomOpDef, onnx_op
from pages import put

import onnx_ops

SMALL, LARGE, ROUNDS = 5, 2**22, 15  # elements, elements, and how often each call is timed


def declare(name):
    @onnx_ops.operator(f"my.domain::{name}", inputs="x: T", outputs="y: T", types={"T": onnx_ops.FLOATS})
    def increment(x):
        return x + x.dtype.type(1)

    return increment


in_numpy, compiled = declare("InNumPy"), declare("Compiled")


@compiled.shape
def _(x):
    return x


@compiled.kernel(loop=lambda x: x[0])
def _(x, index, count, workspace, y):
    begin, end = len(x) * index // count, len(x) * (index + 1) // count
    source, target = x[begin:end], y[begin:end]
    for k in range(len(source)):
        target[k] = source[k] + np.float32(1)


@onnx_op(op_type="my.domain::OfExtensions", inputs=[PyCustomOpDef.dt_float], outputs=[PyCustomOpDef.dt_float])
def of_extensions(x):
    return x + np.float32(1)


FAILING = """
import numpy as np, onnx, onnxruntime as ort
from onnxruntime_extensions import PyCustomOpDef, get_library_path, onnx_op

@onnx_op(op_type="my.domain::Fails", inputs=[PyCustomOpDef.dt_float], outputs=[PyCustomOpDef.dt_float])
def fails(x):
    raise ValueError("no")

text = '''<ir_version: 8, opset_import: ["" : 18, "my.domain" : 1]>
    example (float[N] x) => (float[N] y) { y = my.domain.Fails (x) }'''
options = ort.SessionOptions()
options.register_custom_ops_library(get_library_path())
session = ort.InferenceSession(onnx.parser.parse_model(text).SerializeToString(), options)
session.run(None, {"x": np.ones(1, np.float32)})
"""


def open_session(name):
    text = f"""<ir_version: 8, opset_import: ["" : 18, "my.domain" : 1]>
        example (float[N] x) => (float[N] y) {{ y = my.domain.{name} (x) }}"""
    model, options = onnx.parser.parse_model(text).SerializeToString(), ort.SessionOptions()
    options.intra_op_num_threads = 1
    if name == "OfExtensions":
        options.register_custom_ops_library(extensions.get_library_path())
        return ort.InferenceSession(model, options)
    return onnx_ops.InferenceSession(model, options, operators=[in_numpy, compiled])


def seconds(call, count):
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count


def measure():
    """Return {implementation: (seconds of a small call, of a large call)}, medians of interleaved rounds."""
    sizes, calls = ((np.ones(SMALL, np.float32), 300), (np.ones(LARGE, np.float32), 3)), {}
    sessions = {name: open_session(name) for name in ("InNumPy", "Compiled", "OfExtensions")}
    for k, (x, count) in enumerate(sizes):
        for name, session in sessions.items():
            calls[name, k] = (lambda session=session, x=x: session.run(None, {"x": x})), count
        calls["body", k] = (lambda x=x: in_numpy.declaration.reference(x)), count
    times: dict = {key: [] for key in calls}
    for _ in range(ROUNDS):
        for key, (call, count) in calls.items():
            times[key].append(seconds(call, count))
    return {name: tuple(median(times[name, k]) for k in range(2)) for name, _ in calls}


def table():
    times, megabytes = measure(), 4 * LARGE / 2**20
    exit_code = subprocess.run([sys.executable, "-c", FAILING], capture_output=True).returncode
    cells = [(f"{small * 1e6:.0f}", f"{large / megabytes * 1e6:.0f}") for small, large in times.values()]
    in_numpy, compiled, of_extensions, body = cells
    versions = f"onnxruntime {ort.__version__}, onnxruntime-extensions {extensions.__version__}"
    return f"""\
| y = x + 1 in one thread | function in NumPy | with a kernel | `@onnx_op` |
|---|---|---|---|
| a call with 5 numbers | {in_numpy[0]} us | {compiled[0]} us | {of_extensions[0]} us |
| {megabytes:.0f} MB of float32, for each MB | {in_numpy[1]} us | {compiled[1]} us | {of_extensions[1]} us |
| copies of inputs and outputs | the output | none; some for 16-bit floats, bounds | both; the output as a Python list |
| attributes | all but lists of strings | numbers, lists, choices | int, float, string, all required |
| 16-bit floats, optional and variadic inputs | yes | yes, but no variadic ones | no |
| the GIL while it runs | held | free | held |
| an exception | an error of the run | an error of the run | ends the process (exit code {exit_code}) |
| without Python | no | `onnx-ops build` | no |

The function alone takes {body[0]} us, and {body[1]} us for each MB. Measured on {processor()} with
{versions} by `python scripts/custom_operators.py`."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the table into docs/custom-operators.md")
    write = parser.parse_args().write
    text = table()
    print(text)
    if write:
        put("custom-operators", text, "docs/custom-operators.md")


if __name__ == "__main__":
    main()
