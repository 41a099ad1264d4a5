"""Warp exchange through the machine: every mode, partial member masks, lanes that have left."""

from __future__ import annotations

import functools
import operator

import numpy as np
import pytest

from tests.driver.emulated.instructions.lane_program import Lanes

LANES = 96
LANE = np.arange(LANES) % 32


def by_warp(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1, 32)


def words(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 1 << 32, LANES, dtype=np.uint64).astype(np.uint32)


@pytest.mark.parametrize("width", [32, 8])
def test_shuffles(lanes: Lanes, rng: np.random.Generator, width: int) -> None:
    a, n = words(rng), rng.integers(0, 32, LANES).astype(np.uint32)
    body = "".join(
        f"shfl.sync.{mode}.b32 %{mode}|%p{mode}, %a, %n, {(32 - width) << 8 | (0 if mode == 'up' else 31)}, -1;"
        for mode in ("up", "down", "bfly", "idx")
    )
    outputs = {f"%{mode}": np.uint32 for mode in ("up", "down", "bfly", "idx")}
    outputs |= {f"%p{mode}": bool for mode in ("up", "down", "bfly", "idx")}
    *values, up, down, bfly, idx = lanes.run(body, {"%n": n, "%a": a}, outputs)
    segment, step = LANE // width * width, n.astype(np.int64)
    wanted = [LANE - step, LANE + step, LANE ^ step, segment + step % width]
    inside = [wanted[0] >= segment, *(one < segment + width for one in wanted[1:])]
    first = np.arange(LANES) // 32 * 32
    for value, predicate, source, good in zip(values, (up, down, bfly, idx), wanted, inside, strict=True):
        np.testing.assert_array_equal(predicate, good)
        np.testing.assert_array_equal(value, a[first + np.where(good, source, LANE)])


def test_shuffles_by_constants_reduce_a_warp(lanes: Lanes, rng: np.random.Generator) -> None:
    a = rng.integers(-100, 100, LANES).astype(np.float32)
    body = ".reg .f32 %t; mov.f32 %d, %a;" + "".join(
        f"shfl.sync.bfly.b32 %t, %d, {step}, 31, 0xffffffff; add.f32 %d, %d, %t;" for step in (16, 8, 4, 2, 1)
    )
    (total,) = lanes.run(body, {"%a": a}, {"%d": np.float32})
    np.testing.assert_array_equal(by_warp(total), by_warp(a).sum(1, keepdims=True) + np.zeros((1, 32)))


def test_votes(lanes: Lanes, rng: np.random.Generator) -> None:
    p = rng.random(LANES) < 0.5
    p[:32], p[32:64] = True, False
    body = """
    vote.sync.all.pred %all, %p, -1; vote.sync.any.pred %any, %p, -1; vote.sync.uni.pred %uni, %p, -1;
    vote.sync.ballot.b32 %ballot, %p, -1;
    """
    outputs = {"%all": bool, "%any": bool, "%uni": bool, "%ballot": np.uint32}
    every, some, uniform, ballot = lanes.run(body, {"%p": p}, outputs)
    votes = by_warp(p)
    np.testing.assert_array_equal(by_warp(every)[:, 0], votes.all(1))
    np.testing.assert_array_equal(by_warp(some)[:, 0], votes.any(1))
    np.testing.assert_array_equal(by_warp(uniform)[:, 0], votes.all(1) | ~votes.any(1))
    bits = (votes.astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(1)
    np.testing.assert_array_equal(by_warp(ballot), bits[:, None] + np.zeros((1, 32), np.uint64))


def test_member_masks_of_two_halves(lanes: Lanes, rng: np.random.Generator) -> None:
    """Each half of the warp, in its own branch, exchanges with its own members."""
    a = words(rng)
    body = """
    .reg .pred %low; .reg .b32 %l;
    and.b32 %l, %lane, 31;
    setp.lt.u32 %low, %l, 16;
    @%low bra LOW;
    redux.sync.add.u32 %d, %a, 0xffff0000;
    shfl.sync.down.b32 %e, %a, 1, 31, 0xffff0000;
    activemask.b32 %m;
    bra JOIN;
    LOW:
    redux.sync.add.u32 %d, %a, 0x0000ffff;
    shfl.sync.idx.b32 %e, %a, 3, 31, 0x0000ffff;
    activemask.b32 %m;
    JOIN:
    """
    total, moved, active = lanes.run(body, {"%a": a}, {"%d": np.uint32, "%e": np.uint32, "%m": np.uint32})
    halves = a.reshape(-1, 16)
    sums = halves.sum(1, dtype=np.uint32)
    np.testing.assert_array_equal(total.reshape(-1, 16), sums[:, None] + np.zeros((1, 16), np.uint32))
    np.testing.assert_array_equal(by_warp(moved)[:, :16], by_warp(a)[:, 3:4] + np.zeros((1, 16), np.uint32))
    np.testing.assert_array_equal(by_warp(moved)[:, 16:31], by_warp(a)[:, 17:])
    np.testing.assert_array_equal(active, np.where(LANE < 16, 0xFFFF, 0xFFFF0000))


def test_lanes_that_left_do_not_take_part(lanes: Lanes, rng: np.random.Generator) -> None:
    a = words(rng)
    body = """
    .reg .pred %out; .reg .b32 %l;
    mov.u32 %d, 0; mov.u32 %e, 0;
    and.b32 %l, %lane, 31;
    setp.ge.u32 %out, %l, 20;
    @%out bra DONE;
    redux.sync.max.u32 %d, %a, 0x000fffff;
    vote.sync.ballot.b32 %e, 1, 0x000fffff;
    DONE:
    """
    highest, ballot = lanes.run(body, {"%a": a}, {"%d": np.uint32, "%e": np.uint32})
    np.testing.assert_array_equal(highest, np.where(LANE < 20, np.repeat(by_warp(a)[:, :20].max(1), 32), 0))
    np.testing.assert_array_equal(ballot, np.where(LANE < 20, 0xFFFFF, 0))


@pytest.mark.parametrize("kind", [np.uint32, np.int32])
def test_reductions(lanes: Lanes, rng: np.random.Generator, kind: type) -> None:
    a = words(rng).view(kind)
    suffix = "u32" if kind is np.uint32 else "s32"
    operations = {"add": operator.add, "min": min, "max": max}
    if kind is np.uint32:
        operations |= {"and": operator.and_, "or": operator.or_, "xor": operator.xor}
    logical = {"and", "or", "xor"}
    body = "".join(f"redux.sync.{n}.{'b32' if n in logical else suffix} %{n}_, %a, -1;" for n in operations)
    results = lanes.run(body, {"%a": a}, {f"%{name}_": kind for name in operations})
    for (name, combine), actual in zip(operations.items(), results, strict=True):
        folded = [functools.reduce(combine, row) % 2**32 for row in by_warp(a).tolist()]
        np.testing.assert_array_equal(actual.view(np.uint32), np.repeat(np.array(folded, np.uint32), 32), err_msg=name)


@pytest.mark.parametrize("bits", [32, 64])
def test_matches(lanes: Lanes, rng: np.random.Generator, bits: int) -> None:
    a = rng.integers(0, 4, LANES).astype(np.uint32 if bits == 32 else np.uint64)
    a[32:64] = 9
    body = f"match.any.sync.b{bits} %d, %a, -1; match.all.sync.b{bits} %e|%p, %a, -1;"
    outputs = {"%d": np.uint32, "%e": np.uint32, "%p": bool}
    same, everyone, agreed = lanes.run(body, {"%a": a}, outputs)
    rows = by_warp(a)
    equal = rows[:, :, None] == rows[:, None, :]
    masks = (equal.astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(2)
    np.testing.assert_array_equal(by_warp(same), masks)
    np.testing.assert_array_equal(agreed, np.repeat(equal.all((1, 2)), 32))
    np.testing.assert_array_equal(everyone, np.where(agreed, 0xFFFFFFFF, 0))


def test_election(lanes: Lanes) -> None:
    body = """
    .reg .pred %q; .reg .b32 %l;
    and.b32 %l, %lane, 31; mov.u32 %d, 99; setp.eq.u32 %p, %l, 50;
    setp.lt.u32 %q, %l, 5;
    @%q bra DONE;
    elect.sync %d|%p, 0xffffffe0;
    DONE:
    """
    leader, chosen = lanes.run(body, {"%a": np.zeros(LANES, np.uint32)}, {"%d": np.uint32, "%p": bool})
    np.testing.assert_array_equal(leader, np.where(LANE < 5, 99, 5))
    np.testing.assert_array_equal(chosen, LANE == 5)
