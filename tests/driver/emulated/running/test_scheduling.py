"""Divergence, reconvergence, barriers, warp-synchronous instructions and policies."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.driver.emulated.faults import EmulationFault, FaultKind

POLICIES = ("lockstep", "warp-serial(7)", "cta-reverse", "fuzz(2)", "fuzz(9)")

TRANSPOSE = """
extern "C" __global__ void k(const int* x, int* y) {
  __shared__ int tile[128];
  int t = threadIdx.x;
  tile[t] = x[blockIdx.x * 128 + t];
  %s
  y[blockIdx.x * 128 + t] = tile[127 - t];
}
"""


@pytest.mark.parametrize("policy", POLICIES)
def test_barrier_orders_shared_memory(bench, compile_cuda, policy):
    module = bench.machine.load(compile_cuda(TRANSPOSE % "__syncthreads();"))
    x = np.arange(5 * 128, dtype=np.int32)
    y = bench.empty(x.nbytes)
    bench.run(module, "k", 5, 128, bench.put(x), y, policy=policy)
    assert (bench.get(y, (5, 128), np.int32) == x.reshape(5, 128)[:, ::-1]).all()


@pytest.mark.parametrize("seed", range(3))
def test_missing_barrier_is_found_by_running_warps_one_by_one(bench, compile_cuda, seed):
    module = bench.machine.load(compile_cuda(TRANSPOSE % ""))
    x = bench.put(np.arange(128, dtype=np.int32))
    y = bench.empty(512)
    bench.run(module, "k", 1, 128, x, y, policy="lockstep")
    with pytest.raises(EmulationFault) as caught:
        bench.run(module, "k", 1, 128, x, y, policy=f"warp-serial({seed})")
    assert caught.value.kind is FaultKind.UNINITIALISED_READ


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("threads", [32, 100, 256])
def test_every_lane_takes_its_own_way_through_loops_and_branches(bench, compile_cuda, policy, threads):
    source = """
extern "C" __global__ void k(int* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int c = i, steps = 0;
  while (c > 1) { c = (c & 1) ? 3 * c + 1 : c / 2; steps++; if (steps == 90) break; }
  switch (i % 5) {
    case 0: steps += 1000; break;
    case 1: steps *= 3; break;
    case 3: steps = -steps; break;
    default: break;
  }
  y[i] = steps;
}
"""
    module = bench.machine.load(compile_cuda(source))
    n = 777
    y = bench.empty(4 * n)
    bench.run(module, "k", -(-n // threads), threads, y, np.int32(n), policy=policy)
    assert (bench.get(y, n, np.int32) == [_collatz(i) for i in range(n)]).all()


def _collatz(i: int) -> int:
    c, steps = i, 0
    while c > 1:
        c = 3 * c + 1 if c & 1 else c // 2
        steps += 1
        if steps == 90:
            break
    return {0: steps + 1000, 1: steps * 3, 3: -steps}.get(i % 5, steps)


@pytest.mark.parametrize("policy", POLICIES)
def test_shuffle_waits_for_lanes_that_loop_longer(bench, compile_cuda, policy):
    source = """
extern "C" __global__ void k(int* y) {
  int t = threadIdx.x, s = 0;
  for (int i = 0; i < t % 7; i++) s += i * t + 1;
  for (int m = 16; m; m >>= 1) s += __shfl_xor_sync(0xffffffffu, s, m);
  int half = (t & 16) ? __shfl_sync(0xffff0000u, t, 20) : __shfl_down_sync(0x0000ffffu, t, 3, 16);
  y[2 * t] = s; y[2 * t + 1] = half;
}
"""
    module = bench.machine.load(compile_cuda(source))
    y = bench.empty(8 * 96)
    bench.run(module, "k", 1, 96, y, policy=policy)
    got = bench.get(y, (96, 2), np.int32)
    own = np.array([sum(i * t + 1 for i in range(t % 7)) for t in range(96)])
    assert (got[:, 0] == own.reshape(3, 32).sum(1).repeat(32)).all()
    lane, base = np.arange(96) % 32, np.arange(96) // 32 * 32
    down = np.where(lane % 16 + 3 < 16, lane + 3, lane)
    assert (got[:, 1] == base + np.where(lane >= 16, 20, down)).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_votes_matches_and_masks_of_part_of_a_warp(bench, compile_cuda, policy):
    source = """
extern "C" __global__ void k(unsigned* y) {
  unsigned t = threadIdx.x, out = 0, same = 0;
  if (t % 3 == 0) { unsigned m = __activemask(); out = __ballot_sync(m, t % 2); same = __match_any_sync(m, t % 4); }
  y[2 * t] = out; y[2 * t + 1] = same;
}
"""
    module = bench.machine.load(compile_cuda(source))
    y = bench.empty(8 * 32)
    bench.run(module, "k", 1, 32, y, policy=policy)
    got = bench.get(y, (32, 2), np.uint32)
    for t in range(32):
        inside = t % 3 == 0
        assert got[t, 0] == (sum(1 << i for i in range(0, 32, 3) if i % 2) if inside else 0)
        assert got[t, 1] == (sum(1 << i for i in range(0, 32, 3) if i % 4 == t % 4) if inside else 0)


@pytest.mark.parametrize("policy", POLICIES)
def test_syncthreads_count_and_or_of_each_block(bench, compile_cuda, policy):
    source = """
extern "C" __global__ void k(int* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  int count = __syncthreads_count(i % 3 == 0), any = __syncthreads_or(i == 70), all = __syncthreads_and(i >= 96);
  y[i] = count * 100 + any * 10 + all;
}
"""
    module = bench.machine.load(compile_cuda(source))
    y = bench.empty(4 * 192)
    bench.run(module, "k", 2, 96, y, policy=policy)
    got = bench.get(y, (2, 96), np.int32)
    assert (got[0] == 32 * 100 + 10).all()
    assert (got[1] == 32 * 100 + 1).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_named_barriers_of_a_producer_and_a_consumer(bench, compile_cuda, policy):
    source = r"""
extern "C" __global__ void k(int* y) {
  __shared__ int box[32];
  int t = threadIdx.x, sum = 0;
  for (int round = 0; round < 4; round++) {
    if (t < 32) {
      if (round) asm volatile("bar.sync 2, 64;" ::: "memory");
      box[t] = round * 100 + t;
      asm volatile("bar.arrive 1, 64;" ::: "memory");
    } else {
      asm volatile("bar.sync 1, 64;" ::: "memory");
      sum += box[63 - t];
      if (round < 3) asm volatile("bar.arrive 2, 64;" ::: "memory");
    }
  }
  y[t] = sum;
}
"""
    module = bench.machine.load(compile_cuda(source))
    y = bench.empty(4 * 64)
    bench.run(module, "k", 1, 64, y, policy=policy)
    assert (bench.get(y, 64, np.int32)[32:] == [600 + 4 * (31 - t) for t in range(32)]).all()


def test_threads_that_have_exited_are_not_waited_for(bench):
    body = """
.shared .align 4 .b8 s[4];
ld.param.u64 %rd1, [out];
mov.u32 %r1, %tid.x;
setp.ge.u32 %p1, %r1, 64;
@%p1 exit;
bar.sync 0;
mul.wide.u32 %rd2, %r1, 4;
add.s64 %rd1, %rd1, %rd2;
st.global.u32 [%rd1], %r1;
ret;"""
    y = bench.empty(256)
    bench.run(bench.ptx(body), "k", 1, 96, y)
    assert (bench.get(y, 64, np.uint32) == np.arange(64)).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_flag_between_blocks_of_one_batch(bench, compile_cuda, policy):
    """The first block waits for the last one: a spin must let others run."""
    source = """
extern "C" __global__ void k(volatile int* flag, int* y) {
  if (threadIdx.x == 0) {
    if (blockIdx.x == gridDim.x - 1) { y[1] = 5; __threadfence(); *flag = 1; }
    if (blockIdx.x == 0) { while (*flag == 0) { } y[0] = y[1] + 1; }
  }
}
"""
    module = bench.machine.load(compile_cuda(source))
    y = bench.put(np.zeros(2, np.int32))
    bench.run(module, "k", 4, 32, bench.put(np.zeros(1, np.int32)), y, policy=policy)
    assert bench.get(y, 2, np.int32).tolist() == [6, 5]


@pytest.mark.parametrize("policy", POLICIES)
def test_cooperative_launch_keeps_all_blocks_together(bench, compile_cuda, policy):
    source = """
extern "C" __global__ void k(volatile int* arrived, int* y) {
  __syncthreads();
  if (threadIdx.x == 0) { atomicAdd((int*)arrived, 1); while (*arrived < gridDim.x) { } }
  __syncthreads();
  y[blockIdx.x * 64 + threadIdx.x] = *arrived;
}
"""
    module = bench.machine.load(compile_cuda(source))
    arrived, y = bench.put(np.zeros(1, np.int32)), bench.empty(4 * 64 * 6)
    with pytest.raises(EmulationFault) as caught:
        bench.run(module, "k", 6, 64, arrived, y, policy=policy, lane_budget=128)
    assert caught.value.kind is FaultKind.DEADLOCK
    bench.memory.fill(arrived, 0, 4)
    bench.run(module, "k", 6, 64, arrived, y, policy=policy, lane_budget=128, cooperative=True)
    assert (bench.get(y, 6 * 64, np.int32) == 6).all()


@pytest.mark.parametrize(
    "goes_on", ["turn < 5000 || *stop", "clock64() - start < 200000 || *stop"], ids=["counts turns", "looks at a clock"]
)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_waiting_loop_may_end_although_nobody_stores(bench, compile_cuda, policy, goes_on):
    source = f"""
extern "C" __global__ void k(volatile int* stop, int* turns) {{
  long long start = clock64(); int turn = 0;
  while ({goes_on}) turn++;
  turns[threadIdx.x] = turn;
}}
"""
    module = bench.machine.load(compile_cuda(source))
    turns = bench.empty(4 * 64)
    bench.run(module, "k", 1, 64, bench.put(np.zeros(1, np.int32)), turns, policy=policy)
    assert (bench.get(turns, 64, np.int32) >= 1000).all()


def test_a_loop_whose_turns_are_all_the_same_is_a_deadlock_after_a_few(bench, compile_cuda):
    source = """
extern "C" __global__ void k(volatile int* flag, int* y) { while (*flag == 0) { } *y = 1; }
"""
    module = bench.machine.load(compile_cuda(source))
    before = bench.machine.clock.cycles
    with pytest.raises(EmulationFault) as caught:
        bench.run(module, "k", 200, 1024, bench.put(np.zeros(1, np.int32)), bench.empty(4))
    assert caught.value.kind is FaultKind.DEADLOCK
    assert bench.machine.clock.cycles - before < 20_000


@pytest.mark.parametrize("policy", POLICIES)
def test_lock_by_compare_and_swap(bench, compile_cuda, policy):
    source = """
extern "C" __global__ void k(float* sum, int* counter) {
  atomicAdd(counter, 1);
  unsigned* bits = (unsigned*)sum; unsigned old = *bits, seen;
  do {
    seen = old;
    old = atomicCAS(bits, seen, __float_as_uint(__uint_as_float(seen) + threadIdx.x));
  } while (old != seen);
}
"""
    module = bench.machine.load(compile_cuda(source))
    total, counter = bench.put(np.zeros(1, np.float32)), bench.put(np.zeros(1, np.int32))
    bench.run(module, "k", 2, 64, total, counter, policy=policy)
    assert bench.get(total, 1, np.float32)[0] == 2 * sum(range(64))
    assert bench.get(counter, 1, np.int32)[0] == 128


@pytest.mark.parametrize("budget", [32, 100, 1 << 15])
def test_lane_budget_does_not_change_results(bench, compile_cuda, budget):
    module = bench.machine.load(compile_cuda(TRANSPOSE % "__syncthreads();"))
    x = np.arange(9 * 128, dtype=np.int32)
    y = bench.empty(x.nbytes)
    bench.run(module, "k", 9, 128, bench.put(x), y, lane_budget=budget)
    assert (bench.get(y, (9, 128), np.int32) == x.reshape(9, 128)[:, ::-1]).all()


def test_coordinates_in_three_dimensions(bench, compile_cuda):
    source = """
extern "C" __global__ void k(int* y) {
  int t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  int b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  int thread = (threadIdx.x * 10 + threadIdx.y) * 10 + threadIdx.z;
  y[b * 24 + t] = thread * 1000 + (blockIdx.x * 10 + blockIdx.y) * 10 + blockIdx.z;
}
"""
    module = bench.machine.load(compile_cuda(source))
    y = bench.empty(4 * 24 * 12)
    bench.run(module, "k", (3, 2, 2), (2, 3, 4), y)
    got = bench.get(y, (12, 24), np.int32)
    for b in range(12):
        for t in range(24):
            thread = (t % 2 * 10 + t // 2 % 3) * 10 + t // 6
            assert got[b, t] == thread * 1000 + (b % 3 * 10 + b // 3 % 2) * 10 + b // 6
