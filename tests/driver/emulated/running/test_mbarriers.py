"""mbarriers: every form of the instructions, waiting, misuse, deadlock reports."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.driver.emulated.faults import EmulationFault, FaultKind
from tests.driver.emulated.conftest import POLICIES, Bench

SHARED = ".shared .align 8 .b64 bars[4];"
START = "mov.u32 %r1, bars; mov.u32 %r2, %tid.x; mov.u32 %r9, %ctaid.x; setp.eq.u32 %p1, %r2, 0;"


def _run(bench: Bench, body: str, block: int = 1, grid: int = 1, **options: object) -> None:
    module = bench.ptx(f"{START}\n{body}\nret;", parameters="", declarations=SHARED)
    bench.run(module, "k", grid, block, **options)


def _fault(bench: Bench, body: str, block: int = 1, grid: int = 1) -> EmulationFault:
    with pytest.raises(EmulationFault) as caught:
        _run(bench, body, block, grid)
    return caught.value


def _values(bench: Bench, body: str, count: int, block: int = 1, grid: int = 1) -> list[int]:
    """The 32-bit words that a kernel stores at ``out`` (%rd1)."""
    out = bench.put(np.full(count, 0xDEAD, np.uint32))
    module = bench.ptx(f"ld.param.u64 %rd1, [out]; {START}\n{body}\nret;", declarations=SHARED)
    bench.run(module, "k", grid, block, out)
    return [int(value) for value in bench.get(out, count, np.uint32)]


WAIT = "L: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], {parity}; @!%p2 bra L;"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("grid", [1, 3])
def test_threads_meet_at_an_mbarrier_under_every_policy(bench: Bench, policy: str, grid: int) -> None:
    """Each thread reads what its neighbour in another warp stored before it arrived."""
    body = """
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, bars; mov.u32 %r2, %tid.x; mov.u32 %r9, %ctaid.x; setp.eq.u32 %p1, %r2, 0;
    mov.u32 %r3, data; shl.b32 %r4, %r2, 2; add.u32 %r5, %r3, %r4;
    @%p1 mbarrier.init.shared::cta.b64 [%r1], 128;
    bar.sync 0;
    mad.lo.u32 %r6, %r9, 1000, %r2;
    st.shared.u32 [%r5], %r6;
    mbarrier.arrive.shared::cta.b64 %rd2, [%r1];
    L: mbarrier.test_wait.shared::cta.b64 %p2, [%r1], %rd2; @!%p2 bra L;
    xor.b32 %r4, %r4, 384; add.u32 %r5, %r3, %r4;
    ld.shared.u32 %r6, [%r5];
    mad.lo.u32 %r7, %r9, 128, %r2; mul.wide.u32 %rd3, %r7, 4; add.u64 %rd3, %rd1, %rd3;
    st.global.u32 [%rd3], %r6;
    ret;"""
    out = bench.empty(4 * 128 * grid)
    module = bench.ptx(body, declarations=SHARED + "\n.shared .align 4 .b8 data[512];")
    bench.run(module, "k", grid, 128, out, policy=policy)
    expected = np.arange(grid)[:, None] * 1000 + (np.arange(128) ^ 96)
    np.testing.assert_array_equal(bench.get(out, (grid, 128), np.uint32), expected)


def test_states_hold_the_pending_count_before_each_arrival(bench: Bench) -> None:
    body = """
    @%p1 mbarrier.init.shared.b64 [%r1], 10;
    bar.sync 0;
    mbarrier.arrive.noComplete.release.cta.shared.b64 %rd2, [%r1], 2;
    mbarrier.pending_count.b64 %r3, %rd2;
    mul.wide.u32 %rd3, %r2, 4; add.u64 %rd3, %rd3, %rd1;
    st.global.u32 [%rd3], %r3;"""
    assert _values(bench, body, 4, block=4) == [10, 8, 6, 4]


def test_arrivals_of_one_instruction_may_span_phases(bench: Bench) -> None:
    """Count 1 and four arrivals: four phases, the parity is even again."""
    body = """
    @%p1 mbarrier.init.shared.b64 [%r1], 1;
    bar.sync 0;
    mbarrier.arrive.shared.b64 _, [%r1];
    bar.sync 0;
    mbarrier.test_wait.parity.shared.b64 %p2, [%r1], 1;
    selp.u32 %r3, 1, 0, %p2;
    st.global.u32 [%rd1], %r3;"""
    assert _values(bench, body, 1, block=4) == [1]


def test_dropped_arrivals_are_not_expected_again(bench: Bench) -> None:
    body = """
    mbarrier.init.b64 [%rd9], 3;
    mbarrier.arrive_drop.b64 %rd2, [%rd9];
    mbarrier.arrive.b64 %rd3, [%rd9], 2;
    mbarrier.arrive_drop.release.cta.b64 %rd4, [%rd9];
    mbarrier.pending_count.b64 %r3, %rd4;
    st.global.u32 [%rd1], %r3;
    mbarrier.test_wait.b64 %p2, [%rd9], %rd3;
    mbarrier.test_wait.b64 %p3, [%rd9], %rd4;
    selp.u32 %r3, 1, 0, %p2; st.global.u32 [%rd1+4], %r3;
    selp.u32 %r3, 1, 0, %p3; st.global.u32 [%rd1+8], %r3;
    mbarrier.arrive.b64 %rd4, [%rd9];
    mbarrier.pending_count.b64 %r3, %rd4;
    st.global.u32 [%rd1+12], %r3;"""
    generic = "mov.u64 %rd8, bars; cvta.shared.u64 %rd9, %rd8;"
    assert _values(bench, generic + body, 4) == [2, 1, 0, 1]


def test_a_phase_waits_for_arrivals_and_bytes(bench: Bench) -> None:
    look = """
    mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 %p2, [%r1], 0;
    selp.u32 %r3, 1, 0, %p2; st.global.u32 [%rd1], %r3; add.u64 %rd1, %rd1, 4;"""
    body = f"""
    mbarrier.init.shared::cta.b64 [%r1], 2;
    mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r1], 48;
    mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], 16;
    mbarrier.complete_tx.shared::cta.b64 [%r1], 64; {look}
    mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r1], 8; {look}
    mbarrier.arrive.shared::cta.b64 _, [%r1]; {look}
    mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [%r1], 8; {look}"""
    assert _values(bench, body, 4) == [0, 0, 0, 1]


def test_an_invalidated_barrier_may_be_initialised_again(bench: Bench) -> None:
    body = """
    mbarrier.init.shared.b64 [%r1], 7;
    mbarrier.inval.shared.b64 [%r1];
    mbarrier.init.shared.b64 [%r1], 3;
    mbarrier.arrive.shared.b64 %rd2, [%r1];
    mbarrier.pending_count.b64 %r3, %rd2;
    st.global.u32 [%rd1], %r3;"""
    assert _values(bench, body, 1) == [3]


INIT = "mbarrier.init.shared.b64 [%r1], 2;"

MISUSES = {
    "before init": ("mbarrier.arrive.shared.b64 _, [%r1];", "offset 0 of block (0, 0, 0): used before mbarrier.init"),
    "after inval": (
        INIT + "mbarrier.inval.shared.b64 [%r1]; mbarrier.arrive.shared.b64 _, [%r1];",
        "after mbarrier.inval",
    ),
    "init twice": (INIT + INIT, "initialised again while live, phase 0 (parity 0): 2 of 2 arrivals pending"),
    "count 0": ("mbarrier.init.shared.b64 [%r1], 0;", "not in 1 to 1048575"),
    "count too large": ("mbarrier.init.shared.b64 [%r1], 0x100000;", "not in 1 to 1048575"),
    "arrival of 0": (INIT + "mbarrier.arrive.shared.b64 _, [%r1], 0;", "not in 1 to 1048575"),
    "too many at once": (
        INIT + "mbarrier.arrive.shared.b64 _, [%r1], 3;",
        "3 arrivals come in phase 0 (parity 0): 2 of 2",
    ),
    "underflow": (
        INIT + "mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 16;" + "mbarrier.arrive.shared.b64 _, [%r1];" * 2,
        "1 arrivals come in phase 0 (parity 0): 0 of 2 arrivals pending, 16 bytes outstanding",
    ),
    "noComplete completes": (INIT + "mbarrier.arrive.noComplete.shared.b64 %rd2, [%r1], 2;", "arrival .noComplete"),
    "overwritten": (INIT + "st.shared.u8 [%r1+3], 1; mbarrier.arrive.shared.b64 _, [%r1];", "have been overwritten"),
    "tx too large": (INIT + "mbarrier.expect_tx.relaxed.cta.shared.b64 [%r1], 0x100000;", "more than 1048575 bytes"),
    "tx overflow": (
        INIT + "mbarrier.expect_tx.relaxed.cta.shared.b64 [%r1], 0xfffff;" * 2,
        "its tx-count becomes 2097150",
    ),
    "tx underflow": (INIT + "mbarrier.complete_tx.shared.b64 [%r1], 0xfffff;" * 2, "its tx-count becomes -2097150"),
    "parity 2": (INIT + "mbarrier.test_wait.parity.shared.b64 %p2, [%r1], 2;", "neither 0 nor 1"),
    "old state": (
        "mbarrier.init.shared.b64 [%r1], 1; mbarrier.arrive.shared.b64 %rd2, [%r1];"
        "mbarrier.arrive.shared.b64 _, [%r1]; mbarrier.test_wait.shared.b64 %p2, [%r1], %rd2;",
        "the state of 2 phases ago",
    ),
    "state of another": (
        INIT + "mbarrier.init.shared.b64 [%r1+8], 2; mbarrier.arrive.shared.b64 %rd2, [%r1+8];"
        "mbarrier.test_wait.shared.b64 %p2, [%r1], %rd2;",
        "another barrier gave",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISUSES)
def test_misuse_is_reported_with_the_barrier(bench: Bench, name: str) -> None:
    body, message = MISUSES[name]
    fault = _fault(bench, body)
    assert fault.kind is FaultKind.BARRIER_MISUSE
    assert message in str(fault)
    assert "thread (0, 0, 0)" in str(fault)


def test_two_threads_must_not_initialise_one_barrier(bench: Bench) -> None:
    assert "initialised by two threads at once" in str(_fault(bench, INIT, block=2))


def test_a_barrier_must_be_aligned_and_inside_shared_memory(bench: Bench) -> None:
    assert _fault(bench, "mbarrier.init.shared.b64 [%r1+4], 1;").kind is FaultKind.MISALIGNED
    assert _fault(bench, "mbarrier.init.shared.b64 [%r1+32], 1;").kind is FaultKind.SHARED_OUT_OF_BOUNDS


def test_a_load_from_a_barrier_is_reported(bench: Bench) -> None:
    assert _fault(bench, INIT + "ld.shared.u64 %rd2, [%r1];").kind is FaultKind.UNINITIALISED_READ


def test_deadlock_says_who_waits_where_for_what(bench: Bench) -> None:
    body = f"""
    @%p1 mbarrier.init.shared.b64 [%r1], 3;
    bar.sync 0;
    @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 96;
    {WAIT.format(parity=0)}"""
    fault = _fault(bench, body, block=64, grid=2)
    assert fault.kind is FaultKind.DEADLOCK
    for block in (0, 1):
        what = (
            f"64 threads of 2 warps wait at mbarrier at shared offset 0 of block ({block}, 0, 0), phase 0 (parity 0): "
        )
        assert what + "2 of 3 arrivals pending, 96 bytes outstanding (PTX line 14)" in str(fault)


def test_work_between_looks_in_vain_is_no_deadlock(bench: Bench) -> None:
    """A thread that looks, works and gives up after 100 rounds; then it arrives itself."""
    body = f"""
    mbarrier.init.shared.b64 [%r1], 1;
    mov.u32 %r5, 0;
    ROUND: mbarrier.test_wait.parity.shared.b64 %p2, [%r1], 0; @%p2 bra DONE;
    add.u32 %r5, %r5, 1; st.shared.u32 [%r1+16], %r5;
    setp.lt.u32 %p3, %r5, 100; @%p3 bra ROUND;
    mbarrier.arrive.shared.b64 _, [%r1];
    {WAIT.format(parity=0)}
    DONE: st.global.u32 [%rd1], %r5;"""
    assert _values(bench, body, 1) == [100]


REMOTE = """
mov.u32 %r10, %cluster_ctarank; xor.b32 %r11, %r10, 1;
mapa.shared::cluster.u32 %r12, %r1, %r11;
@%p1 mbarrier.init.shared::cta.b64 [%r1], 4;
barrier.cluster.arrive.release; barrier.cluster.wait.acquire;
"""


@pytest.mark.parametrize("policy", POLICIES)
def test_ctas_of_a_cluster_arrive_at_each_others_barriers(bench: Bench, policy: str) -> None:
    """Rank 0's barrier gets 4 arrivals and 32 bytes from rank 1, and the other way round."""
    body = f"""{REMOTE}
    @!%p1 bra WAIT;
    mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r12], 48;
    mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [%r12], 16;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r12], 2;
    mbarrier.arrive_drop.release.cluster.shared::cluster.b64 _, [%r12];
    mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r12], 64;
    WAIT:
    L: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r1], 0; @!%p2 bra L;
    barrier.cluster.arrive.release; barrier.cluster.wait.acquire;
    @!%p1 bra OUT;
    mbarrier.arrive.shared::cta.b64 %rd4, [%r1];
    mbarrier.pending_count.b64 %r3, %rd4;
    mul.wide.u32 %rd5, %r9, 4; add.u64 %rd5, %rd5, %rd1; st.global.u32 [%rd5], %r3;
    OUT:"""
    out = bench.put(np.zeros(4, np.uint32))
    module = bench.ptx(f"ld.param.u64 %rd1, [out]; {START}\n{body}\nret;", declarations=SHARED)
    bench.run(module, "k", 4, 64, out, cluster=2, policy=policy)
    assert bench.get(out, 4, np.uint32).tolist() == [3, 3, 3, 3]


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        ("mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r12], 0;", FaultKind.BARRIER_MISUSE),
        ("mbarrier.arrive.shared::cta.b64 %rd2, [%r12];", FaultKind.SHARED_OUT_OF_BOUNDS),
    ],
)
def test_another_ctas_barrier_must_not_be_waited_for_or_used_as_ones_own(
    bench: Bench, form: str, kind: FaultKind
) -> None:
    module = bench.ptx(f"{START}{REMOTE}{form}\nret;", parameters="", declarations=SHARED)
    with pytest.raises(EmulationFault) as caught:
        bench.run(module, "k", 2, 32, cluster=2)
    assert caught.value.kind is kind


def test_an_unrolled_look_before_the_loop_does_not_hold_up_the_outer_loop(bench: Bench) -> None:
    """A pipeline of 50 phases: warp 0 arrives, warp 1 looks once, then loops."""
    body = """
    @%p1 mbarrier.init.shared.b64 [%r1], 1;
    @%p1 mbarrier.init.shared.b64 [%r1+8], 1;
    bar.sync 0;
    mov.u32 %r5, 0; mov.u32 %r6, 0;
    setp.ge.u32 %p3, %r2, 32;
    @%p3 bra CONSUMER;
    PRODUCER: and.b32 %r7, %r5, 1; xor.b32 %r7, %r7, 1;
    PW: mbarrier.try_wait.parity.shared.b64 %p2, [%r1+8], %r7; @!%p2 bra PW;
    @%p1 st.shared.u32 [%r1+16], %r5;
    @%p1 mbarrier.arrive.shared.b64 _, [%r1];
    add.u32 %r5, %r5, 1; setp.lt.u32 %p4, %r5, 50; @%p4 bra PRODUCER;
    ret;
    CONSUMER: and.b32 %r7, %r5, 1;
    mbarrier.try_wait.parity.shared.b64 %p2, [%r1], %r7, 0x989680; @%p2 bra READY;
    CW: mbarrier.try_wait.parity.shared.b64 %p2, [%r1], %r7; @!%p2 bra CW;
    READY: ld.shared.u32 %r8, [%r1+16]; add.u32 %r6, %r6, %r8;
    setp.eq.u32 %p5, %r2, 32;
    @%p5 mbarrier.arrive.shared.b64 _, [%r1+8];
    add.u32 %r5, %r5, 1; setp.lt.u32 %p4, %r5, 50; @%p4 bra CONSUMER;
    st.global.u32 [%rd1], %r6;"""
    assert _values(bench, body, 1, block=64) == [sum(range(50))]
