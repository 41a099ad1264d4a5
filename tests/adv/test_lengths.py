"""Lengths of sequences on their way to the device."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.adv.lengths import LengthWriter
from lowdnn.backend.handle import Handle
from tests.support.running import ORDER_AND_RACES, POLICIES
from tests.support.runtime import download, upload


@pytest.mark.parametrize("count", [1, 127, 1000, 2345])
def test_lengths_arrive_and_nothing_else_changes(handle: Handle, count: int) -> None:
    _check(handle, count)


@pytest.mark.parametrize("policy", dict.fromkeys((*POLICIES, *ORDER_AND_RACES, "fuzz(3),late,races")))
def test_lengths_arrive_in_any_order(policy: str) -> None:
    with Handle.open("emulated", policy=policy) as handle:
        _check(handle, 1234)


def test_a_graph_keeps_the_lengths_of_its_capture(handle: Handle) -> None:
    """The writer may write others in between."""
    driver, memory = handle.runtime.driver, upload(handle.runtime, np.zeros(4, np.int32))
    writer = LengthWriter(handle)
    with handle.runtime.context.activated():
        stream = driver.stream_create()
        driver.stream_begin_capture(stream)
        writer.write(memory.address, (4, 3, 2, 1), stream)
        graph = driver.stream_end_capture(stream)
        started = driver.graph_instantiate(graph)
        writer.write(memory.address, (9, 9, 9, 9), stream)
        driver.graph_launch(started, stream)
        driver.stream_synchronize(stream)
        np.testing.assert_array_equal(download(memory, np.int32), [4, 3, 2, 1])
        driver.graph_exec_destroy(started)
        driver.graph_destroy(graph)
        driver.stream_destroy(stream)


def _check(handle: Handle, count: int) -> None:
    memory = upload(handle.runtime, np.full(count + 8, -7, np.int32))
    lengths = tuple(np.random.default_rng(1).integers(1, 99, count).tolist())
    writer = LengthWriter(handle)
    for values in (lengths[::-1], lengths):
        writer.write(memory.address + 16, values, handle.stream)
    handle.synchronize()
    found = download(memory, np.int32)
    np.testing.assert_array_equal(found, [-7] * 4 + [*lengths] + [-7] * 4)
