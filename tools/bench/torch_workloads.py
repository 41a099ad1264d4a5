"""Workloads of ``tools.bench.torch_steps``: networks with their inputs and losses, small ones for a trial too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tools.bench.torch_models import Lm, LstmLm, UNet, UNet3d


@dataclass(frozen=True)
class Workload:
    """inputs: arguments of the model.  loss_of: the loss, a scalar, of the model's result.  text: the sizes."""

    model: nn.Module
    inputs: tuple[Tensor, ...]
    loss_of: Callable[[Tensor], Tensor]
    text: str


@dataclass(frozen=True)
class Sizes:
    """batch: images; volumes are a 32nd of it, sequences of tokens an eighth.  is_tiny: for a trial without a GPU."""

    batch: int
    is_tiny: bool
    device: torch.device


def _image_classes(name: str, sizes: Sizes) -> Workload:
    """torchvision's network of that name, without dropout, which would draw other numbers in every run."""
    import torchvision

    side = 64 if sizes.is_tiny else 224
    model = getattr(torchvision.models, name)(weights=None)
    for part in model.modules():
        if isinstance(part, (nn.Dropout, torchvision.ops.StochasticDepth)):
            part.p = 0.0
    x, y = _images(sizes.batch, 3, side, sizes.device), torch.randint(1000, (sizes.batch,), device=sizes.device)
    model = model.to(sizes.device, memory_format=torch.channels_last)
    return Workload(model, (x,), lambda out: F.cross_entropy(out.float(), y), f"batch {sizes.batch}")


def _unet(sizes: Sizes) -> Workload:
    model = UNet(32, (1, 2)) if sizes.is_tiny else UNet()
    side, batch = (16, 2) if sizes.is_tiny else (64, sizes.batch)
    x, times = _images(batch, 4, side, sizes.device), torch.rand(batch, device=sizes.device) * 1000
    noise = torch.randn(batch, 4, side, side, device=sizes.device)
    model = model.to(sizes.device, memory_format=torch.channels_last)
    return Workload(model, (x, times), lambda out: F.mse_loss(out.float(), noise), f"batch {batch} 4x{side}x{side}")


def _unet3d(sizes: Sizes) -> Workload:
    model = UNet3d(4, 2) if sizes.is_tiny else UNet3d()
    side, batch = (16, 1) if sizes.is_tiny else (96, max(1, sizes.batch // 32))
    x = torch.randn(batch, 1, side, side, side, device=sizes.device)
    y = torch.randint(3, (batch, side, side, side), device=sizes.device)
    model = model.to(sizes.device, memory_format=torch.channels_last_3d)
    return Workload(model, (x,), lambda out: F.cross_entropy(out.float(), y), f"batch {batch} {side}^3")


def _lm(has_ops: bool, sizes: Sizes) -> Workload:
    if sizes.is_tiny:
        model, shape = Lm(1, width=64, heads=4, kv_heads=2, hidden=128, has_ops=has_ops), (1, 32, 64)
    else:
        model, shape = Lm(has_ops=has_ops), (max(1, sizes.batch // 8), 2048, 2048)
    x, y = torch.randn(shape, device=sizes.device), torch.randn(shape, device=sizes.device)
    text = f"{len(model.blocks)} blocks, {shape[0]}x{shape[1]} tokens"
    return Workload(model.to(sizes.device), (x,), lambda out: F.mse_loss(out.float(), y), text)


def _lstm_lm(sizes: Sizes) -> Workload:
    vocabulary, width, length = (50, 32, 8) if sizes.is_tiny else (10000, 1024, 64)
    model = LstmLm(vocabulary, width)
    x, y = (torch.randint(vocabulary, (length, sizes.batch), device=sizes.device) for _ in range(2))
    return Workload(
        model.to(sizes.device),
        (x,),
        lambda out: F.cross_entropy(out.float().flatten(0, 1), y.flatten()),
        f"{length}x{sizes.batch} tokens, 2x{width}",
    )


def _images(batch: int, channels: int, side: int, device: torch.device) -> Any:
    x = torch.randn(batch, channels, side, side, device=device)
    return x.contiguous(memory_format=torch.channels_last)


#: Makers of the workloads by name. ``lm_ops`` is ``lm_block`` with ``lowdnn.torch.ops`` on lowdnn's path.
WORKLOADS: Mapping[str, Callable[[Sizes], Workload]] = MappingProxyType(
    {
        "resnet50": partial(_image_classes, "resnet50"),
        "vit_b": partial(_image_classes, "vit_b_16"),
        "lm_block": partial(_lm, False),
        "lm_ops": partial(_lm, True),
        "lstm_lm": _lstm_lm,
        "mobilenet_v3": partial(_image_classes, "mobilenet_v3_large"),
        "convnext_t": partial(_image_classes, "convnext_tiny"),
        "efficientnet_b0": partial(_image_classes, "efficientnet_b0"),
        "unet": _unet,
        "unet3d": _unet3d,
    }
)
