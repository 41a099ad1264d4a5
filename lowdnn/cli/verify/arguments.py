"""The options of ``lowdnn verify``."""

from __future__ import annotations

import argparse


def add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds them to the parser of ``lowdnn verify``."""
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help="a case in quotes, or @FILE with one a line (default: small ones)"
    )
    parser.add_argument("--device", choices=("auto", "cuda", "emulated"), help="where to run (default: LOWDNN_DEVICE)")
    parser.add_argument("--arch", help="architecture of the emulated device: sm_80, sm_90a, sm_120...")
    parser.add_argument("--seed", type=int, help="seed of the input data (default: drawn and printed)")
    parser.add_argument("--exact", action="store_true", help="integer-filled data, or saved outputs, bit for bit")
    parser.add_argument("--baseline", metavar="FILE", help="compare with the outputs that --save kept, for their data")
    parser.add_argument("--save", metavar="FILE", help="keep data and outputs, if all are right")
    parser.add_argument("--metrics", metavar="FILE", help="the verdicts for Prometheus, as a text file")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
