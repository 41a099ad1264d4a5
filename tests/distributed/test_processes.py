"""Ranks as processes of this machine: two launchers that stand for two nodes, and a rank that is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lowdnn.config import with_variables
from lowdnn.distributed.launching import launch
from lowdnn.distributed.place import Place
from lowdnn.distributed.tcp_store import TcpStoreServer
from lowdnn.status import AttributeTypeError, BadParamError, OutOfBoundError
from tests.support.errors import raises

#: The program of each rank: it meets the others over TCP and in files, and all learn what each has written.
MEETS = """
import json, os, sys
from pathlib import Path
from lowdnn.distributed.place import Place
from lowdnn.distributed.rendezvous import Meeting, everyone, identifier

place = Place.from_environment()
found = [place.local_rank]
for directory in (None, Path(sys.argv[1], "store")):
    with Meeting(place, directory=directory, timeout_s=60) as meeting:
        store = meeting.store
        store.set_once(f"process/{place.rank}", str(os.getpid()).encode())
        seen = [int(store.get(f"process/{rank}", 60)) for rank in range(place.world_size)]
        found += [seen, identifier(store, everyone(place), "first", lambda: os.urandom(16), 60).hex()]
    Path(sys.argv[1], f"rank{place.rank}").write_text(json.dumps(found))
    assert "nccl" not in sys.modules and not any(name.startswith("cuda") for name in sys.modules)
"""

#: Rank 1 is killed; the others time out on it, count who is left, and agree on a new identifier.
IS_LOST = """
import json, os, signal, sys, time
from pathlib import Path
from lowdnn.distributed.errors import CommunicationTimeoutError
from lowdnn.distributed.place import Place
from lowdnn.distributed.rendezvous import Meeting, everyone, identifier, survivors

place = Place.from_environment()
with Meeting(place, timeout_s=60) as meeting:
    store, members = meeting.store, everyone(place)
    store.set_once(f"here/{place.rank}", b"")
    for rank in members.ranks:
        store.get(f"here/{rank}", 60)
    if place.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    store.set_once(f"step/{place.rank}", b"")
    start = time.monotonic()
    try:
        store.get("step/1", 0.3)
    except CommunicationTimeoutError:
        assert time.monotonic() - start < 10
        left = survivors(store, members, "second", 2.0)
        made = identifier(store, left, "second", lambda: b"new", 60)
        Path(sys.argv[1], f"rank{place.rank}").write_text(json.dumps([left.ranks, left.rank, made.decode()]))
"""


def command(program: str, directory: Path) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(program), str(directory)]


def read(directory: Path) -> dict[int, list[Any]]:
    """The text that each rank has written, by its number."""
    return {int(path.name.removeprefix("rank")): json.loads(path.read_text()) for path in directory.glob("rank*")}


def test_two_launchers_stand_for_two_nodes(tmp_path: Path) -> None:
    with TcpStoreServer("127.0.0.1", 0, 4) as free:
        port = free.port
    with ThreadPoolExecutor(2) as nodes:
        codes = nodes.map(
            lambda node: launch(command(MEETS, tmp_path), 2, node=node, nodes=2, address="127.0.0.1", port=port), (0, 1)
        )
        assert [*codes] == [0, 0]
    found = read(tmp_path)
    assert sorted(found) == [0, 1, 2, 3]
    assert [found[rank][0] for rank in range(4)] == [0, 1, 0, 1]
    _, processes, over_tcp, same, in_files = zip(*(found[rank] for rank in range(4)), strict=True)
    assert processes == same == processes[:1] * 4
    assert len(set(processes[0])) == 4
    assert [len(set(made)) for made in (over_tcp, in_files)] == [1, 1]
    assert over_tcp != in_files
    assert not [path for path in (tmp_path / "store").iterdir() if path.is_dir()]


def test_launches_are_checked() -> None:
    for options, where in (
        ({"ranks": 0}, "launch.ranks"),
        ({"ranks": 1, "nodes": 2, "node": 2, "port": 5}, "launch.node"),
        ({"ranks": 1, "nodes": 2}, "launch.port"),
    ):
        with raises(OutOfBoundError, where):
            launch([sys.executable, "-c", ""], **options)
    for words in ([], ["/missing"], ["a\0b"]):
        with raises(BadParamError, "launch.command", expected="a program"):
            launch(words, 1)
    for wrong in ([1], "true", None):
        with raises(AttributeTypeError, "launch.command"):
            launch(wrong, 1)  # type: ignore[arg-type]
    with raises(AttributeTypeError, "launch.environment", expected="text", got="1"):
        launch([sys.executable, "-c", ""], 1, environment={"A": 1})  # type: ignore[dict-item]


def test_a_rank_that_fails_ends_the_others() -> None:
    """The launcher returns its exit code at once."""
    program = "import os, sys, time; sys.exit(7) if os.environ['RANK'] == '1' else time.sleep(600)"
    assert launch([sys.executable, "-c", program], 3) == 7


def test_the_others_go_on_without_a_killed_rank(tmp_path: Path) -> None:
    with TcpStoreServer("127.0.0.1", 0, 3) as server:
        ranks = [Place(rank, 3, rank, "127.0.0.1", server.port, is_hosted=True) for rank in range(3)]
        processes = [
            subprocess.Popen(command(IS_LOST, tmp_path), env=with_variables(place.environment())) for place in ranks
        ]
        assert [process.wait(100) for process in processes] == [0, -signal.SIGKILL, 0]
    assert read(tmp_path) == {0: [[0, 2], 0, "new"], 2: [[0, 2], 1, "new"]}
