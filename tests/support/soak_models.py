"""The models of scripts/measure/soak.py, and what its services have beside the page's.

These are many models, and sessions that come and go.
"""

import ctypes
import logging
import os
import threading
import time
from contextlib import suppress

import numpy as np
import onnx
import onnxruntime as ort

import onnx_ops
from onnx_ops.system.files import write

from . import TESTS

ROOT = TESTS.parent
EXPORTED = ROOT / "models" / "exported"
IMAGES = 8  # different requests for each model
TOLERANCE = 1e-4  # of values of about 1, against ONNX Runtime's built-in kernels
IN_USE = "in-use-{}"  # name of a file with the bytes that a process has in use
PAUSE = 0.1  # seconds between the sessions that come and go
MEASURED = 5  # sessions after which memory is measured
MEAN, DEVIATION = (0.5, 0.25, 0.75), (2.0, 0.5, 4.0)
CUSTOM = """<ir_version: 8, opset_import: ["" : 18, "soak" : 1]>
custom (float[N, 3, 144, 192] image) => (float[N, 3, 144, 192] y) {
    normal = soak.Normalize <mean = [0.5, 0.25, 0.75], deviation = [2.0, 0.5, 4.0]> (image)
    y = soak.Sort (normal)
}"""
REFUSED = """<ir_version: 8, opset_import: ["" : 18]>
refused (float[1, 4, 4] x, int64[2] image, int64[2] block) => (float[N, C, H, W] y) {
    y = Col2Im <strides = [1, 0]> (x, image, block)
}"""
log = logging.getLogger("soak")


@onnx_ops.operator(
    "soak::Normalize", inputs="x: T", outputs="y: T", types={"T": ("float32",)}, ranks={"x": (4,)}
)
def normalize(x, *, mean: tuple[float, ...], deviation: tuple[float, ...]):
    center, scale = (np.array(v)[:, None, None] for v in (mean, deviation))
    return ((x.astype(np.float64) - center) / scale).astype(x.dtype)


@normalize.shape
def _(x, *, mean, deviation):
    onnx_ops.require(
        len(x) == 4 and x[1] == len(mean),
        "shape of x",
        x,
        "must be [N, C, H, W] with C numbers in mean",
    )
    return x


@normalize.kernel(loop=lambda x, *, mean, deviation: x[0] * x[1])
def _(x, mean, deviation, index, count, workspace, y):
    height, width = x.shape[2:]
    for plane in range(index, x.shape[0] * x.shape[1], count):
        n, c = plane // x.shape[1], plane % x.shape[1]
        for h in range(height):
            for w in range(width):
                y[n, c, h, w] = (x[n, c, h, w] - mean[c]) / deviation[c]


@onnx_ops.operator("soak::Sort", inputs="x: T", outputs="y: T", types={"T": ("float32",)})
def sort(x):
    """Sort each row. This operator has a body in Python only, which needs the GIL."""
    return np.sort(x, axis=-1)


OPERATORS = [normalize, sort]
ORIGINALS = {  # {name of a model: that of the exported one that it was made from}
    "GridSample": "spatial_transformer",
    "Col2Im": "patch_fold",
    "ComputedGridSample": "spatial_transformer",
    "Im2Col": "patch_fold",
}
NAMES = [*ORIGINALS, "custom"]


def prepare(folder):
    """Write the models into a folder, and images with the results of ONNX Runtime's built-in
    kernels and of NumPy.
    """
    images = np.random.default_rng(1).random((IMAGES, 1, 3, 144, 192), np.float32)
    values = {"images": images}
    for name, exported in ORIGINALS.items():
        original = onnx.load(EXPORTED / exported / "model.onnx")
        model = (
            onnx_ops.optimize(original) if name in ("ComputedGridSample", "Im2Col") else original
        )
        assert name in {node.op_type for node in model.graph.node}
        onnx.save(model, folder / f"{name}.onnx")
        session = ort.InferenceSession(original.SerializeToString())
        values[name] = np.array([session.run(None, {"image": image})[0] for image in images])
    onnx.save(onnx.parser.parse_model(CUSTOM), folder / "custom.onnx")
    center, scale = (np.array(v).reshape(3, 1, 1) for v in (MEAN, DEVIATION))
    values["custom"] = np.sort(((images - center) / scale).astype(np.float32), axis=-1)
    np.savez(folder / "values.npz", **values)


class Mallinfo2(ctypes.Structure):
    """glibc's struct of this name."""

    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
        "fordblks", "keepcost",
    )]  # fmt: skip


def in_use():
    """Return the bytes that malloc has given to this process, without what is free in its only
    arena.
    """
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = Mallinfo2
    info = libc.mallinfo2()
    return info.uordblks + info.hblkhd


def is_right(output, expected):
    return output.shape == expected.shape and bool((np.abs(output - expected) <= TOLERANCE).all())


class Sessions:
    """Stands for the page's session: runs the model that the request's path names."""

    def __init__(self, threads, path_of_request):
        self.path_of_request, self.options, self.sessions = path_of_request, {}, {}
        self.values = np.load("values.npz")
        self.values = {name: self.values[name] for name in self.values.files}
        for name in NAMES:
            options = ort.SessionOptions()
            options.intra_op_num_threads, options.log_severity_level = threads, 4
            self.options[name] = options  # new sessions on the same options leave nothing behind
            self.sessions[name] = self.make(name)
            self.verify(name, self.sessions[name], 0)
        threading.Thread(target=self.come_and_go).start()

    def make(self, name):
        operators = OPERATORS if name == "custom" else ()
        return onnx_ops.InferenceSession(f"{name}.onnx", self.options[name], operators=operators)

    def verify(self, name, session, k):
        (output,) = session.run(None, {"image": self.values["images"][k]})
        assert is_right(output, self.values[name][k]), (
            f"a session of {name} is wrong about image {k}"
        )

    def run(self, names, feeds):
        return self.sessions[self.path_of_request().strip("/")].run(names, feeds)

    def come_and_go(self):
        """Make sessions, run them once and drop them, until the process ends."""
        made, refused = 0, onnx.parser.parse_model(REFUSED).SerializeToString()
        while threading.main_thread().is_alive():
            self.verify(
                NAMES[made % len(NAMES)], self.make(NAMES[made % len(NAMES)]), made % IMAGES
            )
            try:
                onnx_ops.InferenceSession(refused, self.options["Col2Im"])
                raise AssertionError("a model with a stride of 0 was not refused")
            except onnx_ops.OpError:
                made += 1
            if made % MEASURED == 0:
                with suppress(
                    AttributeError, TypeError
                ):  # other systems than Linux with glibc 2.33
                    write(IN_USE.format(os.getpid()), str(in_use()).encode())
            time.sleep(PAUSE)
        log.info("%d sessions came and went", made)


def extended(handler, threads):
    """Return the page's make_session and Handler, extended to several models."""
    request = threading.local()

    class ManyModels(handler):
        def do_POST(self):  # noqa: N802
            request.path = self.path
            super().do_POST()

    return lambda: Sessions(threads, lambda: request.path), ManyModels
