"""What reads bytes in Python, on seeds and on changes of them that are the same in every run
(support/byte_readers.py).

scripts/fuzzing/fuzz_bytes.py draws others, guided by coverage.
"""

import onnx
import pytest
from support import byte_readers, cases
from support.selection import long_unless

pytestmark = pytest.mark.any_library

CHANGES, TURNS = 15, 10


def col2im(change):
    """Return the bytes of a model of a Col2Im whose sizes are constants, after `change`."""
    proto = cases.model(
        "",
        "Col2Im",
        cases.case_named("overlapping").inputs("float32"),
        {},
        constants=("image_shape", "block_shape"),
    )
    change(proto)
    return proto.SerializeToString()


def im2col(change, case=cases.IM2COL[0]):
    """Return the bytes of a model of an operator that onnx lacks, after `change`."""
    proto = cases.model(case.domain, case.op_type, case.inputs("float32"), case.attributes)
    change(proto)
    return proto.SerializeToString()


def dimension(proto, position=0, axis=0):
    """Return a dimension of an input of a model."""
    return proto.graph.input[position].type.tensor_type.shape.dim[axis]


def external(data_type=onnx.TensorProto.INT64, **entries):
    """Return the bytes of a model with a tensor whose external data are described by these
    entries.
    """

    def change(proto):
        tensor = proto.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_type = data_type
        tensor.data_location = tensor.EXTERNAL
        for key, value in {"location": "data", **entries}.items():
            tensor.external_data.add(key=key, value=value)

    return col2im(change)


def with_an_input_of_no_type(proto):
    """Have a model's node get what an unknown node makes of a constant of a type that nobody
    knows.
    """
    (node,) = proto.graph.node
    proto.graph.initializer.add(name="odd", data_type=46, dims=[1], raw_data=b"1")
    proto.graph.node.insert(0, onnx.helper.make_node("Unknown", [node.input[0], "odd"], ["sum"]))
    proto.graph.node[1].input[0] = "sum"


def with_a_function(proto):
    """Have a model have a local function, and a constant of another name."""
    node, imports = onnx.helper.make_node("Relu", ["a"], ["b"]), [onnx.helper.make_opsetid("", 18)]
    proto.functions.append(onnx.helper.make_function("local", "F", ["a"], ["b"], [node], imports))
    proto.graph.initializer[0].name = proto.graph.node[0].input[1] = "sizes"


def with_bytes(text, others=()):
    """Return the bytes of a model with an operator whose name isn't UTF-8, and others that nothing
    knows.
    """

    def change(proto):
        proto.graph.node[0].op_type = text
        for name in others:
            proto.graph.node.add(op_type=name, input=["x"], output=[name])

    return col2im(change).replace(text.encode(), b"Co\xffm")


NO_ELEMENTS = f"""(float[1, 3, 8] x, int64[0, {2**40}] sizes) => (float[N, C, H] y) {{
    y = Reshape (x, sizes)
}}"""
# What the fuzzer found: {name: (reader, what it reads)}
FOUND = {
    "a node without outputs": ("infer",
        im2col(lambda proto: proto.graph.node[0].ClearField("output"))),
    "a node with too many inputs": ("infer",
        im2col(lambda proto: proto.graph.node[0].input.extend("abc"))),
    "a negative size": (
        "infer", im2col(lambda proto: setattr(dimension(proto), "dim_value", -5)),
    ),
    "a size's name that isn't UTF-8": (
        "infer", im2col(lambda proto: setattr(dimension(proto), "dim_param", "nine"))
            .replace(b"nine", b"n\xffne"),
    ),
    "as many sizes as fill the memory": (
        "infer", im2col(lambda proto: setattr(dimension(proto, 1), "dim_value", 2**40),
            cases.OPENVINO[0]),
    ),
    "a size past all models": (
        "lower", im2col(lambda proto: setattr(dimension(proto, axis=-1), "dim_value", 2**63 - 1)),
    ),
    "an offset that is no number": ("inspect", external(offset="y")),
    "a negative offset": ("inspect", external(offset="-5")),
    "a negative length": ("inspect", external(length="-1")),
    "a length past all memory": ("inspect", external(length=str(2**62))),
    "a constant of a type that nobody knows": ("lower",
        im2col(with_an_input_of_no_type, cases.VOLUMES[0])),
    "a constant's name that isn't UTF-8, beside a function": (
        "optimize", col2im(with_a_function).replace(b"sizes", b"s\xffzes"),
    ),
    "a domain that is imported after another one, in one field": (
        "fields", onnx.ModelProto().SerializeToString() + b"\x42\x0a\x0a\x03abc\x0a\x03mmc",
    ),
    "external data of no type": ("inspect", external(data_type=0)),
    "external data of a type that nobody knows": ("inspect", external(data_type=99)),
    "a location that is no path": ("inspect", external(location="a\0b")),
    "a location that isn't UTF-8": ("inspect",
        external(location="datum").replace(b"datum", b"dat\xffm")),
    "a key that isn't UTF-8": ("inspect",
        external(a_key="1", another="2").replace(b"a_key", b"a_k\xffy")),
    "an operator's name that isn't UTF-8": ("inspect", with_bytes("Colm")),
    "two operators' names, of which one isn't UTF-8": ("inspect",
        with_bytes("Colm", others=["Unknown"])),
    "an attribute that refers to a function's": (
        "inspect", col2im(lambda proto: proto.graph.node[0].attribute.add(name="pads", type=7,
            ref_attr_name="p")),
    ),
    "sizes without elements, along an axis past all memory": (
        "inspect", cases.parsed(NO_ELEMENTS, 18).SerializeToString(),
    ),
    "settings that are nested deeply": ("settings", b"[" * 100_000),
    "settings that are no pairs": ("settings", b'["audio"]'),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return byte_readers.prepare(tmp_path_factory.mktemp("readers"))


# Of `inspect` the short run has changed seeds and those that were found.
@pytest.mark.parametrize(
    "name", [long_unless(name != "inspect", name) for name in byte_readers.READERS]
)
def test_seeds(name, folder):
    for content in byte_readers.seeds(name):
        byte_readers.read(name, content, folder)


@pytest.mark.parametrize("turn", [long_unless(turn == 0, turn) for turn in range(TURNS)])
@pytest.mark.parametrize("name", byte_readers.READERS)
def test_changed_seeds(name, turn, folder):
    seeds = byte_readers.seeds(name)
    for k in range(turn * CHANGES, (turn + 1) * CHANGES):
        byte_readers.read(name, byte_readers.changed(name, seeds[k % len(seeds)], seeds, k), folder)


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found(name, folder):
    reader, content = FOUND[name]
    byte_readers.read(reader, content, folder)


def test_an_oracle_that_sees_mistakes(folder, monkeypatch, tmp_path):
    """A reader that raises another error, takes long, or writes elsewhere breaks its promise."""

    def raises(content, folder):
        raise KeyError

    def writes(content, folder):
        (tmp_path / "elsewhere").write_bytes(content)

    def lasts(content, folder):
        while content:
            len(content)

    for reader, words in (
        (raises, "KeyError"),
        (writes, "elsewhere"),
        (lasts, "more than 1000100 calls"),
    ):
        monkeypatch.setitem(byte_readers.READERS, "wrong", (reader, ()))
        with pytest.raises(byte_readers.BrokenPromiseError, match=words):
            byte_readers.read("wrong", b"x", folder)
