"""The options of ``lowdnn kernels``."""

from __future__ import annotations

import argparse


def add_kernels_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``lowdnn kernels`` to its parser."""
    parser.add_argument(
        "cases",
        nargs="+",
        metavar="CASE",
        help="a case in quotes, in which m=1..8192 is a range and k=64..4096/64 one of multiples, or @FILE with one a "
        "line, such as a file of LOWDNN_RECORD_CASES",
    )
    parser.add_argument("--max-kernels", type=int, metavar="N", help="at most N kernels (default: as many as it takes)")
    parser.add_argument("--shapes", type=int, default=60, metavar="N", help="shapes of a case with ranges (default 60)")
    parser.add_argument("--build", action="store_true", help="compile the kernels into the disk cache")
    parser.add_argument("--device", choices=("auto", "cuda", "emulated"), help="for which (default: LOWDNN_DEVICE)")
    parser.add_argument("--arch", help="architecture of the emulated device: sm_80, sm_90a, sm_120...")
    parser.add_argument("--json", action="store_true", help="one JSON object")
