"""`optimize`: what exporters write around our operators, as single nodes.

A pattern starts from the nodes through which the data go, and works out what indices and shapes are (integers.py),
whichever nodes compute them. It replaces what it is certain of and says why it doesn't replace the rest.
"""

import onnx
import onnx.inliner

from . import affine_grid, deformable_attention, grid_sample, unfold
from .finding import Finding, NearMiss
from .graph import Model

# In this order, since one may be part of another: of deformable attention grids, of grids affine_grid.
PATTERNS = deformable_attention, unfold, affine_grid, grid_sample


def optimize(model: onnx.ModelProto, standard: bool = False, folder=None) -> onnx.ModelProto:
    """A copy of an onnx.ModelProto that gives the same results by fewer and faster nodes.

    PyTorch's `unfold` and `affine_grid`, as its exporters write them, become nodes Im2Col and AffineGrid of the domain
    onnx_ops; a GridSample and what makes its grid one node AffineGridSample, PerspectiveGridSample or FlowGridSample;
    the attention of Deformable DETR and its successors MultiScaleDeformableAttention. Subgraphs and local functions are
    searched, too. A model in which nothing is found comes back equal.

    standard  use operators of ai.onnx only
    folder    where the model's external data are: constants that lie there are unknown without it. They are not loaded.
    """
    return rewritten(model, standard, folder)[0]


def rewritten(model, standard=False, folder=None):
    """What `optimize` returns, and a list with a Finding for each place that a pattern fits, or nearly fits."""
    optimized, findings = _rewritten(model, standard, folder)
    if model.functions:  # in which a part of a pattern may be: older exporters write a function for each of PyTorch's
        try:
            flat = onnx.inliner.inline_local_functions(model)
        except (RuntimeError, onnx.checker.ValidationError):  # what is wrong with the model is for its session to tell
            return optimized, findings
        inlined = _rewritten(flat, standard, folder)
        if sum(f.operator is not None for f in inlined[1]) > sum(f.operator is not None for f in findings):
            return inlined
    return optimized, findings


def _rewritten(model, standard, folder):
    optimized = onnx.ModelProto()
    optimized.CopyFrom(model)
    findings = []
    for graph in Model(optimized, folder).graphs():
        told = set()  # one thing of a node is enough
        for pattern in PATTERNS:
            for node in [n for n in graph.owner.node if n.op_type == pattern.LAST and n.domain in pattern.DOMAINS]:
                is_there = node.output and node.output[0] in graph.producers  # others may have been taken away
                if is_there and node.output[0] not in told and (finding := applied(pattern, graph, node, standard)):
                    findings.append(finding)
                    told.add(node.output[0])
    return optimized, findings


def applied(pattern, graph, node, standard):
    """The Finding of a pattern at a node, which is replaced if the pattern fits; None if it is nothing like it."""
    if not graph.is_sound(node):
        return None
    where = pattern.NAME, graph.title, node.name or node.output[0]
    try:
        replacement = pattern.match(graph, node, standard)
    except NearMiss as miss:
        return Finding(*where, reason=str(miss))
    if replacement is None:
        return None
    graph.replace(node, **replacement)
    return Finding(*where, operator=replacement["op_type"])
