"""Host time of classic calls from a C program that makes and destroys their descriptors each time, as PyTorch does.

    python -m tools.bench.classic_calls [--device cuda|emulated] [--bursts N]

A row is a call; times are medians in microseconds: of its descriptors made and set, of the sizes that it is asked for,
of the call itself, of its descriptors destroyed, and of the whole. On the emulated device, whose launches compute at
once, the call is without its launch. Needs gcc.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lowdnn.capi.loading import Binding
from lowdnn.capi.state import State
from lowdnn.driver import open_driver
from lowdnn.driver.base import Driver
from lowdnn.runtime.buffer import DeviceBuffer
from tools.bench.c_program import compiled

#: The calls in the order of the program.
CALLS = (
    "BatchNormalizationForwardTrainingEx",
    "BatchNormalizationBackwardEx",
    "ConvolutionForward",
    "PoolingForward",
    "ActivationForward",
    "AddTensor",
    "RNNForward",
)
PARTS = ("describe", "sizes", "call", "destroy")
#: Bytes at the addresses of a cycle: activations, rows, a filter, workspace, weights of a network.
_BYTES = (*(1 << 16,) * 4, *(1 << 12,) * 6, 1 << 16, 1 << 24, 1 << 20)
#: Cycles between two waits for the device, below the depth of its launch queue.
_BURST = 100

#: Runs a number of cycles of a call; gives the times of each part of each in microseconds, (cycles, parts).
Cycles = Callable[[str, int], NDArray[np.float64]]


@contextmanager
def cycles_on(state: State) -> Iterator[Cycles]:
    """The cycles of every call on a device; in turn on two sets of addresses, as layers of one shape have them."""
    binding = Binding(state)
    try:
        program, library = compiled(binding, Path(__file__).with_suffix(".c"))
        address = ctypes.c_void_p
        program.run.argtypes = (address, ctypes.c_int, address, address, ctypes.c_int64, address)
        handle = state.open_handle()
        pointer, context = state.objects.add(handle), handle.runtime.context
        with context.activated():
            memory = [DeviceBuffer.allocate(context, size_bytes) for size_bytes in 2 * _BYTES]
            for buffer in memory:
                buffer.fill_bytes(0)
            addresses = np.array([buffer.address for buffer in memory], np.uint64)

            def cycles(call: str, count: int) -> NDArray[np.float64]:
                times_us = np.zeros((count, len(PARTS)))
                arguments = (pointer, addresses.ctypes.data, count, times_us.ctypes.data)
                if program.run(library._handle, CALLS.index(call), *arguments):
                    raise RuntimeError(f"{call}: a call failed: {state.last_error.message.decode()}")
                handle.synchronize()
                return times_us

            yield cycles
    finally:
        binding.end()


def without_launches(driver: Driver) -> Driver:
    """The driver, whose prepared launches do nothing."""
    driver.prepare_launch = lambda *_: lambda _: None  # type: ignore[method-assign]
    return driver


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "emulated"), default="cuda")
    parser.add_argument("--bursts", type=int, default=20, help=f"runs of {_BURST} cycles (default 20)")
    options = parser.parse_args(arguments)
    driver = open_driver(options.device)
    print(f"{'call':38}" + "".join(f"{part:>10}" for part in (*PARTS, "whole")))
    with cycles_on(State(driver if options.device == "cuda" else without_launches(driver))) as cycles:
        for call in CALLS:
            cycles(call, _BURST)
            times_us = np.concatenate([cycles(call, _BURST) for _ in range(options.bursts)])
            medians = (*np.median(times_us, axis=0), np.median(times_us.sum(axis=1)))
            print(f"{call:38}" + "".join(f"{time_us:10.2f}" for time_us in medians), flush=True)


if __name__ == "__main__":
    main()
