"""A store in a directory that all ranks see, one file for each value.

Files of an earlier run do no harm: before anything else the ranks agree on a fresh token, and the values lie in a
directory of that name. Each rank writes a number of its own, drawn at random, to ``hello.RANK``. Rank 0 draws the
token and writes it to ``welcome`` together with the numbers that it has read. A rank takes the token once its own
number stands there, and says so in ``ack.RANK``; rank 0 reads again until all have. Numbers of an earlier run are never
anyone's own, so they open nothing.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from lowdnn import checks
from lowdnn.distributed.errors import CommunicationError, CommunicationTimeoutError
from lowdnn.distributed.store import check_entry, seconds

#: Seconds between looks at a file that is awaited.
_LOOK_S = 0.01
#: The longest file that is read while the ranks agree.
_MAX_AGREEMENT_BYTES = 1 << 26


class FileStore:
    """The store of ``world_size`` ranks in ``directory``, as rank ``rank`` sees it; made by all ranks together.

    Raises CommunicationTimeoutError where the others do not come within ``timeout_s``, and CommunicationError where the
    directory cannot be written.
    """

    def __init__(self, directory: Path, rank: int, world_size: int, timeout_s: float = 60.0) -> None:
        self._world_size = world_size
        self._rank = checks.integer(rank, "FileStore.rank", 0, world_size - 1)
        self._directory = checks.instance(directory, Path, "FileStore.directory")
        timeout_s = seconds(timeout_s, "FileStore.timeout_s")
        try:
            directory.mkdir(parents=True, exist_ok=True)
            agree = _welcomed_all if rank == 0 else _welcomed
            self._values = directory / agree(directory, rank, world_size, time.monotonic() + timeout_s)
            self._values.mkdir(exist_ok=True)
        except CommunicationError:
            raise
        except OSError as error:
            raise CommunicationError.at(
                "FileStore.directory", expected="a directory that this process may write", got=error
            ) from error

    def set_once(self, key: str, value: bytes) -> bytes:
        check_entry(key, value)
        path = self._path(key)
        with suppress(FileExistsError), _written(path, value) as whole:
            # A link is made or refused as one step, and what it leads to is complete.
            os.link(whole, path)
        return path.read_bytes()

    def get(self, key: str, timeout_s: float) -> bytes:
        check_entry(key)
        timeout_s = seconds(timeout_s, "Store.timeout_s")
        found = _awaited(lambda: _content(self._path(key)), time.monotonic() + timeout_s)
        if found is None:
            raise CommunicationTimeoutError.at(
                f"FileStore.{key}", expected=f"a value in {self._directory} within {timeout_s:g} s", got="none"
            )
        return found

    def keys(self, prefix: str) -> tuple[str, ...]:
        names = (path.name.replace("=", "/") for path in self._values.iterdir() if "~" not in path.name)
        return tuple(sorted(name for name in names if name.startswith(prefix)))

    def close(self) -> None:
        """The last rank that leaves removes the values; where one was killed, they stay."""
        left = [self._values / f"left~{rank}" for rank in range(self._world_size)]
        with suppress(OSError):
            left[self._rank].touch()
        if all(path.exists() for path in left):
            shutil.rmtree(self._values, ignore_errors=True)

    def _path(self, key: str) -> Path:
        return self._values / key.replace("/", "=")


class _written:
    """The path of a new file beside ``path`` with ``content``, gone behind the ``with`` block."""

    def __init__(self, path: Path, content: bytes) -> None:
        self._path = path.with_name(f"{path.name}~{secrets.token_hex(8)}")
        self._content = content

    def __enter__(self) -> Path:
        self._path.write_bytes(self._content)
        return self._path

    def __exit__(self, *_: object) -> None:
        self._path.unlink(missing_ok=True)


def _replace(path: Path, content: bytes) -> None:
    with _written(path, content) as whole:
        os.replace(whole, path)


def _content(path: Path) -> bytes | None:
    with suppress(FileNotFoundError):
        return path.read_bytes()
    return None


def _awaited(look: Callable[[], bytes | None], deadline: float) -> bytes | None:
    """The content that ``look`` finds, once it finds some; None at the deadline."""
    while True:
        found = look()
        if found is not None or time.monotonic() > deadline:
            return found
        time.sleep(_LOOK_S)


def _welcomed_all(directory: Path, rank: int, world_size: int, deadline: float) -> str:
    """Rank 0's part of the agreement: draws the token, and returns it once every rank has taken it."""
    token = f"run-{secrets.token_hex(16)}"
    told: dict[str, str] = {}
    others = [str(other) for other in range(1, world_size)]
    while True:
        heard = {other: (_content(directory / f"hello.{other}") or b"").decode("ascii", "replace") for other in others}
        if heard != told or not others:
            told = heard
            _replace(directory / "welcome", json.dumps({"token": token, "numbers": told}).encode())
        late = [other for other in others if _content(directory / f"ack.{other}") != token.encode()]
        if not late:
            return token
        if time.monotonic() > deadline:
            raise CommunicationTimeoutError.at(
                "FileStore.ranks", expected=f"{world_size} ranks in {directory}", got=f"none of {', '.join(late)}"
            )
        time.sleep(_LOOK_S)


def _welcomed(directory: Path, rank: int, world_size: int, deadline: float) -> str:
    """Another rank's part: the token of the run in which rank 0 has read this process's own number."""
    number = secrets.token_hex(16)
    _replace(directory / f"hello.{rank}", number.encode())

    def look() -> bytes | None:
        welcome = _content(directory / "welcome")
        if welcome is None or len(welcome) > _MAX_AGREEMENT_BYTES:
            return None
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            found = json.loads(welcome)
            if found["numbers"].get(str(rank)) == number:
                return str(found["token"]).encode()
        return None

    token = _awaited(look, deadline)
    if token is None:
        raise CommunicationTimeoutError.at(
            "FileStore.ranks", expected=f"rank 0 of {world_size} in {directory}", got=f"no answer to rank {rank}"
        )
    check_entry(token.decode("ascii", "replace"))
    _replace(directory / f"ack.{rank}", token)
    return token.decode()
