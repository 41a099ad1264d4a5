"""The actions of ``lowdnn cache`` and their options."""

from __future__ import annotations

import argparse

_TRUST = (
    "Plans are made again here and compared, and no text is compiled, but the machine code and the PTX of a bundle run"
    " as they are, with all rights of the programs that use them. So import only what you, or somebody whom you trust,"
    " has made, with --trust. The file has to be yours or root's, and no one else may write it."
)


def add_cache_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds them to the parser of ``lowdnn cache``; the chosen one is ``action``."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def add(name: str, text: str, more: str = "") -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}. {more}")
        action.add_argument("--json", action="store_true", help="one JSON object")
        return action

    add("list", "the entries, those used last first")
    add("size", "files and bytes, and the most bytes that they may take up")
    trimmed = add("trim", "remove the entries used longest ago")
    trimmed.add_argument("--bytes", metavar="N", help="until the others take up at most N bytes (500M, 2G)")
    trimmed.add_argument("--age", metavar="N", help="those not used for this long (90m, 12h, 30d, 8w)")
    add("clear", "remove every entry")
    exported = add("export", "make a bundle of the plans, PTX and machine code of cases; it takes no device")
    exported.add_argument(
        "cases", nargs="*", metavar="CASE", help="a case in quotes, with ranges as in lowdnn kernels, or @FILE"
    )
    exported.add_argument(
        "--log", action="append", default=[], metavar="FILE", help="the cases of a file that LOWDNN_RECORD_CASES names"
    )
    exported.add_argument("--arch", required=True, help="the architecture that it is for: sm_80, sm_90a...")
    exported.add_argument("--sm-count", type=int, metavar="N", help="its multiprocessors (default: the usual ones)")
    exported.add_argument("--product", metavar="NAME", help="the GPU whose tuning records count")
    exported.add_argument(
        "--max-kernels", type=int, metavar="N", help="at most N kernels, as lowdnn kernels chooses them"
    )
    exported.add_argument(
        "--shapes", type=int, default=60, metavar="N", help="shapes of a case with ranges (default 60)"
    )
    exported.add_argument("--jobs", type=int, metavar="N", help="kernels compiled at a time (default: one a processor)")
    exported.add_argument("-o", "--output", required=True, metavar="FILE", help="the file to write")
    imported = add("import", "put a bundle into the cache, so that programs take its kernels and plans", _TRUST)
    imported.add_argument("file", metavar="FILE", help="what lowdnn cache export has written")
    imported.add_argument("--trust", action="store_true", help="says that you trust the maker of the file")
    verified = add("verify", "read every entry and tell those that are damaged; exit 1 where damage is left")
    verified.add_argument("--repair", action="store_true", help="remove what is damaged")
