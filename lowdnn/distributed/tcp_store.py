"""A store over TCP: one process listens and keeps the values, the ranks are its clients.

Each message is a frame: 4 bytes of length, most significant first, then JSON; values are hexadecimal in it. A client
introduces itself with its rank and the number of ranks; the server refuses another number of ranks, and a second
process of one rank, so that two runs that use one port by mistake hear of it. Whoever reaches the port can write to
the store: let it listen on an address of the cluster's own network.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from contextlib import suppress
from typing import Any

from lowdnn import checks
from lowdnn.distributed.errors import CommunicationError, CommunicationTimeoutError
from lowdnn.distributed.place import MAX_PORT, MAX_RANKS
from lowdnn.distributed.store import MAX_VALUE_BYTES, check_entry, seconds

#: Opens every client's introduction.
_GREETING = "lowdnn-store-1"
_LENGTH = struct.Struct(">I")
#: The longest frame: a value in hexadecimal, its key, and what is around them.
_MAX_FRAME_BYTES = 2 * MAX_VALUE_BYTES + 4096
#: Seconds that a client waits beyond what it asked the server to wait, for the way there and back.
_SLACK_S = 5.0
#: Seconds between attempts to reach a server that does not listen yet.
_RETRY_S = 0.05


class TcpStoreServer:
    """Listens at ``address``: ``port``, and keeps the values of ``world_size`` ranks until it is closed.

    ``port``: 0 takes a free one; the attribute has the port that was taken.
    Raises CommunicationError for an address that is not this machine's, or a port in use.
    """

    def __init__(self, address: str, port: int, world_size: int) -> None:
        self._world_size = checks.integer(world_size, "TcpStoreServer.world_size", 1, MAX_RANKS)
        checks.integer(port, "TcpStoreServer.port", 0, MAX_PORT)
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._ranks: dict[int, socket.socket] = {}
        self._seen: set[int] = set()
        self._is_open = True
        try:
            self._listener = socket.create_server((address, port))
        except OSError as error:
            raise CommunicationError.at(
                "TcpStoreServer.address",
                expected="an address of this machine and a free port",
                got=f"{address}:{port} ({error})",
                hint="another run may use the port: set another MASTER_PORT",
            ) from error
        self.address, self.port = self._listener.getsockname()[:2]
        threading.Thread(target=self._accept, name="lowdnn store", daemon=True).start()

    def await_all(self, timeout_s: float) -> None:
        """Returns once every rank has been here and has left, or after ``timeout_s``."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._seen) == self._world_size and not self._ranks, timeout_s)

    def close(self) -> None:
        """Ends all connections; clients that wait get a CommunicationError. Closing twice does nothing."""
        with self._changed:
            self._is_open = False
            clients = [*self._ranks.values()]
            self._changed.notify_all()
        # A blocked accept returns by shutdown, not by close.
        for one in (self._listener, *clients):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def __enter__(self) -> TcpStoreServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while self._is_open:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), name="lowdnn store client", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        rank = None
        # A client that breaks off, or that speaks another protocol, ends its own connection alone.
        with suppress(OSError, ValueError, KeyError, TypeError, CommunicationError), client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.settimeout(_SLACK_S)
            greeting = _received(client)
            problem = self._admitted(greeting, client)
            _send(client, {"problem": problem})
            if problem:
                return
            rank = greeting["rank"]
            client.settimeout(None)
            while True:
                _send(client, self._answered(_received(client)))
        with self._changed:
            if rank is not None and self._ranks.get(rank) is client:
                del self._ranks[rank]
                self._changed.notify_all()

    def _admitted(self, greeting: dict[str, Any], client: socket.socket) -> str:
        """Takes note of a client; why it is refused, or ""."""
        rank, world_size = greeting["rank"], greeting["world_size"]
        if greeting["greeting"] != _GREETING or type(rank) is not int:
            return f"expected {_GREETING}, got {greeting['greeting']}"
        if world_size != self._world_size:
            return f"this store is one of {self._world_size} ranks, not of {world_size}"
        with self._changed:
            if rank in self._ranks:
                return f"rank {rank} is here already, as another process"
            self._ranks[rank] = client
            self._seen.add(rank)
        return ""

    def _answered(self, request: dict[str, Any]) -> dict[str, Any]:
        call, key = request["call"], request["key"]
        with self._changed:
            if call == "get":
                self._changed.wait_for(lambda: key in self._values or not self._is_open, request["timeout_s"])
            if not self._is_open:
                raise ConnectionError("the store is closed")
            if call == "keys":
                return {"keys": sorted(known for known in self._values if known.startswith(key))}
            if call == "set_once":
                value = bytes.fromhex(request["value"])
                check_entry(key, value)
                self._values.setdefault(key, value)
                self._changed.notify_all()
            found = self._values.get(key)
        return {"value": None if found is None else found.hex()}


class TcpStore:
    """The store that listens at ``address``: ``port``, as rank ``rank`` of ``world_size`` sees it.

    Waits up to ``timeout_s`` for the server to listen. Raises CommunicationTimeoutError where it does not, and
    CommunicationError where it refuses this rank.
    """

    def __init__(self, address: str, port: int, rank: int, world_size: int, timeout_s: float = 60.0) -> None:
        self._where = f"{address}:{checks.integer(port, 'TcpStore.port', 1, MAX_PORT)}"
        checks.integer(rank, "TcpStore.rank", 0, world_size - 1)
        timeout_s = seconds(timeout_s, "TcpStore.timeout_s")
        self._lock = threading.Lock()
        self._socket = self._reached(address, port, timeout_s)
        answer = self._asked({"greeting": _GREETING, "rank": rank, "world_size": world_size}, timeout_s)
        if answer["problem"]:
            self.close()
            raise CommunicationError.at(
                f"TcpStore of {self._where}",
                expected=f"to be rank {rank} of {world_size} there",
                got=answer["problem"],
                hint="another run may use the port: set another MASTER_PORT",
            )

    def set_once(self, key: str, value: bytes) -> bytes:
        check_entry(key, value)
        return bytes.fromhex(self._asked({"call": "set_once", "key": key, "value": value.hex()}, 0)["value"])

    def get(self, key: str, timeout_s: float) -> bytes:
        check_entry(key)
        timeout_s = seconds(timeout_s, "Store.timeout_s")
        value = self._asked({"call": "get", "key": key, "timeout_s": timeout_s}, timeout_s)["value"]
        if value is None:
            raise CommunicationTimeoutError.at(
                f"TcpStore of {self._where}.{key}", expected=f"a value within {timeout_s:g} s", got="none"
            )
        return bytes.fromhex(value)

    def keys(self, prefix: str) -> tuple[str, ...]:
        return tuple(self._asked({"call": "keys", "key": prefix}, 0)["keys"])

    def close(self) -> None:
        self._socket.close()

    def _reached(self, address: str, port: int, timeout_s: float) -> socket.socket:
        deadline = time.monotonic() + timeout_s
        while True:
            remaining = deadline - time.monotonic()
            try:
                found = socket.create_connection((address, port), timeout=max(remaining, _RETRY_S))
                found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return found
            except OSError as error:
                if remaining <= _RETRY_S:
                    raise CommunicationTimeoutError.at(
                        f"TcpStore of {self._where}",
                        expected=f"a store that listens there within {timeout_s:g} s",
                        got=error,
                        hint="is rank 0 running, and the port reachable from here?",
                    ) from error
            time.sleep(_RETRY_S)

    def _asked(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        with self._lock:
            try:
                self._socket.settimeout(timeout_s + _SLACK_S)
                _send(self._socket, request)
                return _received(self._socket)
            except (OSError, ValueError) as error:
                raise CommunicationError.at(
                    f"TcpStore of {self._where}",
                    expected="a store that answers",
                    got=error or type(error).__name__,
                    hint="the process that keeps the store has ended",
                ) from error


def _send(to: socket.socket, message: dict[str, Any]) -> None:
    frame = json.dumps(message).encode()
    to.sendall(_LENGTH.pack(len(frame)) + frame)


def _received(source: socket.socket) -> dict[str, Any]:
    """The next frame. Raises OSError at the end of the connection, ValueError for a frame that is none."""
    (length,) = _LENGTH.unpack(_bytes(source, _LENGTH.size))
    if length > _MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {length} bytes")
    message = json.loads(_bytes(source, length))
    if not isinstance(message, dict):
        raise ValueError("a frame without an object")
    return message


def _bytes(source: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = source.recv(count - len(found))
        if not part:
            raise ConnectionError("the connection has ended")
        found += part
    return found
