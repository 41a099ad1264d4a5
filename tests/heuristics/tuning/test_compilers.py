"""Kernels compiled by other processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.config import Config
from lowdnn.engines.registry import engine_named
from lowdnn.enums import KnobType
from lowdnn.heuristics.tuning.compilers import Compilers
from lowdnn.plan import KernelRef
from lowdnn.runtime.runtime import Runtime


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Runtime]:
    with Runtime.open("emulated", config=Config(cache_dir=tmp_path)) as opened:
        yield opened


def kernels(*stages: int) -> list[KernelRef]:
    graph = parse_case("matmul m=32 n=32 k=32 dtype=bf16").graph()
    choices = ({KnobType.TILE_M: 32, KnobType.TILE_N: 32, KnobType.STAGES: number} for number in stages)
    return [engine_named("matmul_mma").plan(graph, SM_90A, found).kernels[0] for found in choices]


def test_other_processes_compile_and_this_one_loads(runtime: Runtime) -> None:
    wanted = kernels(2, 3)
    with Compilers(runtime, 2) as compilers:
        compilers.begin([*wanted, *wanted])
        compilers.wait(wanted)
        assert (compilers.compiled, compilers.asked) == (2, 2)
        assert [compilers.failure(kernel) for kernel in wanted] == ["", ""]
    runtime.modules.load(wanted)
    counts = runtime.counters.snapshot()
    assert counts.get("compiles", 0) == 0
    assert counts["cache_hits"] == 2


def test_a_kernel_that_does_not_compile_is_told_and_its_process_goes_on(runtime: Runtime) -> None:
    (good,) = kernels(2)
    bad = KernelRef("bad", "matmul/none.cu", "sm_80")
    with Compilers(runtime, 1) as compilers:
        compilers.begin([bad, good])
        compilers.wait([bad, good])
        assert "expected a file below lowdnn/engines" in compilers.failure(bad)
        assert compilers.failure(good) == ""


def test_a_process_that_dies_is_replaced(runtime: Runtime) -> None:
    first, second = kernels(2, 3)
    with Compilers(runtime, 1) as compilers:
        compilers._workers[0].kill()
        compilers.begin([first, second])
        compilers.wait([first, second])
        assert "its compiler failed" in compilers.failure(first)
        assert compilers.failure(second) == ""


def test_waiting_ends_at_its_deadline_and_closing_ends_the_processes(runtime: Runtime) -> None:
    wanted = kernels(2, 3, 4, 5)
    begin = time.monotonic()
    with Compilers(runtime, 1) as compilers:
        compilers.begin(wanted)
        compilers.wait(wanted, deadline_s=begin)
        assert compilers.failure(wanted[-1]) == "not compiled in the time given"
        processes = [worker._process for worker in compilers._workers]
    assert all(process.poll() is not None for process in processes)


def test_without_processes_threads_begin(runtime: Runtime) -> None:
    with Compilers(runtime, 0) as compilers:
        compilers.begin(kernels(2))
        compilers.wait(kernels(2))
        assert (compilers.asked, compilers.failure(kernels(2)[0])) == (0, "")


def test_at_the_end_of_the_interpreter_nothing_is_asked(tmp_path: Path) -> None:
    script = """if True:
        import atexit
        from lowdnn.heuristics.tuning.compilers import Compilers
        from lowdnn.runtime.runtime import Runtime
        from tests.heuristics.tuning.test_compilers import kernels

        def end():
            compilers.begin(kernels(2))
            print(compilers.asked, repr(compilers.failure(kernels(2)[0])))
            compilers.close()

        runtime = Runtime.open("emulated")
        compilers = Compilers(runtime, 1)
        atexit.register(end)
    """
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "LOWDNN_CACHE_DIR": str(tmp_path)}
    found = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert (found.stdout, found.stderr) == ("0 ''\n", "")
