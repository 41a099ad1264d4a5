"""Random calls of backend and frontend raise documented errors only, and leave nothing behind."""

from __future__ import annotations

import pytest

from tools.checks.stress_api import stress

_STEPS = 2000


@pytest.mark.usefixtures("kernel_cache_dir")
def test_random_calls_raise_documented_errors_only() -> None:
    report = stress(_STEPS, seed=8)
    assert report.steps == _STEPS
    assert not report.faults, str(report)
    assert report.leaked_handles == 0
    assert _STEPS / 3 < report.succeeded.total() < _STEPS
    never = {call for call in report.calls if not report.succeeded[call]}
    assert not never, f"calls that never succeed test nothing: {never}"


def test_faults_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise IndexError("planted")

    monkeypatch.setattr("lowdnn.backend.descriptor.attributes_of", broken)
    report = stress(100, seed=7)
    assert any("planted" in fault for fault in report.faults.values()), str(report)


def test_the_same_seed_gives_the_same_calls() -> None:
    first, second = stress(300, seed=3), stress(300, seed=3)
    assert first.calls == second.calls
    assert first.errors == second.errors
