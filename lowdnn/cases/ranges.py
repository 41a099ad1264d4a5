"""Cases whose numbers are ranges: lines that stand for the shapes of a workload.

    matmul m=1..8192 n=4096 k=4096 dtype=bf16       every m from 1 to 8192
    norm dims=1..4096x768..8192/64 mode=layer       rows, and sizes that are 768 and multiples of 64 more

A range is drawn from evenly: half of the time in its numbers, which are mostly large, and half of the time in their
logarithms, so that small ones are there too. Several ranges of a line vary independently. The ends of the ranges come
first, in every combination.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import count, islice
from math import exp, log
from typing import NamedTuple

from lowdnn.documents import shown
from lowdnn.status import BadParamError

_RANGE = re.compile(r"(?<!\d)(\d{1,15})\.\.(\d{1,15})(?:/(\d{1,15}))?(?!\d)")
_MOST_RANGES = 8
#: The share that ``at`` maps to the last value of a range.
_LAST = 1 - 2**-50
#: Samples that are drawn at most for each line that is wanted, since samples may repeat.
_TRIES = 8


class _Range(NamedTuple):
    """The values least, least + step, ..., of which there are ``values``."""

    least: int
    step: int
    values: int

    def at(self, share: float, *, is_logarithmic: bool) -> str:
        """The value at a share, in [0, 1), of the range or of the range's logarithms."""
        if not is_logarithmic:
            return str(self.least + self.step * int(share * self.values))
        first = max(self.least, 1)
        found = first * exp(share * log((self.least + self.step * self.values) / first))
        return str(self.least + self.step * min(int((found - self.least) / self.step), self.values - 1))


def has_ranges(line: str) -> bool:
    return not line.startswith("graph ") and _RANGE.search(line) is not None


def lines_in(line: str, most: int) -> list[str]:
    """At most ``most`` different lines with a number in the place of each range; the line itself where it has none.

    Raises BadParamError for a range whose end lies before its beginning, or with a step of 0.
    """
    if not has_ranges(line):
        return [line]
    ranges = [_range(found) for found in _RANGE.finditer(line)]
    if len(ranges) > _MOST_RANGES:
        raise BadParamError.at("case", expected=f"at most {_MOST_RANGES} ranges", got=shown(line))
    points = (_point(ranges, number) for number in count())
    found: dict[tuple[str, ...], None] = {}
    for point in islice(points, _TRIES * most):
        found[point] = None
        if len(found) == most:
            break
    return [_filled(line, point) for point in found]


def _range(found: re.Match[str]) -> _Range:
    least, most, step = int(found[1]), int(found[2]), int(found[3] or 1)
    if most < least or not step:
        raise BadParamError.at("case", expected="first..last or first..last/step, with step > 0", got=found[0])
    return _Range(least, step, (most - least) // step + 1)


def _point(ranges: list[_Range], number: int) -> tuple[str, ...]:
    """The value of each range at sample ``number``.

    The first 2^R samples of R ranges are the combinations of their ends: bit i of ``number`` says whether range i is at
    its last value. Later samples are drawn: bit i says whether range i is drawn in its logarithms.
    """
    flags = [bool(number >> place & 1) for place in range(len(ranges))]
    if number < 2 ** len(ranges):
        return tuple(
            each.at(is_last * _LAST, is_logarithmic=False) for each, is_last in zip(ranges, flags, strict=True)
        )
    shares = (number * step % 1 for step in _steps(len(ranges)))
    drawn = zip(ranges, shares, flags, strict=True)
    return tuple(each.at(share, is_logarithmic=flag) for each, share, flag in drawn)


@cache
def _steps(dimensions: int) -> tuple[float, ...]:
    """Steps whose multiples modulo 1 fill a cube evenly: powers of 1 / x, where x^(dimensions + 1) = x + 1.

    In one dimension x is the golden ratio. Source: Roberts, "The unreasonable effectiveness of quasirandom sequences".
    """
    root = 2.0
    for _ in range(64):
        root = (1 + root) ** (1 / (dimensions + 1))
    return tuple(root ** -(power + 1) for power in range(dimensions))


def _filled(line: str, point: tuple[str, ...]) -> str:
    values = iter(point)
    return _RANGE.sub(lambda _: next(values), line)
