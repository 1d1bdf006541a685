"""Check one node of a model against its declaration, and try it on ONNX Runtime's own kernel."""

import re
from contextlib import suppress
from dataclasses import replace
from itertools import combinations

import numpy as np
import onnx
from onnx import helper

from .. import OpError, dtypes, plain
from ..errors import errors_of, require
from . import data
from .common import reason
from .compare import difference
from .routes import Route

STAND_IN = 2  # the size of a dimension that the model leaves open
NO_KERNEL = re.compile("Could not find an implementation|Failed to find kernel")  # for these types, or this version
LARGEST = 2**24  # elements of an input that is made up to try a node


def check_declared(operator, attributes, inputs):
    """Return ([what the declaration refuses], made-up arrays for the inputs, or None if too little is known)."""
    try:
        with errors_of(operator):
            pairs = list(zip(operator.each_input(len(inputs)), inputs, strict=True))
            for i, v in pairs:
                require(v.name or i.presence == "optional", i.name, None, "must be given")
            pairs = [(i, v) for i, v in pairs if v.name]
            values = operator.values(attributes)
            signature = types(operator, pairs)
            if len(signature) == len(operator.types) and operator.kernels:
                operator.check_types(operator.kernels[operator.choice(values)], signature)
            known = [v.value.tolist() if i.values and v.value is not None else None for i, v in pairs]
            plain.infer(operator, values, [v.shape for _, v in pairs], known)
            plan_inputs = [plan_input(i, v) for i, v in pairs]
            if any(p is None for p in plan_inputs):
                return [], None
            with suppress(OpError if is_open(pairs) else ()):  # stand-ins for open sizes may not fit each other
                if len(plan_inputs) == len(operator.inputs):
                    plain.shapes_of(operator, values, [tuple(each.tolist()) for each in plan_inputs])
                return [], sample(pairs, plan_inputs)
    except OpError as error:
        return [str(error).removeprefix(f"{operator.title}: ")], None
    return [], None


def types(operator, pairs):
    """Return {type variable: element type}, as far as the types are known."""
    signature = {}
    for i, v in pairs:
        if v.type is None:
            continue
        if v.type not in operator.types[i.type]:
            raise OpError(f"dtype of {i.name}", v.type, f"must be one of {', '.join(operator.types[i.type])}")
        if signature.setdefault(i.type, v.type) != v.type:
            raise OpError(f"dtype of {i.name}", v.type, f"must be {signature[i.type]} as before")
    return signature


def is_open(pairs):
    """Return whether the model leaves any dimension open."""
    return any(not i.values and not all(isinstance(d, int) for d in v.shape) for i, v in pairs)


def plan_input(declared_input, v):
    """Return what the plan gets for an input, with STAND_IN for open dimensions; None if too little is known."""
    if declared_input.values:
        return None if v.value is None or v.value.ndim != 1 else v.value.astype(np.int64)
    if v.shape is None:
        return None
    return np.array([d if isinstance(d, int) else STAND_IN for d in v.shape], np.int64)


def sample(pairs, plan_inputs):
    """Return arrays for the inputs, with random tensors; None if a type is unknown or a tensor would be too large."""
    if any(v.type is None or np.prod(p, dtype=float) > LARGEST for (_, v), p in zip(pairs, plan_inputs, strict=True)):
        return None
    rng = np.random.default_rng(0)
    return [
        v.value if i.values else data.random_array(rng, v.name, v.type, p.tolist())
        for (i, v), p in zip(pairs, plan_inputs, strict=True)
    ]


def try_builtin(model, node, operator, inputs, arrays, problems):
    """Try ONNX Runtime's own kernel on the node alone; return "runs it", or why not. Without arrays it isn't run."""
    if not all(v.type for v in inputs):
        return "not tried: types are unknown"
    lone_model = node_alone(model, node, inputs)
    try:
        route = Route(lone_model, "builtin")
        if arrays is None:
            why = "see its problem below" if problems else "shapes are unknown"
            return f"makes a session of it; not run: {why}"
        feeds = dict(zip(route.inputs, arrays, strict=True))
        outputs = route.run(feeds)
    except Exception as error:
        types = unsupported_types(model, node, operator, inputs) if NO_KERNEL.search(str(error)) else ""
        return f"refuses it: {f'no kernel for {types}' if types else reason(error)}"
    try:
        own_outputs = Route(lone_model).run(feeds)
    except Exception as error:
        return f"runs it; onnx_ops does not: {reason(error)}"
    deviation = difference(*outputs.values(), *own_outputs.values())
    return "runs it" if deviation.ok else f"runs it, wrong: {deviation.problem or f'off by {deviation.largest:.2g}'}"


def unsupported_types(model, node, operator, inputs):
    """Return the types of inputs for which ONNX Runtime has no kernel, as "float64 Grid"; "" if they aren't the cause.

    It tries which inputs, as few as possible, would have to be float32.
    """
    declared = dict(zip(operator.inputs, inputs, strict=False))
    others = sorted({i.type for i, v in declared.items() if not i.values and v.type != "float32"})
    for count in range(1, len(others) + 1):
        for changed in combinations(others, count):
            replaced = [replace(v, type="float32") if i.type in changed else v for i, v in declared.items()]
            with suppress(Exception):
                Route(node_alone(model, node, replaced), "builtin")
                return " and ".join(f"{v.type} {i.name}" for i, v in declared.items() if i.type in changed)
    return ""


def node_alone(model, node, inputs):
    """Return a model with a copy of this node alone, as bytes. It has the node's inputs."""
    described = [
        helper.make_tensor_value_info(f"input_{k}", dtypes.TABLE[v.type].onnx, v.shape) for k, v in enumerate(inputs)
    ]
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.input[:], copy.output[:]
    copy.input.extend(d.name for d in described)
    copy.output.append("output")
    output = helper.make_tensor_value_info("output", described[0].type.tensor_type.elem_type, None)
    graph = helper.make_graph([copy], "alone", described, [output])
    proto = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    return proto.SerializeToString()
