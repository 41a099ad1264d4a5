"""Verdicts on drawn times: a planted change is found, and no change is never called one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from lowdnn.bench.report import verdict_table
from lowdnn.bench.runs import BenchClock, CaseTimes, Run
from lowdnn.bench.verdicts import Verdict, Word, against_saved, of_pairs, of_times, paired
from tests.support.data import fresh_seed

#: Draws of each kind. A wrong verdict has a chance of 0.1 % where processes are far apart, and next to none elsewhere.
DRAWS = 1000
PAIRS, ROUNDS = 5, 20

Rounds = list[tuple[float, float]]
Disturb = Callable[[np.random.Generator, np.ndarray], np.ndarray]


def drift(rng: np.random.Generator, times: np.ndarray) -> np.ndarray:
    """The clock goes down, or up, by a tenth over a pair of processes."""
    return times * np.linspace(1, rng.choice([0.9, 1.1]), times.size)


def outliers(rng: np.random.Generator, times: np.ndarray) -> np.ndarray:
    """One time in twenty is three times as long."""
    return np.where(rng.random(times.size) < 0.05, 3 * times, times)


def steps(rng: np.random.Generator, times: np.ndarray) -> np.ndarray:
    """The clock jumps by a tenth at some moment."""
    return np.where(np.arange(times.size) < rng.integers(times.size), times, 1.1 * times)


def noise(rng: np.random.Generator, times: np.ndarray) -> np.ndarray:
    return times


def measured_pairs(
    rng: np.random.Generator, ratio: float, process: float, disturb: Disturb
) -> list[tuple[float, float]]:
    """Pairs of processes with a spread of ``process`` between them, and of a percent between rounds, A B, B A, ..."""
    found = []
    for _ in range(PAIRS):
        both = 100.0 * np.array([1.0, ratio]) * np.exp(rng.normal(0, process, 2))
        order = [(0, 1) if number % 2 == 0 else (1, 0) for number in range(ROUNDS)]
        places = np.array(order).flatten()
        times = disturb(rng, both[places] * np.exp(rng.normal(0, 0.01, places.size)))
        rounds: Rounds = [
            (float(one), float(other)) if first == 0 else (float(other), float(one))
            for (first, _), one, other in zip(order, times[::2], times[1::2], strict=True)
        ]
        found.append(paired(rounds))
    return found


@pytest.mark.parametrize("disturb", [noise, drift, outliers, steps])
@pytest.mark.parametrize("process", [0.001, 0.004, 0.02])
def test_unchanged_pairs_are_never_called_changed(disturb: Disturb, process: float) -> None:
    rng = np.random.default_rng(fresh_seed())
    words = [of_pairs("case", measured_pairs(rng, 1.0, process, disturb)).word for _ in range(DRAWS)]
    wrong = sum(word in (Word.SLOWER, Word.FASTER) for word in words)
    assert wrong <= (4 if process == 0.02 else 1)
    if process == 0.001:
        assert words.count(Word.NONE) > 0.9 * DRAWS


@pytest.mark.parametrize("disturb", [noise, drift, outliers, steps])
@pytest.mark.parametrize(("ratio", "word"), [(1.05, Word.SLOWER), (1 / 1.05, Word.FASTER)])
def test_a_change_of_five_percent_is_found(disturb: Disturb, ratio: float, word: Word) -> None:
    rng = np.random.default_rng(fresh_seed())
    verdicts = [of_pairs("case", measured_pairs(rng, ratio, 0.002, disturb)) for _ in range(DRAWS)]
    found = [verdict for verdict in verdicts if verdict.word is word]
    assert len(found) > 0.95 * DRAWS
    assert not any(verdict.word in {Word.SLOWER, Word.FASTER} - {word} for verdict in verdicts)
    inside = [verdict.low < ratio - 1 < verdict.high for verdict in found]
    assert np.mean(inside) > 0.97


@pytest.mark.parametrize("count", [3, 5, 10])
@pytest.mark.parametrize("spread", [0.002, 0.01])
def test_an_unchanged_run_lies_within_the_spread_of_saved_ones(count: int, spread: float) -> None:
    rng = np.random.default_rng(fresh_seed())
    wrong = 0
    for _ in range(DRAWS // 20):
        times = 100 * np.exp(rng.normal(0, spread, (20, count + 1)))
        before = {str(case): row[:-1].tolist() for case, row in enumerate(times)}
        verdicts = of_times(before, {str(case): row[-1] for case, row in enumerate(times)})
        wrong += sum(verdict.word in (Word.SLOWER, Word.FASTER) for verdict in verdicts)
    assert wrong <= 2


def test_a_slower_run_is_found_among_saved_ones() -> None:
    rng = np.random.default_rng(fresh_seed())
    words = []
    for _ in range(DRAWS // 20):
        times = 100 * np.exp(rng.normal(0, 0.002, (20, 7)))
        times[0, -1] *= 1.05
        before = {str(case): row[:-1].tolist() for case, row in enumerate(times)}
        words.append(of_times(before, {"0": times[0, -1]})[0].word)
    assert words.count(Word.SLOWER) > 0.9 * len(words)


def test_times_that_happen_to_be_close_together_are_not_believed() -> None:
    rng = np.random.default_rng(fresh_seed())
    before = {str(case): (100 * np.exp(rng.normal(0, 0.01, 4))).tolist() for case in range(20)}
    before["lucky"] = [100.0, 100.001, 99.999, 100.0]
    found = {verdict.case: verdict.word for verdict in of_times(before, dict.fromkeys(before, 103.0))}
    assert found["lucky"] is Word.CANNOT_TELL
    (alone,) = of_times({"lucky": before["lucky"]}, {"lucky": 103.0})
    assert alone.word is Word.SLOWER


def test_few_samples_tell_nothing() -> None:
    verdict = of_pairs("case", [(1.0, 2.0), (1.0, 2.0)])
    assert (verdict.word, verdict.why) == (Word.CANNOT_TELL, "expected 3 pairs or more, got 2")
    (verdict,) = of_times({"case": [1.0, 1.0]}, {"case": 2.0})
    assert (verdict.word, verdict.why) == (
        Word.CANNOT_TELL,
        "expected 3 saved runs of the case or more, got 2",
    )
    (verdict,) = of_times({}, {"case": 2.0})
    assert verdict.word is Word.CANNOT_TELL


def test_equal_counts_have_no_spread() -> None:
    """As on the emulated device."""
    assert of_pairs("case", [(2.5, 2.5)] * 3).word is Word.NONE
    slower = of_pairs("case", [(2.5, 2.625)] * 3)
    assert (slower.word, slower.change) == (Word.SLOWER, pytest.approx(0.05))


def test_runs_of_other_devices_and_clocks_do_not_count() -> None:
    run = Run("card", BenchClock.EVENTS, "1", "0", "", "", (CaseTimes("c", "case", us=100.0),))
    alike = [replace(run, times=(replace(run.times[0], us=us),)) for us in (99.9, 100.0, 100.1)]
    slow = replace(run, times=(replace(run.times[0], us=150.0), CaseTimes("c", "broken", error="reason")))
    (verdict,) = against_saved(alike, slow)
    assert (verdict.word, verdict.before_us, verdict.after_us) == (Word.SLOWER, pytest.approx(100.0), 150.0)
    foreign = [replace(run, device="other"), *[replace(run, clock=BenchClock.COUNTED)] * 3]
    (verdict,) = against_saved(foreign, slow)
    assert verdict.word is Word.CANNOT_TELL
    assert "4 saved runs are of other devices or clocks" in verdict.why


def test_the_table_begins_with_what_is_slower() -> None:
    verdicts = [
        Verdict("a", Word.NONE, 100.0, 100.2, -0.01, 0.012),
        Verdict("b", Word.CANNOT_TELL, why="an error"),
        Verdict("c", Word.SLOWER, 100.0, 105.0, 0.04, 0.06),
    ]
    _, first, *others, last = verdict_table(verdicts).splitlines()
    assert first.split() == ["slower", "+5.0%", "+4.0%", "+6.0%", "100.00", "105.00", "c"]
    assert len(others) == 2
    assert last == "3 cases: 1 slower, 0 faster, 1 none, 1 cannot tell"
