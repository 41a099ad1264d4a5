"""Scheduling policies: every choice that a GPU leaves open, made in one reproducible way.

``lockstep``: all lanes together, the earliest block first; fast, and blind to missing barriers.
``warp-serial(seed)``: one warp (of every CTA of the batch) as far as it goes, then another one picked by the seed.
``cta-reverse``: one CTA after the other, from the last.
``fuzz(seed)``: the seed draws the unit that runs (a warp of all CTAs, a warp of one CTA, a warpgroup) and how often it
is interrupted between two blocks. It draws whether diverged lanes alternate, and when and in which order asynchronous
operations land.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from lowdnn.driver.emulated.lanes import WARP
from lowdnn.driver.emulated.memory.arena import Array
from lowdnn.driver.emulated.running.batch import Batch
from lowdnn.status import BadParamError

_FORM = re.compile(r"(lockstep|cta-reverse|(warp-serial|fuzz)\((\d{1,9})\))")
_WARPGROUP = 4 * WARP
#: Most units among which ``fuzz`` alternates; more would be slower and find no more faults.
_FUZZ_UNITS = 32


@dataclass(frozen=True)
class Policy:
    """``str(policy)`` gives the text that ``parse`` takes."""

    name: str
    seed: int = 0

    @staticmethod
    def parse(text: str) -> Policy:
        """Raises BadParamError for anything but ``lockstep``, ``cta-reverse``, ``warp-serial(N)``, ``fuzz(N)``."""
        match = _FORM.fullmatch(text)
        if match is None:
            raise BadParamError.at(
                "EmulatedDriver.policy",
                expected="lockstep, cta-reverse, warp-serial(<seed>) or fuzz(<seed>)",
                got=repr(text),
                hint="the seed is a number of at most nine digits, as in warp-serial(7)",
            )
        return Policy(match[2], int(match[3])) if match[2] else Policy(match[1])

    def __str__(self) -> str:
        return f"{self.name}({self.seed})" if self.name in ("warp-serial", "fuzz") else self.name

    @property
    def reverses_ctas(self) -> bool:
        return self.name == "cta-reverse"

    def launch_picker(self) -> LaunchPicker:
        """The picker among launches that several devices have under way."""
        return LaunchPicker(self)

    def picker(self, landing: str | None = None) -> Picker:
        """The picker of one launch.  landing: ``late``, ``early``, or None for the policy's own, which is ``late`` or,
        under ``fuzz``, drawn."""
        if self.name == "fuzz":
            return FuzzPicker(self.seed, landing)
        return Picker(self, early=landing == "early")


class Picker:
    """Makes the choices of one launch: which unit runs, when an asynchronous operation lands."""

    #: Whether ``preempts`` and ``pick_block`` ever differ from the default; read once, so that other policies do not
    #: call them.
    interrupts = False

    def __init__(self, policy: Policy, early: bool = False) -> None:
        self._policy = policy
        self._early = early
        self._random = random.Random(policy.seed) if policy.name == "warp-serial" else None

    def units(self, batch: Batch) -> tuple[Array | None, int]:
        """(unit of every lane, number of units): lanes of one unit run together. None: all lanes are one unit."""
        if self._policy.name == "warp-serial":
            return batch.thread // WARP, batch.geometry.cta_lanes // WARP
        if self._policy.name == "cta-reverse":
            return batch.slot, batch.cta_count
        return None, 1

    def pick(self, ready: list[int]) -> int:
        """Picks one of the units that have lanes ready to run (ascending numbers)."""
        return self._random.choice(ready) if self._random else ready[-1]

    def pick_block(self, ready: Iterable[int]) -> int:
        """Picks one of the basic blocks at which lanes of a unit are ready."""
        return min(ready)

    def preempts(self) -> bool:
        """Whether the running unit is interrupted after this basic block."""
        return False

    def lands_at_once(self) -> bool:
        """Whether an asynchronous operation that is being issued lands before the next instruction."""
        return self._early

    def lands_now(self, under_way: int) -> int | None:
        """The index (0: the oldest) of the pending operation that lands between two basic blocks although nobody waits
        for it, or None."""
        return None

    def lands_next(self, under_way: int) -> int:
        """The index (0: the oldest) of the pending operation that lands when no lane can run."""
        return 0


class LaunchPicker:
    """Picks the launch that goes on: of the first device, or as the policy has it of the last one or of any. It goes on
    until its lanes wait; ``interrupts``: or is interrupted after each turn."""

    def __init__(self, policy: Policy) -> None:
        self.interrupts = policy.name == "fuzz"
        self._last_first = policy.reverses_ctas
        self._random = random.Random(policy.seed) if policy.name in ("warp-serial", "fuzz") else None

    def pick(self, devices: list[int]) -> int:
        """The index of the one that goes on, by the devices of those that can."""
        if self._random is not None:
            return self._random.randrange(len(devices))
        return devices.index(max(devices) if self._last_first else min(devices))


class FuzzPicker(Picker):
    """Draws everything from ``seed``; the same seed gives the same run."""

    interrupts = True

    def __init__(self, seed: int, landing: str | None = None) -> None:
        super().__init__(Policy("fuzz", seed))
        draw = self._draw = random.Random(seed)
        # Cycles of different lengths, so that a few seeds in a row try every unit with every landing.
        self._unit = ("warp", "warp of a CTA", "warpgroup")[seed % 3]
        self._preemption = draw.choice((0.0, 0.05, 0.5))
        self._split = draw.choice((0.0, 0.1))
        self._landing = landing or ("any", "late", "any", "early")[seed % 4]

    def units(self, batch: Batch) -> tuple[Array | None, int]:
        if self._unit == "warp":
            unit = batch.thread // WARP
        elif self._unit == "warpgroup":
            unit = batch.thread // _WARPGROUP
        else:
            unit = batch.lanes // WARP
        count = int(unit.max()) + 1
        if count <= _FUZZ_UNITS:
            return unit, count
        folded = [number % _FUZZ_UNITS for number in range(count)]
        self._draw.shuffle(folded)
        return np.array(folded)[unit], _FUZZ_UNITS

    def pick(self, ready: list[int]) -> int:
        return self._draw.choice(ready)

    def pick_block(self, ready: Iterable[int]) -> int:
        return self._draw.choice(sorted(ready)) if self._draw.random() < self._split else min(ready)

    def preempts(self) -> bool:
        return self._draw.random() < self._preemption

    def lands_at_once(self) -> bool:
        return self._landing == "early" or (self._landing == "any" and self._draw.random() < 0.3)

    def lands_now(self, under_way: int) -> int | None:
        if self._landing != "any" or self._draw.random() >= 0.3:
            return None
        return self._draw.randrange(under_way)

    def lands_next(self, under_way: int) -> int:
        return 0 if self._landing == "early" else self._draw.randrange(under_way)
