"""Collectives between emulated devices as nodes of CUDA graphs, and replays to which a rank is missing."""

from __future__ import annotations

import re
import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.distributed.communicator import ReduceOp
from lowdnn.distributed.errors import CommunicationTimeoutError, PeerFailedError
from lowdnn.distributed.in_process import InProcessCommunicator
from lowdnn.runtime.stream import Stream
from tests.support.data import fresh_seed
from tests.support.ranks import Rank, on_ranks

POLICIES = ("lockstep", "cta-reverse", "fuzz(3)", "fuzz(4),races")
REPLAYS = 3


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("policy", POLICIES)
def test_replays_match_numpy(size: int, policy: str) -> None:
    """Each collective once in a graph, replayed with other data; integers, so that sums are exact."""
    rng = np.random.default_rng(fresh_seed())
    given = rng.integers(-9, 9, (REPLAYS, size, size, 5)).astype(np.float32)

    def work(rank: Rank) -> list[list[NDArray[Any]]]:
        communicator, own, found = rank.communicator, rank.communicator.rank, []
        source = rank.device(given[0, own])
        targets = [rank.device(np.full_like(given[0, own], np.nan)) for _ in range(4)]
        reduced, gathered, part, received = targets
        small = part.view(0, 20, data_type=part.data_type, shape=(5,))
        row = source.view(20 * own, 20, data_type=source.data_type, shape=(5,))

        def step() -> None:
            stream = rank.stream
            communicator.all_reduce(source, reduced, stream=stream, op=ReduceOp.SUM)
            communicator.reduce_scatter(source, small, stream=stream, op=ReduceOp.MAX)
            communicator.all_gather(row, gathered, stream=stream)
            if size > 1:
                with communicator.group():
                    communicator.send(source, peer=(own + 1) % size, stream=stream)
                    communicator.recv(received, peer=(own - 1) % size, stream=stream)
            communicator.barrier(stream=stream)
            communicator.broadcast(source, root=size - 1, stream=stream)

        replay = rank.captured(step)
        assert np.isnan(rank.host(reduced)).all(), "nothing runs while the stream is captured"
        for arrays in given:
            source.copy_from_host(arrays[own], rank.stream)
            replay()
            communicator.wait(rank.stream)
            found.append([rank.host(one) for one in (reduced, small, gathered, received, source)])
        return found

    for own, results in enumerate(on_ranks(size, work, policy=policy)):
        for arrays, (reduced, small, gathered, received, last) in zip(given, results, strict=True):
            np.testing.assert_array_equal(reduced, arrays.sum(0))
            np.testing.assert_array_equal(small, arrays.max(0)[own])
            np.testing.assert_array_equal(gathered, arrays[np.arange(size), np.arange(size)])
            np.testing.assert_array_equal(last, arrays[-1])
            if size > 1:
                np.testing.assert_array_equal(received, arrays[own - 1])


def test_replays_run_in_stream_order_without_the_host() -> None:
    """The host waits once behind all replays; a call in another stream comes after them."""

    def work(rank: Rank) -> float:
        buffer = rank.device(np.ones(3, np.float32))
        context = rank.communicator.context
        with Stream.create(context) as other:

            def step() -> None:
                rank.communicator.all_reduce(buffer, buffer, stream=rank.stream)

            replay = rank.captured(step)
            for _ in range(REPLAYS):
                replay()
            rank.communicator.wait(rank.stream)
            rank.communicator.all_reduce(buffer, buffer, stream=other)
        return float(rank.host(buffer)[1])

    assert on_ranks(2, work) == [2 ** (REPLAYS + 1)] * 2


def test_a_deadlock_names_all_that_wait() -> None:
    """Two ranks wait in a reduction and a receive, and the third has come to its end."""
    reasons = []
    met = threading.Barrier(3)

    def work(rank: Rank) -> None:
        communicator = rank.communicator
        buffer = rank.device(np.ones(4, np.float32))
        calls = (
            lambda: communicator.all_reduce(buffer, buffer, stream=rank.stream),
            lambda: communicator.recv(buffer, peer=2, stream=rank.stream),
            lambda: None,
        )
        replay = rank.captured(calls[communicator.rank])
        replay()
        met.wait()
        rank.stream.synchronize()
        if communicator.rank < 2:
            with pytest.raises(PeerFailedError) as caught:
                communicator.check()
            reasons.append(str(caught.value))

    on_ranks(3, work)
    for reason in reasons:
        assert "nothing can run: " in reason
        assert "device 0 waits: rank 0: all_reduce of 4 FLOAT, SUM, no call of rank 1, 2" in reason
        assert "device 1 waits: rank 1: recv from 2, no send of it" in reason
    assert len(reasons) == 2


def test_different_calls_are_told_by_wait() -> None:
    messages = []

    def work(rank: Rank) -> None:
        buffer = rank.device(np.ones(4 + rank.communicator.rank, np.float32))
        rank.captured(lambda: rank.communicator.all_reduce(buffer, buffer, stream=rank.stream))()
        with pytest.raises(PeerFailedError) as caught:
            rank.communicator.wait(rank.stream)
        messages.append(str(caught.value))

    on_ranks(2, work)
    for message in messages:
        assert "rank 0 all_reduce of 4 FLOAT, SUM, rank 1 all_reduce of 5 FLOAT, SUM" in message
    assert len(messages) == 2


@pytest.mark.parametrize("ending", ["dies", "hangs"])
def test_a_replay_without_a_rank_ends_and_the_others_go_on(ending: str) -> None:
    """Within the timeout; the ranks that are left capture their step anew with a new communicator."""
    released, sums, met = threading.Event(), list[list[float]](), threading.Barrier(3)

    def work(rank: Rank) -> None:
        communicator, own = rank.communicator, rank.communicator.rank
        buffer = rank.device(np.full(2, 1 + own, np.float32))
        replay = rank.captured(lambda: communicator.all_reduce(buffer, buffer, stream=rank.stream))
        replay()
        communicator.wait(rank.stream)
        met.wait()
        if own == 1 and ending == "dies":
            raise KeyError("lost")
        if own == 1:
            released.wait()
            return
        replay()
        missing = "all_reduce of 2 FLOAT, SUM, no call of rank 1"
        with pytest.raises(
            PeerFailedError if ending == "dies" else (CommunicationTimeoutError, PeerFailedError),
            match="KeyError: 'lost'" if ending == "dies" else f"{missing}|timed out after 0.5 s",
        ):
            communicator.wait(rank.stream)
        point, number = communicator.point.survivors(own, 1.0)
        with InProcessCommunicator(point, number, communicator.context) as second:
            buffer.copy_from_host(np.full(2, 1 + own, np.float32), rank.stream)
            again = rank.captured(lambda: second.all_reduce(buffer, buffer, stream=rank.stream))
            again()
            second.wait(rank.stream)
            sums.append(rank.host(buffer).tolist())
            second.barrier(stream=rank.stream)
        released.set()

    try:
        on_ranks(3, work, 20.0 if ending == "dies" else 0.5)
    except KeyError:
        assert ending == "dies"
    assert sums == [[4, 4]] * 2


def test_a_timeout_tells_which_calls_wait_for_whom() -> None:
    released = threading.Event()

    def work(rank: Rank) -> None:
        if rank.communicator.rank:
            released.wait()
            return
        buffer = rank.device(np.ones(2, np.float32))
        rank.captured(lambda: rank.communicator.send(buffer, peer=1, stream=rank.stream))()
        with pytest.raises(CommunicationTimeoutError, match=re.escape("rank 0: send to 1, no recv of it")):
            rank.communicator.wait(rank.stream)
        released.set()

    on_ranks(2, work, 0.3)
