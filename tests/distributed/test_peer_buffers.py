"""Buffers that the kernels of all ranks reach, and a batch norm of several ranks through them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import lowdnn
import lowdnn.frontend as cudnn
from lowdnn.backend import Handle
from lowdnn.distributed import (
    CommunicationTimeoutError,
    InProcessCommunicator,
    PeerBuffers,
    PeerFailedError,
    peer_buffers,
)
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.captured_graph import CapturedGraph
from lowdnn.runtime.stream import Stream
from lowdnn.status import NotSupportedError
from tests.support.data import fresh_seed
from tests.support.errors import raises
from tests.support.ranks import on_handles

Array = NDArray[Any]
DIMS, EPSILON = (2, 4, 2, 3), 1e-3
CHANNELS = (1, DIMS[1], 1, 1)
AXES = (0, 2, 3)


def graph_of(handle: Handle, buffers: PeerBuffers, *, is_backward: bool) -> tuple[cudnn.pygraph, dict[str, Any]]:
    """The norm or its gradient, built, and the peers' memory by name."""
    single = cudnn.data_type.FLOAT
    graph = cudnn.pygraph(io_data_type=single, intermediate_data_type=single, compute_data_type=single, handle=handle)
    peers = [graph.tensor_like(one).set_name(f"peer{number}") for number, one in enumerate(buffers.buffers)]
    x, scale = graph.tensor(DIMS, name="x"), graph.tensor(CHANNELS, name="scale")
    if is_backward:
        mean, inverse = (graph.tensor(CHANNELS, name=name) for name in ("mean", "inverse"))
        made = graph.batchnorm_backward(graph.tensor(DIMS, name="dy"), x, scale, mean, inverse, peer_stats=peers)
        names: tuple[str, ...] = ("dx", "dscale", "dbias")
    else:
        bias = graph.tensor(CHANNELS, name="bias")
        made = graph.batchnorm(x, scale, bias, None, None, EPSILON, None, peer_stats=peers)[:3]
        names = ("y", "mean", "inverse")
    for tensor, name in zip(made, names, strict=True):
        assert tensor is not None
        tensor.set_output(True).set_name(name)
    graph.build([cudnn.heur_mode.A])
    return graph, {f"peer{number}": one for number, one in enumerate(buffers.buffers)}


@contextmanager
def replayed(handle: Handle, graph: cudnn.pygraph, memory: dict[str, Any], workspace: Any) -> Iterator[Any]:
    """A function that launches the graph as a captured CUDA graph."""
    with Stream.create(handle.runtime.context) as stream:
        handle.set_stream(stream)
        with CapturedGraph.record(stream, lambda: graph.execute(memory, workspace)) as captured:
            yield partial(captured.launch, stream)
            stream.synchronize()
        handle.set_stream(0)


def norm_of_rank(
    handle: Handle, communicator: InProcessCommunicator, x: Array, dy: Array, scale: Array, bias: Array
) -> list[dict[str, Array]]:
    """Results of three replays of a captured norm, each with other data, then those of its gradient."""
    rank, found, stream = communicator.rank, list[dict[str, Array]](), handle.borrowed_stream()
    with PeerBuffers.for_statistics(communicator, DIMS[1], stream=stream) as buffers:
        graph, memory = graph_of(handle, buffers, is_backward=False)
        gradient, _ = graph_of(handle, buffers, is_backward=True)
        communicator.barrier(stream=stream)  # kernels are compiled by now, which may take longer than ranks wait
        device = {name: lowdnn.from_numpy(array, handle) for name, array in (("scale", scale), ("bias", bias))}
        device |= {name: lowdnn.zeros(DIMS, handle) for name in ("x", "y")}
        device |= {name: lowdnn.zeros(CHANNELS, handle) for name in ("mean", "inverse")}
        workspace = lowdnn.empty((max(1, graph.get_workspace_size()),), handle, cudnn.data_type.UINT8)
        with replayed(handle, graph, {**memory, **device}, workspace) as launch:
            for step in range(3):
                device["x"].copy_from(np.ascontiguousarray(x[step, rank]))
                launch()
                found.append({name: device[name].numpy() for name in ("y", "mean", "inverse")})
        buffers.check()
        device |= {"dy": lowdnn.from_numpy(np.ascontiguousarray(dy[rank]), handle), "dx": lowdnn.zeros(DIMS, handle)}
        device |= {name: lowdnn.zeros(CHANNELS, handle) for name in ("dscale", "dbias")}
        del device["y"], device["bias"]
        workspace = lowdnn.empty((max(1, gradient.get_workspace_size()),), handle, cudnn.data_type.UINT8)
        gradient.execute({**memory, **device}, workspace)
        found.append({name: device[name].numpy() for name in ("dx", "dscale", "dbias")})
        buffers.check()
    return found


@pytest.mark.parametrize(("ranks", "has_handles"), [(2, False), (4, False), (2, True)])
def test_a_norm_over_all_ranks(ranks: int, has_handles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through peer access, and through handles as between processes; each replay has other data."""
    if has_handles:
        numbers = iter(range(ranks))
        monkeypatch.setattr(peer_buffers, "_place", lambda: (b"host", b"process %d" % next(numbers)))
    rng = np.random.default_rng(fresh_seed())
    x = rng.normal(size=(3, ranks, *DIMS)).astype(np.float32)
    dy = rng.normal(size=(ranks, *DIMS)).astype(np.float32)
    scale, bias = rng.uniform(0.5, 1.5, (2, *CHANNELS)).astype(np.float32)
    results = on_handles(ranks, lambda handle, communicator: norm_of_rank(handle, communicator, x, dy, scale, bias))
    whole = x.astype(np.float64).reshape(3, ranks * DIMS[0], *DIMS[1:])
    for step in range(3):
        mean, variance = (function(whole[step], AXES, keepdims=True) for function in (np.mean, np.var))
        inverse = 1 / np.sqrt(variance + EPSILON)
        for rank, found in enumerate(results):
            expected = {"y": (x[step, rank] - mean) * inverse * scale + bias, "mean": mean, "inverse": inverse}
            for name, array in expected.items():
                np.testing.assert_allclose(found[step][name], array, rtol=2e-6, atol=2e-6)
    xhat = (whole[2] - mean) * inverse
    flat = dy.astype(np.float64).reshape(whole[2].shape)
    centred = flat - flat.mean(AXES, keepdims=True) - xhat * (flat * xhat).mean(AXES, keepdims=True)
    dx = (centred * inverse * scale).reshape(dy.shape)
    for rank, found in enumerate(results):
        np.testing.assert_allclose(found[3]["dx"], dx[rank], rtol=1e-5, atol=1e-5)
    for name, terms in (("dscale", flat * xhat), ("dbias", flat)):
        total = sum(found[3][name] for found in results)
        np.testing.assert_allclose(total, terms.sum(AXES, keepdims=True), rtol=1e-5, atol=1e-5)


def test_a_rank_that_is_missing_is_named() -> None:
    """The others hear of it within the timeout, and go on with new buffers."""

    def work(handle: Handle, communicator: InProcessCommunicator) -> None:
        stream = handle.borrowed_stream()
        with PeerBuffers.for_statistics(communicator, DIMS[1], stream=stream, timeout_s=2e-5) as buffers:
            graph, memory = graph_of(handle, buffers, is_backward=False)
            names = {"x": DIMS, "y": DIMS, **dict.fromkeys(("scale", "bias", "mean", "inverse"), CHANNELS)}
            device = {name: lowdnn.zeros(dims, handle) for name, dims in names.items()}
            workspace = lowdnn.empty((max(1, graph.get_workspace_size()),), handle, cudnn.data_type.UINT8)
            communicator.barrier(stream=stream)
            if communicator.rank != 1:
                graph.execute({**memory, **device}, workspace)
                with raises(
                    CommunicationTimeoutError, f"PeerBuffers of rank {communicator.rank}", expected="rank 1 to"
                ):
                    buffers.check()
                assert np.isnan(device["y"].numpy()).all()
        with PeerBuffers.for_statistics(communicator, DIMS[1], stream=stream) as buffers:
            buffers.check()

    on_handles(3, work, policy="lockstep,timeout=1")


def test_ranks_that_do_not_reach_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = iter(range(100))

    def refused(handle: Handle, communicator: InProcessCommunicator) -> None:
        with pytest.raises(NotSupportedError, match="expected ranks of one host, got several hosts"):
            PeerBuffers(communicator, 64, stream=handle.borrowed_stream())

    with monkeypatch.context() as patched:
        patched.setattr(peer_buffers, "_place", lambda: (b"host %d" % next(numbers), b"process"))
        on_handles(2, refused)

    def partly(handle: Handle, communicator: InProcessCommunicator) -> None:
        if communicator.rank == 1:
            monkeypatch.setattr(handle.runtime.driver, "device_can_access_peer", lambda device, peer: device != 1)
        communicator.barrier(stream=handle.borrowed_stream())
        with pytest.raises((NotSupportedError, PeerFailedError), match="memory that all ranks reach"):
            PeerBuffers(communicator, 64, stream=handle.borrowed_stream())

    on_handles(2, partly)


def test_more_ranks_than_a_host_has_gpus() -> None:
    class Many:
        size = 9

    with raises(NotSupportedError, "PeerBuffers.communicator", expected="at most 8 ranks", got="9"):
        PeerBuffers(Many(), 64, stream=None)  # type: ignore[arg-type]


def test_buffers_are_given_back() -> None:
    def work(handle: Handle, communicator: InProcessCommunicator) -> None:
        with PeerBuffers(communicator, 64, stream=handle.borrowed_stream()) as buffers:
            own: DeviceBuffer = buffers.buffers[0]
        buffers.close()
        assert not own.is_open

    on_handles(2, work)
