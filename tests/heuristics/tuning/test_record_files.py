"""Files of tuning records: two writers lose nothing, and what others may write is not read."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lowdnn.heuristics.tuning import record_files
from lowdnn.heuristics.tuning.record_files import RecordFile
from lowdnn.status import BadParamError
from tests.heuristics.tuning.test_records import RECORD
from tests.support.errors import raises

#: Adds records, one a write, as fast as it can.
_WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from lowdnn.heuristics.tuning.record_files import RecordFile
from tests.heuristics.tuning.test_records import RECORD
file = RecordFile.in_directory(Path(sys.argv[1]))
for number in range(25):
    file.merge([replace(RECORD, graph=f"{sys.argv[2]}{number:015x}")])
"""


def test_a_directory_is_the_users_own_and_so_is_its_file(tmp_path: Path) -> None:
    file = RecordFile.in_directory(tmp_path / "tuning")
    assert file.records() == ({}, {})
    file.merge([RECORD])
    assert file.records() == ({RECORD.key: RECORD}, {})
    written = tmp_path / "tuning" / "v1" / "records.jsonl"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (written, written.parent)] == [0o600, 0o700]


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    command = (sys.executable, "-c", _WRITER, str(tmp_path))
    writers = [subprocess.Popen((*command, digit)) for digit in "ab"]
    assert [writer.wait(120) for writer in writers] == [0, 0]
    records, wrong = RecordFile.in_directory(tmp_path).records()
    assert sorted(record.graph for record in records.values()) == sorted(
        f"{digit}{number:015x}" for digit in "ab" for number in range(25)
    )
    assert not wrong


def test_a_file_keeps_its_newest_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_files, "MOST_RECORDS", 3)
    file = RecordFile(tmp_path / "some.jsonl")
    for digit in "abcad":  # a is timed twice
        file.merge([replace(RECORD, graph=digit * 16)])
    assert [record.graph[0] for record in file.records()[0].values()] == ["c", "a", "d"]


def test_damaged_lines_are_told_and_go_with_the_next_write(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_bytes(f"{RECORD.text[:40]}\n{RECORD.text}\n\xff".encode("latin-1"))
    path.chmod(0o600)
    file = RecordFile(path)
    records, wrong = file.records()
    assert (list(records.values()), len(wrong)) == ([RECORD], 2)
    file.merge([])
    assert path.read_text() == f"{RECORD.text}\n"


def test_what_others_may_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text(f"{RECORD.text}\n")
    path.chmod(0o666)
    with raises(BadParamError, "tuning records", expected="nobody else may write", got=str(path)):
        RecordFile(path).text()
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(OSError, match="lets others write"):
        RecordFile.in_directory(open_to_all).merge([RECORD])
    assert not os.listdir(open_to_all)
