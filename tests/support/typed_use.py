"""Code that a type checker must accept and, in the marked lines, refuse; `mypy` checks this
file.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

import onnx_ops


def use(x: NDArray[np.float32], model: onnx.ModelProto, options: ort.SessionOptions) -> None:
    folded: NDArray[Any] = onnx_ops.col2im(x, [5, 5], (2, 2), strides=[1, 1], threads=2)
    onnx_ops.im2col(folded, [2, 2], strides=(1, 1), pads=[1] * 4)
    onnx_ops.grid_sample(folded, x, mode="cubic", align_corners=True)
    onnx_ops.deformable_attention(folded, [[4, 5], [2, 3]], x, x, threads=2)
    onnx_ops.deformable_attention(folded, (4, 5, 2, 3), folded, folded)
    onnx_ops.deform_conv(folded, x, x, mask=x, strides=(1, 1), group=2, threads=1)
    onnx_ops.roi_align(
        folded, x, [0, 1], output_height=7, output_width=7, sampling_ratio=2, threads=1
    )
    session = onnx_ops.InferenceSession("model.onnx", options, backend="extensions")
    session = onnx_ops.InferenceSession(b"", optimize=True)
    session.run(None, {"x": x})
    outputs: dict[str, Any] = onnx_ops.Runner("model.onnx", threads=None, optimize=True)(
        {"x": x, "name": ["a"]}
    )
    onnx_ops.Runner(b"", backend="extensions")(outputs)
    options = onnx_ops.register(options, model, backend="native")
    onnx_ops.register(options, domains=["com.microsoft"])
    onnx_ops.build("library.dll", system="windows")
    path: str = onnx_ops.get_library_path()
    lowered: onnx.ModelProto = onnx_ops.lower(onnx_ops.optimize(model, folder="."))
    lowered = onnx_ops.lower(onnx_ops.optimize(Path("model.onnx")), operators=())
    lowered = onnx_ops.lower(onnx_ops.optimize(b"").SerializeToString())
    versions: list[dict[str, Any]] = onnx_ops.operators()
    onnx_ops.register_schemas()
    print(path, lowered, versions, onnx_ops.reference_ops()[0].__name__)
    try:
        onnx_ops.col2im(x, 5, [2, 2])  # type: ignore[arg-type]
        onnx_ops.InferenceSession("model.onnx", backend="cuda")  # type: ignore[arg-type]
        onnx_ops.Runner("model.onnx", 2)  # type: ignore[call-arg]
        onnx_ops.build("library.so", system="linux2")  # type: ignore[arg-type]
        onnx_ops.grid_sample(x, x, mode="trilinear")  # type: ignore[arg-type]
        onnx_ops.grid_sample(x, x, padding_mode="wrap")  # type: ignore[arg-type]
        onnx_ops.roi_align(x, x, [0], mode="mean")  # type: ignore[arg-type]
        onnx_ops.roi_align(x, x, [0], coordinate_transformation_mode="pixel")  # type: ignore[arg-type]
    except onnx_ops.OpError as error:
        print(error.argument.upper(), error.rule.upper())
