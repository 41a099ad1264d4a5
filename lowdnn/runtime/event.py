"""Events: points in a stream that other streams or the host wait for; two of them give the time between."""

from __future__ import annotations

from lowdnn.driver.base import EventFlags
from lowdnn.runtime.context import Context
from lowdnn.runtime.owned import Owned
from lowdnn.runtime.stream import Stream


class Event(Owned):
    """A CUevent. ``handle`` is its integer."""

    @classmethod
    def create(cls, context: Context, *, is_timed: bool = True) -> Event:
        """A new event; one that is not timed is cheaper to record and to wait for."""
        flags = EventFlags.DEFAULT if is_timed else EventFlags.DISABLE_TIMING
        with context.activated():
            return cls(context, context.driver.event_create(flags), is_borrowed=False)

    @property
    def handle(self) -> int:
        return self._open_handle()

    def record(self, stream: Stream) -> None:
        """Marks the point after all work that ``stream`` holds now."""
        with self.context.activated():
            self.context.driver.event_record(self.handle, stream.handle)

    def synchronize(self) -> None:
        """Waits until the event has happened."""
        with self.context.activated():
            self.context.driver.event_synchronize(self.handle)

    def is_done(self) -> bool:
        """True when the event has happened; never waits."""
        with self.context.activated():
            return self.context.driver.event_query(self.handle)

    def elapsed_ms(self, start: Event) -> float:
        """Milliseconds of device time from ``start`` to this event; both recorded, timed and done."""
        with self.context.activated():
            return self.context.driver.event_elapsed_ms(start.handle, self.handle)

    def _destroy(self, handle: int) -> None:
        self.context.driver.event_destroy(handle)
