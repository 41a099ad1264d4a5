"""``lowdnn info`` reports on any machine; ``lowdnn demo`` is right on any device."""

from __future__ import annotations

import json

import pytest

from lowdnn.cli.main import main
from lowdnn.engines.registry import ENGINES


def test_info_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["emulated"]["compute_capability"] == "9.0"
    assert len(report["engines"]) == len(ENGINES)
    assert all({"reason", "advice"} == set(found) for found in report["missing"].values())
    for section in ("nvrtc", "cuda", "ptx", "cache"):
        assert (report[section] is None) == (section in report["missing"])


def test_info_as_text_says_what_to_do(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("LOWDNN_DISK_CACHE", "off")
    assert main(["info"]) == 0
    output = capsys.readouterr().out
    assert "missing: cache" in output
    assert "-> set LOWDNN_CACHE_DIR" in output


@pytest.mark.parametrize("device", ["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_demo(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--device", device]) == 0
    output = capsys.readouterr().out
    assert "backend: equal to the float64 reference" in output
    assert "pygraph: equal to the float64 reference" in output
    assert "plan chosen: eng" in output
    for engine in ENGINES:
        assert engine.name in output
