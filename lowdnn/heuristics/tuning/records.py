"""Tuning records: what ran fastest for a graph on a device, as a line of JSON.

    {"lowdnn_record": 1, "graph": "8988e0677a322f90", "device": "NVIDIA H200, sm_90a, 132", "workspace_limit": -1,
     "engine": "conv_fprop_wgmma", "choices": {"TILE_M": 192, ...}, "us": 25.1, "warm_us": 22.0, "first_us": 27.3,
     "clock": "events", "revision": "5f1d...", "driver": "13.0", "lowdnn": "0.1.0", "case": "conv n=64 c=256 ..."}

A record is found by graph, device and workspace limit. It holds for the very graph, all of its extents included, on a
device of this name with as many multiprocessors, as long as the kernels of its plan are those that were timed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from lowdnn.arch.specs import ArchSpec
from lowdnn.documents import check_name, read_document, shown, write_document
from lowdnn.engines.base import Choices
from lowdnn.enums import KnobType
from lowdnn.graph.graph import OperationGraph
from lowdnn.status import BadParamError, SerializationVersionMismatchError

#: Version of the JSON form; a reader takes no other.
VERSION = 1
#: The workspace limit of a record whose candidates were free to take any.
NO_LIMIT = -1
#: Hexadecimal digits of a graph's key that name it in a file.
_KEY_DIGITS = 16
#: The most characters of a line; a record has some hundreds.
_MOST_CHARACTERS = 8192
_MOST_KNOBS = 64
#: The most characters of a record's case.
MOST_CASE = 4096
#: The field of every record that has the version of its form.
VERSION_FIELD = "lowdnn_record"
_PREFIX = f'{{"{VERSION_FIELD}":{VERSION},"graph":"'
#: The begin of a record's line of any version.
_VERSION = re.compile(rf'\{{\s*"{VERSION_FIELD}"\s*:\s*(\d{{1,9}})\b')
_FIELDS: Mapping[str, type] = {
    "graph": str,
    "device": str,
    "workspace_limit": int,
    "engine": str,
    "choices": dict,
    "us": float,
    "warm_us": float,
    "first_us": float,
    "clock": str,
    "revision": str,
    "driver": str,
    "lowdnn": str,
    "case": str,
}


class RecordClock(Enum):
    """The origin of a record's times: events of the device, or the cost model."""

    EVENTS = "events"
    MODEL = "model"


#: (graph, device, workspace limit).
RecordKey = tuple[str, str, int]


@dataclass(frozen=True)
class TuningRecord:
    """The engine and all of its knobs with which a graph took ``us`` microseconds.

    graph: ``short_key``.  device: ``device_label``.  workspace_limit: the most bytes that a candidate might need, or
    ``NO_LIMIT``.  us, warm_us: with operands in device memory, and with those that fit the L2 cache there.  first_us:
    ``us`` of the cost model's first choice.  Times that are not known are 0.
    revision: the version of the plan's kernels (``runtime.revisions``).  driver, lowdnn: versions with which it was
    timed.  case: the graph in words, for readers.
    """

    graph: str
    device: str
    workspace_limit: int
    engine: str
    choices: Choices
    us: float
    warm_us: float = 0.0
    first_us: float = 0.0
    clock: RecordClock = RecordClock.EVENTS
    revision: str = ""
    driver: str = ""
    lowdnn: str = ""
    case: str = ""

    @classmethod
    def of(cls, line: str) -> TuningRecord:
        """The record of a line.

        Raises SerializationVersionMismatchError for one of another version, BadParamError for a line of another form.
        """
        where = "tuning record"
        if len(line) > _MOST_CHARACTERS:
            raise BadParamError.at(where, expected=f"at most {_MOST_CHARACTERS} characters", got=len(line))
        fields = read_document(line, VERSION_FIELD, VERSION, _FIELDS, where)
        for name in ("graph", "device", "engine", "revision", "driver", "lowdnn"):
            check_name(fields[name], f"{where}.{name}")
        if len(fields["case"]) > MOST_CASE or not fields["case"].isprintable():
            rule = f"at most {MOST_CASE} characters without control characters"
            raise BadParamError.at(f"{where}.case", expected=rule, got=shown(fields["case"]))
        for name in ("us", "warm_us", "first_us"):
            if not 0.0 <= fields[name] < math.inf:
                raise BadParamError.at(f"{where}.{name}", expected="microseconds", got=shown(fields[name]))
        fields["choices"] = _choices(fields["choices"], f"{where}.choices")
        fields["clock"] = _clock(fields["clock"], f"{where}.clock")
        return cls(**fields)

    @property
    def key(self) -> RecordKey:
        return self.graph, self.device, self.workspace_limit

    @property
    def architecture(self) -> str:
        """The architecture in the device's label; empty where that has another form."""
        return next(iter(self.device.split(", ")[1:]), "")

    @property
    def text(self) -> str:
        """The record's line."""
        choices = {knob.name: value for knob, value in self.choices.items()}
        fields = {name: getattr(self, name) for name in _FIELDS} | {"choices": choices, "clock": self.clock.value}
        for name in ("us", "warm_us", "first_us"):
            fields[name] = round(float(fields[name]), 3)
        return write_document(VERSION_FIELD, VERSION, fields)

    @property
    def choice_text(self) -> str:
        """Engine and knobs, as people read them."""
        return " ".join([self.engine, *(f"{knob.name}={value}" for knob, value in self.choices.items())])


@dataclass(frozen=True)
class RecordLines:
    """The lines of records by the graphs that they are for, taken apart when somebody asks for one.

    other_versions: how many lines are records of other versions.  strange: how many are of another form.
    """

    by_graph: Mapping[str, tuple[str, ...]]
    strange: int = 0
    other_versions: int = 0

    @classmethod
    def of(cls, text: str) -> RecordLines:
        found: dict[str, list[str]] = {}
        strange = other_versions = 0
        begin = len(_PREFIX)
        for line in text.splitlines():
            if line.startswith(_PREFIX):
                found.setdefault(line[begin : begin + _KEY_DIGITS], []).append(line)
            elif _is_of_other_version(line):
                other_versions += 1
            elif line.strip():
                strange += 1
        return cls({graph: tuple(lines) for graph, lines in found.items()}, strange, other_versions)


def records_in(text: str) -> tuple[dict[RecordKey, TuningRecord], dict[int, str]]:
    """The records of a file's text by their keys, the last of each key; and by its number what is wrong with each
    other line."""
    found: dict[RecordKey, TuningRecord] = {}
    wrong: dict[int, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = TuningRecord.of(line)
        except (BadParamError, SerializationVersionMismatchError) as error:
            wrong[number] = str(error)
            continue
        found.pop(record.key, None)
        found[record.key] = record
    return found, wrong


def lines_of_other_versions(text: str) -> list[str]:
    """The lines that another version of lowdnn reads: writers of a file keep them as they are."""
    return [line for line in text.splitlines() if _is_of_other_version(line)]


def file_text(records: Iterable[TuningRecord]) -> str:
    """The text of a file of these records."""
    return "".join(f"{record.text}\n" for record in records)


def short_key(graph: OperationGraph) -> str:
    """By which a record names a graph."""
    return graph.key[:_KEY_DIGITS]


def device_label(arch: ArchSpec) -> str:
    """By which a record names a device: its product, architecture and number of multiprocessors."""
    return f"{arch.board.product}, {arch.name}, {arch.sm_count}"


def _is_of_other_version(line: str) -> bool:
    found = _VERSION.match(line)
    return found is not None and int(found[1]) != VERSION


def _choices(given: Mapping[str, Any], where: str) -> Choices:
    if len(given) > _MOST_KNOBS:
        raise BadParamError.at(where, expected=f"at most {_MOST_KNOBS} knobs", got=len(given))
    for name, value in given.items():
        if name not in KnobType.__members__ or type(value) is not int:
            raise BadParamError.at(where, expected="integers by names of knobs", got=f"{shown(name)}: {shown(value)}")
    return {KnobType[name]: value for name, value in given.items()}


def _clock(given: str, where: str) -> RecordClock:
    known = [clock.value for clock in RecordClock]
    if given not in known:
        raise BadParamError.at(where, expected=f"one of {', '.join(known)}", got=shown(given))
    return RecordClock(given)
