"""Orders of accesses besides barriers of a CTA: fences, mbarriers, clusters, dependent launches; and proxy fences."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.driver.emulated.faults import EmulationFault, FaultKind

POLICIES = ("lockstep", "warp-serial(7)", "cta-reverse")

#: Block 0 writes out[0], then out[1] as a flag; block 1 waits for the flag and copies out[0] to out[2].
MESSAGE = """
ld.param.u64 %rd1, [out];
mov.u32 %r1, %ctaid.x;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra RECEIVE;
st.global.u32 [%rd1], 42;
{send}
bra.uni END;
RECEIVE:
{receive}
setp.eq.u32 %p2, %r2, 0;
@%p2 bra RECEIVE;
{seen}
ld.global.u32 %r3, [%rd1];
st.global.u32 [%rd1+8], %r3;
END: ret;
"""
RELEASE = "st.release.gpu.global.u32 [%rd1+4], 1;"
ACQUIRE = "ld.acquire.gpu.global.u32 %r2, [%rd1+4];"
STORE = "st.relaxed.gpu.global.u32 [%rd1+4], 1;"
LOAD = "ld.relaxed.gpu.global.u32 %r2, [%rd1+4];"
ADD = "red.relaxed.gpu.global.add.u32 [%rd1+4], 1;"
FENCE = "fence.acq_rel.gpu;"
ORDERED = [
    (RELEASE, ACQUIRE, ""),
    (f"{FENCE} {STORE}", LOAD, FENCE),
    (f"membar.gl; {ADD}", "atom.global.or.b32 %r2, [%rd1+4], 0;", "membar.gl;"),
    ("atom.acq_rel.gpu.global.exch.b32 %r5, [%rd1+4], 1;", ACQUIRE, ""),
]
UNORDERED = [
    (STORE, ACQUIRE, ""),
    (RELEASE, LOAD, ""),
    (f"{STORE} {FENCE}", LOAD, FENCE),
    (f"fence.acq_rel.cta; {STORE}", LOAD, FENCE),
    (f"{FENCE} {STORE}", LOAD, "fence.acq_rel.cta;"),
    (RELEASE.replace(".gpu", ".cta"), ACQUIRE, ""),
]

#: Warp 0 fills 32 words of shared memory, warp 1 waits at an mbarrier for it.
HANDOVER = """
mov.u32 %r1, %tid.x;
mov.u32 %r2, tile;
mov.u32 %r3, signal;
and.b32 %r4, %r1, 31;
shl.b32 %r4, %r4, 2;
add.u32 %r5, %r2, %r4;
setp.ne.u32 %p1, %r1, 0;
@!%p1 mbarrier.init.shared.b64 [%r3], 32;
{made}
setp.ge.u32 %p2, %r1, 32;
@%p2 bra CONSUME;
st.shared.u32 [%r5], %r1;
mbarrier.arrive.{arrive}.cta.shared.b64 _, [%r3];
bra.uni END;
CONSUME:
mbarrier.try_wait.parity.{wait}.cta.shared.b64 %p3, [%r3], 0;
@!%p3 bra CONSUME;
ld.shared.u32 %r6, [%r5];
ld.param.u64 %rd1, [out];
cvt.u64.u32 %rd2, %r4;
add.u64 %rd1, %rd1, %rd2;
st.global.u32 [%rd1], %r6;
END: ret;
"""
SHARED = ".shared .align 16 .b8 tile[128]; .shared .align 8 .b64 signal;"

#: A warp fills 128 bytes and sends them to global memory.
SEND = """
mov.u32 %r1, %tid.x;
mov.u32 %r2, tile;
shl.b32 %r4, %r1, 2;
add.u32 %r5, %r2, %r4;
st.shared.u32 [%r5], %r1;
{fence}
bar.sync 0;
ld.param.u64 %rd1, [out];
setp.eq.u32 %p1, %r1, 0;
@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 128;
cp.async.bulk.commit_group;
{wait}
bar.sync 0;
{then}
cp.async.bulk.wait_group 0;
"""

#: Each block of a cluster of two writes to the other's shared memory and reads its own.
EXCHANGE = """
mov.u32 %r1, %cluster_ctarank;
xor.b32 %r2, %r1, 1;
mov.u32 %r3, tile;
mapa.shared::cluster.u32 %r4, %r3, %r2;
st.shared::cluster.u32 [%r4], %r1;
barrier.cluster.arrive.{order};
barrier.cluster.wait;
ld.shared.u32 %r5, [%r3];
ld.param.u64 %rd1, [out];
mul.wide.u32 %rd2, %r1, 4;
add.u64 %rd1, %rd1, %rd2;
mov.u32 %r6, %tid.x;
setp.eq.u32 %p1, %r6, 0;
@%p1 st.global.u32 [%rd1], %r5;
barrier.cluster.arrive;
barrier.cluster.wait;
"""


def _fault(bench, module, *arguments, **options):
    with pytest.raises(EmulationFault) as caught:
        bench.run(module, "k", *arguments, races=True, **options)
    return caught.value.report


def _message(bench, send, receive, seen):
    return bench.ptx(MESSAGE.format(send=send, receive=receive, seen=seen)), bench.put(np.zeros(3, np.uint32), "out")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize(("send", "receive", "seen"), ORDERED)
def test_release_and_acquire_order_blocks(bench, policy, cluster, send, receive, seen):
    """Blocks of one cluster are ordered, too."""
    module, out = _message(bench, send, receive, seen)
    bench.run(module, "k", 2, 1, out, races=True, policy=policy, cooperative=True, cluster=cluster)
    assert bench.get(out, 3, np.uint32).tolist() == [42, 1, 42]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize(("send", "receive", "seen"), UNORDERED)
def test_half_a_pattern_orders_nothing(bench, policy, cluster, send, receive, seen):
    module, out = _message(bench, send, receive, seen)
    report = _fault(bench, module, 2, 1, out, policy=policy, cooperative=True, cluster=cluster)
    assert report.kind is FaultKind.DATA_RACE
    assert report.buffer == "out"


def test_order_is_handed_on_by_read_modify_writes(bench):
    """Block 1 adds to the flag that block 0 has released; block 2, which acquires from that, sees what 0 wrote."""
    module = bench.ptx("""
        ld.param.u64 %rd1, [out];
        mov.u32 %r1, %ctaid.x;
        setp.eq.u32 %p1, %r1, 0;
        @%p1 st.global.u32 [%rd1], 42;
        @%p1 st.release.gpu.global.u32 [%rd1+4], 1;
        @%p1 bra END;
        setp.eq.u32 %p1, %r1, 1;
        sub.u32 %r4, 3, %r1;
        WAIT: ld.acquire.gpu.global.u32 %r2, [%rd1+4];
        setp.lt.u32 %p2, %r2, %r1;
        @%p2 bra WAIT;
        @%p1 red.relaxed.gpu.global.add.u32 [%rd1+4], 1;
        @!%p1 ld.global.u32 %r3, [%rd1];
        END: ret;""")
    bench.run(module, "k", 3, 1, bench.put(np.zeros(2, np.uint32)), races=True, cooperative=True)


def test_a_read_modify_write_hands_on_what_others_released(bench):
    """Blocks 0 and 1 write a word each and add to the flag; block 2, which acquires it, sees both."""
    module = bench.ptx("""
        ld.param.u64 %rd1, [out];
        mov.u32 %r1, %ctaid.x;
        setp.eq.u32 %p1, %r1, 2;
        @%p1 bra WAIT;
        mul.wide.u32 %rd2, %r1, 4;
        add.u64 %rd2, %rd1, %rd2;
        st.global.u32 [%rd2+4], 42;
        red.release.gpu.global.add.u32 [%rd1], 1;
        bra END;
        WAIT: ld.acquire.gpu.global.u32 %r2, [%rd1];
        setp.lt.u32 %p2, %r2, 2;
        @%p2 bra WAIT;
        ld.global.u32 %r3, [%rd1+4];
        ld.global.u32 %r4, [%rd1+8];
        END: ret;""")
    bench.run(module, "k", 3, 1, bench.put(np.zeros(3, np.uint32)), races=True, cooperative=True)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_mbarrier_orders_those_who_arrive_and_wait(bench, policy):
    right = {"made": "bar.sync 0;", "arrive": "release", "wait": "acquire"}
    out = bench.empty(128)
    bench.run(bench.ptx(HANDOVER.format(**right), declarations=SHARED), "k", 3, 64, out, races=False, policy=policy)
    bench.run(bench.ptx(HANDOVER.format(**right), declarations=SHARED), "k", 1, 64, out, races=True, policy=policy)
    assert bench.get(out, 32, np.uint32).tolist() == list(range(32))
    for part, text in (("arrive", "relaxed"), ("wait", "relaxed")):
        module = bench.ptx(HANDOVER.format(**{**right, part: text}), declarations=SHARED)
        report = _fault(bench, module, 1, 64, out, policy=policy)
        assert report.kind is FaultKind.DATA_RACE
        assert "warp 0 of block (0, 0, 0)" in report.message


def test_an_mbarrier_is_made_before_it_is_used(bench):
    module = bench.ptx(HANDOVER.format(made="", arrive="release", wait="acquire"), declarations=SHARED)
    report = _fault(bench, module, 1, 64, bench.empty(128))
    assert report.kind is FaultKind.DATA_RACE
    assert "mbarrier.init" in report.message


@pytest.mark.parametrize("landing", ["late", "early"])
def test_what_a_bulk_copy_reads_needs_a_fence_and_a_wait(bench, landing):
    right = {
        "fence": "fence.proxy.async;",
        "wait": "cp.async.bulk.wait_group.read 0;",
        "then": "st.shared.u32 [%r5], 0;",
    }
    out = bench.empty(128)

    def module(**changes):
        return bench.ptx(SEND.format(**{**right, **changes}), declarations=SHARED)

    bench.run(module(), "k", 1, 32, out, races=True, landing=landing)
    assert bench.get(out, 32, np.uint32).tolist() == list(range(32))
    report = _fault(bench, module(fence=""), 1, 32, out, landing=landing)
    assert report.kind is FaultKind.MISSING_PROXY_FENCE
    assert "st.shared.u32" in report.message
    report = _fault(bench, module(wait=""), 1, 32, out, landing=landing)
    assert report.kind is FaultKind.DATA_RACE
    assert "a bulk copy of warp 0" in report.message
    report = _fault(bench, module(then="ld.global.u32 %r6, [%rd1];"), 1, 32, out, landing=landing, checks=False)
    assert report.kind is FaultKind.DATA_RACE


@pytest.mark.parametrize("policy", POLICIES)
def test_a_cluster_barrier_orders_its_blocks(bench, policy):
    out = bench.empty(8)
    module = bench.ptx(EXCHANGE.format(order="release"), declarations=SHARED)
    bench.run(module, "k", 2, 32, out, cluster=2, races=True, policy=policy)
    assert bench.get(out, 2, np.uint32).tolist() == [1, 0]
    relaxed = bench.ptx(EXCHANGE.format(order="relaxed"), declarations=SHARED)
    report = _fault(bench, relaxed, 2, 32, out, cluster=2, policy=policy)
    assert (report.kind, report.buffer, report.buffer_offset) == (FaultKind.DATA_RACE, "shared memory", 0)


def test_a_dependent_launch_waits_for_its_predecessor(bench):
    out = bench.put(np.zeros(2, np.uint32), "out")
    first = bench.ptx("ld.param.u64 %rd1, [out]; st.global.u32 [%rd1], 7; ld.global.u32 %r1, [%rd1+4];")
    body = "ld.param.u64 %rd1, [out]; {wait} ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd1+4], %r1;"
    waits, hurries = bench.ptx(body.format(wait="griddepcontrol.wait;")), bench.ptx(body.format(wait=""))
    bench.run(first, "k", 1, 1, out, races=True)
    bench.run(waits, "k", 1, 1, out, races=True, programmatic=True)
    bench.run(first, "k", 1, 1, out, races=True)
    bench.run(hurries, "k", 1, 1, out, races=True)
    bench.run(first, "k", 1, 1, out, races=True)
    report = _fault(bench, hurries, 1, 1, out, programmatic=True)
    assert report.kind is FaultKind.DATA_RACE
    assert "launch of k before it" in report.message
