"""Limits of operators and calls, and numbers that stand for special cases. native/table.h has the
same.
"""

import numpy as np

MAX_RANK = 16  # axes of a tensor, and elements of an input whose values a plan reads
MAX_INPUTS = 16
MAX_OUTPUTS = 8
MAX_ATTRIBUTES = 16
MAX_KERNELS = 4
MAX_TILES = 64  # that run at a time: the bits in the mask of workspaces in use
MAX_GEOMETRY = 2**14  # bytes of any operator's geometry
MAX_WORKSPACE = 2**40  # bytes of a tile's workspace
MAX_SHOWN = 32  # values that a refusal shows
# Bytes of a cache line, and of the widest vectors: a tile's workspace begins at a multiple of it.
LINE = 64
TILE_ELEMENTS = 2**12  # elements of inputs and outputs for each tile of a loop
ELEMENTS = 2**58  # of any tensor, so that its bytes fit into 64 bits for every type
INT64 = np.iinfo(np.int64)
UNKNOWN = -1  # an unknown dimension; lower numbers stand for names of dimensions
ABSENT = -1  # the rank of an absent optional input
