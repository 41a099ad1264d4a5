"""The table of cases: ``cases.txt``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lowdnn.bench.suites import sections

_TABLE = Path(__file__).with_name("cases.txt")


@dataclass(frozen=True)
class Case:
    """A line of the table. framework: its section.  work: the computation.  settings: by name, as they are written."""

    framework: str
    text: str
    work: str
    settings: Mapping[str, str]

    def number(self, name: str, default: int = 0) -> int:
        return int(self.settings.get(name, default))

    def word(self, name: str, default: str = "") -> str:
        return self.settings.get(name, default)

    def image(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of a convolution's input and filter, channels in front, of ``dims`` (2) spatial axes."""
        dims, groups = self.number("dims", 2), self.number("groups", 1)
        c, k, taps = self.number("c"), self.number("k"), (self.number("r"),) * dims
        filters = (c, k // groups, *taps) if self.number("transposed") else (k, c // groups, *taps)
        return (self.number("n"), c, *(self.number("size"),) * dims), filters


def parse(framework: str, text: str) -> Case:
    work, *settings = text.split()
    return Case(framework, text, work, dict(setting.split("=") for setting in settings))


def table() -> tuple[Case, ...]:
    """All cases, in the order of the table."""
    return tuple(parse(framework, text) for framework, text in sections(_TABLE.read_text("utf-8").splitlines()))
