"""Measure how much memory sessions, runs and failing runs leave behind, in bytes per call.

After a warm-up the resident size is read ten times; the result is the slope of the line through
these points. Plain sessions of ONNX Runtime, alone and with onnxruntime-extensions, are measured
for comparison.

python scripts/leaks.py [--scale FRACTION]
"""

import argparse
import gc
import logging

import add_tests_to_path  # noqa: F401
import numpy as np
import onnxruntime as ort
import psutil
from support.backends import HAVE_EXTENSIONS, quiet, with_extensions
from support.cases import model

import onnx_ops

COUNTS = {"sessions": 10_000, "runs": 100_000, "failing runs": 10_000}
MOMENTS = 10


def options():
    return quiet(intra_op_num_threads=1)


def feeds(image):
    return {
        "input": np.ones((1, 36, 9), np.float32),
        "image_shape": np.array(image),
        "block_shape": np.array([3, 3]),
    }


GOOD, BAD = feeds([5, 5]), feeds([5, 6])


def expect_error(run):
    """Call a function, which must raise."""
    try:
        run()
    except Exception:
        return
    raise AssertionError("not refused")


def workloads():
    """Yield (kind of call, backend, function to call repeatedly)."""
    plain = model("", "Col2Im", list(GOOD.values()), {"strides": [1, 1]}, opset=18, dims="none")
    proto, lowered = plain.SerializeToString(), onnx_ops.lower(plain).SerializeToString()
    session_makers = {
        "ONNX Runtime": lambda: ort.InferenceSession(proto, options()),
        "onnxruntime-extensions": lambda: ort.InferenceSession(lowered, with_extensions(options())),
        "native": lambda: onnx_ops.InferenceSession(proto, options()),
        "extensions": lambda: onnx_ops.InferenceSession(proto, options(), backend="extensions"),
    }
    for name, make_session in session_makers.items():
        if "extensions" in name and not HAVE_EXTENSIONS:
            continue
        yield "sessions", name, make_session
        if name == "onnxruntime-extensions":  # a plain session there has no way to fail
            continue
        session = make_session()
        yield "runs", name, lambda session=session: session.run(None, GOOD)
        yield (
            "failing runs",
            name,
            lambda session=session: expect_error(lambda: session.run(None, BAD)),
        )
    registered = onnx_ops.register(options(), proto)
    once = "native, on options that were registered once"
    yield "sessions", once, lambda: onnx_ops.InferenceSession(proto, registered)
    call = onnx_ops.col2im
    yield "runs", "function", lambda: call(*GOOD.values())
    yield "failing runs", "function", lambda: expect_error(lambda: call(*BAD.values()))


def slope(work, count):
    """Bytes per call: a least-squares fit of the resident size at MOMENTS points, after calls that
    warm up.
    """
    process, sizes = psutil.Process(), []
    step = max(1, count // MOMENTS)
    gc.collect()
    gc.freeze()  # objects that exist already: to look through them would take longer than the calls
    for moment in range(-2, MOMENTS):
        for _ in range(step):
            work()
        gc.collect()
        if moment >= 0:
            sizes.append(process.memory_info().rss)
    gc.unfreeze()
    return np.polyfit(np.arange(MOMENTS) * step, sizes, 1)[0]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=float, default=1, help="factor for the number of calls")
    scale = parser.parse_args().scale
    logging.disable()  # the extensions backend logs what it refuses
    print("| calls | of | bytes per call |\n|---|---|---|")
    for kind, name, work in workloads():
        count = int(COUNTS[kind] * scale)
        print(f"| {count:,} {kind} | {name} | {slope(work, count):.1f} |", flush=True)


if __name__ == "__main__":
    main()
