"""A process whose threads are inside every part of the run time while it forks; test_fork runs it.

``python -m tests.runtime.fork_under_load ACTIVITY CACHE_DIR``: each child tries every call with the parent's handle and
must get NotInitializedError at once. Prints the number of children that did.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lowdnn.backend.handle import Handle
from lowdnn.config import Config
from lowdnn.driver import open_driver
from lowdnn.driver.base import DriverError
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.cache import DiskCache
from lowdnn.runtime.event import Event
from lowdnn.runtime.stream import Stream
from lowdnn.runtime.workspace_pool import WorkspacePool
from lowdnn.status import NotInitializedError
from tests.support.runtime import ALPHA, X, Y, open_runtime, scale_plan, scale_sources, upload

CHILDREN = 12
#: Seconds after which a child counts as hanging.
PATIENCE_S = 20


class Load:
    """A handle with a loaded plan, and what its threads do."""

    def __init__(self, cache_dir: Path) -> None:
        self.cache_dir = cache_dir
        sources = scale_sources(Path(tempfile.mkdtemp()))
        self.handle = Handle(open_runtime(open_driver("emulated", arch="sm_80"), cache_dir, sources=sources))
        self.runtime = self.handle.runtime
        self.plan = scale_plan(300, launches=3)
        self.loaded = self.handle.load(self.plan)
        self.x, self.y = (upload(self.runtime, np.zeros(300, np.float32)) for _ in range(2))
        self.alpha = np.ones(1, np.float64)
        self.pointers = {X: self.x.address, Y: self.y.address, ALPHA: self.alpha.ctypes.data}
        self.factor = 0
        self.pool = WorkspacePool(self.runtime.driver, 0)
        self.cache = DiskCache(cache_dir / "other")

    def execute(self) -> None:
        self.loaded.execute(self.pointers)

    def build(self) -> None:
        self.factor += 1
        self.runtime.load(scale_plan(300, factor=100 + self.factor % 50))

    def load(self) -> None:
        self.handle.load(self.plan)

    def reserve(self) -> None:
        self.factor += 1
        self.pool.reserve_bytes(64 * self.factor)
        self.pool.release(0)
        self.pool.trim()

    def write(self) -> None:
        self.factor += 1
        self.cache.put(f"{self.factor % 20:064x}", bytes(10_000))

    def allocate(self) -> None:
        DeviceBuffer.allocate(self.runtime.context, 64).close()

    def reopen(self) -> None:
        with open_runtime(open_driver("emulated", arch="sm_80"), self.cache_dir) as runtime:
            DeviceBuffer.allocate(runtime.context, 64)
            runtime.counters.add("n")


def refused(call: Callable[[], object]) -> None:
    try:
        call()
    except NotInitializedError as error:
        if "does not survive fork" not in str(error):
            raise
        return
    raise RuntimeError(f"{call} raised nothing")


def child(load: Load) -> None:
    signal.alarm(PATIENCE_S)
    runtime = load.runtime
    for call in (
        load.execute,
        load.build,
        load.allocate,
        lambda: load.pool.reserve_bytes(64),
        load.pool.trim,
        load.handle.synchronize,
        lambda: load.handle.set_stream(5),
        lambda: load.handle.load(scale_plan(301)),
        lambda: load.loaded.add_to_graph(1, load.pointers),
        lambda: load.loaded.update_graph(1, [1, 2, 3], load.pointers),
        lambda: runtime.modules.function(load.plan.kernels[0]),
        lambda: Stream.create(runtime.context),
        lambda: Event.create(runtime.context),
        load.x.to_host,
    ):
        refused(call)
    runtime.counters.snapshot()
    try:
        runtime.driver.mem_get_info()
    except DriverError as error:
        if error.name != "CUDA_ERROR_NOT_INITIALIZED":
            raise
    load.write()
    load.x.close()
    load.pool.close()
    load.handle.close()
    with Handle.open("emulated", arch="sm_80", config=Config(disk_cache=False)) as own:
        DeviceBuffer.allocate(own.runtime.context, 64)


def forked(load: Load) -> bool:
    process = os.fork()
    if process:
        return os.waitpid(process, 0)[1] == 0
    code = 1
    try:
        child(load)
        code = 0
    finally:
        os._exit(code)


def main(activity: str, cache_dir: Path) -> int:
    load, is_over = Load(cache_dir), threading.Event()
    work = getattr(load, activity)

    def repeat() -> None:
        while not is_over.is_set():
            work()

    threads = [threading.Thread(target=repeat) for _ in range(2)]
    for thread in threads:
        thread.start()
    good = 0
    for number in range(CHILDREN):
        time.sleep(0.01 + 0.003 * number)
        good += forked(load)
    is_over.set()
    for thread in threads:
        thread.join()
    load.execute()
    load.pool.close()
    load.handle.close()
    return good


if __name__ == "__main__":
    print(main(sys.argv[1], Path(sys.argv[2])))  # noqa: T201
