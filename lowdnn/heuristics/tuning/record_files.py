"""Files of tuning records: lines that are read whole, and written whole under a lock.

A writer holds the lock of the folder, reads the file, merges its records into it and puts a new file in its place. So
two processes that write at once lose nothing, and a reader sees all of a file or nothing. Records of other versions of
lowdnn stay as they are. The file must be the user's
or root's, and nobody else's to write. So must the folder of a directory of records, to which the rules of the disk
cache apply (``runtime.cache_directory``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from lowdnn.heuristics.tuning.records import (
    RecordKey,
    TuningRecord,
    file_text,
    lines_of_other_versions,
    records_in,
)
from lowdnn.runtime.cache_directory import EntryFolder, opened
from lowdnn.runtime.cache_files import read, try_file, write
from lowdnn.runtime.shared_files import folder_of, locked
from lowdnn.status import BadParamError

#: The name of the file in a directory of records.
FILE_NAME = "records.jsonl"
#: Records of a file: some ten megabytes. The oldest go first.
MOST_RECORDS = 20_000
#: A larger file is not read.
_MOST_BYTES = 64 << 20

#: Opens the folder of a file; True where it is to be made.
_Opener = Callable[[bool], AbstractContextManager[EntryFolder]]


class RecordFile:
    """A file of records by its path. Every call raises OSError where folder or file must not be used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._name = path.name
        self._opened: _Opener = partial(folder_of, path)

    @classmethod
    def in_directory(cls, directory: Path) -> RecordFile:
        """The file of a directory of records: of the user's own, or of a site."""
        file = cls(directory / FILE_NAME)
        file._opened = lambda makes: opened(directory, makes=makes)
        return file

    def text(self) -> str:
        """The file's text; empty where there is no file. Raises BadParamError for one that must not be read."""
        try:
            with self._opened(False) as folder:
                return self._text(folder)
        except FileNotFoundError:
            return ""

    def records(self) -> tuple[dict[RecordKey, TuningRecord], dict[int, str]]:
        """The records by their keys, and by its number what is wrong with each other line."""
        return records_in(self.text())

    def merge(self, records: Iterable[TuningRecord]) -> None:
        """Adds the records; each takes the place of one with its key. Damaged lines are dropped."""
        added = {record.key: record for record in records}
        self.change(lambda kept: {**_without(kept, added), **added})

    def change(self, change: Callable[[dict[RecordKey, TuningRecord]], dict[RecordKey, TuningRecord]]) -> None:
        """Replaces the records by what ``change`` makes of them, oldest first, at most ``MOST_RECORDS``."""
        with self._locked() as folder:
            text = self._text(folder)
            kept, _ = records_in(text)
            newest = list(change(kept).values())[-MOST_RECORDS:]
            others = lines_of_other_versions(text)[-MOST_RECORDS:]
            write(folder, self._name, "".join([*(f"{line}\n" for line in others), file_text(newest)]).encode())

    def check(self) -> None:
        """Makes the folder, and raises where records cannot be written."""
        with self._locked() as folder:
            try_file(folder)

    @contextmanager
    def _locked(self) -> Iterator[EntryFolder]:
        with self._opened(True) as folder:
            self._text(folder)  # no lock is put beside a file that must not be written
            with locked(folder, self._name):
                yield folder

    def _text(self, folder: EntryFolder) -> str:
        try:
            data = read(folder, self._name, is_use=False)
        except FileNotFoundError:
            return ""
        if data is None or len(data) > _MOST_BYTES:
            rule = f"a regular file of the user or root, at most {_MOST_BYTES} bytes, that nobody else may write"
            raise BadParamError.at("tuning records", expected=rule, got=str(self.path))
        return data.decode("utf-8", errors="replace")


def _without(kept: dict[RecordKey, TuningRecord], keys: Iterable[RecordKey]) -> dict[RecordKey, TuningRecord]:
    """``kept`` without the records of ``keys``. A record that is added again then stands last, as the newest."""
    dropped = set(keys)
    return {key: record for key, record in kept.items() if key not in dropped}
