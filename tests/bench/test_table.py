"""The result files of the benchmarks and the table of classes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lowdnn.bench.suites import Target
from lowdnn.bench.table import Row, RowFile, class_table, read_rows

_ROW = Row(
    "conv", "a, b", "conv n=1", "net", "HALF", "engine", "K=1", 2.0, 1.0, "cudnn", 3.0, 1.5, 0.01, "gpu", "1", "abc"
)  # fmt: skip
_FAILED = replace(_ROW, case="conv n=2", us=0.0, ratio=0.0, error="lowdnn and cudnn disagree")


def test_rows_come_back_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rows" / "conv.csv"
    with RowFile(path, is_resumed=False) as file:
        file.add(_ROW)
        file.add(_FAILED)
    assert read_rows(path) == [_ROW, _FAILED]
    assert path.read_text(encoding="utf-8").startswith("suite,class,case,")


def test_a_resumed_file_keeps_its_rows_and_forgets_the_failures(tmp_path: Path) -> None:
    path = tmp_path / "conv.csv"
    with RowFile(path, is_resumed=True) as file:
        file.add(_ROW)
        file.add(_FAILED)
    with RowFile(path, is_resumed=True) as file:
        assert file.known == {(_ROW.class_, _ROW.case)}
        file.add(replace(_ROW, case="conv n=3"))
    assert [row.case for row in read_rows(path)] == ["conv n=1", "conv n=3"]
    with RowFile(path, is_resumed=False):
        assert read_rows(path) == []


def test_the_table_says_ratios_shares_errors_and_what_is_left_out() -> None:
    rows = [_ROW, replace(_ROW, case="conv n=9", ratio=6.0, floor_us=0.5), _FAILED, replace(_ROW, class_="free")]
    targets = {"a, b": Target(1.5, 1.6, 0.3), "absent": Target(1, 1)}
    lines = class_table(rows, targets, {"a, b": 7, "later": 2}).splitlines()
    assert lines[0].split()[4:] == ["ratio", "target", "worst", "target", "share", "target", "worst"]
    assert lines[1:5] == [
        "a, b",
        "     2      1        7   3.000    1.50   1.500    1.60   0.354    0.30   0.250  MISSED",
        "      worst: conv n=1",
        "      least share: conv n=9",
    ]
    assert lines[5:7] == ["free", "     1      0        0   1.500           1.500           0.500           0.500"]
    assert lines[8:] == ["later", "     0      0        2"]


def test_reached_targets_are_not_marked() -> None:
    assert "MISSED" not in class_table([_ROW], {"a, b": Target(1.5, 1.5, 0.5)}, {})
    assert "MISSED" in class_table([_ROW], {"a, b": Target(1.5, 1.5, 0.51)}, {})


def test_rows_without_a_floor_have_no_share() -> None:
    (_, line, _) = class_table([replace(_ROW, floor_us=0.0)], {"a, b": Target(1.5, 1.5)}, {}).splitlines()[1:]
    assert line == "     1      0        0   1.500    1.50   1.500    1.50"
