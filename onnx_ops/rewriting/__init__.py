"""`optimize`: fuse the nodes that exporters write into single nodes.

It asks what the elements of values are (reading/), whichever nodes compute them, and what operator
computes these (search.py). It fuses nodes only if it is certain, and reports why others stay.
"""

from contextlib import suppress
from copy import deepcopy
from typing import TYPE_CHECKING

import onnx

from ..model.external_data import opened
from ..model.nodes import inlined, model_nodes
from .finding import NOT_RUN, Finding
from .folding import OURS
from .graph import graphs_of
from .models import Model
from .patterns.constants import fold_constants
from .search import may_find, search

if TYPE_CHECKING:
    import os

    from ..registry import Operators

__all__ = ["NOT_RUN", "optimize", "rewritten"]


def optimize(
    model: "str | os.PathLike[str] | bytes | onnx.ModelProto",
    folder: "str | os.PathLike[str] | None" = None,
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
    operators: "Operators | None" = None,
    in_place: bool = False,
    runs_nodes: bool = True,
) -> tuple[onnx.ModelProto, list[Finding]]:
    """Return the result of `optimize`, and a list with a Finding for each match or near miss of a
    pattern.

    The model itself is returned if nothing is replaced.

    operators   the result of `registry.available`, by default without custom operators
    in_place    change the model that is given, if it has no functions: weights are not copied
    runs_nodes  whether nodes may run. If not, the result shows what would be replaced, and is no
                model to run
    """
    op_types = {node.op_type for node in model_nodes(model)}
    if OURS.isdisjoint(op_types) and not may_find(op_types):
        return model, []
    flat = model
    if model.functions:
        # Older exporters write a function for each of PyTorch's, so a pattern may span several. And
        # in functions, ONNX Runtime doesn't know the types that other operators than its own make.
        # The session reports what is wrong with the model. Python's protobuf can't copy names that
        # are not UTF-8.
        with suppress(RuntimeError, UnicodeDecodeError):
            flat = inlined(model, operators=operators)
    if flat is model and not in_place:
        flat = deepcopy(model)
    findings: list[Finding] = []
    rewritten_model = Model(flat, folder, operators, runs_nodes)
    rewritten_model.sort()
    for graph in graphs_of(rewritten_model):
        findings += [*fold_constants(graph), *search(graph)]
    return flat if any(f.operator for f in findings) else model, findings
