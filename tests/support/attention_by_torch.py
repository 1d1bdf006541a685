"""Deformable DETR's attention computed by PyTorch's grid_sample, in the ways in which networks
write it.

    forward(value [N, S, M, D], locations [N, Q, M, L, P, 2], weights [N, Q, M, L, P])  ->  [N, Q,
    M * D]

`sizes`: (height, width) of each level.
"""

import torch
from torch.nn.functional import grid_sample


class Attention(torch.nn.Module):
    """Deformable attention as its authors wrote it; most others copied that."""

    def __init__(self, *sizes):
        super().__init__()
        self.sizes = sizes

    def forward(self, value, locations, weights):
        n, _, m, d = value.shape
        _, q, _, count, p, _ = locations.shape
        images, grids, sampled = (
            value.split([h * w for h, w in self.sizes], dim=1),
            2 * locations - 1,
            [],
        )
        for level, (h, w) in enumerate(self.sizes):
            image = images[level].flatten(2).transpose(1, 2).reshape(n * m, d, h, w)
            grid = grids[:, :, :, level].transpose(1, 2).flatten(0, 1)
            sampled.append(grid_sample(image, grid, "bilinear", "zeros", align_corners=False))
        weights = weights.transpose(1, 2).reshape(n * m, 1, q, count * p)
        y = (torch.stack(sampled, dim=-2).flatten(-2) * weights).sum(-1).view(n, m * d, q)
        return y.transpose(1, 2).contiguous()

    def inputs(self, n=2, q=7, m=4, d=8, p=3):
        generator, count = torch.manual_seed(5), len(self.sizes)
        value = torch.randn(n, sum(h * w for h, w in self.sizes), m, d, generator=generator)
        weights = torch.randn(n, q, m, count * p, generator=generator).softmax(-1)
        return (
            value,
            torch.rand(n, q, m, count, p, 2, generator=generator),
            weights.unflatten(-1, (count, p)),
        )


class MergedAttention(Attention):
    """Deformable attention of RT-DETRv2, which merges levels and points into one axis.

    locations [N, Q, M, L * P, 2], weights [N, Q, M, L * P]
    """

    def forward(self, value, locations, weights):
        n, _, m, d = value.shape
        _, q, _, points, _ = locations.shape
        images = (
            value.permute(0, 2, 3, 1).flatten(0, 1).split([h * w for h, w in self.sizes], dim=-1)
        )
        grids = (
            (2 * locations - 1)
            .permute(0, 2, 1, 3, 4)
            .flatten(0, 1)
            .split(points // len(self.sizes), dim=-2)
        )
        sampled = [
            grid_sample(image.reshape(n * m, d, h, w), grid, align_corners=False)
            for image, grid, (h, w) in zip(images, grids, self.sizes, strict=True)
        ]
        weights = weights.permute(0, 2, 1, 3).reshape(n * m, 1, q, points)
        return (torch.concat(sampled, dim=-1) * weights).sum(-1).view(n, m * d, q).permute(0, 2, 1)

    def inputs(self, **sizes):
        value, locations, weights = super().inputs(**sizes)
        return value, locations.flatten(3, 4), weights.flatten(3, 4)


class PlainAttention(Attention):
    """Deformable attention written with as few operations as possible."""

    def forward(self, value, locations, weights):
        images, grids = (
            value.permute(0, 2, 3, 1).split([h * w for h, w in self.sizes], -1),
            2 * locations - 1,
        )
        sampled = [
            grid_sample(
                image.reshape(-1, value.shape[3], h, w),
                grids[:, :, :, level].transpose(1, 2).flatten(0, 1),
            )
            for level, (image, (h, w)) in enumerate(zip(images, self.sizes, strict=True))
        ]
        y = torch.stack(sampled, -2) * weights.transpose(1, 2).flatten(0, 1).unsqueeze(1)
        return y.sum((-2, -1)).reshape(value.shape[0], -1, locations.shape[1]).transpose(1, 2)
