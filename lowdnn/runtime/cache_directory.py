"""The directory of the disk cache: opened anew for each use, and checked and read through that one descriptor.

Its contents run on the device, so that entries come from a folder of the user's or root's alone. There are three kinds
of directories:

- the user's own, which nobody else may write: entries lie in its folder ``v1``;
- one that a group may write (a volume of a team), whoever owns it: the entries of each user lie in a folder of their
  own, ``v1-<uid>``, which nobody else may write. Others can take its name away, and cannot make one in its place that
  is the user's;
- one that cannot be written (an image, a read-only volume): its entries are read.

A symlink in place of either folder is refused, and so is a folder that everyone may write, or, but for directories of a
group, one of another user.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

_LAYOUT = "v1"
_OPEN_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

#: Error numbers of creating a file where that is not allowed.
READ_ONLY_ERRORS = (errno.EROFS, errno.EACCES, errno.EPERM)


class DirectoryRefusedError(OSError):
    """The directory must not be used; its text says why."""


@dataclass(frozen=True)
class EntryFolder:
    """The folder of entries, as a descriptor that lives in the ``with`` block of ``opened``, and by its path."""

    descriptor: int
    path: Path


@contextmanager
def opened(directory: Path, *, makes: bool) -> Iterator[EntryFolder]:
    """The folder of entries in ``directory``; both are made, with mode 0700, if ``makes``.

    Raises FileNotFoundError where there is none, DirectoryRefusedError, OSError.
    """
    if makes:
        with suppress(OSError):
            directory.parent.mkdir(parents=True, exist_ok=True)
    outer = _opened_folder(str(directory), None, makes=makes)
    try:
        is_shared = _check_outer(outer)
        name = f"{_LAYOUT}-{os.getuid()}" if is_shared else _LAYOUT
        inner = _opened_folder(name, outer, makes=makes)
        try:
            _check_inner(inner)
            yield EntryFolder(inner, directory / name)
        finally:
            os.close(inner)
    finally:
        os.close(outer)


@contextmanager
def opened_private(directory: Path, *, makes: bool) -> Iterator[EntryFolder]:
    """``directory`` itself, which must be of the first kind; errors and ``makes`` as in ``opened``."""
    if makes:
        with suppress(OSError):
            directory.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _opened_folder(str(directory), None, makes=makes)
    try:
        _check_inner(descriptor)
        yield EntryFolder(descriptor, directory)
    finally:
        os.close(descriptor)


def can_be_made(directory: Path) -> bool:
    """Whether ``opened`` could make what is missing of ``directory``: a folder is made in the last one that is there,
    and removed. Permissions alone do not tell, of a read-only file system or ``/proc``."""
    there = next(path for path in (directory, *directory.parents) if os.path.isdir(path))
    try:
        os.rmdir(mkdtemp(prefix=".lowdnn-", dir=there))
    except OSError:
        return False
    return True


def _opened_folder(path: str, parent: int | None, *, makes: bool) -> int:
    try:
        return os.open(path, _OPEN_FLAGS, dir_fd=parent)
    except FileNotFoundError:
        if not makes:
            raise
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        raise DirectoryRefusedError("not a directory (symlinks are refused)") from error
    with suppress(FileExistsError):
        os.mkdir(path, 0o700, dir_fd=parent)
    return _opened_folder(path, parent, makes=False)


def _check_outer(descriptor: int) -> bool:
    """Whether a group may write the directory; raises DirectoryRefusedError where it must not be used."""
    status = os.fstat(descriptor)
    if status.st_mode & stat.S_IWOTH:
        raise DirectoryRefusedError(f"{_lets_others_write(status)}; a folder in it may be used")
    is_shared = bool(status.st_mode & stat.S_IWGRP)
    if not is_shared:
        _check_owner(status)
    return is_shared


def _check_inner(descriptor: int) -> None:
    """Raises DirectoryRefusedError for a folder of entries that anybody but the user or root may write."""
    status = os.fstat(descriptor)
    _check_owner(status)
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise DirectoryRefusedError(_lets_others_write(status))


def _check_owner(status: os.stat_result) -> None:
    if status.st_uid not in (os.getuid(), 0):
        raise DirectoryRefusedError(f"owned by user {status.st_uid}, not {os.getuid()} or root")


def _lets_others_write(status: os.stat_result) -> str:
    return f"mode {stat.S_IMODE(status.st_mode):04o} lets others write"
