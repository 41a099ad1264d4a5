"""Parts of a long run that several processes share."""

from __future__ import annotations

from argparse import ArgumentTypeError


def shard(text: str) -> tuple[int, int]:
    """(I, N) from the option I/N: the I-th of N parts. Raises ArgumentTypeError for other texts."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise ArgumentTypeError(f"expected I/N with 1 <= I <= N, got {text!r}")
    return int(number), int(count)
