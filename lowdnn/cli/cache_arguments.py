"""The actions of ``lowdnn cache`` and their options."""

from __future__ import annotations

import argparse


def add_cache_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds them to the parser of ``lowdnn cache``; the chosen one is ``action``."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def add(name: str, text: str) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        action.add_argument("--json", action="store_true", help="one JSON object")
        return action

    add("list", "the entries, those used last first")
    add("size", "files and bytes, and the most bytes that they may take up")
    trimmed = add("trim", "remove the entries used longest ago")
    trimmed.add_argument("--bytes", metavar="N", help="until the others take up at most N bytes (500M, 2G)")
    trimmed.add_argument("--age", metavar="N", help="those not used for this long (90m, 12h, 30d, 8w)")
    add("clear", "remove every entry")
    verified = add("verify", "read every entry and tell those that are damaged; exit 1 where damage is left")
    verified.add_argument("--repair", action="store_true", help="remove what is damaged")
