"""The arena: allocation, host access, freed ranges; and state spaces seen from kernels."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.driver.emulated.faults import EmulationFault, FaultKind, LaneFault
from lowdnn.driver.emulated.memory.arena import Arena
from lowdnn.driver.emulated.memory.space import ARENA_BASE
from tests.support.data import fresh_seed


def test_allocations_are_aligned_and_lie_apart():
    arena = Arena()
    places = [arena.allocate(size) for size in (1, 255, 256, 257, 5000)]
    assert all(place % 256 == 0 and place > ARENA_BASE for place in places)
    assert all(b - (a + size) >= 256 for a, b, size in zip(places, places[1:], (1, 255, 256, 257), strict=False))


def test_host_copies_go_both_ways():
    arena = Arena()
    a, b = arena.allocate(100), arena.allocate(100)
    data = np.arange(100, dtype=np.uint8)
    arena.host_write(a, data)
    arena.copy(b + 10, a + 20, 50)
    assert (arena.host_read(b + 10, 50) == data[20:70]).all()
    assert arena.written(b + 10, 50)
    assert not arena.written(b + 9, 1)
    arena.fill(b, 0x01020304, 3, 4)
    assert arena.host_read(b, 12).tolist() == [4, 3, 2, 1] * 3


def test_an_allocation_is_complete_once_all_of_it_is_written():
    arena = Arena()
    written, other = arena.allocate(100), arena.allocate(100)
    arena.fill(written + 50, 1, 50)
    assert not arena.space.at(written).complete
    arena.fill(written, 1, 100)
    assert arena.space.at(written).complete
    arena.copy(written, other, 10)
    assert not arena.space.at(written).complete
    assert (arena.written(written, 10), arena.written(written + 10, 90)) == (False, True)


def test_what_may_be_written():
    arena = Arena()
    constant, other = arena.allocate(100, read_only=True), arena.allocate(100)
    addresses = np.array([constant, constant + 97, other, other + 96], np.uint64)
    inside, writable = arena.inside(addresses, 4)
    assert (inside.tolist(), writable.tolist()) == ([True, False, True, True], [False, False, True, True])


@pytest.mark.parametrize(("start", "size"), [(-1, 4), (97, 4), (100, 1), (0, 101)])
def test_host_access_outside_an_allocation_is_a_fault(start, size):
    arena = Arena()
    address = arena.allocate(100, "x")
    assert arena.around(address + start, address + start + size) is None
    with pytest.raises(LaneFault):
        arena.host_read(address + start, size)
    with pytest.raises(LaneFault):
        arena.host_write(address + start, np.zeros(size, np.uint8))


def test_freed_memory_is_gone_and_its_address_is_not_used_again():
    arena = Arena()
    old = arena.allocate(1 << 20)
    arena.host_write(old, np.ones(1 << 20, np.uint8))
    arena.free(old)
    assert arena.live_bytes == 0
    assert arena.space.at(old) is None
    new = arena.allocate(1 << 20)
    assert new != old
    assert not arena.written(new, 1 << 20)
    with pytest.raises(ValueError, match="live allocation"):
        arena.free(old)


def test_limit_and_reuse_when_the_range_is_full():
    arena = Arena(limit_bytes=1 << 20, range_bytes=1 << 16)
    with pytest.raises(MemoryError, match="free"):
        arena.allocate((1 << 20) + 1)
    first = arena.allocate(30_000)
    arena.allocate(30_000)
    with pytest.raises(MemoryError, match="range"):
        arena.allocate(30_000)
    arena.host_write(first, np.ones(30_000, np.uint8))
    arena.free(first)
    assert arena.allocate(20_000) == first
    assert not arena.written(first, 1)


def test_range_shrinks_to_what_the_host_allows():
    arena = Arena(range_bytes=1 << 47)
    address = arena.allocate(1 << 20)
    arena.host_write(address, np.ones(1 << 20, np.uint8))
    assert arena.written(address, 1 << 20)


SPACES = """
__constant__ int table[4] = {10, 20, 30, 40};
__device__ int counter = 7;
__device__ int* where = &counter;
extern __shared__ int dynamic[];
__device__ __noinline__ int through(const int* p, int i) { return p[i]; }
extern "C" __global__ void k(const int* x, int* y, int which) {
  __shared__ int fixed[32];
  int own[4];
  int t = threadIdx.x;
  fixed[t] = 100 + t; dynamic[t] = 200 + t;
  for (int i = 0; i < 4; i++) own[(i + t) & 3] = 300 + i + t;
  __syncthreads();
  const int* p = (t % 4 == 0) ? x : (t % 4 == 1) ? fixed : (t % 4 == 2) ? dynamic : own;
  y[t] = through(p, (t * which) & 3) + table[t & 3] + *where;
}
"""


@pytest.mark.parametrize("policy", ["lockstep", "warp-serial(1)", "cta-reverse"])
def test_one_generic_load_reaches_every_space(bench, compile_cuda, policy):
    module = bench.machine.load(compile_cuda(SPACES))
    y = bench.empty(128)
    x = bench.put(np.arange(4, dtype=np.int32))
    bench.run(module, "k", 1, 32, x, y, np.int32(3), shared=128, policy=policy)
    for t, got in enumerate(bench.get(y, 32, np.int32)):
        i = 3 * t & 3
        value = (i, 100 + i, 200 + i, 300 + ((i - t) & 3) + t)[t % 4]
        assert got == value + (10, 20, 30, 40)[t & 3] + 7


def test_module_variables_live_until_unload(bench, compile_cuda):
    module = bench.machine.load(compile_cuda(SPACES))
    address, size = module.variables["counter"]
    assert size == 4
    assert bench.get(address, 1, np.int32)[0] == 7
    before = bench.memory.live_bytes
    bench.machine.unload(module)
    assert bench.memory.live_bytes == before - 16 - 4 - 8
    assert bench.memory.space.at(address) is None
    assert not module.functions


def test_parameters_have_an_address(bench, compile_cuda):
    source = """
struct P { int v[8]; long long w; };
extern "C" __global__ void k(const __grid_constant__ P p, long long* y) { y[threadIdx.x] = p.v[threadIdx.x & 7] + p.w; }
"""
    module = bench.machine.load(compile_cuda(source))
    function = module.functions["k"]
    assert [(p.offset, p.size, p.align) for p in function.kernel.parameters] == [(0, 40, 8), (40, 8, 8)]
    block = np.arange(8, dtype=np.int32).tobytes() + np.int64(1000).tobytes()
    y = bench.empty(8 * 32)
    live = bench.memory.live_bytes
    bench.run(module, "k", 1, 32, block, y)
    assert (bench.get(y, 32, np.int64) == 1000 + np.arange(32) % 8).all()
    assert bench.memory.live_bytes == live


@pytest.mark.parametrize(
    ("kind", "dtype", "count"),
    [
        (kind, dtype, count)
        for kind, dtype in (("u8", np.uint8), ("u16", np.uint16), ("u32", np.uint32), ("u64", np.uint64))
        for count in (1, 2, 4)
        if np.dtype(dtype).itemsize * count <= 16
    ],
)
def test_every_width_moves_bytes_as_they_are(bench, rng, kind, dtype, count):
    size = np.dtype(dtype).itemsize * count
    register = {"u8": "%h", "u16": "%h", "u32": "%r", "u64": "%rd"}[kind]
    names = [f"{register}{10 + i}" for i in range(count)]
    vector = f".v{count}" if count > 1 else ""
    operand = "{" + ",".join(names) + "}" if count > 1 else names[0]
    body = f"""
.shared .align 16 .b8 s[{size * 32}];
ld.param.u64 %rd1, [in];
ld.param.u64 %rd2, [out];
mov.u32 %r1, %tid.x;
mul.lo.u32 %r2, %r1, {size};
cvt.u64.u32 %rd3, %r2;
add.u64 %rd1, %rd1, %rd3;
add.u64 %rd2, %rd2, %rd3;
mov.u32 %r3, s;
add.u32 %r3, %r3, %r2;
ld.global.nc.L1::no_allocate.L2::128B{vector}.{kind} {operand}, [%rd1];
st.shared{vector}.{kind} [%r3], {operand};
ld.volatile.shared{vector}.{kind} {operand}, [%r3];
st.global.wt{vector}.{kind} [%rd2], {operand};
ret;"""
    module = bench.ptx(body, ".param .u64 in, .param .u64 out")
    x = rng.integers(0, 256, size * 32, dtype=np.uint8)
    y = bench.empty(x.nbytes)
    bench.run(module, "k", 1, 32, bench.put(x), y)
    assert (bench.get(y, x.size, np.uint8) == x).all()


COPY = r"""
extern "C" __global__ void k(const int4* x, int4* y, int keep) {
  __shared__ int4 box[3][64];
  int t = threadIdx.x;
  unsigned to = (unsigned)__cvta_generic_to_shared(&box[0][t]);
  for (int s = 0; s < 3; s++) {
    asm volatile("cp.async.cg.shared.global [%%0], [%%1], 16, %%2;"
                 :: "r"(to + s * 1024), "l"(x + s * 64 + t), "r"(t < keep ? 16 : 4));
    asm volatile("cp.async.commit_group;");
  }
  for (int s = 0; s < 3; s++) {
    %s
    __syncthreads();
    y[s * 64 + t] = box[s][63 - t];
  }
}
"""


@pytest.mark.parametrize("policy", ["lockstep", "warp-serial(1)", "cta-reverse"])
@pytest.mark.parametrize("landing", ["late", "early"])
def test_asynchronous_copies_land_at_the_wait_and_fill_with_zeros(bench, compile_cuda, rng, policy, landing):
    wait = 'if (s == 0) asm volatile("cp.async.wait_group 2;"); else asm volatile("cp.async.wait_group 0;");'
    module = bench.machine.load(compile_cuda(COPY % wait))
    x = rng.integers(0, 1000, (3, 64, 4), dtype=np.int32)
    y = bench.empty(x.nbytes)
    bench.run(module, "k", 1, 64, bench.put(x), y, np.int32(40), policy=policy, landing=landing)
    kept = x.copy()
    kept[:, 40:, 1:] = 0
    assert (bench.get(y, x.shape, np.int32) == kept[:, ::-1]).all()


@pytest.mark.parametrize("wait", ["", 'asm volatile("cp.async.wait_group 2;");'])
def test_missing_or_lenient_wait_reads_what_has_not_landed(bench, compile_cuda, wait):
    module = bench.machine.load(compile_cuda(COPY % wait))
    x = bench.put(np.zeros((3, 64, 4), np.int32))
    with pytest.raises(EmulationFault) as caught:
        bench.run(module, "k", 1, 64, x, bench.empty(3 * 64 * 16), np.int32(64))
    assert caught.value.kind is FaultKind.UNINITIALISED_READ


def test_asynchronous_copy_past_the_end_is_reported_at_its_issue(bench, compile_cuda):
    module = bench.machine.load(compile_cuda(COPY % 'asm volatile("cp.async.wait_all;");'))
    x = bench.put(np.zeros(3 * 64 * 16 - 16, np.uint8), "x")
    with pytest.raises(EmulationFault) as caught:
        bench.run(module, "k", 1, 64, x, bench.empty(3 * 64 * 16), np.int32(64))
    report = caught.value.report
    assert (report.kind, report.thread, report.buffer) == (FaultKind.OUT_OF_BOUNDS, (63, 0, 0), "x")
    assert report.ptx_text.startswith("cp.async.cg")


@pytest.mark.parametrize("generic", [False, True])
def test_float_sums_flush_subnormals_in_global_memory_only(bench, generic):
    place = "" if generic else ".global"
    body = f"""
.shared .align 4 .b8 s[4];
ld.param.u64 %rd1, [out];
mov.f32 %f1, 0f00000001;
mov.u64 %rd2, s;
cvta.shared.u64 %rd3, %rd2;
mov.u32 %r1, 0;
st.shared.u32 [%rd2], %r1;
red{place}.add.f32 [%rd1], %f1;
red.add.f32 [%rd3], %f1;
ld.shared.u32 %r2, [%rd2];
st.global.u32 [%rd1+4], %r2;
ret;"""
    y = bench.put(np.zeros(2, np.uint32))
    bench.run(bench.ptx(body), "k", 1, 32, y)
    assert bench.get(y, 2, np.uint32).tolist() == [0, 32]


def test_records_of_freed_memory_are_bounded():
    arena = Arena()
    addresses = [arena.allocate(100, f"a{number}") for number in range(3000)]
    for address in addresses:
        arena.free(address)
    assert len(arena.space._allocations) == len(arena.space._starts) == 1024
    assert arena.fault(addresses[-1], 4, None).kind is FaultKind.USE_AFTER_FREE
    assert arena.fault(addresses[0], 4, None).kind is FaultKind.OUT_OF_BOUNDS
    assert not arena.inside(np.array(addresses, np.uint64), 4)[0].any()
    assert arena.allocate(100) > addresses[-1]


def test_a_range_that_is_handed_out_again_and_again():
    """Random sizes and order: live memory never overlaps, is fresh, and is found while there is room."""
    seed = fresh_seed()
    print(f"seed = {seed}")  # noqa: T201
    rng = np.random.default_rng(seed)
    arena = Arena(range_bytes=1 << 20)
    live: dict[int, int] = {}
    for _ in range(3000):
        if live and (len(live) > 40 or rng.random() < 0.45):
            address = int(rng.choice(list(live)))
            arena.free(address)
            del live[address]
            continue
        size = int(rng.integers(1, 8000))
        address = arena.allocate(size)
        assert address % 256 == 0
        assert all(address + size + 256 <= low or low + held + 256 <= address for low, held in live.items())
        assert not arena.shadow[address - ARENA_BASE : address - ARENA_BASE + size].any()
        arena.fill(address, 1, size)
        live[address] = size
    assert arena.live_bytes == sum(live.values())
