"""``lowdnn.WorkspacePool``: the pool of the runtime, made from a handle and told its needs by graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lowdnn.backend.handle import Handle
from lowdnn.checks import instance, integer, sequence, shown
from lowdnn.runtime import workspace_pool
from lowdnn.runtime.stream import stream_handle
from lowdnn.status import AttributeTypeError


class NeedsWorkspace(Protocol):
    """A graph that is built, or a sequence of graphs."""

    @property
    def handle(self) -> Handle: ...

    def get_workspace_size(self) -> int: ...


class WorkspacePool(workspace_pool.WorkspacePool):
    """Workspace for ``execute`` that plans, streams and handles of one device share.

        with lowdnn.WorkspacePool(handle, limit_bytes=64 << 20) as pool:
            graph.execute(values, pool)

    Each stream has one block, as large as the largest need of the plans that ran in it, and all blocks stay within
    ``limit_bytes``. Blocks grow, are freed and go to other streams in stream order, and the host waits for nothing.
    Threads may share a pool. Addresses that a CUDA graph captures stay valid until ``release`` or ``close``.

    A stream that has used the pool is destroyed only behind ``release``. Close the pool with ``close`` or ``with``;
    it outlives the handle that it was made from.
    """

    def __init__(self, handle: Handle, limit_bytes: int | None = None) -> None:
        """A pool of the handle's device. ``limit_bytes``: the most that it holds; by default what the device has.

        Raises NotSupportedError for a device without stream-ordered allocation.
        """
        instance(handle, Handle, "WorkspacePool.handle").check_open("WorkspacePool")
        limit = None if limit_bytes is None else integer(limit_bytes, "WorkspacePool.limit_bytes", 1)
        super().__init__(handle.runtime.driver, handle.runtime.context.device, limit)

    def reserve(self, graphs: Sequence[NeedsWorkspace]) -> None:
        """Allocates what the largest of ``graphs`` needs in the stream of its handle, which keeps it until ``release``.

        A capture of ``execute`` with the pool then allocates nothing.
        Raises StreamMismatchError for a graph of another device, SizeInsufficientError where the limit is too small,
        DeviceAllocationFailedError.
        """
        where = "WorkspacePool.reserve.graphs"
        given = sequence(graphs, where, "graphs")
        for graph in given:
            if not hasattr(graph, "get_workspace_size"):
                raise AttributeTypeError.at(where, expected="graphs", got=shown(graph))
        needs = [(graph.get_workspace_size(), graph.handle) for graph in given if graph.get_workspace_size()]
        for _, handle in needs:
            self.check_device(handle.runtime.context, where)
        for size_bytes, handle in sorted(needs, key=lambda need: -need[0]):
            self.reserve_bytes(size_bytes, handle.stream)

    def reserve_bytes(self, size_bytes: int, stream: object = 0) -> int:
        """The address of ``size_bytes`` in the block of ``stream``, which stays valid until ``release`` or ``close``.

        It serves code that needs a plain address: variant packs and the caller's kernels, launched into ``stream``.
        stream: as in ``Handle.set_stream``.  Raises what ``reserve`` raises.
        """
        where = "WorkspacePool.reserve_bytes.size_bytes"
        return super().reserve_bytes(integer(size_bytes, where, 1), stream_handle(stream))

    def release(self, stream: object = 0) -> None:
        """Gives the blocks of ``stream``, reserved ones too, to other streams, whose work waits for what it holds now.

        To be called before a stream is destroyed. CUDA graphs that have captured its blocks must not be launched again.
        Raises BadParamError for a stream that is being captured.
        """
        super().release(stream_handle(stream))

    def trim(self, keep_bytes: int = 0) -> int:
        """Frees blocks until the pool holds at most ``keep_bytes``, and returns the bytes freed; waits for nothing.

        Reserved and captured blocks stay. Blocks of no stream go first, then those of streams, in stream order.
        """
        return super().trim(integer(keep_bytes, "WorkspacePool.trim.keep_bytes", 0))
