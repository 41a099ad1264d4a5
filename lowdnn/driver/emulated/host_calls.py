"""Host functions in streams of emulated devices (``driver.base.HostFunctions``).

They are called by the thread that runs the queues, in stream order, while no other call is inside the driver. One that
waits leaves its stream, and the other streams go on; when none can, the report of the deadlock names it.
"""

from __future__ import annotations

from collections.abc import Callable

from lowdnn.driver.base import HostWait
from lowdnn.driver.emulated.context import Contexts
from lowdnn.driver.emulated.graphs import HostWork
from lowdnn.driver.emulated.streams import submit


class HostCalls:
    """cuLaunchHostFunc; raises DriverError as that does."""

    def __init__(self, context: Contexts) -> None:
        self._context = context

    def launch(self, stream: int, function: Callable[[], None], wait: HostWait | None = None) -> None:
        with self._context.entered("cuLaunchHostFunc", stream) as state:
            submit(state, stream, HostWork(function, wait))
