"""The records that a handle reads: the user's own, the site's and the package's, in this order.

The first of the three that has a record of a graph on a device under a workspace limit has the say. A file is read when
the first graph is planned. A record that cannot be used counts as missing: one of another device, of kernels that have
changed since, one that its engine does not take, or a damaged line. So does a file that must not be used. Each is told
once, as an event.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from threading import Lock

from lowdnn.arch.specs import ArchSpec
from lowdnn.config import Config
from lowdnn.enums import KnobType
from lowdnn.events import emit, event_logger
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.tuning.record_files import RecordFile
from lowdnn.heuristics.tuning.records import (
    RecordClock,
    RecordKey,
    RecordLines,
    TuningRecord,
    device_label,
    file_text,
    short_key,
)
from lowdnn.plan import Plan
from lowdnn.runtime.revisions import revision_of
from lowdnn.runtime.sources import SourceTree
from lowdnn.status import BadParamError, LowdnnError, SerializationVersionMismatchError

#: Knobs and their values, in a fixed order.
Choice = tuple[tuple[KnobType, int], ...]


@dataclass(frozen=True)
class Book:
    """Records of one origin: a directory, or ``package``.

    is_released: whether they came with the kernels that they were timed with, so that no revision is compared.
    """

    name: str
    lines: Callable[[], RecordLines]
    is_released: bool = False


@dataclass(frozen=True)
class Found:
    """A record and the book that it stands in."""

    record: TuningRecord
    book: Book


@dataclass
class _Read:
    """Records that were read so far, and the ``added`` ones of this process.

    lines: the records of books, by their names.  hints: choices and their counts by architecture and engine.
    A further record begins another object, since other threads may still fill the one before.
    """

    added: tuple[TuningRecord, ...] = ()
    lines: dict[str, RecordLines] = field(default_factory=dict)
    hints: Mapping[tuple[str, str], Mapping[Choice, int]] | None = None


@dataclass
class Records:
    """See the module's docstring. Threads may share it.

    takes_estimates: whether records of the cost model count, too, as they do on the emulated device.
    sources: where kernels are read from.  own: the file that ``add`` writes to.
    """

    books: Sequence[Book]
    takes_estimates: bool = False
    sources: SourceTree = field(default_factory=SourceTree)
    own: RecordFile | None = None
    _read: _Read = field(default_factory=_Read, init=False)
    _adding: Lock = field(default_factory=Lock, init=False, repr=False)
    _told: set[str] = field(default_factory=set, init=False)

    def of(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Found, ...]:
        """The records of ``graph`` on a device with these facts, one for each workspace limit, fastest first."""
        key, device, read = short_key(graph), device_label(arch), self._read
        found: dict[RecordKey, Found] = {}
        for book in self._all_books(read):
            for record in self._parsed(book, self._lines(book, read).by_graph.get(key, ())):
                if not self._counts(record, device, book):
                    continue
                known = found.get(record.key)
                if known is None or known.book.name == book.name:  # in one file the last line counts
                    found[record.key] = Found(record, book)
        return tuple(sorted(found.values(), key=lambda one: one.record.us))

    def hints(self, arch: ArchSpec, engine: str) -> Mapping[Choice, int]:
        """The choices of ``engine`` that were fastest on devices of this architecture, and for how many graphs."""
        read = self._read
        if read.hints is None:
            read.hints = self._all_hints(read)
        return read.hints.get((arch.name, engine), {})

    def holds(self, found: Found, plan: Plan) -> bool:
        """Whether the kernels of ``plan``, made by the record's choices, are those that were timed."""
        if found.book.is_released or found.record.revision == self.revision(plan):
            return True
        self._tell("record_outdated", {"graph": found.record.graph, "plan": plan.name, "book": found.book.name})
        return False

    def revision(self, plan: Plan) -> str:
        """By which a record names the kernels of ``plan``."""
        return revision_of(plan.kernels, self.sources)

    def refuse(self, found: Found, error: LowdnnError) -> None:
        """Tells of a record whose engine does not take its graph or its choices."""
        self._tell("record_refused", {"graph": found.record.graph, "book": found.book.name, "reason": error})

    def add(self, records: Iterable[TuningRecord]) -> None:
        """Uses records from now on, before all others, and keeps them in the user's own file.

        Raises OSError, also where there is no such file, and BadParamError where they cannot be kept.
        """
        added = list(records)
        with self._adding:
            self._read = _Read((*self._read.added, *added))
        if self.own is None:
            raise OSError("no directory for tuning records is known: set LOWDNN_TUNING_PATH")
        self.own.merge(added)
        with self._adding:  # another thread may have read the file before
            self._read = _Read(self._read.added)

    def keep(self, records: Iterable[TuningRecord]) -> None:
        """As ``add``; that they cannot be kept is told once, as an event."""
        try:
            self.add(records)
        except (OSError, BadParamError) as error:
            self._tell("records_not_kept", {"reason": error})

    def _all_hints(self, read: _Read) -> Mapping[tuple[str, str], Mapping[Choice, int]]:
        records: dict[RecordKey, TuningRecord] = {}
        for book in reversed(self._all_books(read)):
            for lines in self._lines(book, read).by_graph.values():
                records |= {record.key: record for record in self._parsed(book, lines)}
        found: dict[tuple[str, str], Counter[Choice]] = {}
        for record in records.values():
            found.setdefault((record.architecture, record.engine), Counter())[tuple(record.choices.items())] += 1
        return found

    def _all_books(self, read: _Read) -> tuple[Book, ...]:
        """The books, that of this process first."""
        return (Book("process", lambda: RecordLines.of(file_text(read.added))), *self.books)

    def _counts(self, record: TuningRecord, device: str, book: Book) -> bool:
        """Whether the record is one of times of this device."""
        if record.device != device:
            fields = {"book": book.name, "device": device, "other": record.device}
            self._tell("records_of_other_device", fields, logging.INFO)
        return record.device == device and (self.takes_estimates or record.clock is RecordClock.EVENTS)

    def _lines(self, book: Book, read: _Read) -> RecordLines:
        known = read.lines.get(book.name)
        if known is not None:
            return known
        try:
            lines = book.lines()
        except (OSError, LowdnnError) as error:
            self._tell("records_refused", {"book": book.name, "reason": error})
            lines = RecordLines({})
        if lines.strange:
            self._tell("records_damaged", {"book": book.name, "lines": lines.strange})
        if lines.other_versions:
            self._tell("records_of_other_version", {"book": book.name, "lines": lines.other_versions})
        read.lines[book.name] = lines
        return lines

    def _parsed(self, book: Book, lines: Iterable[str]) -> Iterable[TuningRecord]:
        for line in lines:
            try:
                yield TuningRecord.of(line)
            except (BadParamError, SerializationVersionMismatchError) as error:
                self._tell("record_damaged", {"book": book.name, "reason": error})

    def _tell(self, event: str, fields: Mapping[str, object], level: int = logging.WARNING) -> None:
        """Logs an event of this kind and content once."""
        text = f"{event} {fields}"
        if text not in self._told:
            self._told.add(text)
            emit(event_logger("tuning"), level, event, fields)


def records_of(config: Config, sources: SourceTree, *, takes_estimates: bool) -> Records:
    """The records of the directories that a configuration names, and behind them the package's."""
    own = [RecordFile.in_directory(directory) for directory in config.tuning_path]
    return Records((*map(_book_of, own), _PACKAGE), takes_estimates, sources, next(iter(own), None))


@cache
def released_records() -> Records:
    """The package's alone, for whoever plans without a handle."""
    return Records((_PACKAGE,))


@cache
def released_lines() -> RecordLines:
    """The lines of the package's records."""
    path = files("lowdnn") / "heuristics" / "records.jsonl"
    return RecordLines.of(path.read_text(encoding="utf-8"))


_PACKAGE = Book("package", released_lines, is_released=True)


def _book_of(file: RecordFile) -> Book:
    return Book(str(file.path.parent), lambda: RecordLines.of(file.text()))
