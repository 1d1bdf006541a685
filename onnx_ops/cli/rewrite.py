"""`onnx-ops optimize` and `onnx-ops lower`: rewrite a model file."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from shlex import quote
from typing import TYPE_CHECKING

import click
import onnx
from google.protobuf.message import DecodeError

from .. import lower as lowered
from ..declaration.errors import OpError
from ..model.external_data import copy_data, external, files, load, read_data
from ..model.nodes import declared_nodes
from ..rewriting import rewritten
from ..system.files import named, staged_file
from .arguments import TARGET_FILE, ModelFile, check_targets, json_option, program_with_operators
from .console import print_json, say, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import TypeVar

    from ..rewriting.finding import Finding

    T = TypeVar("T")

# Exceptions of reading a model's file.
UNREADABLE = (OSError, OpError, DecodeError, onnx.checker.ValidationError)

source_argument = click.argument("source", metavar="IN.ONNX", type=ModelFile())
target_argument = click.argument("target", metavar="OUT.ONNX", type=TARGET_FILE)


@click.command()
@source_argument
@target_argument
@json_option
def optimize(source: Path, target: Path, as_json: bool) -> None:
    """Fuse nodes that PyTorch's exporters write.

    This concerns unfold, grids, deformable convolution and deformable attention. The new nodes are
    Im2Col, Im2ColProduct, ComputedGridSample and MultiScaleDeformableAttention of the domain
    onnx_ops, which sessions with this package run, and GridSample, DeformConv and constants.
    Results may differ by rounding: docs/optimize.md states bounds. Nodes that only resemble a
    pattern stay, with a printed reason.

    Weights that the model keeps in other files stay there if OUT.ONNX is in the same folder as
    IN.ONNX. Otherwise they are copied into OUT.ONNX.data.

    \b
    Examples:
      onnx-ops optimize model.onnx optimized.onnx
      onnx-ops optimize model.onnx model.onnx --json
    """
    target, optimized, findings = rewrite(source, target, lambda model: rewritten(model, source))
    if as_json:
        print_json({"model": source, "written": target, "findings": list(map(asdict, findings))})
        return
    if findings:
        show_findings(source, findings)
    replaced = counted(findings)
    copied = "unchanged" if target == source else f"a copy of {source}"
    say(
        f"{target}: {replaced} replaced"
        if replaced
        else f"{target}: {copied}, since optimize can fuse nothing in it"
    )
    if replaced:
        names = sorted({node.op_type for node, _ in declared_nodes(optimized)})
        options = " ".join(f"--operator {name}" for name in names)
        program = program_with_operators()
        say(
            f"onnx_ops.InferenceSession runs it; so does plain ONNX Runtime with what {program} "
            f"build {options} makes"
        )
        if target != source:
            say(
                f"{program} run {quote(str(target))} --random --compare {quote(str(source))} "
                "checks it"
            )


@click.command()
@source_argument
@target_argument
def lower(source: Path, target: Path) -> None:
    """Rewrite a model for onnxruntime-extensions.

    A plain session runs the new model if it has that library on its options, and if onnx_ops is
    imported: docs/backends.md shows how. The other commands run it with --backend extensions.

    Weights that the model keeps in other files stay there if OUT.ONNX is in the same folder as
    IN.ONNX. Otherwise they are copied into OUT.ONNX.data.

    \b
    Examples:
      onnx-ops lower model.onnx lowered.onnx
      onnx-ops run lowered.onnx --random --backend extensions
    """
    target, _, count = rewrite(
        source, target, lambda model: (lowered(model), len(list(declared_nodes(model))))
    )
    say(f"{target}: {count} {'node' if count == 1 else 'nodes'} rewritten")


def rewrite(
    source: Path, target: Path, function: Callable[[onnx.ModelProto], tuple[onnx.ModelProto, T]]
) -> tuple[Path, onnx.ModelProto, T]:
    """Apply `function` to the model in `source`, and write the result to `target`.

    Both may be the same file.

    function  onnx.ModelProto -> (onnx.ModelProto, a report)

    Returns the path from which the model finds its data, the new model, and the report. External
    data stay if the folder is the same; otherwise they are copied beside the model.
    """
    is_same = target.resolve() == source.resolve()  # data locations are relative to its link
    # The model's data belong into the folder of the link's target.
    target = source if is_same else target.resolve()
    _, *data_files = files(source)
    has_folder = target.parent == source.parent.resolve() and all(
        f.is_relative_to(target.parent) for f in data_files
    )
    is_beside = is_same or has_folder
    data = target.with_name(f"{target.name}.data")
    check_targets([target] if is_beside else [target, data], data_files)
    if data_files and not is_beside and (user := next(users(data, target), None)):
        raise click.UsageError(
            f"{data} would be replaced, in which {user} has weights; choose another output."
        )
    model, report = function(load(source))
    moved = [] if is_beside else external(model)
    for tensor in moved:
        read_data(tensor, source, only_check=True)  # before a folder is made
    with staged_file(target) as path:
        if moved:
            with named(data):
                copy_data(moved, source, path.with_name(data.name))
        onnx.save(model, path, "protobuf")  # whatever its suffix
    return target, model, report


def users(data: Path, target: Path) -> Iterator[Path]:
    """Yield the models beside `target` with weights in the file `data`.

    These may be results of earlier calls.
    """
    for path in sorted(target.parent.glob("*.onnx")) if data.exists() else ():
        with suppress(*UNREADABLE):
            if path.resolve() != target and data.resolve() in files(path):
                yield path


def find_patterns(path: Path) -> list[Finding]:
    """Return the Findings of `optimize` in a model's file; none if it can't be read.

    Its session reports that.
    """
    with suppress(*UNREADABLE):
        return rewritten(load(path), folder=path)[1]
    return []


def counted(findings: Iterable[Finding]) -> str:
    """Return the number of each pattern that was replaced: "2 unfold, 1 grid_sample"; or ""."""
    counts = Counter(f.pattern for f in findings if f.operator)
    return ", ".join(f"{count} {pattern}" for pattern, count in counts.items())


def show_findings(title: object, findings: Sequence[Finding]) -> None:
    rows = [
        (
            f.pattern,
            f.node,
            f.graph,
            f"{f.operator}, not tried out: {f.untried}"
            if f.untried
            else f.operator or f"stays: {f.reason}",
        )
        for f in findings
    ]
    table(str(title), ("pattern", "last node", "graph", "becomes"), rows)
