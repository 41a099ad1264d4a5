"""A convolutional network with tuned convolutions: ``python -m tools.examples.pytorch.cnn``.

``torch.backends.cudnn.benchmark`` asks for the fastest kernels of new shapes. cuDNN's are timed by PyTorch, lowdnn's by
its own tuning, and the first steps take as much longer. Losses and times of all paths stand side by side.
"""

from __future__ import annotations

import sys

import torch

from tools.examples.pytorch.models import images, network
from tools.examples.pytorch.paths import Steps, arguments, compare, device, train_here

_MODULE = "tools.examples.pytorch.cnn"


def main(argv: list[str] | None = None) -> int:
    given = arguments(__doc__ or "", steps=8, batch=64, size=32).parse_args(argv)
    options = ["--steps", str(given.steps), "--batch", str(given.batch), "--size", str(given.size)]
    if given.only is None:
        return compare(_MODULE, given, options)
    train_here(given.only, lambda: train(given.steps, given.batch, given.size))
    return 0


def train(steps: int, batch: int, size: int) -> Steps:
    torch.backends.cudnn.benchmark = True
    place = device()
    model = network().to(place, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    found = Steps()
    for step in range(steps):
        x, target = (tensor.to(place) for tensor in images(batch, step, size))
        with found.timed():
            loss = torch.nn.functional.cross_entropy(model(x), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found.losses.append(loss.item())
    return found


if __name__ == "__main__":
    sys.exit(main())
