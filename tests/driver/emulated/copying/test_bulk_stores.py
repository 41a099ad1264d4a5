"""Bulk stores and reductions to global memory, bulk groups, cp.async on mbarriers, what is wrong with bulk copies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lowdnn.driver.emulated.faults import EmulationFault, FaultKind
from tests.driver.emulated.conftest import POLICIES, Bench
from tests.driver.emulated.copying.test_bulk import PRELUDE

Compile = Callable[..., str]

REDUCE = (
    PRELUDE
    + r"""
// Every CTA reduces its 64 elements into the same ones of out.
extern "C" __global__ void reduce(TYPE* out, const TYPE* in) {
    __shared__ alignas(16) TYPE data[64];
    data[threadIdx.x] = in[blockIdx.x * 64 + threadIdx.x];
    proxy_fence();
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.FORM [%0], [%1], %2;"
                     :: "l"(out), "r"(at(data)), "r"((u32)sizeof data) : "memory");
        commit(); wait_all();
    }
}
"""
)
INTEGERS = {"u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64}
CPP = {
    "u32": "unsigned", "s32": "int", "u64": "unsigned long long", "s64": "long long", "b32": "unsigned",
    "b64": "unsigned long long", "f32": "float", "f64": "double",
}  # fmt: skip
REDUCTIONS = [
    *(f"{op}.{kind}" for op in ("min", "max") for kind in INTEGERS), "add.u32", "add.s32", "add.u64", "add.f32",
    "add.f64", "inc.u32", "dec.u32", *(f"{op}.{kind}" for op in ("and", "or", "xor") for kind in ("b32", "b64")),
]  # fmt: skip
FUNCTIONS = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "inc": lambda old, top: np.where(old >= top, 0, old + 1),
    "dec": lambda old, top: np.where((old == 0) | (old > top), top, old - 1),
}  # fmt: skip


@pytest.mark.parametrize("landing", ["late", "early"])
@pytest.mark.parametrize("form", REDUCTIONS)
def test_bulk_reductions_to_global_memory(
    bench: Bench, compile_cuda: Compile, rng: np.random.Generator, form: str, landing: str
) -> None:
    """CTAs take their turns in order; floats are small integers, so that the order does not show."""
    operation, kind = form.split(".")
    dtype = {"b32": np.uint32, "b64": np.uint64, "f32": np.float32, "f64": np.float64, **INTEGERS}[kind]
    values = rng.integers(0, 100, (4, 64)).astype(dtype)
    module = bench.machine.load(
        compile_cuda(f"#define TYPE {CPP[kind]}\n" + REDUCE.replace("FORM", form), "compute_90a")
    )
    out = bench.put(values[0])
    bench.run(module, "reduce", 3, 64, out, bench.put(values[1:]), landing=landing)
    expected = values[0]
    for row in values[1:]:
        expected = FUNCTIONS[operation](expected, row).astype(dtype)
    np.testing.assert_array_equal(bench.get(out, 64, dtype), expected)


HALVES = {"add.noftz.f16": np.add, "min.f16": np.minimum, "max.f16": np.maximum}


@pytest.mark.parametrize("form", HALVES)
def test_bulk_reductions_of_halves(bench: Bench, compile_cuda: Compile, rng: np.random.Generator, form: str) -> None:
    values = rng.integers(-50, 50, (2, 64)).astype(np.float16)
    module = bench.machine.load(compile_cuda("#define TYPE short\n" + REDUCE.replace("FORM", form), "compute_90a"))
    out = bench.put(values[0])
    bench.run(module, "reduce", 1, 64, out, bench.put(values[1]))
    np.testing.assert_array_equal(bench.get(out, 64, np.float16), HALVES[form](values[0], values[1]))


GROUPS = """
mov.u32 %r1, data; mov.u32 %r2, %tid.x;
st.shared.v4.u32 [%r1], {1, 1, 1, 1};
cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 16; cp.async.bulk.commit_group;
cp.async.bulk.global.shared::cta.bulk_group [%rd1+16], [%r1], 16; cp.async.bulk.commit_group;
FIRST
st.shared.v4.u32 [%r1], {2, 2, 2, 2};
SECOND
ld.global.u32 %r3, [%rd1]; ld.global.u32 %r4, [%rd1+16];
st.global.u32 [%rd1+32], %r3; st.global.u32 [%rd1+36], %r4;
cp.async.bulk.wait_group 0;
ret;"""


def _groups(bench: Bench, first: str, second: str) -> list[int]:
    """The values that the two stores have written when the thread looks, and in the end."""
    out = bench.put(np.zeros(12, np.uint32))
    body = "ld.param.u64 %rd1, [out];" + GROUPS.replace("FIRST", first).replace("SECOND", second)
    module = bench.ptx(body, declarations=".shared .align 16 .b8 data[64];")
    bench.run(module, "k", 1, 1, out)
    return [int(value) for value in bench.get(out, 12, np.uint32)[[8, 9, 0, 4]]]


def test_a_group_lands_at_its_wait_and_reads_its_source_there(bench: Bench) -> None:
    """Late landing: what is not waited for reads what the source holds later."""
    wait = "cp.async.bulk.wait_group"
    assert _groups(bench, f"{wait} 0;", "") == [1, 1, 1, 1]
    assert _groups(bench, f"{wait} 1;", "") == [1, 0, 1, 2]
    assert _groups(bench, f"{wait}.read 0;", "") == [0, 0, 1, 1]
    assert _groups(bench, f"{wait}.read 0;", f"{wait} 1;") == [1, 0, 1, 1]
    assert _groups(bench, f"{wait}.read 1;", f"{wait} 0;") == [1, 2, 1, 2]


@pytest.mark.parametrize("read", ["", ".read"])
def test_a_wait_lands_the_waiting_threads_groups_only(bench: Bench, read: str) -> None:
    """Both threads store; thread 0 waits and looks at both results, then thread 1 replaces its source and waits."""
    body = f"""
    ld.param.u64 %rd1, [out]; mov.u32 %r1, data; mov.u32 %r2, %tid.x; setp.eq.u32 %p1, %r2, 0;
    shl.b32 %r3, %r2, 4; add.u32 %r1, %r1, %r3; cvt.u64.u32 %rd2, %r3; add.u64 %rd3, %rd1, %rd2;
    st.shared.v4.u32 [%r1], {{1, 1, 1, 1}};
    cp.async.bulk.global.shared::cta.bulk_group [%rd3], [%r1], 16; cp.async.bulk.commit_group;
    @!%p1 bra OTHER;
    cp.async.bulk.wait_group{read} 0;
    ld.global.u32 %r4, [%rd1]; ld.global.u32 %r5, [%rd1+16];
    st.global.u32 [%rd1+32], %r4; st.global.u32 [%rd1+36], %r5;
    OTHER: bar.sync 0;
    st.shared.v4.u32 [%r1], {{2, 2, 2, 2}};
    cp.async.bulk.wait_group 0;
    ret;"""
    out = bench.put(np.zeros(12, np.uint32))
    module = bench.ptx(body, declarations=".shared .align 16 .b8 data[64];")
    bench.run(module, "k", 1, 2, out)
    landed = 0 if read else 1
    assert bench.get(out, 12, np.uint32)[[8, 9, 0, 4]].tolist() == [landed, 0, 1, 2]


ARRIVE = (
    PRELUDE
    + r"""
extern "C" __global__ void copies(u32* out, const u32* in) {
    __shared__ alignas(16) u32 data[64];
    __shared__ u64 full;
    int tid = threadIdx.x;
    if (tid == 0) init(&full, COUNT);
    __syncthreads();
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(at(data + tid)), "l"(in + blockIdx.x * 64 + tid));
    asm volatile("FORM.shared::cta.b64 [%0];" :: "r"(at(&full)) : "memory");
    ARRIVE;
    WAIT;
    out[blockIdx.x * 64 + tid] = data[tid ^ 33];
}
"""
)
ARRIVALS = {
    "noinc": ("64", "cp.async.mbarrier.arrive.noinc", ""),
    "inc": ("64", "cp.async.mbarrier.arrive", "arrive(&full)"),
}


def _copies(bench: Bench, compile_cuda: Compile, name: str, wait: str, **options: str) -> bool:
    count, form, arrive = ARRIVALS[name]
    source = f"#define COUNT {count}\n#define ARRIVE {arrive}\n#define WAIT {wait}\n" + ARRIVE.replace("FORM", form)
    data = np.arange(128, dtype=np.uint32)
    out = bench.empty(512)
    module = bench.machine.load(compile_cuda(source, "compute_90a"))
    bench.run(module, "copies", 2, 64, out, bench.put(data), **options)
    return bool((bench.get(out, (2, 64), np.uint32) == data.reshape(2, 64)[:, np.arange(64) ^ 33]).all())


@pytest.mark.parametrize("landing", ["late", "early"])
@pytest.mark.parametrize("policy", [*POLICIES, "fuzz(5)"])
@pytest.mark.parametrize("name", ARRIVALS)
def test_cp_async_arrives_at_an_mbarrier_when_it_has_landed(
    bench: Bench, compile_cuda: Compile, name: str, policy: str, landing: str
) -> None:
    assert _copies(bench, compile_cuda, name, "wait(&full, 0)", policy=policy, landing=landing)


@pytest.mark.parametrize("name", ARRIVALS)
def test_cp_async_without_the_wait_is_found(bench: Bench, compile_cuda: Compile, name: str) -> None:
    with pytest.raises(EmulationFault) as caught:
        _copies(bench, compile_cuda, name, "")
    assert caught.value.kind is FaultKind.UNINITIALISED_READ


START = """
ld.param.u64 %rd1, [out];
mov.u32 %r1, bars; mov.u32 %r2, data; mov.u32 %r3, 32;
mbarrier.init.shared.b64 [%r1], 1;
"""
LOAD = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.global.shared::cta.bulk_group"
WRONG = {
    "size": (f"{LOAD} [%r2], [%rd1], 24, [%r1];", FaultKind.MISALIGNED, "24 bytes: expected a multiple of 16"),
    "shared alignment": (f"{LOAD} [%r2+8], [%rd1], 16, [%r1];", FaultKind.MISALIGNED, "16-byte aligned"),
    "global alignment": (f"{LOAD} [%r2], [%rd1+8], 16, [%r1];", FaultKind.MISALIGNED, "16-byte aligned"),
    "past the tensor": (f"{LOAD} [%r2], [%rd1+16], 64, [%r1];", FaultKind.OUT_OF_BOUNDS, "16 bytes past the end of"),
    "past shared memory": (f"{LOAD} [%r2+112], [%rd1], %r3, [%r1];", FaultKind.SHARED_OUT_OF_BOUNDS, "144 bytes"),
    "no barrier": (f"{LOAD} [%r2], [%rd1], 16, [%r1+8];", FaultKind.BARRIER_MISUSE, "used before mbarrier.init"),
    "unwritten source": (f"{STORE} [%rd1], [%r2], 16;", FaultKind.UNINITIALISED_READ, "nothing has written"),
    "never waited for": (f"{LOAD} [%r2], [%rd1], 16, [%r1];", FaultKind.ASYNC_MISUSE, "block (0, 0, 0) exits while"),
    "read too soon": (
        f"{LOAD} [%r2], [%rd1], 16, [%r1]; ld.shared.u32 %r4, [%r2];",
        FaultKind.UNINITIALISED_READ, "nothing has written",
    ),
    "barrier gone": (
        f"{LOAD} [%r2], [%rd1], 16, [%r1]; st.shared.u32 [%r1], 0;"
        "L: mbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0; @!%p1 bra L;",
        FaultKind.BARRIER_MISUSE, "overwritten since mbarrier.init",
    ),
    "prefetch": ("cp.async.bulk.prefetch.L2.global [%rd1], 64; cp.async.bulk.prefetch.L2.global [%rd1], 80;",
                 FaultKind.OUT_OF_BOUNDS, "16 bytes past"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_bulk_copy_is_reported(bench: Bench, name: str) -> None:
    body, kind, message = WRONG[name]
    module = bench.ptx(
        f"{START}{body}\nret;", declarations=".shared .align 16 .b64 bars[2]; .shared .align 16 .b8 data[128];"
    )
    with pytest.raises(EmulationFault) as caught:
        bench.run(module, "k", 2, 1, bench.put(np.zeros(16, np.uint32), "numbers"))
    assert caught.value.kind is kind
    assert message in str(caught.value)


def test_a_copy_that_lands_after_its_thread_has_exited_is_reported_where_it_was_issued(bench: Bench) -> None:
    body = (
        f"{START} mov.u32 %r4, %tid.x; setp.ne.u32 %p1, %r4, 5; @%p1 bra L;\n{LOAD} [%r2], [%rd1], 16, [%r1];\nL: ret;"
    )
    body = body.replace("mbarrier.init", "mov.u32 %r5, %tid.x; setp.eq.u32 %p2, %r5, 0; @%p2 mbarrier.init")
    module = bench.ptx(body, declarations=".shared .align 16 .b64 bars[2]; .shared .align 16 .b8 data[128];")
    with pytest.raises(EmulationFault) as caught:
        bench.run(module, "k", 2, 64, bench.put(np.zeros(16, np.uint32)))
    report = caught.value.report
    assert (report.kind, report.thread) == (FaultKind.ASYNC_MISUSE, (5, 0, 0))
    assert report.ptx_text.startswith("cp.async.bulk.shared::cta.global")


def test_lanes_may_copy_different_sizes_and_the_fault_names_the_right_one(bench: Bench) -> None:
    """Lane t copies 16 * t bytes; lane 3 is the first that goes past the end."""
    body = """
    ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; mov.u32 %r2, data; shl.b32 %r3, %r1, 4;
    cp.async.bulk.prefetch.L2.global [%rd1], %r3;
    ret;"""
    module = bench.ptx(body, declarations=".shared .align 16 .b8 data[128];")
    with pytest.raises(EmulationFault) as caught:
        bench.run(module, "k", 1, 4, bench.put(np.zeros(8, np.uint32)))
    assert "thread (3, 0, 0)" in str(caught.value)


def test_a_store_into_constant_memory_is_reported(bench: Bench) -> None:
    body = f"""
    mov.u32 %r2, data; st.shared.v4.u32 [%r2], {{1, 2, 3, 4}}; mov.u64 %rd1, table;
    {STORE} [%rd1], [%r2], 16;
    ret;"""
    module = bench.ptx(body, "", declarations=".const .align 16 .b8 table[16]; .shared .align 16 .b8 data[128];")
    with pytest.raises(EmulationFault) as caught:
        bench.run(module, "k", 1, 1)
    assert caught.value.kind is FaultKind.READ_ONLY


REFUSED = {
    "byte mask": "cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%rd1], [%r1], 16, %h1;",
    "f32 minimum": "cp.reduce.async.bulk.global.shared::cta.bulk_group.min.f32 [%rd1], [%r1], 16;",
    "f16 sum without noftz": "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f16 [%rd1], [%r1], 16;",
    "f32 sum in shared memory":
        "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.f32"
        " [%r1], [%r1], 16, [%r1];",
    "global to global": "cp.async.bulk.global.global.bulk_group [%rd1], [%rd1], 16;",
    "state of a remote barrier": "mbarrier.arrive.shared::cluster.b64 %rd2, [%r1];",
    "arrival without a count": "mbarrier.arrive.noComplete.shared.b64 %rd2, [%r1];",
    "vector of 32 bytes": "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b64 [%r1], {%rd1}, [%r1];",
    "vector of eight": "st.async.shared::cluster.mbarrier::complete_tx::bytes.v8.b32 [%r1], {%r1}, [%r1];",
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_forms_that_do_not_exist_here_are_refused_when_loaded(bench: Bench, name: str) -> None:
    with pytest.raises(EmulationFault) as caught:
        bench.ptx(REFUSED[name] + "ret;")
    assert caught.value.kind is FaultKind.UNSUPPORTED
