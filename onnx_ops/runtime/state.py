"""What a kernel of a session keeps: addresses, then the operator's parameters, then the result if it is constant."""

import numpy as np

from ..operator import MAX_INPUTS, MAX_RANK

# Functions of ONNX Runtime's C interface that compiled code calls.
API = (
    "KernelContext_GetInput KernelContext_GetOutput GetTensorTypeAndShape GetDimensionsCount GetDimensions "
    "ReleaseTensorTypeAndShapeInfo GetTensorElementTypeAndShapeDataReference GetTensorMutableData "
    "KernelContext_ParallelFor"
).split()
# `values` is, for each input, 0 where the plan wants its shape, else the bytes of one of its values. `result` is the
# address of what every run gives, 0 if it must be computed; `shape` and `result_bytes` describe it.
STATE = np.dtype(
    [(name, np.int64) for name in (*API, "malloc", "free", "slow", "plan", "tile", "parameters", "custom_op", "inputs")]
    + [("values", np.int64, (MAX_INPUTS,))]
    + [("result", np.int64), ("result_bytes", np.int64), ("rank", np.int64), ("shape", np.int64, (MAX_RANK,))]
)
