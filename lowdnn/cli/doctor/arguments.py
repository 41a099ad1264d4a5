"""The options of ``lowdnn doctor``."""

from __future__ import annotations

import argparse


def add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds them to the parser of ``lowdnn doctor``."""
    parser.add_argument(
        "--device",
        choices=("auto", "cuda", "emulated"),
        help="where programs are to run (default: LOWDNN_DEVICE); with cuda, a machine without a GPU fails",
    )
    parser.add_argument("--require", metavar="FILE", help="versions that must be there: a name and a range in a line")
    parser.add_argument("--strict", action="store_true", help="exit 1 for warnings and unknowns, too")
    parser.add_argument("--json", action="store_true", help="one JSON object")
