"""Write the table of what `onnx_ops.optimize` makes of PyTorch's exports: each is made, rewritten and run.

python scripts/rewrites.py --export FOLDER   export with the installed PyTorch, which is all that this needs
python scripts/rewrites.py FOLDER ...        rewrite the exports, compare their results with PyTorch's, print the table
python scripts/rewrites.py FOLDER ... --write   put it into docs/optimize.md

A folder is named after its version of PyTorch in the table: each comes from an environment of its own.
"""

import argparse
import itertools
import json
import logging
import warnings
from pathlib import Path

OPSETS = 16, 18, 20, 23
NEWEST = {"dynamo": 23, "TorchScript": 20}
OLDEST = {"dynamo": 18, "TorchScript": 16}
REFUSED = "refused"


def cases():
    """Return {name: (module, arguments, names of open dimensions for each argument)}."""
    import torch
    from attention_by_torch import Attention, MergedAttention
    from torch.nn import functional as F

    class Unfold(torch.nn.Module):
        def forward(self, x):
            return F.unfold(x, (3, 2), padding=(1, 0), stride=(2, 1), dilation=(1, 2))

    class Windows(torch.nn.Module):
        def forward(self, x):
            return x.unfold(2, 3, 2).unfold(3, 2, 1)

    class InPlace(torch.nn.Module):
        def forward(self, x, flow):
            places = flow.permute(0, 2, 3, 1).clone()
            places[..., 0] = 2 * places[..., 0] / (x.shape[3] - 1)
            places[..., 1] = 2 * places[..., 1] / (x.shape[2] - 1)
            return F.grid_sample(x, places, padding_mode="border", align_corners=True)

    class Spatial(torch.nn.Module):
        def __init__(self, *size, align_corners):
            super().__init__()
            self.size, self.align_corners = size, align_corners

        def forward(self, theta):
            return F.affine_grid(theta, [theta.shape[0], 1, *self.size], align_corners=self.align_corners)

    class SameSize(torch.nn.Module):
        def forward(self, x, theta):
            return F.grid_sample(x, F.affine_grid(theta, x.shape, align_corners=False), align_corners=False)

    generator = torch.Generator().manual_seed(0)
    image, plane, volume = (torch.rand(shape, generator=generator) for shape in ((2, 3, 11, 14), (2, 2, 3), (2, 3, 4)))
    open_image, open_attention = {0: "n", 2: "h", 3: "w"}, ({0: "n"}, {0: "n", 1: "q"}, {0: "n", 1: "q"})
    attention, merged = Attention((8, 10), (4, 5)), MergedAttention((8, 10), (4, 5))
    return {
        "unfold": (Unfold(), (image,), (open_image,)),
        "unfold, float16": (Unfold(), (image.half(),), (open_image,)),
        "Tensor.unfold": (Windows(), (image,), (open_image,)),
        "affine_grid": (Spatial(9, 12, align_corners=False), (plane,), ({0: "n"},)),
        "affine_grid, align_corners": (Spatial(9, 12, align_corners=True), (plane,), ({0: "n"},)),
        "affine_grid, volume": (Spatial(5, 6, 7, align_corners=False), (volume,), ({0: "n"},)),
        "affine_grid, float16": (Spatial(9, 12, align_corners=False), (plane.half(),), ({0: "n"},)),
        "affine_grid of an image's size": (SameSize(), (image, plane), (open_image, {0: "n"})),
        "a flow written in place": (InPlace(), (image, image[:, :2]), (open_image, open_image)),
        "deformable attention": (attention, attention.inputs(), open_attention),
        "deformable attention of RT-DETRv2": (merged, merged.inputs(), open_attention),
    }


def export(folder):
    """Write all exports, their inputs and results into a folder, and a list of them with PyTorch's errors."""
    import numpy as np
    import torch

    warnings.simplefilter("ignore")
    logging.disable()
    folder.mkdir(parents=True, exist_ok=True)
    record = {"torch": torch.__version__, "exports": []}
    for (name, (module, inputs, dims)), exporter, opset, sizes in itertools.product(
        cases().items(), NEWEST, OPSETS, ("fixed", "open")
    ):
        if not OLDEST[exporter] <= opset <= NEWEST[exporter]:
            continue
        file = f"{len(record['exports']):03}"
        entry = {"name": name, "exporter": exporter, "opset": opset, "sizes": sizes, "file": file, "error": None}
        record["exports"].append(entry)
        dynamo = exporter == "dynamo"
        settings = {"opset_version": opset, "input_names": [f"input_{k}" for k in range(len(inputs))]}
        if sizes == "open":
            key = "dynamic_shapes" if dynamo else "dynamic_axes"
            settings[key] = dims if dynamo else dict(zip(settings["input_names"], dims, strict=True))
        module.eval()
        try:
            torch.onnx.export(module, inputs, str(folder / f"{file}.onnx"), dynamo=dynamo, **settings)
        except Exception as error:
            entry["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
            continue
        arrays = {f"input_{k}": value.numpy() for k, value in enumerate(inputs)}
        np.savez(folder / f"{file}.npz", result=module(*inputs).numpy(), **arrays)
    (folder / "exports.json").write_text(json.dumps(record, indent=1))


def outcome(folder, entry):
    """The operators that replaced a pattern of an export, or why there are none."""
    import numpy as np
    import onnx
    import onnxruntime as ort

    import onnx_ops
    from onnx_ops.rewriting import rewritten

    if entry["error"]:
        return REFUSED
    proto = onnx.load(folder / f"{entry['file']}.onnx")
    optimized, findings = rewritten(proto)
    onnx_ops.register_schemas()
    onnx.checker.check_model(optimized, full_check=True)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(optimized.SerializeToString(), onnx_ops.register(options, optimized))
    with np.load(folder / f"{entry['file']}.npz") as arrays:
        feeds = {value.name: arrays[f"input_{k}"] for k, value in enumerate(session.get_inputs())}
        expected = arrays["result"].astype(np.float64)
    (got,) = session.run(None, feeds)
    tolerance = 2**-9 if feeds[next(iter(feeds))].dtype == np.float16 else 1e-5
    if got.shape != expected.shape or not np.allclose(got, expected, 0, tolerance):
        return "**wrong**"
    operators = {node.op_type for node in optimized.graph.node if node.domain == "onnx_ops"}
    operators = operators or {f"left: {finding.reason}" for finding in findings}
    operators_of_pytorch = {f"PyTorch's {n.op_type}" for n in proto.graph.node if n.op_type == "AffineGrid"}
    return ", ".join(sorted(operators or operators_of_pytorch)) or "left alone"


def table(folders):
    """Yield the lines of the table: a row per pattern, exporter and sizes, a column per version of PyTorch."""
    results, versions = {}, []
    for folder in folders:
        record = json.loads((folder / "exports.json").read_text())
        versions.append(".".join(record["torch"].partition("+")[0].split(".")[:2]))
        for entry in record["exports"]:
            row = entry["name"], entry["exporter"], entry["sizes"]
            results.setdefault(row, {}).setdefault(versions[-1], {})[entry["opset"]] = outcome(folder, entry)
    yield f"| PyTorch | exporter | sizes | {' | '.join(f'{version}' for version in versions)} |"
    yield f"|---|---|---|{'---|' * len(versions)}"
    for row, by_version in results.items():
        yield f"| {' | '.join((*row, *(merged(by_version.get(v, {})) for v in versions)))} |"


def merged(by_opset):
    """A cell of the table, in which neighbouring opsets with the same outcome are one entry."""
    groups = []
    for opset, result in by_opset.items():
        if groups and groups[-1][1] == result:
            groups[-1][0].append(opset)
        else:
            groups.append(([opset], result))
    span = (f"{opsets[0]} to {opsets[-1]}" if len(opsets) > 1 else str(opsets[0]) for opsets, _ in groups)
    return "; ".join(f"{opsets}: {result}" for opsets, (_, result) in zip(span, groups, strict=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--export", metavar="FOLDER", type=Path)
    parser.add_argument("--write", action="store_true", help="put the table into docs/optimize.md")
    options = parser.parse_args()
    if options.export:
        export(options.export)
    if options.folders:
        lines = "\n".join(table(options.folders))
        print(lines)
        if options.write:
            import pages

            pages.put("rewrites", lines, "docs/optimize.md")


if __name__ == "__main__":
    main()
