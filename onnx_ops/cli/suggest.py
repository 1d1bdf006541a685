"""Write custom operators for nodes that no session runs, which call functions of this package.

A node's inputs are recognized by their ranks and sizes, its attributes by their names. Ambiguous
nodes get no operator.
"""

from __future__ import annotations

import keyword
import re
from typing import TYPE_CHECKING

from onnx import AttributeProto

from ..declaration.errors import as_text, quoted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    import onnx

    from .types import Attributes, Shape, Stated, Suggestion


ANNOTATIONS = {
    AttributeProto.INT: "int", AttributeProto.INTS: "tuple[int, ...]",
    AttributeProto.FLOAT: "float",
    AttributeProto.FLOATS: "tuple[float, ...]", AttributeProto.STRING: "str",
}  # fmt: skip
# In the order of PyTorch's numbers.
MODES = '("bilinear", "nearest", "bicubic")'
PADDING_MODES = '("zeros", "border", "reflection")'
ORDERS = (
    "x offset mask weight bias",
    "x weight offset mask bias",
    "x offset weight bias",
    "x weight offset bias",
)
ATTENTION = {
    (4, 2, 1, 6, 5): "value sizes starts locations weights",
    (4, 2, 6, 5): "value sizes locations weights",
}


def suggested(node: onnx.NodeProto, inputs: Sequence[Stated]) -> str | None:
    """Return the source of a custom operator for a node, or None.

    inputs  as in the node's Report
    """
    attributes = {as_text(a.name): a for a in node.attribute}
    shapes: list[Any] = [v["shape"] for v in inputs]
    is_written = all(a.type in ANNOTATIONS for a in node.attribute)
    if (
        not is_written
        or not all(map(is_name, [as_text(node.op_type), *attributes]))
        or any(not v["type"] for v in inputs)
        or None in shapes
    ):
        return None
    family = next(
        (f for pattern, f in FAMILIES.items() if re.search(pattern, node.op_type, re.IGNORECASE)),
        None,
    )
    suggestion = family(shapes, attributes) if family else None
    if suggestion is None:
        return None
    names, call = suggestion
    is_modulated = re.search("dcn_?v2|modulated", node.op_type, re.IGNORECASE)
    if family is convolution_call and is_modulated and "mask" not in names:
        return None  # the mask may be a part of the offsets
    if {*names} & {*attributes}:
        return None
    typed_inputs = ", ".join(f"{name}: {v['type']}" for name, v in zip(names, inputs, strict=True))
    listed = "".join(f", {name}: {ANNOTATIONS[a.type]}" for name, a in attributes.items())
    return f'''@onnx_ops.operator(
    {quoted(f"{as_text(node.domain)}::{node.op_type}")},
    inputs="{typed_inputs}",
    outputs="y: {inputs[0]["type"]}",
)
def {node.op_type}({", ".join(names)}{", *" if listed else ""}{listed}):
    return {call}
'''


def is_name(text: str) -> bool:
    """Return whether a text can be written as a name.

    Python reads some letters beyond ASCII as others.
    """
    return (
        text.isascii()
        and text.isidentifier()
        and not keyword.iskeyword(text)
        and text != "__debug__"
    )


def convolution_call(shapes: Sequence[Shape], attributes: Attributes) -> Suggestion:
    """Return the inputs' names and the call for a deformable convolution, or None."""
    for order in ORDERS:
        names = order.split()[: len(shapes)]
        sizes = dict(zip(names, shapes, strict=False))
        if len(names) == len(shapes) >= len(order.split()) - 1 and fits(**sizes):
            break
    else:
        return None
    pairs = [pair(attributes, word) for word in ("stride", "pad", "dil")]
    if None in pairs:
        return None
    strides, pads, dilations = pairs
    optional = ", ".join(f"{k}={n}" for k, n in (("b", "bias"), ("mask", "mask")) if n in names)
    return (
        names,
        f"""onnx_ops.deform_conv(
        x, weight, offset, {optional + ", " if optional else ""}strides={strides},
        dilations={dilations}, pads={pads} * 2, group=x.shape[1] // weight.shape[1],
        offset_group=offset.shape[1] // (2 * weight.shape[2] * weight.shape[3]),
    )""",
    )


def fits(
    x: Shape, weight: Shape, offset: Shape, mask: Shape | None = None, bias: Shape | None = None
) -> bool:
    """Return whether these can be the shapes of a deformable convolution's inputs."""
    if any(len(shape) != 4 for shape in (x, weight, offset, mask) if shape) or (
        bias and len(bias) != 1
    ):
        return False
    counts = (*weight, x[1], offset[1], *(mask[1:2] if mask else ()), *(bias or ()))
    if not all(isinstance(count, int) and count > 0 for count in counts):
        return False
    groups, rest = divmod(offset[1], 2 * weight[2] * weight[3])
    are_whole = not rest and x[1] % weight[1] == 0 and x[1] % groups == 0
    return (
        are_whole and (not mask or 2 * mask[1] == offset[1]) and (not bias or bias[0] == weight[0])
    )


def pair(attributes: Attributes, word: str) -> str | None:
    """Return an expression for two numbers from attributes with this word, or None.

    The word is in the attributes' names.
    """
    matches = sorted(
        (a for name, a in attributes.items() if word in name.lower()), key=lambda a: a.name
    )
    match [a.type for a in matches]:
        case []:
            return "[0, 0]" if word == "pad" else "[1, 1]"
        case [AttributeProto.INT, AttributeProto.INT]:
            return f"[{matches[0].name}, {matches[1].name}]"  # of the height and the width
        case [AttributeProto.INT]:
            return f"[{matches[0].name}] * 2"
        case [AttributeProto.INTS] if len(matches[0].ints) == 2:
            return f"list({matches[0].name})"
    return None


def attention_call(shapes: Sequence[Shape], attributes: Attributes) -> Suggestion:
    """Return the inputs' names and the call for deformable attention, or None."""
    names = ATTENTION.get(tuple(map(len, shapes)), "").split()
    return (
        (names, "onnx_ops.deformable_attention(value, sizes, locations, weights)")
        if names
        else None
    )


def sampling_call(shapes: Sequence[Shape], attributes: Attributes) -> Suggestion:
    """Return the inputs' names and the call for grid_sample, or None."""
    if len(shapes) != 2 or not len(shapes[0]) == len(shapes[1]) in (4, 5):
        return None
    settings = (
        ("padding_mode", "pad", PADDING_MODES),
        ("align_corners", "align", None),
        ("mode", "mode", MODES),
    )
    arguments = {}
    for setting, word, numbers in settings:
        for name, a in attributes.items():
            if word in name.lower() and name not in arguments:
                choices = numbers if a.type == AttributeProto.INT else None
                arguments[name] = f"{setting}={f'{choices}[{name}]' if choices else name}"
    lines = "".join(f"{argument},\n        " for argument in arguments.values())
    return ("x", "grid"), f"onnx_ops.grid_sample(\n        x, grid,\n        {lines[:-4]})"


FAMILIES = {
    "deform.*att": attention_call,
    "dcn|deform.*conv": convolution_call,
    "grid.?sampl": sampling_call,
}
