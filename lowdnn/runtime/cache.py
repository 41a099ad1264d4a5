"""Disk cache of compiled kernels: a directory of the user's own, one file per entry.

An entry is a header line ``lowdnn-cache 1 <key> <sha256 of the payload> <length>`` and the payload. It is written to a
temporary file in the same directory, synced and renamed, so a reader sees all of it or nothing, and of two writers the
last wins with equal content. An entry whose header, key, length or digest is wrong counts as missing.

The directory is made with mode 0700. One that is a symlink, belongs to another user, or may be written by others is
refused: whoever can write there chooses the code that runs. (``cuda.core.utils.FileStreamProgramCache`` does neither
this nor a payload digest, and importing ``cuda.core`` costs 0.25 s, so the store is written here.)
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from lowdnn.events import emit, event_logger

_MAGIC = "lowdnn-cache 1"
_LAYOUT = "v1"


class DiskCache:
    """Entries by key (a hex digest). Every failure of the file system is a miss or a write that did not happen."""

    def __init__(self, directory: Path) -> None:
        self._logger = event_logger("cache")
        self.directory = directory / _LAYOUT
        self.refusal = _prepare(directory) or _prepare(self.directory)
        if self.refusal:
            emit(self._logger, logging.WARNING, "cache_refused", {"directory": directory, "reason": self.refusal})

    def get(self, key: str) -> bytes | None:
        """The payload of ``key``; None where there is none, or it is damaged."""
        if self.refusal:
            return None
        try:
            data = _read_own_file(self._path(key))
        except OSError:
            return None
        payload = None if data is None else _payload(data, key)
        if payload is None:
            emit(self._logger, logging.WARNING, "cache_damaged", {"key": key})
        return payload

    def put(self, key: str, payload: bytes, companions: dict[str, str] | None = None) -> bool:
        """Stores ``payload``; each companion (file suffix, text) is written beside it, for people to read."""
        if self.refusal:
            return False
        header = f"{_MAGIC} {key} {hashlib.sha256(payload).hexdigest()} {len(payload)}\n"
        try:
            self._write(self._path(key), header.encode() + payload)
            for suffix, text in (companions or {}).items():
                self._write(self._path(key).with_suffix(suffix), text.encode())
        except OSError as error:
            emit(self._logger, logging.WARNING, "cache_write_failed", {"key": key, "reason": error})
            return False
        return True

    def size_bytes(self) -> int:
        """What the entries and their companions take up on disk."""
        return 0 if self.refusal else sum(path.stat().st_size for path in self.directory.iterdir() if path.is_file())

    def clear(self) -> None:
        """Removes every entry."""
        if not self.refusal:
            for path in self.directory.iterdir():
                path.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self.directory / f"{key}.bin"

    def _write(self, path: Path, data: bytes) -> None:
        descriptor, temporary = tempfile.mkstemp(dir=self.directory, prefix=".new-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise


def _prepare(directory: Path) -> str:
    """Makes the directory where it is missing; why it must not be used, or an empty string."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.lstat()
    except OSError as error:
        return str(error)
    if not stat.S_ISDIR(status.st_mode):
        return "not a directory (symlinks are refused)"
    if status.st_uid != os.getuid():
        return f"owned by user {status.st_uid}, not {os.getuid()}"
    if status.st_mode & 0o022:
        return f"mode {stat.S_IMODE(status.st_mode):04o} lets others write"
    return "" if os.access(directory, os.W_OK | os.X_OK) else "not writable"


def _read_own_file(path: Path) -> bytes | None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
            return None
        return file.read()


def _payload(data: bytes, key: str) -> bytes | None:
    header, newline, payload = data.partition(b"\n")
    digest = hashlib.sha256(payload).hexdigest()
    expected = f"{_MAGIC} {key} {digest} {len(payload)}"
    return payload if newline and header == expected.encode() else None
