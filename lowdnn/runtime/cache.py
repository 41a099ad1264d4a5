"""Disk cache of compiled kernels: a directory of the user's own, one file per entry, bounded by its size.

An entry (``cache_files``) is written to a temporary file in the same folder, synced and renamed, so a reader sees all
of it or nothing, and of two writers the last wins with equal content. An entry whose header, key, length or digest is
wrong counts as missing, and so does a file that is not regular, not the user's or root's, or that others may write. A
read sets an entry's time; where the entries take up more than the bound, those read longest ago go first.

Payloads are PTX, machine code for one architecture, and what was learnt of a compiler's file (``compile``). Their keys
tell these apart, so devices and compilers of several machines may share a directory.

Which directories are used: see ``cache_directory``. (``cuda.core.utils.FileStreamProgramCache`` checks neither them nor
a payload, and importing ``cuda.core`` costs 0.25 s, so the store is written here.)
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lowdnn.config import Config
from lowdnn.events import emit, event_logger
from lowdnn.runtime.cache_directory import READ_ONLY_ERRORS, EntryFolder, can_be_made, opened
from lowdnn.runtime.cache_files import (
    ENTRY,
    FileGroup,
    by_use,
    evict,
    files_in,
    locked,
    payload_of,
    read,
    remove_group,
    remove_left_behind,
    sealed,
    takes_files,
    write,
)
from lowdnn.status import LowdnnWarning


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
                data = read(folder, key + ENTRY)
                payload = None if data is None else payload_of(data, key)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._refused(error)
            return None
        if payload is None:
            self._tell("cache_damaged", {"key": key})
        return payload

    def has(self, key: str) -> bool:
        """Whether there is an entry of ``key``, whose content ``get`` checks."""
        try:
            with opened(self.directory, makes=False) as folder:
                return os.access(key + ENTRY, os.R_OK, dir_fd=folder.descriptor, follow_symlinks=False)
        except OSError:
            return False

    def put(self, key: str, payload: bytes, companions: dict[str, str] | None = None) -> bool:
        """Stores ``payload``; each companion (file suffix, text) is written beside it, for people to read."""
        contents = {suffix: text.encode() for suffix, text in (companions or {}).items()}
        contents[ENTRY] = sealed(key, payload)
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

    def update(self, key: str, change: Callable[[bytes | None], bytes]) -> bool:
        """As ``put(key, change(get(key)))``, with no other ``update`` in between, whichever process makes it."""
        try:
            with opened(self.directory, makes=True) as folder, locked(folder):
                return self.put(key, change(self.get(key)))
        except OSError as error:
            self._refused(error)
            return False

    def discard(self, key: str) -> bool:
        """Removes the entry of ``key`` with its companions; False where there was none that could be removed."""
        try:
            with opened(self.directory, makes=False) as folder:
                return remove_group(folder, FileGroup(key, tuple(file for file in files_in(folder) if file.key == key)))
        except OSError:
            return False

    def facts(self) -> CacheFacts:
        """The state of the cache now. A directory that is missing is usable, and stays missing."""
        where = str(self.directory)
        try:
            with opened(self.directory, makes=False) as folder:
                files = list(files_in(folder))
                where, size_bytes = str(folder.path), sum(file.size_bytes for file in files)
                return CacheFacts(where, self.limit_bytes, len(files), size_bytes, takes_files(folder))
        except FileNotFoundError:
            return CacheFacts(where, self.limit_bytes, is_writable=can_be_made(self.directory))
        except OSError as error:
            return CacheFacts(where, self.limit_bytes, is_writable=False, refusal=str(error))

    def _write_all(self, folder: EntryFolder, key: str, contents: dict[str, bytes]) -> bool:
        try:
            for suffix, data in contents.items():
                write(folder, key + suffix, data)
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
        files = list(files_in(folder))
        remove_left_behind(folder, files)
        others = [group for group in by_use(files) if group.key != key]
        removed = evict(folder, others, self.limit_bytes - needed_bytes)
        kept_bytes = sum(group.size_bytes for group in others[len(removed) :])
        self._room_bytes, self._writes = (self.limit_bytes - needed_bytes - kept_bytes) // 2, _WRITES

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
