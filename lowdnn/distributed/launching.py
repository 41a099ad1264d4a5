"""Starts the ranks of one node as processes, and ends all of them where one fails."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from lowdnn import checks
from lowdnn.config import with_variables
from lowdnn.distributed.place import MAX_PORT, MAX_RANKS, Place
from lowdnn.distributed.tcp_store import TcpStoreServer
from lowdnn.status import BadParamError

#: Seconds between looks at the processes.
_LOOK_S = 0.05
#: Seconds that a process has to end after it is asked to.
_GRACE_S = 5.0


def launch(
    command: Sequence[str],
    ranks: int,
    *,
    node: int = 0,
    nodes: int = 1,
    address: str = "127.0.0.1",
    port: int = 0,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Runs ``command`` as ``ranks`` processes, which are the ranks of node ``node`` of ``nodes`` equal ones.

    Each finds its place in torchrun's variables. Node 0 keeps the store at ``address``: ``port``, a free one if 0,
    which only a single node can do without. Returns 0, or the exit code of the first process that failed; the others
    are then ended. ``environment``: variables beside those of this process.
    Raises BadParamError for numbers out of range, text that is none, and a command that cannot be started;
    CommunicationError where the store cannot listen.
    """
    words = _texts(checks.sequence(command, "launch.command", "words"), "launch.command")
    if not words:
        raise BadParamError.at("launch.command", expected="at least a program", got="no words")
    own = checks.mapping({} if environment is None else environment, "launch.environment", "text")
    _texts((*own, *own.values()), "launch.environment")
    checks.integer(ranks, "launch.ranks", 1, MAX_RANKS)
    checks.integer(nodes, "launch.nodes", 1, MAX_RANKS)
    checks.integer(node, "launch.node", 0, nodes - 1)
    checks.integer(port, "launch.port", 0 if nodes == 1 else 1, MAX_PORT)
    with ExitStack() as owned:
        if node == 0:
            server = owned.enter_context(TcpStoreServer(address, port, ranks * nodes))
            port = server.port
        processes: list[subprocess.Popen[bytes]] = []
        owned.callback(_end, processes)
        for local_rank in range(ranks):
            place = Place(node * ranks + local_rank, ranks * nodes, local_rank, address, port, is_hosted=True)
            processes.append(_started(words, with_variables({**own, **place.environment()})))
        while True:
            codes = [process.poll() for process in processes]
            failed = next((code for code in codes if code), 0)
            if failed or None not in codes:
                return failed
            time.sleep(_LOOK_S)


def _texts(values: tuple[Any, ...], where: str) -> list[str]:
    return [checks.instance(value, str, where, "text") for value in values]


def _started(words: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(words, env=variables)
    except (OSError, ValueError) as error:  # ValueError: a null character
        raise BadParamError.at("launch.command", expected="a program that can be started", got=error) from error


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.terminate()
    deadline = time.monotonic() + _GRACE_S
    for process in running:
        try:
            process.wait(max(deadline - time.monotonic(), _LOOK_S))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
