"""A small convolutional network and images that it can tell apart."""

from __future__ import annotations

import torch
from torch import nn

CLASSES = 10


def network(width: int = 16) -> nn.Module:
    """Four convolutions with batch norm, and a linear layer. The first weights are always the same."""
    torch.manual_seed(0)

    def block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]

    layers = [
        *block(3, width, 1), nn.MaxPool2d(2), *block(width, 2 * width, 2), *block(2 * width, 2 * width, 1),
        *block(2 * width, 4 * width, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, CLASSES),
    ]  # fmt: skip
    return nn.Sequential(*layers)


def images(batch: int, step: int, size: int, rank: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of noise around one pattern for each class, and the classes; the same for equal arguments."""
    generator = torch.Generator().manual_seed(1)
    patterns = torch.randn(CLASSES, 3, size, size, generator=generator)
    generator.manual_seed(1000 * rank + step)
    classes = torch.randint(CLASSES, (batch,), generator=generator)
    return patterns[classes] + 0.5 * torch.randn(batch, 3, size, size, generator=generator), classes
