"""Measure the gain of published networks: PyTorch exports them, results are compared with its own,
and runs are timed.

python scripts/measure/networks.py --export FOLDER
    export them: needs what network_cases.py does, and onnxscript
python scripts/measure/networks.py FOLDER
    run and time the exports, print the table
python scripts/measure/networks.py FOLDER --write
    put it into docs/networks.md, and what the README shows of it
python scripts/measure/networks.py --draw
    write the README's table and picture again, from docs/networks.md
python scripts/measure/networks.py --trained FOLDER
    the same for what trained_networks.py has written

`--only NAME ...` takes these networks alone. Each network is exported twice: NAME by PyTorch's
default exporter, NAME_ts by that for TorchScript. `onnx-ops bench` times them. The picture needs
matplotlib.
"""

import argparse
import contextlib
import itertools
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path

import add_tests_to_path  # noqa: F401
import numpy as np
import onnx
from support import pages
from support.network_tables import PAGE, SHOWN, recorded

from onnx_ops.cli.bench import WAYS, open_way
from onnx_ops.system.files import staged, staged_file

OPSET = 20
EXPORTERS = {
    "": True,
    "_ts": False,
}  # suffix: whether it is the default one, which PyTorch calls dynamo
TOLERANCE = 1e-3  # of the largest magnitude of PyTorch's result
OPERATORS_SHOWN = 3
THREADS = 2
PICTURE = pages.ROOT / "docs/images/networks.png"
COLORS = "#a0a0a0", "#8fbbe8", "#1f5fbf"  # of the ways to run a network


def export(folder, networks, translations=None):
    """Write FOLDER/NAME/model.onnx of each network, and data.npz: its inputs and PyTorch's outputs.

    networks  {name: function that returns (network, inputs)}
    """
    import torch

    warnings.simplefilter("ignore")
    logging.disable()
    torch.set_grad_enabled(False)
    for (name, network), (suffix, dynamo) in itertools.product(networks.items(), EXPORTERS.items()):
        try:
            write(folder / (name + suffix), *network(), dynamo, translations)
            progress(f"{name}{suffix}: exported")
        except Exception as error:
            progress(f"{name}{suffix}: no export: {cause(error)}")


def write(folder, network, inputs, dynamo, translations):
    import torch

    outputs = network(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    arrays = {f"input_{k}": value.numpy() for k, value in enumerate(inputs)}
    results = {f"output_{k}": value.numpy() for k, value in enumerate(outputs)}
    settings = {
        "input_names": list(arrays),
        "output_names": list(results),
        "opset_version": OPSET,
        "dynamo": dynamo,
    }
    if dynamo:
        settings["custom_translation_table"] = translations
    with staged(folder) as new:
        np.savez(new / "data.npz", **arrays, **results)
        with silence():
            torch.onnx.export(network, inputs, new / "model.onnx", external_data=False, **settings)


@contextlib.contextmanager
def silence():
    """Discard what exporters print to standard output, some of it from C++."""
    sys.stdout.flush()
    output = os.dup(1)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(output, 1)
        os.close(output)


def cause(error):
    """One line about the first cause of an error: an exporter's, or what `onnx-ops bench`
    printed.
    """
    while error.__cause__:
        error = error.__cause__
    return " ".join(f"{type(error).__name__}: {getattr(error, 'stderr', error)}".split())[:200]


def progress(text):
    print(text, file=sys.stderr, flush=True)


def table(folder, only):
    """Yield the lines of the table."""
    times = " | ".join(f"{title}, ms" for title, _ in WAYS.values())
    yield f"| network | {times} | longest operators, before | after |"
    yield f"|---|{'---:|' * len(WAYS)}---|---|"
    for model in sorted(folder.glob("*/model.onnx")):
        name = model.parent.name
        if not only or name.removesuffix("_ts") in only:
            try:
                yield f"| {name} | {' | '.join(row(model))} |"
            except Exception as error:
                progress(f"{name}: {cause(error)}")
                yield f"| {name} | failed |"


def row(model):
    """The cells of the table for an exported network."""
    with np.load(model.with_name("data.npz")) as data:
        arrays = dict(data)
    with tempfile.TemporaryDirectory() as directory:
        inputs = Path(directory) / "inputs.npz"
        names = [i.name for i in onnx.load(model, load_external_data=False).graph.input]
        np.savez(inputs, **{name: arrays[name] for name in names})
        report = measure(model, "--input", inputs)
    differences = {way: difference(model, way, arrays) for way in report["seconds"]}
    by_way = ", ".join(f"{way} {value:.0e}" for way, value in differences.items())
    progress(f"{model.parent.name}: off from PyTorch by {by_way} of the largest magnitude")
    cells = [cell(way, report, differences) for way in WAYS]
    operators = report["operators"]
    return [
        *cells,
        longest(operators.get("builtin", [])),
        longest(operators[max(operators, key=list(WAYS).index)]),
    ]


def cell(way, report, differences):
    if way not in report["seconds"]:
        return "refused" if way == "builtin" else "nothing to replace"
    if differences[way] > TOLERANCE:
        return "**wrong**"
    milliseconds = f"{report['seconds'][way] * 1e3:.2f}"
    return (
        f"{milliseconds}: {report['speedup'][way]:.1f} x"
        if way in report["speedup"]
        else milliseconds
    )


def measure(model, *options):
    """Return the report of `onnx-ops bench` on a model."""
    command = ["bench", model, *options, "--threads", THREADS, "--json"]
    process = subprocess.run(
        [sys.executable, "-m", "onnx_ops", *map(str, command)],
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(process.stdout)


def longest(operators):
    return ", ".join(
        f"{o['operator']} {o['share'] * 100:.0f} %" for o in operators[:OPERATORS_SHOWN]
    )


def difference(model, way, arrays):
    """The largest difference of outputs from PyTorch's, each relative to the largest magnitude of
    PyTorch's output.
    """
    runner = open_way(model, way, THREADS)
    outputs = runner({name: arrays[name] for name in runner.inputs})
    return max(
        np.abs(array - arrays[name]).max() / np.abs(arrays[name]).max()
        for name, array in outputs.items()
    )


def draw_readme():
    """Write the table and the picture of the README, from the table of networks."""
    cells = {
        title: recorded(pages.get(mark, PAGE))[name]
        for mark, titles in SHOWN.items()
        for name, title in titles.items()
    }
    head = [
        f"| network | {' | '.join(f'{title}, ms' for title, _ in WAYS.values())} |",
        f"|---|{'---:|' * len(WAYS)}",
    ]
    pages.put(
        "networks",
        "\n".join(head + [f"| {title} | {' | '.join(row)} |" for title, row in cells.items()]),
    )
    plot(cells, PICTURE)


def plot(cells, file):
    """Draw the time of each network and way to run it as a bar, in percent of the first way."""
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(9, 0.4 + 0.62 * len(cells)), layout="constrained")
    for k, row in enumerate(cells.values()):
        cells_with_times = [
            (float(match[0]), cell) for cell in row if (match := re.match(r"[\d.]+", cell))
        ]
        for way, (time, cell) in enumerate(cells_with_times):
            share, height = 100 * time / cells_with_times[0][0], k + (way - 1) / 4
            label = {"label": list(WAYS.values())[way][0]} if k == 0 else {}
            axis.barh(height, share, height=0.23, color=COLORS[way], **label)
            text = cell.replace(":", " ms, ").replace("x", "times as fast") if way else f"{cell} ms"
            axis.text(share + 0.7, height, text.replace("  ", " "), va="center", fontsize=7.5)
    axis.set_yticks(range(len(cells)), list(cells), fontsize=9)
    axis.invert_yaxis()
    axis.set_xlim(0, 125)
    axis.set_xticks([])
    axis.spines[:].set_visible(False)
    axis.tick_params(left=False)
    figure.legend(loc="outside lower center", ncols=len(WAYS), frameon=False, fontsize=9)
    with staged_file(file) as new:
        figure.savefig(new, dpi=110, format="png")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--export", metavar="FOLDER", type=Path)
    parser.add_argument("--only", metavar="NAME", nargs="+", help="the networks to take")
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/networks.md and the README"
    )
    parser.add_argument(
        "--trained",
        action="store_true",
        help="FOLDER is that of scripts/measure/trained_networks.py",
    )
    parser.add_argument(
        "--draw", action="store_true", help="write what the README shows of docs/networks.md"
    )
    options = parser.parse_args()
    if options.export:
        from network_cases import NETWORKS, TRANSLATIONS, assembled

        export(
            options.export,
            {name: partial(assembled, name) for name in options.only or NETWORKS},
            TRANSLATIONS,
        )
    if options.folder:
        lines = "\n".join(table(options.folder, options.only))
        print(lines)
        if options.write:
            pages.put("trained" if options.trained else "networks", lines, PAGE)
    if (options.write and not options.trained) or options.draw:
        draw_readme()


if __name__ == "__main__":
    main()
