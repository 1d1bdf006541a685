"""Write the models under models/, one folder each in the layout of ONNX's node tests:

<domain>/<name>/model.onnx
<domain>/<name>/lowered.onnx
    the model for backend="extensions"; also for models that other scripts have put there
<domain>/<name>/test_data_set_0/input_0.pb, input_1.pb, ..., output_0.pb
"""

import argparse
from pathlib import Path

import add_tests_to_path  # noqa: F401
import onnx
from support.spec_examples import EXAMPLES, write_model

import onnx_ops
from onnx_ops.system.files import staged_file


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
        print(write_model(example, root))
    for path in sorted(root.glob("*/*/model.onnx")):
        print(write_lowered(path))


if __name__ == "__main__":
    main()
