"""A CTA of a cluster must not end before others are done with its shared memory, whatever the order they ran in."""

from __future__ import annotations

import pytest

from lowdnn.driver.emulated.faults import EmulationFault, FaultKind

POLICIES = ("lockstep", "warp-serial(7)", "cta-reverse", "fuzz(5)")

#: Block 1 uses the shared memory of block 0, and each block does something before it ends.
USE = """
mov.u32 %r1, %cluster_ctarank;
mov.u32 %r2, %tid.x;
mov.u32 %r3, tile;
mov.u32 %r4, signal;
mapa.shared::cluster.u32 %r5, %r3, 0;
mapa.shared::cluster.u32 %r6, %r4, 0;
setp.eq.u32 %p1, %r2, 0;
@%p1 mbarrier.init.shared.b64 [%r4], 1;
@%p1 st.shared.u32 [%r3], 0;
@%p1 st.shared.u32 [%r3+4], 0;
fence.mbarrier_init.release.cluster;
barrier.cluster.arrive;
barrier.cluster.wait;
setp.eq.u32 %p2, %r1, 0;
@%p2 bra OWNER;
@%p1 bra GUEST;
bra GONE;
GUEST:
{use}
GONE:
{guest}
bra END;
OWNER:
{owner}
END: ret;
"""
SHARED = ".shared .align 16 .b8 tile[128]; .shared .align 8 .b64 signal;"
BARRIER = "barrier.cluster.arrive; barrier.cluster.wait;"
RELAXED = "barrier.cluster.arrive.relaxed; barrier.cluster.wait;"
ARRIVE = "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];"
WAIT = "LOOK: mbarrier.try_wait.parity{order}.shared.b64 %p3, [%r4], 0; @!%p3 bra LOOK;"
FLAG = "st.release.cluster.shared::cluster.u32 [%r5+4], 1;"
SEE = "LOOK: ld.{order}.cluster.shared.u32 %r8, [%r3+4]; setp.eq.u32 %p3, %r8, 0; @%p3 bra LOOK;"
SEND = "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r5], 7, [%r6];"
EXPECT = "@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r4], 4;"
USES = [
    "ld.shared::cluster.u32 %r7, [%r5];",
    "st.shared::cluster.u32 [%r5], 1;",
    "atom.shared::cluster.add.u32 %r7, [%r5], 1;",
    ARRIVE,
]


def _run(bench, policy, *, use, guest="", owner="", **options):
    module = bench.ptx(USE.format(use=use, guest=guest, owner=owner), declarations=SHARED)
    bench.run(module, "k", 2, 64, bench.empty(4), cluster=2, races=True, policy=policy, **options)


def _fault(bench, policy, **parts):
    with pytest.raises(EmulationFault) as caught:
        _run(bench, policy, **parts)
    assert caught.value.kind is FaultKind.USE_AFTER_FREE, str(caught.value)
    return caught.value.report


@pytest.mark.parametrize("end", [BARRIER, RELAXED])
def test_blocks_without_a_cluster_meet_alone(bench, end):
    bench.run(bench.ptx(f"{end} ret;"), "k", 2, 64, bench.empty(4), races=True)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("use", USES)
def test_a_use_that_nothing_ends_is_reported(bench, policy, use):
    _fault(bench, policy, use=use)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("end", [BARRIER, RELAXED])
def test_a_barrier_of_the_cluster_ends_every_use(bench, policy, use, end):
    _run(bench, policy, use=use, guest=end, owner=end)


def test_the_report_names_both_blocks(bench):
    report = _fault(bench, "lockstep", use=USES[0])
    assert "block (0, 0, 0) ends" in report.message
    assert "warp 0 of block (1, 0, 0)" in report.message
    assert "ld.shared::cluster.u32" in report.message
    assert report.block == (0, 0, 0)
    assert report.ptx_text.endswith("ret;")


def test_a_barrier_before_the_use_does_not_end_it(bench):
    _fault(bench, "lockstep", use=BARRIER + USES[0], owner=BARRIER)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("order", ["", ".relaxed.cluster"])
def test_waiting_for_the_arrival_ends_what_came_before_it(bench, policy, order):
    _run(bench, policy, use=USES[0] + ARRIVE, owner=WAIT.format(order=order))


def test_the_arrival_does_not_end_what_comes_after_it(bench):
    _fault(bench, "lockstep", use=ARRIVE + USES[0], owner=WAIT.format(order=""))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("order", ["acquire", "relaxed"])
def test_a_flag_that_the_owner_sees_ends_the_use(bench, policy, order):
    _run(bench, policy, use=USES[0] + FLAG, owner=SEE.format(order=order))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("landing", ["late", "early"])
def test_a_copy_into_the_owner_ends_when_the_owner_has_waited(bench, policy, landing):
    _run(bench, policy, use=SEND, owner=EXPECT + WAIT.format(order=""), landing=landing)


def test_a_copy_that_has_landed_unseen_is_reported(bench):
    report = _fault(bench, "lockstep", use=SEND, owner=EXPECT, landing="early")
    assert "st.async" in report.message
