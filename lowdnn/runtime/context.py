"""The primary context of one device, retained as long as the object is open.

lowdnn makes no context of its own, so every library in the process shares addresses with it. Calls that need the
context current run inside ``with context.activated():``, which puts the caller's context back. A thread that has none
keeps this one, as it would after a call of the CUDA runtime: its next call then need not set it again.

A context does not survive ``fork`` or the end of the interpreter: later calls raise NotInitializedError.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from lowdnn.driver.base import DeviceAttribute, Driver, DriverError, DriverMemoryError
from lowdnn.driver.results import CuResult
from lowdnn.events import emit, event_logger
from lowdnn.forking import tell_after_fork
from lowdnn.observer import introduce
from lowdnn.runtime.process_bound import ProcessBound
from lowdnn.status import AttributeTypeError, DeviceAllocationFailedError, InvalidValueError, NotInitializedError

#: The driver's answers for a context that nobody holds any more.
_RELEASED = (CuResult.INVALID_CONTEXT, CuResult.CONTEXT_IS_DESTROYED)


class Liveness:
    """Whether a context may still be used: one attribute, so that the hot path can afford to ask.

    is_held: whether it is still retained, which it is for a while after it was closed (``Context.close``).
    """

    __slots__ = ("__weakref__", "closing", "is_held", "is_usable", "reason")

    def __init__(self) -> None:
        self.is_usable = self.is_held = True
        self.reason = ""
        #: The reason once the context is closed, or the interpreter ends.
        self.closing = "a closed one; open a new one"
        tell_after_fork(self)

    def after_fork(self) -> None:
        self.is_held = False
        self.end("one of the parent process; it does not survive fork: start workers by spawn or forkserver")

    def end(self, reason: str) -> None:
        if self.is_usable:
            self.is_usable = False
            self.reason = reason

    def check(self) -> None:
        """Raises NotInitializedError, with the reason, once the context has ended."""
        if not self.is_usable:
            raise NotInitializedError.at("Context", expected="an open context", got=self.reason)


class Context(ProcessBound):
    """``handle`` is the CUcontext; ``device`` the device's ordinal; ``liveness`` says whether both may be used."""

    def __init__(self, driver: Driver, device: int = 0) -> None:
        """Retains the primary context. Raises InvalidValueError for a device that is not there."""
        count = driver.device_count()
        if type(device) is not int or not 0 <= device < count:
            raise InvalidValueError.at("Context.device", expected=f"0 to {count - 1}", got=repr(device))
        self.driver = driver
        self.device = device
        self.handle = driver.primary_context_retain(device)
        self.liveness = Liveness()
        self._attributes: dict[DeviceAttribute, int] = {}
        self._pending: deque[tuple[str, Callable[[], None]]] = deque()
        #: Bytes of the objects that must be given back before the context is released, by ``id``.
        self._owners: dict[int, int] = {}
        self._closing: list[Callable[[], object]] = []
        # Runs at close, at collection or at exit, whichever is first, and only once.
        self._release = weakref.finalize(self, _release_context, driver, device, self.liveness)
        introduce(self)

    def activated(self) -> Activated:
        """Makes the context current in the calling thread for a ``with`` block."""
        self.liveness.check()
        return Activated(self.driver, self.handle)

    def attribute(self, attribute: DeviceAttribute) -> int:
        """A device attribute; asked for once."""
        if attribute not in self._attributes:
            self._attributes[attribute] = self.driver.device_attribute(self.device, attribute)
        return self._attributes[attribute]

    def is_of_device(self, other: Context) -> bool:
        """Whether both are the primary context of one device, so that they share memory, streams and events."""
        return self.device == other.device and self.driver == other.driver

    def device_beside(self, other: Context) -> str:
        """The device's name in a message of which ``other`` is the reader."""
        return f"device {self.device}" + ("" if self.driver == other.driver else " of another driver")

    @property
    def compute_capability(self) -> tuple[int, int]:
        return (
            self.attribute(DeviceAttribute.COMPUTE_CAPABILITY_MAJOR),
            self.attribute(DeviceAttribute.COMPUTE_CAPABILITY_MINOR),
        )

    def allocate(self, size_bytes: int, label: str) -> int:
        """The address of new memory, 256-byte aligned; size 0 has address 0.

        Raises AttributeTypeError, InvalidValueError, and DeviceAllocationFailedError where the device lacks memory.
        """
        if type(size_bytes) is not int:
            raise AttributeTypeError.at(f"{label}.size_bytes", expected="an integer", got=repr(size_bytes))
        if size_bytes < 0:
            raise InvalidValueError.at(f"{label}.size_bytes", expected="0 or more", got=size_bytes)
        if size_bytes == 0:
            return 0
        try:
            with self.activated():
                return self.driver.mem_alloc(size_bytes, label)
        except DriverMemoryError as error:
            raise DeviceAllocationFailedError.at(
                f"{label}.size_bytes", expected="no more than the device has free", got=size_bytes, hint=str(error)
            ) from error

    def synchronize(self) -> None:
        """Waits for all work of the context."""
        with self.activated():
            self.driver.context_synchronize()

    def give_back(self, what: str, destroy: Callable[[], None]) -> None:
        """Runs ``destroy``, where the context is still retained.

        A failure is logged and not raised: after a fault on the device every call fails, and the owner of ``what``
        could do nothing about it. Calls that are not possible now, such as those during a capture, wait for the next
        one.
        """
        if not self.liveness.is_held:
            return
        self._pending.append((what, destroy))
        try:
            with Activated(self.driver, self.handle):
                self._give_back_pending()
        except DriverError as error:
            _log_failure(what, error)

    def _give_back_pending(self) -> None:
        captured = []
        with suppress(IndexError):  # empty; other threads may take from it too
            while True:
                what, destroy = self._pending.popleft()
                try:
                    destroy()
                except DriverError as error:
                    _log_failure(what, error)
                    if error.result == CuResult.STREAM_CAPTURE_UNSUPPORTED:
                        captured.append((what, destroy))
        self._pending.extend(captured)

    def close(self, reason: str = "") -> None:
        """Releases the primary context; a failure is logged and not raised. Closing twice does nothing.

        Nothing can be done with it any more. Where streams, events or memory are open it is released behind the last of
        them: they would stay as long as another library holds it.

        reason: text that an error of a later call has in place of "a closed one".
        """
        closing, self._closing = self._closing, []
        for call in closing:
            call()
        self.liveness.closing = reason or self.liveness.closing
        self.liveness.end(self.liveness.closing)
        if not self._owners:
            self._release()

    def before_close(self, call: Callable[[], object]) -> None:
        """Calls ``call``, which must not raise, when the context is closed, while it can still be used."""
        self._closing.append(call)

    def not_before_close(self, call: Callable[[], object]) -> None:
        """Undoes ``before_close``."""
        self._closing = [other for other in self._closing if other is not call]

    def hold(self, owner: object, size_bytes: int = 0) -> None:
        """Keeps the context until ``let_go``, which ``owner`` calls once it has given back what it owns.

        size_bytes: the device memory of a buffer.
        """
        self._owners[id(owner)] = size_bytes

    @property
    def held_bytes(self) -> int:
        """The device memory of the open buffers, which their owners told in ``hold``."""
        return sum(tuple(self._owners.values()))

    def let_go(self, owner: object) -> None:
        self._owners.pop(id(owner), None)
        if not self.liveness.is_usable and not self._owners:
            self._release()

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Activated:
    """The ``with`` block of ``Context.activated``; sets nothing where the context is current already.

    A caller's context that was released meanwhile, by the block or by another thread, is not put back.
    """

    def __init__(self, driver: Driver, handle: int) -> None:
        self._driver = driver
        self._handle = handle
        self._previous = 0

    def __enter__(self) -> None:
        current = self._driver.context_get_current()
        if current != self._handle:
            self._driver.context_set_current(self._handle)
            self._previous = current

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._previous:
            try:
                self._driver.context_set_current(self._previous)
            except DriverError as released:
                if released.result not in _RELEASED:
                    raise


def _release_context(driver: Driver, device: int, liveness: Liveness) -> None:
    liveness.end(liveness.closing)
    if not liveness.is_held:
        return
    liveness.is_held = False
    try:
        driver.primary_context_release(device)
    except DriverError as error:
        # At exit the driver may have shut down before us, and then there is nothing left to release. After a fault on
        # the device it tells the fault again, and has released the context all the same.
        if error.result != CuResult.DEINITIALIZED:
            _log_failure("context", error)


def _log_failure(what: str, error: DriverError) -> None:
    emit(event_logger("context"), logging.WARNING, "give_back_failed", {"what": what, "error": error})
