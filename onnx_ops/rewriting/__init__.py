"""`optimize`: fuse the nodes that exporters write into single nodes.

A pattern starts from the nodes through which the data go, and works out what indices and shapes are (indices.py),
whichever nodes compute them. It fuses nodes only if it is certain, and reports why others stay.
"""

import warnings
from contextlib import suppress
from copy import deepcopy
from types import ModuleType
from typing import TYPE_CHECKING, Any

import onnx

from ..declaration.errors import escaped
from ..model.external_data import opened
from ..model.nodes import inlined, model_nodes
from .finding import NOT_RUN, Finding, NearMiss
from .graph import Graph, Model
from .patterns import (
    constants,
)
from .search import may_find, search

if TYPE_CHECKING:
    import os

PATTERNS = (constants,)


def optimize(
    model: "str | os.PathLike[str] | bytes | onnx.ModelProto", folder: "str | os.PathLike[str] | None" = None
) -> onnx.ModelProto:
    """Return a copy of a model with fewer and faster nodes.

    It fuses nodes that exporters write. The new nodes are of the domain
    onnx_ops, except GridSample and, if the model allows version 19 of ai.onnx,
    DeformConv:

    =============================  ================================================
    Im2Col                         PyTorch's `unfold`, as its exporters write it
    Im2ColProduct                  an `unfold` that is only multiplied and added up
    ComputedGridSample             a GridSample and what computes its grid
    MultiScaleDeformableAttention  Deformable DETR's attention
    GridSample, DeformConv         pixels that are gathered and added up
    =============================  ================================================

    Nodes of this package's operators of ai.onnx with constant inputs become a
    Constant. Subgraphs are optimized, too, and local functions, which are
    inlined if anything in the model changes.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
        The model, which is not changed.
    folder : path, optional
        The folder of the model's external data, or the model's file. Default:
        `model` if it is a path. Without it, constants in external data are
        unknown. They are not loaded into the result.

    Returns
    -------
    onnx.ModelProto
        The optimized copy, which is equal to the model if nothing matches. Its
        results differ from the model's by rounding: the page on optimizing
        states the bounds.

    Raises
    ------
    OpError
        The model is in ONNX Runtime's own format.

    See Also
    --------
    InferenceSession : Its argument `optimize` does this when the session is made.

    Examples
    --------
    >>> optimized = onnx_ops.optimize("model.onnx")
    >>> [node.op_type for node in optimized.graph.node if node.domain == "onnx_ops"]
    ['ComputedGridSample']
    """
    proto, path = opened(model)
    optimized, _ = rewritten(proto, folder or path)
    return deepcopy(optimized) if optimized is model else optimized


def rewritten(
    model: onnx.ModelProto,
    folder: "str | os.PathLike[str] | None" = None,
    operators: dict[tuple[str, str], Any] | None = None,
    in_place: bool = False,
    runs_nodes: bool = True,
) -> tuple[onnx.ModelProto, list[Finding]]:
    """Return the result of `optimize`, and a list with a Finding for each match or near miss of a pattern.

    The model itself is returned if nothing is replaced.

    operators   the result of `registry.available`, by default without custom operators
    in_place    change the model that is given, if it has no functions: weights are not copied
    runs_nodes  whether nodes may run. If not, the result shows what would be replaced, and is no model to run
    """
    op_types = {node.op_type for node in model_nodes(model)}
    if not (any(_may_fit(pattern, op_types) for pattern in PATTERNS) or may_find(op_types)):
        return model, []
    flat = model
    if model.functions:
        # Older exporters write a function for each of PyTorch's, so a pattern may span several. And in functions, ONNX
        # Runtime doesn't know the types that other operators than its own make.
        # The session reports what is wrong with the model. Python's protobuf can't copy names that are not UTF-8.
        with suppress(RuntimeError, UnicodeDecodeError):
            flat = inlined(model, operators=operators)
    if flat is model and not in_place:
        flat = deepcopy(model)
    findings = _rewrite(Model(flat, folder, operators, runs_nodes))
    return flat if any(f.operator for f in findings) else model, findings


def _may_fit(pattern: ModuleType, op_types: set[str]) -> bool:
    """Return whether a graph has the types of nodes that a pattern requires."""
    return any(map(op_types.issuperset, pattern.NEEDS))


def _rewrite(model: Model) -> list[Finding]:
    """Change a model, and return the findings."""
    findings = []
    for graph in model.graphs():
        reported = set()  # outputs of nodes that have a Finding: one per node is enough
        for pattern in PATTERNS:
            nodes = list(graph.owner.node)
            if not _may_fit(pattern, {node.op_type for node in nodes}):
                continue
            for node in [n for n in nodes if n.op_type in pattern.LAST and n.domain in pattern.DOMAINS]:
                # An earlier replacement may have removed the node.
                is_there = node.output and node.output[0] in graph.producers
                if is_there and node.output[0] not in reported and (finding := apply(pattern, graph, node)):
                    findings.append(finding)
                    reported.add(node.output[0])
        findings += search(graph)
    return findings


def apply(pattern: ModuleType, graph: Graph, node: onnx.NodeProto) -> Finding | None:
    """Replace a node if a pattern fits; returns the Finding, or None if the node is nothing like the pattern.

    The node stays, too, with a warning, if the pattern fails: the model is right as it is.
    """
    where = pattern.NAME, graph.title, node.name or node.output[0]
    graph.model.skipped.clear()
    try:
        replacement = pattern.match(graph, node) if graph.is_sound(node) else None
        if replacement is None:
            return None
        if (replacement.get("domain", ""), replacement["op_type"]) in graph.model.custom:
            raise NearMiss(f"{replacement['op_type']} is another operator in this session")
        untried = NOT_RUN if pattern is constants and not graph.model.runs_nodes else None
        operator = replacement.pop("finding", replacement["op_type"])
        graph.replace(node, **replacement)
        return Finding(*where, operator=operator, untried=untried)
    except NearMiss as miss:
        skipped = graph.model.skipped
        may_fit = f"; optimize first computes {skipped[0]}, and may replace it" if skipped else ""
        return Finding(*where, reason=f"{miss}{may_fit}")
    except Exception as error:
        name, title, node_name = where
        reason = f"{type(error).__name__}: {error}"
        text = f"onnx_ops: {name} at {node_name} of {title} was not optimized, for {reason}"
        warnings.warn(escaped(text), stacklevel=2)
        return None
    finally:
        graph.sweep_added()
