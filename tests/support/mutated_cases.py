"""Lines of cases, changed at random: other values of the same key, odd and hostile ones, and single characters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from random import Random

from lowdnn.cases import case_families

#: Numbers and lists of numbers that most keys take; combinations of them often contradict each other.
_PLAIN = (
    *("0", "1", "2", "3", "5", "7", "9", "64", "100", "10000000", "99999999999", "1e6", "1/2", "7/3", "0.1"),
    *("0x1", "1x1", "2x3", "3x2x1", "1x2x3x4", "0,1", "1,2", "2,3", "4,7", "1:2"),
)
_HOSTILE = (
    *("", "-1", "1e9999999", "1e99999999999999", "9" * 30, "9" * 5000, "9223372036854775807", "9223372036854775808"),
    *("nan", "inf", "-inf", "1e308", "1e-400", ".5", "1/0", "0/1", "-1:1", ":", "x", ",", "+", "=", "relu+", "0,0"),
    *("\x00", "\x1b[2J", "\u2028", "\u0663", "1_000", "\u00b9", "2x3x4x5x6x7x8x9x10", "0x0"),
)
_CHARACTERS = "0123456789x,:+-/=e. \x1b"


def lines_of(folder: Path) -> list[str]:
    """Every case of a folder's files."""
    lines = [
        line.split("#")[0].strip() for file in sorted(folder.glob("*.txt")) for line in file.read_text().splitlines()
    ]
    return [line for line in lines if line]


class Mutations:
    """Mutations of ``lines``, each from a seed of its own."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        words = [word.partition("=") for line in lines for word in line.split()[1:]]
        self._values = {name: sorted({value for key, _, value in words if key == name}) for name, _, _ in words}

    def line(self, seed: int) -> str:
        draw = Random(seed)
        line = draw.choice(self._lines)
        if draw.random() < 0.05:
            place = draw.randrange(len(line))
            return line[:place] + draw.choice(_CHARACTERS) + line[place + draw.randint(0, 1) :]
        family, *words = line.split()
        for _ in range(draw.randint(1, 3)):
            key = draw.choice([field.name for field in fields(case_families()[family])])
            words = [word for word in words if not word.startswith(f"{key}=")]
            if draw.random() < 0.9:
                words.append(f"{key}={self._value(draw, key)}")
        return " ".join([family, *words])

    def _value(self, draw: Random, key: str) -> str:
        kind = draw.random()
        if kind < 0.6 and key in self._values:
            return draw.choice(self._values[key])
        return draw.choice(_PLAIN if kind < 0.9 else _HOSTILE)
