"""The networks of scripts/measure/networks.py: needs PyTorch, kornia, transformers, scipy and
deform-conv2d-onnx-exporter.

Nothing is downloaded: the configurations are small, the weights random. NETWORKS maps names to
functions without arguments, which return (forward function, modules: its first arguments, inputs:
its other arguments); `assembled` makes one module of these.
"""

import os
from unittest import mock

import deform_conv2d_onnx_exporter as by_gathering
import torch
import transformers as of
from kornia import morphology
from kornia.contrib import combine_tensor_patches, extract_tensor_patches
from kornia.feature.aliked.aliked import SDDH
from kornia.feature.laf import extract_patches_simple
from kornia.geometry import transform
from kornia.geometry.calibration import undistort_image
from onnxscript.function_libs.torch_lib.ops.vision import torchvision_deform_conv2d
from torch import nn
from torch.nn import functional as F
from torch.onnx import symbolic_helper
from torch.onnx._internal.torchscript_exporter._type_utils import JitScalarType

os.environ["TRANSFORMERS_DISABLE_TORCH_CHECK"] = (
    "1"  # checks of shapes at run time: some of them can't be exported
)

SMALL_RESNET = {"embedding_size": 32, "depths": [1, 1, 1, 1], "layer_type": "basic"}
SMALL_BERT = {"model_type": "bert", "vocab_size": 1200, "hidden_size": 64, "intermediate_size": 128}
SMALL_BERT |= {"num_hidden_layers": 2, "num_attention_heads": 2}
FEW = {"decoder_layers": 2, "num_queries": 100}
STAGES = ["stage2", "stage3", "stage4"]
NETWORKS = {}


def network(name, *settings):
    """Register a function, called with these settings, as the maker of the network `name`."""

    def register(make):
        NETWORKS[name] = lambda: make(*settings)
        return make

    return register


class Network(nn.Module):
    def __init__(self, function, modules):
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(modules)

    def forward(self, *inputs):
        return self.function(*self.parts, *inputs)


@torch.no_grad()
def assembled(name):
    """Return a network as one module, and its inputs.

    All weights get noise, also those that start as zeros: else deformable attention would look at
    the same places of every image. BatchNorm gets the statistics of its input: else a deep
    network's signal would fade to a constant.
    """
    torch.manual_seed(0)
    function, modules, inputs = NETWORKS[name]()
    module = Network(function, modules).eval()
    for parameter in module.parameters():
        fan_in = parameter[0].numel() if parameter.ndim > 1 else 2500
        parameter += torch.randn(parameter.shape) / fan_in**0.5
    hooks = [
        m.register_forward_pre_hook(set_statistics)
        for m in module.modules()
        if isinstance(m, nn.BatchNorm2d)
    ]
    module(*inputs)
    for hook in hooks:
        hook.remove()
    return module, inputs


def set_statistics(batch_norm, inputs):
    batch_norm.running_mean[:] = inputs[0].mean((0, 2, 3))
    batch_norm.running_var[:] = inputs[0].var((0, 2, 3), correction=0)


# Networks for optical flow move an image in these three ways.


def pixels(height, width):
    return torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")


def flow_warp(image, flow):
    n, _, height, width = image.shape
    y, x = pixels(height, width)
    points = torch.stack((x, y)).float()[None].repeat(n, 1, 1, 1) + flow
    x = 2 * points[:, 0] / max(width - 1, 1) - 1
    y = 2 * points[:, 1] / max(height - 1, 1) - 1
    return F.grid_sample(image, torch.stack((x, y), 1).permute(0, 2, 3, 1), align_corners=True)


def flow_warp_stack(image, flow):
    height, width = image.shape[2:]
    y, x = pixels(height, width)
    x, y = x + flow[:, 0], y + flow[:, 1]
    grid = torch.stack((x / ((width - 1) / 2) - 1, y / ((height - 1) / 2) - 1), -1)
    return F.grid_sample(image, grid, align_corners=True)


def flow_warp_half(image, flow):
    height, width = image.shape[2:]
    y, x = pixels(height, width)
    points = torch.stack((x, y), -1) + flow.permute(0, 2, 3, 1)
    grid = (2 * points + 1) / torch.tensor([width, height]) - 1
    return F.grid_sample(image, grid, padding_mode="border", align_corners=False)


@network("flow_warp", flow_warp)
@network("flow_warp_stack", flow_warp_stack)
@network("flow_warp_half", flow_warp_half)
def optical_flow(warp):
    return warp, [], (torch.rand(1, 3, 384, 512), 8 * torch.randn(1, 2, 384, 512))


# Networks that write coordinates in place, from their public descriptions.


@network("voxelmorph", 160, 192)
@network("voxelmorph_3d", 40, 48, 56)
def voxelmorph(*size):
    """The registration's last part: a velocity is integrated by scaling and squaring, and moves the
    image.
    """
    grid = torch.stack(torch.meshgrid(*map(torch.arange, size), indexing="ij"))[None].float()

    def transformed(image, flow):
        points = grid + flow
        for axis, length in enumerate(size):
            points[:, axis, ...] = 2 * (points[:, axis, ...] / (length - 1) - 0.5)
        points = points.movedim(1, -1)[..., list(range(len(size)))[::-1]]
        return F.grid_sample(image, points, align_corners=True, mode="bilinear")

    def registered(image, velocity, steps=7):
        flow = velocity / 2**steps
        for _ in range(steps):
            flow = flow + transformed(flow, flow)
        return transformed(image, flow), flow

    velocity = F.interpolate(
        torch.randn(1, len(size), *[8] * len(size)), size, mode=MODES[len(size)]
    )
    return registered, [], (torch.rand(1, 1, *size), 4 * velocity)


MODES = {2: "bilinear", 3: "trilinear"}  # of F.interpolate, by the number of axes


@network("monodepth2_views")
def monodepth2_views(height=192, width=640):
    """Two views of an image, synthesized from its depth and the cameras' motion."""
    y, x = (coordinates.reshape(1, -1).float() for coordinates in pixels(height, width))
    points = torch.stack([x[0], y[0], torch.ones_like(x[0])])[None]

    def view(image, depth, inverse_k, k, motion):
        cam_points = torch.matmul(inverse_k[:, :3, :3], points)
        cam_points = depth.view(1, 1, -1) * cam_points
        cam_points = torch.cat([cam_points, torch.ones(1, 1, height * width)], 1)
        camera = torch.matmul(k, motion)[:, :3, :]
        cam_points = torch.matmul(camera, cam_points)
        places = cam_points[:, :2, :] / (cam_points[:, 2, :].unsqueeze(1) + 1e-7)
        places = places.view(1, 2, height, width).permute(0, 2, 3, 1)
        places[..., 0] /= width - 1
        places[..., 1] /= height - 1
        return F.grid_sample(image, (places - 0.5) * 2, padding_mode="border", align_corners=True)

    def views(first, second, disparity, inverse_k, k, motions):
        depth = 1 / (0.01 + 9.99 * disparity)
        return view(first, depth, inverse_k, k, motions[:1]), view(
            second, depth, inverse_k, k, motions[1:]
        )

    k = torch.tensor(
        [
            [
                [0.58 * width, 0, width / 2, 0],
                [0, 1.92 * height, height / 2, 0],
                [0, 0, 1, 0],
                [0, 0, 0, 1],
            ]
        ]
    )
    motions = torch.eye(4) + 0.02 * torch.randn(2, 4, 4)
    disparity = F.interpolate(torch.rand(1, 1, 12, 40), (height, width), mode="bilinear")
    images = torch.rand(2, 1, 3, height, width)
    return views, [], (*images, disparity, torch.linalg.inv(k), k, motions)


# Networks that move images by what they estimate in several steps.


def rife_warp(image, flow):
    n, _, height, width = image.shape
    x = torch.linspace(-1, 1, width).view(1, 1, 1, width).expand(n, -1, height, -1)
    y = torch.linspace(-1, 1, height).view(1, 1, height, 1).expand(n, -1, -1, width)
    flow = torch.cat([flow[:, :1] / ((width - 1) / 2), flow[:, 1:2] / ((height - 1) / 2)], 1)
    grid = (torch.cat([x, y], 1) + flow).permute(0, 2, 3, 1)
    return F.grid_sample(image, grid, mode="bilinear", padding_mode="border", align_corners=True)


@network("rife")
def rife(height=128, width=192, features=16):
    """The image between two others, with small blocks that refine the flows to both, from coarse to
    fine.
    """
    blocks = [
        nn.Sequential(nn.Conv2d(c, features, 3, 2, 1), nn.PReLU(),
            nn.Conv2d(features, features, 3, padding=1),
                      nn.PReLU(), nn.ConvTranspose2d(features, 5, 4, 2, 1))
        for c in (6, 17, 17)
    ]  # fmt: skip

    def between(*arguments):
        *blocks, first, second = arguments
        flow = mask = None
        warped = first, second
        for block, scale in zip(blocks, (4, 2, 1), strict=True):
            x = torch.cat([first, second] if flow is None else [first, second, *warped, mask], 1)
            x = F.interpolate(x, scale_factor=1 / scale, mode="bilinear", align_corners=False)
            if flow is not None:
                coarse = (
                    F.interpolate(
                        flow, scale_factor=1 / scale, mode="bilinear", align_corners=False
                    )
                    / scale
                )
                x = torch.cat([x, coarse], 1)
            flow_and_mask = F.interpolate(
                block(x), scale_factor=scale, mode="bilinear", align_corners=False
            )
            flow = (
                flow_and_mask[:, :4] * scale
                if flow is None
                else flow + flow_and_mask[:, :4] * scale
            )
            mask = flow_and_mask[:, 4:5] if mask is None else mask + flow_and_mask[:, 4:5]
            warped = rife_warp(first, flow[:, :2]), rife_warp(second, flow[:, 2:4])
        mask = torch.sigmoid(mask)
        return warped[0] * mask + warped[1] * (1 - mask)

    return between, blocks, (*torch.rand(2, 1, 3, height, width),)


@network("basicvsr")
def basicvsr(frames=4, height=64, width=96, features=16):
    """A video's features, of which each frame's are moved to the next one's by a flow in three
    levels.
    """
    basic = [
        nn.Sequential(nn.Conv2d(8, 16, 7, padding=3), nn.ReLU(), nn.Conv2d(16, 2, 7, padding=3))
        for _ in range(3)
    ]
    last = nn.Sequential(nn.Conv2d(features + 3, features, 3, padding=1), nn.ReLU())

    def warp(x, flow, padding_mode="zeros"):
        h, w = x.shape[2:]
        y, x_places = torch.meshgrid(torch.arange(0, h), torch.arange(0, w), indexing="ij")
        points = torch.stack((x_places, y), 2).float() + flow.permute(0, 2, 3, 1)
        grid = torch.stack(
            (2 * points[..., 0] / max(w - 1, 1) - 1, 2 * points[..., 1] / max(h - 1, 1) - 1), 3
        )
        return F.grid_sample(x, grid, padding_mode=padding_mode, align_corners=True)

    def estimated(basic, first, second):
        images = [(first, second)]
        for _ in range(2):
            images.insert(
                0, tuple(F.avg_pool2d(image, 2, 2, count_include_pad=False) for image in images[0])
            )
        flow = first.new_zeros(1, 2, height // 8, width // 8)
        for network, (picture, next_picture) in zip(basic, images, strict=True):
            up = F.interpolate(flow, scale_factor=2, mode="bilinear", align_corners=True) * 2.0
            flow = up + network(torch.cat([picture, warp(next_picture, up, "border"), up], 1))
        return flow

    def propagated(*arguments):
        *basic, last, video = arguments
        feature, results = video.new_zeros(1, features, height, width), []
        for k in range(frames):
            if k:
                feature = warp(feature, estimated(basic, video[:, k], video[:, k - 1]))
            feature = last(torch.cat([video[:, k], feature], 1))
            results.append(feature)
        return torch.stack(results, 1)

    return propagated, [*basic, last], (torch.rand(1, frames, 3, height, width),)


@network("disparity_warp")
def disparity_warp(height=192, width=320):
    """Monodepth: the right image moved to the left one by a disparity that a network gives."""

    def moved(network, left, right):
        disparity = 0.3 * torch.sigmoid(network(left))
        x = torch.linspace(0, 1, width).repeat(1, height, 1)
        y = torch.linspace(0, 1, height).repeat(1, width, 1).transpose(1, 2)
        field = torch.stack((x - disparity[:, 0], y), 3)
        return F.grid_sample(
            right, 2 * field - 1, mode="bilinear", padding_mode="zeros", align_corners=False
        )

    return moved, [nn.Conv2d(3, 1, 3, padding=1)], (*torch.rand(2, 1, 3, height, width),)


# kornia's transformations and patches.


def warp_perspective(image, homography):
    return transform.warp_perspective(image, homography, image.shape[2:])


def warp_affine(image, homography):
    return transform.warp_affine(image, homography[:, :2], image.shape[2:])


@network("warp_perspective", warp_perspective, 2, 120, 160)
@network("warp_perspective_big", warp_perspective, 1, 480, 640)
@network("warp_affine", warp_affine, 2, 120, 160)
def kornia_homography(warp, n, height, width):
    steps = torch.tensor([[0.05, 0.05, 5], [0.05, 0.05, 5], [1e-4, 1e-4, 0]])
    return warp, [], (torch.rand(n, 3, height, width), torch.eye(3) + steps * torch.randn(n, 3, 3))


@network("homography_warp")
def kornia_homography_warp():
    def warp(image, homography):
        return transform.homography_warp(image, homography, image.shape[2:])

    return warp, [], (torch.rand(2, 3, 120, 160), torch.eye(3) + 0.05 * torch.randn(2, 3, 3))


@network("rotate")
def kornia_rotate():
    return (
        lambda image, angle: transform.rotate(image, angle),
        [],
        (torch.rand(2, 3, 120, 160), torch.tensor([20.0, -35])),
    )


@network("remap")
def kornia_remap():
    def remap(image, x, y):
        return transform.remap(image, x, y, align_corners=True)

    x, y = (
        coordinates + 4 * torch.randn(2, 120, 160) for coordinates in reversed(pixels(120, 160))
    )
    return remap, [], (torch.rand(2, 3, 120, 160), x, y)


@network("elastic_transform2d")
def kornia_elastic_transform2d():
    def elastic(image, noise):
        return transform.elastic_transform2d(image, noise)

    return elastic, [], (torch.rand(2, 3, 120, 160), 2 * torch.rand(2, 2, 120, 160) - 1)


@network("undistort_image")
def kornia_undistort_image():
    camera = torch.tensor([[150.0, 0, 80], [0, 150, 60], [0, 0, 1]]).repeat(2, 1, 1)
    lens = torch.tensor([0.1, -0.05, 0.001, 0.002]).repeat(2, 1)
    return undistort_image, [], (torch.rand(2, 3, 120, 160), camera, lens)


@network("laf_patches")
def kornia_laf_patches(count=256):
    """Patches of an image around keypoints, each turned and scaled."""
    lafs = torch.cat(
        [8 * torch.eye(2) + 2 * torch.randn(1, count, 2, 2), 240 * torch.rand(1, count, 2, 1)], 3
    )
    return (
        lambda image, lafs: extract_patches_simple(image, lafs),
        [],
        (torch.rand(1, 1, 240, 320), lafs),
    )


def extract(image):
    return extract_tensor_patches(image, 16, stride=8)


def combine(patches):
    return combine_tensor_patches(patches, (128, 160), 16, 8)


@network("extract_patches", extract, 2, 3, 120, 160)
@network("combine_patches", combine, 2, 15 * 19, 3, 16, 16)
@network("extract_combine", lambda image: combine(extract(image)), 2, 3, 128, 160)
def kornia_patches(function, *shape):
    return function, [], (torch.rand(shape),)


# Networks with deformable attention.


def boxes(model, image):
    outputs = model(image)
    return outputs.logits, outputs.pred_boxes


def detector(model, function=boxes, *more):
    return function, [model], (torch.randn(1, 3, 256, 320), *more)


@network("deformable_detr")
def deformable_detr():
    backbone = of.ResNetConfig(
        hidden_sizes=[64, 128, 192, 256], out_features=STAGES, **SMALL_RESNET
    )
    config = of.DeformableDetrConfig(
        backbone_config=backbone, encoder_layers=2, disable_custom_kernels=True, **FEW
    )
    return detector(of.DeformableDetrForObjectDetection(config))


@network("d_fine")
def d_fine():
    backbone = of.HGNetV2Config(
        embedding_size=32,
        stem_channels=[3, 16, 32],
        hidden_sizes=[64, 128, 192, 256],
        out_features=STAGES,
        stage_in_channels=[32, 64, 128, 192],
        stage_mid_channels=[16, 32, 32, 48],
        # Fmt: skip.
        stage_out_channels=[64, 128, 192, 256],
        stage_num_blocks=[1, 1, 1, 1],
    )
    return detector(of.DFineForObjectDetection(of.DFineConfig(
        backbone_config=backbone, encoder_in_channels=[128, 192, 256], feat_strides=[8, 16, 32],
        **FEW
    )))  # fmt: skip


@network("bevformer_temporal")
def bevformer_temporal(side=40, heads=4, dim=16, points=4):
    """BEVFormer's attention to its own last result: the mean of two values that are sampled as one
    batch.
    """
    queries, width = side**2, heads * dim

    def attended(project, offsets, weights, out, query, last):
        value = project(torch.stack([last, query], 1)).reshape(2, queries, heads, dim)
        both = torch.cat([last, query], -1)
        moves = offsets(both).view(1, queries, heads, 2, 1, points, 2).permute(0, 3, 1, 2, 4, 5, 6)
        shares = (
            weights(both)
            .view(1, queries, heads, 2, points)
            .softmax(-1)
            .view(1, queries, heads, 2, 1, points)
        )
        moves, shares = (
            moves.reshape(2, queries, heads, 1, points, 2),
            shares.permute(0, 3, 1, 2, 4, 5),
        )
        shares = shares.reshape(2, queries, heads, 1, points).contiguous()
        y, x = ((coordinates.flatten() + 0.5) / side for coordinates in pixels(side, side))
        locations = torch.stack((x, y), -1)[None, :, None, None, None] + moves / side
        grids = 2 * locations - 1
        image = value.flatten(2).transpose(1, 2).reshape(2 * heads, dim, side, side)
        grid = grids[:, :, :, 0].transpose(1, 2).flatten(0, 1)
        sampled = F.grid_sample(
            image, grid, mode="bilinear", padding_mode="zeros", align_corners=False
        )
        shares = shares.transpose(1, 2).reshape(2 * heads, 1, queries, points)
        samples = torch.stack([sampled], -2).flatten(-2)
        result = (samples * shares).sum(-1).view(2, width, queries).transpose(1, 2).contiguous()
        result = result.permute(1, 2, 0).view(queries, width, 1, 2).mean(-1).permute(2, 0, 1)
        return out(result) + query

    modules = [nn.Linear(width, width), nn.Linear(2 * width, heads * 2 * points * 2)]
    modules += [nn.Linear(2 * width, heads * 2 * points), nn.Linear(width, width)]
    return attended, modules, (*torch.randn(2, 1, queries, width),)


@network("rt_detr", of.RTDetrConfig, of.RTDetrForObjectDetection)
@network("rt_detr_v2", of.RTDetrV2Config, of.RTDetrV2ForObjectDetection)
def rt_detr(config, model):
    backbone = of.RTDetrResNetConfig(
        hidden_sizes=[32, 64, 128, 256], out_features=STAGES, **SMALL_RESNET
    )
    return detector(
        model(config(backbone_config=backbone, encoder_in_channels=[64, 128, 256], **FEW))
    )


def swin(*stages):
    return of.SwinConfig(
        embed_dim=32, depths=[1, 1, 2, 1], num_heads=[1, 2, 4, 8], out_features=list(stages)
    )


@network("mask2former")
def mask2former():
    def masks(model, image):
        outputs = model(image)
        return outputs.class_queries_logits, outputs.masks_queries_logits

    layers = {"encoder_layers": 2, "decoder_layers": 3, "num_queries": 50}
    config = of.Mask2FormerConfig(backbone_config=swin("stage1", *STAGES), **layers)
    return detector(of.Mask2FormerForUniversalSegmentation(config), masks)


def running_maximum(x, dim):
    """torch.cummax of integers [n, length], along their last axis: it can't be exported."""
    length = x.shape[1]
    is_before = torch.arange(length)[:, None] >= torch.arange(length)
    return torch.where(is_before, x[:, None], x.min()).amax(2), None


def running_minimum(x, dim):
    return -running_maximum(-x, dim)[0], None


@network("grounding_dino")
def grounding_dino():
    def boxes_of_phrases(model, image, tokens):
        with mock.patch.multiple(torch, cummax=running_maximum, cummin=running_minimum):
            outputs = model(pixel_values=image, input_ids=tokens)
        return outputs.logits[..., : tokens.shape[1]], outputs.pred_boxes

    settings = {
        "text_config": SMALL_BERT,
        "encoder_layers": 2,
        "disable_custom_kernels": True,
        **FEW,
    }
    config = of.GroundingDinoConfig(backbone_config=swin(*STAGES), **settings)
    tokens = torch.tensor(
        [[101, 200, 201, 1012, 300, 1012, 102]]
    )  # two phrases, between BERT's marks
    return detector(of.GroundingDinoForObjectDetection(config), boxes_of_phrases, tokens)


# Other networks that unfold, fold or sample.


@network("mobilevitv2", of.MobileViTV2ForImageClassification, 32)
@network("mobilevitv2_segmentation", of.MobileViTV2ForSemanticSegmentation, 16)
def mobilevitv2(model, output_stride):
    config = of.MobileViTV2Config(width_multiplier=0.5, output_stride=output_stride)
    return lambda model, image: model(image).logits, [model(config)], (torch.randn(1, 3, 256, 256),)


@network("uvdoc")
def uvdoc():
    def flattened(model, image, page):
        mesh = model(image).last_hidden_state
        mesh = F.interpolate(mesh, size=page.shape[2:], mode="bilinear", align_corners=True)
        # Without a border, the rounding of random weights would show at the page's edges.
        return F.grid_sample(
            page, mesh.permute(0, 2, 3, 1), padding_mode="border", align_corners=True
        )

    backbone = {"model_type": "uvdoc_backbone", "out_features": [f"stage{k}" for k in range(1, 7)]}
    model = of.UVDocModel(of.UVDocConfig(backbone_config=backbone))
    page = F.interpolate(torch.rand(1, 3, 23, 16), (712, 488), mode="bilinear")
    return flattened, [model], (torch.rand(1, 3, 356, 244), page)


@network("spatial_transformer", nn.Conv2d, nn.AdaptiveAvgPool2d, 2, 3, 144, 192)
@network("spatial_transformer_3d", nn.Conv3d, nn.AdaptiveAvgPool3d, 1, 1, 24, 48, 48)
def spatial_transformer(convolution, pool, n, channels, *size):
    axes = len(size)

    def transformed(model, image):
        theta = model(image).reshape(-1, axes, axes + 1)
        return F.grid_sample(
            image, F.affine_grid(theta, image.shape, align_corners=False), align_corners=False
        )

    last = nn.Linear(8, axes * (axes + 1))
    nn.init.eye_(last.bias.data.view(axes, axes + 1))
    model = nn.Sequential(convolution(channels, 8, 5, 4), nn.ReLU(), pool(1), nn.Flatten(), last)
    return transformed, [model], (torch.rand(n, channels, *size),)


@network("raft_lookup")
def raft_lookup(levels=4, radius=4, channels=64, height=46, width=62):
    """The part of RAFT that reads windows of the correlation of two images' features, around each
    place and level.
    """

    def lookup(first, second, points):
        correlation = first.flatten(2).transpose(1, 2) @ second.flatten(2) / channels**0.5
        correlation = correlation.reshape(-1, 1, height, width)
        steps = torch.linspace(-radius, radius, 2 * radius + 1)
        window = torch.stack(torch.meshgrid(steps, steps, indexing="ij"), -1)
        points = points.permute(0, 2, 3, 1).reshape(-1, 1, 1, 2)
        values = []
        for level in range(levels):
            h, w = correlation.shape[2:]
            x, y = (points / 2**level + window).split([1, 1], dim=-1)
            grid = torch.cat((2 * x / (w - 1) - 1, 2 * y / (h - 1) - 1), -1)
            values.append(
                F.grid_sample(correlation, grid, align_corners=True).view(
                    -1, height, width, len(steps) ** 2
                )
            )
            correlation = F.avg_pool2d(correlation, 2, stride=2)
        return torch.cat(values, -1).permute(0, 3, 1, 2)

    features = torch.randn(2, 1, channels, height, width)
    points = torch.stack(pixels(height, width)[::-1])[None] + 3 * torch.randn(1, 2, height, width)
    return lookup, [], (*features, points)


# Windows of images that are multiplied and added up.


@network("dilation")
def kornia_dilation():
    return (
        lambda image: morphology.dilation(image, torch.ones(5, 5), engine="unfold"),
        [],
        (torch.rand(2, 3, 240, 320),),
    )


@network("aliked_head")
def aliked_head(keypoints=1000, height=120, width=160):
    """The descriptors of ALIKED at keypoints, from windows of features around each."""
    points = 2 * torch.rand(keypoints, 2) - 1
    return (
        lambda head, x, at: head(x, [at])[0][0],
        [SDDH(64, n_pos=16)],
        (torch.randn(1, 64, height, width), points),
    )


@network("local_attention", "Tensor.unfold")
@network("local_attention_unfold", "F.unfold")
def local_attention(how, heads=4, dim=16, window=7, height=48, width=64):
    """Each pixel attends to the window around it."""

    def windows(x):
        if how == "F.unfold":
            return F.unfold(x, window, padding=window // 2).view(
                1, heads, dim, window**2, height * width
            )
        x = F.pad(x, [window // 2] * 4).unfold(2, window, 1).unfold(3, window, 1)
        x = x.reshape(1, heads, dim, height * width, window**2)
        return x.transpose(3, 4)

    def attended(project, x):
        q, k, v = project(x).chunk(3, 1)
        q = q.view(1, heads, dim, 1, height * width)
        weights = ((q * windows(k)).sum(2) / dim**0.5).softmax(2)
        return (weights[:, :, None] * windows(v)).sum(3).view(1, heads * dim, height, width)

    return (
        attended,
        [nn.Conv2d(heads * dim, 3 * heads * dim, 1)],
        (torch.randn(1, heads * dim, height, width),),
    )


@network("correlation")
def correlation(channels=64, displacements=4, height=48, width=64):
    """PWC-Net's cost volume: products of features with those of the other image, around the same
    place.
    """

    def correlated(first, second):
        side = 2 * displacements + 1
        windows = F.unfold(second, side, padding=displacements).view(
            1, channels, side**2, height, width
        )
        return (first[:, :, None] * windows).mean(1)

    return correlated, [], (*torch.randn(2, 1, channels, height, width),)


@network("carafe")
def carafe(channels=64, scale=2, window=5, height=32, width=48):
    """CARAFE: each pixel of an enlarged image is a weighted sum of a window, by weights that are
    predicted.
    """

    def enlarged(compress, encode, x):
        weights = F.pixel_shuffle(encode(compress(x)), scale).softmax(1)
        windows = F.unfold(x, window, padding=window // 2).view(
            1, channels * window**2, height, width
        )
        windows = F.interpolate(windows, scale_factor=scale).view(
            1, channels, window**2, scale * height, scale * width
        )
        return (windows * weights[:, None]).sum(2)

    encode = nn.Conv2d(16, (scale * window) ** 2, 3, padding=1)
    return (
        enlarged,
        [nn.Conv2d(channels, 16, 1), encode],
        (torch.randn(1, channels, height, width),),
    )


@network("pixel_adaptive_convolution")
def pixel_adaptive_convolution(channels=32, window=5, height=64, width=96):
    """Products of windows with weights, and with how much a window's guide is like that at its
    centre.
    """

    def convolved(convolution, x, guide):
        x, windows = (
            F.unfold(tensor, window, padding=window // 2).view(1, -1, window**2, height, width)
            for tensor in (x, guide)
        )
        alike = torch.exp(-0.5 * ((windows - guide[:, :, None]) ** 2).sum(1, keepdim=True))
        return torch.einsum("nckhw,ock->nohw", x * alike, convolution.weight.flatten(2))

    image = torch.randn(1, channels, height, width), torch.randn(1, 3, height, width)
    return convolved, [nn.Conv2d(channels, channels, window)], image


@network("patch_denoiser")
def patch_denoiser(size=(144, 192), patch=8, stride=4):
    """Halve the contrast of overlapping patches and put them together again."""

    def denoised(image):
        patches = F.unfold(image, patch, stride=stride).unflatten(1, (3, patch**2))
        patches = (patches + patches.mean(2, keepdim=True)).flatten(1, 2) / 2
        overlap = F.fold(
            F.unfold(torch.ones(1, 1, *size), patch, stride=stride), size, patch, stride=stride
        )
        return F.fold(patches, size, patch, stride=stride) / overlap

    return denoised, [], (torch.rand(2, 3, *size),)


# BiRefNet removes backgrounds. torchvision's operator is declared here, as torchvision may be
# missing. PyTorch's default exporter writes DeformConv, the TorchScript exporter what
# deform-conv2d-onnx-exporter makes of it.

TORCHVISION = torch.library.Library("torchvision", "FRAGMENT")
by_gathering.JitScalarType = JitScalarType  # PyTorch has moved it since
by_gathering.get_tensor_dim_size = lambda value, axis: symbolic_helper._get_tensor_sizes(value)[
    axis
]


def deform_conv2d(x, weight, offset, mask, bias, *settings):
    """torchvision's deform_conv2d with stride 1 and one group, by grid_sample."""
    (_, _, height, width), (*_, rows, columns) = x.shape, weight.shape
    (_, _, *out), pads, count = offset.shape, settings[2:4], rows * columns
    k = torch.arange(count)[:, None, None]
    y = offset[:, 0::2] + k // columns - pads[0] + torch.arange(out[0])[:, None]
    x_ = offset[:, 1::2] + k % columns - pads[1] + torch.arange(out[1])
    grid = torch.stack([(2 * x_ + 1) / width - 1, (2 * y + 1) / height - 1], -1).flatten(1, 2)
    read = F.grid_sample(x, grid, align_corners=False).unflatten(2, (count, out[0])) * mask[:, None]
    return torch.einsum("nckhw,ock->nohw", read, weight.flatten(2)) + bias[:, None, None]


if "deform_conv2d" not in dir(torch.ops.torchvision):
    TORCHVISION.define(
        "deform_conv2d(Tensor x, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt "
        "stride_h,"
        " SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, "
        "SymInt groups,"
        " SymInt offset_groups, bool use_mask) -> Tensor"
    )
    TORCHVISION.impl("deform_conv2d", deform_conv2d, "CPU")
    torch.library.register_fake("torchvision::deform_conv2d", deform_conv2d, lib=TORCHVISION)
by_gathering.register_deform_conv2d_onnx_op(use_gathernd=True)
TRANSLATIONS = {
    torch.ops.torchvision.deform_conv2d.default: torchvision_deform_conv2d
}  # used only beside torchvision


class DeformableConv2d(nn.Module):
    """A convolution by deform_conv2d, with convolutions of the same size for the offsets and the
    mask.
    """

    def __init__(self, channels, outputs, size):
        super().__init__()
        self.pad = size // 2
        self.offset = nn.Conv2d(channels, 2 * size * size, size, padding=self.pad)
        self.mask = nn.Conv2d(channels, size * size, size, padding=self.pad)
        self.weight = nn.Conv2d(channels, outputs, size, bias=False).weight

    def forward(self, x):
        mask, bias = 2 * self.mask(x).sigmoid(), torch.zeros(len(self.weight))
        settings = 1, 1, self.pad, self.pad, 1, 1, 1, 1, True
        return torch.ops.torchvision.deform_conv2d(
            x, self.weight, self.offset(x), mask, bias, *settings
        )


def resized(x, like):
    return F.interpolate(x, size=like.shape[2:], mode="bilinear", align_corners=True)


class Parallel(nn.Module):
    """Deformable convolutions of 1, 1, 3 and 7 pixels side by side, and the mean, to as many
    channels as there were.
    """

    def __init__(self, channels, width=256):
        super().__init__()
        convolutions = [DeformableConv2d(channels, width, size) for size in (1, 1, 3, 7)]
        mean = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, width, 1, bias=False))
        self.branches = nn.ModuleList(
            nn.Sequential(m, nn.BatchNorm2d(width), nn.ReLU()) for m in convolutions
        )
        self.mean = nn.Sequential(*mean, nn.ReLU())
        self.last = nn.Sequential(
            nn.Conv2d(5 * width, channels, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()
        )

    def forward(self, x):
        return self.last(
            torch.cat([*(branch(x) for branch in self.branches), resized(self.mean(x), x)], 1)
        )


def decoder_block(channels, outputs):
    return nn.Sequential(
        nn.Conv2d(channels, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), Parallel(64),
        nn.Conv2d(64, outputs, 3, padding=1), nn.BatchNorm2d(outputs),
    )  # fmt: skip


class BiRefNet(nn.Module):
    """The encoder sees the image in two sizes; the decoder, from coarse to fine, also gets the
    image's patches.
    """

    def __init__(self, backbone, channels):
        super().__init__()
        self.backbone = backbone
        widths = [2 * c for c in channels]  # from fine to coarse
        outputs = [widths[0] // 2, *widths[:-1]]
        patches = [w // 8 for w in widths]
        inputs = [w + p for w, p in zip(widths, [*patches[1:], patches[-1]], strict=True)]
        self.squeeze = decoder_block(sum(widths), widths[-1])
        self.blocks = nn.ModuleList(map(decoder_block, inputs, outputs))
        self.laterals = nn.ModuleList(nn.Conv2d(w, w, 1) for w in widths[:-1])
        self.scales = [1, 4, 8, 16, 32]
        self.patches = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(3 * scale**2, 64, 3, padding=1), nn.Conv2d(64, count, 3, padding=1)
            )
            for scale, count in zip(self.scales, [*patches, patches[-1]], strict=True)
        )
        self.attention = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(w, 16, 3, padding=1),
                nn.BatchNorm2d(16),
                nn.ReLU(),
                nn.Conv2d(16, 1, 1),
                nn.Sigmoid(),
            )
            for w in outputs[1:]
        )
        self.last = nn.Conv2d(outputs[0] + patches[0], 1, 1)

    def forward(self, image):
        feature_maps = self.backbone(image).feature_maps
        half = self.backbone(
            F.interpolate(image, scale_factor=0.5, mode="bilinear", align_corners=True)
        ).feature_maps
        features = [
            torch.cat([a, resized(b, a)], 1) for a, b in zip(feature_maps, half, strict=True)
        ]
        x = self.squeeze(
            torch.cat([*(resized(f, features[-1]) for f in features[:-1]), features[-1]], 1)
        )
        for k in (3, 2, 1, 0):
            x = self.blocks[k](self.with_patches(x, image, k + 1))
            if k:
                x = x * self.attention[k - 1](x)
                x = resized(x, features[k - 1]) + self.laterals[k - 1](features[k - 1])
        return self.last(self.with_patches(resized(x, image), image, 0))

    def with_patches(self, x, image, k):
        return torch.cat([x, self.patches[k](F.pixel_unshuffle(image, self.scales[k]))], 1)


@network("birefnet")
def birefnet(size=512):
    config = of.SwinConfig(
        embed_dim=96,
        depths=[2, 2, 6, 2],
        num_heads=[3, 6, 12, 24],
        out_features=["stage1", *STAGES],
    )
    return (
        lambda model, image: model(image),
        [BiRefNet(of.SwinBackbone(config), [96, 192, 384, 768])],
        (torch.randn(1, 3, size, size),),
    )
