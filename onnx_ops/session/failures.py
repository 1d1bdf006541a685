"""Explain why ONNX Runtime makes no session, or why a run fails, by an OpError."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ..declaration.errors import OpError
from ..declaration.operator import Input
from . import native_backend, reports

if TYPE_CHECKING:
    from .prepare import Prepared


def explained(error: Exception, ready: Prepared) -> OpError | None:
    """Return the OpError that explains why ONNX Runtime makes no session of a Prepared, or None."""
    if refusal := reports.refusal_of(error) or refused_grid(error, ready):
        return refusal
    has_none = re.search(r"com\.microsoft:\w+\(-1\) is not a reg", str(error))
    if has_none and "com.microsoft" not in (ready.imports or ()):
        rule = (
            "com.microsoft was registered on them for another model, which breaks this one; "
            "use new ones"
        )
        return OpError("sess_options", "used before", rule, "onnx_ops")
    if "Domain already set" in str(error):
        domains = native_backend.registered_domains(ready.options) | {
            domain for domain, _ in ready.operators.custom
        }
        rule = (
            "have operators of another library, such as @onnx_op functions, in "
            f"{' or '.join(sorted(domain or 'ai.onnx' for domain in domains))}, as onnx_ops has; "
            "use new options with "
            "backend='extensions', declare those operators by onnx_ops.operator, or give them "
            "another domain"
        )
        return OpError("sess_options", "given", rule, "onnx_ops")
    if "Conflicting with a registered kernel" in str(error):
        return OpError(
            "sess_options", "given", "have the same library twice; register it once", "onnx_ops"
        )
    if ready.is_ort or not ready.operators.keys() & (ready.nodes or ()):
        return None
    from .refused_types import refused_types  # sessions that work don't load onnx

    return refused_types(ready.model, ready.operators)


def refused_grid(error: BaseException, ready: Prepared) -> OpError | None:
    """Return the OpError that explains an exception by an AffineGrid of 16-bit floats, or None.

    ONNX Runtime replaces it by other nodes. In bfloat16, it has no kernels for them; in float16, a
    Split of AffineGrid of opset 20 fails.
    """
    fault = re.search(r"HandleNegativeAxis|implementation for A(dd|ffineGrid)\(", str(error))
    if not fault:
        return None
    from .refused_types import refused_types

    floats = ("float32", "float64", "float16")[: 3 if fault[1] else 2]
    operator = replace(
        ready.operators["", "GridSample"],
        name="AffineGrid",
        inputs=(Input("theta", "T1"), Input("size", "T2")),
        types={"T1": floats, "T2": ("int64",)},
    )
    return refused_types(ready.model, {operator.key: operator})
