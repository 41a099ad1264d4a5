"""``lowdnn tune`` on files of records: ``--merge``, ``--prune``, ``--diff``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path

from lowdnn.arch.specs import ArchSpec, spec_from_outside
from lowdnn.cases import parse_case
from lowdnn.engines.registry import ENGINES
from lowdnn.heuristics.tuning.record_files import RecordFile
from lowdnn.heuristics.tuning.records import (
    VERSION_FIELD,
    RecordKey,
    TuningRecord,
    lines_of_other_versions,
    records_in,
)
from lowdnn.runtime.revisions import revision_of
from lowdnn.runtime.sources import SourceTree
from lowdnn.status import BadParamError, LowdnnError

Records = dict[RecordKey, TuningRecord]

#: Lines of a file that are told to be wrong.
_SHOWN = 10


def merge(names: list[str]) -> int:
    """Puts the records of the other files into the first one; of two of a key that of the later file counts.

    1 where the others have no record, otherwise 0. Raises BadParamError for one file alone.
    """
    target, *others = names
    if not others:
        raise BadParamError.at("tune.merge", expected="a file and those to put into it", got=target)
    if Path(target).exists():
        _tell_wrong(target, _read(target)[1])
    records: Records = {}
    for name in others:
        found, wrong = _read(name)
        records |= found
        _tell_wrong(name, wrong)
    _change("merge", target, lambda kept: {key: one for key, one in kept.items() if key not in records} | records)
    print(f"{len(records)} records into {target}")
    return 0 if records else 1


def prune(name: str, least_gain: float) -> int:
    """Drops damaged lines, records of kernels that have changed since, and those with less than ``least_gain``.

    A record without a case, from which its graph would follow, stays, and so does one of another version of lowdnn.
    """
    if not 0.0 <= least_gain < math.inf:
        raise BadParamError.at("tune.least_gain", expected="a number from 0", got=least_gain)
    records, wrong = _read(name)
    _tell_wrong(name, wrong)
    sources = SourceTree()
    reasons = {key: reason for key, one in records.items() if (reason := _reason_against(one, least_gain, sources))}
    for key, reason in reasons.items():
        print(f"dropped {records[key].case or key[0]}: {reason}")
    _change("prune", name, lambda kept: {key: one for key, one in kept.items() if key not in reasons})
    others = len(lines_of_other_versions(RecordFile(Path(name)).text()))
    print(
        f"{len(records) - len(reasons)} records stay in {name}, and {others} of other versions; "
        f"{len(reasons)} dropped, and {len(wrong) - others} other lines"
    )
    return 0


def diff(old: str, new: str) -> int:
    """Prints the choices that differ between two files, those that gained most first."""
    (before, wrong), (after, wrong_too) = _read(old), _read(new)
    _tell_wrong(old, wrong)
    _tell_wrong(new, wrong_too)
    both = [(before[key], after[key]) for key in before if key in after]
    changed = [pair for pair in both if (pair[0].engine, pair[0].choices) != (pair[1].engine, pair[1].choices)]
    for was, now in sorted(changed, key=lambda pair: _ratio(*pair), reverse=True):
        print(f"{_ratio(was, now):7.3f}x  {was.us:.2f} us -> {now.us:.2f} us  {now.device}  {now.case or now.graph}")
        print(f"          - {was.choice_text}\n          + {now.choice_text}")
    print(
        f"{len(changed)} of {len(both)} choices changed; {_missing(before, after)} only in {old}, "
        f"{_missing(after, before)} only in {new}"
    )
    return 0


def _change(option: str, name: str, change: Callable[[Records], Records]) -> None:
    try:
        RecordFile(Path(name)).change(change)
    except OSError as error:
        where = f"tune.{option}"
        raise BadParamError.at(where, expected="a file that can be written", got=f"{name}: {error}") from None


def _read(name: str) -> tuple[Records, dict[int, str]]:
    """The records of a file, which has to be there, and what is wrong with its other lines.

    A file of another kind is refused, so that nothing replaces it.
    """
    path = Path(name)
    try:
        path.stat()
        text = RecordFile(path).text()
    except OSError as error:
        raise BadParamError.at("tune.records", expected="a file of records", got=f"{name}: {error}") from None
    if text.strip() and VERSION_FIELD not in text:
        raise BadParamError.at("tune.records", expected="a file of tuning records", got=name)
    return records_in(text)


def _tell_wrong(name: str, wrong: Mapping[int, str]) -> None:
    for number, problem in islice(wrong.items(), _SHOWN):
        print(f"{name}:{number}: {problem}")
    if len(wrong) > _SHOWN:
        print(f"{name}: and {len(wrong) - _SHOWN} more such lines")


def _reason_against(record: TuningRecord, least_gain: float, sources: SourceTree) -> str:
    """Why a record does not stay; empty for one that does."""
    if record.first_us and record.us and record.first_us / record.us < least_gain:
        return f"{record.first_us / record.us:.3f}x the first choice, less than {least_gain}"
    if not record.case or not record.revision:
        return ""
    try:
        engine = ENGINES.named(record.engine)
        if engine is None:
            return f"there is no engine {record.engine}"
        plan = engine.plan(parse_case(record.case).graph(), _arch_of(record), record.choices)
    except LowdnnError as error:
        return str(error)
    return "" if revision_of(plan.kernels, sources) == record.revision else "its kernels have changed"


def _arch_of(record: TuningRecord) -> ArchSpec:
    """The facts of the record's device."""
    product, name, count = record.device.rsplit(", ", 2) if record.device.count(", ") >= 2 else ("", "", "0")
    return spec_from_outside(name, int(count) if count.isdigit() else 0, "record.device").with_product(product)


def _ratio(was: TuningRecord, now: TuningRecord) -> float:
    return was.us / now.us if now.us else 0.0


def _missing(records: Mapping[RecordKey, TuningRecord], others: Mapping[RecordKey, TuningRecord]) -> int:
    return sum(key not in others for key in records)
