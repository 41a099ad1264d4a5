"""Memory stays flat over cycles of everything that is opened and closed."""

from __future__ import annotations

import gc
import logging
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import lowdnn
from lowdnn.backend.handle import Handle
from lowdnn.driver.fault_injection import with_faults
from lowdnn.frontend import data_type
from lowdnn.frontend.python_graph import pygraph
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.event import Event
from lowdnn.runtime.stream import Stream
from lowdnn.status import LowdnnError
from tests.support.runtime import open_runtime

#: Buffers freed before the measurement: several times those that the emulated device remembers, which fills its tables.
FREED = 4000
WARM_UP = 50
CYCLES = 150
#: Mean bytes that a cycle may leave, for labels of records and caches of numbers until they are full.
ALLOWED_BYTES = 250


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def opened(request: pytest.FixtureRequest) -> Iterator[Handle]:
    tracemalloc.start()
    try:
        with Handle.open(request.param) as handle:
            for number in range(FREED):  # with labels as long as a kernel's name, which later records take the place of
                DeviceBuffer.allocate(handle.runtime.context, 64, label=f"{number:0100}").close()
            yield handle
    finally:
        tracemalloc.stop()


def open_and_close(handle: Handle, cache_dir: Path) -> None:
    with Handle(open_runtime(handle.runtime.driver, cache_dir)) as again:
        lowdnn.from_numpy(np.ones(3, np.float32), again).close()


def copy_there_and_back(handle: Handle, _: Path) -> None:
    for _ in range(3):
        lowdnn.from_numpy(np.ones(1000, np.float32), handle).numpy()


def make_streams(handle: Handle, _: Path) -> None:
    context = handle.runtime.context
    with Stream.create(context) as stream, Event.create(context) as event:
        event.record(stream)
        stream.begin_capture()
        graph = stream.end_capture()
        with context.activated():
            handle.runtime.driver.graph_destroy(graph)


def build_and_execute(handle: Handle, _: Path) -> None:
    graph = pygraph("relu", data_type.FLOAT, data_type.FLOAT, data_type.FLOAT, handle)
    x = graph.tensor([64])
    y = graph.relu(x).set_output(True)
    values = [lowdnn.from_numpy(np.ones(64, np.float32), handle) for _ in range(2)]
    graph.execute({x: values[0], y: values[1]})


def fail(handle: Handle, cache_dir: Path) -> None:
    driver = with_faults(handle.runtime.driver, "mem_alloc:2-=OUT_OF_MEMORY,mem_free:1=UNKNOWN")
    with Handle(open_runtime(driver, cache_dir)) as again, suppress(LowdnnError):
        for _ in range(2):
            lowdnn.from_numpy(np.ones(3, np.float32), again)


def export(handle: Handle, _: Path) -> None:
    tensor = lowdnn.from_numpy(np.ones(3, np.float32), handle)
    kept = [tensor.__dlpack__(stream=1, max_version=version) for version in (None, (1, 0))]
    with suppress(BufferError, RuntimeError):
        np.from_dlpack(tensor)
    kept.clear()


@pytest.mark.parametrize("cycle", [open_and_close, copy_there_and_back, make_streams, build_and_execute, fail, export])
def test_memory_stays_flat(
    opened: Handle,
    kernel_cache_dir: Path,
    cycle: Callable[[Handle, Path], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, logger="lowdnn")  # caplog keeps every record
    for _ in range(WARM_UP):
        cycle(opened, kernel_cache_dir)
    gc.collect()
    before = tracemalloc.take_snapshot()
    start_bytes = tracemalloc.get_traced_memory()[0]
    for _ in range(CYCLES):
        cycle(opened, kernel_cache_dir)
    gc.collect()
    grown_bytes = tracemalloc.get_traced_memory()[0] - start_bytes
    places = tracemalloc.take_snapshot().compare_to(before, "lineno")[:5]
    assert grown_bytes < ALLOWED_BYTES * CYCLES, "\n".join(map(str, places))
