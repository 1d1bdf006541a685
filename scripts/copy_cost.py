"""Time a 16 MB output on its way through onnxruntime-extensions, against plain copies of inputs and output."""

import time
from statistics import median

import numpy as np
import onnxruntime as ort
import onnxruntime_extensions as extensions
from onnx import TensorProto, helper

import onnx_ops

REPEATS = 15
other_memory = np.zeros(2**27, np.uint8)  # to write to it evicts all else from the caches


@extensions.onnx_op(op_type="Same", inputs=[extensions.PyCustomOpDef.dt_float])
def same(x):
    """A plain Python op, whose output becomes a list."""
    return x


def session_of(op_type, domain, feeds, attributes, **kwargs):
    node = helper.make_node(op_type, list(feeds), ["y"], domain=domain, **attributes)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in feeds.items()
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.contrib", 1)]
    proto = helper.make_model(helper.make_graph([node], op_type, inputs, [y]), opset_imports=imports, ir_version=9)
    if not domain:
        return onnx_ops.InferenceSession(proto.SerializeToString(), backend="extensions")
    options = ort.SessionOptions()
    options.register_custom_ops_library(extensions.get_library_path())
    return ort.InferenceSession(proto.SerializeToString(), options)


def col2im(block, **attributes):
    k = block * block
    blocks = 2048 * 2048 // (k if attributes.get("strides") else 1)
    x = np.random.default_rng(0).random((1, k, blocks), np.float32)
    feeds = {"x": x, "image_shape": np.array([2048, 2048]), "block_shape": np.array([block, block])}
    return session_of("Col2Im", "", feeds, attributes), feeds


def seconds(call):
    """Time one call that finds none of its data in the caches."""
    np.add(other_memory, 1, out=other_memory)
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def main():
    x = np.random.default_rng(0).random((1, 1, 2048, 2048), np.float32)
    cases = {
        "Col2Im, block 1x1": col2im(1),
        "Col2Im, block 2x2, stride 2": col2im(2, strides=[2, 2]),
        "Col2Im, block 3x3": col2im(3, pads=[1] * 4),
        "a plain Python op": (session_of("Same", "ai.onnx.contrib", {"x": x}, {}), {"x": x}),
    }
    print(f"{'16.8 MB of output':30} {'run, ms':>10} {'copies, ms':>10} {'ratio':>8}")
    for name, (session, feeds) in cases.items():
        arrays = [*feeds.values(), session.run(None, feeds)[0]]
        targets = [np.empty_like(a) for a in arrays]

        def copy(arrays=arrays, targets=targets):
            for target, array in zip(targets, arrays, strict=True):
                np.copyto(target, array)

        runs, copies = [], []
        for _ in range(REPEATS):
            runs.append(seconds(lambda session=session, feeds=feeds: session.run(None, feeds)))
            copies.append(seconds(copy))
        ratio = median(r / c for r, c in zip(runs, copies, strict=True))
        print(f"{name:30} {median(runs) * 1e3:10.1f} {median(copies) * 1e3:10.1f} {ratio:8.1f}")


if __name__ == "__main__":
    main()
