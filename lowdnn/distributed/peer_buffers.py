"""Memory of every rank that the kernels of all ranks reach: for exchanges within a kernel.

Ranks of one process reach each other's memory by peer access, ranks of several processes by handles for interprocess
communication. All are of one host. ``buffers[0]`` is this rank's own, then come those of the ranks after it, and behind
the last rank those from rank 0 on: a graph that names them is the same on every rank.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from lowdnn import checks
from lowdnn.distributed.communicator import Communicator
from lowdnn.distributed.errors import CommunicationError, CommunicationTimeoutError, PeerFailedError
from lowdnn.distributed.store import seconds
from lowdnn.driver.base import IPC_HANDLE_BYTES, DriverError
from lowdnn.driver.results import CuResult
from lowdnn.enums import DataType
from lowdnn.ops.peer_stats import HEADER_WORDS, MAX_PEERS, peer_stat_dims
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.process_bound import ProcessBound
from lowdnn.runtime.stream import Stream
from lowdnn.status import NotSupportedError

#: The header of a buffer (``engines/norm/peers.cuh``): rank, failure, time limit in nanoseconds.
_HEADER = struct.Struct(f"<IIQ{4 * HEADER_WORDS - 16}x")
#: The record that a rank sends to the others: host, process, device, context, address, handle.
_RECORD = struct.Struct(f"<64s64sQQQ{IPC_HANDLE_BYTES}s")


@dataclass(frozen=True)
class _Home:
    """Where a rank's buffer is."""

    host: bytes
    process: bytes
    device: int
    context: int
    address: int
    handle: bytes

    def packed(self) -> bytes:
        return _RECORD.pack(self.host, self.process, self.device, self.context, self.address, self.handle)

    @staticmethod
    def unpacked(record: bytes) -> _Home:
        host, process, device, context, address, handle = _RECORD.unpack(record)
        return _Home(host, process, device, context, address, handle)


class PeerBuffers(ProcessBound):
    """Buffers of ``size_bytes`` behind a header, one of each rank; all ranks of ``communicator`` make them together.

    ``timeout_s``: how long a kernel waits for another rank; by default that of the communicator. One that waited in
    vain ends, its results are NaN, and so are those of later ones; ``check`` then raises. Kernels that use the same
    buffers run in the same order on every rank, one at a time.

    Raises NotSupportedError for more than eight ranks, ranks of several hosts, and devices without access to each
    other, in every rank; CommunicationError where a rank is missing.
    """

    def __init__(
        self,
        communicator: Communicator,
        size_bytes: int,
        *,
        stream: Stream,
        shape: tuple[int, ...] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        if communicator.size > MAX_PEERS:
            raise NotSupportedError.at(
                "PeerBuffers.communicator", expected=f"at most {MAX_PEERS} ranks", got=communicator.size
            )
        self._communicator, self._stream = communicator, stream
        self.timeout_s = seconds(communicator.timeout_s if timeout_s is None else timeout_s, "PeerBuffers.timeout_s")
        self._opened: list[int] = []
        whole_bytes = _HEADER.size + checks.integer(size_bytes, "PeerBuffers.size_bytes", 0)
        self._own = DeviceBuffer.allocate(
            communicator.context, whole_bytes, data_type=DataType.FLOAT, shape=shape, label="peer buffer"
        )
        try:
            self.buffers = (self._own, *self._others(shape))
        except BaseException:
            self._free()
            raise

    @classmethod
    def for_statistics(
        cls,
        communicator: Communicator,
        channels: int,
        *,
        stream: Stream,
        compute_type: DataType = DataType.FLOAT,
        timeout_s: float | None = None,
    ) -> PeerBuffers:
        """The ``peer_stats`` of batch norms with up to ``channels`` channels, forward and backward, in one stream.

        compute_type: DOUBLE for x in DOUBLE.
        """
        dims = peer_stat_dims(communicator.size, checks.integer(channels, "PeerBuffers.channels", 1), compute_type)
        size_bytes = 4 * dims[1] - _HEADER.size
        return cls(communicator, size_bytes, stream=stream, shape=dims, timeout_s=timeout_s)

    def check(self, stream: Stream | None = None) -> None:
        """Waits for the stream, and raises CommunicationTimeoutError where a kernel waited for a rank in vain."""
        header = self._own.view(0, _HEADER.size).to_host(self._stream if stream is None else stream)
        _, failure, _ = _HEADER.unpack(header.tobytes())
        if failure:
            raise CommunicationTimeoutError.at(
                f"PeerBuffers of rank {self._communicator.rank}",
                expected=f"rank {failure - 1} to run its kernel within {self.timeout_s:g} s",
                got="nothing of it",
                hint="form a new communicator of the ranks that are left, and new buffers",
            )

    def close(self) -> None:
        """Gives the memory back once all ranks close theirs; where one is missing, after the communicator's timeout."""
        if self._own.is_open:
            with suppress(CommunicationError):
                self._communicator.barrier(stream=self._stream)
                self._communicator.wait(self._stream)
            self._free()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _free(self) -> None:
        context = self._communicator.context
        for address in self._opened:
            context.give_back("peer buffer", lambda address=address: context.driver.ipc_close_mem_handle(address))  # type: ignore[misc]
        self._opened.clear()
        self._own.close()

    def _others(self, shape: tuple[int, ...] | None) -> Iterator[DeviceBuffer]:
        """The other ranks' buffers in the order of ``buffers``, once all ranks have access to them."""
        communicator = self._communicator
        self._own.fill_bytes(0, self._stream)
        header = _HEADER.pack(communicator.rank, 0, int(1e9 * self.timeout_s))
        self._own.copy_from_host(np.frombuffer(header, np.uint8), self._stream)
        homes = self._homes()
        problem = ""
        found = []
        for step in range(1, communicator.size):
            home = homes[(communicator.rank + step) % communicator.size]
            try:
                address = self._reached(home, homes[communicator.rank])
            except (DriverError, NotSupportedError) as error:
                problem = str(error)
                break
            found.append(
                DeviceBuffer(communicator.context, address, self._own.size_bytes, data_type=DataType.FLOAT, shape=shape)
            )
        self._agree(problem)
        return iter(found)

    def _homes(self) -> list[_Home]:
        """Where each rank's buffer is, in rank order. Once they are there, all buffers have their headers."""
        context, driver = self._communicator.context, self._communicator.context.driver
        handle = b""
        with context.activated(), suppress(DriverError):  # a system without handles: enough within one process
            handle = driver.ipc_get_mem_handle(self._own.address)
        own = _Home(*_place(), context.device, context.handle, self._own.address, handle)
        told = self._gathered(np.frombuffer(own.packed(), np.uint8))
        return [_Home.unpacked(record.tobytes()) for record in told]

    def _gathered(self, own: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
        """The bytes of all ranks, in rank order."""
        context, size = self._communicator.context, self._communicator.size

        def buffer(count: int) -> DeviceBuffer:
            return DeviceBuffer.allocate(context, count, data_type=DataType.UINT8, shape=(count,), label="peer records")

        with buffer(own.size) as source, buffer(size * own.size) as target:
            source.copy_from_host(np.ascontiguousarray(own), self._stream)
            self._communicator.all_gather(source, target, stream=self._stream)
            self._communicator.wait(self._stream)
            return list(target.to_host(self._stream).reshape(size, -1))

    def _reached(self, home: _Home, own: _Home) -> int:
        """The address of another rank's buffer in this process. Raises NotSupportedError and DriverError."""
        context, driver = self._communicator.context, self._communicator.context.driver
        if home.host != own.host:
            raise NotSupportedError.at("PeerBuffers.communicator", expected="ranks of one host", got="several hosts")
        with context.activated():
            if home.process != own.process:
                address = driver.ipc_open_mem_handle(home.handle)
                self._opened.append(address)
                return address
            if home.device != own.device:
                if not driver.device_can_access_peer(own.device, home.device):
                    raise NotSupportedError.at(
                        "PeerBuffers.communicator",
                        expected=f"devices that reach each other, as {own.device} and {home.device}",
                        got="no peer access",
                    )
                try:
                    driver.context_enable_peer_access(home.context)
                except DriverError as error:
                    if error.result != CuResult.PEER_ACCESS_ALREADY_ENABLED:
                        raise
        return home.address

    def _agree(self, problem: str) -> None:
        """Raises in every rank where one has a problem."""
        told = self._gathered(np.array([bool(problem)], np.uint8))
        if problem:
            raise NotSupportedError.at("PeerBuffers", expected="memory that all ranks reach", got=problem)
        failed = [rank for rank, one in enumerate(told) if one.item()]
        if failed:
            raise PeerFailedError.at(
                "PeerBuffers", expected="memory that all ranks reach", got=f"none in rank {failed}"
            )


def _place() -> tuple[bytes, bytes]:
    """The host, and this process on it, by names that no other host or process has."""
    boot, space = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    host = boot.read_text(encoding="ascii").strip() if boot.exists() else os.uname().nodename
    number = f"{os.getpid()} {os.stat(space).st_ino if space.exists() else 0}"
    return host.encode()[:64], number.encode()[:64]
