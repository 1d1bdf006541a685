"""Attributes that a node has and its operator doesn't.

A custom operator can only ask ONNX Runtime for the attributes that it knows: it never learns of a misspelt one.
"""

import logging
from contextlib import suppress

from ..errors import errors_of
from ..nodes import declared
from .model import nodes

WARNING = "onnx_ops: %s: %s"  # the operator with its node, and a sentence of `unknown`
log = logging.getLogger("onnx_ops")


def unknown(operator, names):
    """Yield a sentence for each of these attribute names that the operator doesn't have."""
    import difflib

    declared_names = [name for a in operator.attributes for name in a.names]
    for name in sorted(set(names) - set(declared_names)):
        matches = difflib.get_close_matches(name, declared_names, 1)
        hint = f"did you mean {matches[0]}?" if matches else f"there are {', '.join(declared_names) or 'none'}"
        yield f"attribute {name} is unknown and will be ignored; {hint}"


def warn_of_unknown(model, operators):
    """Log a warning for each attribute in a model (path, bytes or ModelProto) that its node's operator doesn't have.

    operators  what `operators.available` returns

    Raises nothing: ONNX Runtime reports whatever else is wrong with the model.
    """
    with suppress(Exception):
        for node in nodes(model, {name for _, name in operators}):
            operator = declared(node, operators)
            for sentence in unknown(operator, node.attributes) if operator else ():
                log.warning(WARNING, errors_of(operator, node.name).title, sentence)
