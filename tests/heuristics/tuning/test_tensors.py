"""The data of a tuning: copies of what the caller gives, numbers that fit their roles, results compared."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from lowdnn.backend.handle import Handle
from lowdnn.cases import parse_case
from lowdnn.enums import HeurMode
from lowdnn.heuristics.tuning.tensors import TuningTensors
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.status import DeviceAllocationFailedError


@pytest.fixture
def handle() -> Iterator[Handle]:
    with Handle.open("emulated") as opened:
        yield opened


def test_what_the_caller_gives_is_copied_for_each_slot_and_stays_as_it_is(handle: Handle) -> None:
    graph = parse_case("matmul m=8 n=8 k=8").graph()
    context, stream = handle.runtime.context, handle.borrowed_stream()
    a = graph.inputs[0]
    numbers = np.arange(64, dtype=np.float32)
    with DeviceBuffer.allocate(context, a.span_bytes) as given:
        given.copy_from_host(numbers, stream)
        with TuningTensors(context, graph, stream, {a.uid: given.address}) as tensors:
            addresses = {copy for (copy,) in tensors.addresses((a.uid,))}
            assert len(addresses) == tensors.slots > 1
            for address in sorted(addresses)[:: tensors.slots // 3]:
                copy = DeviceBuffer(context, address, a.span_bytes)
                assert np.array_equal(copy.to_host(stream).view(np.float32), numbers)
            assert given.address not in addresses
        assert np.array_equal(given.to_host(stream).view(np.float32), numbers)


@pytest.mark.parametrize("text", ["matmul m=8 n=8 k=8 dtype=bf16", "matmul m=8 n=8 k=8 dtype=int8"])
def test_results_are_compared_by_what_roundings_explain(handle: Handle, text: str) -> None:
    graph = parse_case(text).graph()
    context, stream = handle.runtime.context, handle.borrowed_stream()
    best = handle.rank(graph, HeurMode.A).best
    assert best is not None
    with TuningTensors(context, graph, stream) as tensors:
        loaded = handle.load(best.plan)
        loaded.execute(tensors.addresses(loaded.uids)[0], 0, stream.handle)
        right = tensors.results()
        assert any(found.any() for found in right.values())
        assert tensors.disagreement(right, right) == ""
        tensors.forget_results()
        assert "differ" in tensors.disagreement(tensors.results(), right)
        near = {uid: found.copy() for uid, found in right.items()}
        for found in near.values():
            found[0] ^= 1  # the last bit of the first element
        is_integer = "int8" in text
        assert (tensors.disagreement(near, right) != "") == is_integer


def test_copies_are_as_many_as_the_memory_has_room_for_and_one_must_fit(
    handle: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = parse_case("pointwise dims=1x1x1024x1024 ops=relu dtype=fp32").graph()
    context, stream = handle.runtime.context, handle.borrowed_stream()
    monkeypatch.setattr(type(handle.runtime.driver), "mem_get_info", lambda self: (50 << 20, 100 << 20))
    with TuningTensors(context, graph, stream) as tensors:
        assert tensors.slots == 3  # 8 MiB each, within half of 50 MiB
    with pytest.raises(DeviceAllocationFailedError):
        TuningTensors(
            context, parse_case(f"pointwise dims=1x1x{1 << 20}x{1 << 22} ops=relu dtype=fp32").graph(), stream
        )
