"""Declarations as operators of PyTorch: eager, compiled, exported, and backwards."""

import io
import pickle
import re
import time
import tracemalloc

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from support.backends import HAVE_EXTENSIONS, quiet
from support.cases import CASES
from support.custom_operators import above, combine, join, topk, window
from support.processes import python, together
from support.selection import long_unless

import onnx_ops
from onnx_ops.arrays import functions
from onnx_ops.export import export, translations
from onnx_ops.model import schemas

torch = pytest.importorskip("torch")
from support.torch_modules import Call  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext  # noqa: E402

from onnx_ops.export import torch_operators  # noqa: E402
from onnx_ops.export.torch_operators import declared_attributes, positional, torch_operator  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's compiler and exporters give many
DIM = torch.export.Dim


@onnx_ops.operator(
    "my.domain::Scale",
    inputs="x: T",
    outputs="y: T",
    types={"T": onnx_ops.FLOATS},
    ranks={"x": (3,)},
    version=2,
)
def scale(x, *, factors: tuple[float, ...], eps: float = 0.5):
    """A factor for each channel. Its rule asks for the number of channels, and for nothing else."""
    return (x.astype(np.float64) * (np.array(factors)[:, None] + eps)).astype(x.dtype)


@scale.shape
def _(x, *, factors, eps):
    onnx_ops.require(
        len(x) == 3 and x[1] == len(factors), "shape of x", x, "must be [N, C, L] with C factors"
    )
    return x


@scale.kernel(loop=lambda x, *, factors, eps: x[0] * x[1])
def _(x, factors, eps, index, count, workspace, y):
    for k in range(index, x.shape[0] * x.shape[1], count):
        n, c = divmod(k, x.shape[1])
        for i in range(x.shape[2]):
            y[n, c, i] = x[n, c, i] * (factors[c] + eps)


@scale.gradient
def _(grad_y, factors, eps):
    return grad_y * (torch.tensor(factors, dtype=grad_y.dtype)[:, None] + eps)


@onnx_ops.operator(
    "::Total",
    inputs="x: T, less: T?, more: T*",
    outputs="y: T, count: int64",
    types={"T": ("float32",)},
)
def total(
    x,
    less=None,
    *more,
    by: float = 1.0,
    name: str = "it's",
    negate: bool = False,
    size: int | None = None,
):
    """It has an optional and a variadic input, several outputs, and attributes that a kernel
    couldn't have.
    """
    y = sum(more, x * np.float32(by))
    y = y if less is None else y - less
    return (-y if negate else y).astype(np.float32), np.full(
        len(x), len(name) if size is None else size
    )


@total.shape
def _(x, less, *more, by, name, negate, size):
    return x, x[:1]


@total.gradient
def _(grad_y, more, by):
    return grad_y * by, None, [grad_y] * len(more)


@onnx_ops.operator(
    "my.domain::Same",
    inputs="x: T",
    outputs="y: T",
    types={"T": ("float32", "complex64", "uint16")[::2]},
)
def same(x):
    """It returns its input, has no rule, and no gradient."""
    return x


def exported(model, inputs, opened=None, opset=20, operators=()):
    """Return the model that `export` writes. opened: for each input {axis: name of its size}"""
    dims = [
        {axis: DIM(name) for axis, name in axes.items()} or None
        for axes in opened or [{}] * len(inputs)
    ]
    settings = {
        "operators": operators,
        "opset_version": opset,
        "dynamic_shapes": (tuple(dims),),
        "verbose": False,
    }
    return export(model.eval(), tuple(inputs), **settings).model_proto


def run(proto, inputs, operators=(), backend="native"):
    session = onnx_ops.InferenceSession(
        proto.SerializeToString(), quiet(), operators=operators, backend=backend
    )
    feeds = dict(zip([i.name for i in session.get_inputs()], inputs, strict=True))
    return session.run(None, {name: value.numpy() for name, value in feeds.items()})


def assert_same(outputs, expected):
    expected = expected if isinstance(expected, tuple) else (expected,)
    for got, wanted in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(got, wanted.detach().numpy(), strict=True)


# Calls


@pytest.mark.parametrize("case", CASES[::3], ids=str)
def test_shapes_of_symbolic_sizes(case):
    """Sizes that are open give the shapes that they have.

    Only sizes of 0 and 1 are fixed, by PyTorch.
    """
    inputs = case.inputs("float32")
    expected = functions.call(case.operator, *inputs, **case.attributes).shape
    declared = case.operator.each_input(len(inputs))
    tensors = [
        a.tolist() if i.values else torch.from_numpy(a)
        for i, a in zip(declared, inputs, strict=True)
    ]
    environment = ShapeEnv()
    with FakeTensorMode(shape_env=environment) as mode:
        symbolic = [
            mode.from_tensor(
                tensor,
                symbolic_context=StatelessSymbolicContext([DimDynamic.DYNAMIC] * tensor.dim()),
            )
            if torch.is_tensor(tensor)
            else tensor
            for tensor in tensors
        ]
        if case.operator.inputs[-1].presence == "variadic":
            symbolic = [
                *symbolic[: len(case.operator.inputs) - 1],
                symbolic[len(case.operator.inputs) - 1 :],
            ]
        attributes = declared_attributes(case.operator, case.attributes)
        y = torch_operator(case.operator)(*symbolic, **attributes)
    assert tuple(size if isinstance(size, int) else size.node.hint for size in y.shape) == expected


FIRST = {c.operator: c for c in reversed(CASES)}


@pytest.mark.parametrize("case", FIRST.values(), ids=str)
def test_opcheck(case):
    inputs = positional(
        case.operator, [torch.from_numpy(array) for array in case.inputs("float32")]
    )
    if case.operator.gradient:
        inputs[0].requires_grad_()
    torch.library.opcheck(
        torch_operator(case.operator), inputs, declared_attributes(case.operator, case.attributes)
    )


X = torch.rand(3, 2, 5, generator=torch.manual_seed(0))
CUSTOM = {
    "kernel": (scale, [X.clone().requires_grad_()], {"factors": [1.0, 2.0]}),
    "optional": (
        total,
        [X.clone().requires_grad_(), None, [X, X + 1]],
        {"by": 2.0, "name": "\"'\\", "negate": True},
    ),
    "all inputs": (total, [X, X + 2, [X]], {"size": 3}),
    "values": (topk, [X[0], [3]], {}),
    "bound": (above, [X[0, 0]], {"limit": 0.3}),
    "choice": (combine, [X[0, 0], X[0, 1]], {"mode": "quotient", "swap": True, "flags": [1, 2]}),
    "absent values": (window, [X[0, 0], None, torch.tensor([2])], {}),
}
own = pytest.mark.parametrize(("operator", "inputs", "attributes"), CUSTOM.values(), ids=CUSTOM)


@own
def test_own_operators(operator, inputs, attributes):
    flat = [
        v
        for tensor in inputs
        for v in (tensor if isinstance(tensor, list) and torch.is_tensor(tensor[0]) else [tensor])
    ]
    arrays = [
        v.detach().numpy() if torch.is_tensor(v) else v if v is None else np.array(v) for v in flat
    ]
    with torch.no_grad():
        outputs = operator.torch(*inputs, **attributes)
    expected = operator(*arrays, **attributes)
    assert_same(expected if isinstance(expected, tuple) else (expected,), outputs)
    torch.library.opcheck(operator.torch, tuple(inputs), attributes)
    call = operator.torch  # in a variable, for PyTorch 2.6
    compiled = torch.compile(
        lambda *inputs: call(*inputs, **attributes), backend="aot_eager", fullgraph=True
    )
    if not operator.declaration.plan.is_bound:
        assert_same(
            [y.detach().numpy() for y in (outputs if isinstance(outputs, tuple) else (outputs,))],
            compiled(*inputs),
        )


def named_like(name):
    return onnx_ops.operator(name, inputs="x: float32", outputs="y: float32")(lambda x: x)


SCALE = "my.domain.Scale: dtype of x ="
META, FLOAT8 = torch.empty(1, 2, 2, 2, device="meta"), X.to(torch.float8_e5m2)
REFUSED = {  # the words, and the call
    "my.domain.Scale: shape of x = [3, 2, 5]: must be [N, C, L] with C factors": (
        lambda: scale.torch(X, factors=[1.0])),
    f"{SCALE} int32: must be one of float16": lambda: scale.torch(X.int(), factors=[1.0, 2.0]),
    f"{SCALE} torch.float8_e5m2: is no element type": lambda: scale.torch(FLOAT8, factors=[1.0]),
    f"{SCALE} torch.quint8: is no element type": lambda: scale.torch(
        torch.quantize_per_tensor(X, 0.1, 0, torch.quint8), factors=[1.0, 2.0]),
    "x = torch.sparse_coo: must be a dense tensor on the CPU": lambda: scale.torch(X.to_sparse(),
        factors=[1.0]),
    "GridSample: device of Grid = meta: must be cpu as before": (
        lambda: onnx_ops.grid_sample.torch(X[None], META)),
    "aten.relu: can't be aten::relu in PyTorch: Tried to register": (
        lambda: named_like("aten::relu").torch),
    "prim.Same: can't be prim::Same in PyTorch: ": lambda: named_like("prim::Same").torch,
    "mode = 'sum': must be one of product, quotient": lambda: combine.torch(X[0, 0], X[0, 0],
        mode="sum"),
    "my.domain.Scale: shape of x = [3, 2, 5]: must be [N": lambda: scale.torch(X.to("meta"),
        factors=[1.0]),
    "my.domain.Join: type of texts = string: is no element type of PyTorch": lambda: join.torch,
    "my.domain.Same: rule = None: states the outputs' shapes, which PyTorch": (
        lambda: same.torch(X.to("meta"))),
    "my.domain.Same: rule = None: states": lambda: torch.export.export(Call(same.torch), (X,)),
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_refused(words):
    with pytest.raises(Exception, match=re.escape(words)):  # torch.export raises its own
        REFUSED[words]()


def test_a_tensor_as_an_attribute():
    operator = onnx_ops.operator("my.domain::Table", inputs="x: float32", outputs="y: float32")

    @operator
    def table(x, *, values: np.ndarray):
        return x

    with pytest.raises(
        onnx_ops.OpError,
        match=r"^my\.domain\.Table: kind of values = tensor: is none that attributes",
    ):
        _ = table.torch


@pytest.mark.parametrize(
    "tensor",
    [
        X, X.transpose(0, 1), X[:, ::2], X.flip(0), X.expand(4, 3, 2, 5),
        X[None].to(memory_format=torch.channels_last),
        long_unless(False, X.to(torch.complex64).conj()), torch._neg_view(X), X[:0], X[0, 0, 0],
    ],
    ids=("plain transposed strided flipped expanded channels_last conjugate negative "
        "empty scalar").split(),
)  # fmt: skip
def test_any_tensor(tensor):
    if not tensor.is_complex():
        y = same.torch(tensor)
        assert torch.equal(y, tensor)
        assert y.is_contiguous()
        assert y.data_ptr() != tensor.data_ptr() or not y.numel()
    y = onnx_ops.im2col.torch(tensor.reshape(1, 1, -1), kernel_shape=[1])
    assert torch.equal(y.reshape(-1), tensor.reshape(-1))


def test_memory_is_neither_copied_nor_kept(monkeypatch):
    """The function gets the tensor's own memory, and a call allocates its output and nothing else
    of that size.
    """
    x, addresses = torch.rand(1, 2, 2**19), []  # 4 MB
    scale.torch(x, factors=[1.0, 2.0])
    outputs_of = torch_operators.outputs_of

    def observed(operator, arrays, attributes, threads):
        addresses.append(arrays[0].ctypes.data)
        outputs = outputs_of(operator, arrays, attributes, threads)
        addresses.append(outputs[0].ctypes.data)
        return outputs

    monkeypatch.setattr(torch_operators, "outputs_of", observed)
    tracemalloc.start()
    y = scale.torch(x, factors=[1.0, 2.0])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert addresses == [x.data_ptr(), y.data_ptr()]
    assert peak < 4.2 * 2**20


def test_torch_is_imported_when_asked_for():
    script = """
import sys
import onnx_ops, numpy as np
onnx_ops.im2col(np.zeros((1, 1, 2)), [1])
from support.custom_operators import topk
assert "torch" not in sys.modules
print(onnx_ops.im2col.torch, topk.torch)
"""
    assert python(script).stdout == "onnx_ops.Im2Col my_domain.TopK\n"


def test_functions_are_operators():
    assert pickle.loads(pickle.dumps(onnx_ops.col2im)) is onnx_ops.col2im
    inputs = np.ones((1, 1, 3, 3)), np.ones((1, 1, 2, 2)), np.zeros((1, 8, 2, 2))
    inputs = [array.astype(np.float32) for array in inputs]
    assert onnx_ops.check(onnx_ops.deform_conv, [inputs], extremes=False)


def declared_again(domain, returned):
    operator = onnx_ops.operator(f"{domain}::Again", inputs="x: float32", outputs="y: float32")

    @operator
    def again(x, *, by: float = returned):
        return x * np.float32(by)

    return again


def test_declaring_again_replaces():
    first = declared_again("again", 2.0)
    old = first.torch
    second = declared_again("again", 3.0)
    assert second.torch(X).sum() == pytest.approx(3 * X.sum())
    assert torch.ops.again.Again(X).sum() == pytest.approx(3 * X.sum())
    assert first.torch(X).sum() == pytest.approx(2 * X.sum())
    del old
    with pytest.raises(
        onnx_ops.OpError, match=r"again_.Again: is again_x::Again .* already|is again__Again|rename"
    ):
        _ = declared_again("a.gain", 1.0).torch, declared_again("a_gain", 1.0).torch


def test_threads_that_define_an_operator_at_once(monkeypatch):
    """It is defined once: again, PyTorch would lose the first definition, which runs already."""
    define, defined = torch_operators.define, []

    def slowly(declaration):
        time.sleep(0.1)
        defined.append(declaration)
        define(declaration)

    monkeypatch.setattr(torch_operators, "define", slowly)
    operator = declared_again("at_once", 2.0)
    first, second = together(lambda _: operator.torch(X), 2)
    assert torch.equal(first, second)
    assert defined == [operator.declaration]


# Gradients


def doubles(*shape):
    return torch.rand(*shape, dtype=torch.float64, generator=torch.manual_seed(1)).requires_grad_()


SCALE, COL2IM, IM2COL = scale.torch, onnx_ops.col2im.torch, onnx_ops.im2col.torch
GRADIENTS = {
    "scale": (lambda x: SCALE(x, factors=[1.0, 2.0]), doubles(2, 2, 3)),
    "col2im": (
        lambda x: COL2IM(x, [5, 6], [2, 3], pads=[1, 0, 0, 1], strides=[2, 1], dilations=[1, 2]),
        doubles(2, 12, 9),
    ),
    "im2col": (lambda x: IM2COL(x, kernel_shape=[2], pads=[0, 1], strides=[2]), doubles(2, 3, 6)),
}


@pytest.mark.parametrize(
    ("function", "x"),
    [long_unless(name == "scale", *arguments) for name, arguments in GRADIENTS.items()],
    ids=GRADIENTS,
)
def test_gradients(function, x):
    assert torch.autograd.gradcheck(function, (x,))
    assert torch.autograd.gradgradcheck(function, (x,))
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    (expected,) = torch.autograd.grad(function(x).square().sum(), x)
    assert torch.equal(torch.autograd.grad(compiled(x).square().sum(), x)[0], expected)


@pytest.mark.long
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize(
    ("axes", "mode"),
    [(2, "bilinear"), (2, "nearest"), (2, "bicubic"), (3, "linear"), (3, "nearest")],
)
def test_gradients_of_grid_sample(axes, mode, padding_mode, align_corners):
    x, grid = (
        doubles(2, 3, *(4, 5, 6)[:axes]),
        doubles(2, *(3, 4, 5)[:axes], axes).detach() * 2.6 - 1.3,
    )
    grid.requires_grad_()
    theirs = {"padding_mode": padding_mode, "align_corners": align_corners}
    y = onnx_ops.grid_sample.torch(x, grid, mode=mode, **theirs)
    expected = torch.nn.functional.grid_sample(
        x, grid, mode=mode.replace("linear", "bilinear").replace("bibi", "bi"), **theirs
    )
    for ours, their in zip(
        *(torch.autograd.grad(v.square().sum(), (x, grid)) for v in (y, expected)), strict=True
    ):
        torch.testing.assert_close(ours, their, rtol=1e-9, atol=1e-9)


def test_gradients_of_variadic_inputs():
    x, less, *addends = (doubles(3, 2).float().detach().requires_grad_() for _ in range(4))
    y, _ = total.torch(x, less, addends, by=3.0)
    gradients = torch.autograd.grad(y.sum(), [x, *addends])
    assert [float(g[0, 0]) for g in gradients] == [3, 1, 1]


def test_gradients_that_are_refused():
    x = X.clone().requires_grad_()
    with pytest.raises(
        onnx_ops.OpError, match=r"^my\.domain\.Same: has no gradient; \.gradient declares one$"
    ):
        same.torch(x).sum().backward()
    volume, grid = torch.zeros(1, 1, 2, 2, 2, requires_grad=True), torch.zeros(1, 1, 1, 1, 3)
    with pytest.raises(
        onnx_ops.OpError,
        match="GridSample: rank of X = 5: must be 4 for a gradient with mode bicubic",
    ):
        onnx_ops.grid_sample.torch(volume, grid, mode="cubic").sum().backward()
    with pytest.raises(
        onnx_ops.OpError, match="parameters of the gradient = z: must be among grad_y, x, y"
    ):
        same.gradient(lambda grad_y, z: grad_y)
    wrong = declared_again("wrong", 1.0).gradient(lambda grad_y: (grad_y, grad_y))
    with pytest.raises(onnx_ops.OpError, match="gradients = 2: must be one for each tensor: 1"):
        wrong.torch(x).sum().backward()


# Exports


def test_four_routes_have_the_same_bits(tmp_path):
    """Eager, compiled, and the exported model in a native session and in one of
    onnxruntime-extensions.
    """
    model = Call(
        lambda x: IM2COL(SCALE(x, factors=[0.3, 0.7]), kernel_shape=[3], pads=[1, 1])
    ).eval()
    eager = model(X)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)(X)
    proto = exported(model, [X], [{0: "n", 2: "l"}], operators=[scale])
    assert [(n.domain, n.op_type) for n in proto.graph.node] == [
        ("my.domain", "Scale"),
        ("onnx_ops", "Im2Col"),
    ]
    assert {i.domain: i.version for i in proto.opset_import} == {
        "": 20,
        "my.domain": 2,
        "onnx_ops": 1,
    }
    assert_same([compiled.numpy()], eager)
    assert_same(run(proto, [X], [scale]), eager)
    if not HAVE_EXTENSIONS:
        return
    script = """
import sys
from test_torch_operators import X, run, scale
import onnx, numpy as np
(y,) = run(onnx.load(sys.argv[1]), [X], [scale], backend="extensions")
np.save(sys.argv[2], y)
"""
    onnx.save(proto, tmp_path / "model.onnx")
    python(
        script, tmp_path / "model.onnx", tmp_path / "y.npy"
    )  # which has no other session of this backend
    assert_same([np.load(tmp_path / "y.npy")], eager)


@own
def test_export_of_own_operators(operator, inputs, attributes):
    """Each call becomes one node, with its attributes, in the declared version of its domain."""
    tensors = [
        v
        for tensor in inputs
        for v in (tensor if isinstance(tensor, list) else [tensor])
        if torch.is_tensor(v)
    ]
    tensors = [v.detach() for v in tensors]

    def forward(*stated):
        stated, arguments = list(stated), []
        for tensor in inputs:
            if torch.is_tensor(tensor):
                arguments.append(stated.pop(0))
            elif isinstance(tensor, list) and torch.is_tensor(tensor[0]):
                arguments.append([stated.pop(0) for _ in tensor])
            else:
                arguments.append(tensor)
        return operator.torch(*arguments, **attributes)

    proto = exported(Call(forward), tensors, operators=[operator])
    declaration = operator.declaration
    (node,) = (n for n in proto.graph.node if n.op_type != "Constant")
    assert (node.domain, node.op_type) == (declaration.domain, declaration.name)
    written = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    stated = declaration.values(attributes).by_name
    for name in attributes:
        value = written[name].decode() if isinstance(written[name], bytes) else written[name]
        assert value == (list(stated[name]) if isinstance(stated[name], tuple) else stated[name])
    if declaration.domain:
        assert dict.fromkeys([declaration.domain], declaration.versions[0]).items() <= {
            (i.domain, i.version) for i in proto.opset_import
        }
        schemas.register_schemas([operator])
        onnx.checker.check_model(proto)
    with torch.no_grad():
        assert_same(run(proto, tensors, [operator]), forward(*tensors))


def test_export_keeps_open_sizes():
    """Nothing is fixed that the operators don't ask for, and no size must have a greatest value."""

    def function(x, grid, image):
        columns = onnx_ops.im2col.torch(
            onnx_ops.grid_sample.torch(x, grid), kernel_shape=[3, 3], pads=[1, 1, 1, 1]
        )
        return columns, onnx_ops.col2im.torch(columns, image.shape[2:], [3, 3], pads=[1, 1, 1, 1])

    def inputs(n, h, w, rows=8, columns=9):
        return (
            torch.rand(n, 3, h, w),
            torch.rand(n, rows, columns, 2) * 2 - 1,
            torch.rand(n, 1, rows, columns),
        )

    opened = [
        {0: "n", 2: "h", 3: "w"},
        {0: "n", 1: "rows", 2: "columns"},
        {0: "n", 2: "rows", 3: "columns"},
    ]
    proto = exported(Call(function), inputs(2, 6, 7), opened)
    own_nodes = ["GridSample", "Im2Col", "Col2Im"]
    assert [n.op_type for n in proto.graph.node if n.op_type in own_nodes] == own_nodes
    for size in ((2, 6, 7), (1, 20, 5), (3, 4, 5, 11, 3)):
        inputs_of_size = inputs(*size)
        assert_same(run(proto, inputs_of_size), function(*inputs_of_size))
    dims = [d.dim_param or d.dim_value for d in proto.graph.output[1].type.tensor_type.shape.dim]
    assert dims[1] == 3
    assert all(isinstance(dims[k], str) for k in (0, 2, 3))  # which PyTorch 2.6 names itself


def test_export_of_lists_that_values_decide_on():
    """A tensor's values give sizes that PyTorch knows nothing of; the node gets the tensor's
    values.
    """
    model = Call(lambda x, image: onnx_ops.col2im.torch(x, image.tolist(), [2, 2]))
    proto = exported(model, [torch.rand(2, 12, 20), torch.tensor([5, 6])], [{2: "l"}, {}])
    for lengths in (
        [torch.rand(2, 12, 20), torch.tensor([5, 6])],
        [torch.rand(2, 12, 6), torch.tensor([3, 4])],
    ):
        assert_same(run(proto, lengths), model(*lengths))


def test_export_of_bounds():
    proto = exported(
        Call(lambda x: above.torch(x, limit=0.5)), [torch.rand(9)], [{0: "n"}], operators=[above]
    )
    x = torch.rand(40)
    assert_same(run(proto, [x], [above]), above.torch(x, limit=0.5))


def test_a_bound_is_one_of_the_first_axis():
    @onnx_ops.operator("my.domain::Rows", inputs="x: float32", outputs="y: float32")
    def rows(x):
        return x[x[:, 0] > 0]

    @rows.shape(bound=True)
    def _(x):
        return x

    proto = exported(
        Call(lambda x: rows.torch(x)), [torch.rand(9, 5)], [{0: "n"}], operators=[rows]
    )
    first, second = proto.graph.output[0].type.tensor_type.shape.dim
    assert (first.dim_value, second.dim_value) == (0, 5)


def test_translations_for_pytorchs_own_export():
    model = Call(
        lambda x: torch.nn.functional.unfold(scale.torch(x, factors=[1.0, 2.0])[None], (1, 2))
    )
    program = torch.onnx.export(
        model.eval(),
        (X,),
        dynamo=True,
        verbose=False,
        custom_translation_table=translations([scale]),
    )
    nodes = [n.op_type for n in program.model_proto.graph.node if n.op_type != "Constant"]
    assert nodes == ["Scale", "Unsqueeze", "Im2Col"]
    with pytest.raises(
        torch.onnx.errors.OnnxExporterError, match=r"No ONNX function found for .*my_domain\.Scale"
    ):
        torch.onnx.export(model, (X,), dynamo=True, verbose=False)


def assert_runs(proto, model, inputs, refused):
    """Assert that an export computes what the model does. refused: words of ONNX Runtime alone, if
    it refuses it
    """
    (y,) = run(proto, inputs)
    np.testing.assert_allclose(y, model(*inputs), rtol=1e-5, atol=1e-5)
    if refused:
        with pytest.raises(Exception, match=refused):
            ort.InferenceSession(proto.SerializeToString(), quiet())


@pytest.mark.parametrize("with_mask", [False, True])
def test_deform_conv2d_runs(with_mask, torchvision):
    """An exported model computes what torchvision does, also of opset 18, in which ONNX Runtime
    refuses it.
    """
    x, offset, mask = (
        doubles(1, 4, 6, 7).float(),
        doubles(1, 18, 6, 7).float() * 6 - 3,
        doubles(1, 9, 6, 7).float(),
    )
    weight, bias = doubles(5, 4, 3, 3).float().detach(), doubles(5).float().detach()
    deform_conv2d = torchvision.ops.deform_conv2d
    model = Call(
        lambda x, offset, mask=None: deform_conv2d(x, offset, weight, bias, padding=1, mask=mask)
    )
    inputs = [v.detach() for v in (x, offset, *[mask] * with_mask)]
    for opset in (18, 20):
        proto = exported(model, inputs, opset=opset)
        assert_runs(proto, model, inputs, "invalid model" if opset == 18 else None)


@pytest.mark.parametrize(("aligned", "ratio"), [(True, 2), (False, -1)])
@pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "torchscript"])
def test_roi_align_runs(dynamo, aligned, ratio, torchvision):
    """PyTorch's translation is right.

    If ONNX Runtime runs that of opset 22: say so in docs/export.md.
    """
    roi_align = torchvision.ops.roi_align
    inputs = [torch.rand(1, 4, 9, 10), torch.tensor([[0, 1.0, 2, 14, 15], [0, 3, 0, 6, 9]])]
    model = Call(lambda x, boxes: roi_align(x, boxes, (3, 4), 0.5, ratio, aligned))
    for opset in (18, 21, 22) if dynamo else (16, 20, 22):
        if dynamo:
            proto = exported(model, inputs, opset=opset)
        else:
            file = io.BytesIO()
            torch.onnx.export(
                model.eval(), tuple(inputs), file, dynamo=False, opset_version=opset, verbose=False
            )
            proto = onnx.load_from_string(file.getvalue())
        assert_runs(proto, model, inputs, "RoiAlign" if opset == 22 else None)
