"""One node of a model: what is wrong with it, and what ONNX Runtime's own kernel makes of it."""

import re
from contextlib import suppress
from dataclasses import replace
from itertools import combinations

import numpy as np
import onnx
from onnx import helper

from .. import OpError, dtypes
from ..declaration import Record
from ..errors import named, require
from . import data
from .common import reason
from .compare import difference
from .routes import Route

STAND_IN = 2  # for a dimension that the model leaves open
NO_KERNEL = re.compile("Could not find an implementation|Failed to find kernel")  # for these types, or this version
LARGEST = 2**24  # elements of an input that are made up to try a node


def check(operator, attributes, inputs):
    """([what the declaration refuses], the inputs made up as arrays, or None where too little is known)."""
    try:
        with named(operator):
            pairs = list(zip(operator.each_input(len(inputs)), inputs, strict=True))
            for i, v in pairs:
                require(v.name or i.presence == "optional", i.name, None, "must be given")
            pairs = [(i, v) for i, v in pairs if v.name]
            parameters = operator.resolved(attributes)
            signature = types(operator, pairs)
            if len(signature) == len(operator.types) and not operator.is_function:
                operator.check_types(operator.kernel(Record(parameters[0])), signature)
            values = [v.value.tolist() if i.values and v.value is not None else None for i, v in pairs]
            operator.output_shapes(parameters, [v.shape for _, v in pairs], values)
            seen = [planned(i, v) for i, v in pairs]
            if any(s is None for s in seen):
                return [], None
            with suppress(OpError if is_open(pairs) else ()):  # it may be the stand-ins that don't fit
                if not operator.is_function:
                    operator.plan(Record(parameters[0]), seen, Record(np.zeros(1, operator.geometry_dtype)[0]))
                return [], sample(pairs, seen)
    except OpError as error:
        return [str(error).removeprefix(f"{operator.title}: ")], None
    return [], None


def types(operator, pairs):
    """{type variable: element type} as far as it is known."""
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
    """Whether the model leaves any dimension open."""
    return any(not i.values and not all(isinstance(d, int) for d in v.shape) for i, v in pairs)


def planned(declared_input, v):
    """What the plan sees of an input, with stand-ins for open dimensions; None if too little is known."""
    if declared_input.values:
        return None if v.value is None or v.value.ndim != 1 else v.value.astype(np.int64)
    if v.shape is None:
        return None
    return np.array([d if isinstance(d, int) else STAND_IN for d in v.shape], np.int64)


def sample(pairs, seen):
    if any(v.type is None or np.prod(s, dtype=float) > LARGEST for (_, v), s in zip(pairs, seen, strict=True)):
        return None
    rng = np.random.default_rng(0)
    return [
        v.value if i.values else data.random_array(rng, v.name, v.type, s.tolist())
        for (i, v), s in zip(pairs, seen, strict=True)
    ]


def builtin(model, node, operator, inputs, arrays):
    """What ONNX Runtime's own kernel makes of the node alone: "runs it", or why not. Run only if there are arrays."""
    if not all(v.type for v in inputs):
        return "not tried: types are unknown"
    alone = node_alone(model, node, inputs)
    try:
        route = Route(alone, "builtin")
        if arrays is None:
            return "makes a session of it; not run: shapes are unknown"
        feeds = dict(zip(route.inputs, arrays, strict=True))
        got = route.run(feeds)
    except Exception as error:
        types = lacking(model, node, operator, inputs) if NO_KERNEL.search(str(error)) else ""
        return f"refuses it: {f'no kernel for {types}' if types else reason(error)}"
    try:
        own = Route(alone).run(feeds)
    except Exception as error:
        return f"runs it; onnx_ops does not: {reason(error)}"
    apart = difference(*got.values(), *own.values())
    return "runs it" if apart.ok else f"runs it, wrong: {apart.problem or f'off by {apart.largest:.2g}'}"


def lacking(model, node, operator, inputs):
    """For which types of its inputs ONNX Runtime has no kernel, as "float64 Grid"; "" if the types aren't the cause.

    Found by trying: the fewest inputs that would have to be float32.
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
    """A model of this node, whose inputs it takes, as bytes."""
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
