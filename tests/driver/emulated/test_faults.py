"""Every kind of fault, with what its report must say."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.driver.emulated.faults import EmulationFault, FaultKind
from lowdnn.driver.emulated.machine import Machine
from lowdnn.driver.emulated.memory.arena import Arena
from lowdnn.driver.emulated.parsing.source_lines import source_line

STORE = """
ld.param.u64 %rd1, [out];
mov.u32 %r1, %tid.x;
mov.u32 %r2, %ctaid.x;
mov.u32 %r3, %ntid.x;
mad.lo.s32 %r4, %r2, %r3, %r1;
mul.wide.u32 %rd2, %r4, 4;
add.s64 %rd3, %rd1, %rd2;
"""


def fault_of(bench, module, *arguments, grid=1, block=32, **options):
    with pytest.raises(EmulationFault) as caught:
        bench.run(module, "k", grid, block, *arguments, **options)
    return caught.value.report


def test_store_one_past_the_end_names_the_thread_and_the_buffer(bench):
    module = bench.ptx(STORE + "st.global.u32 [%rd3], %r4;\nret;")
    out = bench.empty(4 * 95, "y")
    report = fault_of(bench, module, out, grid=3)
    assert report.kind is FaultKind.OUT_OF_BOUNDS
    assert (report.block, report.thread, report.warp, report.lane) == ((2, 0, 0), (31, 0, 0), 0, 31)
    assert (report.buffer, report.buffer_offset, report.address) == ("y", 4 * 95, out + 4 * 95)
    assert report.ptx_text.startswith("st.global.u32")
    assert report.kernel == "k"
    assert report.kind.result == 700


def test_load_one_before_the_start_is_named_after_the_buffer_that_was_meant(bench):
    bench.put(np.zeros(64, np.uint32), "x")
    y = bench.put(np.zeros(64, np.uint32), "y")
    report = fault_of(bench, bench.ptx(STORE + "ld.global.u32 %r5, [%rd3+-4];\nret;"), y)
    assert (report.kind, report.buffer, report.buffer_offset, report.lane) == (FaultKind.OUT_OF_BOUNDS, "y", -4, 0)
    assert "4 bytes before the start of y" in report.message


def test_load_far_from_every_allocation(bench):
    module = bench.ptx("mov.u64 %rd1, 64;\nld.global.u32 %r1, [%rd1];\nret;", "")
    assert fault_of(bench, module).kind is FaultKind.OUT_OF_BOUNDS


@pytest.mark.parametrize(
    ("size", "distance", "is_named"),
    [(64, 1 << 19, True), (64, (1 << 20) + 4096, False), (1 << 20, 1 << 23, True), (1 << 20, 1 << 25, False)],
)
def test_only_an_allocation_that_is_near_is_named(bench, size, distance, is_named):
    y = bench.empty(size, "y")
    module = bench.ptx("ld.param.u64 %rd1, [out];\nld.global.u32 %r1, [%rd1];\nret;")
    report = fault_of(bench, module, y + size + distance)
    assert (f"{distance + 4} bytes past the end of y" in report.message) is is_named
    assert ("no allocation is near" in report.message) is not is_named
    assert report.buffer == ("y" if is_named else "")


def test_touching_freed_memory(bench):
    module = bench.ptx(STORE + "st.global.u32 [%rd3], %r4;\nret;")
    out = bench.empty(128, "gone")
    bench.memory.free(out)
    report = fault_of(bench, module, out)
    assert (report.kind, report.buffer) == (FaultKind.USE_AFTER_FREE, "gone")


def test_misaligned_access(bench):
    module = bench.ptx(STORE + "st.global.u32 [%rd3+2], %r4;\nret;")
    report = fault_of(bench, module, bench.empty(256))
    assert report.kind is FaultKind.MISALIGNED
    assert report.kind.result == 716


def test_misaligned_vector_of_one_lane(bench):
    body = STORE + "ld.global.v2.u32 {%r5, %r6}, [%rd3];\nret;"
    report = fault_of(bench, bench.ptx(body), bench.put(np.zeros(64, np.uint32)))
    assert (report.kind, report.thread) == (FaultKind.MISALIGNED, (1, 0, 0))


@pytest.mark.parametrize("checks", [True, False])
def test_global_bytes_that_nothing_wrote(bench, checks):
    module = bench.ptx(STORE + "ld.global.u32 %r5, [%rd3];\nst.global.u32 [%rd3], %r5;\nret;")
    out = bench.empty(256, "x")
    bench.memory.host_write(out, np.zeros(4 * 17, np.uint8))
    if not checks:
        bench.run(module, "k", 1, 32, out, checks=False)
        return
    report = fault_of(bench, module, out)
    assert (report.kind, report.lane, report.buffer, report.buffer_offset) == (
        FaultKind.UNINITIALISED_READ,
        17,
        "x",
        68,
    )


def test_shared_bytes_that_nothing_wrote(bench):
    module = bench.ptx(".shared .align 4 .b8 s[128];\nmov.u32 %r1, s;\nld.shared.u32 %r2, [%r1];\nret;", "")
    assert fault_of(bench, module).kind is FaultKind.UNINITIALISED_READ


def test_local_bytes_that_nothing_wrote(bench):
    module = bench.ptx(".local .align 4 .b8 s[16];\nmov.u64 %rd1, s;\nld.local.u32 %r2, [%rd1+8];\nret;", "")
    assert fault_of(bench, module).kind is FaultKind.UNINITIALISED_READ


def test_shared_past_its_declared_size(bench):
    body = ".shared .align 4 .b8 s[64];\nmov.u32 %r1, s;\nmov.u32 %r2, %tid.x;\nmad.lo.u32 %r1, %r2, 4, %r1;\n"
    report = fault_of(bench, bench.ptx(body + "st.shared.u32 [%r1], %r2;\nret;", ""))
    assert (report.kind, report.lane, report.buffer_offset) == (FaultKind.SHARED_OUT_OF_BOUNDS, 16, 64)


def test_dynamic_shared_memory_ends_where_the_launch_says(bench):
    body = "mov.u32 %r1, d;\nst.shared.u32 [%r1+60], %r1;\nret;"
    module = bench.ptx(body, "", ".extern .shared .align 16 .b8 d[];")
    bench.run(module, "k", 1, 32, shared=64)
    assert fault_of(bench, module, shared=60).kind is FaultKind.SHARED_OUT_OF_BOUNDS


def test_register_that_nothing_wrote(bench):
    report = fault_of(bench, bench.ptx("add.s32 %r1, %r7, 1;\nst.shared.u32 [%r1], %r1;\nret;", ""))
    assert report.kind is FaultKind.UNWRITTEN_REGISTER
    assert "%r7" in report.message
    assert report.ptx_text.startswith("add.s32")


@pytest.mark.parametrize(
    "write", ["@%p1 bra past;\nmov.u32 %r7, 5;\npast:\n", "@!%p1 mov.u32 %r7, 5;\nbra.uni past;\npast:\n"]
)
@pytest.mark.parametrize("threads", [32, 64])
def test_register_of_a_branch_that_no_thread_took_is_read_for_nothing(bench, write, threads):
    body = f"mov.u32 %r1, %tid.x;\nsetp.ge.u32 %p1, %r1, 32;\n{write}"
    body += "add.s32 %r2, %r7, 1;\nselp.u32 %r3, 0, %r2, %p1;\nret;"
    bench.run(bench.ptx(body, ""), "k", 1, threads)
    body = body.replace("setp.ge.u32 %p1, %r1, 32", "setp.ge.u32 %p1, %r1, 0")
    bench.run(bench.ptx(body, ""), "k", 1, threads)


def test_register_that_is_written_behind_its_use(bench):
    body = "add.s32 %r1, %r7, 1;\nbra.uni on;\non:\nmov.u32 %r7, %r1;\nret;"
    assert fault_of(bench, bench.ptx(body, "")).kind is FaultKind.UNWRITTEN_REGISTER


def test_constant_memory_is_not_written(bench):
    body = "mov.u64 %rd1, c;\ncvta.const.u64 %rd1, %rd1;\nmov.u32 %r1, 1;\nst.u32 [%rd1], %r1;\nret;"
    module = bench.ptx(body, "", ".const .align 4 .u32 c = 7;")
    assert fault_of(bench, module).kind is FaultKind.READ_ONLY


def test_trap(bench):
    body = "mov.u32 %r1, %tid.x;\nsetp.eq.u32 %p1, %r1, 9;\n@%p1 trap;\nret;"
    report = fault_of(bench, bench.ptx(body, ""))
    assert (report.kind, report.lane) == (FaultKind.TRAP, 9)


def test_half_a_warp_at_a_barrier_deadlocks(bench):
    body = (
        "mov.u32 %r1, %tid.x;\nsetp.lt.u32 %p1, %r1, 16;\n@%p1 bra A;\nbar.sync 0;\nbra B;\nA:\nbar.sync 0;\nB:\nret;"
    )
    report = fault_of(bench, bench.ptx(body, ""), block=64)
    assert report.kind is FaultKind.DEADLOCK
    assert "16 threads of 1 warps wait for other lanes" in report.message


def test_barrier_that_one_warp_never_reaches(bench):
    body = "mov.u32 %r1, %tid.x;\nsetp.lt.u32 %p1, %r1, 32;\n@%p1 bar.sync 1, 64;\nret;"
    report = fault_of(bench, bench.ptx(body, ""), block=64, grid=3)
    assert report.kind is FaultKind.DEADLOCK
    where = "barrier 1, where 32 of 64 threads have arrived, and 32 threads of its block have exited,"
    assert f"96 threads of 3 warps wait at {where} (PTX line " in report.message
    assert report.ptx_text == "@%p1 bar.sync 1, 64;"
    assert (report.block, report.thread, report.warp, report.lane) == ((0, 0, 0), (0, 0, 0), 0, 0)


def test_a_count_that_is_too_large_shows_in_the_deadlock(bench):
    report = fault_of(bench, bench.ptx("bar.sync 2, 96;\nret;", ""), block=64)
    assert report.kind is FaultKind.DEADLOCK
    assert "at barrier 2, where 64 of 96 threads have arrived, (PTX line" in report.message


def test_two_groups_of_a_barrier_give_different_counts(bench):
    body = "mov.u32 %r1, %tid.x;\nand.b32 %r2, %r1, 32;\nadd.s32 %r2, %r2, 64;\nbar.sync 3, %r2;\nret;"
    report = fault_of(bench, bench.ptx(body, ""), block=96, policy="warp-serial(1)")
    assert report.kind is FaultKind.BARRIER_MISUSE
    assert "barrier 3: its threads give different counts" in report.message


@pytest.mark.parametrize("number", ["16", "%r1"])
def test_a_block_has_sixteen_barriers(bench, number):
    report = fault_of(bench, bench.ptx(f"mov.u32 %r1, 16;\nbar.sync {number};\nret;", ""), block=64)
    assert report.kind is FaultKind.BARRIER_MISUSE
    assert "barrier 16: a CTA has barriers 0 to 15" in report.message


def test_threads_that_have_exited_are_not_waited_for_without_a_count(bench):
    body = "mov.u32 %r1, %tid.x;\nsetp.ge.u32 %p1, %r1, 32;\n@%p1 exit;\nbar.sync 0;\nret;"
    bench.run(bench.ptx(body, ""), "k", 1, 96)


def test_barrier_count_that_is_no_multiple_of_a_warp(bench):
    assert fault_of(bench, bench.ptx("bar.sync 1, 40;\nret;", ""), block=64).kind is FaultKind.BARRIER_MISUSE


def test_more_arrivals_than_a_barrier_takes(bench):
    body = "bar.arrive 2, 64;\nret;"
    assert fault_of(bench, bench.ptx(body, ""), block=96).kind is FaultKind.BARRIER_MISUSE


@pytest.mark.parametrize(
    "back", ["setp.eq.s32 %p1, %r1, 0;\n@%p1 bra L;", "setp.ne.s32 %p1, %r1, 0;\n@%p1 bra D;\nbra L;"]
)
def test_spin_on_a_flag_that_nobody_sets(bench, back):
    loop = f"L:\nld.volatile.global.u32 %r1, [%rd1];\n{back}\nD:\n"
    body = f"ld.param.u64 %rd1, [out];\n{loop}ret;"
    report = fault_of(bench, bench.ptx(body), bench.put(np.zeros(1, np.uint32)))
    assert report.kind is FaultKind.DEADLOCK
    assert "nobody stores" in report.message


def test_endless_loop_times_out(bench):
    report = fault_of(bench, bench.ptx("L:\nadd.u32 %r1, 1, 2;\nbra L;\nret;", ""), timeout_s=0.3)
    assert (report.kind, report.block, report.warp) == (FaultKind.TIMEOUT, (0, 0, 0), 0)
    assert report.ptx_text == "bra L;"
    assert report.kind.result == 702


def test_shuffle_with_a_lane_outside_its_mask(bench):
    body = "mov.u32 %r1, %tid.x;\nshfl.sync.bfly.b32 %r2, %r1, 1, 31, 65535;\nret;"
    assert fault_of(bench, bench.ptx(body, "")).kind is FaultKind.WARP_DIVERGED


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("frobnicate.b32 %r1, %r2;", "frobnicate.b32"),
        ("add.rn.ftz.s32 %r1, %r2, %r3;", "add.rn.ftz.s32"),
        ("ld.global.strange.u32 %r1, [%rd1];", "strange"),
        ("mov.u32 %r1, %nonsense;", "%nonsense"),
        (
            "mma.sync.aligned.m16n8k7.row.col.f32.f16.f16.f32 {%f1,%f2,%f3,%f4},{%r1,%r2},{%r3},{%f1,%f2,%f3,%f4};",
            "m16n8k7",
        ),
    ],
)
def test_what_is_unknown_is_refused_at_load_with_its_line(bench, line, text):
    with pytest.raises(EmulationFault) as caught:
        bench.ptx(f"mov.u32 %r2, 0;\n{line}\nret;", "")
    report = caught.value.report
    assert report.kind is FaultKind.UNSUPPORTED
    assert report.ptx_text == line
    assert report.ptx_line == 10
    assert text in report.message


@pytest.mark.parametrize(
    ("target", "capability", "runs"),
    [
        ("sm_80", (8, 0), True),
        ("sm_75", (9, 0), True),
        ("sm_90a", (9, 0), True),
        ("sm_90", (8, 0), False),
        ("sm_90a", (10, 0), False),
        ("compute_80", (9, 0), False),
    ],
)
def test_code_for_another_target_is_refused(target, capability, runs):
    machine = Machine(Arena(), capability)
    text = f".version 8.0\n.target {target}\n.address_size 64\n.entry k()\n{{\nret;\n}}\n"
    if runs:
        machine.load(text)
        return
    with pytest.raises(EmulationFault) as caught:
        machine.load(text)
    assert caught.value.kind is FaultKind.WRONG_TARGET


def test_launches_that_the_function_does_not_allow(bench):
    module = bench.machine.load(
        ".version 8.0\n.target sm_90\n.address_size 64\n"
        ".visible .entry k(.param .u32 n)\n.maxntid 64, 1, 1\n{\nret;\n}\n"
    )
    one = np.int32(1)
    bench.run(module, "k", 1, 64, one)
    assert fault_of(bench, module, one, block=96).kind is FaultKind.INVALID_LAUNCH
    assert fault_of(bench, module, np.int64(1), block=32).kind is FaultKind.INVALID_LAUNCH
    assert fault_of(bench, module, block=32).kind is FaultKind.INVALID_LAUNCH


SOURCE = """
extern "C" __global__ void k(int* y) {
  int t = threadIdx.x;
  y[0] = t;
  y[t - 1] = t;
}
"""


def test_the_source_line_is_told_where_the_ptx_has_it(bench, compile_cuda):
    module = bench.machine.load(compile_cuda(SOURCE, options=("-lineinfo",)))
    report = fault_of(bench, module, bench.empty(256, "y"))
    assert report.source.endswith("kernel.cu:5")
    assert f"\n  source {report.source}\n" in str(report)
    module = bench.machine.load(compile_cuda(SOURCE))
    report = fault_of(bench, module, bench.empty(256, "y"))
    assert report.source == ""
    assert "source" not in str(report)


def test_code_that_belongs_to_no_source_line_has_none():
    lines = ('.file 7 "a.cu"', ".entry k()", "nop;", ".loc 7 3 1", "nop;", ".loc 7 0 1", "nop;", ".func f()", "nop;")
    assert [source_line(lines, number) for number in (3, 5, 7, 9)] == [None, ("a.cu", 3), None, None]


def test_the_variable_in_shared_memory_is_named(bench):
    body = ".shared .align 4 .b8 first[64];\n.shared .align 4 .b8 second[32];\nmov.u32 %r1, second;\n"
    report = fault_of(bench, bench.ptx(body + "ld.shared.u32 %r2, [%r1+8];\nst.shared.u32 [%r1], %r2;\nret;", ""))
    assert (report.kind, report.buffer, report.buffer_offset) == (FaultKind.UNINITIALISED_READ, "shared memory", 72)
    assert str(report).endswith(" = shared memory +72 bytes (second +8)")


def test_a_failure_of_the_emulator_is_not_taken_for_one_of_the_kernel(bench, monkeypatch):
    def broken(*_: object) -> None:
        raise ValueError("shapes")

    monkeypatch.setattr("lowdnn.driver.emulated.generating.namespace.load", broken)
    module = bench.ptx("ld.param.u64 %rd1, [out];\nld.global.u32 %r1, [%rd1];\nret;")
    text = r"itself failed \(ValueError\('shapes'\)\) in k, PTX line \d+: ld.global.u32"
    with pytest.raises(RuntimeError, match=text) as caught:
        bench.run(module, "k", 1, 32, bench.empty(4))
    assert isinstance(caught.value.__cause__, ValueError)
