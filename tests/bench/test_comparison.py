"""Rows before and after a change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lowdnn.bench.comparison import change_table, changes
from lowdnn.bench.table import Row, RowFile
from tools.bench import compare

_ROW = Row(
    "conv", "dense", "conv n=1", "", "HALF", "engine", "", 100.0, 1.0, "cudnn", 3.0, 1.5, 0.02, "gpu", "1", "abc"
)  # fmt: skip


def _row(us: float, case: str = "conv n=1", spread: float = 0.0) -> Row:
    return replace(_ROW, us=us, case=case, spread=spread)


@pytest.mark.parametrize(
    ("before", "after", "spread", "verdict"),
    [
        (100.0, 101.1, 0.0, "loss"),
        (100.0, 100.9, 0.0, "same"),
        (100.0, 103.0, 0.05, "same"),
        (100.0, 106.0, 0.05, "loss"),
        (101.1, 100.0, 0.0, "gain"),
    ],
)
def test_a_loss_exceeds_the_spread_and_a_percent(before: float, after: float, spread: float, verdict: str) -> None:
    for spreads in ((spread, 0.0), (0.0, spread)):
        (change,) = changes([_row(before, spread=spreads[0])], [_row(after, spread=spreads[1])])
        assert (change.is_loss, change.is_gain) == (verdict == "loss", verdict == "gain")


def test_rounds_are_medians_and_their_distance_counts_as_spread() -> None:
    (change,) = changes([_row(us) for us in (100.0, 90.0, 110.0)], [_row(us) for us in (105.0, 106.0, 200.0)])
    assert (change.before_us, change.after_us) == (100.0, 106.0)
    assert change.spread == pytest.approx(95 / 106)
    assert not change.is_loss


def test_only_what_both_have_without_error_is_compared() -> None:
    before = [_row(100.0), _row(7.0, "conv n=2"), replace(_row(0.0, "conv n=3"), error="failed")]
    after = [_row(100.0), _row(8.0, "conv n=4"), _row(9.0, "conv n=3"), replace(_row(100.0), class_="other")]
    assert [change.case for change in changes(before, after)] == ["conv n=1"]
    assert change_table([]) == "no case in common"


def test_the_command_fails_on_a_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, times in (("old", (100.0, 50.0, 10.0)), ("new", (120.0, 40.0, 10.0))):
        with RowFile(tmp_path / name, is_resumed=False) as file:
            for number, us in enumerate(times):
                file.add(_row(us, f"conv n={number}"))
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    monkeypatch.setattr("sys.argv", ["compare", "--before", old, old, "--after", new])
    assert compare.main() == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:2]] == [["LOSS", "0.833x"], ["gain", "1.250x"]]
    assert lines[2] == "3 cases, 1 losses, 1 gains, mean 1.014x"
    monkeypatch.setattr("sys.argv", ["compare", "--before", old, "--after", old])
    assert compare.main() == 0
