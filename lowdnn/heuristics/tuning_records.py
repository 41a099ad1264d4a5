"""Tuning records: what ran fastest for a graph where many plans were timed on a device.

``records/<architecture>.txt`` has a line for each graph for which something else than the cost model's first choice was
faster:

    <key> | <case> | <engine> <KNOB>=<value> ... | <microseconds>

key: ``short_key`` of the graph.  case: the graph in words (``cases/``), for readers and for whoever makes the records
anew (``tools/tune.py --record``).  A record holds for the very graph, all of its extents included, on a device with the
same facts as the one that was measured.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files

from lowdnn.arch.specs import ArchSpec, spec_named
from lowdnn.documents import shown
from lowdnn.engines.base import Choices
from lowdnn.enums import KnobType
from lowdnn.graph.graph import OperationGraph
from lowdnn.status import BadParamError

_KEY_DIGITS = 16
_FORM = "<case> | <engine> <KNOB>=<integer> ... | <microseconds>"
_LINE = re.compile(
    r"(?P<case>[^|]+) \| (?P<engine>[a-z0-9_]+)(?P<knobs>( [A-Z0-9_]+=-?[0-9]{1,18})*) ?"
    r"\| (?P<us>[0-9]{1,12}(\.[0-9]{1,6})?)"
)
_HEADER = "# Tuning records of plans timed on a device with these facts; made by tools/tune.py --record."


@dataclass(frozen=True)
class TuningRecord:
    """The engine and all of its knobs with which ``case`` took ``us`` microseconds."""

    case: str
    engine: str
    choices: Choices
    us: float

    @classmethod
    def of(cls, text: str) -> TuningRecord:
        """The record of a line without its key; raises BadParamError for a line of another form."""
        found = _LINE.fullmatch(text)
        named = [knob.split("=") for knob in found["knobs"].split()] if found else []
        if found is None or any(name not in KnobType.__members__ for name, _ in named):
            raise BadParamError.at("tuning record", expected=_FORM, got=shown(text))
        choices = {KnobType[name]: int(value) for name, value in named}
        return cls(found["case"], found["engine"], choices, float(found["us"]))

    @property
    def text(self) -> str:
        """A line without its key."""
        knobs = " ".join(f"{knob.name}={value}" for knob, value in self.choices.items())
        return f"{self.case} | {self.engine} {knobs} | {self.us:.2f}"


def record_of(graph: OperationGraph, arch: ArchSpec) -> TuningRecord | None:
    """The fastest choice for ``graph`` where it was measured; None where it was not, or not on such a device."""
    text = _measured_on(arch).get(short_key(graph))
    return TuningRecord.of(text) if text else None


def shipped_records(arch_name: str) -> Mapping[str, TuningRecord]:
    """All of an architecture, by key."""
    return {key: TuningRecord.of(text) for key, text in _shipped(arch_name).items()}


def records_in(text: str) -> dict[str, TuningRecord]:
    """The records of a file, by key."""
    return {key: TuningRecord.of(line) for key, line in _texts(text).items()}


def file_text(records: Mapping[str, TuningRecord]) -> str:
    """The file of these records, in the order of their cases."""
    ordered = sorted(records.items(), key=lambda item: item[1].case)
    return "\n".join([_HEADER, *(f"{key} | {record.text}" for key, record in ordered), ""])


def short_key(graph: OperationGraph) -> str:
    """By which a file names a graph."""
    return graph.key[:_KEY_DIGITS]


@lru_cache(maxsize=64)
def _measured_on(arch: ArchSpec) -> Mapping[str, str]:
    """The records that are shipped for a device with all of these facts."""
    return _shipped(arch.name) if arch == spec_named(arch.name) else {}


@cache
def _shipped(arch_name: str) -> Mapping[str, str]:
    path = files("lowdnn") / "heuristics" / "records" / f"{arch_name}.txt"
    return _texts(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _texts(text: str) -> dict[str, str]:
    """The lines by their keys; a line is taken apart when somebody asks for it."""
    parts = [line.partition(" | ") for line in text.splitlines() if not line.startswith("#")]
    return {key: line for key, _, line in parts}
