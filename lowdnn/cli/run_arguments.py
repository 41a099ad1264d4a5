"""The options of ``lowdnn run``."""

from __future__ import annotations

import argparse


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds them to the parser of ``lowdnn run``."""
    parser.add_argument("cases", nargs="+", metavar="CASE", help="a case in quotes, or @FILE with one a line")
    parser.add_argument("--device", choices=("auto", "cuda", "emulated"), help="where to run (default: LOWDNN_DEVICE)")
    parser.add_argument("--check", action="store_true", help="compare with the float64 reference; exit 1 if it differs")
    parser.add_argument(
        "--exact", action="store_true", help="integer-filled data, compared bit for bit; implies --check"
    )
    parser.add_argument("--engine", help="this engine instead of the heuristics' first choice; 'all' for each that can")
    parser.add_argument("--plan", metavar="NAME", help="this plan, by the name that results and logs have for it")
    parser.add_argument(
        "--policy",
        help="scheduling policy of the emulated device: lockstep, warp-serial(7), cta-reverse, fuzz(7); with ,early or "
        ",late when copies land; with ,races data races are looked for",
    )
    parser.add_argument(
        "--sanitize",
        action="store_true",
        help="on the emulated device, under many schedules, with every check; one verdict for each",
    )
    parser.add_argument(
        "--schedules", type=int, default=4, metavar="N", help="fuzzed schedules of --sanitize (default 4)"
    )
    parser.add_argument("--arch", help="architecture of the emulated device: sm_80, sm_90a, sm_120...")
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="times are medians of N executes")
    parser.add_argument("--seed", type=int, help="seed of the input data (default: drawn and printed)")
    parser.add_argument("--explain", action="store_true", help="why the plan was chosen, before its result")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
