"""Write the models under models/, one folder each in the layout of ONNX's node tests:

<domain>/<name>/model.onnx <domain>/<name>/lowered.onnx  the model for backend="extensions"; also
for models that other scripts have put there <domain>/<name>/test_data_set_0/input_0.pb, input_1.pb,
..., output_0.pb
"""

import argparse
from pathlib import Path

import onnx
from onnx import helper
from spec_examples import EXAMPLES

import onnx_ops
from onnx_ops.model import node_tests
from onnx_ops.system.files import staged_file


def build(example):
    """A model of one node, all of whose inputs are inputs of the graph, with fixed shapes."""
    names = list(example.inputs), list(example.outputs)
    node = helper.make_node(example.op_type, *names, domain=example.domain, **example.attributes)
    return node_tests.test_model(example.name, node, example.opset, example.inputs, example.outputs)


def write(example, root):
    """Write the example's folder under `root` and return it."""
    folder = Path(root, example.domain or "ai.onnx", example.name)
    node_tests.save(folder, build(example), example.inputs, example.outputs)
    return folder


def write_lowered(path):
    """Write the lowered twin of a model beside it and return its path."""
    twin = path.with_name("lowered.onnx")
    lowered = onnx_ops.lower(onnx.load(path))
    with staged_file(twin) as new:
        onnx.save(lowered, new)
    return twin


def main():
    parser = argparse.ArgumentParser(description="Write the models and their test data.")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("models"),
        help="folder to write to, default: %(default)s",
    )
    root = parser.parse_args().output
    for example in EXAMPLES:
        print(write(example, root))
    for path in sorted(root.glob("*/*/model.onnx")):
        print(write_lowered(path))


if __name__ == "__main__":
    main()
