"""The formula of time: for numbers and for arrays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.arch.timings import Timings
from lowdnn.engines.model.clock import launch_s, moving_s, overlap, slowest, stage_latency_s, utilisation, waves, work_s
from lowdnn.engines.model.search import place_of_least
from lowdnn.plan import MathUnit, Work

ARCH = replace(SM_90A, timings=Timings(launch_s=2.0, dependent_launch_saves_s=0.5, grid_meeting_s=0.25))


@pytest.mark.parametrize("exposed", [0.0, 0.1, 1.0])
def test_the_longer_of_two_hides_a_share_of_the_shorter(exposed: float) -> None:
    ones, others = np.array([1.0, 4.0, 3.0]), np.array([2.0, 2.0, 3.0])
    expected = [2 + exposed, 4 + 2 * exposed, 3 + 3 * exposed]
    assert overlap(ones, others, exposed).tolist() == expected
    assert [overlap(one, other, exposed) for one, other in zip(ones, others, strict=True)] == expected
    assert overlap(ones, 2.0, exposed).tolist() == overlap(2.0, ones, exposed).tolist()


def test_each_of_two_may_hide_another_share() -> None:
    assert overlap(4.0, 2.0, 0.25, 0.75) == max(4 + 0.25 * 2, 2 + 0.75 * 4)
    assert overlap(4.0, 3.0, 0.25, 0.75) == 3 + 0.75 * 4


def test_the_slowest_is_told_for_each_candidate() -> None:
    assert slowest(np.array([1.0, 5.0]), 2.0, np.array([[3.0], [0.0]])).tolist() == [[3.0, 5.0], [2.0, 5.0]]


@pytest.mark.parametrize(("blocks", "expected"), [(0, 0), (2, 12), (3, 13), (7, 13 + 13 + 11), (6, 26)])
def test_blocks_come_in_waves_the_last_of_which_may_be_short(blocks: int, expected: float) -> None:
    assert waves(blocks, 3, lambda count: 10.0 + count) == expected


def test_a_launch_may_save_overhead_and_blocks_may_meet() -> None:
    assert launch_s(ARCH, 1.0) == 3.0
    assert launch_s(ARCH, 1.0, is_dependent=True) == 2.5
    assert launch_s(ARCH, 1.0, is_cooperative=True) == 3.25


def test_a_launch_that_moves_bytes_takes_overhead_and_their_time() -> None:
    moved = np.array([0.0, 3 * ARCH.copy_bytes_per_s])
    assert moving_s(ARCH, moved).tolist() == [2.0, 5.0]
    assert moving_s(ARCH, ARCH.copy_bytes_per_s) == 3.0


def test_stages_on_their_way_share_the_latency() -> None:
    arch = replace(ARCH, timings=Timings(copy_latency_s=3.0))
    assert stage_latency_s(arch, 2) == 1.5
    assert stage_latency_s(arch, 4, copy_s=1.0) == 1.0


@pytest.mark.parametrize(
    ("blocks", "expected"), [(1, 0.01), (50, 0.5), (100, 1.0), (101, 0.505), (150, 0.75), (1000, 1.0), (0, 1.0)]
)
def test_utilisation_is_the_share_of_full_waves(blocks: int, expected: float) -> None:
    assert utilisation(blocks, 100) == pytest.approx(expected)


def test_work_takes_arithmetic_and_bytes() -> None:
    flops, size_bytes = int(ARCH.attained_rate(MathUnit.MMA_F16)), int(3 * ARCH.copy_bytes_per_s)
    work = Work(flops, size_bytes, MathUnit.MMA_F16)
    assert work_s(work, ARCH, 0.5) == pytest.approx(3.5)
    assert work_s(work, ARCH, 1.0, utilisation=0.25, reach=0.5) == pytest.approx(4 + 6)


def test_the_first_of_equal_times_is_taken() -> None:
    assert place_of_least(np.array([[3.0, np.inf, 2.0], [2.0, 5.0, 4.0]])) == (0, 2)
