"""One call of one operator: the record that all compiled code, and whoever calls it, shares.

Of each input, and at position OUTPUT of the output: the address and the number of elements, the rank and the shape. For
an input whose values the plan wants, the shape holds these, and the rank how many there are. `workspace` is the address
of as many workspaces as tiles may run at once, each of `geometry.workspace` bytes; `busy` has a bit for each that a
tile is using. The caller fills in all of this but the geometry, which is the plan's result and comes last, so that one
layout of what is before it serves all operators.
"""

import numpy as np

from ..operator import MAX_INPUTS, MAX_RANK, MAX_TILES

OUTPUT = MAX_INPUTS
_POSITIONS = MAX_INPUTS + 1


def call_dtype(geometry):
    """The dtype of one call of an operator with this geometry."""
    return np.dtype(
        [
            ("data", np.int64, (_POSITIONS,)),
            ("size", np.int64, (_POSITIONS,)),
            ("rank", np.int64, (_POSITIONS,)),
            ("shape", np.int64, (_POSITIONS, MAX_RANK)),
            ("scratch", np.int64, (3,)),
            ("workspace", np.int64),
            ("busy", np.uint64, (1,)),
            ("geometry", geometry),
        ]
    )


def workspace_bytes(geometry):
    """For all tiles that may run at once: who runs them is not known, only that each takes the first free one."""
    return min(geometry["tiles"], MAX_TILES) * geometry["workspace"]
