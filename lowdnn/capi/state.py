"""The state of the C API in this process: one ``State``, in ``loading``."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from lowdnn.backend.handle import Handle
from lowdnn.capi.counts import CallCounts
from lowdnn.capi.graphs import Graphs
from lowdnn.capi.log_callback import LogCallback
from lowdnn.capi.memory import Address
from lowdnn.capi.objects import Objects
from lowdnn.capi.packs import Packs
from lowdnn.capi.thread_states import ThreadStates
from lowdnn.config import Config
from lowdnn.driver import configured_driver
from lowdnn.driver.base import Driver, DriverError
from lowdnn.enums import Severity
from lowdnn.forking import tell_after_fork
from lowdnn.runtime.cuda_graphs import CudaGraphs
from lowdnn.runtime.runtime import Runtime

#: Most threads whose last error is kept; the error that is longest ago is dropped first.
_MAX_THREADS = 4096


class LastErrors:
    """The last error of each thread, by the number that the operating system gives it.

    ``threading.local`` would forget it: Python knows a thread of C only while it is inside of a callback.
    """

    def __init__(self) -> None:
        self._messages: OrderedDict[int, bytes] = OrderedDict()

    @property
    def message(self) -> bytes:
        """The calling thread's last error; empty where none of its calls has failed."""
        return self._messages.get(threading.get_native_id(), b"")

    def remember(self, message: bytes) -> None:
        thread = threading.get_native_id()
        self._messages[thread] = message
        self._messages.move_to_end(thread)
        if len(self._messages) > _MAX_THREADS:
            self._messages.popitem(last=False)


class State:
    """objects: behind the pointers that callers hold.  last_error: the state of each thread.  log: where messages go.

    graphs: plans of classic calls.  cuda_graphs: the CUDA graphs that plans were added to.  counts: calls by
    function.
    threads: the states of the threads that call.  packs: variant packs that libraries keep.  compiles_gradients: as
    ``Config`` has it, for handles that are opened from now on.

    All handles are on one driver, so that an address means the same memory for each.
    """

    def __init__(self, driver: Driver | None = None) -> None:
        """``driver``: the driver of all handles; by default the one that LOWDNN_DEVICE names, opened with the first
        handle."""
        self.packs = Packs()
        self.objects = Objects(self.packs.taken)
        self.graphs = Graphs()
        self.cuda_graphs = CudaGraphs()
        self.counts = CallCounts(self.packs.counts)
        self.threads = ThreadStates()
        self.last_error = LastErrors()
        self.log = LogCallback()
        self.since_s = time.time()
        self.compiles_gradients = False
        self._driver = driver
        self._lock = threading.Lock()
        self._stream_handles: dict[int, Handle] = {}
        self._stream_lock = threading.RLock()
        tell_after_fork(self)

    def after_fork(self) -> None:
        """Other threads may have held the locks, which are not there in the child to give them back."""
        self._lock, self._stream_lock = threading.Lock(), threading.RLock()

    @property
    def device_kind(self) -> str:
        """``cuda`` or ``emulated``. No driver is opened where LOWDNN_DEVICE says which."""
        if self._driver is None:
            device = Config.from_environment().device
            if device != "auto":
                return device
        return self.driver.kind

    @property
    def driver(self) -> Driver:
        with self._lock:
            if self._driver is None:
                self._driver = configured_driver(Config.from_environment())
            return self._driver

    def tell(self, log: LogCallback) -> None:
        """Sets where messages go. Successes that are told of are those of calls that reach Python."""
        self.log = log
        self.packs.use(not log.wants(Severity.INFO))

    def open_handle(self) -> Handle:
        """A handle on the device of the calling thread's current context, else on device 0."""
        config = replace(Config.from_environment(), compile_gradients=self.compiles_gradients)
        runtime = Runtime(self.driver, device=_current_device(self.driver), config=config)
        try:
            return Handle(runtime)
        except BaseException:
            runtime.close()
            raise

    @contextmanager
    def on_stream(self, stream: Address) -> Iterator[Handle]:
        """A handle for a call that has a stream in place of one: the device's own, on that stream.

        Threads use it in turn, since work and stream belong together. A call may make another one in its thread, such
        as from a log callback, and goes on in its own stream.
        """
        with self._stream_lock:
            device = _current_device(self.driver)
            if device not in self._stream_handles:
                self._stream_handles[device] = self.open_handle()
            handle = self._stream_handles[device]
            outer = handle.stream
            handle.set_stream(stream or 0)
            try:
                yield handle
            finally:
                handle.set_stream(outer)

    def close_handle(self, handle: Handle) -> None:
        self.graphs.forget(handle)
        handle.close()

    def close(self) -> None:
        """Closes every handle. Pointers of callers are not valid any more."""
        self.packs.clear()
        owned, self._stream_handles = list(self._stream_handles.values()), {}
        for value in (*self.objects.clear(), *owned):
            if isinstance(value, Handle):
                self.close_handle(value)


def _current_device(driver: Driver) -> int:
    if not driver.context_get_current():
        return 0
    try:
        return driver.context_get_device()
    except DriverError:
        # A primary context stays current in a thread when its last user has released it, and has no device then.
        return 0
