"""Agreements of ranks through a store: where they meet, the identifier of a communicator, and who is left."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from lowdnn import checks
from lowdnn.distributed.errors import PeerFailedError
from lowdnn.distributed.file_store import FileStore
from lowdnn.distributed.place import Place
from lowdnn.distributed.store import Store
from lowdnn.distributed.tcp_store import TcpStore, TcpStoreServer
from lowdnn.status import BadParamError

#: Seconds between looks at who has come.
_LOOK_S = 0.02


@dataclass(frozen=True)
class Members:
    """The ranks that take part: ``ranks`` are their numbers in the store, in ascending order; ``rank`` is the place of
    this process among them."""

    ranks: tuple[int, ...]
    rank: int

    @property
    def size(self) -> int:
        return len(self.ranks)


class Meeting:
    """The store where the ranks of ``place`` meet; ``close`` or ``with`` leaves it.

    With ``directory`` it is a file store there. Otherwise it listens at the address and port of ``place``, in rank 0,
    or in the launcher, where it outlives rank 0. Where rank 0 listens, it leaves last: it waits up to
    ``timeout_s`` for the others, unless an error ends its ``with`` block.
    """

    def __init__(self, place: Place, *, directory: Path | None = None, timeout_s: float = 60.0) -> None:
        checks.instance(place, Place, "Meeting.place", "a Place; a launcher's rank in the environment makes one")
        self._owned = ExitStack()
        self._waits = True
        self.store: Store
        if directory is not None:
            self.store = FileStore(directory, place.rank, place.world_size, timeout_s)
        else:
            if not place.address or not place.port:
                raise BadParamError.at(
                    "Place.address",
                    expected="an address and a port of rank 0",
                    got=f"{place.address!r}, {place.port}",
                    hint="set MASTER_ADDR and MASTER_PORT, or name a directory",
                )
            if place.rank == 0 and not place.is_hosted:
                server = TcpStoreServer(place.address, place.port, place.world_size)
                self._owned.callback(self._end, server, timeout_s)
            try:
                self.store = TcpStore(place.address, place.port, place.rank, place.world_size, timeout_s)
            except BaseException:
                self._waits = False
                self.close()
                raise
        self._owned.callback(self.store.close)

    def close(self) -> None:
        self._owned.close()

    def __enter__(self) -> Meeting:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._waits = kind is None
        self.close()

    def _end(self, server: TcpStoreServer, timeout_s: float) -> None:
        if self._waits:
            server.await_all(timeout_s)
        server.close()


def everyone(place: Place) -> Members:
    """All ranks, as they were started."""
    return Members(tuple(range(place.world_size)), place.rank)


def identifier(store: Store, members: Members, name: str, make: Callable[[], bytes], timeout_s: float) -> bytes:
    """The bytes that the first of ``members`` makes, for all of them; ``name`` is new for each communicator."""
    key = f"{name}/identifier"
    return store.set_once(key, make()) if members.rank == 0 else store.get(key, timeout_s)


def survivors(store: Store, members: Members, name: str, settle_s: float) -> Members:
    """The part of ``members`` that calls this within ``settle_s`` of each other; ``name`` is new for each call.

    Each waits for all members that long, and then for none. The first list that is written counts. Raises
    PeerFailedError in a process that came too late for it.
    """
    own = members.ranks[members.rank]
    store.set_once(f"{name}/present/{own}", b"")
    deadline = time.monotonic() + settle_s
    while True:
        present = sorted(int(key.rpartition("/")[2]) for key in store.keys(f"{name}/present/"))
        if len(present) == members.size or time.monotonic() > deadline or store.keys(f"{name}/members"):
            break
        time.sleep(_LOOK_S)
    counted: list[int] = json.loads(store.set_once(f"{name}/members", json.dumps(present).encode()))
    if own not in counted:
        raise PeerFailedError.at(
            f"survivors of {name!r}", expected=f"to be counted within {settle_s:g} s", got=f"ranks {counted} only"
        )
    return Members(tuple(counted), counted.index(own))
