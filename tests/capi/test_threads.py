"""Many threads, each with a handle, a stream and memory of its own: every bit is that of one thread alone."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowdnn.backend.handle import Handle
from lowdnn.capi import write_header, write_library
from lowdnn.capi.library import LIBRARY_NAME
from lowdnn.capi.loading import Binding
from lowdnn.capi.state import State
from lowdnn.driver import open_driver
from lowdnn.runtime.runtime import Runtime
from lowdnn.runtime.stream import Stream
from lowdnn.status import Status
from tests.capi.test_loading import python
from tests.support.c_programs import Toolchain
from tests.support.capi import Caller, Memory

THREADS = 8
WORKSPACE_BYTES = 1 << 16


class Task(ctypes.Structure):
    """``struct task`` of threads.c."""

    _fields_ = (
        ("number", ctypes.c_int32),
        ("cycles", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("x", "w", "y", "workspace")),
        ("workspace_bytes", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("failed", ctypes.c_char * 500),
    )


def build(folder: Path, *arguments: str) -> None:
    """user.so is threads.c."""
    write_header(folder / "cudnn.h")
    source = str(Path(__file__).with_name("threads.c"))
    Toolchain.native().build(folder, "-shared", "-fPIC", "-I.", source, "-o", "user.so", *arguments)


@pytest.fixture
def program(binding: Binding, global_library: Path, tmp_path: Path) -> ctypes.CDLL:
    build(tmp_path)
    binding.library(global_library)
    return ctypes.CDLL(str(tmp_path / "user.so"))


def one_after_the_other(program: ctypes.CDLL, tasks: Any) -> None:
    for task in tasks:
        program.work(ctypes.byref(task))


def in_threads_of_c(program: ctypes.CDLL, tasks: Any) -> None:
    program.in_threads(tasks, len(tasks))


def in_threads_of_python(program: ctypes.CDLL, tasks: Any) -> None:
    threads = [threading.Thread(target=program.work, args=(ctypes.byref(task),)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_bits_are_those_of_one_thread(program: ctypes.CDLL, device: Runtime, endurance: bool) -> None:
    cycles = 1000 if endurance else 10
    rng = np.random.default_rng()
    inputs = [
        [rng.standard_normal(shape, np.float32) for shape in ((1, 1, 4, 4), (1, 1, 2, 2), (1, 1, 3, 3))]
        for _ in range(THREADS)
    ]
    memory = Memory(device)

    def results(run: Callable[[ctypes.CDLL, Any], None]) -> list[bytes]:
        with ExitStack() as streams:
            tasks = (Task * THREADS)()
            for number, (task, arrays) in enumerate(zip(tasks, inputs, strict=True)):
                task.number, task.cycles = number, cycles
                task.x, task.w, task.y = map(memory.put, arrays)
                task.workspace, task.workspace_bytes = memory.put(np.zeros(WORKSPACE_BYTES, np.uint8)), WORKSPACE_BYTES
                task.stream = streams.enter_context(Stream.create(device.context)).handle
            run(program, tasks)
            assert [task.failed for task in tasks] == [b""] * THREADS
            return [memory.get(task.y).tobytes() for task in tasks]

    alone = results(one_after_the_other)
    assert len(set(alone)) == THREADS
    assert results(in_threads_of_c) == alone
    assert results(in_threads_of_python) == alone


def test_of_two_threads_that_destroy_a_pack_one_does(program: ctypes.CDLL) -> None:
    assert program.destroy_twice(4000) == 4000


def test_a_child_that_c_has_forked_while_a_thread_was_inside_of_python(program: ctypes.CDLL, caller: Caller) -> None:
    ended = threading.Event()

    def compute() -> None:
        while not ended.is_set():
            sum(range(1000))

    busy = threading.Thread(target=compute)
    busy.start()
    try:
        assert [program.status_in_child() for _ in range(5)] == [1] * 5
    finally:
        ended.set()
        busy.join()
    caller.call("cudnnGraphVersionCheck")


def test_calls_under_way_return_before_the_interpreter_ends(tmp_path: Path) -> None:
    """Threads of C are in the midst of calls at the end of Python; none of them is left inside of one."""
    write_library(tmp_path / LIBRARY_NAME)
    build(tmp_path, f"./{LIBRARY_NAME}")
    code = """if True:
        import ctypes, time
        from lowdnn import capi
        from lowdnn.capi.loading import process_state
        from tests.capi.test_threads import Task
        capi.load()
        user, driver = ctypes.CDLL("./user.so"), process_state().driver
        driver.context_set_current(driver.primary_context_retain(0))
        tasks = (Task * 4)()
        for number, task in enumerate(tasks):
            task.number = number
            task.x, task.w, task.y, task.workspace = (driver.mem_alloc(65536) for _ in range(4))
            for address in (task.x, task.w, task.y):
                driver.memset_d8_async(address, 0, 65536, 0)
            task.workspace_bytes = 65536
        driver.context_synchronize()
        user.endless(tasks, 4)
        time.sleep(0.5)
    """
    assert python(code, tmp_path) == "NOT_INITIALIZED\n" * 4 + "1001 1001 92800\n"


def test_a_handle_that_is_destroyed_while_others_use_it(tmp_path: Path) -> None:
    """This is not allowed, and yet each call has a status, and the next handle works."""
    write_library(tmp_path / LIBRARY_NAME)
    binding = Binding(State(open_driver("emulated")))
    caller = Caller(binding.library(tmp_path / LIBRARY_NAME))
    found: set[Status] = set()

    def use(handle: int, plan: int, pack: int) -> None:
        while (status := caller.status("cudnnBackendExecute", handle, plan, pack)) is Status.SUCCESS:
            found.add(status)
        found.add(status)

    for _ in range(3):
        handle = caller.handle()
        root = binding.state.objects.get(handle, Handle, "")
        memory = Memory(root.runtime)
        pointers = {uid: memory.put(np.ones((4, 8), np.float32)) for uid in (1, 2, 3)}
        work = (handle, caller.plan(handle, caller.add_graph(handle)), caller.pack(pointers))
        threads = [threading.Thread(target=use, args=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        while Status.SUCCESS not in found:
            time.sleep(0.001)
        caller.call("cudnnDestroy", handle)
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    binding.end()
    assert Status.SUCCESS in found
    assert {status.category for status in found} <= {
        Status.SUCCESS,
        Status.BAD_PARAM,
        Status.NOT_INITIALIZED,
        Status.EXECUTION_FAILED,
    }
