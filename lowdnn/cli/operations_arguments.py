"""The action of ``lowdnn operations`` and its options."""

from __future__ import annotations

import argparse


def add_operations_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds them to the parser of ``lowdnn operations``; the action is ``action``."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    text = "write Prometheus' rules, Alertmanager's routes and Grafana's dashboards to a directory"
    exported = actions.add_parser("export", help=text, description=f"{text[0].upper()}{text[1:]}.")
    exported.add_argument("directory", metavar="DIRECTORY", help="made where it is missing")
    exported.add_argument(
        "--scale",
        type=int,
        default=1,
        metavar="N",
        help="divide windows, intervals and waits by N, for a trial in which seconds stand for minutes (60)",
    )
    exported.add_argument("--replace", action="store_true", help="replace files of these names that are there")
    exported.add_argument("--json", action="store_true", help="one JSON object")
