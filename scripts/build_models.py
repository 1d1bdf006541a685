"""Write the models under models/, one folder each in the layout of ONNX's node tests:

<domain>/<name>/model.onnx
<domain>/<name>/lowered.onnx  the model for backend="extensions"; also for models that other scripts have put there
<domain>/<name>/test_data_set_0/input_0.pb, input_1.pb, ..., output_0.pb
"""

import argparse
from pathlib import Path

import onnx
from onnx import helper, numpy_helper
from spec_examples import EXAMPLES

import onnx_ops
from onnx_ops.system.files import staged, staged_file

IR_VERSION = 9  # by default onnx writes its newest version, which older runtimes refuse
ONNX_OPSET = 18  # of ai.onnx, unless an example names another version


def build(example):
    """A model of one node, all of whose inputs are inputs of the graph, with fixed shapes."""
    node = helper.make_node(
        example.op_type, list(example.inputs), list(example.outputs), domain=example.domain, **example.attributes
    )
    graph = helper.make_graph([node], example.name, values_info(example.inputs), values_info(example.outputs))
    opsets = {"": ONNX_OPSET, example.domain: example.opset}
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(*o) for o in opsets.items()],
        ir_version=IR_VERSION,
        producer_name="onnx_ops",
    )


def values_info(arrays):
    return [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in arrays.items()
    ]


def write(example, root):
    """Write the example's folder under `root` and return it."""
    folder = Path(root, example.domain or "ai.onnx", example.name)
    save(folder, build(example), example.inputs, example.outputs)
    return folder


def save(folder, model, inputs, outputs):
    """Write a model and its test data: {name: array} in the graph's order."""
    with staged(folder) as new, staged(folder / "test_data_set_0") as data:
        onnx.save(model, new / "model.onnx")
        for kind, arrays in (("input", inputs), ("output", outputs)):
            for i, (name, array) in enumerate(arrays.items()):
                onnx.save_tensor(numpy_helper.from_array(array, name), data / f"{kind}_{i}.pb")


def write_lowered(path):
    """Write the lowered twin of a model beside it and return its path."""
    twin = path.with_name("lowered.onnx")
    lowered = onnx_ops.lower(onnx.load(path))
    with staged_file(twin) as new:
        onnx.save(lowered, new)
    return twin


def main():
    parser = argparse.ArgumentParser(description="Write the models and their test data.")
    parser.add_argument("--output", type=Path, default=Path("models"), help="folder to write to, default: %(default)s")
    root = parser.parse_args().output
    for example in EXAMPLES:
        print(write(example, root))
    for path in sorted(root.glob("*/*/model.onnx")):
        print(write_lowered(path))


if __name__ == "__main__":
    main()
