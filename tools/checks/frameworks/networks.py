"""Networks of PyTorch's own modules, as tables of their stages: a residual network in 2 or 3 dims, and a U-Net.

Sources: He et al. 2016, "Deep residual learning" (bottlenecks with the stride in the 3x3); Ronneberger et al. 2015,
"U-Net" (here with padding and batch normalisation).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

CLASSES = 100
#: Stages of residual networks: (channels inside a bottleneck, blocks, stride of the first).
RESNET50 = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
RESNET3D = ((16, 1, 1), (32, 1, 2), (64, 1, 2))
#: Channels of a U-Net's levels, from the image down.
UNET = (32, 64, 128, 256)

_CONVS: dict[int, Any] = {2: nn.Conv2d, 3: nn.Conv3d}
_TRANSPOSED: dict[int, Any] = {2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
_NORMS: dict[int, Any] = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
_POOLS: dict[int, Any] = {2: nn.MaxPool2d, 3: nn.MaxPool3d}
_EXPANSION = 4
#: The first scale of a bottleneck's last normalisation, so that rounding does not grow from block to block.
_BRANCH = 0.25


def convolution(dims: int, c: int, k: int, r: int, stride: int = 1) -> nn.Sequential:
    """Convolution and batch normalisation."""
    return nn.Sequential(_CONVS[dims](c, k, r, stride, r // 2, bias=False), _NORMS[dims](k))


class Bottleneck(nn.Module):
    """relu(x + f(x)) with f of three convolutions, 1x1, 3x3 and 1x1."""

    def __init__(self, dims: int, c: int, inner: int, stride: int) -> None:
        super().__init__()
        k = _EXPANSION * inner
        self.first = convolution(dims, c, inner, 1)
        self.second = convolution(dims, inner, inner, 3, stride)
        self.third = convolution(dims, inner, k, 1)
        nn.init.constant_(self.third[1].weight, _BRANCH)
        self.shortcut = convolution(dims, c, k, 1, stride) if (c, stride) != (k, 1) else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.second(self.first(x).relu()).relu()
        return torch.relu(self.shortcut(x) + self.third(inner))


def resnet(dims: int, stages: tuple[tuple[int, int, int], ...]) -> nn.Module:
    """A classifier of images with 3 channels: stem, stages of bottlenecks, mean, fully connected layer."""
    c = stages[0][0]
    layers: list[nn.Module] = [convolution(dims, 3, c, 7, 2), nn.ReLU(), _POOLS[dims](3, 2, 1)]
    for inner, blocks, stride in stages:
        for block in range(blocks):
            layers.append(Bottleneck(dims, c, inner, stride if block == 0 else 1))
            c = _EXPANSION * inner
    return nn.Sequential(*layers, _Mean(), nn.Linear(c, CLASSES))


class _Mean(nn.Module):
    """The mean over all spatial axes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(2).mean(2)


class UNet(nn.Module):
    """Levels joined by skips: pooled on the way down, transposed convolutions on the way up; one output channel."""

    def __init__(self, dims: int = 2, channels: tuple[int, ...] = UNET) -> None:
        super().__init__()
        downs = zip((3, *channels), channels, strict=False)
        ups = [*zip(channels[:0:-1], channels[-2::-1], strict=True)]
        self.down = nn.ModuleList(self._level(dims, c, k) for c, k in downs)
        self.up = nn.ModuleList(_TRANSPOSED[dims](c, k, 2, 2) for c, k in ups)
        self.join = nn.ModuleList(self._level(dims, 2 * k, k) for _, k in ups)
        self.last = _CONVS[dims](channels[0], 1, 1)
        self.pool = _POOLS[dims](2)

    @staticmethod
    def _level(dims: int, c: int, k: int) -> nn.Sequential:
        return nn.Sequential(convolution(dims, c, k, 3), nn.ReLU(), convolution(dims, k, k, 3), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for number, level in enumerate(self.down):
            x = level(x if number == 0 else self.pool(x))
            skips.append(x)
        for up, join, skip in zip(self.up, self.join, skips[-2::-1], strict=True):
            larger = up(x)
            pads = [size for s, g in zip(skip.shape[:1:-1], larger.shape[:1:-1], strict=True) for size in (0, s - g)]
            x = join(torch.cat((skip, nn.functional.pad(larger, pads)), 1))
        return self.last(x)
