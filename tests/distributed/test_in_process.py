"""Collectives between emulated devices against NumPy, and what becomes of calls and ranks that go wrong."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.distributed.communicator import ReduceOp
from lowdnn.distributed.errors import CommunicationError, CommunicationTimeoutError, PeerFailedError
from lowdnn.distributed.in_process import InProcessCommunicator
from lowdnn.distributed.meeting_point import MeetingPoint
from lowdnn.driver import open_driver
from lowdnn.enums import DataType
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.context import Context
from lowdnn.status import (
    AttributeTypeError,
    BadParamError,
    CudaGraphNativeApiError,
    InvalidValueError,
    LowdnnError,
    NotInitializedError,
    OutOfBoundError,
    ShapeMismatchError,
    StreamMismatchError,
    UnsupportedDataTypeError,
    UnsupportedLayoutError,
)
from tests.support.data import fresh_seed
from tests.support.errors import raises
from tests.support.ranks import Rank, on_ranks

REDUCED = [
    DataType.DOUBLE,
    DataType.FLOAT,
    DataType.HALF,
    DataType.BFLOAT16,
    DataType.INT8,
    DataType.UINT8,
    DataType.INT32,
    DataType.INT64,
]
NUMPY: dict[ReduceOp, Any] = {
    ReduceOp.SUM: np.add,
    ReduceOp.PROD: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
}


def drawn(rng: np.random.Generator, data_type: DataType, shape: tuple[int, ...]) -> NDArray[Any]:
    """Storage of small integers, of which no sum or product leaves what each type holds exactly."""
    return dtypes.from_float64(rng.integers(0, 4, shape).astype(np.float64), data_type)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_reductions_match_numpy(size: int) -> None:
    """Every type with every operation, out of place and in place, and each rank's part of it."""
    rng = np.random.default_rng(fresh_seed())
    count = int(rng.integers(1, 40))
    cases = [(data_type, op) for data_type in REDUCED for op in NUMPY]
    given = [drawn(rng, data_type, (size, size * count)) for data_type, _ in cases]

    def work(rank: Rank) -> list[tuple[NDArray[Any], ...]]:
        communicator, results = rank.communicator, []
        for (data_type, op), arrays in zip(cases, given, strict=True):
            source, target = (rank.device(arrays[communicator.rank], data_type) for _ in range(2))
            part = rank.device(arrays[0, :count], data_type)
            communicator.reduce_scatter(source, part, stream=rank.stream, op=op)
            communicator.all_reduce(source, target, stream=rank.stream, op=op)
            communicator.all_reduce(source, source, stream=rank.stream, op=op)
            results.append(tuple(rank.host(one) for one in (source, target, part)))
        return results

    for number, results in enumerate(on_ranks(size, work)):
        for (data_type, op), arrays, (in_place, apart, part) in zip(cases, given, results, strict=True):
            values = dtypes.to_values(arrays, data_type)
            expected = dtypes.from_float64(NUMPY[op].reduce(values, 0), data_type)
            np.testing.assert_array_equal(in_place, expected, f"{data_type} {op}")
            np.testing.assert_array_equal(apart, expected, f"{data_type} {op}")
            np.testing.assert_array_equal(part, expected[number * count : (number + 1) * count], f"{data_type} {op}")


def test_sums_are_in_rank_order() -> None:
    """((a + b) + c) in fp32, which other orders miss; averages divide the sum; 16-bit sums are rounded once."""
    given = np.array([[1e8, 1], [-1e8, 2**-11], [1, 2**-11]], np.float32)

    def work(rank: Rank) -> tuple[NDArray[Any], ...]:
        single = rank.device(given[rank.communicator.rank])
        half = rank.device(given[rank.communicator.rank, 1:].astype(np.float16), DataType.HALF)
        mean = rank.device(given[rank.communicator.rank])
        for buffer, op in ((single, ReduceOp.SUM), (half, ReduceOp.SUM), (mean, ReduceOp.AVG)):
            rank.communicator.all_reduce(buffer, buffer, stream=rank.stream, op=op)
        return tuple(rank.host(one) for one in (single, half, mean))

    for single, half, mean in on_ranks(3, work):
        assert single[0] == 1  # (1e8 - 1e8) + 1, where 1e8 + (-1e8 + 1) is 0
        assert half[0] == 1 + 2**-10  # rounded after each addition it is 1
        np.testing.assert_array_equal(mean, single / np.float32(3))


def test_moves_match_numpy() -> None:
    """Gathers, broadcasts and messages of every type, from and to parts of buffers."""
    rng = np.random.default_rng(fresh_seed())
    types = dtypes.supported()
    given = [drawn(rng, data_type, (3, 5)) for data_type in types]

    def work(rank: Rank) -> list[tuple[NDArray[Any], ...]]:
        communicator, own, results = rank.communicator, rank.communicator.rank, []
        for data_type, arrays in zip(types, given, strict=True):
            gathered = rank.device(np.zeros_like(arrays), data_type)
            in_place = rank.device(arrays * (np.arange(3) == own)[:, None].astype(arrays.dtype), data_type)
            row_bytes = 5 * dtypes.info(data_type).size_bytes
            part = in_place.view(own * row_bytes, row_bytes, data_type=data_type, shape=(5,))
            communicator.all_gather(rank.device(arrays[own], data_type), gathered, stream=rank.stream)
            communicator.all_gather(part, in_place, stream=rank.stream)
            sent = rank.device(arrays[own], data_type)
            communicator.broadcast(sent, root=1, stream=rank.stream)
            to, source = (own + 1) % 3, (own + 2) % 3
            received = rank.device(arrays[own], data_type)
            with communicator.group():
                communicator.send(gathered, peer=to, stream=rank.stream)
                communicator.recv(in_place, peer=source, stream=rank.stream)
                communicator.send(part, peer=source, stream=rank.stream)
                communicator.recv(received, peer=to, stream=rank.stream)
            communicator.barrier(stream=rank.stream)
            communicator.wait(rank.stream)
            results.append(tuple(rank.host(one) for one in (gathered, in_place, sent, received)))
        return results

    for own, results in enumerate(on_ranks(3, work)):
        for data_type, arrays, made in zip(types, given, results, strict=True):
            for found, expected in zip(made, (arrays, arrays, arrays[1], arrays[(own + 1) % 3]), strict=True):
                np.testing.assert_array_equal(found, expected, data_type.name)


def test_wrong_arguments_are_refused_before_anything_is_sent() -> None:
    """Each with its field; the communicator still works behind them all."""

    def work(rank: Rank) -> float:
        communicator, stream = rank.communicator, rank.stream
        four, eight = rank.device(np.ones(4, np.float32)), rank.device(np.ones(8, np.float32))
        half, flags = (
            rank.device(np.ones(4, np.float16), DataType.HALF),
            rank.device(np.ones(4, bool), DataType.BOOLEAN),
        )
        gaps = DeviceBuffer(four.context, four.address, 16, data_type=DataType.FLOAT, shape=(2,), strides=(2,))
        overlap = DeviceBuffer(four.context, four.address, 16, data_type=DataType.FLOAT, shape=(2, 2), strides=(1, 1))
        bytes_alone = DeviceBuffer(four.context, four.address, 16)
        tail = eight.view(8, 16, data_type=DataType.FLOAT, shape=(4,))
        wrong: list[tuple[type[LowdnnError], str, str, tuple[Any, ...], dict[str, Any]]] = [
            (ShapeMismatchError, "all_reduce.target", "all_reduce", (four, eight), {}),
            (ShapeMismatchError, "all_gather.target", "all_gather", (four, four), {}),
            (ShapeMismatchError, "reduce_scatter.source", "reduce_scatter", (four, four), {}),
            (UnsupportedDataTypeError, "all_reduce.target", "all_reduce", (four, half), {}),
            (UnsupportedDataTypeError, "all_reduce.source", "all_reduce", (flags, flags), {}),
            (UnsupportedDataTypeError, "all_reduce.source", "all_reduce", (bytes_alone, four), {}),
            (UnsupportedLayoutError, "broadcast.buffer", "broadcast", (gaps,), {"root": 0}),
            (UnsupportedLayoutError, "broadcast.buffer", "broadcast", (overlap,), {"root": 0}),
            (BadParamError, "all_gather.target", "all_gather", (tail, eight), {}),
            (AttributeTypeError, "all_reduce.op", "all_reduce", (four, four), {"op": "sum"}),
            (AttributeTypeError, "send.source", "send", (4096,), {"peer": 1 - communicator.rank}),
            (AttributeTypeError, "broadcast.root", "broadcast", (four,), {"root": 0.0}),
            (AttributeTypeError, "barrier.stream", "barrier", (), {"stream": 0}),
            (OutOfBoundError, "broadcast.root", "broadcast", (four,), {"root": 2}),
            (InvalidValueError, "send.peer", "send", (four,), {"peer": communicator.rank}),
            (OutOfBoundError, "recv.peer", "recv", (four,), {"peer": -1}),
        ]
        for error, where, call, arguments, options in wrong:
            with raises(error, where):
                getattr(communicator, call)(*arguments, **({"stream": stream} | options))
        communicator.all_reduce(four, four, stream=stream)
        return float(rank.host(four)[0])

    assert on_ranks(2, work) == [2, 2]


def test_an_average_of_integers_and_another_devices_memory_are_refused() -> None:
    others: list[DeviceBuffer] = []
    met = threading.Barrier(2)

    def work(rank: Rank) -> None:
        numbers = rank.device(np.ones(4, np.int32), DataType.INT32)
        others.append(numbers)
        met.wait()
        with raises(UnsupportedDataTypeError, "all_reduce.source"):
            rank.communicator.all_reduce(numbers, numbers, stream=rank.stream, op=ReduceOp.AVG)
        other = next(one for one in others if one is not numbers)
        with raises(StreamMismatchError, "DeviceBuffer.context"):
            rank.communicator.all_reduce(other, numbers, stream=rank.stream)
        met.wait()

    on_ranks(2, work)


def test_points_and_communicators_are_checked() -> None:
    for arguments, error, where in (
        ((0, 1.0), OutOfBoundError, "MeetingPoint.size"),
        ((True, 1.0), AttributeTypeError, "MeetingPoint.size"),
        ((1, -1), OutOfBoundError, "MeetingPoint.timeout_s"),
        ((1, float("nan")), OutOfBoundError, "MeetingPoint.timeout_s"),
        ((1, "1"), AttributeTypeError, "MeetingPoint.timeout_s"),
    ):
        with raises(error, where):
            MeetingPoint(*arguments)
    with Context(open_driver("emulated")) as context:
        with raises(OutOfBoundError, "Communicator.rank"):
            InProcessCommunicator(MeetingPoint(2, 1), 2, context)
        with raises(AttributeTypeError, "Communicator.context"):
            InProcessCommunicator(MeetingPoint(2, 1), 0, context.driver)  # type: ignore[arg-type]


def test_waits_in_captures_and_nested_groups_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(rank: Rank) -> None:
        four = rank.device(np.ones(4, np.float32))
        rank.stream.begin_capture()
        with raises(CudaGraphNativeApiError, "Communicator.wait.stream"):
            rank.communicator.wait(rank.stream)
        monkeypatch.setattr(rank.communicator.context.driver, "host_functions", None)
        with raises(CudaGraphNativeApiError, "InProcessCommunicator.stream"):
            rank.communicator.all_reduce(four, four, stream=rank.stream)
        rank.communicator.context.driver.graph_destroy(rank.stream.end_capture())
        with raises(BadParamError, "Communicator.group"), rank.communicator.group(), rank.communicator.group():
            pass
        rank.communicator.close()
        with raises(NotInitializedError, "Communicator"):
            rank.communicator.barrier(stream=rank.stream)

    on_ranks(1, work)


def test_different_calls_are_reported_by_every_rank() -> None:
    """NCCL hangs over them. Each message says what every rank called."""
    messages: list[str] = []

    def work(rank: Rank) -> None:
        buffer = rank.device(np.ones(4 + rank.communicator.rank, np.float32))
        with pytest.raises(PeerFailedError) as caught:
            rank.communicator.all_reduce(buffer, buffer, stream=rank.stream)
        messages.append(str(caught.value))
        with pytest.raises(PeerFailedError):
            rank.communicator.barrier(stream=rank.stream)

    on_ranks(2, work)
    for message in messages:
        assert "rank 0 all_reduce of 4 FLOAT, SUM, rank 1 all_reduce of 5 FLOAT, SUM" in message


@pytest.mark.parametrize("ending", ["dies", "hangs"])
def test_the_others_hear_of_a_rank_that_is_lost(ending: str) -> None:
    """At once where it raises, within the timeout where it hangs; then those that are left form a new communicator."""
    released, took_s, sums = threading.Event(), {}, []

    def work(rank: Rank) -> None:
        communicator, own = rank.communicator, rank.communicator.rank
        if own == 1 and ending == "dies":
            raise KeyError("lost")
        if own == 1:
            released.wait()
            with raises(PeerFailedError, "survivors, rank 1", got="ranks [0, 2] only"):
                communicator.point.survivors(own, 0.2)
            return
        start = time.monotonic()
        expected = PeerFailedError if ending == "dies" else CommunicationError
        with pytest.raises(expected, match=r"KeyError: 'lost'|rank 1") as caught:
            communicator.barrier(stream=rank.stream)
        took_s[own] = time.monotonic() - start
        assert ending == "dies" or isinstance(caught.value, CommunicationTimeoutError | PeerFailedError)
        point, number = communicator.point.survivors(own, 0.5)
        with InProcessCommunicator(point, number, communicator.context) as second:
            buffer = rank.device(np.full(3, 1 + number, np.float32))
            second.all_reduce(buffer, buffer, stream=rank.stream)
            sums.append((second.size, rank.host(buffer).tolist()))
        if len(sums) == 2:
            released.set()

    timeout_s = 20.0 if ending == "dies" else 0.5
    try:
        on_ranks(3, work, timeout_s)
    except KeyError:
        assert ending == "dies"
    assert max(took_s.values()) < 5
    assert set(took_s) == {0, 2}
    assert sums == [(2, [3, 3, 3])] * 2


def test_messages_of_another_size_and_groups_that_break_off_end_the_communicator() -> None:
    def sizes(rank: Rank) -> None:
        buffer = rank.device(np.ones(4 + rank.communicator.rank, np.float32))
        call = rank.communicator.send if rank.communicator.rank else rank.communicator.recv
        with pytest.raises(PeerFailedError, match="rank 1 sends 20 bytes, rank 0 receives 16"):
            call(buffer, peer=1 - rank.communicator.rank, stream=rank.stream)

    def breaks_off(rank: Rank) -> None:
        buffer = rank.device(np.ones(4, np.float32))
        if rank.communicator.rank:
            with raises(OutOfBoundError, "send.peer"), rank.communicator.group():
                rank.communicator.send(buffer, peer=7, stream=rank.stream)
        else:
            with pytest.raises(PeerFailedError, match="rank 1 aborted: a call of a group failed"):
                rank.communicator.all_reduce(buffer, buffer, stream=rank.stream)

    on_ranks(2, sizes)
    on_ranks(2, breaks_off)
