"""Random calls from several threads at once, on each other's handles and descriptors: statuses, and nothing else."""

from __future__ import annotations

import ctypes
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

from lowdnn.capi import write_library
from lowdnn.capi.calls.catalogue import CALLS
from lowdnn.capi.library import LIBRARY_NAME
from lowdnn.capi.loading import Binding
from lowdnn.capi.prototypes import is_opaque
from lowdnn.capi.signatures import Argument, functions
from lowdnn.capi.state import State
from lowdnn.driver import open_driver
from lowdnn.enums import AttributeName, AttributeType, DescriptorType
from lowdnn.status import Status
from tests.support.capi import Caller

THREADS = 4
ROOM_BYTES = 1 << 16
SMALL = [*range(-1, 9), *(int(member) for enum in (DescriptorType, AttributeType) for member in enum)]
ATTRIBUTES = [int(name) for name in AttributeName]
#: Calls that take the address of a C function; below, calls that begin and that end objects.
LOGS = ("cudnnSetCallback", "cudnnGetCallback")
CREATING = [name for name in CALLS if name.startswith(("cudnnCreate", "cudnnBackendCreate"))]
ENDING = [name for name in CALLS if name.startswith(("cudnnDestroy", "cudnnBackendDestroy"))]
OTHERS = [name for name in CALLS if name not in (*CREATING, *ENDING, *LOGS)]


class Work:
    """One thread's calls. ``pool``: pointers of objects, some of them destroyed, of all threads."""

    def __init__(self, caller: Caller, pool: list[int], seed: int) -> None:
        self._caller, self._pool, self._rng = caller, pool, random.Random(seed)
        self._room = (ctypes.c_byte * ROOM_BYTES)()
        self._created = ctypes.c_void_p()
        self.statuses: set[Status] = set()
        self.internal: list[str] = []

    def run(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            name = self._rng.choice(self._rng.choices((CREATING, ENDING, OTHERS), (3, 1, 6))[0])
            self._fill()
            self._created.value = None
            status = self._caller.status(name, *map(self._argument, functions()[name].arguments))
            self.statuses.add(status)
            if status.category is Status.INTERNAL_ERROR:
                self.internal.append(self._caller.last_error())
            if status is Status.SUCCESS and self._created.value:
                self._pool[self._rng.randrange(len(self._pool))] = self._created.value

    def _fill(self) -> None:
        """Fills the arrays: zeros, extents, or pointers."""
        extents = [self._rng.choice((1, 1, 2, 3, 4, 8)) for _ in range(64)]
        content: Any = self._rng.choice(
            (
                (ctypes.c_int * 64)(),
                (ctypes.c_int * 64)(*extents),
                (ctypes.c_int64 * 64)(*extents),
                (ctypes.c_uint64 * 64)(*self._rng.choices(self._pool, k=64)),
            )
        )
        ctypes.memmove(self._room, content, ctypes.sizeof(content))

    def _argument(self, argument: Argument) -> Any:
        kind, rng = argument.type, self._rng
        if kind.pointers and is_opaque(kind.base):
            return ctypes.byref(self._created)
        if kind.pointers:
            return rng.choice((self._room, self._room, self._room, None))
        if is_opaque(kind.base):
            return ctypes.c_void_p(rng.choice(self._pool) if rng.random() < 0.95 else rng.choice((0, 8, 1 << 40)))
        if kind.base in ("float", "double"):
            return (ctypes.c_float if kind.base == "float" else ctypes.c_double)(rng.choice((0.0, 0.5, -1.0, 1e300)))
        return rng.choice(ATTRIBUTES if kind.base == "BackendAttributeName" else SMALL)


def test_random_calls_from_threads(tmp_path: Path, endurance: bool) -> None:
    """No call ends by an exception that nobody meant (INTERNAL_ERROR), and handles work afterwards."""
    write_library(tmp_path / LIBRARY_NAME)
    binding = Binding(State(open_driver("emulated")))
    caller = Caller(binding.library(tmp_path / LIBRARY_NAME))
    seed, interval_s = random.randrange(1 << 32), sys.getswitchinterval()
    pool = [caller.handle() for _ in range(100)]
    works = [Work(caller, pool, seed + number) for number in range(THREADS)]
    threads = [threading.Thread(target=work.run, args=(60.0 if endurance else 2.0,)) for work in works]
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval_s)
    for work in works:
        assert work.internal == [], seed
        assert {Status.SUCCESS, Status.BAD_PARAM, Status.BAD_PARAM_NULL_POINTER} <= work.statuses
    caller.call("cudnnDestroy", caller.handle())
    binding.end()
