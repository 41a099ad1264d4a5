"""Stores over TCP and in files: values that are written once, waiting, strangers, and what earlier runs left."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest

from lowdnn.distributed.errors import CommunicationError, CommunicationTimeoutError, PeerFailedError
from lowdnn.distributed.file_store import FileStore
from lowdnn.distributed.place import Place
from lowdnn.distributed.rendezvous import Meeting, Members, everyone, identifier, survivors
from lowdnn.distributed.store import MAX_VALUE_BYTES, Store
from lowdnn.distributed.tcp_store import TcpStore, TcpStoreServer
from lowdnn.status import AttributeTypeError, BadParamError, InvalidValueError, OutOfBoundError
from tests.support.errors import raises

SIZE = 3


@pytest.fixture(params=["tcp", "files"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Store]]:
    """One store as each of three ranks sees it."""
    with ExitStack() as owned, ThreadPoolExecutor(SIZE) as pool:
        if request.param == "tcp":
            server = owned.enter_context(TcpStoreServer("127.0.0.1", 0, SIZE))
            made: list[Store] = [TcpStore("127.0.0.1", server.port, rank, SIZE, 10) for rank in range(SIZE)]
        else:
            made = [*pool.map(lambda rank: FileStore(tmp_path, rank, SIZE, 10), range(SIZE))]
        for store in reversed(made):
            owned.callback(store.close)
        yield made


def test_values_are_written_once(stores: list[Store]) -> None:
    """The first writer counts, for all; many at once agree on one."""
    assert stores[1].set_once("a/b", b"first") == b"first"
    assert stores[2].set_once("a/b", b"second") == b"first"
    assert stores[0].get("a/b", 0) == b"first"
    with ThreadPoolExecutor(SIZE) as pool:
        for number in range(20):
            key = f"race/{number}"
            tries = [pool.submit(store.set_once, key, bytes([rank])) for rank, store in enumerate(stores)]
            assert len({one.result() for one in tries}) == 1
    assert stores[0].keys("a") == ("a/b",)
    assert len(stores[2].keys("race/")) == 20
    large = bytes(range(256)) * (MAX_VALUE_BYTES // 256)
    assert stores[0].set_once("large", large) == large
    assert stores[1].get("large", 1) == large


def test_a_value_that_is_not_there_is_awaited(stores: list[Store]) -> None:
    threading.Timer(0.2, stores[0].set_once, ("late", b"x")).start()
    assert stores[1].get("late", 10) == b"x"
    start = time.monotonic()
    with pytest.raises(CommunicationTimeoutError, match=r"never: expected a value.* within 0\.1 s, got none"):
        stores[1].get("never", 0.1)
    assert 0.1 <= time.monotonic() - start < 2
    assert issubclass(CommunicationTimeoutError, TimeoutError)


def test_keys_and_values_are_checked(stores: list[Store]) -> None:
    for key in ("", "/a", "a//b", "../a", "a/..", "a b", "a=b", "ä", "a" * 101, "/".join("a" * 9)):
        with raises(InvalidValueError, "Store.key"):
            stores[0].set_once(key, b"")
        with raises(InvalidValueError, "Store.key"):
            stores[0].get(key, 0)
    for timeout_s in (-1, float("inf"), float("nan")):
        with raises(OutOfBoundError, "Store.timeout_s"):
            stores[0].get("a", timeout_s)
    with raises(InvalidValueError, "Store.value"):
        stores[0].set_once("a", bytes(MAX_VALUE_BYTES + 1))
    with raises(AttributeTypeError, "Store.set_once"):
        stores[0].set_once("a", "text")  # type: ignore[arg-type]


def test_survivors_agree_on_who_is_left(stores: list[Store]) -> None:
    """Ranks 0 and 2 come; rank 1 comes too late. A second loss leaves one, whose number in the store stays."""
    all_of_them = [Members((0, 1, 2), rank) for rank in range(SIZE)]
    with ThreadPoolExecutor(SIZE) as pool:
        came = [pool.submit(survivors, stores[rank], all_of_them[rank], "second", 0.5) for rank in (0, 2)]
        assert [one.result() for one in came] == [Members((0, 2), 0), Members((0, 2), 1)]
        with pytest.raises(PeerFailedError, match=r"got ranks \[0, 2\] only"):
            survivors(stores[1], all_of_them[1], "second", 0.5)
        given = [
            pool.submit(identifier, stores[rank], Members((0, 2), place), "second", lambda: b"id", 5)
            for place, rank in enumerate((0, 2))
        ]
        assert [one.result() for one in given] == [b"id", b"id"]
    assert survivors(stores[2], Members((0, 2), 1), "third", 0.1) == Members((2,), 0)
    start = time.monotonic()
    with ThreadPoolExecutor(SIZE) as pool:
        whole = [pool.submit(survivors, stores[rank], all_of_them[rank], "all", 30) for rank in range(SIZE)]
        assert [one.result() for one in whole] == all_of_them
    assert time.monotonic() - start < 10


def test_files_of_earlier_runs_do_no_harm(tmp_path: Path) -> None:
    """A run that broke off, half an agreement, and files of nonsense."""
    with ThreadPoolExecutor(2) as pool:
        earlier = [*pool.map(lambda rank: FileStore(tmp_path, rank, 2, 10), range(2))]
        earlier[0].set_once("name/identifier", b"old")
        (tmp_path / "hello.1").write_text("0" * 32)
        stale = json.loads((tmp_path / "welcome").read_text())
        for welcome in (json.dumps(stale | {"numbers": {"1": "0" * 32}}), "{", "[]", '{"token": 1, "numbers": 2}'):
            (tmp_path / "welcome").write_text(welcome)
            early = int(welcome == "{")
            came = {early: pool.submit(FileStore, tmp_path, early, 2, 10)}
            time.sleep(0.05)
            came[1 - early] = pool.submit(FileStore, tmp_path, 1 - early, 2, 10)
            first, second = came[0].result(), came[1].result()
            with pytest.raises(CommunicationTimeoutError):
                second.get("name/identifier", 0)
            assert first.set_once("name/identifier", welcome.encode()) == welcome.encode()
            assert second.get("name/identifier", 0) == welcome.encode()
            first.close()
    assert FileStore(tmp_path, 0, 1, 1).keys("") == ()


def test_ranks_that_never_come_are_named(tmp_path: Path) -> None:
    with raises(CommunicationTimeoutError, "FileStore.ranks", got="none of 1, 2"):
        FileStore(tmp_path, 0, 3, 0.1)
    with raises(CommunicationTimeoutError, "FileStore.ranks", got="no answer to rank 2"):
        FileStore(tmp_path, 2, 3, 0.1)
    (tmp_path / "file").write_text("")
    with raises(CommunicationError, "FileStore.directory"):
        FileStore(tmp_path / "file", 0, 1)


def test_two_runs_on_one_port_hear_of_it() -> None:
    with TcpStoreServer("127.0.0.1", 0, 2) as server:
        where = f"TcpStore of 127.0.0.1:{server.port}"
        store = TcpStore("127.0.0.1", server.port, 0, 2, 5)
        with raises(CommunicationError, where, expected="rank 0 of 2", got="rank 0 is here already"):
            TcpStore("127.0.0.1", server.port, 0, 2, 5)
        with raises(CommunicationError, where, got="this store is one of 2 ranks, not of 4"):
            TcpStore("127.0.0.1", server.port, 1, 4, 5)
        with raises(CommunicationError, "TcpStoreServer.address", got=f"127.0.0.1:{server.port}"):
            TcpStoreServer("127.0.0.1", server.port, 2)
        store.close()
        # A process that was started again may take the place of one that is gone.
        again = next(filter(None, (_or_none(server.port) for _ in range(100))))
        again.close()


def _or_none(port: int) -> TcpStore | None:
    try:
        return TcpStore("127.0.0.1", port, 0, 2, 5)
    except CommunicationError:
        time.sleep(0.02)
        return None


def test_a_server_that_is_not_there_or_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    with TcpStoreServer("127.0.0.1", 0, 1) as server:
        port = server.port
    with raises(CommunicationTimeoutError, f"TcpStore of 127.0.0.1:{port}", expected="within 0.2 s"):
        TcpStore("127.0.0.1", port, 0, 1, 0.2)
    with TcpStoreServer("127.0.0.1", 0, 1) as server:
        store = TcpStore("127.0.0.1", server.port, 0, 1, 5)
        threading.Timer(0.2, server.close).start()
        start = time.monotonic()
        with pytest.raises(CommunicationError):
            store.get("never", 60)
        assert time.monotonic() - start < 10
        with pytest.raises(CommunicationError):
            store.set_once("a", b"")
        store.close()


def test_strangers_do_not_disturb_the_store() -> None:
    """Bytes of another protocol, frames without end, and clients that say nothing."""
    with TcpStoreServer("127.0.0.1", 0, 1) as server:
        for sent in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\0\0\0\x02[]", b'\0\0\0\x0d{"rank": [1]}', b""):
            # The server may close the connection before all is sent.
            with socket.create_connection(("127.0.0.1", server.port)) as stranger, suppress(OSError):
                stranger.sendall(sent)
                stranger.shutdown(socket.SHUT_WR)
                assert stranger.recv(100) == b""
        with TcpStoreServer("127.0.0.1", 0, 1) as other:
            assert other.port != server.port
        store = TcpStore("127.0.0.1", server.port, 0, 1, 5)
        assert store.set_once("a", b"1") == b"1"
        store.close()


def test_stores_are_checked(tmp_path: Path) -> None:
    with raises(OutOfBoundError, "TcpStoreServer.port"):
        TcpStoreServer("127.0.0.1", 65536, 1)
    with raises(OutOfBoundError, "TcpStore.rank"):
        TcpStore("127.0.0.1", 1, 2, 2)
    with raises(OutOfBoundError, "FileStore.rank"):
        FileStore(tmp_path, 1, 1)
    with raises(AttributeTypeError, "FileStore.directory"):
        FileStore("text", 0, 1)  # type: ignore[arg-type]


def test_a_meeting_needs_a_place_to_meet(tmp_path: Path) -> None:
    with raises(BadParamError, "Place.address"):
        Meeting(Place(0, 1, 0))
    with Meeting(Place(0, 1, 0), directory=tmp_path) as meeting:
        assert identifier(meeting.store, everyone(Place(0, 1, 0)), "a", partial(bytes, 3), 1) == bytes(3)


def free_port() -> int:
    with TcpStoreServer("127.0.0.1", 0, 1) as server:
        return int(server.port)


@pytest.mark.parametrize("comes_late", [True, False])
def test_rank_0_leaves_last(comes_late: bool) -> None:
    """The store that it keeps still answers a rank that comes, or is there and reads, when rank 0 is done."""
    first, second = (Place(rank, 2, rank, "127.0.0.1", port) for port in [free_port()] for rank in range(2))
    has_left, is_done = threading.Event(), threading.Event()

    def keeps() -> None:
        with Meeting(first) as meeting:
            meeting.store.set_once("key", b"value")
            is_done.wait()
        has_left.set()

    with ThreadPoolExecutor(1) as pool:
        keeping = pool.submit(keeps)
        if comes_late:
            is_done.set()
            assert not has_left.wait(0.3)
        with Meeting(second) as meeting:
            is_done.set()
            assert meeting.store.get("key", 10) == b"value"
            assert not has_left.wait(0.1)
        keeping.result(10)
    assert has_left.is_set()


def test_rank_0_waits_for_nobody_after_an_error_and_not_for_ever() -> None:
    place = Place(0, 2, 0, "127.0.0.1", free_port())
    start = time.monotonic()
    with pytest.raises(KeyError), Meeting(place):
        raise KeyError("lost")
    with Meeting(place, timeout_s=0.2):
        pass
    assert 0.2 <= time.monotonic() - start < 10


def test_the_last_rank_removes_the_files(tmp_path: Path) -> None:
    """Until then the others read what rank 0 has written, also when it has left; closing twice does nothing."""
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda rank: FileStore(tmp_path, rank, 2, 10), range(2))
    first.set_once("key", b"value")
    first.close()
    first.close()
    assert second.get("key", 0) == b"value"
    assert second.keys("") == ("key",)
    (values,) = (path for path in tmp_path.iterdir() if path.is_dir())
    second.close()
    assert not values.exists()
    second.close()
    assert not values.exists()
