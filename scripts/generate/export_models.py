"""Write models/exported: two small networks as PyTorch exports them, with PyTorch's outputs for a
photograph.

Needs `pip install -e ".[export]"`. models/exported/README.md describes the networks.
"""

import argparse
import math
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx_ir.passes.common import ClearMetadataAndDocStringPass
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import nn
from torch.nn import functional as F

import onnx_ops
from onnx_ops.system.files import staged

OPSET = 18  # the first with Col2Im


class SpatialTransformer(nn.Module):
    """A network that computes an affine transformation from an image and applies it to the
    image.
    """

    def __init__(self, height, width, degrees=15, zoom=0.8):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 7, stride=4),
            nn.ReLU(),
            nn.Conv2d(8, 8, 5, stride=4),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
        )
        self.theta = nn.Linear(8, 6)
        nn.init.normal_(self.theta.weight, std=0.1)
        # Grids range from -1 to 1 whatever the image's shape; the ratios of its sides make this a
        # rotation in pixels.
        cos, sin = zoom * math.cos(math.radians(degrees)), zoom * math.sin(math.radians(degrees))
        bias = [cos, -sin * height / width, 0, sin * width / height, cos, 0]
        self.theta.bias.data = torch.tensor(bias)

    def forward(self, image):
        theta = self.theta(self.features(image).flatten(1)).reshape(-1, 2, 3)
        grid = F.affine_grid(theta, image.shape, align_corners=False)
        return F.grid_sample(
            image, grid, mode="bilinear", padding_mode="zeros", align_corners=False
        )


class PatchFold(nn.Module):
    """A network that removes noise from overlapping patches: small coefficients of their cosine
    transform are noise.
    """

    def __init__(self, height, width, patch=8, stride=4, threshold=0.2):
        super().__init__()
        self.size, self.patch, self.stride = (height, width), patch, stride
        n = torch.arange(patch)
        dct = torch.cos(math.pi / patch * (n + 0.5) * n[:, None]) * math.sqrt(2 / patch)
        dct[0] /= math.sqrt(2)
        limit = torch.full((patch * patch, 1), threshold)
        limit[0] = 0  # the mean of a patch is not noise
        hann = torch.sin(math.pi / patch * (n + 0.5)) ** 2
        window = torch.outer(hann, hann).reshape(-1, 1)
        self.register_buffer("basis", torch.kron(dct, dct))
        self.register_buffer("limit", limit)
        self.register_buffer("window", window)
        overlap = F.unfold(torch.ones(1, 1, height, width), patch, stride=stride) * window
        self.register_buffer("overlap", F.fold(overlap, self.size, patch, stride=stride))

    def forward(self, image):
        patches = F.unfold(image, self.patch, stride=self.stride)
        patches = patches.reshape(-1, 3, self.patch**2, patches.shape[-1])
        spectrum = self.basis @ patches
        spectrum = spectrum - torch.maximum(torch.minimum(spectrum, self.limit), -self.limit)
        patches = self.basis.T @ spectrum * self.window
        return (
            F.fold(patches.flatten(1, 2), self.size, self.patch, stride=self.stride) / self.overlap
        )


def photograph():
    """The pagoda in scikit-learn's china.jpg, made smaller: float32 [1, 3, 144, 192] in [0, 1]."""
    image = Image.fromarray(load_sample_image("china.jpg")).resize(
        (192, 144), box=(10, 10, 458, 346)
    )
    return torch.from_numpy(np.asarray(image, np.float32) / 255).permute(2, 0, 1)[None].contiguous()


def write(folder, model, image):
    """Write a model that agrees with PyTorch, with its input and output, in the layout of onnx's
    node tests.
    """
    model.eval()
    with torch.no_grad():
        expected = model(image).numpy()
    program = torch.onnx.export(
        model,
        (image,),
        dynamo=True,
        input_names=["image"],
        output_names=["output"],
        dynamic_shapes=({0: "batch"},),
        opset_version=OPSET,
        verbose=False,
    )
    ClearMetadataAndDocStringPass()(
        program.model
    )  # stack traces, with the paths of whoever ran this
    with staged(folder) as new, staged(folder / "test_data_set_0") as data:
        path = new / "model.onnx"
        program.save(path, external_data=False)
        onnx.save_tensor(onnx.numpy_helper.from_array(image.numpy(), "image"), data / "input_0.pb")
        onnx.save_tensor(onnx.numpy_helper.from_array(expected, "output"), data / "output_0.pb")

        onnx.checker.check_model(path)
        (output,) = onnx_ops.InferenceSession(path).run(None, {"image": image.numpy()})
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)
    print(f"{folder / path.name}: at most {abs(output - expected).max():.1e} from PyTorch")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--output", type=Path, default=Path("models/exported"), help="default: %(default)s"
    )
    output = parser.parse_args().output
    torch.manual_seed(0)
    image = photograph()
    size = image.shape[2:]
    noisy = (image + 0.08 * torch.randn_like(image)).clamp(0, 1)
    write(output / "spatial_transformer", SpatialTransformer(*size), image)
    write(output / "patch_fold", PatchFold(*size), noisy)


if __name__ == "__main__":
    main()
