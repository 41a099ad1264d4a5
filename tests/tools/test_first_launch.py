"""``tools/bench/first_launch.py``: time counts for the innermost part that is open."""

from __future__ import annotations

import pytest

from tools.bench.first_launch import _Clock


def test_time_counts_for_the_innermost_part(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter((10.0, 11.0, 13.0, 17.0, 25.0))
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    clock = _Clock(7.0)
    inner = clock.timed("inner", lambda: "found")
    assert clock.timed("outer", inner)() == "found"
    assert clock.seconds == {"python": 3.0, "other modules": 1.0, "outer": 2.0 + 8.0, "inner": 4.0}
