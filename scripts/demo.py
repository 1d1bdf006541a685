"""Run the committed models with and without onnx_ops, compare, and write the exported ones' pictures."""

import argparse
import time
from pathlib import Path
from statistics import median

import numpy as np
import onnx
import onnxruntime as ort
from PIL import Image
from rich.console import Console
from rich.progress import track
from rich.table import Table

import onnx_ops

MODELS = Path(__file__).parent.parent / "models"
REPEATS = 30


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("out"), help="folder of the pictures, default: %(default)s")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    console = Console(width=None if Console().is_terminal else 100)
    table = Table(title=f"onnxruntime {ort.__version__}, without and with onnx_ops {onnx_ops.__version__}")
    table.add_column("model", no_wrap=True)
    for header in ("without, ms", "error", "with, ms", "error", "speed-up"):
        table.add_column(header, justify="right")
    pictures = []
    for directory in track(sorted(p.parent for p in MODELS.glob("*/*/model.onnx")), "running", console=console):
        feeds, expected = test_data(directory)
        sessions = {"built-in": builtin_session(directory), "ours": onnx_ops.InferenceSession(directory / "model.onnx")}
        results = {name: s.run(None, feeds)[0] for name, s in sessions.items() if s}
        seconds = timed(sessions, feeds)
        table.add_row(
            "/".join(directory.parts[-2:]),
            *described(results.get("built-in"), expected, seconds.get("built-in")),
            *described(results["ours"], expected, seconds["ours"]),
            f"{seconds['built-in'] / seconds['ours']:.1f} x" if "built-in" in seconds else "",
        )
        if directory.parent.name == "exported":
            pictures.append(output / f"{directory.name}.png")
            write_before_and_after(next(iter(feeds.values())), results["ours"], pictures[-1])
    console.print(table)
    console.print("error: the largest difference to the output that the specification, or PyTorch, states")
    for picture in pictures:
        console.print(f"before and after: {picture}")


def test_data(directory):
    """The inputs by name and the expected output, in the layout of ONNX's node tests."""
    files = sorted((directory / "test_data_set_0").glob("input_*.pb"), key=lambda f: int(f.stem.partition("_")[2]))
    inputs = map(onnx.load_tensor, files)
    output = onnx.load_tensor(directory / "test_data_set_0" / "output_0.pb")
    return {t.name: onnx.numpy_helper.to_array(t) for t in inputs}, onnx.numpy_helper.to_array(output)


def builtin_session(directory):
    """A session without onnx_ops, or None if ONNX Runtime has no kernel for the model."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        return ort.InferenceSession(directory / "model.onnx", options)
    except Exception as error:
        if not any(text in str(error) for text in ("NOT_IMPLEMENTED", "is not a registered function/op")):
            raise
        return None


def timed(sessions, feeds):
    """Median seconds of a run, by session; they take turns, so that the machine's moods hit all alike."""
    seconds = {name: [] for name, session in sessions.items() if session}
    for _ in range(REPEATS):
        for name, taken in seconds.items():
            began = time.perf_counter()
            sessions[name].run(None, feeds)
            taken.append(time.perf_counter() - began)
    return {name: median(taken) for name, taken in seconds.items()}


def described(got, expected, seconds):
    if got is None:
        return "refused", ""
    difference = np.abs(got.astype(np.float64) - expected.astype(np.float64)).max(initial=0)
    return f"{seconds * 1e3:.3f}", f"{difference:.0e}" if difference else "0"


def write_before_and_after(before, after, path):
    """Two [1, 3, H, W] images with values in [0, 1], side by side."""
    both = [np.moveaxis(np.clip(image[0], 0, 1) * 255, 0, -1).round().astype(np.uint8) for image in (before, after)]
    height = max(image.shape[0] for image in both)
    both = [np.pad(image, [(0, height - image.shape[0]), (0, 0), (0, 0)]) for image in both]
    Image.fromarray(np.concatenate([both[0], np.full((height, 8, 3), 255, np.uint8), both[1]], 1)).save(path)


if __name__ == "__main__":
    main()
