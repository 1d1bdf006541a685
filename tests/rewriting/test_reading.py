"""What the reader says of values is what ONNX Runtime computes, operator by operator and model by
model.
"""

import pkgutil
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented
from support import by_hand, rewriting_cases
from support.by_hand import deform_conv, sampler
from support.operator_lines import LINES, line, node
from support.reading import compared, inputs_of, model_of, values_of
from support.selection import by_type, each_dtype, few, is_representative, long_unless
from support.written import (
    affine_grid,
    attention,
    feeds,
    frames,
    perspective,
    unfold,
    unfold_product,
    warp,
    written_in_place,
)

import onnx_ops
from onnx_ops.rewriting.graph import graphs_of
from onnx_ops.rewriting.models import Model
from onnx_ops.rewriting.reading import TABLE, reader_of
from onnx_ops.rewriting.reading.affine import number
from onnx_ops.rewriting.reading.reader import Reader, Result, Rule, Site

pytestmark = pytest.mark.any_library

MODELS = Path(__file__).parents[2] / "models"
OF_ANY_TYPE = [
    name
    for name, rule in TABLE.items()
    if rule.moves
    and name not in ("Cast", "DequantizeLinear", "SequenceAt")  # which have types of their own
]


def test_every_rule_has_a_line() -> None:
    assert TABLE.keys() == LINES.keys()


# Of open sizes the short run has the first line of each.
@pytest.mark.parametrize(("name", "k", "is_open"), [
    long_unless(not is_open or k == 0, name, k, is_open, id=f"{name}-{k}-{how}")
    for name, lines in LINES.items() for k in range(len(lines))
    for how, is_open in (("fixed", False), ("open", True))
])  # fmt: skip
def test_operators(name: str, k: int, is_open: bool) -> None:
    given = LINES[name][k]
    proto = model_of(given, is_open)
    result = compared(proto, inputs_of(proto))
    output = proto.graph.output[0].name
    assert output not in result.left
    assert output not in result.roots or (is_open and not given.is_open)


@each_dtype("int32", "uint8", "float64")
@pytest.mark.parametrize("name", OF_ANY_TYPE)
def test_moves_of_other_types(name: str, dtype: str) -> None:
    proto = model_of(LINES[name][0], False, dtype)
    try:
        values_of(proto, inputs_of(proto))
    except NotImplemented:
        pytest.skip("ONNX Runtime has no such kernel")
    result = compared(proto, inputs_of(proto))
    assert proto.graph.output[0].name not in result.roots


def turned_back(site: Site) -> Result:
    """Move elements by the inverse of a Transpose's permutation."""
    order = site.attributes.get("perm", [*range(len(site.index))][::-1])
    return site.move(0, [site.index[axis] for axis in order])


def without_end(site: Site) -> Result:
    """Move elements of a Concat as if all were of the first input."""
    return site.move(0, site.index)


def rounded_down(site: Site) -> Result:
    return site.forms.op("Floor", site.read(0, site.index))


MISTAKES = {
    "Transpose": (1, Rule(turned_back, moves=True)),
    "Concat": (2, Rule(without_end, moves=True)),
    "Round": (0, Rule(rounded_down, moves=False)),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_rule_with_a_mistake_is_seen(name: str) -> None:
    k, rule = MISTAKES[name]
    proto = model_of(LINES[name][k], False)
    reader = Reader(next(graphs_of(Model(proto))), {**TABLE, name: rule})
    with pytest.raises(AssertionError, match=name):
        compared(proto, inputs_of(proto), reader=reader)


# What is uncertain, or is computed in another way than it seems: it must be right or unknown.
CAREFUL = {
    "a negative dividend": line("Div", node("Range", -5, 7, 1), 2),
    "a negative dividend, exactly": line("Div", node("Range", -4, 8, 4), 4),
    "a negative divisor": line("Div", node("Range", 0, 7, 1), -2),
    "a remainder of negative numbers": line("Mod", node("Range", -5, 7, 1), 4),
    "a remainder with the dividend's sign": line("Mod", node("Range", -5, 7, 1), 4, fmod=1),
    "a remainder by a negative number": line("Mod", node("Range", -5, 7, 1), -4),
    "a sum past int32": line("Add", node("Range", *np.array([2**31 - 3, 2**31 - 1, 1], np.int32)),
        np.int32(5)),
    "a product past int32": line("Mul", node("Cast", node("Range", 0, 9, 1), to=6),
        np.int32(2**30)),
    "a difference of bytes": line("Sub", node("Cast", node("Range", 0, 4, 1), to=2), np.uint8(2)),
    "integers in bytes": line("Cast", node("Range", 250, 260, 1), to=2),
    "a difference past uint64": line(
        "Cast", node("Sub", node("Cast", node("Range", 0, 4, 1), to=13), np.uint64(2)), to=7),
    "sizes in bytes": line("Cast", node("Sub", node("Cast", node("Shape", "x"), to=2), np.uint8(9)),
        to=7),
    "floats in integers": line("Cast", node("Sub", node("Range", 0.25, 9.0, 0.5), 4.0), to=7),
    "integers in 16 bits": line("Cast", node("Cast", node("Range", 2040, 2060, 1), to=10), to=1),
    "indices of both signs": line("Gather", "x", node("Range", -2, 3, 1), axis=1),
    "an index that varies, of both signs": line("Gather", "x", [[-1, 1], [2, -2]], axis=2),
    "an axis of open size that may be 1": line(
        "Add", node("Slice", "x", [0], [1], [0]), "x", is_open=False
    ),
    "sequences of other lengths": line("ReverseSequence", "x", [3, 6], time_axis=1, batch_axis=0),
    "sequences that all end early": line("ReverseSequence", "x", [1] * 6),
    "a scatter at one place twice": line("ScatterND", "x", [[0], [0]], "z"),
    "a row of blocks in another row": line("Reshape", "x", [4, 6, 5, 2]),
    "a stack of sums, added up": line(
        "ReduceSum",
        node("Concat", *(node("Unsqueeze", node("MatMul", "x", node("Reshape", node(
            "Slice", "z", [k], [k + 1], [1]), [0, 1, 5, 4])), [0]) for k in range(3)), axis=0),
        [0], is_open=False,
    ),
    "a product of products": line(
        "Einsum", "x", node("MatMul", node("Transpose", "z", perm=[0, 1, 3, 2]), "x"),
        equation="nchw,ncwv->nv"
    ),
}  # fmt: skip


@pytest.mark.parametrize("is_open", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize("name", by_type(CAREFUL))
def test_what_is_uncertain(name: str, is_open: bool) -> None:
    proto = model_of(CAREFUL[name], is_open)
    compared(proto, inputs_of(proto))


# Models.


def of_folder(path: Path) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Return a model of models/, and its inputs."""
    proto = onnx.load(path)
    arrays = []
    for k in range(len(proto.graph.input)):
        tensor = onnx.TensorProto()
        tensor.ParseFromString((path.parent / "test_data_set_0" / f"input_{k}.pb").read_bytes())
        arrays.append(numpy_helper.to_array(tensor))
    names = [value.name for value in proto.graph.input]
    return proto, dict(zip(names, arrays, strict=True))


def in_few_types(path: Path) -> bool:
    """Return whether tests of the short run compile the kernels that a model of models/ needs."""
    graph = onnx.load(path, load_external_data=False).graph
    kind = helper.tensor_dtype_to_np_dtype(graph.input[0].type.tensor_type.elem_type)
    return is_representative(graph.node[0].op_type, kind.name)


SLOW = "patch_fold"  # for its sums over thousands of elements; test_operators has such sums, too


@pytest.mark.parametrize("path", [
    long_unless(k % 3 == 0 and in_few_types(path) and path.parent.name != SLOW, path,
        id=path.parent.name)
    for k, path in enumerate(sorted(MODELS.rglob("model.onnx")))
])  # fmt: skip
def test_models_of_the_package(path: Path) -> None:
    compared(*of_folder(path))


Case = tuple[Callable[[], onnx.ModelProto], Mapping[str, int]]
SIZED = {"n": 2, "size_0": 11, "size_1": 13, "size_2": 7, "length": 40, "q": 5}


def cases(
    title: str,
    write: Callable[..., onnx.ModelProto],
    table: Mapping[str, Any],
    sizes: Mapping[str, int] = SIZED,
) -> dict[str, Case]:
    """Return {name: (how to write a model, its open sizes)} for a table of arguments."""
    return {f"{title} {name}": (partial(write, **edits), sizes) for name, edits in table.items()}


def as_it_is(proto: onnx.ModelProto) -> onnx.ModelProto:
    return proto


ATTENTIONS = {
    "split": {},
    "sliced": {"cut": "Slice"},
    "in a sequence": {"cut": "SplitToSequence"},
    "merged": {"merged": True},
    "sliced, merged": {"merged": True, "cut": "Slice"},
    "of one level": {"levels": ((4, 5),)},
}
IN_PLACE = {
    f"{how} {layout}": {"how": how, "layout": layout}
    for how in ("ScatterElements", "ScatterND", "rows")
    for layout in (("first",) if how == "rows" else ("first", "last"))
}
PROTOS = {
    name: {"proto": proto}
    for name, proto in {**rewriting_cases.WINDOWS, **rewriting_cases.BLOCKS}.items()
}
UNFOLDS: dict[str, Any] = rewriting_cases.UNFOLDS
OPEN_UNFOLDS = {name: edits for name, edits in UNFOLDS.items() if "target" not in edits}
WRITTEN: dict[str, Case] = {
    **cases("unfold", unfold, UNFOLDS),
    **cases("no unfold", unfold, rewriting_cases.NO_UNFOLDS),
    **cases("open unfold", partial(unfold, open_sizes=True), OPEN_UNFOLDS),
    **cases("windows", as_it_is, PROTOS, rewriting_cases.OPEN),
    **cases("frames", frames, rewriting_cases.FRAMES),
    **cases("product", unfold_product, rewriting_cases.PRODUCTS),
    **cases("sampler", sampler, by_hand.SAMPLERS, by_hand.SIZES),
    **cases("attention", attention, ATTENTIONS),
    **cases("in place", written_in_place, IN_PLACE),
    **cases("deform_conv", deform_conv, {"by GatherND": {}, "in a module": {"module": True},
                                         "by GatherElements": {"gather": "GatherElements",
                                             "mask": False}}),
    **cases("grid", affine_grid,
        {"alone": {}, "by rows, sampled": {"by_rows": True, "sample": "linear"}}),
    **cases("perspective", perspective, {"": {}}),
    **cases("warp", warp, {"": {}}),
}  # fmt: skip


@cache
def short_names() -> set[str]:
    """Return the names of WRITTEN that every run has: one of each kind."""
    return {*few({name: {"kind": name.split()[0]} for name in WRITTEN}, together=1)}


@pytest.mark.parametrize(
    "name", by_type(long_unless(name in short_names(), name) for name in WRITTEN)
)
def test_models_that_are_written(name: str) -> None:
    write, sizes = WRITTEN[name]
    proto = write()
    compared(proto, feeds(proto, sizes))


@cache
def node_cases() -> dict[str, list[Any]]:
    """Return {operator: onnx's own cases of it}, for those of the table."""
    from onnx.backend.test.case import node as all_cases

    known = {module.name for module in pkgutil.iter_modules(all_cases.__path__)}
    names = {name.lower() for name in TABLE}
    with np.errstate(all="ignore"):
        for name in sorted(known & {*names, *(f"{name}_" for name in names)}):
            import_module(f"{all_cases.__name__}.{name}")
    found: dict[str, list[Any]] = {name: [] for name in TABLE}
    for case in all_cases._NodeTestCases:
        op_type = case.model.graph.node[0].op_type
        if len(case.model.graph.node) == 1 and op_type in found:
            found[op_type].append(case)
    return found


@pytest.mark.long  # test_operators has all operators, too
@pytest.mark.parametrize("name", [name for name in TABLE if "." not in name])
@pytest.mark.filterwarnings("ignore:.*(overflow|invalid value) encountered")
def test_cases_of_onnx(name: str) -> None:
    """Each as it is, and with constants in place of all inputs but the first one."""
    for case in node_cases()[name]:
        (inputs, _), *_ = case.data_sets
        if not all(isinstance(value, np.ndarray) for value in inputs):
            continue
        for are_constants in (False, True):
            proto = onnx.ModelProto()
            proto.CopyFrom(case.model)
            names = [value.name for value in proto.graph.input]
            fed = dict(zip(names, inputs, strict=True))
            if are_constants:
                del proto.graph.input[1:]
                tensors = [numpy_helper.from_array(np.asarray(fed.pop(n)), n) for n in names[1:]]
                proto.graph.initializer.extend(tensors)
            try:
                values_of(proto, fed)
            except Exception:  # of versions and types that ONNX Runtime doesn't have
                continue
            compared(proto, fed)


def test_an_index_outside_of_a_constant() -> None:
    """Which a session refuses: it is an element, not an exception."""
    proto = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> g (float[3] x) => (float[1] y) '
        "<int64[2] table = {0, 1}, int64[1] outside = {-255}> "
        "{ index = Gather(table, outside) y = Gather(x, index) }"
    )
    form = reader_of(next(graphs_of(Model(proto)))).whole("index")
    assert (form.root, form.index) == ("table", (number(-253),))
    assert onnx_ops.optimize(proto) == proto
