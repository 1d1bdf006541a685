"""`onnx-ops optimize`: a model with single nodes for what PyTorch's exporters write as several."""

from collections import Counter
from contextlib import suppress
from dataclasses import asdict

import click
import onnx
from google.protobuf.message import DecodeError

from ..errors import OpError
from ..external_data import load
from ..rewriting import rewritten
from ..runtime.ort_format import is_ort_format
from .common import json_option, print_json, say, table
from .rewrite import rewrite, source_argument, target_argument


@click.command()
@source_argument
@target_argument
@click.option("--standard", is_flag=True, help="Use operators of ai.onnx only, which other runtimes have, too.")
@json_option
def optimize(source, target, standard, as_json):
    """Replace what PyTorch's exporters write for unfold, grids and deformable attention by one node each.

    The nodes are of the domain onnx_ops, which sessions with this package run: Im2Col, AffineGrid, GridSamples that
    compute their grids themselves (AffineGridSample, FlowGridSample ...), MultiScaleDeformableAttention; with
    --standard AffineGrid of ai.onnx, where the model imports its version 20. Results may differ by rounding:
    docs/optimize.md says how much. What only resembles these patterns stays, and the reason is told.

    Weights that the model keeps in other files stay there if OUT.ONNX is in the same folder as IN.ONNX. Otherwise they
    are copied into OUT.ONNX.data.

    \b
    Examples:
      onnx-ops optimize model.onnx optimized.onnx
      onnx-ops optimize model.onnx model.onnx --standard --json
    """
    target, findings = rewrite(source, target, lambda model: rewritten(model, standard, source))
    if as_json:
        print_json({"model": str(source), "written": str(target), "findings": list(map(asdict, findings))})
        return
    if findings:
        show(source, findings)
    replaced = counted(findings)
    say(f"{target}: {replaced} replaced" if replaced else f"{target}: nothing to replace")


def find(path):
    """Return the Findings of `optimize` in a model's file; none if it can't be read, which its session reports."""
    with suppress(OSError, OpError, DecodeError, onnx.checker.ValidationError):
        if not is_ort_format(path):
            return rewritten(load(path), folder=path)[1]
    return []


def counted(findings, replaced=True):
    """Return how many of each pattern were replaced, or not: "2 unfold, 1 affine_grid"; "" if there are none."""
    counts = Counter(f.pattern for f in findings if bool(f.operator) == replaced)
    return ", ".join(f"{count} {pattern}" for pattern, count in counts.items())


def show(title, findings):
    rows = [(f.pattern, f.node, f.graph, f.operator or f"stays: {f.reason}") for f in findings]
    table(str(title), ("pattern", "last node", "graph", "becomes"), rows)
