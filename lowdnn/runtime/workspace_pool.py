"""Workspace that plans share: one block of memory for each stream, reused in stream order, within a limit of bytes.

Plans of one stream run one after the other, so that they take turns with one block, as large as the largest of them
needs. A block that is too small is freed and a larger one allocated, both in the order of the stream: nobody waits. A
stream that finds no room within the limit, or on the device, takes the block of another stream, and its work waits on
the device for the work that the other one has given so far.

A CUDA graph may be launched again at any time, so that a block which it has captured is kept: neither freed nor given
to another stream until ``release`` or ``close``. A stream that is being captured allocates nothing; ``reserve_bytes``
does it ahead.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Self

from lowdnn.driver.base import DeviceAttribute, Driver, DriverError, DriverMemoryError, EventFlags
from lowdnn.events import emit, event_logger
from lowdnn.forking import tell_after_fork
from lowdnn.observer import introduce
from lowdnn.runtime.context import Context
from lowdnn.runtime.process_bound import ProcessBound
from lowdnn.status import (
    BadParamError,
    DeviceAllocationFailedError,
    LowdnnError,
    NotInitializedError,
    NotSupportedError,
    SizeInsufficientError,
    StreamMismatchError,
)

#: The handles of the legacy default stream, which no CUDA graph can capture.
_LEGACY_STREAMS = (0, 1)
#: The handle of the calling thread's own default stream.
_PER_THREAD_STREAM = 2
#: Blocks are multiples of it where the limit allows: the driver divides memory no finer.
_GRANULE_BYTES = 512

#: A stream, or the default stream of one thread.
StreamKey = int | tuple[int, int]


@dataclass(frozen=True)
class PoolStatistics:
    """The state of a pool, and what has become of it since it was made; sizes in bytes.

    size_bytes: bytes held from the driver now.  blocks: their number of blocks.
    used_bytes: the largest need that a block has served, summed over the blocks.
    kept_bytes: the part of size_bytes that is reserved, or captured by a CUDA graph.
    high_water_bytes: the most that was held at a time.  largest_need_bytes: the most that one plan has needed.
    allocations: blocks that the driver gave.  handovers: blocks that one stream took over from another.
    refusals: needs that raised an error for lack of room.
    """

    limit_bytes: int | None
    size_bytes: int
    used_bytes: int
    kept_bytes: int
    blocks: int
    high_water_bytes: int
    largest_need_bytes: int
    allocations: int
    handovers: int
    refusals: int

    @property
    def fragmentation(self) -> float:
        """The share of ``size_bytes`` that no plan has needed so far, 0 to 1."""
        return 1 - self.used_bytes / self.size_bytes if self.size_bytes else 0.0


@dataclass(slots=True)
class _Block:
    """``is_kept``: stays where it is. ``is_settled``: whether a stream captures it need not be asked any more.

    ``event``: work that must be over before the block is used or freed, where it belongs to no stream.
    """

    address: int
    size_bytes: int
    used_bytes: int = 0
    is_kept: bool = False
    is_settled: bool = False
    event: int = 0


class WorkspacePool(ProcessBound):
    """See the module's docstring. Safe to share between threads and between handles of one device.

    ``lock`` is held from ``address`` until the work that uses the address is in its stream.
    """

    def __init__(self, driver: Driver, device: int, limit_bytes: int | None = None) -> None:
        """``limit_bytes``: the most that the pool holds at a time; by default what the device has.

        Raises NotSupportedError for a device without stream-ordered allocation.
        """
        self.context = Context(driver, device)
        if not self.context.attribute(DeviceAttribute.MEMORY_POOLS_SUPPORTED):
            self.context.close()
            raise NotSupportedError.at(
                "WorkspacePool.device", expected="stream-ordered allocation", got="a device without memory pools"
            )
        self.limit_bytes = limit_bytes
        self.lock = threading.Lock()
        self._driver = driver
        self._is_capturing = driver.stream_is_capturing
        # The last context that was found to be on the pool's device: its liveness does not keep it alive.
        self._served = self.context.liveness
        self._blocks: dict[StreamKey, _Block] = {}
        self._outgrown: list[tuple[StreamKey, _Block]] = []
        self._free: list[_Block] = []
        self._is_open = True
        self._size_bytes = self._high_water_bytes = self._largest_need_bytes = 0
        self._allocations = self._handovers = self._refusals = 0
        self._logger = event_logger("workspace")
        tell_after_fork(self)
        introduce(self)

    def after_fork(self) -> None:
        self.lock = threading.Lock()

    def address(self, size_bytes: int, context: Context, stream: int, where: str, *, is_kept: bool = False) -> int:
        """The address of ``size_bytes`` for work that goes into ``stream`` next; the caller holds ``lock``.

        ``where`` names what needs them in messages. ``is_kept``: the address stays valid, as if it were reserved.
        Raises StreamMismatchError for a context of another device, NotInitializedError for a closed pool,
        SizeInsufficientError where the limit is too small, or the stream is being captured and lacks a block;
        DeviceAllocationFailedError.
        """
        if context.liveness is not self._served:
            self.check_device(context, where)
            self._served = context.liveness
        block = self._blocks.get(stream if stream != _PER_THREAD_STREAM else _key(stream))
        if block is None or size_bytes > block.size_bytes or is_kept:
            block = self._block_for(stream, size_bytes, where, is_kept)
        elif not block.is_settled:
            try:
                if self._is_capturing(stream):
                    block.is_kept = block.is_settled = True
            except DriverError:  # no context is current, as at a thread's first call
                block = self._block_for(stream, size_bytes, where, is_kept)
        if size_bytes > block.used_bytes:
            block.used_bytes = size_bytes
            self._largest_need_bytes = max(self._largest_need_bytes, size_bytes)
        return block.address

    def reserve_bytes(self, size_bytes: int, stream: int = 0) -> int:
        """The address of ``size_bytes`` for work in ``stream``, which stays valid until ``release`` or ``close``.

        It is the block that plans in this stream get. Raises what ``address`` raises.
        """
        with self.lock:
            return self.address(size_bytes, self.context, stream, "WorkspacePool.reserve_bytes", is_kept=True)

    def release(self, stream: int) -> None:
        """Gives what the stream has, reserved blocks too, to other streams, whose work waits for what it holds now.

        To be called before the stream is destroyed, and when CUDA graphs with its blocks are launched no more.
        Raises BadParamError for a stream that is being captured.
        """
        key = _key(stream)
        with self._entered():
            while key in self._blocks or any(owner == key for owner, _ in self._outgrown):
                if self._is_captured(stream):
                    where = "WorkspacePool.release.stream"
                    raise BadParamError.at(where, expected="a stream that is not being captured", got=f"{stream:#x}")
                self._set_aside(key, stream)

    def trim(self, keep_bytes: int = 0) -> int:
        """Frees blocks that are not kept until the pool holds at most ``keep_bytes``; waits for nothing.

        Blocks of no stream go first, then those of streams, in stream order. Returns the bytes that were freed.
        """
        with self._entered(), self._own_stream() as own:
            before = self._size_bytes
            while self._size_bytes > keep_bytes and (self._free or self._take_from_stream(None)):
                self._discard_free(own)
            return before - self._size_bytes

    def statistics(self) -> PoolStatistics:
        with self.lock:
            blocks = [*self._blocks.values(), *(block for _, block in self._outgrown), *self._free]
            return PoolStatistics(
                self.limit_bytes,
                self._size_bytes,
                sum(block.used_bytes for block in blocks),
                sum(block.size_bytes for block in blocks if block.is_kept),
                len(blocks),
                self._high_water_bytes,
                self._largest_need_bytes,
                self._allocations,
                self._handovers,
                self._refusals,
            )

    def check_device(self, context: Context, where: str) -> None:
        """Raises StreamMismatchError for a context of another device."""
        if not self.context.is_of_device(context):
            expected = f"a pool of device {context.device}"
            raise StreamMismatchError.at(where, expected=expected, got="a pool of another device")

    @property
    def is_open(self) -> bool:
        return self._is_open

    @property
    def size_bytes(self) -> int:
        """Bytes held from the driver now."""
        return self._size_bytes

    def close(self) -> None:
        """Waits for the device and frees everything. CUDA graphs with the pool's memory must not be launched any more.

        Closing twice does nothing.
        """
        with self.lock:
            if not self._is_open:
                return
            self._is_open = False
            blocks = [*self._blocks.values(), *(block for _, block in self._outgrown), *self._free]
            self._blocks.clear()
            self._outgrown.clear()
            self._free.clear()
            self._size_bytes = 0
        self.context.give_back("WorkspacePool", partial(_free_all, self._driver, blocks))
        self.context.close()

    def __del__(self) -> None:
        if getattr(self, "_is_open", False):
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- under the lock -------------------------------------------------------------------------------------
    def _block_for(self, stream: int, size_bytes: int, where: str, is_kept: bool) -> _Block:
        self._check_open()
        with self.context.activated():
            key, is_captured = _key(stream), self._is_captured(stream)
            block = self._blocks.get(key)
            if block is None or block.size_bytes < size_bytes:
                with self._counting(size_bytes, where):
                    if is_captured:
                        self._refuse_captured(0 if block is None else block.size_bytes, size_bytes, where)
                    block = self._grow(key, stream, size_bytes, where)
            if is_kept or is_captured:
                block.is_kept = True
            block.is_settled = block.is_kept or stream in _LEGACY_STREAMS
            return block

    def _grow(self, key: StreamKey, stream: int, size_bytes: int, where: str) -> _Block:
        """A block of at least ``size_bytes`` for ``stream``, instead of the one that it has."""
        self._check_limit(key, size_bytes, where)
        old = self._blocks.pop(key, None)
        if old is not None and old.is_kept:
            self._outgrown.append((key, old))
        elif old is not None:
            self._discard(old, stream)
        failure: DriverMemoryError | None = None
        while True:
            block = self._taken_over(stream, size_bytes)
            if block is None and not self._is_over_limit(size_bytes):
                try:
                    block = self._allocated(stream, size_bytes, where)
                except DriverMemoryError as error:
                    failure = error
            if block is not None:
                self._blocks[key] = block
                return block
            if not self._gives_one_up(key, stream):
                raise (
                    self._limit_error(key, size_bytes, where) if failure is None else _lack(size_bytes, where, failure)
                )

    def _gives_one_up(self, key: StreamKey, stream: int) -> bool:
        """Frees a block of no stream, or sets one of another stream aside; False where there is none to give up."""
        if not self._free:
            return self._take_from_stream(key)
        self._discard_free(stream)
        return True

    def _taken_over(self, stream: int, size_bytes: int) -> _Block | None:
        """The smallest block of no stream that has ``size_bytes``, now one of ``stream``."""
        fitting = [block for block in self._free if block.size_bytes >= size_bytes]
        if not fitting:
            return None
        block = min(fitting, key=lambda block: block.size_bytes)
        self._await(block, stream)
        self._free.remove(block)
        block.used_bytes = 0
        self._handovers += 1
        return block

    def _allocated(self, stream: int, size_bytes: int, where: str) -> _Block:
        rounded_bytes = -(-size_bytes // _GRANULE_BYTES) * _GRANULE_BYTES
        if self.limit_bytes is not None:
            rounded_bytes = max(size_bytes, min(rounded_bytes, self.limit_bytes - self._size_bytes))
        fields = {"bytes": rounded_bytes, "held": self._size_bytes, "stream": f"{stream:#x}", "for": where}
        emit(self._logger, logging.INFO, "workspace_allocated", fields)
        address = self._driver.mem_alloc_async(rounded_bytes, stream, "WorkspacePool")
        self._allocations += 1
        self._size_bytes += rounded_bytes
        self._high_water_bytes = max(self._high_water_bytes, self._size_bytes)
        return _Block(address, rounded_bytes)

    def _take_from_stream(self, but: StreamKey | None) -> bool:
        """Sets aside the block of the stream that got its own longest ago, and may lose it; False where none may."""
        stream = next(self._may_lose(but), None)
        if stream is not None:
            self._set_aside(stream, stream)
        return stream is not None

    def _may_lose(self, but: StreamKey | None) -> Iterator[int]:
        """The streams whose blocks may be taken from them."""
        for key, block in self._blocks.items():
            # An event in the default stream of a thread can be recorded by that thread alone.
            if key != but and not block.is_kept and isinstance(key, int) and self._is_surely_free(key):
                yield key

    def _set_aside(self, key: StreamKey, stream: int) -> None:
        """Makes a block of ``stream`` one of no stream, behind the work that the stream holds now."""
        event = self._driver.event_create(EventFlags.DISABLE_TIMING)
        try:
            self._driver.event_record(event, stream)
        except DriverError:
            self._destroy(event)
            raise
        block = self._blocks.pop(key, None)
        if block is None:
            place = next(place for place, (owner, _) in enumerate(self._outgrown) if owner == key)
            _, block = self._outgrown.pop(place)
        block.is_kept = block.is_settled = False
        block.event = event
        self._free.append(block)

    def _await(self, block: _Block, stream: int) -> None:
        """Work given to ``stream`` from now on starts when that of the block's former stream is over."""
        self._driver.stream_wait_event(stream, block.event)
        event, block.event = block.event, 0
        self._destroy(event)

    def _discard_free(self, stream: int) -> None:
        """Frees the block that has been of no stream for the longest time, in the order of ``stream``."""
        self._await(self._free[0], stream)
        self._discard(self._free.pop(0), stream)

    def _discard(self, block: _Block, stream: int) -> None:
        self._size_bytes -= block.size_bytes
        self._driver.mem_free_async(block.address, stream)

    def _destroy(self, event: int) -> None:
        self.context.give_back("event", partial(self._driver.event_destroy, event))

    def _is_captured(self, stream: int) -> bool:
        return stream not in _LEGACY_STREAMS and self._is_capturing(stream)

    def _is_surely_free(self, stream: int) -> bool:
        """Whether ``stream`` is not being captured; False where the driver does not say."""
        try:
            return not self._is_captured(stream)
        except DriverError:
            return False  # no context is current, as at a thread's first call, or the stream has been destroyed

    def _is_over_limit(self, more_bytes: int) -> bool:
        return self.limit_bytes is not None and self._size_bytes + more_bytes > self.limit_bytes

    @contextmanager
    def _counting(self, size_bytes: int, where: str) -> Iterator[None]:
        """Counts a need that is refused, with an event."""
        try:
            yield
        except (SizeInsufficientError, DeviceAllocationFailedError) as error:
            self._refusals += 1
            fields = {"for": where, "bytes": size_bytes, "held": self._size_bytes, "reason": error}
            emit(self._logger, logging.WARNING, "workspace_refused", fields)
            raise

    # -- checks ---------------------------------------------------------------------------------------------
    def _check_limit(self, key: StreamKey, size_bytes: int, where: str) -> None:
        """Raises SizeInsufficientError where there is no room for ``size_bytes``, whatever is freed."""
        if self.limit_bytes is not None and self._fixed_bytes(key) + size_bytes > self.limit_bytes:
            raise self._limit_error(key, size_bytes, where)

    def _fixed_bytes(self, key: StreamKey) -> int:
        """The bytes that stay when a stream gets another block."""
        movable = [*self._free, *(self._blocks[other] for other in self._may_lose(key))]
        own = self._blocks.get(key)
        if own is not None and not own.is_kept:
            movable.append(own)
        return self._size_bytes - sum(block.size_bytes for block in movable)

    def _limit_error(self, key: StreamKey, size_bytes: int, where: str) -> LowdnnError:
        fixed_bytes = self._fixed_bytes(key)
        hint = f"{where} needs {size_bytes} bytes"
        if fixed_bytes:
            hint += f", and {fixed_bytes} are reserved or captured: release(stream) gives them back"
        expected = f"at least {fixed_bytes + size_bytes}"
        return SizeInsufficientError.at("WorkspacePool.limit_bytes", expected=expected, got=self.limit_bytes, hint=hint)

    def _refuse_captured(self, found_bytes: int, size_bytes: int, where: str) -> None:
        raise SizeInsufficientError.at(
            "WorkspacePool.reserve",
            expected=f"{size_bytes} bytes for {where} before the stream is captured",
            got=found_bytes,
            hint="nothing can be allocated during a capture: call reserve with all graphs before it",
        )

    def _check_open(self) -> None:
        if not self._is_open:
            raise NotInitializedError.at("WorkspacePool", expected="an open pool", got="a closed one")

    @contextmanager
    def _entered(self) -> Iterator[None]:
        with self.lock:
            self._check_open()
            with self.context.activated():
                yield

    @contextmanager
    def _own_stream(self) -> Iterator[int]:
        """A stream for frees, which keep no other one waiting."""
        stream = self._driver.stream_create()
        try:
            yield stream
        finally:
            self._driver.stream_destroy(stream)


def _key(stream: int) -> StreamKey:
    return stream if stream != _PER_THREAD_STREAM else (stream, threading.get_ident())


def _lack(size_bytes: int, where: str, failure: DriverMemoryError) -> LowdnnError:
    expected, hint = "no more than the device has free", f"{where} needs them: {failure}"
    return DeviceAllocationFailedError.at("WorkspacePool.size_bytes", expected=expected, got=size_bytes, hint=hint)


def _free_all(driver: Driver, blocks: list[_Block]) -> None:
    """Frees blocks whose streams may be gone; the device has to be idle, since cuMemFree waits for no such work."""
    calls: list[Callable[[], None]] = [driver.context_synchronize]
    calls += [partial(driver.event_destroy, block.event) for block in blocks if block.event]
    calls += [partial(driver.mem_free, block.address) for block in blocks]
    failures = []
    for call in calls:
        try:
            call()
        except DriverError as error:
            failures.append(error)
    if failures:
        raise failures[0]
