"""Scheduling policies: in which order the warps of a batch run.

``lockstep``: all lanes together, the earliest block first; fast, and blind to missing barriers.
``warp-serial(seed)``: one warp (of every CTA of the batch) as far as it goes, then another one picked by the seed.
``cta-reverse``: one CTA after the other, from the last.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from lowdnn.driver.emulated.memory.arena import Array
from lowdnn.driver.emulated.running.batch import WARP, Batch
from lowdnn.status import BadParamError

_FORM = re.compile(r"(lockstep|cta-reverse|warp-serial\((\d+)\))")


@dataclass(frozen=True)
class Policy:
    """``str(policy)`` gives the text that ``parse`` takes."""

    name: str
    seed: int = 0

    @staticmethod
    def parse(text: str) -> Policy:
        """Raises BadParamError for anything but ``lockstep``, ``warp-serial(N)``, ``cta-reverse``."""
        match = _FORM.fullmatch(text)
        if match is None:
            raise BadParamError.at(
                "EmulatedDriver.policy",
                expected="lockstep, cta-reverse or warp-serial(<seed>)",
                got=repr(text),
                hint="the seed is a number, as in warp-serial(7)",
            )
        return Policy("warp-serial", int(match.group(2))) if match.group(2) else Policy(match.group(1))

    def __str__(self) -> str:
        return f"warp-serial({self.seed})" if self.name == "warp-serial" else self.name

    @property
    def reverses_ctas(self) -> bool:
        return self.name == "cta-reverse"

    def units(self, batch: Batch) -> tuple[Array | None, int]:
        """(unit of every lane, number of units): lanes of one unit run together. None: all lanes are one unit."""
        if self.name == "warp-serial":
            return batch.thread // WARP, batch.geometry.cta_lanes // WARP
        if self.name == "cta-reverse":
            return batch.slot, batch.cta_count
        return None, 1

    def picker(self) -> Picker:
        return Picker(self)


class Picker:
    """Chooses the unit to run next."""

    def __init__(self, policy: Policy) -> None:
        self._random = random.Random(policy.seed) if policy.name == "warp-serial" else None

    def pick(self, ready: list[int]) -> int:
        """One of the units that have something to run (ascending numbers)."""
        return self._random.choice(ready) if self._random else ready[-1]
