"""Text files that several processes change: each reads, changes and replaces such a file as one step, under a lock."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lowdnn.runtime.cache_directory import EntryFolder
from lowdnn.runtime.cache_files import read, try_file, write

_LOCK = ".lock"
_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
#: The treatment of bytes that are no UTF-8: they stay what they are.
_BYTES = "surrogateescape"


def change_file(path: Path, change: Callable[[str], str]) -> None:
    """Replaces the text of ``path`` by ``change(text)``; the text of a file that is not there is empty.

    A reader sees the file before or after the change, and a ``change`` that raises leaves it as it was.
    Raises OSError, also for what is no regular file of the user or root that nobody else may write.
    """
    with folder_of(path, makes=True) as folder:
        _text(folder, path)
        with locked(folder, path.name):
            text = change(_text(folder, path))
            write(folder, path.name, text.encode("utf-8", errors=_BYTES))


def check_changeable(path: Path) -> None:
    """Raises OSError where ``change_file`` would; leaves no file behind, but makes the folder."""
    with folder_of(path, makes=True) as folder:
        _text(folder, path)
        with locked(folder, path.name):
            try_file(folder)


@contextmanager
def place_of(path: Path) -> Iterator[EntryFolder]:
    """The folder of a file to write anew, all at once.

    Raises OSError for what is no regular file: root could put one in the place of a device.
    """
    with folder_of(path, makes=False) as folder:
        with suppress(FileNotFoundError):
            mode = os.stat(path.name, dir_fd=folder.descriptor, follow_symlinks=False).st_mode
            if not stat.S_ISREG(mode):
                raise OSError(f"{path} is no regular file: {stat.filemode(mode)}")
        yield folder


def check_place(path: Path) -> None:
    """Raises OSError where no file can be written in the place of ``path``; leaves nothing behind."""
    with place_of(path) as folder:
        try_file(folder)


@contextmanager
def folder_of(path: Path, makes: bool) -> Iterator[EntryFolder]:
    """The folder of a file that the caller names, without a check of its owner or mode; it is made if ``makes``."""
    if not path.name:
        raise OSError(f"{str(path)!r} names no file")
    if makes:
        path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield EntryFolder(descriptor, path.parent)
    finally:
        os.close(descriptor)


@contextmanager
def locked(folder: EntryFolder, name: str) -> Iterator[None]:
    """Waits for its turn with a file; the kernel gives the lock back when the process ends, however it does.

    The lock is a file beside the other one, which goes with the turn.
    """
    lock = f".{name}{_LOCK}"
    descriptor = _turn(folder, lock)
    try:
        yield
    finally:
        # Who waits for this file then finds that its name has gone, and takes another.
        with suppress(OSError):
            os.unlink(lock, dir_fd=folder.descriptor)
        # A child that another thread has forked meanwhile holds the descriptor, too.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _text(folder: EntryFolder, path: Path) -> str:
    try:
        data = read(folder, path.name, is_use=False)
    except FileNotFoundError:
        return ""
    if data is None:
        raise OSError(f"{path} is no regular file of the user or root that nobody else may write")
    return data.decode("utf-8", errors=_BYTES)


def _turn(folder: EntryFolder, lock: str) -> int:
    """The descriptor of the lock's file, locked, once the file is the one of that name."""
    while True:
        descriptor = os.open(lock, _LOCK_FLAGS, 0o600, dir_fd=folder.descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                named = os.stat(lock, dir_fd=folder.descriptor, follow_symlinks=False)
                if os.path.samestat(named, os.fstat(descriptor)):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
