"""Plans as documents. A document holds a plan and its origin, from which a reader makes the plan again.

    {"lowdnn_plan": 2, "lowdnn": "0.2.0", "arch": "sm_90a", "sm_count": 132, "engine": "matmul_wgmma",
     "choices": {"TILE_M": 128, ...}, "graph": [operations], "plan": {...}}

``lowdnn`` is the version that wrote the document. Graph, device, engine and choices are read, each checked, and planned
anew; ``plan`` is compared with what came out, and nothing is ever made of it. So what is launched is always a plan made
here, and what is compiled the text that was generated here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from lowdnn import __version__
from lowdnn.arch.specs import ArchSpec, spec_from_outside
from lowdnn.codec import encode
from lowdnn.documents import check_name, place, read_document, read_fields, shown, write_document
from lowdnn.engines.base import Engine
from lowdnn.engines.engine_set import EngineSet
from lowdnn.enums import HeurMode, KnobType
from lowdnn.events import emit, event_logger
from lowdnn.graph.graph import OperationGraph, graph_from
from lowdnn.heuristics.ranking import Candidate, PlanSource, candidate_for, rank
from lowdnn.status import (
    ArchMismatchError,
    BadParamError,
    LowdnnError,
    NotSupportedError,
    SerializationVersionMismatchError,
)

#: Version of the JSON form. A reader refuses other versions.
SCHEMA_VERSION = 2

_HINT = "plan the graph again (pygraph.deserialize does it with rebuild=True)"

_FIELDS: Mapping[str, type] = {
    "lowdnn": str,
    "arch": str,
    "sm_count": int,
    "engine": str,
    "choices": dict,
    "graph": list,
    "plan": dict,
}


@dataclass(frozen=True)
class Reading:
    """How a stored plan is read.

    engines: the engines that may have made it.  arch: the device that it is for; None for the one that the document
    names.
    rebuild: take the plan made here where it is not the stored one; one by the heuristics where its engine, with these
    choices, does not take the graph on this device. It has no note that the stored one lacks.
    """

    engines: Sequence[Engine]
    arch: ArchSpec | None = None
    rebuild: bool = False


def write_plan(candidate: Candidate) -> str:
    """The document of a candidate's plan. Raises BadParamError for a graph whose names no document may hold."""
    return write_document("lowdnn_plan", SCHEMA_VERSION, _fields(candidate))


def read_plan(text: object, reading: Reading, where: str) -> Candidate:
    """The plan of a document that ``write_plan`` wrote, made anew.

    Raises SerializationVersionMismatchError for a document of another schema, or for a plan of another version of
    lowdnn that is not what this one makes; ArchMismatchError for one of another device; BadParamError for whatever else
    is not as it was written, naming the place and both values.
    """
    return _from(read_document(text, "lowdnn_plan", SCHEMA_VERSION, _FIELDS, where), reading, where)


def document(candidate: Candidate) -> dict[str, Any]:
    """As ``write_plan``, but the value itself, for a part of another document."""
    return {"lowdnn_plan": SCHEMA_VERSION, **_fields(candidate)}


def restored(document: Any, reading: Reading, where: str) -> Candidate:
    """As ``read_plan``, for a document inside another one."""
    return _from(read_fields(document, "lowdnn_plan", SCHEMA_VERSION, _FIELDS, where), reading, where)


def _fields(candidate: Candidate) -> dict[str, Any]:
    for tensor in candidate.graph.tensors.values():
        check_name(tensor.name, f"tensor uid {tensor.uid}.name")
    return {
        "lowdnn": __version__,
        "arch": candidate.arch.name,
        "sm_count": candidate.arch.sm_count,
        "engine": candidate.engine.name,
        "choices": {knob.name: value for knob, value in candidate.plan.choices},
        "graph": encode(candidate.graph.operations),
        "plan": encode(candidate.plan),
    }


@dataclass(frozen=True)
class _Origin:
    """The checked origin of a stored plan, and the plan itself, unchecked."""

    version: str
    arch: ArchSpec
    engine: str
    choices: Mapping[KnobType, int]
    graph: OperationGraph
    plan: Mapping[str, Any]
    where: str


def _from(fields: Mapping[str, Any], reading: Reading, where: str) -> Candidate:
    return replace(_restored(fields, reading, where), source=PlanSource.DOCUMENT)


def _restored(fields: Mapping[str, Any], reading: Reading, where: str) -> Candidate:
    origin = _origin(fields, where)
    try:
        return _made_again(origin, reading)
    except (ArchMismatchError, BadParamError, SerializationVersionMismatchError) as error:
        if not reading.rebuild:
            raise
        candidate = _rebuilt(origin, reading)
        names = {"stored": origin.engine, "plan": candidate.plan.name, "reason": str(error)}
        emit(event_logger("heuristics"), logging.WARNING, "plan_rebuilt", names)
        return candidate


def _origin(fields: Mapping[str, Any], where: str) -> _Origin:
    for name in ("lowdnn", "arch", "engine"):
        check_name(fields[name], f"{where}.{name}")
    try:
        arch = spec_from_outside(fields["arch"], fields["sm_count"], where)
        graph = graph_from(fields["graph"], f"{where}.graph")
    except NotSupportedError as error:
        raise BadParamError.at(
            where, expected="a known architecture, and operations that keep their rules", got=error
        ) from None
    choices = {_knob(name, f"{where}.choices"): value for name, value in fields["choices"].items()}
    for knob, value in choices.items():
        if type(value) is not int:
            raise BadParamError.at(f"{where}.choices.{knob.name}", expected="int", got=shown(value))
    return _Origin(fields["lowdnn"], arch, fields["engine"], choices, graph, fields["plan"], where)


def _knob(name: str, where: str) -> KnobType:
    if name not in KnobType.__members__:
        raise BadParamError.at(where, expected="names of knobs", got=shown(name))
    return KnobType[name]


def _made_again(origin: _Origin, reading: Reading) -> Candidate:
    """The stored plan, made here; raises for another device, and where no plan or another one comes out."""
    here = reading.arch or origin.arch
    if origin.arch.name != here.name or origin.arch.sm_count > here.sm_count:
        raise ArchMismatchError.at(
            f"{origin.where}.arch",
            expected=f"{here.name} with at most {here.sm_count} multiprocessors, as this device",
            got=f"{origin.arch.name} with {origin.arch.sm_count}",
            hint=_HINT,
        )
    candidate = _with_choices(origin, reading)
    made = encode(candidate.plan)
    if json.dumps(made) == json.dumps(origin.plan):
        return candidate
    found = _difference(made, origin.plan, f"{origin.where}.plan")
    if found is not None:
        field, expected, got = found
        error = BadParamError if origin.version == __version__ else SerializationVersionMismatchError
        raise error.at(
            field,
            expected=f"{expected}, as lowdnn {__version__} plans this graph with these choices",
            got=f"{got} in what lowdnn {shown(origin.version)} wrote",
            hint=_HINT,
        )
    return candidate


def _with_choices(origin: _Origin, reading: Reading) -> Candidate:
    engine = EngineSet.of(reading.engines).named(origin.engine)
    if engine is None:
        raise BadParamError.at(f"{origin.where}.engine", expected="an engine of this handle", got=shown(origin.engine))
    try:
        return candidate_for(engine, origin.graph, origin.arch, origin.choices)
    except LowdnnError as error:
        raise BadParamError.at(
            f"{origin.where}.engine", expected="an engine that takes graph and choices", got=error, hint=_HINT
        ) from None


def _rebuilt(origin: _Origin, reading: Reading) -> Candidate:
    """The first plan for this device all of whose notes the stored one has."""
    allowed = [*_listed(origin.plan, "numerical_notes"), *_listed(origin.plan, "behavior_notes")]
    for candidate in _anew(origin, reading):
        notes = (*candidate.plan.numerical_notes, *candidate.plan.behavior_notes)
        if all(encode(note) in allowed for note in notes):
            return candidate
    raise BadParamError.at(
        f"{origin.where}.graph", expected="a graph that an engine runs here, without further notes", got=origin.graph
    )


def _listed(plan: Mapping[str, Any], kind: str) -> list[Any]:
    notes = plan.get(kind)
    return notes if isinstance(notes, list) else []


def _anew(origin: _Origin, reading: Reading) -> Iterator[Candidate]:
    """Candidates in order: the stored choices, if the device is the same, then those of the heuristics."""
    here = reading.arch or origin.arch
    if (origin.arch.name, origin.arch.sm_count) == (here.name, here.sm_count):
        with suppress(BadParamError):
            yield _with_choices(origin, reading)
    for mode in (HeurMode.A, HeurMode.FALLBACK):
        yield from rank(origin.graph, here, mode, reading.engines).candidates


def _difference(expected: Any, found: Any, where: str) -> tuple[str, str, str] | None:
    """(place, expected value, found value) of the first difference between two JSON values."""
    if type(expected) is not type(found):
        return where, shown(expected), shown(found)
    if isinstance(expected, dict):
        return _difference_of_objects(expected, found, where)
    if isinstance(expected, list):
        if len(expected) != len(found):
            return where, f"{len(expected)} items", f"{len(found)} items"
        places = (_difference(a, b, place(where, i)) for i, (a, b) in enumerate(zip(expected, found, strict=True)))
        return next(filter(None, places), None)
    if expected == found:
        return None
    return (where, *_around(expected, found)) if isinstance(expected, str) else (where, shown(expected), shown(found))


def _difference_of_objects(expected: dict[str, Any], found: dict[str, Any], where: str) -> tuple[str, str, str] | None:
    for name in expected.keys() ^ found.keys() if expected.get("class") == found.get("class") else ():
        if name in expected:
            return place(where, name), shown(expected[name]), "none"
        return place(where, name), "no such field", shown(found[name])
    places = (_difference(item, found.get(name), place(where, name)) for name, item in expected.items())
    return next(filter(None, places), None)


def _around(expected: str, found: str) -> tuple[str, str]:
    """Excerpts of both texts around the first character that differs."""
    same = next(i for i, (a, b) in enumerate(zip_longest(expected, found)) if a != b)
    start = max(same - 20, 0) if same > 60 else 0
    return shown(expected[start:]), shown(found[start:])
