"""When enough was timed: runners that are sure to be slower than the leader leave, and the race ends when none is left
that may be faster.

In a round every runner is timed once, so that a clock which rises or falls is the same for all. The order differs from
round to round, since the runner before leaves its marks in the caches. The logarithm of a runner's time over the
leader's in the same round counts: its mean m and the deviation s of the mean. With 99 % confidence the runner is slower
by at least m - t s, and faster by at most t s - m, where t is Student's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from math import log, sqrt
from random import Random
from statistics import fmean, median, stdev
from typing import Generic, TypeVar

RunnerT = TypeVar("RunnerT", bound=Hashable)

#: Student's t that is exceeded with 1 % probability, for 1, 2, ... degrees of freedom; for more the normal one's.
_STUDENT = (31.82, 6.965, 4.541, 3.747, 3.365, 3.143, 2.998, 2.896, 2.821, 2.764, 2.718, 2.681, 2.650, 2.624, 2.602)
_NORMAL = 2.326

#: A runner that is slower than the leader by this share in one round leaves at once: no noise is so large.
_HOPELESS = 0.25
#: Rounds before a runner may leave otherwise, or the race may end.
_FEWEST_ROUNDS = 6
MOST_ROUNDS = 30
#: The share by which the winner may be slower than the fastest: about the difference of two timings of one plan.
TOLERANCE = 0.005


@dataclass
class Race(Generic[RunnerT]):
    """The times of each runner by round, in microseconds; the first runner of two with equal times leads.

    tolerance: the share by which the winner may be slower than the fastest.
    """

    runners: list[RunnerT]
    tolerance: float = TOLERANCE
    rounds: int = 0
    times: dict[RunnerT, list[float]] = field(default_factory=dict)

    @property
    def leader(self) -> RunnerT:
        """The runner with the least median of those that are still in the race."""
        return min(self.runners, key=self.us)

    @property
    def is_over(self) -> bool:
        """Whether nobody left can be faster than the leader by more than the tolerance, or there were many rounds."""
        if self.rounds >= MOST_ROUNDS or (self.rounds >= _FEWEST_ROUNDS and len(self.runners) < 2):
            return True
        leader = self.leader
        others = (runner for runner in self.runners if runner != leader)
        return self.rounds >= _FEWEST_ROUNDS and all(self._lead(runner)[0] >= -self.tolerance for runner in others)

    def us(self, runner: RunnerT) -> float:
        """The median of a runner's times; infinite where there are none."""
        return median(self.times[runner]) if self.times.get(runner) else float("inf")

    def add(self, round_us: Mapping[RunnerT, float]) -> None:
        """Takes one time of each runner that is left, and drops those that are sure to be slower than the leader."""
        self.rounds += 1
        for runner in self.runners:
            self.times.setdefault(runner, []).append(round_us[runner])
        leader = self.leader
        self.runners = [runner for runner in self.runners if runner == leader or self._may_win(runner)]

    def _may_win(self, runner: RunnerT) -> bool:
        least, mean = self._lead(runner)
        if self.rounds == 1:
            return mean < log(1 + _HOPELESS)
        return self.rounds < _FEWEST_ROUNDS or least <= 0.0

    def _lead(self, runner: RunnerT) -> tuple[float, float]:
        """By how much the leader is ahead of a runner, as logarithms: at least, with confidence, and in the mean."""
        pairs = zip(self.times[runner], self.times[self.leader], strict=True)
        ahead = [log(us / leader_us) for us, leader_us in pairs]
        mean, freedom = fmean(ahead), len(ahead) - 1
        if not freedom:
            return -float("inf"), mean
        student = _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else _NORMAL
        return mean - student * stdev(ahead) / sqrt(len(ahead)), mean


def run(race: Race[RunnerT], time_us: Callable[[RunnerT], float], has_time: Callable[[], bool]) -> None:
    """Runs rounds until the race is over, or until there is no time for another one. Every runner is timed once."""
    order = Random(0)
    while not race.is_over and (not race.rounds or has_time()):
        race.add({runner: time_us(runner) for runner in order.sample(race.runners, len(race.runners))})
