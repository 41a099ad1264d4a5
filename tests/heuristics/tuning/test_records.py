"""Tuning records as lines of text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lowdnn.arch.specs import SM_80, SM_90A, SM_120
from lowdnn.enums import KnobType
from lowdnn.heuristics.tuning.records import (
    NO_LIMIT,
    RecordClock,
    RecordLines,
    TuningRecord,
    device_label,
    file_text,
    records_in,
)
from lowdnn.status import BadParamError, SerializationVersionMismatchError
from tests.support.errors import raises

RECORD = TuningRecord(
    graph="0123456789abcdef",
    device="NVIDIA H200, sm_90a, 132",
    workspace_limit=NO_LIMIT,
    engine="matmul_mma",
    choices={KnobType.TILE_M: 64, KnobType.STAGES: 3},
    us=1.25,
    warm_us=1.0,
    first_us=1.5,
    clock=RecordClock.EVENTS,
    revision="aa55",
    driver="13.0",
    lowdnn="0.1.0",
    case="matmul m=8 n=8 k=8",
)


def test_files_are_read_as_they_were_written() -> None:
    limited = replace(RECORD, workspace_limit=0, us=2.0)
    records, wrong = records_in(file_text([RECORD, limited]))
    assert (list(records.values()), wrong) == ([RECORD, limited], {})


def test_of_two_records_of_a_key_the_last_counts_and_stands_where_it_was_written() -> None:
    other, newer = replace(RECORD, device="NVIDIA H100, sm_90a, 132"), replace(RECORD, us=1.0)
    records, _ = records_in(file_text([RECORD, other, newer]))
    assert list(records.values()) == [other, newer]


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ('"us":1.25', '"us":-1.0', "tuning record.us"),
        ('"us":1.25', '"us":1', "tuning record.us"),
        ('"clock":"events"', '"clock":"sundial"', "tuning record.clock"),
        ('"TILE_M":64', '"NO_KNOB":64', "tuning record.choices"),
        ('"TILE_M":64', '"TILE_M":6.5', "tuning record.choices"),
        ('"engine":"matmul_mma"', '"engine":"\\n"', "tuning record.engine"),
        ('"case":"', f'"case":"{"x" * 9000}', "tuning record"),
        ('"driver":"13.0",', "", "tuning record"),
    ],
)
def test_lines_of_another_form_are_refused_by_name(old: str, new: str, where: str) -> None:
    assert old in RECORD.text
    with raises(BadParamError, where):
        TuningRecord.of(RECORD.text.replace(old, new))


def test_a_record_of_another_version_is_refused_and_the_others_of_its_file_are_read() -> None:
    older = RECORD.text.replace('"lowdnn_record":1', '"lowdnn_record":0')
    with raises(SerializationVersionMismatchError, "tuning record.lowdnn_record", expected="1", got="0"):
        TuningRecord.of(older)
    text = f"{older}\n{{\n\n{RECORD.text}\n"
    records, wrong = records_in(text)
    assert list(records.values()) == [RECORD]
    assert list(wrong) == [1, 2]
    lines = RecordLines.of(text)
    assert (dict(lines.by_graph), lines.strange, lines.other_versions) == ({RECORD.graph: (RECORD.text,)}, 1, 1)


def test_a_label_names_product_architecture_and_multiprocessors() -> None:
    devices = [SM_90A, SM_90A.with_product("NVIDIA H100 80GB HBM3"), SM_90A.with_sm_count(114), SM_80, SM_120]
    assert device_label(SM_90A) == "NVIDIA H200, sm_90a, 132"
    assert len({device_label(device) for device in devices}) == len(devices)
