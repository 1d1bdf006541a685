"""Time the operators against their peers, all in one run: ONNX Runtime's built-in kernels, PyTorch and OpenVINO.

Whoever is installed takes turns on the same inputs with the same number of threads, after its result has been compared
with ours; a ratio is the median of the ratios within a turn. Between two runtimes there is a pause, since the threads
of the last one go on spinning for a while.

python scripts/bench.py [--only TEXT] [--threads N] [--repeats N]
"""

import argparse
import importlib.util
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean, median

import numpy as np
import onnxruntime as ort
from rich.console import Console
from rich.progress import track
from rich.table import Table

import onnx_ops

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from cases import model as node_model

PAUSE = 0.03  # seconds until a runtime's threads have stopped spinning
SHORT = 1e-3  # seconds: runs shorter than this are timed many at once


@dataclass
class Case:
    name: str
    domain: str
    op_type: str
    feeds: dict
    attributes: dict = field(default_factory=dict)


def col2im(n, c, image, block, stride=1, pad=0):
    counts = [(i + 2 * pad - b) // stride + 1 for i, b in zip(image, block, strict=True)]
    x = np.random.default_rng(0).standard_normal((n, c * np.prod(block), np.prod(counts)), np.float32)
    feeds = {"input": x, "image_shape": np.array(image), "block_shape": np.array(block)}
    name = f"N{n} C{c} {'x'.join(map(str, image))}, block {'x'.join(map(str, block))}, stride {stride}, pad {pad}"
    return Case(name, "", "Col2Im", feeds, {"strides": [stride] * len(image), "pads": [pad] * 2 * len(image)})


def grid_sample(n, c, image, out=None, uniform=False, **attributes):
    rng, out = np.random.default_rng(0), out or image
    y, x = np.meshgrid(*(np.linspace(-1, 1, size) for size in out), indexing="ij")
    grid = np.broadcast_to(np.stack([x, y], -1) * 1.02, (n, *out, 2)) + rng.normal(0, 0.02, (n, *out, 2))
    grid = rng.uniform(-1, 1, grid.shape) if uniform else grid
    feeds = {"X": rng.standard_normal((n, c, *image), np.float32), "Grid": grid.astype(np.float32)}
    described = " ".join(str(v) for k, v in attributes.items() if k != "align_corners")
    size = "x".join(map(str, image)) + (f" -> {'x'.join(map(str, out))}" if out != image else "")
    return Case(f"N{n} C{c} {size} {described}{' align' * attributes.get('align_corners', 0)}", "com.microsoft",
                "GridSample", feeds, attributes)  # fmt: skip


def cases():
    yield col2im(1, 64, (56, 56), (3, 3), pad=1)
    yield col2im(1, 64, (256, 256), (3, 3), pad=1)
    yield col2im(8, 3, (224, 224), (16, 16), stride=16)
    yield col2im(1, 128, (64, 64), (4, 4), stride=2, pad=1)
    yield col2im(4, 64, (128, 128), (7, 7), stride=4, pad=2)
    yield col2im(1, 1, (5, 5), (1, 5))
    bilinear, align = {"mode": "bilinear", "padding_mode": "zeros"}, {"align_corners": 1}
    yield grid_sample(8, 3, (224, 224), **bilinear)
    yield grid_sample(1, 64, (128, 128), mode="bilinear", padding_mode="border", **align)
    yield grid_sample(1, 64, (128, 128), mode="bicubic", padding_mode="border", **align)
    yield grid_sample(1, 64, (128, 128), mode="nearest", padding_mode="zeros")
    yield grid_sample(4096, 1, (46, 62), (9, 9), uniform=True, **bilinear, **align)
    yield grid_sample(8, 32, (100, 100), (900, 4), uniform=True, **bilinear)
    yield grid_sample(1, 3, (1080, 1920), **bilinear)
    yield grid_sample(1, 3, (1080, 1920), mode="bicubic", padding_mode="reflection")
    yield grid_sample(1, 1, (4, 4), (6, 6), **bilinear)


def model(case):
    return node_model(case.domain, case.op_type, list(case.feeds.values()), case.attributes).SerializeToString()


def bound(session, case):
    """A call without any conversion between NumPy and ONNX Runtime; returns the output."""
    binding = session.io_binding()
    for name, value in case.feeds.items():
        binding.bind_cpu_input(name, value)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    y = np.empty(binding.get_outputs()[0].shape(), next(iter(case.feeds.values())).dtype)
    target = ort.OrtValue.ortvalue_from_numpy(y)
    binding.bind_ortvalue_output("y", target)

    def call():
        session.run_with_iobinding(binding)
        return y

    return call


def options(threads):
    made = ort.SessionOptions()
    made.intra_op_num_threads = threads
    return made


def ours(case, threads):
    return bound(onnx_ops.InferenceSession(model(case), options(threads)), case)


def builtin(case, threads):
    return bound(ort.InferenceSession(model(case), options(threads)), case)


def pytorch(case, threads):
    import torch

    torch.set_num_threads(threads)
    first, *others = map(torch.from_numpy, case.feeds.values())
    functions, a = torch.nn.functional, dict(case.attributes)
    if case.op_type == "GridSample":
        a["align_corners"] = bool(a.get("align_corners", 0))
        return lambda: functions.grid_sample(first, others[0], **a).numpy()
    image, block = (v.tolist() for v in others)
    return lambda: functions.fold(first, image, block, padding=a["pads"][:2], stride=a["strides"]).numpy()


def openvino(case, threads):
    import openvino as ov
    import openvino.opset15 as opset

    values, a = list(case.feeds.values()), dict(case.attributes)
    if case.op_type == "GridSample":
        parameters = [opset.parameter(v.shape, v.dtype) for v in values]
        node = opset.grid_sample(*parameters, {**a, "align_corners": bool(a.get("align_corners", 0))})
    else:
        parameters, sizes = [opset.parameter(values[0].shape, values[0].dtype)], map(opset.constant, values[1:])
        node = opset.col2im(*parameters, *sizes, strides=a["strides"], pads_begin=a["pads"][:2], pads_end=a["pads"][2:])
    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    request = ov.compile_model(ov.Model([node], parameters), "CPU", settings).create_infer_request()
    feeds = dict(enumerate(values[: len(parameters)]))
    return lambda: next(iter(request.infer(feeds, share_inputs=True, share_outputs=True).values()))


PEERS = {"ONNX Runtime": builtin, "PyTorch": pytorch, "OpenVINO": openvino}
NEEDS = {"PyTorch": "torch", "OpenVINO": "openvino"}


def seconds(call):
    """Of one call, right after one that wakes the runtime's threads."""
    began = time.perf_counter()
    call()
    count = max(1, int(SHORT / max(time.perf_counter() - began, 1e-7)))
    began = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - began) / count


def measure(case, threads, repeats):
    """{runtime: median milliseconds} and {peer: how many times faster ours is}."""
    calls = {"onnx_ops": ours(case, threads)}
    for name, peer in PEERS.items():
        if name not in NEEDS or importlib.util.find_spec(NEEDS[name]):
            calls[name] = peer(case, threads)
    expected = calls["onnx_ops"]().copy()
    for name, call in calls.items():
        np.testing.assert_allclose(call(), expected, atol=4e-3, err_msg=name)  # of float32 coordinates
    taken = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            time.sleep(PAUSE)
            taken[name].append(seconds(call))
    own = taken["onnx_ops"]
    ratios = {n: median(t / o for t, o in zip(v, own, strict=True)) for n, v in taken.items() if n != "onnx_ops"}
    return {n: median(v) * 1e3 for n, v in taken.items()}, ratios


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose operator or name contains this")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=11)
    arguments = parser.parse_args()
    chosen = [c for c in cases() if arguments.only.lower() in f"{c.op_type} {c.name}".lower()]
    console = Console(width=None if Console().is_terminal else 140)
    table, fastest = None, {}
    for case in track(chosen, "timing", console=console):
        milliseconds, ratios = measure(case, arguments.threads, arguments.repeats)
        if table is None:
            table = Table(title=f"milliseconds, {arguments.threads} threads, float32")
            for header in ("operator", "case", *milliseconds, "to fastest peer"):
                table.add_column(header, justify="left" if header in ("operator", "case") else "right")
        to_fastest = min(ratios.values())
        fastest.setdefault(case.op_type, []).append(to_fastest)
        table.add_row(case.op_type, case.name, *(f"{v:.3f}" for v in milliseconds.values()), f"{to_fastest:.2f} x")
    console.print(table)
    for op_type, values in fastest.items():
        console.print(f"{op_type}: {geometric_mean(values):.2f} x the fastest peer, geometric mean")


if __name__ == "__main__":
    main()
