"""Descriptions of nodes of every operator, for the harness in C (native.py), made from the case
tables.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from onnx_ops.declaration.operator import Operator
from onnx_ops.registry import OPERATORS, declaration_of

from . import cases, custom_functions, custom_operators, native, several_outputs
from .malformed import AT_CREATION, AT_RUN

TOPK, ABOVE, COMBINE, WINDOW = (
    declaration_of(getattr(custom_operators, name))
    for name in ("topk", "above", "combine", "window")
)
JOIN = declaration_of(custom_operators.join)
BLEND = declaration_of(custom_functions.blend)
IN_PYTHON = [JOIN, *(replace(o, name=f"Plain{o.name}") for o in (TOPK, ABOVE, WINDOW))]
WITH_KERNELS = [TOPK, ABOVE, COMBINE, WINDOW, BLEND]
TYPES = {o: ["float32"] for o in OPERATORS} | {  # with those of CUSTOM
    TOPK: ["float16", "float32"],
    ABOVE: ["float32"],
    COMBINE: ["float16", "bfloat16", "float32"],
    WINDOW: ["float32", "int16"],
    BLEND: ["float16", "float32"],
}
SAFE = [ABOVE, COMBINE]  # the kernels of the others trust their inputs' sizes
MOST_BYTES = 2**16  # of a description, unless an operator has no smaller one
MOST_STRINGS = (
    64  # in a tensor: a life takes a call for each, and there is a life with a fault for each call
)

X = np.random.default_rng(0).standard_normal((2, 5)).astype(np.float32)
HALVES = X.astype(np.float16)
EXTREMES = np.array(
    [[np.nan, np.inf, 2.0**-14, 6e4, -0.5], [1, -1, 2.0**-8, 6e4, 2.0**-24]], np.float32
)
TEXTS = np.array(["", "a", "longer than fifteen bytes"], object)
CUSTOM = {
    "topk": (TOPK, [X, np.array([2]), None], {}),
    "topk_of_halves": (TOPK, [HALVES, np.array([2]), HALVES[0]], {"scale": -0.5}),
    "topk_refuses": (TOPK, [X, np.array([6])], {"axes": [-1]}),
    "topk_of_no_numbers": (TOPK, [X[:0], np.array([1])], {}),
    "above": (ABOVE, [X.reshape(-1)], {"limit": 0.5}),
    "above_nothing": (ABOVE, [X[0, :0]], {}),
    "combine": (COMBINE, [X[0], X[1]], {"mode": "quotient", "swap": 1, "flags": [2.0, 0.25]}),
    "combine_halves": (COMBINE, [HALVES[0], HALVES[1]], {"mode": "product"}),
    "combine_extreme_halves": (COMBINE, list(EXTREMES.astype(np.float16)), {"mode": "product"}),
    "combine_extreme_bfloat16": (COMBINE, list(EXTREMES.astype(ml_dtypes.bfloat16)),
        {"mode": "product"}),
    "combine_refuses": (COMBINE, [X[0], np.float32([1, 0, 2, 0, 3])], {"mode": "quotient"}),
    "window": (WINDOW, [X[0], np.array([2]), np.array(1)], {}),
    "window_whole": (WINDOW, [X[0], None, np.array([1])], {}),
    "window_of_integers": (WINDOW, [np.int16([3, 1, 2])], {}),
    "window_refuses": (WINDOW, [X[0], None, np.array([9])], {}),
    "blend": (BLEND, [X[0], None], {"weights": [0.5], "mode": "subtract"}),
    "blend_halves": (BLEND, [HALVES[0], HALVES[1]],
        {"weights": [0.5, 2.0], "shifts": [3], "factor": -1.0}),
    "blend_no_weights": (BLEND, [X[0]], {}),
    "blend_many_weights": (BLEND, [X[0]], {"weights": [0.5] * 200, "shifts": [1] * 200}),
    # Those before fill the first room.
    "blend_defaults_in_new_room": (BLEND, [X[0]], {"weights": [0.5] * 72}),
    "blend_weights_of_integers": (BLEND, [X[0]], {"weights": [1, 2]}),
    "blend_factor_an_integer": (BLEND, [X[0]], {"weights": [0.5], "factor": 3}),
    "blend_refuses": (BLEND, [X[0, :1]], {"weights": [0.5]}),
    "join": (JOIN, [TEXTS, TEXTS[::-1]],
        {"between": "\u2013", "table": native.as_tensor(np.arange(3))}),
    "join_table": (JOIN, [TEXTS], {"table": native.as_tensor(np.arange(100.0).reshape(4, 25))}),
    "join_empty_table": (JOIN, [TEXTS], {"table": native.as_tensor(np.zeros((0, 3), np.float32))}),
    "join_table_of_texts": (JOIN, [TEXTS], {"table": native.as_tensor(TEXTS)}),
    "join_table_of_high_rank": (JOIN, [TEXTS],
        {"table": native.as_tensor(np.zeros([1] * 17, np.float32))}),
    "join_table_of_another_kind": (JOIN, [TEXTS], {"table": 3}),
    "join_many": (JOIN, [TEXTS] * 5, {"least": 3}),
    "join_too_many": (JOIN, [TEXTS] * 17, {}),
    "join_nothing": (JOIN, [TEXTS[:0]], {"between": ""}),
    "join_of_high_rank": (JOIN, [TEXTS.reshape(1, 1, 3, 1, 1)], {}),
    "cummax_of_another_rank": (cases.operator("mmcv", "cummax"), [X], {"dim": 0}, "the_node", (),
        [X[None]]),
    "plain_topk": (IN_PYTHON[1], [X, np.array([2]), None], {}),
    "plain_above": (IN_PYTHON[2], [X.reshape(-1)], {"limit": 0.5}),
    "plain_window": (IN_PYTHON[3], [X[0], None, np.array([1])], {}),
}  # fmt: skip
CHANGED = {  # name: (case, attributes, rule that refuses it; none if it is computed)
    "defaults": ("bilinear_zeros_edges", {}, ""),
    "negative_pads": (
        "overlapping",
        {"pads": [-1, 0, 0, 0]},
        "pads = [-1, 0, 0, 0]: must be 2 to 28 numbers",
    ),
    "a_float": (
        "overlapping",
        {"pads": [0.5] * 4},
        "pads = (not of kind INTS): must be a list of integers",
    ),
    "a_text": (
        "overlapping",
        {"strides": b"\xff" * 500},
        "strides = (not of kind INTS): must be a list of integers",
    ),
    "many_numbers": ("overlapping", {"strides": [2] * 500}, "2, 2, ...]: must be"),
    "other_blocks": (
        "overlapping",
        {"strides": [2, 3]},
        "the last axis must be the number of blocks, 12",
    ),
    "no_such_mode": ("bilinear_zeros_edges", {"mode": "\0" * 500}, "mode = '"),
    "a_float_for_an_integer": (
        "bilinear_zeros_edges",
        {"align_corners": 1.0},
        "align_corners = (not of kind INT)",
    ),
    "no_text": ("bilinear_zeros_edges", {"mode": b"\xff"}, "mode = (not of kind STRING)"),
    "strings_between_pixels": (
        "volume_nearest_zeros_edges",
        {"mode": "bilinear"},
        "unless mode is nearest",
    ),
}
# Malformed calls that other tests refuse: too large for the mock, in other words, or by Python's
# rules.
ELSEWHERE = (
    "ai.onnx.Col2Im-output_past_2**58", "org.openvinotoolkit.Col2Im-size_of_3_axes",
    "mmdeploy.NMSRotated-boxes_rank_2",
    "org.openvinotoolkit.Col2Im-kernel_length", "mmcv.SoftNonMaxSuppression-scores_rank_2",
    "com.microsoft.GridSample-mode_of_a_megabyte",
)  # fmt: skip
# {name: a call of the package's operators that breaks a rule}
MALFORMED = {
    f"malformed-{k}": b for k, b in enumerate(AT_RUN + AT_CREATION) if str(b) not in ELSEWHERE
}
RULES = {  # {name: what the refusal of a node says}, by regular expressions for MALFORMED
    "topk_refuses": "k = [6]: must lie in", "combine_refuses": "b = 0: must not be 0",
    "blend_refuses": "length of x",
    "window_refuses": "start = 9: must lie within x", "join_too_many": "inputs = 17: must be at "
                                                                       "most 16",
    "join_of_high_rank": "rank of the first input = 5", "join_table_of_texts": "table = (not of "
                                                                               "kind TENSOR)",
    "join_table_of_high_rank": "table = (not of kind TENSOR)",
    "blend_no_weights": "weights = None: must be given",
    "join_table_of_another_kind": "table = (not of kind TENSOR)",
    "blend_weights_of_integers": "weights = [1, 2] (not",
    "blend_factor_an_integer": "factor = 3 (not of kind FLOAT): must be a number",
    **{name: rule for name, (*_, rule) in CHANGED.items()},
    **{name: bad.message for name, bad in MALFORMED.items()},
}  # fmt: skip


def tables() -> dict[Operator, list[tuple[str, list[np.ndarray], dict[str, Any]]]]:
    """The cases of each operator of the package, {operator: [(name, inputs, attributes), ...]}."""
    cases_of_operator = {operator: [] for operator in OPERATORS}
    for case in cases.CASES:
        for dtype in ("float32", "string"):
            inputs = case.inputs(dtype if dtype in case.operator.types.get("T", ()) else "float32")
            strings = inputs[0].size if inputs[0].dtype == object else MOST_STRINGS
            if dtype == "float32" or (
                strings < MOST_STRINGS and cases.expected_of(case, inputs).size < 3 * MOST_STRINGS
            ):
                cases_of_operator[case.operator].append(
                    (f"{case.op_type}-{case.name}-{dtype}", inputs, case.attributes)
                )
    for operator in cases.OTHERS:
        for k, inputs_and_attributes in enumerate(several_outputs.CASES[operator.name]):
            *inputs, attributes = (
                inputs_and_attributes
                if isinstance(inputs_and_attributes[-1], dict)
                else (*inputs_and_attributes, {})
            )
            cases_of_operator[operator].append((f"{operator.name}-{k}", inputs, attributes))
    return cases_of_operator


def others(operator: Operator, arrays: Sequence[np.ndarray]) -> list[np.ndarray] | None:
    """Inputs of another size: twice the first axis of all inputs that share it."""
    size, twice = arrays[0].shape[:1], []
    for i, array in zip(operator.inputs, arrays, strict=False):
        is_twice = array is not None and array.ndim and array.shape[:1] == size and not i.values
        twice.append(np.concatenate([array, array]) if is_twice else array)
    return twice


def descriptions(most: int | None = None) -> dict[str, bytes]:
    """{name: description} of cases, of user-defined operators and of refused nodes.

    most  how many cases of each operator; then MALFORMED is left out, too
    """
    content = {name: native.described(*custom_case) for name, custom_case in CUSTOM.items()}
    for operator, table in tables().items():
        drawn = []
        for k, (name, inputs, attributes) in enumerate(table):
            values = (
                [n for n, i in enumerate(operator.inputs[: len(inputs)]) if i.values]
                if k % 2
                else []
            )
            other_inputs = (
                others(operator, inputs) if k % 3 == 0 and inputs[0].dtype != object else None
            )
            description = native.described(
                operator, inputs, attributes, constants=values, others=other_inputs
            )
            drawn.append((f"{operator.domain or 'ai.onnx'}-{name}", description))
        small = [description for description in drawn if len(description[1]) < MOST_BYTES] or [
            min(drawn, key=lambda description: len(description[1]))
        ]
        content |= small[:: max(1, len(small) // most)][:most] if most else small
    by_name = {case.name: case for case in cases.COL2IM + cases.GRID_SAMPLE + cases.VOLUMES}
    case = cases.OPENVINO[0]
    content["openvino_sizes_of_32_bits"] = native.described(
        case.operator, case.inputs("float32", values_dtype="int32"), case.attributes
    )
    for name, (case, attributes, _) in CHANGED.items():
        inputs = by_name[case].inputs(
            "string" if name.startswith("strings") else "float32", "float32"
        )
        content[name] = native.described(by_name[case].operator, inputs, attributes)
    for name, bad in MALFORMED.items() if not most else ():
        stated = {name: value for name, value in bad.attributes.items() if value is not None}
        content[name] = native.described(
            cases.operator(bad.domain, bad.op_type), bad.inputs, stated
        )
    return content
