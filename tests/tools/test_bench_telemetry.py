"""The measurement of what telemetry costs runs on the host alone and leaves nothing behind."""

from __future__ import annotations

import sys

import pytest

from lowdnn import telemetry
from tools.bench.telemetry import host_ns, main, opened


def test_the_table_has_a_row_for_each_state(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    telemetry.reset()
    monkeypatch.setattr(sys, "argv", ["telemetry", "--device", "stub", "--rounds", "2", "--executes", "5000"])
    main()
    lines = capsys.readouterr().out.splitlines()
    assert [line[:16].rstrip() for line in lines[1:5]] == ["off", "on, none timed", "on, 1 % timed", "on, all timed"]
    assert lines[5].startswith("5500 executes counted; the process grew by")
    assert lines[7].split()[:3] == ["copy", "bench", "5500"]
    assert not telemetry.is_enabled()
    telemetry.reset()


def test_a_timed_execute_costs_more_than_one_that_is_not() -> None:
    with opened("stub") as program:
        rows = host_ns(program, 10)
    assert min(rows["on, all timed"]) > min(rows["on, none timed"]) > min(rows["off"]) > 0
    telemetry.reset()
