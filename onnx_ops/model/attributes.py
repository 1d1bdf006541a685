"""Attributes of a model's nodes that their operators don't have.

ONNX Runtime ignores them: a kernel can only query attributes by name.
"""

from __future__ import annotations

import difflib
import itertools
import logging
from typing import TYPE_CHECKING

from ..declaration.errors import as_text, errors_of, escaped, shortened
from .nodes import declared, in_its_versions, model_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import onnx

    from ..declaration.operator import Operator
    from ..registry import Operators

WARNING = "onnx_ops: %s"
MOST = 20  # warnings for a model
LONGEST_NAME = 100  # of an attribute with similar names
log = logging.getLogger("onnx_ops")


def warn_of_unknown_attributes(model: onnx.ModelProto, operators: Operators) -> None:
    """Log a warning for each attribute in a model that its node's operator doesn't have.

    operators  the result of `registry.available`
    """
    texts = list(itertools.islice(unknown_in(model, operators), MOST + 1))
    for text in texts[:MOST]:
        log.warning(WARNING, text)
    if len(texts) > MOST:
        log.warning(WARNING, "the model has more unknown attributes; onnx-ops inspect lists all")


def unknown_in(model: onnx.ModelProto, operators: Operators) -> Iterator[str]:
    """Yield an error message for each attribute in a model that its operator doesn't have."""
    operators = in_its_versions(operators, model)
    for node in model_nodes(model):
        if node.attribute and (operator := declared(node, operators)):
            title = errors_of(operator, node.name).title
            for text in unknown_attributes(operator, [a.name for a in node.attribute]):
                yield f"{title}: {text}"


def unknown_attributes(operator: Operator, names: Iterable[str]) -> Iterator[str]:
    """Yield an error message for each of these attribute names that the operator doesn't have."""
    declared_names = operator.attribute_names
    for name in sorted(set(map(as_text, names)) - set(declared_names)):
        matches = (
            difflib.get_close_matches(name, declared_names, 1) if len(name) <= LONGEST_NAME else []
        )
        hint = (
            f"did you mean {matches[0]}?"
            if matches
            else f"there are {', '.join(declared_names) or 'none'}"
        )
        yield f"attribute {shortened(escaped(name))} is unknown and will be ignored; {hint}"
