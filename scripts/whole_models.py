"""Measure the gain of whole networks: as they are, and optimized, with the nodes around the operators fused.

python scripts/whole_models.py           print the table
python scripts/whole_models.py --write   put it into the README, with a picture of where the time goes
                                         (docs/images/whole_models.png; needs matplotlib)

The networks are those of models/exported, as PyTorch's exporter wrote them; `onnx-ops bench` times them.
"""

import argparse
import json
import subprocess
import sys

import pages

from onnx_ops.cli.bench import WAYS
from onnx_ops.system.files import staged_file

NETWORKS = {  # folder of models/exported: (title, sizes of open dimensions)
    "patch_fold": ("patch denoiser: unfold, fold", "image=2,3,144,192"),
    "spatial_transformer": ("spatial transformer: affine_grid, grid_sample", "image=2,3,144,192"),
}
PICTURE = pages.ROOT / "docs/images/whole_models.png"
THREADS = 2
COLORS = "#c0504d #e0913a #7a5fa8 #1f5fbf #3f9b8f #8c6d46 #d98cb3 #5b7f3a #e7c94c #54a9dc #a02c6a #2f4858".split()
REST = "#bbbbbb"
SMALL_SHARE = 0.02  # of the longest run: operators that take less are drawn as "others"


def measure(model, *options):
    """Return the report of `onnx-ops bench` on a model."""
    command = ["bench", model, *options, "--threads", THREADS, "--json"]
    process = subprocess.run(
        [sys.executable, "-m", "onnx_ops", *map(str, command)], check=True, capture_output=True, text=True
    )
    return json.loads(process.stdout)


def table(reports):
    """Yield the lines of the README's table."""
    yield f"| network | {' | '.join(f'{title}, ms' for title, _ in WAYS.values())} | longest operators, before |"
    yield f"|---|{'---:|' * len(WAYS)}---|"
    for folder, report in reports.items():
        cells = [f"{report['seconds'][way] * 1e3:.2f}" for way in WAYS]
        cells[1:] = [f"{c}: {report['speedup'][w]:.1f} x" for c, w in zip(cells[1:], list(WAYS)[1:], strict=True)]
        longest = ", ".join(f"{o['operator']} {o['share'] * 100:.0f} %" for o in report["operators"]["builtin"][:3])
        yield f"| {NETWORKS[folder][0]} | {' | '.join(cells)} | {longest} |"


def plot(reports, file):
    """Draw a bar for each network and way to run it, divided into operators, each of which has one colour."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(reports), 1, figsize=(11, 1.4 + 1.5 * len(reports)), layout="constrained")
    parts = {f: {w: {o["operator"]: o["seconds"] * 1e3 for o in r["operators"][w]} for w in WAYS}
             for f, r in reports.items()}  # fmt: skip
    longest = {folder: max(sum(of_way.values()) for of_way in parts[folder].values()) for folder in reports}
    drawn = [n for f in reports for of_way in parts[f].values() for n, ms in of_way.items()
             if ms > SMALL_SHARE * longest[f]]  # fmt: skip
    colors = dict(zip(dict.fromkeys(drawn), COLORS, strict=False))
    for axis, (folder, report) in zip(axes, reports.items(), strict=True):
        places, ends = range(len(WAYS))[::-1], [0.0] * len(WAYS)
        for name in [*colors, "others"]:
            widths = [
                of_way.get(name, 0) if name in colors else sum(v for n, v in of_way.items() if n not in colors)
                for of_way in parts[folder].values()
            ]
            axis.barh(places, widths, left=ends, color=colors.get(name, REST), height=0.7, label=name)
            ends = [end + width for end, width in zip(ends, widths, strict=True)]
        for place, end, way in zip(places, ends, WAYS, strict=True):
            gain = f"  ({report['speedup'][way]:.1f} x)" if way in report["speedup"] else ""
            axis.text(end, place, f" {end:.1f} ms{gain}", va="center", fontsize=9)
        axis.set_yticks(places, [title for title, _ in WAYS.values()], fontsize=9)
        axis.set_title(NETWORKS[folder][0], fontsize=10, loc="left")
        axis.set_xlim(0, longest[folder] * 1.15)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(left=False)
    axes[-1].set_xlabel(f"milliseconds of one run by operator, ONNX Runtime's profiler, {THREADS} threads", fontsize=9)
    figure.legend(*axes[0].get_legend_handles_labels(), ncols=len(colors) + 1, frameon=False, fontsize=8,
                  loc="outside lower center", columnspacing=1.2, handlelength=1.2)  # fmt: skip
    with staged_file(file) as new:
        figure.savefig(new, dpi=110, format="png")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="into the README and docs/images")
    write = parser.parse_args().write
    exported = pages.ROOT / "models/exported"
    reports = {
        folder: measure(exported / folder / "model.onnx", "--shape", shape, "--repeats", 41)
        for folder, (_, shape) in NETWORKS.items()
    }
    lines = "\n".join(table(reports))
    print(lines)
    if write:
        plot(reports, PICTURE)
        pages.put("whole models", lines)


if __name__ == "__main__":
    main()
