"""The options of ``lowdnn tune``."""

from __future__ import annotations

import argparse
import os

ALL_NETWORKS = "all"
_MOST_PROCESSES = 8


def add_tune_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds them to the parser of ``lowdnn tune``."""
    parser.add_argument("cases", nargs="*", metavar="CASE", help="a case in quotes, or @FILE with one a line")
    parser.add_argument("--log", metavar="FILE", help="the cases of a file of LOWDNN_RECORD_CASES, longest work first")
    parser.add_argument(
        "--networks",
        nargs="?",
        const=ALL_NETWORKS,
        metavar="NAMES",
        help="the convolutions of real networks in three directions: all (the default), or resnet50,vgg16...",
    )
    parser.add_argument("--batch", type=int, metavar="N", help="images of the networks' layers (default: the table's)")
    parser.add_argument("--device", choices=("auto", "cuda", "emulated"), help="where to tune (default: LOWDNN_DEVICE)")
    parser.add_argument("--arch", help="architecture of the emulated device: sm_80, sm_90a, sm_120...")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="begin no case after this time")
    parser.add_argument("--workspace-limit", type=int, metavar="BYTES", help="the most workspace of a plan")
    parser.add_argument("--kernels", type=int, default=16, metavar="N", help="kernels to compile a case (default 16)")
    processes = min(os.cpu_count() or 1, _MOST_PROCESSES)
    parser.add_argument(
        "--processes", type=int, default=processes, metavar="N", help=f"that compile beforehand (default {processes})"
    )
    parser.add_argument("--again", action="store_true", help="also cases that have a record already")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    files = parser.add_mutually_exclusive_group()
    files.add_argument("--merge", nargs="+", metavar="FILE", help="put the records of the others into the first file")
    files.add_argument("--prune", metavar="FILE", help="drop records that do not hold any more, and damaged lines")
    files.add_argument("--diff", nargs=2, metavar="FILE", help="which choices changed between two files, how much")
    parser.add_argument(
        "--least-gain", type=float, default=1.0, metavar="X", help="--prune drops those under X times the first choice"
    )
