"""The options of ``lowdnn bench``."""

from __future__ import annotations

import argparse

from lowdnn.bench.suites import DEVICE_SUITES


def add_bench_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds them to the parser of ``lowdnn bench``."""
    _add_what(parser)
    parser.add_argument("--device", choices=("auto", "cuda", "emulated"), help="where to run (default: LOWDNN_DEVICE)")
    parser.add_argument(
        "--rounds", type=int, default=20, metavar="N", help="times that each case is timed (default 20)"
    )
    parser.add_argument("--commit", default="", help="commit of the tree, for the record")
    parser.add_argument("--json", action="store_true", help="the run, or the verdicts, as one JSON object")
    parser.add_argument("--csv", metavar="FILE", help="the times as rows")
    parser.add_argument("--save", metavar="FILE", help="add the run to a file of saved runs")
    parser.add_argument("--plot", metavar="FOLDER", help="pictures of the run, and of the file of saved runs, as SVG")
    parser.add_argument(
        "--compare",
        metavar="BASE",
        help="a file of saved runs, or a checkout or wheel that is timed in turns with this lowdnn; exit 1 where a "
        "case is slower",
    )
    parser.add_argument(
        "--pairs", type=int, default=5, metavar="N", help="pairs of processes for a checkout or wheel (default 5)"
    )


def _add_what(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cases", nargs="*", metavar="CASE", help="a case in quotes, or @FILE with one a line")
    parser.add_argument("--suite", action="append", default=[], choices=DEVICE_SUITES, help="a list of the package")
    parser.add_argument("--networks", action="store_true", help="the convolution layers of real networks")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="classes and networks named so")
    parser.add_argument("--sample", type=int, metavar="N", help="at most N cases of each class, by chance")
    parser.add_argument("--seed", type=int, default=4, help="of --sample (default 4)")
