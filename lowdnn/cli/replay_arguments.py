"""The options of ``lowdnn replay``."""

from __future__ import annotations

import argparse


def add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds them to the parser of ``lowdnn replay``."""
    parser.add_argument("path", metavar="PATH", help="the folder of a dump, as LOWDNN_DUMP makes it")
    parser.add_argument("--device", choices=("auto", "cuda", "emulated"), help="where to run (default: LOWDNN_DEVICE)")
    parser.add_argument("--arch", help="architecture of the emulated device (default: that of the dump)")
    parser.add_argument("--policy", help="one scheduling policy of the emulated device, instead of many")
    parser.add_argument("--schedules", type=int, default=4, metavar="N", help="fuzzed schedules (default 4)")
    parser.add_argument("--seed", type=int, help="seed of schedules, and of data that the dump lacks (default: drawn)")
    parser.add_argument(
        "--rebuild", action="store_true", help="take the plan that is made here, where it is not that of the dump"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
