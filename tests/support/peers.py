"""The other implementations of the operators, behind one interface: (case, inputs, threads) -> a
function.

That function takes no arguments and returns the output, computed in this number of threads; 0
leaves it to the peer. What a peer can't do raises an exception of that peer's, here or at the first
call.
"""

import importlib.util

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from .backends import output_shape, quiet, run_session
from .cases import model
from .written import attention

OLDER_NAMES = {"linear": "bilinear", "cubic": "bicubic"}
NEWER_NAMES = {older: newer for newer, older in OLDER_NAMES.items()}


def builtin_session(case, inputs, threads=0):
    """A session on ONNX Runtime's built-in kernel for the newest version of the operator, or on
    nodes in its place.
    """
    if case.op_type == "MultiScaleDeformableAttention":
        return ort.InferenceSession(
            attention_nodes(*inputs).SerializeToString(),
            quiet(intra_op_num_threads=threads),
            ["CPUExecutionProvider"],
        )
    attributes = dict(case.attributes)
    if case.op_type == "GridSample" and not case.domain:
        attributes["mode"] = NEWER_NAMES.get(attributes["mode"], attributes["mode"])
    proto = model(case.domain, case.op_type, inputs, attributes, opset=22)
    return ort.InferenceSession(proto.SerializeToString(), quiet(intra_op_num_threads=threads))


def attention_nodes(value, sizes, locations, weights):
    """A model of the nodes that PyTorch's exporter writes for deformable attention; its input of
    sizes is unused.
    """
    batch, queries, heads, _, points = weights.shape
    proto = attention(
        levels=sizes.reshape(-1, 2).tolist(), batch=batch, queries=queries, heads=heads,
        channels=value.shape[3],
        points=points, dtype=value.dtype, places=locations.dtype,
    )  # fmt: skip
    proto.graph.input.insert(
        1, helper.make_tensor_value_info("spatial_shapes", TensorProto.INT64, sizes.shape)
    )
    return proto


def builtin(case, inputs, threads=0):
    session, shape = builtin_session(case, inputs, threads), output_shape(case, inputs)
    return lambda: run_session(session, inputs, shape)


def pytorch(case, inputs, threads=0):
    import torch

    first, *others = (torch.from_numpy(v.view(np.uint16)).view(torch.bfloat16)
        if v.dtype.name == "bfloat16"
                      else torch.from_numpy(v) for v in inputs)  # fmt: skip
    settings, functions = dict(case.attributes), torch.nn.functional
    threads = threads or torch.get_num_threads()
    if case.op_type in ("Col2Im", "Im2Col"):
        sizes = [v.tolist() for v in others] or [settings["kernel_shape"]]
        pads = np.array(settings.get("pads", [0] * 2 * len(sizes[0]))).reshape(2, -1)
        if (pads[0] != pads[1]).any():
            raise NotImplementedError("pads differ")
        strides, dilations, pads = (
            settings.get("strides", 1),
            settings.get("dilations", 1),
            pads[0].tolist(),
        )
        function = functions.fold if case.op_type == "Col2Im" else functions.unfold
        compute = lambda: function(first, *sizes, dilations, pads, strides)
    elif case.op_type == "MultiScaleDeformableAttention":
        from .attention_by_torch import Attention

        sizes, *others = others
        module = Attention(*sizes.reshape(-1, 2).tolist())
        compute = lambda: module(first, *others)
    elif case.op_type == "DeformConv":
        from torchvision.ops import deform_conv2d

        x, w, offset, b, mask = first, *others, *[None] * (4 - len(others))
        axes = first.ndim - 2
        pads = settings.get("pads", [0] * 2 * axes)
        if axes != 2 or pads[:2] != pads[2:]:
            raise NotImplementedError("has two image axes, with the same pads at both ends")
        if np.isnan(inputs[2]).any():
            raise NotImplementedError("reads outside of the image, which may end the process")
        strides, dilations = settings.get("strides", [1, 1]), settings.get("dilations", [1, 1])
        compute = lambda: deform_conv2d(x, offset, w, b, strides, pads[:2], dilations, mask)
    else:
        settings["mode"] = OLDER_NAMES.get(settings["mode"], settings["mode"])
        settings["align_corners"] = bool(settings.get("align_corners", 0))
        compute = lambda: functions.grid_sample(first, others[0], **settings)

    def call():
        if torch.get_num_threads() != threads:  # the number holds for the whole process
            torch.set_num_threads(threads)
        y = compute()
        return (
            y.view(torch.uint16).numpy().view(inputs[0].dtype)
            if y.dtype == torch.bfloat16
            else y.numpy()
        )

    return call


def openvino(case, inputs, threads=0):
    import openvino as ov
    import openvino.opset15 as opset

    if case.op_type in ("Im2Col", "MultiScaleDeformableAttention"):
        raise NotImplementedError("has no such operator")
    attributes, first = (
        dict(case.attributes),
        opset.parameter(inputs[0].shape, ov.Type(inputs[0].dtype)),
    )
    if case.op_type == "Col2Im":
        none = [0] * len(inputs[1])
        pads = attributes.pop(
            "pads", attributes.pop("pads_begin", none) + attributes.pop("pads_end", none)
        )
        half = len(pads) // 2
        parameters, sizes = [first], (opset.constant(v) for v in inputs[1:])
        node = opset.col2im(
            first, *sizes, pads_begin=pads[:half], pads_end=pads[half:], **attributes
        )
    elif case.op_type == "DeformConv":
        parameters = [opset.parameter(v.shape, ov.Type(v.dtype)) for v in inputs]
        x, w, offset, b, mask = *parameters, *[None] * (5 - len(inputs))
        axes = first.get_output_partial_shape(0).rank.get_length() - 2
        strides, dilations = (attributes.get(name, [1] * axes) for name in ("strides", "dilations"))
        pads = attributes.get("pads", [0] * 2 * axes)
        groups = {
            "group": attributes.get("group", 1),
            "deformable_group": attributes.get("offset_group", 1),
        }
        node = opset.deformable_convolution(
            x,
            offset,
            w,
            strides,
            pads[:axes],
            pads[axes:],
            dilations,
            mask,
            bilinear_interpolation_pad=True,
            **groups,
        )
        if b is not None:
            node = opset.add(node, opset.unsqueeze(b, list(range(1, axes + 1))))
    else:
        parameters = [first, opset.parameter(inputs[1].shape, ov.Type(inputs[1].dtype))]
        attributes["align_corners"] = bool(attributes.get("align_corners", 0))
        attributes["mode"] = OLDER_NAMES.get(attributes["mode"], attributes["mode"])
        node = opset.grid_sample(*parameters, attributes)
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    request = ov.compile_model(ov.Model([node], parameters), "CPU", settings).create_infer_request()
    feeds = dict(enumerate(inputs[: len(parameters)]))
    return lambda: next(iter(request.infer(feeds, share_inputs=True, share_outputs=True).values()))


_PEERS = {
    "ONNX Runtime": (builtin, "onnxruntime"),
    "PyTorch": (pytorch, "torch"),
    "OpenVINO": (openvino, "openvino"),
}
PEERS = {
    name: peer for name, (peer, module) in _PEERS.items() if importlib.util.find_spec(module)
}  # those installed
