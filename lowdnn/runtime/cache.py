"""Disk cache of compiled kernels: a directory of the user's own, one file per entry, bounded by its size.

An entry is a header line ``lowdnn-cache 1 <key> <sha256 of the payload> <length>`` and the payload. It is written to a
temporary file in the same folder, synced and renamed, so a reader sees all of it or nothing, and of two writers the
last wins with equal content. An entry whose header, key, length or digest is wrong counts as missing, and so does a
file that is not regular, not the user's or root's, or that others may write. A read sets an entry's time; where the
entries take up more than the bound, those read longest ago go first.

Payloads are PTX, machine code for one architecture, and what was learnt of a compiler's file (``compile``). Their keys
tell these apart, so devices and compilers of several machines may share a directory.

Which directories are used: see ``cache_directory``. (``cuda.core.utils.FileStreamProgramCache`` checks neither them nor
a payload, and importing ``cuda.core`` costs 0.25 s, so the store is written here.)
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import stat
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lowdnn.config import Config
from lowdnn.events import emit, event_logger
from lowdnn.runtime.cache_directory import READ_ONLY_ERRORS, EntryFolder, opened
from lowdnn.status import LowdnnWarning

_MAGIC = "lowdnn-cache 1"
_ENTRY = ".bin"
_TEMPORARY = ".new-"
#: Seconds after which a temporary file counts as left behind by a process that has died.
_STALE_S = 3600.0
#: The most bytes of an entry; a larger file is no kernel and is not read into memory.
_MAX_ENTRY_BYTES = 256 << 20
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class CacheWarning(LowdnnWarning):
    """The directory of compiled kernels cannot be used, so that each process compiles anew."""


@dataclass(frozen=True)
class CacheFacts:
    """The state of a cache. refusal: why it is not used, or empty.  files, size_bytes: bytes of this user's entries."""

    directory: str
    limit_bytes: int
    files: int = 0
    size_bytes: int = 0
    is_writable: bool = True
    refusal: str = ""


#: Writes between two counts of the files.
_WRITES = 64


@dataclass(frozen=True)
class _File:
    name: str
    size_bytes: int
    used_s: float


class DiskCache:
    """Entries by key (a hex digest). Every failure of the file system is a miss or a write that did not happen.

    Each kind of failure is logged once as an event; a directory that cannot be used at all gives a CacheWarning too.
    A cache may be shared between threads and processes.
    """

    def __init__(self, directory: Path, limit_bytes: int = Config.cache_limit_bytes) -> None:
        """``limit_bytes``: the most bytes that the files of this user may take up."""
        self.directory = directory
        self.limit_bytes = limit_bytes
        self._logger = event_logger("cache")
        self._told: set[str] = set()
        self._is_writable = True
        # Bytes and writes for which there is room until the files are counted again.
        self._room_bytes, self._writes = 0, 0

    def get(self, key: str) -> bytes | None:
        """The payload of ``key``; None where there is none, or it is damaged."""
        try:
            with opened(self.directory, makes=False) as folder:
                payload = _payload(_read(folder, key + _ENTRY), key)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._refused(error)
            return None
        if payload is None:
            self._tell("cache_damaged", {"key": key})
        return payload

    def put(self, key: str, payload: bytes, companions: dict[str, str] | None = None) -> bool:
        """Stores ``payload``; each companion (file suffix, text) is written beside it, for people to read."""
        header = f"{_MAGIC} {key} {hashlib.sha256(payload).hexdigest()} {len(payload)}\n"
        contents = {suffix: text.encode() for suffix, text in (companions or {}).items()}
        contents[_ENTRY] = header.encode() + payload
        needed = sum(map(len, contents.values()))
        if not self._is_writable or needed > self.limit_bytes:
            return False
        try:
            with opened(self.directory, makes=True) as folder:
                self._make_room(folder, key, needed)
                return self._write_all(folder, key, contents)
        except OSError as error:
            self._refused(error)
            return False

    def discard(self, key: str) -> bool:
        """Removes the entry of ``key`` with its companions; False where there was none that could be removed."""
        try:
            with opened(self.directory, makes=False) as folder:
                names = [file.name for file in _files(folder) if _stem(file.name) == key]
                return [_unlink(folder, name) for name in names].count(True) > 0
        except OSError:
            return False

    def clear(self) -> None:
        """Removes every file of this user."""
        with suppress(OSError), opened(self.directory, makes=False) as folder:
            for file in _files(folder):
                _unlink(folder, file.name)

    def facts(self) -> CacheFacts:
        """The state of the cache now. Makes no directory; one that is missing counts as usable."""
        where = str(self.directory)
        try:
            with opened(self.directory, makes=False) as folder:
                files = list(_files(folder))
                can_write = os.access(".", os.W_OK | os.X_OK, dir_fd=folder.descriptor)
                where, size_bytes = str(folder.path), sum(file.size_bytes for file in files)
                return CacheFacts(where, self.limit_bytes, len(files), size_bytes, can_write)
        except FileNotFoundError:
            return CacheFacts(where, self.limit_bytes)
        except OSError as error:
            return CacheFacts(where, self.limit_bytes, is_writable=False, refusal=str(error))

    def _write_all(self, folder: EntryFolder, key: str, contents: dict[str, bytes]) -> bool:
        try:
            for suffix, data in contents.items():
                _write(folder, key + suffix, data)
        except OSError as error:
            self._is_writable = error.errno not in READ_ONLY_ERRORS
            self._tell("cache_write_failed", {"directory": folder.path, "reason": error.strerror})
            return False
        return True

    def _make_room(self, folder: EntryFolder, key: str, needed_bytes: int) -> None:
        """Removes the entries used longest ago until ``needed_bytes`` more fit, and what dead processes have left.

        To count thousands of files takes a good part of a compilation. So half of the room found lasts for some writes,
        whatever other processes write meanwhile.
        """
        if self._room_bytes >= needed_bytes and self._writes:
            self._room_bytes, self._writes = self._room_bytes - needed_bytes, self._writes - 1
            return
        entries: dict[str, list[_File]] = defaultdict(list)
        for file in _files(folder):
            if not file.name.startswith(_TEMPORARY):
                entries[_stem(file.name)].append(file)
            elif file.used_s < time.time() - _STALE_S:
                _unlink(folder, file.name)
        entries.pop(key, None)
        total_bytes = needed_bytes + sum(file.size_bytes for files in entries.values() for file in files)
        for files in sorted(entries.values(), key=lambda files: max(file.used_s for file in files)):
            if total_bytes <= self.limit_bytes:
                break
            for file in files:
                _unlink(folder, file.name)
                total_bytes -= file.size_bytes
        self._room_bytes, self._writes = (self.limit_bytes - total_bytes) // 2, _WRITES

    def _refused(self, error: OSError) -> None:
        reason = f"{self.directory}: {error.strerror or error}"
        if self._tell("cache_refused", {"directory": self.directory, "reason": error.strerror or error}):
            warnings.warn(f"kernels are not kept on disk ({reason}); set LOWDNN_CACHE_DIR", CacheWarning, stacklevel=2)

    def _tell(self, event: str, fields: dict[str, object]) -> bool:
        """Logs an event of this kind and content once; False if it was logged before."""
        text = f"{event} {fields}"
        if text in self._told:
            return False
        self._told.add(text)
        emit(self._logger, logging.WARNING, event, fields)
        return True


def _files(folder: EntryFolder) -> Iterator[_File]:
    """The user's regular files in the folder."""
    for name in os.listdir(folder.descriptor):
        with suppress(OSError):
            status = os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid():
                yield _File(name, status.st_size, status.st_mtime)


def _stem(name: str) -> str:
    return name.partition(".")[0]


def _unlink(folder: EntryFolder, name: str) -> bool:
    try:
        os.unlink(name, dir_fd=folder.descriptor)
    except OSError:
        return False
    return True


def _read(folder: EntryFolder, name: str) -> bytes | None:
    """The bytes of a regular file that only the user or root may write, and its time set to now; None for another.

    The file is checked before it is opened, since opening a device may do something, and again afterwards.
    """
    status = os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False)
    if not _is_trusted(status):
        return None
    try:
        descriptor = os.open(name, _READ_FLAGS, dir_fd=folder.descriptor)
    except FileNotFoundError:
        raise
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not _is_trusted(status):
            return None
        # One byte more shows a file that has grown since.
        data = file.read(status.st_size + 1)
        with suppress(OSError):
            os.utime(descriptor)
    return data


def _is_trusted(status: os.stat_result) -> bool:
    return (
        stat.S_ISREG(status.st_mode)
        and status.st_size <= _MAX_ENTRY_BYTES
        and status.st_uid in (os.getuid(), 0)
        and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        # Several links: one may be a file from elsewhere. None: the entry has just been replaced.
        and status.st_nlink <= 1
    )


def _write(folder: EntryFolder, name: str, data: bytes) -> None:
    temporary = f"{_TEMPORARY}{secrets.token_hex(16)}"
    descriptor = os.open(temporary, _WRITE_FLAGS, 0o600, dir_fd=folder.descriptor)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, name, src_dir_fd=folder.descriptor, dst_dir_fd=folder.descriptor)
    except BaseException:
        _unlink(folder, temporary)
        raise


def _payload(data: bytes | None, key: str) -> bytes | None:
    if data is None:
        return None
    header, newline, payload = data.partition(b"\n")
    digest = hashlib.sha256(payload).hexdigest()
    expected = f"{_MAGIC} {key} {digest} {len(payload)}"
    return payload if newline and header == expected.encode() else None
