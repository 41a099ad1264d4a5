"""Random sequences of mbarrier operations against a barrier in plain Python that takes one arrival at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from tests.driver.emulated.conftest import Bench

LANES = 32
STEPS = 40
NOTHING = 0xFFFFFFFF


@dataclass
class Barrier:
    """An mbarrier object."""

    expected: int
    pending: int = field(init=False)
    tx: int = 0
    phase: int = 0

    def __post_init__(self) -> None:
        self.pending = self.expected

    def arrive(self, count: int, drop: bool = False) -> int:
        """The pending count before."""
        before = self.pending
        self.pending -= count
        self.expected -= count if drop else 0
        self._turn()
        return before

    def add_bytes(self, count: int) -> None:
        self.tx += count
        self._turn()

    def _turn(self) -> None:
        if self.pending == 0 and self.tx == 0:
            self.phase += 1
            self.pending = self.expected


def _arrivals(rng: np.random.Generator, barrier: Barrier) -> tuple[str, list[int]]:
    """The first lanes arrive, each by one count; how many of them stays within what the barrier takes."""
    count = int(rng.integers(1, 4))
    drop = bool(rng.random() < 0.2)
    seen = []
    for _ in range(int(rng.integers(1, LANES + 1))):
        if barrier.pending < count or (drop and barrier.expected - count < 1):
            break
        seen.append(barrier.arrive(count, drop))
    form = "arrive_drop" if drop else "arrive"
    text = f"""
    setp.lt.u32 %p1, %r2, {len(seen)};
    @%p1 mbarrier.{form}.shared.b64 %rd2, [%r1], {count};
    @%p1 mbarrier.pending_count.b64 %r3, %rd2;"""
    return text, seen


def _bytes(rng: np.random.Generator, barrier: Barrier) -> str:
    count = int(rng.integers(1, 100))
    form = "complete_tx" if barrier.tx > 0 else "expect_tx"
    if form == "complete_tx" and rng.random() < 0.7:
        count = barrier.tx
    barrier.add_bytes(count if form == "expect_tx" else -count)
    return f"setp.eq.u32 %p1, %r2, 0;\n@%p1 mbarrier.{form}.relaxed.cta.shared.b64 [%r1], {count};"


@pytest.mark.parametrize("_", range(12))
def test_random_operations_give_what_a_plain_barrier_gives(bench: Bench, rng: np.random.Generator, _: int) -> None:
    """After each step: the counts that the lanes' states hold, and whether the phase of either parity is complete."""
    barrier = Barrier(int(rng.integers(1, 40)))
    body = [
        "ld.param.u64 %rd1, [out]; mov.u32 %r1, bar; mov.u32 %r2, %tid.x; setp.eq.u32 %p1, %r2, 0;",
        f"@%p1 mbarrier.init.shared.b64 [%r1], {barrier.expected};",
        "mul.wide.u32 %rd3, %r2, 12; add.u64 %rd1, %rd1, %rd3;",
    ]
    expected = np.full((STEPS, LANES, 3), NOTHING, np.uint32)
    for step in range(STEPS):
        body.append(f"mov.u32 %r3, {NOTHING:#x}; bar.sync 0;")
        if rng.random() < 0.6:
            text, seen = _arrivals(rng, barrier)
            expected[step, : len(seen), 0] = seen
        else:
            text = _bytes(rng, barrier)
        body.append(text + "\nbar.sync 0;\nst.global.u32 [%rd1], %r3;")
        for parity in (0, 1):
            body.append(f"mbarrier.test_wait.parity.shared.b64 %p2, [%r1], {parity}; selp.u32 %r4, 1, 0, %p2;")
            body.append(f"st.global.u32 [%rd1+{4 + 4 * parity}], %r4;")
            expected[step, :, 1 + parity] = barrier.phase % 2 != parity
        body.append(f"add.u64 %rd1, %rd1, {12 * LANES};")
    out = bench.empty(expected.nbytes)
    module = bench.ptx("\n".join([*body, "ret;"]), declarations=".shared .align 8 .b64 bar;")
    bench.run(module, "k", 1, LANES, out)
    np.testing.assert_array_equal(bench.get(out, expected.shape, np.uint32), expected)
