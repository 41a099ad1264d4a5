"""The arguments of ``lowdnn demo``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

#: The value of ``--devices`` in a process that a launcher started.
ENVIRONMENT: Final = "environment"
_MOST_RANKS = 1024


def add_demo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("auto", "cuda", "emulated"), help="where to run (default: LOWDNN_DEVICE)")
    parser.add_argument(
        "--devices",
        type=_devices,
        default=1,
        metavar="N",
        help="train on N GPUs or emulated devices (default 1); 'environment': as one rank of torchrun, mpirun or srun",
    )
    parser.add_argument(
        "--deterministic", action="store_true", help="the same bits on 1, 2, 4 and 8 devices, by sums in a fixed order"
    )
    parser.add_argument("--captured", action="store_true", help="run each step as one captured CUDA graph")
    parser.add_argument("--mixed-precision", action="store_true", help="activations in fp16, with a dynamic loss scale")
    parser.add_argument("--steps", type=int, default=70, metavar="N", help="steps of the training (default 70)")
    parser.add_argument("--until", type=int, metavar="STEP", help="end after this step of the training")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights and of the order (default 0)")
    parser.add_argument(
        "--checkpoint", type=Path, metavar="FILE", help="go on from FILE if it is there; write it at each line printed"
    )


def _devices(text: str) -> int | str:
    """A number of ranks, or ``environment``."""
    if text == ENVIRONMENT:
        return text
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= _MOST_RANKS):
        raise argparse.ArgumentTypeError(f"expected 1 to {_MOST_RANKS}, or {ENVIRONMENT}, got {text!r}")
    return int(text)
