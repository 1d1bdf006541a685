"""Attributes that a node has and its operator doesn't.

ONNX Runtime tells custom operators only of those that they ask for, so a misspelt one is as good as absent.
"""

import logging
from contextlib import suppress

from ..errors import named
from ..nodes import declared
from .model import nodes

WARNING = "onnx_ops: %s: %s"  # the operator with its node, and what `unknown` says
log = logging.getLogger("onnx_ops")


def unknown(operator, names):
    """Yield a sentence on each of these names of attributes that the operator doesn't have."""
    import difflib

    known = [a.name for a in operator.attributes]
    for name in sorted(set(names) - set(known)):
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known) or 'none'}"
        yield f"attribute {name} is unknown and will be ignored; {hint}"


def warn_of_unknown(model, operators):
    """Log a warning for each such attribute of a model (path, bytes or ModelProto).

    operators  what `operators.known` returns

    Whatever is wrong with the model otherwise is for ONNX Runtime to tell: nothing is raised.
    """
    with suppress(Exception):
        for node in nodes(model, {name for _, name in operators}):
            operator = declared(node, operators)
            for sentence in unknown(operator, node.attributes) if operator else ():
                log.warning(WARNING, named(operator, node.name).title, sentence)
