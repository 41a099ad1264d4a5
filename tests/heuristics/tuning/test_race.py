"""Races of drawn times: the fastest wins within the tolerance, whatever the noise, and without needless rounds."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from lowdnn.heuristics.tuning.race import MOST_ROUNDS, TOLERANCE, Race, run


def raced(us: dict[str, float], noise: float, drift: float, seed: int) -> tuple[Race[str], Counter[str]]:
    """A race of runners with these times, a share of noise, and a clock that changes by ``drift`` in each round."""
    random, calls = Random(seed), Counter[str]()
    race = Race(list(us))

    def time_us(runner: str) -> float:
        calls[runner] += 1
        return us[runner] * (1 + drift * race.rounds) * random.lognormvariate(0.0, noise)

    run(race, time_us, lambda: True)
    return race, calls


@pytest.mark.parametrize("noise", [0.0, 0.002, 0.01])
@pytest.mark.parametrize("drift", [0.0, 0.03])
def test_the_winner_is_within_the_tolerance_of_the_fastest(noise: float, drift: float) -> None:
    random, losses = Random(7), []
    for seed in range(200):
        us = {str(n): 20.0 * random.choice((1.0, 1.0, 1.004, 1.01, 1.02, 1.1, 2.0)) for n in range(8)}
        race, _ = raced(us, noise, drift, seed)
        losses.append(us[race.leader] / min(us.values()) - 1)
    # A few rounds hide a difference of about one standard deviation, and rarely.
    assert sum(loss > TOLERANCE + noise for loss in losses) <= 2
    assert sorted(losses)[len(losses) * 9 // 10] <= TOLERANCE


def test_slow_runners_cost_one_round_and_clear_races_few() -> None:
    race, calls = raced({"fast": 10.0, "near": 10.8, "slow": 15.0, "slowest": 40.0}, noise=0.002, drift=0.0, seed=1)
    assert race.leader == "fast"
    assert (calls["slow"], calls["slowest"]) == (1, 1)
    assert calls["near"] <= 6
    assert race.rounds <= 6


def test_equal_runners_end_by_confidence_or_by_the_number_of_rounds() -> None:
    race, _ = raced({"a": 10.0, "b": 10.0, "c": 10.0}, noise=0.0, drift=0.0, seed=1)
    assert (race.leader, race.rounds) == ("a", 6)
    rounds = [raced({"a": 10.0, "b": 10.0}, noise=0.05, drift=0.0, seed=seed)[0].rounds for seed in range(20)]
    assert sorted(rounds)[5:] == [MOST_ROUNDS] * 15


def test_without_time_there_is_one_round() -> None:
    race = Race(["a", "b"])
    run(race, {"a": 2.0, "b": 1.0}.__getitem__, lambda: False)
    assert (race.leader, race.rounds, race.us("a")) == ("b", 1, 2.0)


def test_a_single_runner_is_timed_all_the_same() -> None:
    race = Race(["alone"])
    run(race, lambda _: 3.0, lambda: True)
    assert (race.leader, race.us("alone")) == ("alone", 3.0)
