"""Looking after the disk cache from outside: what its entries are, which are damaged, and fewer of them.

Other processes may read and write the cache meanwhile. A file that is gone when its turn comes counts as not there, and
nothing here sets the time of an entry's last use.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from lowdnn.runtime.cache_directory import EntryFolder, opened
from lowdnn.runtime.cache_files import (
    ENTRY,
    CacheFile,
    FileGroup,
    by_use,
    distrust,
    evict,
    files_in,
    payload_of,
    read,
    remove,
    remove_group,
    remove_left_behind,
)
from lowdnn.status import BadParamError

_NAME = re.compile(r"[0-9a-f]{64}\.[a-z]+")
#: Machine code: an ELF file whose flags have the compute capability in their second byte.
_ELF = b"\x7fELF"
_CAPABILITY_BYTE = 49
_SECTION = re.compile(rb"\0\.text\.([A-Za-z0-9_]+)\0")
_TARGET = re.compile(rb"^\.target[ \t]+(\w+)", re.MULTILINE)
_KERNEL = re.compile(rb"\.entry[ \t]+(\w+)")


@dataclass(frozen=True)
class CachedEntry:
    """An entry. kind: ``machine code``, ``PTX``, or ``other``, which has neither target nor kernel.

    size_bytes: the bytes of all its files.  used_s: when it was written or read last, in seconds of the epoch.
    """

    key: str
    kind: str
    target: str
    kernel: str
    size_bytes: int
    used_s: float


@dataclass(frozen=True)
class Removed:
    """Files that were removed."""

    files: int
    size_bytes: int


@dataclass(frozen=True)
class Damage:
    """A file that is no sound entry, and why.  is_removed: whether it was removed."""

    name: str
    problem: str
    is_removed: bool = False


@dataclass(frozen=True)
class Verdict:
    """The sound entries of a cache, as a number, and what else lies there."""

    sound: int
    damaged: tuple[Damage, ...]


def cached_entries(directory: Path) -> list[CachedEntry]:
    """The sound entries, those used last first. Raises BadParamError for a directory that must not be used."""
    with _folder(directory) as folder:
        groups = [] if folder is None else reversed(by_use(files_in(folder)))
        found = ((group, _payload(folder, group.key)) for group in groups if folder is not None)
        return [_described(group, payload) for group, payload in found if payload is not None]


def trim(directory: Path, most_bytes: int | None = None, unused_s: float | None = None) -> Removed:
    """Removes entries, those used longest ago first.

    most_bytes: until the others take up at most this.  unused_s: an entry not used for this many seconds goes.
    Unfinished files of processes that have died go, too.
    """
    with _folder(directory) as folder:
        if folder is None:
            return Removed(0, 0)
        files = list(files_in(folder))
        gone = remove_left_behind(folder, files)
        groups, removed = by_use(files), []
        if unused_s is not None:
            removed = [group for group in groups if group.used_s < time.time() - unused_s]
            for group in removed:
                remove_group(folder, group)
        if most_bytes is not None:
            removed += evict(folder, groups[len(removed) :], most_bytes)
        return _removed([*gone, *(file for group in removed for file in group.files)])


def clear(directory: Path) -> Removed:
    """Removes every file of this user, and the folder of entries where nothing else is in it."""
    with _folder(directory) as folder:
        if folder is None:
            return Removed(0, 0)
        removed = _removed([file for file in files_in(folder) if remove(folder, file.name)])
        with suppress(OSError):
            folder.path.rmdir()
        return removed


def verify(directory: Path, *, repairs: bool = False) -> Verdict:
    """Reads every entry. ``repairs``: what is damaged is removed, and so is what processes that have died were writing.

    A companion of an entry counts as damaged where the entry is not there: it would stay for ever.
    """
    with _folder(directory) as folder:
        if folder is None:
            return Verdict(0, ())
        names = sorted(os.listdir(folder.descriptor))
        found = [damage for name in names if (damage := _damage(folder, name))]
        if repairs:
            found = [_repaired(folder, damage) for damage in found]
        broken = {damage.name for damage in found}
        return Verdict(sum(name.endswith(ENTRY) and name not in broken for name in names), tuple(found))


@contextmanager
def _folder(directory: Path) -> Iterator[EntryFolder | None]:
    """The folder of entries; None where there is none."""
    try:
        with opened(directory, makes=False) as folder:
            yield folder
    except FileNotFoundError:
        yield None
    except OSError as error:
        raise BadParamError.at(
            "cache.directory",
            expected="a directory that this user may read and no one else may write",
            got=f"{directory}: {error.strerror or error}",
            hint="set LOWDNN_CACHE_DIR",
        ) from None


def _removed(files: Sequence[CacheFile]) -> Removed:
    return Removed(len(files), sum(file.size_bytes for file in files))


def _payload(folder: EntryFolder, key: str) -> bytes | None:
    try:
        data = read(folder, key + ENTRY, is_use=False)
    except OSError:
        return None
    return None if data is None else payload_of(data, key)


def _described(group: FileGroup, payload: bytes) -> CachedEntry:
    kind, target, kernel = "other", "", ""
    if payload.startswith(_ELF) and len(payload) > _CAPABILITY_BYTE:
        kind, target, kernel = "machine code", f"sm_{payload[_CAPABILITY_BYTE]}", _found(_SECTION, payload)
    elif target := _found(_TARGET, payload):
        kind, kernel = "PTX", _found(_KERNEL, payload)
    return CachedEntry(group.key, kind, target, kernel, group.size_bytes, group.used_s)


def _found(pattern: re.Pattern[bytes], payload: bytes) -> str:
    match = pattern.search(payload)
    return match[1].decode(errors="replace") if match else ""


def _damage(folder: EntryFolder, name: str) -> Damage | None:
    """Why a file is no part of a sound entry; None for one that is, and for one that is gone."""
    try:
        status = os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False)
        file = CacheFile(name, status.st_size, status.st_mtime)
        if file.is_temporary:
            return Damage(name, "left behind by a process that has died") if file.is_left_behind else None
        if not _NAME.fullmatch(name):
            return Damage(name, "not the name of an entry")
        if problem := distrust(status):
            return Damage(name, problem)
        if not name.endswith(ENTRY):
            is_alone = file.is_old and not _exists(folder, file.key + ENTRY) and _exists(folder, name)
            return Damage(name, "its entry is not there") if is_alone else None
        data = read(folder, name, is_use=False)
    except OSError:
        return None
    if data is None or payload_of(data, file.key) is None:
        return Damage(name, "header, length or digest is not that of its content")
    return None


def _exists(folder: EntryFolder, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _repaired(folder: EntryFolder, damage: Damage) -> Damage:
    """The damage, removed; not where a process has put a sound file in its place meanwhile."""
    again = _damage(folder, damage.name)
    return replace(damage, is_removed=again is None or remove(folder, damage.name))
