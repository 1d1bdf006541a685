"""Versions of ai.onnx: whether nodes are valid in them, and mean the same."""

import onnx

AI_ONNX = ("", "ai.onnx")
OLDEST = 12  # version of ai.onnx from which on a model may be changed to import a newer one
# {type of node: version from which on it means something else, although it looks the same}.
CHANGED = {
    "Hardmax": 13, "LogSoftmax": 13, "Resize": 13, "RoiAlign": 16, "Softmax": 13,
}  # fmt: skip


def is_same(node: onnx.NodeProto, old: int, new: int) -> bool:
    """Return whether a node means the same in two versions of ai.onnx: the newer one only adds to
    what it can be.
    """
    if not onnx.defs.has(node.op_type, new, ""):
        return False
    before = onnx.defs.get_schema(node.op_type, old, "").since_version
    after = onnx.defs.get_schema(node.op_type, new, "").since_version
    if before == after:
        return True
    is_other = before < CHANGED.get(node.op_type, before) or (
        node.op_type == "Split" and len(node.input) < 2
    )
    if is_other or any(a.name == "ceil_mode" for a in node.attribute):
        return False
    return is_valid(node, onnx.IR_VERSION, dict.fromkeys(AI_ONNX, new))


def is_valid(node: onnx.NodeProto, ir_version: int, imports: dict[str, int]) -> bool:
    """Return whether onnx's checker accepts a node in a model with these versions, {domain:
    version}.
    """
    context = onnx.checker.C.CheckerContext()
    try:
        context.ir_version = ir_version
        context.opset_imports = imports
        onnx.checker.check_node(node, context)
    except (onnx.checker.ValidationError, TypeError, UnicodeDecodeError):
        return False  # also for versions and names that can't be read
    return True
