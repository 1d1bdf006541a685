"""Time what onnx_ops adds to the start of a process: imports, first and later sessions,
compilation.

Each is timed in new processes. Unless compilation is timed, kernels come from a wheel's library or
from the cache.

python scripts/measure/startup.py [--repeats N] [--dtypes NAME ...]
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from onnx_ops.native import library

MODELS = Path(__file__).parents[2] / "models"
GRID_SAMPLE, COL2IM = (
    MODELS / "com.microsoft/gridsample/model.onnx",
    MODELS / "ai.onnx/col2im/model.onnx",
)

TIMED = """
import json, sys, time
laps, last = {}, time.perf_counter()
def lap(name):
    global last
    laps[name] = time.perf_counter() - last
    last = time.perf_counter()
"""
IMPORTS = """
import onnxruntime
lap("import onnxruntime")
import onnx_ops
lap("import onnx_ops after it")
"""
SESSIONS = """
import onnxruntime, onnx_ops
grid_sample, col2im = sys.argv[1:]
onnxruntime.InferenceSession(col2im)
lap("rest")
onnxruntime.InferenceSession(grid_sample)
lap("built-in")
onnx_ops.InferenceSession(grid_sample)
lap("first")
onnx_ops.InferenceSession(grid_sample)
lap("same operator again")
onnx_ops.InferenceSession(col2im)
lap("other operator")
"""
COMPILATION = """
import onnx_ops, numba
from onnx_ops.compiler.code import code
from onnx_ops.session import variants
by_name = variants.distinct(variants.asked_for(sys.argv[1:2], sys.argv[2:3], ()))
variant = next(v for name, v in by_name.items() if name.startswith(sys.argv[3]))
*shared, kernel = variant.entries()
lap("rest")
for entry in shared:
    code(entry)
lap("of all types")
code(kernel)
lap("compilation")
"""


def laps(script, *arguments, **environment):
    """Run a script in a new process and return its {lap: seconds}."""
    command = [
        sys.executable,
        "-c",
        f"{TIMED}\n{script}\nprint(json.dumps(laps))",
        *map(str, arguments),
    ]
    process = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, **environment}
    )
    return json.loads(process.stdout)


def medians(script, repeats, *arguments):
    laps_of_runs = [laps(script, *arguments) for _ in range(repeats)]
    return {name: median(run[name] for run in laps_of_runs) for name in laps_of_runs[0]}


def rows(repeats):
    """Yield the rows of the table: (what is timed, seconds, remark)."""
    laps(SESSIONS, GRID_SAMPLE, COL2IM)  # fills the caches
    t = medians(IMPORTS, repeats)
    both = sum(t.values())
    yield "import onnxruntime", t["import onnxruntime"], ""
    yield "import onnxruntime and onnx_ops", both, f"{both / t['import onnxruntime']:.2f} x"
    t = medians(SESSIONS, repeats, GRID_SAMPLE, COL2IM)
    yield "a session on the built-in kernel", t["built-in"], ""
    yield "first session, more than that", t["first"] - t["built-in"], ""
    yield "the same operator again, more than that", t["same operator again"] - t["built-in"], ""
    yield "another operator, more than that", t["other operator"] - t["built-in"], ""


def compilations(dtypes):
    if library.is_complete():  # then nothing is compiled
        return
    for title in ("Col2Im", "GridSample nearest", "GridSample bilinear"):
        for dtype in dtypes:
            with tempfile.TemporaryDirectory() as empty:
                t = laps(COMPILATION, title.split()[0], dtype, title, NUMBA_CACHE_DIR=empty)
            remark = f"and {t['of all types']:.1f} s for what all its types share"
            yield f"first compilation, {title} {dtype}", t["compilation"], remark


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--repeats", type=int, default=9, help="processes of which the median is taken"
    )
    parser.add_argument(
        "--dtypes", nargs="*", default=["float32"], help="element types whose compilation is timed"
    )
    options = parser.parse_args()
    for title, seconds, remark in itertools.chain(
        rows(options.repeats), compilations(options.dtypes)
    ):
        print(f"{title:50} {seconds:.3f} s {remark}", flush=True)


if __name__ == "__main__":
    main()
