"""Warp exchange against lane-by-lane Python, with partial masks and inactive lanes."""

from __future__ import annotations

import functools
import operator

import numpy as np
import pytest

from lowdnn.driver.emulated.values import warp

WARPS = 5
ALL = np.ones((WARPS, 32), bool)
FULL = np.uint32(0xFFFFFFFF)


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("width", [32, 16, 8, 2])
def test_shuffle(rng: np.random.Generator, mode: str, width: int) -> None:
    value = rng.integers(0, 1 << 32, (WARPS, 32), dtype=np.uint64).astype(np.uint32)
    step = rng.integers(0, 40, (WARPS, 32)).astype(np.uint32)
    control = np.uint32((32 - width) << 8 | (0 if mode == "up" else 31))
    source, in_range = warp.shuffle_source(mode, step, control)
    actual = warp.shuffle(value, source, ALL)
    for w in range(WARPS):
        for lane in range(32):
            n, segment = int(step[w, lane]) & 31, lane // width * width
            wanted = {"up": lane - n, "down": lane + n, "bfly": lane ^ n, "idx": segment + n % width}[mode]
            inside = wanted >= segment if mode == "up" else wanted < segment + width
            assert in_range[w, lane] == inside
            assert actual[w, lane] == value[w, wanted if inside else lane]


def test_shuffle_from_an_inactive_lane_is_poison() -> None:
    active = ALL.copy()
    active[:, 3] = False
    source, _ = warp.shuffle_source("idx", np.uint32(3), np.uint32(31))
    result = warp.shuffle(np.zeros((WARPS, 32), np.float32), source, active)
    assert np.isnan(result).all()
    source, _ = warp.shuffle_source("idx", np.uint32(2), np.uint32(31))
    assert (warp.shuffle(np.zeros((WARPS, 32), np.float32), source, active) == 0).all()


def masks_and_activity(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Lanes below 10 name one member set and the others the rest; a few lanes are inactive."""
    members = np.where(np.arange(32) < 10, np.uint32(0x3FF), np.uint32(0xFFFFFC00))
    return np.broadcast_to(members, (WARPS, 32)), rng.random((WARPS, 32)) < 0.8


def team(members: np.ndarray, active: np.ndarray, w: int, lane: int) -> list[int]:
    return [i for i in range(32) if active[w, i] and int(members[w, lane]) >> i & 1]


def test_votes_see_the_lanes_own_members(rng: np.random.Generator) -> None:
    members, active = masks_and_activity(rng)
    predicate = rng.random((WARPS, 32)) < 0.5
    predicate[0], predicate[1] = True, False
    for w in range(WARPS):
        for lane in range(32):
            votes = [bool(predicate[w, i]) for i in team(members, active, w, lane)]
            mask = sum(1 << i for i in team(members, active, w, lane) if predicate[w, i])
            assert warp.ballot(predicate, members, active)[w, lane] == mask
            assert warp.vote("all", predicate, members, active)[w, lane] == all(votes)
            assert warp.vote("any", predicate, members, active)[w, lane] == any(votes)
            assert warp.vote("uni", predicate, members, active)[w, lane] == (len(set(votes)) < 2)


def test_match(rng: np.random.Generator) -> None:
    members, active = masks_and_activity(rng)
    value = rng.integers(0, 3, (WARPS, 32)).astype(np.uint64)
    value[2] = 7
    masks, agreed = warp.match_all(value, members, active)
    for w in range(WARPS):
        for lane in np.flatnonzero(active[w]).tolist():
            peers = team(members, active, w, lane)
            same = sum(1 << i for i in peers if value[w, i] == value[w, lane])
            everyone = sum(1 << i for i in peers)
            assert warp.match_any(value, members, active)[w, lane] == same
            assert agreed[w, lane] == (same == everyone)
            assert masks[w, lane] == (everyone if same == everyone else 0)


@pytest.mark.parametrize("dtype", [np.uint32, np.int32])
@pytest.mark.parametrize("operation", ["add", "min", "max", "and", "or", "xor"])
def test_integer_reduction(rng: np.random.Generator, operation: str, dtype: type) -> None:
    members, active = masks_and_activity(rng)
    value = rng.integers(0, 1 << 32, (WARPS, 32), dtype=np.uint64).astype(np.uint32).view(dtype)
    combine = {
        "and": operator.and_,
        "or": operator.or_,
        "xor": operator.xor,
        "add": operator.add,
        "min": min,
        "max": max,
    }
    actual = warp.reduce(operation, value, members, active)
    for w in range(WARPS):
        for lane in np.flatnonzero(active[w]).tolist():
            whole = functools.reduce(combine[operation], [int(value[w, i]) for i in team(members, active, w, lane)])
            assert int(actual[w, lane]) % 2**32 == whole % 2**32


def test_leaders_and_active_mask(rng: np.random.Generator) -> None:
    members, active = masks_and_activity(rng)
    leader, is_leader = warp.elect(members, active)
    for w in range(WARPS):
        assert warp.active_mask(active)[w, 0] == sum(1 << i for i in np.flatnonzero(active[w]).tolist())
        for lane in np.flatnonzero(active[w]).tolist():
            assert leader[w, lane] == team(members, active, w, lane)[0]
            assert is_leader[w, lane] == (leader[w, lane] == lane)
