"""Training in fp16 with automatic loss scaling: ``python -m tools.examples.pytorch.mixed_precision``.

``torch.autocast`` runs convolutions and products in fp16, and ``torch.amp.GradScaler`` scales the loss so that small
gradients do not vanish: it halves the scale, and leaves a step out, where a gradient overflows.
"""

from __future__ import annotations

import sys

import torch

from tools.examples.pytorch.models import images, network
from tools.examples.pytorch.paths import Steps, arguments, compare, device, train_here

_MODULE = "tools.examples.pytorch.mixed_precision"
#: Too large on purpose: the first steps show how the scale is found.
_FIRST_SCALE = 2.0**20


def main(argv: list[str] | None = None) -> int:
    given = arguments(__doc__ or "", steps=10, batch=64, size=32).parse_args(argv)
    options = ["--steps", str(given.steps), "--batch", str(given.batch), "--size", str(given.size)]
    if given.only is None:
        return compare(_MODULE, given, options)
    train_here(given.only, lambda: train(given.steps, given.batch, given.size))
    return 0


def train(steps: int, batch: int, size: int) -> Steps:
    place = device()
    model = network().to(place, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler(place.type, init_scale=_FIRST_SCALE)
    found = Steps()
    for step in range(steps):
        x, target = (tensor.to(place) for tensor in images(batch, step, size))
        with found.timed():
            with torch.autocast(place.type, dtype=torch.float16):
                loss = torch.nn.functional.cross_entropy(model(x), target)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        found.losses.append(loss.item())
    found.notes.append(f"the loss is scaled by {scaler.get_scale():.0f} in the end")
    return found


if __name__ == "__main__":
    sys.exit(main())
