"""Policies by text, and what the fuzzing one draws."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.driver.emulated.faults import EmulationFault, FaultKind
from lowdnn.driver.emulated.options import Options
from lowdnn.driver.emulated.running.policy import FuzzPicker, Policy
from lowdnn.status import BadParamError

#: Each warp adds its number to a trace that all CTAs share: the trace is the order in which warps came by.
TRACE = """
extern "C" __global__ void k(int* trace, int* count) {
  for (int round = 0; round < 3; round++) {
    if (threadIdx.x % 32 == 0) trace[atomicAdd(count, 1)] = blockIdx.x * 8 + threadIdx.x / 32;
    __syncwarp();
  }
}
"""
#: Warp 1 reads what warp 0 has stored, without a barrier.
RACY = """
extern "C" __global__ void k(int* y) {
  __shared__ int tile[32];
  if (threadIdx.x < 32) tile[threadIdx.x] = threadIdx.x;
  %s
  if (threadIdx.x >= 32) y[threadIdx.x - 32] = tile[threadIdx.x - 32];
}
"""


@pytest.mark.parametrize("text", ["lockstep", "cta-reverse", "warp-serial(12)", "fuzz(0)", "fuzz(123456789)"])
def test_a_policy_prints_as_it_is_parsed(text: str) -> None:
    assert str(Policy.parse(text)) == text


@pytest.mark.parametrize("text", ["", "warp-serial", "fuzz", "fuzz()", "fuzz(-1)", "fuzz(1.5)", "late"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(BadParamError, match=r"policy: expected .*fuzz\(<seed>\)"):
        Policy.parse(text)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("lockstep", Options()),
        ("fuzz(3)", Options("fuzz(3)")),
        ("lockstep,early", Options(landing="early")),
        ("warp-serial(7), late", Options("warp-serial(7)", landing="late")),
    ],
)
def test_options_have_a_text(text: str, options: Options) -> None:
    assert Options.parse(text) == options


@pytest.mark.parametrize("words", ["soon", "late,early", "races,races", "devices=2,devices=3", "devices=x"])
def test_unknown_and_repeated_words_of_options_are_told(words: str) -> None:
    with pytest.raises(BadParamError, match=f"policy: expected .*at most once, got 'lockstep,{words}'"):
        Options.parse(f"lockstep,{words}")


def test_the_same_seed_gives_the_same_run(bench, compile_cuda) -> None:
    module = bench.machine.load(compile_cuda(TRACE))

    def trace(seed: int) -> tuple[int, ...]:
        order, count = bench.put(np.zeros(96, np.int32)), bench.put(np.zeros(1, np.int32))
        bench.run(module, "k", 4, 256, order, count, policy=f"fuzz({seed})")
        got = bench.get(order, 96, np.int32)
        assert np.bincount(got).tolist() == [3] * 32
        return tuple(got.tolist())

    first = [trace(seed) for seed in range(8)]
    assert [trace(seed) for seed in range(8)] == first
    assert len(set(first)) > 4


def test_fuzzing_finds_a_missing_barrier_and_is_content_with_the_right_kernel(bench, compile_cuda) -> None:
    right, racy = (bench.machine.load(compile_cuda(RACY % text)) for text in ("__syncthreads();", ""))
    found = []
    for seed in range(10):
        y = bench.empty(128)
        bench.run(right, "k", 1, 64, y, policy=f"fuzz({seed})")
        assert (bench.get(y, 32, np.int32) == np.arange(32)).all()
        try:
            bench.run(racy, "k", 1, 64, y, policy=f"fuzz({seed})")
        except EmulationFault as fault:
            found.append(fault.kind)
    assert len(found) >= 2
    assert set(found) == {FaultKind.UNINITIALISED_READ}


def test_an_order_of_landing_that_is_asked_for_is_kept() -> None:
    for seed in range(20):
        early, late = FuzzPicker(seed, "early"), FuzzPicker(seed, "late")
        assert all(early.lands_at_once() for _ in range(20))
        assert not any(late.lands_at_once() for _ in range(20))
        assert {late.lands_now(3) for _ in range(20)} == {None}


def test_a_dozen_seeds_try_every_unit_with_every_landing() -> None:
    for first in (0, 1000, 999_999_000):
        pickers = [FuzzPicker(first + place) for place in range(12)]
        assert len({(picker._unit, picker._landing) for picker in pickers}) == 9


def test_seeds_draw_early_late_and_any_landing() -> None:
    pickers = [FuzzPicker(seed) for seed in range(40)]
    kinds = {frozenset(picker.lands_at_once() for _ in range(40)) for picker in pickers}
    assert kinds == {frozenset({True}), frozenset({False}), frozenset({True, False})}


#: A block copies four words for each thread, each in a group of its own, and reads the newest one without a wait.
UNWAITED = """
extern "C" __global__ void k(const int* x, int* y) {
  __shared__ int tile[4][64];
  int t = threadIdx.x;
  unsigned at = (unsigned)__cvta_generic_to_shared(&tile[0][t]);
  for (int i = 0; i < 4; i++)
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\\n cp.async.commit_group;" :: "r"(at + 256 * i),
                 "l"(x + 64 * i + t) : "memory");
  for (int i = 0; i < 20; i++) __syncthreads();
  y[t] = tile[3][t];
}
"""


def test_a_copy_that_nobody_waits_for_lands_under_some_schedules_and_not_under_others(bench, compile_cuda) -> None:
    module = bench.machine.load(compile_cuda(UNWAITED))
    x = bench.put(np.arange(256, dtype=np.int32))
    missed = []
    for seed in range(24):
        try:
            bench.run(module, "k", 1, 64, x, bench.empty(256), policy=f"fuzz({seed})")
        except EmulationFault as fault:
            missed.append(fault.kind)
    assert 6 <= len(missed) <= 18
    assert set(missed) == {FaultKind.UNINITIALISED_READ}
