"""Small text files that several processes change: read, changed and replaced as one step under a lock."""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOCK = ".lock"
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


def change_file(path: Path, change: Callable[[str], str]) -> None:
    """Replaces the text of ``path`` by ``change(text)``; the text of a file that is not there is empty.

    Processes that change one file do it in turn, by a lock on ``path`` + ``.lock``, which stays. A reader sees the
    file before or after the change, and a ``change`` that raises leaves it as it was.
    Raises OSError, also for what is no regular file.
    """
    with _locked(path.with_name(path.name + _LOCK)):
        text = change(_read(path))
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o666)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _read(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is no regular file")
        return file.read().decode("utf-8", errors="replace")
