"""Text files that several processes change: each reads, changes and replaces such a file as one step, under a lock."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lowdnn.runtime.cache_directory import EntryFolder
from lowdnn.runtime.cache_files import read, write

_LOCK = ".lock"
_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def change_file(path: Path, change: Callable[[str], str]) -> None:
    """Replaces the text of ``path`` by ``change(text)``; the text of a file that is not there is empty.

    A reader sees the file before or after the change, and a ``change`` that raises leaves it as it was.
    Raises OSError, also for what is no regular file of the user or root that nobody else may write.
    """
    with folder_of(path, makes=True) as folder, locked(folder, path.name):
        try:
            data = read(folder, path.name, is_use=False)
        except FileNotFoundError:
            data = b""
        if data is None:
            raise OSError(f"{path} is no regular file of the user or root that nobody else may write")
        write(folder, path.name, change(data.decode("utf-8", errors="replace")).encode())


@contextmanager
def folder_of(path: Path, makes: bool) -> Iterator[EntryFolder]:
    """The folder of a file that the caller names, without a check of its owner or mode; it is made if ``makes``."""
    if makes:
        path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield EntryFolder(descriptor, path.parent)
    finally:
        os.close(descriptor)


@contextmanager
def locked(folder: EntryFolder, name: str) -> Iterator[None]:
    """Waits for its turn with a file; the kernel gives the lock back when the process ends, however it does."""
    descriptor = os.open(f".{name}{_LOCK}", _LOCK_FLAGS, 0o600, dir_fd=folder.descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
