"""Clusters: the order of their CTAs, distributed shared memory, its addresses, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lowdnn.driver.emulated.faults import EmulationFault, FaultKind
from lowdnn.driver.emulated.lanes import Geometry
from lowdnn.driver.emulated.memory.address import Address, shared_bytes
from lowdnn.driver.emulated.memory.arena import SHARED_WINDOW, Arena
from lowdnn.driver.emulated.running.batch import SHARED_START, Batch, Group
from lowdnn.driver.emulated.running.policy import Policy
from tests.driver.emulated.conftest import POLICIES, Bench

#: r1 = thread, r2 = rank, rd1 = out + 4 * (linear block * threads + thread); grids here are (n, 1, 1).
_HEAD = """
    mov.u32 %r1, %tid.x; mov.u32 %r2, %cluster_ctarank; mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x;
    mad.lo.u32 %r5, %r3, %r4, %r1; ld.param.u64 %rd1, [out]; mad.wide.u32 %rd1, %r5, 4, %rd1;
"""
_SHARED = ".shared .align 16 .b32 s[64];"


def _faults(bench: Bench, body: str, cluster: Any = 2, grid: int = 4, **options: Any) -> EmulationFault:
    module = bench.ptx(_HEAD + body, declarations=_SHARED)
    out = bench.empty(4 * grid * 32)
    with pytest.raises(EmulationFault) as caught:
        bench.run(module, "k", grid, 32, out, cluster=cluster, **options)
    return caught.value


@pytest.mark.parametrize("per_batch", [1, 12, 1 << 15])
def test_ranks_and_ids_of_a_cluster_follow_its_coordinates(bench: Bench, per_batch: int) -> None:
    names = ("ctaid.x", "ctaid.y", "ctaid.z", "clusterid.x", "clusterid.y", "clusterid.z", "nclusterid.x",
             "nclusterid.y", "nclusterid.z", "cluster_ctaid.x", "cluster_ctaid.y", "cluster_ctaid.z",
             "cluster_nctaid.x", "cluster_nctaid.y", "cluster_nctaid.z", "cluster_ctarank",
             "cluster_nctarank")  # fmt: skip
    stores = "\n".join(f"mov.u32 %r1, %{name}; st.global.u32 [%rd1+{4 * i}], %r1;" for i, name in enumerate(names))
    module = bench.ptx(f"""
        mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %ctaid.z; mad.lo.u32 %r1, %r3, 3, %r2;
        mov.u32 %r4, %ctaid.x; mad.lo.u32 %r1, %r1, 4, %r4; ld.param.u64 %rd1, [out];
        mad.wide.u32 %rd1, %r1, {4 * len(names)}, %rd1; {stores}""")
    out = bench.empty(4 * len(names) * 24)
    bench.run(module, "k", (4, 3, 2), 1, out, cluster=(2, 1, 2), lane_budget=32 * per_batch)
    z, y, x = np.indices((2, 3, 4))
    one = np.ones_like(x)
    expected = [x, y, z, x // 2, y, z // 2, 2 * one, 3 * one, one, x % 2, 0 * one, z % 2, 2 * one, one, 2 * one,
                x % 2 + 2 * (z % 2), 4 * one]  # fmt: skip
    got = bench.get(out, (2, 3, 4, len(names)), np.uint32)
    for place, values in enumerate(expected):
        assert np.array_equal(got[..., place], values), names[place]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("window", ["", "generic"])
def test_a_cta_reads_and_adds_in_the_shared_memory_of_its_neighbour(bench: Bench, policy: str, window: str) -> None:
    """Each CTA adds to the next one's counters, and stays until all have."""
    space = "" if window else ".shared::cluster"
    address, register = ("u64", "%rd3") if window else ("u32", "%r9")
    to_generic = "cvt.u64.u32 %rd2, %r7; cvta.shared.u64 %rd2, %rd2;" if window else ""
    source = "%rd2" if window else "%r7"
    module = bench.ptx(
        _HEAD
        + f"""
        mov.u32 %r6, s; shl.b32 %r7, %r1, 2; add.u32 %r7, %r6, %r7; {to_generic}
        st.shared.u32 [%r7], %r3;
        add.u32 %r8, %r2, 1; mov.u32 %r10, %cluster_nctarank; rem.u32 %r8, %r8, %r10;
        mapa{space}.{address} {register}, {source}, %r8;
        getctarank{space}.{address} %r11, {register};
        barrier.cluster.arrive; barrier.cluster.wait;
        atom{space}.add.u32 %r15, [{register}], 1000;
        mad.lo.u32 %r15, %r11, 1000000, %r15; st.global.u32 [%rd1], %r15;
        barrier.cluster.arrive; barrier.cluster.wait;
    """,
        declarations=_SHARED,
    )
    out = bench.empty(4 * 8 * 32)
    bench.run(module, "k", 8, 32, out, cluster=4, policy=policy)
    block = np.arange(8)
    neighbour = block // 4 * 4 + (block + 1) % 4
    expected = np.repeat((neighbour % 4 * 1000000 + neighbour)[:, None], 32, axis=1)
    assert np.array_equal(bench.get(out, (8, 32), np.uint32), expected)


def test_vectors_and_mixed_generic_lanes_reach_other_ctas(bench: Bench) -> None:
    """Even threads read their own CTA, odd ones the other; lane 5 reads global memory."""
    module = bench.ptx(
        _HEAD
        + """
        mov.u32 %r6, s; cvt.u64.u32 %rd2, %r6; cvta.shared.u64 %rd2, %rd2;
        setp.eq.u32 %p1, %r1, 0; add.u32 %r7, %r3, 70; add.u32 %r8, %r3, 80;
        @%p1 st.shared.v2.u32 [%r6], {%r7, %r8}; st.global.u32 [%rd1], 5;
        barrier.cluster.arrive; barrier.cluster.wait;
        and.b32 %r10, %r1, 1; xor.b32 %r10, %r10, %r2; mapa.u64 %rd3, %rd2, %r10;
        ld.param.u64 %rd4, [out]; setp.eq.u32 %p2, %r1, 5; selp.b64 %rd3, %rd4, %rd3, %p2;
        ld.v2.u32 {%r15, %r16}, [%rd3]; mad.lo.u32 %r15, %r16, 1000, %r15;
        isspacep.shared::cta %p3, %rd3; isspacep.shared::cluster %p4, %rd3;
        selp.u32 %r17, 100000, 0, %p3; selp.u32 %r18, 200000, 0, %p4; add.u32 %r17, %r17, %r18;
        @!%p2 add.u32 %r17, %r17, %r15; st.global.u32 [%rd1], %r17;
        barrier.cluster.arrive; barrier.cluster.wait;
        """,
        declarations=_SHARED,
    )
    out = bench.empty(4 * 2 * 32)
    bench.run(module, "k", 2, 32, out, cluster=2)
    block, thread = np.indices((2, 32))
    owner = block ^ (thread & 1)
    expected = 70 + owner + 1000 * (80 + owner) + 200000 + np.where(owner == block, 100000, 0)
    expected[:, 5] = 0
    assert np.array_equal(bench.get(out, (2, 32), np.uint32), expected)


def test_an_access_past_another_ctas_window_names_the_rank(bench: Bench) -> None:
    fault = _faults(
        bench, "mov.u32 %r6, s; mapa.shared::cluster.u32 %r7, %r6, 1; ld.shared::cluster.u32 %r8, [%r7+256];"
    )
    assert fault.kind is FaultKind.SHARED_OUT_OF_BOUNDS
    assert "4 bytes at shared offset 256 of the CTA of rank 1 in a cluster of 2" in fault.report.message


def test_shared_cta_instructions_reach_their_own_cta_only(bench: Bench) -> None:
    body = "mov.u32 %r6, s; mapa.shared::cluster.u32 %r7, %r6, 1; st.shared::cta.u32 [%r7], 1;"
    fault = _faults(bench, body)
    assert fault.kind is FaultKind.SHARED_OUT_OF_BOUNDS
    assert "rank 1; use .shared::cluster" in fault.report.message
    assert fault.report.block == (0, 0, 0)
    own = bench.ptx(_HEAD + body.replace("%r6, 1;", "%r6, %r2;"), declarations=_SHARED)
    bench.run(own, "k", 4, 32, bench.empty(4 * 4 * 32), cluster=2)


def test_a_rank_that_the_cluster_does_not_have_is_a_fault(bench: Bench) -> None:
    fault = _faults(bench, "mov.u32 %r6, s; mapa.shared::cluster.u32 %r7, %r6, 2; st.shared::cluster.u32 [%r7], 1;")
    assert fault.kind is FaultKind.SHARED_OUT_OF_BOUNDS
    assert "rank 2 in a cluster of 2" in fault.report.message


def test_the_shared_memory_of_an_exited_cta_is_gone(bench: Bench) -> None:
    body = """
        setp.eq.u32 %p1, %r2, 1; @%p1 exit;
        mov.u32 %r6, s; mapa.shared::cluster.u32 %r7, %r6, 1; st.shared::cluster.u32 [%r7], 1;
    """
    fault = _faults(bench, body)
    assert fault.kind is FaultKind.USE_AFTER_FREE
    assert "a store into shared memory of the CTA of rank 1, which has exited" in fault.report.message


def test_a_cluster_must_divide_the_grid(bench: Bench) -> None:
    fault = _faults(bench, "ret;", cluster=3)
    assert fault.kind is FaultKind.INVALID_LAUNCH
    assert "divide the grid" in fault.report.message


def test_shared_bytes_resolves_ranks_for_every_kind_of_address() -> None:
    geometry = Geometry((4, 1, 1), (32, 1, 1), np.arange(4), 132, (2, 1, 1))
    picker = Policy.parse("lockstep").picker()
    batch = Batch(geometry, Arena(), [], 64, 0, 0, np.zeros(16, np.uint8), np.uint64(0), True, picker)
    group = Group(batch, None)
    own = np.full(128, SHARED_START + 16, np.uint32)
    first = own | np.uint32(1 << 24)
    stride = batch.shared_stride
    expected_own = SHARED_START + 24 + batch.slot * stride
    expected_first = SHARED_START + 24 + batch.slot // 2 * 2 * stride
    assert np.array_equal(shared_bytes(group, Address(own), 8, 8), expected_own)
    assert np.array_equal(shared_bytes(group, Address(first), 8, 8), expected_first)
    assert np.array_equal(shared_bytes(group, Address(first[0]), 8, 8), expected_first)
    assert np.array_equal(shared_bytes(group, Address(first + np.uint64(SHARED_WINDOW)), 8, 8), expected_first)
    mixed = np.where(np.arange(128) % 2, own, first)
    expected = np.where(np.arange(128) % 2, expected_own, expected_first)
    assert np.array_equal(shared_bytes(group, Address(mixed), 8, 8), expected)
    assert np.array_equal(expected_own // stride, batch.slot)


@pytest.mark.parametrize("policy", [*POLICIES, "warp-serial(3)"])
@pytest.mark.parametrize("aligned", ["", ".aligned"])
def test_the_cluster_barrier_orders_stores_and_remote_loads(bench: Bench, policy: str, aligned: str) -> None:
    """Every thread reads, several rounds, what the next CTA has just stored; reading ends before the next round."""
    module = bench.ptx(
        _HEAD
        + f"""
        mov.u32 %r6, s; shl.b32 %r7, %r1, 2; add.u32 %r7, %r6, %r7; mov.u32 %r20, 0; mov.u32 %r21, 0;
        add.u32 %r8, %r2, 1; mov.u32 %r10, %cluster_nctarank; rem.u32 %r8, %r8, %r10;
        mapa.shared::cluster.u32 %r9, %r7, %r8;
    round: mad.lo.u32 %r11, %r20, 100, %r3; st.shared.u32 [%r7], %r11;
        barrier.cluster.arrive.release{aligned}; barrier.cluster.wait.acquire{aligned};
        ld.shared::cluster.u32 %r12, [%r9]; add.u32 %r21, %r21, %r12;
        barrier.cluster.arrive.relaxed{aligned}; barrier.cluster.wait{aligned};
        add.u32 %r20, %r20, 1; setp.lt.u32 %p1, %r20, 3; @%p1 bra round;
        st.global.u32 [%rd1], %r21;
    """,
        declarations=_SHARED,
    )
    out = bench.empty(4 * 6 * 64)
    bench.run(module, "k", 6, 64, out, cluster=3, policy=policy)
    block = np.arange(6)
    expected = 300 + 3 * (block // 3 * 3 + (block + 1) % 3)
    assert np.array_equal(bench.get(out, (6, 64), np.uint32), np.repeat(expected[:, None], 64, axis=1))


@pytest.mark.parametrize("policy", POLICIES)
def test_exited_threads_are_not_waited_for(bench: Bench, policy: str) -> None:
    module = bench.ptx(
        _HEAD + "setp.gt.u32 %p1, %r1, 40; @%p1 exit; setp.eq.u32 %p2, %r2, 1; @%p2 exit;"
        "barrier.cluster.arrive; barrier.cluster.wait; st.global.u32 [%rd1], 1;"
    )
    out = bench.put(np.zeros(256, np.uint32))
    bench.run(module, "k", 4, 64, out, cluster=2, policy=policy)
    got = bench.get(out, (4, 64), np.uint32)
    assert got[::2, :41].all()
    assert got.sum() == 2 * 41


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("barrier.cluster.arrive; barrier.cluster.arrive;", "has arrived before and has not waited since"),
        ("barrier.cluster.wait;", "has not arrived"),
    ],
)
def test_misuse_of_the_cluster_barrier(bench: Bench, body: str, message: str) -> None:
    fault = _faults(bench, body)
    assert fault.kind is FaultKind.BARRIER_MISUSE
    assert message in fault.report.message
    assert fault.report.block == (0, 0, 0)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_cluster_that_waits_for_ever_is_reported_with_who_is_missing(bench: Bench, policy: str) -> None:
    """Thread 7 of each second CTA waits at a CTA barrier that nobody completes."""
    fault = _faults(
        bench,
        """
        setp.eq.u32 %p1, %r2, 1; setp.eq.and.u32 %p2, %r1, 7, %p1; @%p2 barrier.sync 3, 64;
        barrier.cluster.arrive; barrier.cluster.wait;
        """,
        policy=policy,
    )
    assert fault.kind is FaultKind.DEADLOCK
    assert (
        "barrier.cluster.wait for 1 threads, the first is thread (7, 0, 0) of block (1, 0, 0)" in fault.report.message
    )


@pytest.mark.parametrize("cluster", [1, 2])
def test_is_explicit_cluster_is_a_predicate(bench: Bench, cluster: int) -> None:
    module = bench.ptx(
        _HEAD + "mov.pred %p1, %is_explicit_cluster; selp.u32 %r6, 1, 0, %p1; st.global.u32 [%rd1], %r6;"
    )
    out = bench.empty(4 * 64)
    bench.run(module, "k", 2, 32, out, cluster=cluster)
    assert (bench.get(out, 64, np.uint32) == (cluster > 1)).all()


#: A histogram over a cluster: each block owns some bins, and adds to those of the others in their shared memory.
_HISTOGRAM = r"""
extern "C" __global__ void __cluster_dims__(4, 1, 1) histogram(const unsigned* x, unsigned n, unsigned* bins) {
  __shared__ unsigned mine[64];
  if (threadIdx.x < 64) mine[threadIdx.x] = 0;
  __cluster_barrier_arrive();
  __cluster_barrier_wait();
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    unsigned bin = x[i] & 255;
    auto* owner = static_cast<unsigned*>(__cluster_map_shared_rank(mine, bin >> 6));
    atomicAdd(owner + (bin & 63), 1u);
  }
  __cluster_barrier_arrive();
  __cluster_barrier_wait();
  if (threadIdx.x < 64) atomicAdd(bins + 64 * __clusterRelativeBlockRank() + threadIdx.x, mine[threadIdx.x]);
}
"""


@pytest.mark.parametrize("policy", [*POLICIES, "fuzz(5)"])
def test_a_histogram_in_distributed_shared_memory(
    bench: Bench, compile_cuda: Callable[..., str], rng: np.random.Generator, policy: str
) -> None:
    module = bench.machine.load(compile_cuda(_HISTOGRAM, "compute_90"))
    x = rng.integers(0, 256, 3000).astype(np.uint32)
    bins = bench.put(np.zeros(256, np.uint32))
    bench.run(module, "histogram", 8, 96, bench.put(x), np.uint32(x.size), bins, policy=policy)
    assert np.array_equal(bench.get(bins, 256, np.uint32), np.bincount(x, minlength=256))


def test_a_histogram_without_its_first_barrier_is_found(bench: Bench, compile_cuda: Callable[..., str]) -> None:
    """A block adds to bins that their owner has not cleared."""
    broken = _HISTOGRAM.replace("__cluster_barrier_arrive();\n  __cluster_barrier_wait();\n  for", "for")
    module = bench.machine.load(compile_cuda(broken, "compute_90"))
    x = bench.put(np.full(768, 255, np.uint32))
    with pytest.raises(EmulationFault) as caught:
        bench.run(module, "histogram", 8, 96, x, np.uint32(768), bench.empty(1024), policy="warp-serial(1)")
    assert caught.value.kind in (FaultKind.UNINITIALISED_READ, FaultKind.USE_AFTER_FREE)
