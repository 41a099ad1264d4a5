"""A step of the training as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from lowdnn.cli.training.network import Network
from lowdnn.cli.training.session import Session
from lowdnn.runtime.captured_graph import CapturedGraph
from lowdnn.runtime.stream import Stream


@contextmanager
def captured_step(session: Session, network: Network) -> Iterator[Callable[[], None]]:
    """``network.train_step``, recorded once with its collectives; each call launches the graph.

    The session's handle has a stream of its own meanwhile, since the default stream cannot be captured.
    """
    handle = session.handle
    session.synchronize()
    with Stream.create(handle.runtime.context) as stream:
        handle.set_stream(stream)
        try:
            with CapturedGraph.record(stream, network.train_step) as graph:
                yield partial(graph.launch, stream)
                session.synchronize()
        finally:
            handle.set_stream(0)
