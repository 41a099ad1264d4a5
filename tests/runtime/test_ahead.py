"""Kernels that are compiled ahead: what is begun, what is waited for, and what becomes of it at every end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from lowdnn.config import Config
from lowdnn.plan import Plan
from lowdnn.runtime.ahead import Ahead, Task, side_by_side
from lowdnn.runtime.compile import KernelCompiler
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import CompilationFailedError
from tests.support.runtime import scale_plan, scale_sources, write_sources


class Calls:
    """Calls that wait until they are let go; ``begun`` in the order in which they began."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self._gate = threading.Event()

    def task(self, number: int) -> Task[int]:
        def call() -> int:
            self.begun.append(number)
            assert self._gate.wait(10)
            return number

        return Task(call)

    def let_go(self) -> None:
        self._gate.set()


def until(is_true: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 10
    while not is_true():
        assert time.monotonic() < end_s
        time.sleep(0.001)


def own_threads() -> int:
    return sum(thread.name == "lowdnn ahead" for thread in threading.enumerate())


def test_a_few_threads_make_the_calls_in_order_and_end() -> None:
    ahead, calls = Ahead(2), Calls()
    tasks = [calls.task(number) for number in range(6)]
    for task in tasks:
        ahead.begin(task)
    until(lambda: len(calls.begun) == 2)
    assert own_threads() == 2
    calls.let_go()
    assert [task.result() for task in tasks] == [*range(6)]
    assert len(calls.begun) == 6
    until(lambda: own_threads() == 0)


def test_a_result_that_waits_for_its_turn_is_made_by_who_asks() -> None:
    ahead, calls = Ahead(1), Calls()
    first, asked = calls.task(0), Task(threading.get_ident)
    ahead.begin(first)
    ahead.begin(asked)
    assert asked.result() == threading.get_ident()
    calls.let_go()
    assert first.result() == 0


def test_what_is_given_up_is_not_begun_and_errors_wait_for_who_asks() -> None:
    ahead, calls = Ahead(1), Calls()
    first, given_up, failing = calls.task(0), calls.task(1), Task(lambda: 1 // 0)
    for task in (first, given_up, failing):
        ahead.begin(task)
    given_up.cancel()
    calls.let_go()
    until(lambda: own_threads() == 0)
    assert calls.begun == [0]
    with pytest.raises(ZeroDivisionError):
        failing.result()


def opened(device: Runtime, folder: Path, threads: int | None) -> Runtime:
    config = Config(cache_dir=folder / "cache", compile_threads=threads)
    return Runtime(device.driver, config=config, sources=scale_sources(folder / "engines"))


def plans(count: int) -> list[Plan]:
    found = [scale_plan(100, factor=factor) for factor in range(count)]
    return [
        replace(plan, kernels=(replace(plan.kernels[0], name=f"scale_{place}"),)) for place, plan in enumerate(found)
    ]


def test_plans_that_are_begun_compile_side_by_side(
    device: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All three are under way before any of them may go on; loading them compiles nothing more."""
    inside, compile_ = threading.Barrier(3), KernelCompiler._compile

    def together(*arguments: object) -> bytes:
        inside.wait(10)
        return compile_(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(KernelCompiler, "_compile", together)
    with opened(device, tmp_path, 3) as runtime:
        wanted = plans(3)
        for plan in (*wanted, wanted[0]):
            runtime.begin(plan)
        for plan in wanted:
            runtime.load(plan)
        runtime.begin(wanted[1])
        counts = runtime.counters.snapshot()
        assert (counts["compiles"], counts["modules_loaded"]) == (3, 3)


@pytest.mark.parametrize("threads", [0, None])
def test_no_thread_begins_where_none_is_allowed(device: Runtime, tmp_path: Path, threads: int | None) -> None:
    """By default the emulated device, which takes no machine code, has none."""
    if threads is None and device.driver.takes_machine_code:
        pytest.skip("the device takes machine code")
    with opened(device, tmp_path, threads) as runtime:
        (plan,) = plans(1)
        runtime.begin(plan)
        assert own_threads() == 0
        assert not runtime.counters.snapshot().get("compiles")
        runtime.load(plan)


def test_an_error_is_raised_by_the_load(device: Runtime, tmp_path: Path) -> None:
    config, sources = (
        Config(cache_dir=tmp_path, compile_threads=1),
        write_sources(tmp_path, {"pointwise/scale.cu": "no text"}),
    )
    with Runtime(device.driver, config=config, sources=sources) as runtime:
        (plan,) = plans(1)
        runtime.begin(plan)
        until(lambda: own_threads() == 0)
        for _ in range(2):
            with pytest.raises(CompilationFailedError, match="scale_0"):
                runtime.load(plan)


def test_a_closed_runtime_begins_nothing(device: Runtime, tmp_path: Path) -> None:
    runtime = opened(device, tmp_path, 1)
    runtime.close()
    runtime.begin(plans(1)[0])
    assert own_threads() == 0


#: Begins three calls of half a second in one thread, from a daemon as threads of C are, and ends.
_ENDING = """
import sys, threading, time
from lowdnn.runtime.ahead import Ahead, Task, side_by_side
ahead = Ahead(1)
def begin():
    for number in range(3):
        ahead.begin(Task(lambda number=number: (time.sleep(0.5), print(number, flush=True))))
daemon = threading.Thread(target=begin, daemon=True)
daemon.start()
daemon.join()
time.sleep(0.1)
"""


def test_the_end_of_the_interpreter_waits_for_the_call_under_way_alone() -> None:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    found = subprocess.run([sys.executable, "-c", _ENDING], env=environment, capture_output=True, text=True, check=True)
    assert (found.stdout, found.stderr) == ("0\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_begins_its_own() -> None:
    script = _ENDING.replace(
        "time.sleep(0.1)",
        "import os\nif os.fork() == 0:\n    "
        + "task = Task(lambda: 7)\n    ahead = Ahead(1)\n    ahead.begin(task)\n    print(task.result())",
    )
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    found = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert sorted(found.stdout.split()) == ["0", "7"]


def test_calls_side_by_side_have_their_order_and_run_at_once() -> None:
    both, before = threading.Barrier(2), threading.active_count()

    def call(number: int) -> int:
        both.wait(timeout=20)
        return number

    assert side_by_side([partial(call, number) for number in range(4)], 2) == [0, 1, 2, 3]
    assert threading.active_count() == before


def test_the_first_error_of_calls_side_by_side_comes_after_all_have_ended() -> None:
    ended = []

    def call(number: int) -> None:
        time.sleep(0.05 * number)
        ended.append(number)
        if number != 1:
            raise ValueError(f"call {number}")

    with pytest.raises(ValueError, match="call 0"):
        side_by_side([partial(call, number) for number in range(3)], 3)
    assert sorted(ended) == [0, 1, 2]


def test_calls_side_by_side_at_the_end_of_the_interpreter() -> None:
    script = "import atexit; from lowdnn.runtime.ahead import side_by_side; " + (
        "atexit.register(lambda: print(side_by_side([lambda: 1, lambda: 2, lambda: 3], 3)))"
    )
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    found = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert (found.stdout, found.stderr) == ("[1, 2, 3]\n", "")
