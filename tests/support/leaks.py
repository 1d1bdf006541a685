"""How much memory sessions, runs and failing runs leave behind, in bytes per call."""

import gc
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import onnxruntime as ort
import psutil

import onnx_ops

from .backends import HAVE_EXTENSIONS, quiet, with_extensions
from .cases import model

MOMENTS = 10


def options() -> ort.SessionOptions:
    return quiet(intra_op_num_threads=1)


def feeds(image: list[int]) -> dict[str, np.ndarray]:
    return {
        "input": np.ones((1, 36, 9), np.float32),
        "image_shape": np.array(image),
        "block_shape": np.array([3, 3]),
    }


GOOD, BAD = feeds([5, 5]), feeds([5, 6])


def expect_error(run: Callable[[], object]) -> None:
    """Call a function, which must raise."""
    try:
        run()
    except Exception:
        return
    raise AssertionError("not refused")


def workloads() -> Iterator[tuple[str, str, Callable[[], object]]]:
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
        yield "runs", name, partial(session.run, None, GOOD)
        yield (
            "failing runs",
            name,
            partial(expect_error, partial(session.run, None, BAD)),
        )
    registered = onnx_ops.register(options(), proto)
    once = "native, on options that were registered once"
    yield "sessions", once, lambda: onnx_ops.InferenceSession(proto, registered)
    call = onnx_ops.col2im
    yield "runs", "function", lambda: call(*GOOD.values())
    yield "failing runs", "function", lambda: expect_error(lambda: call(*BAD.values()))


def slope(work: Callable[[], object], count: int) -> float:
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
