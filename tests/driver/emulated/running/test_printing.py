"""Device printf and assert: compiled from CUDA C++, their text and their fault."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.driver.emulated.faults import EmulationFault, FaultKind

PRINT = """
extern "C" __global__ void k(int* y) { int t = threadIdx.x; %s }
"""
ASSERT = """
#define assert(e) ((e) ? (void)0 : __assertfail(#e, __FILE__, __LINE__, __func__, 1))
extern "C" __global__ void k(int n) { int t = blockIdx.x * 64 + threadIdx.x; assert(t < n); }
"""


def printed(bench, compile_cuda, capsys, statement: str, threads: int = 1) -> str:
    module = bench.machine.load(compile_cuda(PRINT % statement))
    bench.run(module, "k", 1, threads, bench.empty(4 * threads))
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('"plain"', "plain"),
        ('"100%% %d", 7', "100% 7"),
        ('"%d %i %u", -5, -6, -7', "-5 -6 4294967289"),
        ('"%5d|%-5d|%05d|%+d", 42, 42, 42, 42', "   42|42   |00042|+42"),
        ('"%x %X %#x %o %#o", 255, 255, 255, 8, 8', "ff FF 0xff 10 010"),
        ('"%a %A", 1.5, -0.25', "0x1.8p+0 -0X1P-2"),
        ('"%lld %llu %ld", -1ll, ~0ull, 1l << 40', "-1 18446744073709551615 1099511627776"),
        ('"%d %lld %d %f", 1, 2ll, 3, 4.0', "1 2 3 4.000000"),
        ('"%f %.2f %e %g %8.3f|", 1.5f, 2.345, 1e10, 0.0001, 3.14159', "1.500000 2.35 1.000000e+10 0.0001    3.142|"),
        ('"%c%c %s %5s|%-5s|", 65, 66, "text", "ab", "cd"', "AB text    ab|cd   |"),
        ('"%*d|", 6, 42', "    42|"),
        ('"%hhd %hd", 300, 70000', "44 4464"),
        ('"%p", (void*)0x1234', "0x1234"),
        ('"%f", __int_as_float(0x7f800000)', "inf"),
    ],
)
def test_printf_formats_as_c_does(bench, compile_cuda, capsys, arguments: str, text: str) -> None:
    assert printed(bench, compile_cuda, capsys, f"printf({arguments});") == text


def test_lanes_print_in_their_order_each_its_own_values(bench, compile_cuda, capsys) -> None:
    statement = r'if (t % 2) printf("%d is %s\n", t, t == 3 ? "three" : "odd"); else printf("%.1f\n", t / 4.0f);'
    odd = [f"{t} is {'three' if t == 3 else 'odd'}\n" for t in range(1, 40, 2)]
    even = [f"{t / 4:.1f}\n" for t in range(0, 40, 2)]
    lines = printed(bench, compile_cuda, capsys, statement, 40).splitlines(keepends=True)
    assert [line for line in lines if "is" in line] == odd
    assert [line for line in lines if "is" not in line] == even


def test_printf_returns_the_number_of_arguments(bench, compile_cuda, capsys) -> None:
    module = bench.machine.load(compile_cuda(PRINT % r'y[t] = printf("%d %d\n", t, t) + 10 * printf("");'))
    y = bench.empty(4 * 32)
    bench.run(module, "k", 1, 32, y)
    assert (bench.get(y, 32, np.int32) == 2).all()
    assert capsys.readouterr().out == "".join(f"{t} {t}\n" for t in range(32))


def test_a_string_past_the_end_of_its_buffer_is_a_fault(bench, compile_cuda) -> None:
    module = bench.machine.load(compile_cuda(PRINT % r'printf("%s", (const char*)y);'))
    text = bench.put(np.full(4, 0x41414141, np.uint32), "text")
    with pytest.raises(EmulationFault, match="1 bytes past the end of text"):
        bench.run(module, "k", 1, 1, text)


def test_an_assertion_that_fails_names_itself_and_the_thread(bench, compile_cuda) -> None:
    module = bench.machine.load(compile_cuda(ASSERT))
    bench.run(module, "k", 2, 64, np.int32(128))
    with pytest.raises(EmulationFault) as caught:
        bench.run(module, "k", 2, 64, np.int32(100))
    report = caught.value.report
    assert report.kind is FaultKind.ASSERT
    assert caught.value.result == 710
    assert report.message == "kernel.cu:3: k: assertion `t < n` failed"
    assert (report.block, report.thread, report.warp, report.lane) == ((1, 0, 0), (36, 0, 0), 1, 4)
    assert report.ptx_text.startswith("call.uni")


def test_other_extern_functions_are_refused_with_their_line(bench) -> None:
    with pytest.raises(EmulationFault, match="call of malloc, which this module does not define") as caught:
        bench.ptx("call.uni malloc, ();", declarations=".extern .func malloc();")
    assert caught.value.report.ptx_line > 0
