"""PyTorch and OpenVINO agree with the functions, wherever they run the same operator."""

import numpy as np
import pytest
from support import peers
from support.cases import CASES, TOLERANCE, assert_close
from support.selection import is_representative, long_unless

from onnx_ops.arrays import functions

NOT_EMPTY = [
    c for c in CASES if all(0 not in shape for shape in c.shapes) and np.isfinite(c.extent)
]
NEEDS = {"PyTorch": "torch", "OpenVINO": "openvino.opset15"}
# A peer, the operator and element types that it runs, and how many of the cases it does at least.
AGREE = [
    ("PyTorch", "Col2Im", "float32 float64 bool", 19),
    ("PyTorch", "GridSample", "float32 float64", 55),
    ("PyTorch", "Im2Col", "float32 float64 bool complex64", 14),
    ("PyTorch", "MultiScaleDeformableAttention", "float32 float64", 15),
    ("OpenVINO", "Col2Im", "float32 int32 uint8 int8", 26),
    ("OpenVINO", "GridSample", "float32", 39),
    ("OpenVINO", "DeformConv", "float32", 15),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("peer", "op_type", "dtype", "fewest"),
    [
        long_unless(
            is_representative(op, dtype), peer, op, dtype, fewest, id=f"{peer}-{op}-{dtype}"
        )
        for peer, op, dtypes, fewest in AGREE
        for dtype in dtypes.split()
    ],
)
def test_peers_agree(peer, op_type, dtype, fewest):
    pytest.importorskip(NEEDS[peer])
    count = 0
    for case in (c for c in NOT_EMPTY if c.op_type == op_type):
        inputs = case.inputs(dtype)
        try:
            theirs = peers.PEERS[peer](case, inputs)()
        except Exception:  # each peer raises its own exceptions for what it can't do
            continue
        ours, count = functions.call(case.operator, *inputs, **case.attributes), count + 1
        if dtype in TOLERANCE:
            # Coordinates far out are rounded more.
            tolerance = 4 * TOLERANCE[dtype] * (10 if case.extent > 100 else 1)
            scale = np.abs(theirs[np.isfinite(theirs)]).max(initial=1)
            np.testing.assert_allclose(ours, theirs, 0, tolerance * scale, err_msg=str(case))
        else:
            assert_close(ours, theirs, dtype, str(case))
    assert count >= fewest
