"""Host time of the calls that PyTorch makes for each convolution, from a C program through the C library.

    python -m tools.bench.c_calls [--device cuda|emulated] [--bursts N] [--busy] [--thread] [--pause US]

A row is one call of the cycle, the last row the whole of it. On the emulated device, whose launches compute at once,
the cycle is without cudnnBackendExecute. ``--busy``: another Python thread computes meanwhile, and a call may wait for
the interpreter, the more so with ``--pause``, where the program computes by itself between cycles, and the other thread
gets the interpreter. ``--thread``: each burst comes from a new thread of C. Needs gcc.
"""

from __future__ import annotations

import argparse
import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lowdnn.backend import Descriptor, Handle
from lowdnn.backend.plan_descriptors import ExecutionPlan
from lowdnn.capi.loading import Binding
from lowdnn.capi.state import State
from lowdnn.cases import parse_case
from lowdnn.driver import open_driver
from lowdnn.enums import HeurMode
from lowdnn.heuristics.ranking import rank
from lowdnn.heuristics.stored_plans import write_plan
from lowdnn.runtime.buffer import DeviceBuffer
from tools.bench.c_program import compiled

CALLS = (
    "SetStream",
    "CreateDescriptor",
    "SetAttribute, 3 pointers",
    "SetAttribute, 3 uids",
    "SetAttribute, workspace",
    "Finalize",
    "Execute",
    "DestroyDescriptor",
)
_CASE = "conv n=2 c=8 hw=16x16 k=16 rs=3x3 pad=1"
#: Cycles between two waits for the device, below the depth of its launch queue.
_BURST = 100

#: Runs a number of cycles; gives the time of each call of each in microseconds, (cycles, calls).
Cycles = Callable[[int], NDArray[np.float64]]


@contextmanager
def cycles_on(state: State, *, executes: bool, in_thread: bool = False, pause_us: float = 0.0) -> Iterator[Cycles]:
    """The cycles of a small convolution on a device; without ``executes`` the time of Execute is that of no call.

    in_thread: each time in a new thread of C.  pause_us: before each cycle.
    """
    binding = Binding(state)
    try:
        program = _program(binding, "run_in_thread" if in_thread else "run")
        handle = state.open_handle()
        with handle.runtime.context.activated():
            yield _cycles(program, state, handle, executes=executes, pause_us=pause_us)
    finally:
        binding.end()


def _program(binding: Binding, name: str) -> Callable[..., int]:
    """A function of the C program, on a library of its own."""
    program, library = compiled(binding, Path(__file__).with_suffix(".c"))
    run = getattr(program, name)
    address, number = ctypes.c_void_p, ctypes.c_int64
    run.argtypes = (*[address] * 5, number, address, ctypes.c_double, number, address)
    return partial(run, library._handle)


def _cycles(run: Callable[..., int], state: State, handle: Handle, *, executes: bool, pause_us: float) -> Cycles:
    graph = parse_case(_CASE).graph()
    candidate = rank(graph, handle.arch, HeurMode.A, handle.engines).candidates[0]
    tensors, context = candidate.plan.tensors, handle.runtime.context
    memory = [DeviceBuffer.allocate(context, tensor.size_bytes) for tensor in tensors]
    for buffer in memory:
        buffer.copy_from_host(np.zeros(buffer.size_bytes, np.uint8))
    workspace = DeviceBuffer.allocate(context, candidate.plan.workspace_bytes)
    pointers = np.array([buffer.address for buffer in memory], np.uint64)
    uids = np.array([tensor.uid for tensor in tensors], np.int64)
    plan = 0
    if executes:
        plan = state.objects.add(Descriptor.of(ExecutionPlan(json=write_plan(candidate), handle=handle)))
    shared = (state.objects.add(handle), plan, pointers.ctypes.data, uids.ctypes.data, len(tensors))

    def cycles(count: int, keep: object = (memory, pointers, uids)) -> NDArray[np.float64]:
        times_us = np.zeros((count, len(CALLS)))
        status = run(*shared, workspace.address, pause_us, count, times_us.ctypes.data)
        if status:
            raise RuntimeError(f"a call failed: {state.last_error.message.decode()}")
        handle.synchronize()
        return times_us

    return cycles


@contextmanager
def _busy_thread(is_wanted: bool) -> Iterator[None]:
    """Another thread that holds the interpreter whenever it may."""
    ended = threading.Event()

    def compute() -> None:
        while not ended.is_set():
            sum(range(1000))

    thread = threading.Thread(target=compute)
    if is_wanted:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if is_wanted:
            thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "emulated"), default="cuda")
    parser.add_argument("--bursts", type=int, default=100, help=f"runs of {_BURST} cycles (default 100)")
    parser.add_argument("--busy", action="store_true", help="with another Python thread that computes")
    parser.add_argument("--thread", action="store_true", help="from a new thread of C for each burst")
    parser.add_argument("--pause", type=float, default=0.0, metavar="US", help="microseconds before each cycle")
    options = parser.parse_args()
    executes = options.device == "cuda"
    state = State(open_driver(options.device))
    calling = cycles_on(state, executes=executes, in_thread=options.thread, pause_us=options.pause)
    with calling as cycles, _busy_thread(options.busy):
        cycles(_BURST)
        times_us = np.concatenate([cycles(_BURST) for _ in range(options.bursts)])
    print(f"{'call':28}{'median us':>10}{'10 %':>9}{'99 %':>10}{'99.9 %':>10}{'mean':>9}")
    for name, column in zip((*CALLS, "the cycle"), (*times_us.T, times_us.sum(axis=1)), strict=True):
        if executes or name != "Execute":
            low, median, high, highest = np.percentile(column, (10, 50, 99, 99.9))
            print(f"{name:28}{median:10.2f}{low:9.2f}{high:10.2f}{highest:10.2f}{column.mean():9.2f}")


if __name__ == "__main__":
    main()
