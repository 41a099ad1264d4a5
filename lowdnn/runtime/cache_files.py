"""The files of the disk cache in one folder: how an entry is written, read, checked and removed.

An entry is a header line ``lowdnn-cache 1 <key> <sha256 of the payload> <length>`` and the payload, in a file
``<key>.bin``. Files of the same key with another ending are for people to read, and go when their entry goes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import stat
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from lowdnn.runtime.cache_directory import EntryFolder

ENTRY = ".bin"
_MAGIC = "lowdnn-cache 1"
_TEMPORARY = ".new-"
#: Seconds after which a file that is not complete counts as left behind by a process that has died.
_STALE_S = 3600.0
#: The most bytes of an entry; a larger file is no kernel and is not read into memory.
MAX_ENTRY_BYTES = 256 << 20
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class CacheFile:
    """A regular file of the user.  used_s: when it was written or read last, in seconds of the epoch."""

    name: str
    size_bytes: int
    used_s: float

    @property
    def key(self) -> str:
        return self.name.partition(".")[0]

    @property
    def is_temporary(self) -> bool:
        """Whether a process is writing it, or has died in doing so."""
        return self.name.startswith(_TEMPORARY)

    @property
    def is_old(self) -> bool:
        """Whether no process is at work on it any more."""
        return self.used_s < time.time() - _STALE_S

    @property
    def is_left_behind(self) -> bool:
        """Whether it is the temporary file of a process that has died."""
        return self.is_temporary and self.is_old


@dataclass(frozen=True)
class FileGroup:
    """An entry's files."""

    key: str
    files: tuple[CacheFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def used_s(self) -> float:
        return max(file.used_s for file in self.files)


def sealed(key: str, payload: bytes) -> bytes:
    """The content of an entry's file."""
    return f"{_header(key, payload)}\n".encode() + payload


def payload_of(data: bytes, key: str) -> bytes | None:
    """The payload of an entry's file; None where the file is damaged."""
    header, newline, payload = data.partition(b"\n")
    return payload if newline and header == _header(key, payload).encode() else None


def files_in(folder: EntryFolder) -> Iterator[CacheFile]:
    """The user's regular files in the folder, in no order."""
    for name in os.listdir(folder.descriptor):
        with suppress(OSError):
            status = os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid():
                yield CacheFile(name, status.st_size, status.st_mtime)


def by_use(files: Iterable[CacheFile]) -> list[FileGroup]:
    """The entries, those used longest ago first. Temporary files are not among them."""
    found: dict[str, list[CacheFile]] = defaultdict(list)
    for file in files:
        if not file.is_temporary:
            found[file.key].append(file)
    groups = (FileGroup(key, tuple(files)) for key, files in found.items())
    return sorted(groups, key=lambda group: group.used_s)


def evict(folder: EntryFolder, groups: Iterable[FileGroup], most_bytes: int) -> list[FileGroup]:
    """Removes the first of ``groups`` until the others take up at most ``most_bytes``; returns those removed."""
    waiting = list(groups)
    total_bytes, removed = sum(group.size_bytes for group in waiting), []
    for group in waiting:
        if total_bytes <= most_bytes:
            break
        remove_group(folder, group)
        total_bytes -= group.size_bytes
        removed.append(group)
    return removed


def remove_group(folder: EntryFolder, group: FileGroup) -> bool:
    """Whether there was a file that could be removed. The entry goes last: others without it count as damaged."""
    names = sorted((file.name for file in group.files), key=lambda name: name.endswith(ENTRY))
    return [remove(folder, name) for name in names].count(True) > 0


def remove_left_behind(folder: EntryFolder, files: Iterable[CacheFile]) -> list[CacheFile]:
    """Removes those of ``files`` that processes which have died were writing, and returns them."""
    return [file for file in files if file.is_left_behind and remove(folder, file.name)]


def remove(folder: EntryFolder, name: str) -> bool:
    """Whether there was a file that could be removed."""
    try:
        os.unlink(name, dir_fd=folder.descriptor)
    except OSError:
        return False
    return True


def read(folder: EntryFolder, name: str, *, is_use: bool = True) -> bytes | None:
    """The bytes of a regular file that only the user or root may write; None for another.

    is_use: sets its time to now.
    The file is checked before it is opened, since opening a device may do something, and again afterwards.
    """
    if distrust(os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False)):
        return None
    try:
        descriptor = os.open(name, _READ_FLAGS, dir_fd=folder.descriptor)
    except FileNotFoundError:
        raise
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if distrust(status):
            return None
        # One byte more shows a file that has grown since.
        data = file.read(status.st_size + 1)
        if is_use:
            with suppress(OSError):
                os.utime(descriptor)
    return data


def distrust(status: os.stat_result) -> str:
    """Why a file with this status is not read; empty for one that is."""
    if not stat.S_ISREG(status.st_mode):
        return "no regular file"
    if status.st_size > MAX_ENTRY_BYTES:
        return f"{status.st_size} bytes, more than an entry has"
    if status.st_uid not in (os.getuid(), 0):
        return f"owned by user {status.st_uid}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"mode {stat.S_IMODE(status.st_mode):04o} lets others write"
    # Several links: one may be a file from elsewhere. None: the entry has just been replaced.
    return "a file with several names" if status.st_nlink > 1 else ""


@contextmanager
def locked(folder: EntryFolder) -> Iterator[None]:
    """Excludes everybody else who locks the folder, in this process and others. Raises OSError."""
    fcntl.flock(folder.descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(folder.descriptor, fcntl.LOCK_UN)


def write(folder: EntryFolder, name: str, data: bytes, mode: int = 0o600) -> None:
    """Writes a file so that a reader sees all of it or nothing. Raises OSError, and then leaves nothing."""
    temporary, descriptor = _temporary(folder, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, name, src_dir_fd=folder.descriptor, dst_dir_fd=folder.descriptor)
    except BaseException:
        remove(folder, temporary)
        raise


def try_file(folder: EntryFolder) -> None:
    """Writes a file in the folder and removes it. Raises OSError where that does not go, on a full disk, too."""
    temporary, descriptor = _temporary(folder, 0o600)
    try:
        os.write(descriptor, bytes(1))
    finally:
        os.close(descriptor)
        remove(folder, temporary)


def takes_files(folder: EntryFolder) -> bool:
    """Whether a file can be made in the folder."""
    try:
        try_file(folder)
    except OSError:
        return False
    return True


def _temporary(folder: EntryFolder, mode: int) -> tuple[str, int]:
    """The name and the descriptor of a new file."""
    name = f"{_TEMPORARY}{secrets.token_hex(16)}"
    return name, os.open(name, _WRITE_FLAGS, mode, dir_fd=folder.descriptor)


def _header(key: str, payload: bytes) -> str:
    return f"{_MAGIC} {key} {hashlib.sha256(payload).hexdigest()} {len(payload)}"
