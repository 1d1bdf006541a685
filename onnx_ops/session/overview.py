"""The operators, and the nodes that they run in sessions."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from ..declaration.dtypes import TABLE
from ..declaration.errors import OpError
from ..native import library
from ..registry import available

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


KINDS = "biufcO"  # of NumPy's types, in the order of `in_order`


def operators() -> list[dict[str, Any]]:
    """Return a list of all operators: those of this package, and custom ones in use.

    Returns
    -------
    list of dict
        For each operator of each domain a dict with these keys:

        ================  ==========================================================
        domain, name      as in a model's node; domain "" is ai.onnx
        versions          versions of the domain that changed the operator
        ranks             ranks of the first input
        dtypes            {type variable: element types} in sessions
        array_dtypes      {type variable: element types} for the functions on arrays
        inputs            {input: type variable}
        outputs           {output: type variable}
        attributes        {attribute: default}
        ================  ==========================================================

    Examples
    --------
    >>> [each["versions"] for each in onnx_ops.operators() if each["name"] == "RoiAlign"]
    [(16, 22)]
    """
    return [
        {
            "domain": o.domain,
            "name": o.name,
            "versions": o.versions,
            "ranks": o.ranks,
            "dtypes": {
                v: in_order(n for n in names if TABLE[n].in_sessions)
                for v, names in o.types.items()
            },
            "array_dtypes": {v: in_order(names) for v, names in o.types.items()},
            "inputs": {i.name: i.type for i in o.inputs},
            "outputs": {output.name: output.type for output in o.outputs},
            "attributes": {a.name: a.default for a in o.attributes},
        }
        for o in available().values()
    ]


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Sort names of data types by kind, then by width, for people."""

    def rank(name: str) -> tuple[int, int]:
        dtype = TABLE[name].numpy
        return KINDS.find(dtype.kind.replace("V", "f")), dtype.itemsize  # bfloat16 has the kind V

    return tuple(sorted(names, key=rank))


def node_counts() -> dict[str, int]:
    """Return the number of nodes that onnx_ops runs in sessions of this process.

    Nodes of all sessions with the native backend count, from the start of the
    process on. A node that is missing here runs ONNX Runtime's built-in kernel.

    Returns
    -------
    dict
        {operator: number of nodes}, for operators with nodes. An operator of a
        domain other than ai.onnx has the domain before its name.

    Examples
    --------
    >>> session = onnx_ops.InferenceSession("model.onnx")
    >>> onnx_ops.node_counts()["GridSample"] > 0
    True
    """
    counts: Counter[str] = Counter()
    with suppress(OpError):  # without the C library, no node is native
        for row in library.rows():
            if row.kernels_made:
                counts[b".".join(filter(None, (row.domain, row.name))).decode()] += row.kernels_made
    return dict(counts)
